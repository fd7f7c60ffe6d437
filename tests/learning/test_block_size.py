from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.block_size import VIEW_ERROR, learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

UTILS = "v1/worker/utils.py"
SPECS = "v1/kv_cache_interface.py"
V1, V2 = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/attn_utils.py"
INDEXER = "v1/attention/backends/mla/indexer.py"
SELECT = """
    def select_common_block_size(kv_manager_block_size, backends):
        raise ValueError(f"No common block size for {kv_manager_block_size}. ")
"""
MULTIPLIED = """
                shape_block_size = kernel_block_sizes[group.kv_cache_group_id]
                if kv_cache_spec.storage_block_size != kv_cache_spec.block_size:
                    shape_block_size = kv_cache_spec.storage_block_size
                else:
                    shape_block_size = 1
                num_blocks *= kv_cache_spec.block_size // kernel_block_sizes[0]
"""
KEPT = "\n                shape_block_size = kv_cache_spec.storage_block_size\n"
SHAPE = """
    {decorated}
        for group in groups:
            kv_cache_spec = group.kv_cache_spec
            for name in group.layer_names:
                num_blocks = raw.numel() // kv_cache_spec.page_size_bytes{settled}
                shape = group.backend.get_kv_cache_shape(num_blocks, shape_block_size, 1)
"""
FILES = {
    UTILS: SELECT,
    SPECS: """
        class MLAAttentionSpec:
            block_size: int
        class UniformTypeKVCacheSpecs:
            def max_memory_usage_pages(self):
                return cdiv(spec.max_memory_usage_bytes(1), spec.page_size_bytes)
    """,
    "v1/core/kv_cache_utils.py": "def plan(): ...\n",
    V1: "class GPUModelRunner:"
    + SHAPE.format(decorated="def _reshape_kv_cache_tensors(self, groups, kernel_block_sizes):", settled=MULTIPLIED),
    V2: SHAPE.format(decorated="def _reshape_kv_cache(groups, kernel_block_sizes):", settled=KEPT).replace(
        "\n    ", "\n"
    ),
    INDEXER: """
        class DeepseekV4IndexerBackend:
            @staticmethod
            def get_name():
                return "INDEXER"
            @staticmethod
            def get_supported_kernel_block_sizes():
                return [32]
    """,
    "models/deepseek_v4/nvidia/model.py": """
        from vllm.v1.attention.backends.mla.indexer import DeepseekV4IndexerBackend
        class MyAttention:
            backend_cls = DeepseekV4IndexerBackend
        def _select_dsv4_attn_cls(vllm_config):
            return MyAttention
    """,
    "platforms/interface.py": """
        class Platform:
            def update_block_size_for_backend(cls):
                return backend.get_preferred_block_size(16)
    """,
    "config/cache.py": "class CacheConfig:\n    DEFAULT_BLOCK_SIZE = 16\n",
}
PER_BACKEND = """
    def select_common_block_size(kv_manager_block_size, backends, specs=None):
        raise ValueError(
            f"No common block size for {kv_manager_block_size} ("
            + "; ".join(f"{b.get_name()}: {b.sizes()}" for b in backends)
            + ")."
        )
    class AttentionGroup:
        def create_metadata_builders(self):
            select_common_block_size(kernel_block_size, [self.backend])
        def map_kv_cache_to_kernel_blocks(self):
            raise ValueError(
                f"{self.backend.get_name()} needs {self.kernel_block_size}-token blocks, "
                f"which {spec.block_size}-token blocks cannot be split into. Reduce it."
            )
"""
VIEWS = """
        def create_kv_cache_views(raw):
            raise ValueError(f"so a manager block cannot be split into {ratio} kernel blocks of {size} tokens.")
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("block_size", version)


def test_outcomes_follow_the_shaping_code(tmp_path: Path) -> None:
    assert learn(made_up(tmp_path, FILES)) == {
        "kernel_block": 32,
        "unset": 32,
        "other_sizes": "no-common-block",
        "no_common_error": "No common block size for {block_size}",
        "multiples": {"v1": "set-storage", "v2": "works"},
        "stateless": "zero-division",
    }


def test_packed_caches_cut_by_view_say_so(tmp_path: Path) -> None:
    packed = """
def _reshape_attention_kv_cache(raw, packing):
    if packing is not None:
        assert inv_order[0] == 0
        kv_cache = raw[:4].view(shape)
    return kv_cache
"""
    used = FILES[V1] + "                cache = _reshape_attention_kv_cache(raw, packing)\n"
    assert learn(made_up(tmp_path, FILES | {V2: FILES[V2] + packed, V1: used}))["large_block_error"] == VIEW_ERROR
    other = packed.replace(".view(shape)", ".as_strided(shape)")
    assert "large_block_error" not in learn(made_up(tmp_path, FILES | {V2: FILES[V2] + other, V1: used}))


def test_one_function_for_both_runners_refuses_to_split(tmp_path: Path) -> None:
    found = learn(made_up(tmp_path, FILES | {SPECS: FILES[SPECS] + VIEWS}))
    assert found["multiples"] == {"v1": "no-split", "v2": "no-split"}
    assert found["no_split_error"] == "a manager block cannot be split into {pieces} kernel blocks"
    found = learn(made_up(tmp_path, FILES | {SPECS: FILES[SPECS] + VIEWS, UTILS: PER_BACKEND}))
    assert found["no_common_error"] == "No common block size for {block_size} (INDEXER: [32])."
    needs = "INDEXER needs 32-token blocks, which {block_size}-token blocks cannot be split into."
    assert found["no_split_error"] == needs


def test_an_assertion_before_the_division_hides_it(tmp_path: Path) -> None:
    text = "def _get_kv_cache_groups_uniform_groups(specs):\n    assert max(small) <= max(large)\n"
    assert "stateless" not in learn(made_up(tmp_path, FILES | {"v1/core/kv_cache_utils.py": text}))


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (INDEXER, "[32]", "[32, 64]", "one and the same kernel block size"),
        (INDEXER, "[32]", "[MultipleOf(32)]", "one and the same kernel block size"),
        (UTILS, "No common block size", "Nothing fits", "does not end in"),
        (UTILS, "select_common_block_size", "choose", "has no select_common_block_size"),
        (V1, "get_kv_cache_shape", "shape_of", "asks for the shape of no cache"),
        (V2, "shape_block_size = kv_cache_spec.storage_block_size", "shape_block_size = rows()", "cannot be told"),
        ("platforms/interface.py", "get_preferred_block_size", "size", "does not ask the backends"),
        ("config/cache.py", "16", "32", "the default block size is the kernels' own"),
    ],
)
def test_code_that_moved_is_a_clear_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    assert old in FILES[path]
    with pytest.raises(LearningError, match=message):
        learn(made_up(tmp_path, FILES | {path: FILES[path].replace(old, new)}))
