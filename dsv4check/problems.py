"""What goes wrong, said once: the stages of a vLLM start and the problems found at each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from dsv4check.records import dataclass, field


class Stage(StrEnum):
    """The stage of ``vllm serve`` at which a launch stops, in the order vLLM passes through them."""

    ARGPARSE = "argparse"
    """vLLM's command line parser: exit status 2, or an exception while it runs."""
    ENGINE_CONFIG = "engine-config"
    """``EngineArgs.create_engine_config`` and the validators of ``VllmConfig``."""
    MODEL_INIT = "model-init"
    """A worker builds the target model: attention class, KV dtype, MoE backend."""
    WEIGHT_LOAD = "weight-load"
    """Checkpoint tensors are matched with parameters and processed; the draft is set up and loaded."""
    KV_CACHE_INIT = "kv-cache-init"
    """Memory profiling, KV cache planning, allocation and reshape, metadata builders."""
    WARMUP = "warmup"
    """First forward passes: kernels are compiled and called with dummy input."""
    CUDAGRAPH = "cudagraph"
    """Graph capture."""
    RUNTIME = "runtime"
    """The server is up; it fails, stalls or wastes memory under load."""
    ACCURACY = "accuracy"
    """The server is up and answers, but the numbers are wrong or a draft is useless."""

    @property
    def order(self) -> int:
        """Position in the start sequence, 0 for argparse."""
        return _ORDER[self]


_ORDER = {stage: index for index, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was said, so that a finding can point at it."""

    kind: str
    """``flag``, ``yaml``, ``env``, ``stdin``, ``file``, ``default``, ``model``, ``catalogue``, ``nvml``, ``option``;
    for the gate ``word``, whose line is the word's number."""
    text: str = ""
    """The flag token, file path, variable name or release the value came from."""
    line: int | None = None
    """1-based line, for files and standard input."""
    column: int | None = None
    """1-based column, where known."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that the resolution found vLLM would refuse, drop or do differently from what was asked.

    A rule in ``rules/checks/`` with the same ``problem`` code turns it into a finding; the code alone
    decides which rule, the fields give the rule its stage, the quoted error and the message's values.
    """

    code: str
    """Kebab-case name of the problem, matched by a rule's ``problem`` key."""
    stage: Stage
    """Where this release stops on it."""
    exception: str = ""
    """Type of the exception vLLM raises, empty when it raises none (a value is dropped or rewritten)."""
    error: str = ""
    """What vLLM prints, as this release words it (values filled in)."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Values for the rule's message and fixes."""
    origin: Origin | None = None
    """Where the offending value was said."""
