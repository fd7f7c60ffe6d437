"""Section ``memory``: how a release measures what a start takes, and what it sets aside before the KV cache.

``measure`` is ``parts`` where weights, torch's peak and what others hold are added up, and ``consumed`` where the drop
of free memory since the start is taken. ``padded_query`` says where the query of padded heads is allocated: ``after``
the profiling run has returned, by the profiling run and again in each ``step``, or in a ``pool`` built with the model.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ..release import Release
from ..source import LearningError, Source, names, strings

WORKER: Final = "v1/worker/gpu_worker.py"
SNAPSHOTS: Final = "utils/mem_utils.py"
REQUEST: Final = ("v1/worker/utils.py", "request_memory")
ENVS: Final = "envs.py"
CONFIG: Final = "config/vllm.py"
MULTIMODAL: Final = "config/multimodal.py"
INDEXER: Final = ("v1/attention/backends/mla/indexer.py", "get_max_prefill_buffer_size")
RUNNERS: Final = {
    "v1": ("v1/worker/gpu_model_runner.py", "GPUModelRunner.profile_cudagraph_memory"),
    "v2": ("v1/worker/gpu/model_runner.py", "GPUModelRunner.profile_cudagraph_memory"),
}
ATTENTION: Final = ("models/deepseek_v4/attention.py", "model_executor/layers/deepseek_v4_attention.py")
FLASHMLA: Final = "models/deepseek_v4/nvidia/flashmla.py"
_ESTIMATE: Final = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
_LOGITS: Final = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"
_MESSAGE: Final = "on startup is less than desired GPU memory utilization"


def learn(release: Release) -> dict[str, Any]:
    """Measurement, reserves and the sizes of buffers that config fields do not tell."""
    source = release.source
    return {
        "baseline": _baseline(source),
        "capture_limit": _capture_limit(source),
        "external_weights": _argument(source, *REQUEST, "external_weight_memory"),
        "free_check": _free_check(source),
        "graph_estimate": {
            "default": _default(source, _ESTIMATE) != "0",
            **{runner: _estimates(source, *where) for runner, where in RUNNERS.items()},
        },
        "indexer_rows": _indexer_rows(source),
        "logits_mib": int(_default(source, _LOGITS)),
        "measure": _measure(source),
        "mm_ipc_gib": _mm_ipc(source),
        "padded_query": _padded_query(source),
        "prefill_chunk": _prefill_chunk(source),
        "unified": _unified(source),
        "weight_offload": {
            runner: "set_offloader" in names(source.tree(path)) for runner, (path, _name) in RUNNERS.items()
        },
        "workspace_lanes": source.find(WORKER, "_num_workspace_lanes") is not None,
    }


def _function(source: Source, path: str, name: str) -> ast.FunctionDef:
    node = source.get(path, name)
    if not isinstance(node, ast.FunctionDef):
        raise LearningError(f"{path} {name} is no function")
    return node


def _calls(node: ast.AST) -> list[tuple[int, str]]:
    return sorted((item.lineno, ast.unparse(item.func)) for item in ast.walk(node) if isinstance(item, ast.Call))


def _baseline(source: Source) -> list[str]:
    """What the memory held before the first snapshot consists of: not in the budget of any launch."""
    calls = [name for _line, name in _calls(_function(source, WORKER, "Worker.init_device"))]
    for name in ("init_worker_distributed_environment", "MemorySnapshot"):
        if name not in calls:
            raise LearningError(f"{WORKER} Worker.init_device does not call {name}")
    before = calls[: calls.index("MemorySnapshot")]
    parts = {"init_worker_distributed_environment": "nccl", "torch.mm": "cublas"}
    return ["context", *(part for name, part in parts.items() if name in before)]


def _argument(source: Source, path: str, name: str, argument: str) -> bool:
    return argument in {item.arg for item in _function(source, path, name).args.args}


def _free_check(source: Source) -> str:
    """The refusal of a start on a GPU that others use; figures as placeholders."""
    found = [text for text in map("".join, [strings(_raised(source))]) if _MESSAGE in text]
    if not found:
        raise LearningError(f"{REQUEST[0]} {REQUEST[1]} does not refuse a GPU with too little free memory")
    fields = iter(("device", "free", "total", "utilization", "requested"))
    return re.sub(r"\{\}", lambda _match: f"{{{next(fields, 'figure')}}}", found[0])


def _raised(source: Source) -> ast.AST:
    for node in ast.walk(_function(source, *REQUEST)):
        if isinstance(node, ast.Raise) and node.exc is not None and _MESSAGE in "".join(strings(node.exc)):
            return node.exc
    return ast.Constant("")


def _default(source: Source, name: str) -> str:
    """Default of an integer variable as its reader in ``envs.py`` has it."""
    found = re.search(rf'getenv\(\s*"{name}"\s*,\s*"(\d+)"', source.text(ENVS))
    if found is None:
        raise LearningError(f"{ENVS} does not read {name} with a default")
    return found[1]


def _estimates(source: Source, path: str, name: str) -> bool:
    """A runner whose estimate is a bare ``return 0`` sets nothing aside for its graphs."""
    node = _function(source, path, name)
    returned = [ast.unparse(item.value) for item in ast.walk(node) if isinstance(item, ast.Return) and item.value]
    if not returned:
        raise LearningError(f"{path} {name} returns nothing")
    return returned != ["0"]


def _indexer_rows(source: Source) -> list[list[int | None]]:
    """Rows of the indexer's gather buffer for each token of context: [longest context, rows], the first that fits."""
    node = _function(source, *INDEXER)
    text = ast.unparse(next(item for item in ast.walk(node) if isinstance(item, ast.Return)))
    plain = re.fullmatch(r"return max_model_len \* (\d+)", text)
    if plain:
        return [[None, int(plain[1])]]
    scaled = re.fullmatch(r"return max_model_len \* \((\d+) \* (\d+) // (\d+)\) \* factor", text)
    chosen = re.search(
        r"sparse_mla_prefill_workspace_factor = \(?\s*(\d+) if self\.model_config\.max_model_len <= "
        r"(\d+) \* (\d+) else (\d+)",
        source.text(CONFIG),
    )
    if scaled is None or chosen is None:
        raise LearningError(f"{INDEXER[0]} {INDEXER[1]} and {CONFIG}: the gather buffer is sized in an unknown way")
    rows = int(scaled[1]) * int(scaled[2]) // int(scaled[3])
    limit = int(chosen[2]) * int(chosen[3])
    return [[limit, rows * int(chosen[1])], [None, rows * int(chosen[4])]]


