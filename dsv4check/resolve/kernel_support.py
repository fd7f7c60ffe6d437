"""What the kernel packages of a launch contain: DeepGEMM's targets, FlashInfer's SM12x shapes, drifting pins.

vLLM picks its attention class by compute capability alone; whether a kernel for the shape exists is only
found out when it is called (0.28 and later ask FlashInfer's decode table while the layer is built). The
values here let rules say so before the launch. Sources: the file list of each vLLM wheel
(``vllm/third_party/deep_gemm/include``), vLLM's ``models/deepseek_v4/nvidia/flashinfer_sparse.py`` and
``v1/attention/backends/mla/sparse_swa.py``, and FlashInfer's wheels (``flashinfer/mla/_sparse_mla_sm120``,
``csrc/sparse_mla_sm120_prefill.cu``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft
from dsv4check.resolve.attention import indexer_dtype, requested_backend

_WINDOW_DEFAULT: Final = 128
"""``sliding_window`` of every published checkpoint, for configs that leave it out."""
_ANY: Final = frozenset[int]()
"""A width set that stands for every multiple of 64: the width is a run-time argument."""


@dataclass(frozen=True, slots=True)
class SparseMlaShapes:
    """The SM12x sparse-MLA kernels one range of FlashInfer versions ships for the packed V4 cache."""

    since: str
    """First FlashInfer version with these kernels."""
    decode_heads: frozenset[int]
    decode_widths: frozenset[int]
    """Sliding-window index widths of the decode kernels, empty when any multiple of 64 works."""
    prefill_heads: frozenset[int]
    prefill_widths: frozenset[int]
    """The same for prefill on layers that also read a compressed cache."""
    draft_prefill_widths: frozenset[int]
    """The same for prefill on sliding-window-only layers."""


_ALL_HEADS: Final = frozenset({8, 16, 32, 64, 128})
_FLASHINFER_SM12X: Final = (
    SparseMlaShapes(
        "0.6.14",
        decode_heads=_ALL_HEADS,
        decode_widths=frozenset({128, 512, 1024}),
        prefill_heads=_ALL_HEADS - {8},
        prefill_widths=frozenset({128}),
        draft_prefill_widths=frozenset({128, 512, 1024, 2048}),
    ),
    SparseMlaShapes(
        "0.6.18",
        decode_heads=_ALL_HEADS,
        decode_widths=frozenset({128, 192, 256, 512, 1024}),
        prefill_heads=_ALL_HEADS,
        prefill_widths=frozenset({128}),
        draft_prefill_widths=frozenset({128, 192, 256, 512, 1024, 2048}),
    ),
    SparseMlaShapes("0.7.0", _ALL_HEADS, _ANY, _ALL_HEADS, _ANY, _ANY),
)


def kernel_facts(
    deployment: Deployment, facts: ReleaseFacts, attention: Attention | None, draft: Draft
) -> Mapping[str, Any]:
    """Named values for rule conditions (``fact.<name>``); a name is None when the inputs do not settle it.

    - ``deep_gemm_sm12x``: the release's wheel has DeepGEMM kernels for SM12x.
    - ``hyper_connection_needs_deep_gemm``: one hyper-connection GEMM has no TileLang fallback.
    - ``flashinfer``, ``flashinfer_pin``, ``flashinfer_drift`` (``same``, ``older``, ``newer``), and the same
      three for ``cutlass_dsl`` and ``torch``: the versions in effect against the exact pins of the release.
    - ``flashinfer_cubin_mismatch``: flashinfer-cubin stays at another version than flashinfer-python.
    - ``flashinfer_jit_cache_mismatch``: a stated flashinfer-jit-cache does.
    - ``flashinfer_sm12x_api``: FlashInfer takes the keywords vLLM passes on SM12x (0.6.14 and later).
    - ``flashinfer_storage_offsets``: ``required`` (0.7 and later) or ``unknown keyword`` (before).
    - ``sends_storage_offsets``, ``packed_cache_strided``: what the release does on that interface.
    - ``sm12x_index_width``, ``sm12x_prefill_width``: entries of a window index row.
    - ``sm12x_decode_kernel``, ``sm12x_prefill_kernel``, ``sm12x_draft_kernel``: FlashInfer has a kernel for
      the padded heads and that width (``draft``: prefill on sliding-window-only layers).
    - ``indexer_dtype``, ``backend_requested``: as in the attention record, which V4.1 and ROCm do not have.

    ``attention`` is None where the class is not modelled; what needs its heads is None then.
    """
    section = facts.section("kernels")
    pins = facts.section("pins").get("packages", {})
    flashinfer = _effective(deployment, pins, "flashinfer-python")
    cutlass = _effective(deployment, pins, "nvidia-cutlass-dsl")
    torch = _effective(deployment, pins, "torch")
    shapes = _shapes(flashinfer.version)
    heads = None if attention is None else attention.padded_q_heads
    width = _index_width(deployment, section, draft)
    prefill_width = _prefill_width(deployment, section)
    return {
        "indexer_dtype": indexer_dtype(deployment, facts),
        "backend_requested": requested_backend(deployment).name,
        "deep_gemm_sm12x": section.get("deep_gemm_sm12x"),
        "hyper_connection_needs_deep_gemm": section.get("hyper_connection_needs_deep_gemm"),
        "sends_storage_offsets": section.get("sends_storage_offsets"),
        "packed_cache_strided": section.get("packed_cache_strided"),
        "flashinfer": flashinfer.version,
        "flashinfer_pin": flashinfer.pin,
        "flashinfer_drift": flashinfer.drift,
        "cutlass_dsl": cutlass.version,
        "cutlass_dsl_pin": cutlass.pin,
        "cutlass_dsl_drift": cutlass.drift,
        "torch": torch.version,
        "torch_pin": torch.pin,
        "torch_drift": torch.drift,
        "flashinfer_cubin_mismatch": _cubin_mismatch(deployment, section, pins, flashinfer),
        "flashinfer_jit_cache_mismatch": _jit_cache_mismatch(deployment, flashinfer),
        "flashinfer_sm12x_api": None if flashinfer.version is None else shapes is not None,
        "flashinfer_storage_offsets": _storage_offsets(flashinfer.version),
        "sm12x_index_width": width,
        "sm12x_prefill_width": prefill_width,
        "sm12x_decode_kernel": _covers(shapes, heads, width, "decode"),
        "sm12x_prefill_kernel": _covers(shapes, heads, prefill_width, "prefill"),
        "sm12x_draft_kernel": _covers(shapes, heads, width, "draft"),
    }


@dataclass(frozen=True, slots=True)
class _Package:
    """A package's version in this launch and the release's exact pin."""

    version: str | None
    pin: str | None
    drift: str | None


def _effective(deployment: Deployment, pins: Mapping[str, str], name: str) -> _Package:
    text = str(pins.get(name, ""))
    pin = text[2:] if text.startswith("==") and "*" not in text and "," not in text else None
    stated = deployment.packages.get(name)
    if stated is None:
        return _Package(pin, pin, None if pin is None else "same")
    order = None if pin is None else _order(stated, pin)
    return _Package(stated, pin, None if order is None else ("older", "same", "newer")[order + 1])


@lru_cache(maxsize=512)
def _order(left: str, right: str) -> int | None:
    """-1, 0 or 1 as ``left`` is older than, equal to or newer than ``right``; None for what is no version.

    Local labels (``+cu130``) name the build, not the code, and are left out.
    """
    from packaging.version import InvalidVersion, Version

    try:
        first, second = Version(left.partition("+")[0]), Version(right.partition("+")[0])
    except InvalidVersion:
        return None
    return (first > second) - (first < second)


def _at_least(version: str, bound: str) -> bool:
    order = _order(version, bound)
    return order is not None and order >= 0


def _shapes(version: str | None) -> SparseMlaShapes | None:
    """The newest table that ``version`` has reached; None before 0.6.14, which has no such kernels."""
    if version is None:
        return None
    return next((table for table in reversed(_FLASHINFER_SM12X) if _at_least(version, table.since)), None)


def _storage_offsets(version: str | None) -> str | None:
    if version is None:
        return None
    return "required" if _at_least(version, "0.7.0") else "unknown keyword"


def _cubin_mismatch(
    deployment: Deployment, section: Mapping[str, Any], pins: Mapping[str, str], flashinfer: _Package
) -> bool | None:
    """FlashInfer refuses to be imported beside another flashinfer-cubin (``flashinfer/jit/env.py``).

    vLLM's wheel brings flashinfer-cubin up to 0.25; later releases only have it when it is stated.
    """
    cubin = deployment.packages.get("flashinfer-cubin")
    if cubin is None and section.get("pins_flashinfer_cubin"):
        cubin = _effective(deployment, pins, "flashinfer-cubin").pin
    if cubin is None or flashinfer.version is None:
        return False
    order = _order(flashinfer.version, cubin)
    return None if order is None else order != 0


def _jit_cache_mismatch(deployment: Deployment, flashinfer: _Package) -> bool | None:
    """FlashInfer compares the beginnings of the two texts, as the cache's version ends in its CUDA version."""
    cache = deployment.packages.get("flashinfer-jit-cache")
    if cache is None:
        return False
    return None if flashinfer.version is None else not cache.startswith(flashinfer.version)


