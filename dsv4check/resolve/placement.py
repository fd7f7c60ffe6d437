"""Where a launch places weights in another way than their parameters' classes say.

Tensor parallelism cuts what the facts list under ``cut``, expert parallelism deals out whole experts and pipeline
parallelism layers. Beside that some launches keep shared experts whole, hold more of the routed experts than the
checkpoint has, keep tables in host memory, or build a part of the model on other stages.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dsv4check.deployment import Deployment
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism

ENGRAM_TABLE: Final = "engram.embed_tokens"
"""V4.1's n-gram tables, as the facts name the module."""
_SHARED: Final = frozenset({"ffn.shared_experts.gate_up_proj", "ffn.shared_experts.down_proj"})
_SEQUENCE_PARALLEL_SINCE: Final = (0, 27)
"""First release whose ``DeepseekV4MoE`` is told of sequence parallelism (``models/deepseek_v4/nvidia/model.py``)."""
_SMALL_TRTLLM_TILES_SINCE: Final = (0, 27)
"""First release that pads expert slices for TRT-LLM's kernels to 128 columns; before it was 256."""
_TOWER_FIRST_SINCE: Final = (0, 33)
_EMBEDDING_TWICE_SINCE: Final = (0, 30)
"""First release with ``spec_decode_needs_target_embed`` (``models/utils.py``), and with pipelines and drafts at all."""
_NEED_EMBEDDING: Final = ("eagle", "eagle3", "dflash", "dspark")
_ENGRAM_VARIABLE: Final = "VLLM_PLE_CPU_OFFLOAD"
_TILES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "DEEPGEMM_MXFP4": (128, 128),
        "CUTLASS_MXFP4_MXFP4": (128, 128),
        "MARLIN": (128, 256),
        "BATCHED_MARLIN": (128, 256),
        "FLASHINFER_TRTLLM_MXFP4_MXFP8": (128, 256),
        "FLASHINFER_TRTLLM_MXFP4_BF16": (128, 256),
        "FLASHINFER_CUTLASS_MXFP4_MXFP8": (128, 128),
        "FLASHINFER_CUTLASS_MXFP4_BF16": (128, 128),
        "EMULATION": (32, 32),
        "TRITON": (64, 1),
        "TRITON_UNFUSED": (64, 1),
        "HUMMING": (64, 1),
    }
)
"""Kernel of MXFP4 experts -> what a slice's width and the hidden size are rounded up to. Kernels that are not listed
(B12X, MegaMoE and FlashInfer's MoE-EP) take the sizes as they are.

Source: ``mxfp4_round_up_hidden_size_and_intermediate_size`` in ``fused_moe/oracle/mxfp4.py``."""