def _capture_limit(source: Source) -> dict[str, int]:
    """The largest batch that a graph is captured for by default: on SM 10.x, and elsewhere."""
    text = source.text(CONFIG)
    split = re.search(r"(\d+) if current_platform\.is_device_capability_family\(100\) else (\d+)", text)
    if split:
        return {"sm10": int(split[1]), "other": int(split[2])}
    one = re.search(r"max_num_seqs \* decode_query_len \* 2,\s*(\d+)", text)
    if one is None:
        raise LearningError(f"{CONFIG}: no default for max_cudagraph_capture_size")
    return {"sm10": int(one[1]), "other": int(one[1])}


def _measure(source: Source) -> str:
    node = _function(source, SNAPSHOTS, "memory_profiling")
    sums = [
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "result.non_kv_cache_memory"
    ]
    if not sums:
        raise LearningError(f"{SNAPSHOTS} memory_profiling sets no non_kv_cache_memory")
    known = names(sums[-1])
    if "total_consumed" in known:
        return "consumed"
    if "weights_memory" in known:
        return "parts"
    raise LearningError(f"{SNAPSHOTS} memory_profiling adds up non_kv_cache_memory in an unknown way")


def _mm_ipc(source: Source) -> float | None:
    """Default of ``mm_ipc_gpu_memory_gb``; None in releases without that reserve."""
    found = re.search(r"mm_ipc_gpu_memory_gb: float = Field\(default=([\d.]+)", source.text(MULTIMODAL))
    if found:
        return float(found[1])
    if "mm_ipc_gpu_memory_gb" in source.text(WORKER):
        raise LearningError(f"{MULTIMODAL} has no default for mm_ipc_gpu_memory_gb")
    return None


def _padded_query(source: Source) -> str:
    path = source.first(*ATTENTION)
    text = source.text(path)
    if "eager_scratch_pool.q_out(" in text:
        return "pool"
    profiled = re.compile(r"if not isinstance\(attn_metadata, dict\)")
    functions = [node for node in ast.walk(source.tree(path)) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        for item in ast.walk(node):
            if (
                isinstance(item, ast.If)
                and profiled.match(f"if {ast.unparse(item.test)}")
                and "F.pad(" in "".join(ast.unparse(part) for part in item.body)
            ):
                return "step"
    if "F.pad(" in text:
        return "after"
    raise LearningError(f"{path} pads no query")


def _prefill_chunk(source: Source) -> int:
    """Requests whose keys one prefill step of FlashMLA gathers at once."""
    places = [path for path in (*ATTENTION, FLASHMLA) if source.has(path)]
    for path in places:
        found = re.search(r"PREFILL_CHUNK_SIZE(?:: [\w\[\]]+)? = (\d+)", source.text(path))
        if found:
            return int(found[1])
    raise LearningError(f"{' and '.join(places) or FLASHMLA}: no PREFILL_CHUNK_SIZE")


def _unified(source: Source) -> dict[str, Any]:
    """Machines whose GPU shares the memory: what counts as free, and whether caches are given back under pressure."""
    node = _function(source, SNAPSHOTS, "MemorySnapshot.measure")
    if "is_integrated_gpu" not in names(node):
        raise LearningError(f"{SNAPSHOTS} MemorySnapshot.measure does not ask for an integrated GPU")
    if "psutil.virtual_memory().available" not in ast.unparse(node):
        raise LearningError(f"{SNAPSHOTS} MemorySnapshot.measure takes another figure on an integrated GPU")
    return {
        "free": "available",
        "releases": source.find(SNAPSHOTS, "release_device_memory_under_pressure") is not None,
    }
