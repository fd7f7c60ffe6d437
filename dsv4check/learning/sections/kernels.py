"""Section ``kernels``: what the wheel's kernels cover, and what the release asks of FlashInfer's and DeepGEMM's.

Whether a kernel runs on a GPU is not written in vLLM; the facts here are what vLLM's side shows: the files of its
wheel, what it pins, and the calls it makes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..attention_layers import MODEL, constructor, has_selector
from ..classes import get_class
from ..interpret import Reading
from ..release import Release
from ..source import LearningError, Source, names
from .attention import selected_class

WINDOW: Final = "v1/attention/backends/mla/sparse_swa.py"
FLASHINFER: Final = "models/deepseek_v4/nvidia/flashinfer_sparse.py"
SPECS: Final = "v1/kv_cache_interface.py"
HYPER_CONNECTION: Final = ("model_executor/kernels/mhc/tilelang.py", "model_executor/layers/mhc.py")
GEMM: Final = "tf32_hc_prenorm_gemm"
"""DeepGEMM's hyper-connection GEMM; the only other implementation is TileLang's."""
SWITCH: Final = "use_deep_gemm"
_DEEP_GEMM: Final = "vllm/third_party/deep_gemm/include/deep_gemm/"
_PROBE_WINDOW: Final = 128
_PROBE_TOKENS: Final = 300


def learn(release: Release) -> dict[str, Any]:
    """Kernels in the wheel and calls to kernels elsewhere."""
    source = release.source
    return {
        "deep_gemm_sm12x": _deep_gemm_sm12x(source),
        "sm12x_attention": _sm12x_attention(source),
        "dspark_index_multiple": _dspark_multiple(source),
        "image_tokens_widen_prefill": _image_tokens(source),
        "sends_storage_offsets": _storage_offsets(source),
        "packed_cache_strided": _packed_cache_strided(source),
        "pins_flashinfer_cubin": bool(
            re.search(r"^Requires-Dist: flashinfer-cubin\b", _about(source, "METADATA"), re.M)
        ),
        "hyper_connection_needs_deep_gemm": _needs_deep_gemm(source),
    }


def _about(source: Source, name: str) -> str:
    """A file of the wheel's ``dist-info`` beside the package."""
    for folder in sorted(source.package.parent.glob("vllm-*.dist-info")):
        if (folder / name).is_file():
            return Path(folder / name).read_text(encoding="utf-8")
    raise LearningError(f"vllm-*.dist-info/{name} is not there")


def _deep_gemm_sm12x(source: Source) -> bool:
    """The wheel's own DeepGEMM has kernels named for SM12x (CUTLASS beside it always has)."""
    files = re.findall(rf"^{_DEEP_GEMM}(\S+?),", _about(source, "RECORD"), re.M)
    if not files:
        raise LearningError(f"the wheel has no {_DEEP_GEMM}")
    return any(re.search(r"sm12\d_\w+\.cuh$", path) for path in files)


def _sm12x_attention(source: Source) -> str:
    """What the class for SM12x asks of FlashInfer when it is made: nothing, that the API is there, or its table."""
    if not has_selector(source):
        return "none"
    chosen = selected_class(source, None, 12)
    if chosen == selected_class(source, None, 9):
        return "none"
    asked = names(constructor(get_class(source, MODEL, chosen)))
    for name, answer in (
        ("has_flashinfer_sparse_mla_sm120_config", "table"),
        ("has_flashinfer_sparse_mla_sm120", "api"),
    ):
        if name in asked:
            return answer
    raise LearningError(f"{chosen}.__init__ does not ask for FlashInfer's SM120 kernels in a known way")


def _assigners(source: Source, path: str, target: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == target for item in node.body
        ):
            yield node