def _window(deployment: Deployment) -> int:
    return deployment.model.integer("sliding_window") or _WINDOW_DEFAULT


def _index_width(deployment: Deployment, section: Mapping[str, Any], draft: Draft) -> int | None:
    """Entries of a decode row's sliding-window index list.

    DSpark's draft attends to its own block as well, so its list is the window plus the draft tokens,
    rounded up to 128 (0.25 - 0.27) or 64 (0.28 and later).
    """
    window = _window(deployment)
    if draft.method != "dspark":
        return window
    multiple = section.get("dspark_index_multiple")
    tokens = draft.num_speculative_tokens
    if not multiple or tokens is None:
        return None
    return -(-(window + tokens) // int(multiple)) * int(multiple)


def _prefill_width(deployment: Deployment, section: Mapping[str, Any]) -> int:
    """Entries of a prefill row's list: image tokens of the vision checkpoint widen it (0.30 and later)."""
    model = deployment.model
    layers = model.integer("vision_n_layers") or 0
    if section.get("image_tokens_widen_prefill") and layers > 0:
        return _window(deployment) + (model.integer("vision_max_n_token") or 0)
    return _window(deployment)


def _covers(shapes: SparseMlaShapes | None, heads: int | None, width: int | None, what: str) -> bool | None:
    """True when FlashInfer ships the kernel; None when heads or width are not known."""
    if heads is None or width is None:
        return None
    if shapes is None:
        return False
    known_heads, widths = {
        "decode": (shapes.decode_heads, shapes.decode_widths),
        "prefill": (shapes.prefill_heads, shapes.prefill_widths),
        "draft": (shapes.prefill_heads, shapes.draft_prefill_widths),
    }[what]
    return heads in known_heads and (width % 64 == 0 if widths == _ANY else width in widths)
