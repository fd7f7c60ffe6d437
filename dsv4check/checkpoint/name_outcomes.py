"""What can become of a tensor by its name, and what a name's way depends on."""

from __future__ import annotations

from typing import Final

from dsv4check.records import dataclass

MAX_DIGITS: Final = 10
"""Python refuses to read numbers of thousands of digits; no layer has one of ten."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter that a tensor is loaded into."""

    parameter: str
    """Full name, as the model's ``named_parameters`` would give it."""
    shard: int | str | None = None
    """Which part of a fused parameter: a number, or a matrix of an expert; None for all of it."""
    expert: int | None = None
    """Number of the routed expert."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The tensor is not loaded, and nothing is said about it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The tensor ends the start, whatever parameters the model has."""

    exception: str
    message: str


Outcome = tuple[Target, ...] | Skipped | Refused


@dataclass(frozen=True, slots=True)
class NameSettings:
    """What the names depend on besides the release, its vendor and the model class."""

    n_routed_experts: int
    num_hidden_layers: int
    stages: int = 0
    """Layers of the draft: the first of the rules' ``stages`` that the config has."""
    expert_dtype: str = "fp4"
    weight_block: tuple[int, ...] | None = None
    """``weight_block_size`` of the quantization."""
    quantized: bool = True
    """The model has a quantization config. Its rules are those of FP8 and Quark."""
    mega_moe: bool = False
    """The experts are those of a MegaMoE kernel with parameters of its own."""
    confidence_head: bool = True
    """The DSpark draft was built with that head."""
    fused_shared: bool = False
    """The shared expert is loaded into parameters of the routed ones."""
    image: bool = True
    """The model takes images (see ``needs`` of the rules for ``image``)."""


NOT_USED: Final = Skipped("left out by the model's renames")
UNUSED: Final = Skipped("never used")
BY_LOADER: Final = Skipped("skipped by the model's loader")
NO_EXPERT: Final = Skipped("no matrix of a routed expert has this name")
NO_DRAFT: Final = Skipped("not of this draft")
NO_STAGE: Final = Skipped("only the first layer's is loaded")
NO_HEAD: Final = Skipped("the draft has no such head")