class Tower(enum.Enum):
    """Pipeline stages that have the vision tower."""

    EVERY = "every"
    FIRST = "first"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Placement:
    """What differs from the plain rule."""

    whole: frozenset[str] = frozenset()
    """Modules, as the facts name them under ``cut``, that every rank holds in full all the same."""
    elsewhere: frozenset[str] = frozenset()
    """Modules that take no GPU memory."""
    tower: Tower = Tower.EVERY
    """Pipeline stages that have the vision tower."""
    embedding_twice: bool = False
    """The last of several pipeline stages has the embedding, too, for the draft."""
    redundant: int = 0
    """Further copies of routed experts in each layer (EPLB)."""
    padding: tuple[int, int] = (1, 1)
    """Numerator and denominator: bytes of an expert (or of a rank's slice of it) as allocated, against those stored."""

    def experts_held(self, experts: int, parallel: Parallelism) -> tuple[int, int]:
        """Numerator and denominator: of the bytes of a layer's ``experts``, what the fullest GPU holds."""
        ranks = expert_ranks(parallel)
        held, stored = 1, ranks
        if parallel.expert_parallel and experts > 0:
            held, stored = -(-(experts + self.redundant) // ranks), experts
        return held * self.padding[0], stored * self.padding[1]


AS_STORED: Final = Placement()


def expert_ranks(parallel: Parallelism) -> int:
    """Ranks that the routed experts of a layer are spread over, as whole ones or in slices."""
    # Without expert parallelism the ranks of all data-parallel engines share every expert.
    return parallel.expert_parallel_size if parallel.expert_parallel else parallel.tensor * parallel.data


def placement_of(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    draft: Draft,
    *,
    mega_moe: bool,
    kernel: str | None,
) -> Placement | None:
    """The placement of a launch's target and draft on NVIDIA GPUs.

    ``kernel``: vLLM's name of the experts' MXFP4 kernel; None for another format and where it is not known, then
    nothing is padded. None as answer where the layout of the nodes decides (n-gram tables on GPUs with data
    parallelism).
    """
    release = _numbers(facts.version)
    elsewhere = frozenset[str]()
    if deployment.model.get("engram_layer_ids"):
        if engram_in_host_memory(deployment):
            elsewhere = frozenset({ENGRAM_TABLE})
        elif parallel.data > 1:
            return None
    sequence_parallel = (
        release >= _SEQUENCE_PARALLEL_SINCE
        and parallel.pipeline == 1
        and parallel.expert_parallel
        and parallel.tensor > 1
        and (mega_moe or parallel.data > 1)
    )
    return Placement(
        whole=_SHARED if sequence_parallel else frozenset(),
        elsewhere=elsewhere,
        tower=_tower(deployment, release),
        embedding_twice=(
            release >= _EMBEDDING_TWICE_SINCE
            and parallel.pipeline > 1
            and deployment.model.family == "deepseek_v4"
            and draft.method in _NEED_EMBEDDING
        ),
        redundant=_redundant(deployment, facts),
        padding=_padding(deployment, parallel, kernel, release),
    )


def _tower(deployment: Deployment, release: tuple[int, ...]) -> Tower:
    """Where the vision tower is built, if there is one.

    Source: ``_mark_tower_model`` in ``models/interfaces.py``. 0.33 leaves it out of later stages with the V2 runner,
    the default; with the V1 runner, which is not looked at here, every stage has it.
    """
    limit = deployment.flags.section("limit_mm_per_prompt").get("image")
    count = limit.get("count") if isinstance(limit, Mapping) else limit
    if deployment.flags.get("language_model_only") is True or (count == 0 and count is not False):
        return Tower.NONE
    return Tower.FIRST if release >= _TOWER_FIRST_SINCE else Tower.EVERY


def engram_in_host_memory(deployment: Deployment) -> bool:
    """Whether V4.1's n-gram tables lie in pinned host memory, which is the default.

    Source: ``config/engram.py`` (0.30 asks a variable where ``--engram-config`` says nothing).
    """
    stated = deployment.flags.section("engram_config").get("cpu_offload")
    if isinstance(stated, bool):
        return stated
    return deployment.vllm.release != "0.30.0" or deployment.env.get(_ENGRAM_VARIABLE, "1") != "0"


def _redundant(deployment: Deployment, facts: ReleaseFacts) -> int:
    # Without the protocol of load-balanced experts the model does not ask for the number.
    if deployment.flags.get("enable_eplb") is not True or not facts.section("parallel").get("eplb_protocol"):
        return 0
    number = deployment.flags.section("eplb_config").get("num_redundant_experts", 0)
    return number if isinstance(number, int) and number > 0 else 0


def _padding(
    deployment: Deployment, parallel: Parallelism, kernel: str | None, release: tuple[int, ...]
) -> tuple[int, int]:
    width, hidden = deployment.model.integer("moe_intermediate_size"), deployment.model.integer("hidden_size")
    tiles = _TILES.get(kernel or "")
    if tiles is None or not width or not hidden:
        return 1, 1
    tile = 256 if "TRTLLM" in str(kernel) and release < _SMALL_TRTLLM_TILES_SINCE else tiles[0]
    slices = 1 if parallel.expert_parallel else expert_ranks(parallel)
    padded = -(-width // (slices * tile)) * tile * slices
    return padded * -(-hidden // tiles[1]) * tiles[1], width * hidden


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