def _dspark_multiple(source: Source) -> int | None:
    """What the width of DSpark's sliding-window index rows is rounded up to."""
    target = "self.noncausal_index_width"
    function = next(_assigners(source, WINDOW, target), None)
    if function is None:
        if "dspark" in source.text(WINDOW).lower():
            raise LearningError(f"{WINDOW} knows DSpark but sets no {target}")
        return None
    widths = []
    for tokens in range(1, _PROBE_TOKENS):
        known = {"self.is_dspark": True, "self.window_size": _PROBE_WINDOW, "self.num_speculative_tokens": tokens}
        width = Reading(source, WINDOW, known).settle(function, target)
        if not isinstance(width, int):
            raise LearningError(f"{WINDOW}: {target} is not a number")
        widths.append(width)
    multiple = math.gcd(*widths)
    if widths != [-(-(_PROBE_WINDOW + tokens) // multiple) * multiple for tokens in range(1, _PROBE_TOKENS)]:
        raise LearningError(f"{WINDOW}: {target} is not window plus tokens, rounded up")
    return multiple


def _image_tokens(source: Source) -> bool:
    """The vision checkpoint's image tokens are added to the width of prefill's index rows."""
    target = "self.prefill_index_width"
    function = next(_assigners(source, WINDOW, target), None)
    if function is None:
        if "vision_max_n_token" in source.text(WINDOW):
            raise LearningError(f"{WINDOW} reads vision_max_n_token but sets no {target}")
        return False
    known = {"self.window_size": _PROBE_WINDOW, "self.max_image_tokens": 64}
    return bool(Reading(source, WINDOW, known).settle(function, target) == _PROBE_WINDOW + 64)


def _storage_offsets(source: Source) -> bool:
    """FlashInfer's decode is called with ``sparse_indices_are_storage_offsets=True``."""
    if not source.has(FLASHINFER):
        return False
    name = "sparse_indices_are_storage_offsets"
    passed = {
        ast.unparse(item.value)
        for node in ast.walk(source.tree(FLASHINFER))
        if isinstance(node, ast.Call)
        for item in node.keywords
        if item.arg == name
    }
    if passed - {"True"} or (name in source.text(FLASHINFER) and not passed):
        raise LearningError(f"{FLASHINFER} passes {name} in another way than True")
    return bool(passed)


def _packed_cache_strided(source: Source) -> bool:
    """Layers' pages lie side by side in one block: a cache tensor has a stride between blocks."""
    node = source.get(SPECS, "KVCacheTensor")
    fields = {ast.unparse(item.target) for item in getattr(node, "body", []) if isinstance(item, ast.AnnAssign)}
    if "size" not in fields:
        raise LearningError(f"{SPECS} KVCacheTensor has no size")
    return "block_stride" in fields


def _needs_deep_gemm(source: Source) -> bool:
    """Some hyper-connection GEMM is DeepGEMM's even where DeepGEMM does not support the GPU."""
    path = source.first(*HYPER_CONNECTION)
    functions = [node for node in source.tree(path).body if isinstance(node, ast.FunctionDef) and GEMM in names(node)]
    if not any(_guards(node) for node in functions):
        raise LearningError(f"{path} does not call {GEMM}")
    for node in functions:
        for guards in _guards(node):
            if not any(SWITCH in names(guard) for guard in guards):
                return True
        if any(_switched_on(source, path, node, site) for site in _sites(source, path, node.name)):
            return True
    return False


def _guards(function: ast.FunctionDef) -> list[list[ast.expr]]:
    """The conditions around each call of the GEMM."""
    found: list[list[ast.expr]] = []

    def visit(node: ast.AST, around: list[ast.expr]) -> None:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == GEMM:
            found.append(around)
        inner = [*around, node.test] if isinstance(node, ast.If) else around
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(function, [])
    return found


def _sites(source: Source, path: str, name: str) -> list[dict[str, Any]]:
    """Constant keyword arguments of each call of a function in its file; one empty entry when nobody there calls it."""
    calls: list[dict[str, Any]] = [
        {item.arg: item.value.value for item in node.keywords if item.arg and isinstance(item.value, ast.Constant)}
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]
    return calls or [{}]


def _switched_on(source: Source, path: str, function: ast.FunctionDef, site: dict[str, Any]) -> bool:
    """Does the function take DeepGEMM when it is called like this on a GPU that DeepGEMM does not support?"""
    known = {"is_deep_gemm_supported()": False, **site}
    switches = [
        node for node in ast.walk(function) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == SWITCH
    ]
    reading = Reading(source, path, known)
    reading.run(function, [])
    values = [reading.value(node.value) for node in switches]
    if not all(isinstance(value, bool) for value in values):
        raise LearningError(f"{path} {function.name}: cannot tell when {SWITCH} is set")
    return any(values)
