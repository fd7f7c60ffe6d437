"""``memory``: what is measured at a start, read from the text of each release and of made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.memory import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

WORKER = "v1/worker/gpu_worker.py"
SNAPSHOTS = "utils/mem_utils.py"
REQUEST = "v1/worker/utils.py"
V2 = "v1/worker/gpu/model_runner.py"
ATTENTION = "models/deepseek_v4/attention.py"
CONFIG = "config/vllm.py"
INDEXER = "v1/attention/backends/mla/indexer.py"
FILES = {
    WORKER: """
        class Worker:
            def init_device(self):
                init_worker_distributed_environment(self.vllm_config)
                self.init_snapshot = MemorySnapshot(device=self.device)
    """,
    SNAPSHOTS: """
        class MemorySnapshot:
            def measure(self):
                if platform.is_integrated_gpu(0):
                    self.free_memory = psutil.virtual_memory().available
        def memory_profiling(baseline):
            result.non_kv_cache_memory = non_torch + peak + result.weights_memory
    """,
    REQUEST: """
        def request_memory(snapshot, cache_config):
            if snapshot.free < wanted:
                raise ValueError(
                    f"Free memory on device {device} ({free}/{total} GiB) on startup "
                    f"is less than desired GPU memory utilization ({util}, {wanted} GiB)."
                )
            return wanted
    """,
    "envs.py": """
        variables = {
            "A": lambda: int(os.getenv("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1")),
            "B": lambda: int(os.getenv("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "256")),
        }
    """,
    CONFIG: "size = min(self.max_num_seqs * decode_query_len * 2, 512)\n",
    "config/multimodal.py": "class MultiModalConfig:\n    pass\n",
    INDEXER: "def get_max_prefill_buffer_size(config):\n    return max_model_len * 40\n",
    "v1/worker/gpu_model_runner.py": """
        class GPUModelRunner:
            def profile_cudagraph_memory(self):
                return int(total)
    """,
    V2: """
        class GPUModelRunner:
            def profile_cudagraph_memory(self):
                return 0
    """,
    ATTENTION: """
        class Attention:
            PREFILL_CHUNK_SIZE: ClassVar[int] = 4
            def insert(self, q, attn_metadata):
                if not isinstance(attn_metadata, dict):
                    return F.pad(q, (0, 0))
    """,
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[path]
    return FILES | {path: FILES[path].replace(old, new)}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("memory", version)


def test_facts_follow_the_text(tmp_path: Path) -> None:
    assert learn(made_up(tmp_path, FILES)) == {
        "baseline": ["context", "nccl"],
        "capture_limit": {"sm10": 512, "other": 512},
        "external_weights": False,
        "free_check": (
            "Free memory on device {device} ({free}/{total} GiB) on startup is less than desired GPU memory "
            "utilization ({utilization}, {requested} GiB)."
        ),
        "graph_estimate": {"default": True, "v1": True, "v2": False},
        "indexer_rows": [[None, 40]],
        "logits_mib": 256,
        "measure": "parts",
        "mm_ipc_gib": None,
        "padded_query": "step",
        "prefill_chunk": 4,
        "unified": {"free": "available", "releases": False},
        "weight_offload": {"v1": False, "v2": False},
        "workspace_lanes": False,
    }


@pytest.mark.parametrize(
    ("path", "old", "new", "key", "value"),
    [
        (V2, "return 0", "return estimate(self)", "graph_estimate", {"default": True, "v1": True, "v2": True}),
        (V2, "return 0", "return 0 * len([set_offloader])", "weight_offload", {"v1": False, "v2": True}),
        (SNAPSHOTS, "peak + result.weights_memory", "result.total_consumed", "measure", "consumed"),
        (ATTENTION, "if not isinstance(attn_metadata, dict)", "if self.heads < 64", "padded_query", "after"),
        (ATTENTION, "return F.pad(q, (0, 0))", "self.eager_scratch_pool.q_out(1)", "padded_query", "pool"),
        (REQUEST, "cache_config):", "cache_config, external_weight_memory=0):", "external_weights", True),
        (
            CONFIG,
            "512)",
            "limit)\nlimit = 1024 if current_platform.is_device_capability_family(100) else 512",
            "capture_limit",
            {"sm10": 1024, "other": 512},
        ),
    ],
)
def test_one_change_one_fact(tmp_path: Path, path: str, old: str, new: str, key: str, value: object) -> None:
    assert learn(made_up(tmp_path, changed(path, old, new)))[key] == value


def test_scaled_gather_buffer(tmp_path: Path) -> None:
    files = changed(INDEXER, "max_model_len * 40", "max_model_len * (576 * 2 // 132) * factor")
    choice = (
        "self.a.sparse_mla_prefill_workspace_factor = (5 if self.model_config.max_model_len <= 256 * 1024 else 2)\n"
    )
    files[CONFIG] = FILES[CONFIG] + choice
    assert learn(made_up(tmp_path, files))["indexer_rows"] == [[262144, 40], [None, 16]]


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (WORKER, "MemorySnapshot(", "Snapshot(", "does not call MemorySnapshot"),
        (SNAPSHOTS, "result.weights_memory", "other", "in an unknown way"),
        (REQUEST, "desired GPU", "some GPU", "does not refuse"),
        (ATTENTION, "PREFILL_CHUNK_SIZE", "CHUNK", "no PREFILL_CHUNK_SIZE"),
        (INDEXER, "* 40", "* rows", "unknown way"),
        ("envs.py", "VLLM_SPARSE", "VLLM_OTHER", "does not read VLLM_SPARSE"),
        (SNAPSHOTS, "psutil.virtual_memory().available", "0", "another figure"),
    ],
)
def test_code_that_is_gone_is_an_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        learn(made_up(tmp_path, changed(path, old, new)))
