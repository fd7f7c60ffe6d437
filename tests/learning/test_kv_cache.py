from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.kv_cache import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

LAYER = "models/deepseek_v4/attention.py"
CONFIG = "config/vllm.py"
FILES = {
    "config/cache.py": """
        CacheDType = Literal["auto", "fp8"]
        class CacheConfig:
            cache_dtype: CacheDType = "auto"
    """,
    CONFIG: """
        class VllmConfig:
            def __post_init__(self):
                self._other()
            def validate_nvfp4_kv_cache_with_mla(self):
                if self.cache_config.cache_dtype.startswith("nvfp4") and self.model_config.use_mla:
                    raise ValueError("nvfp4 KV cache is not supported with MLA")
                return self
    """,
    "config/attention.py": """
        class AttentionConfig:
            old_switch: bool | None = None
            keys: str = "auto"
            def __post_init__(self):
                if self.old_switch:
                    self.keys = "mxfp4"
            def resolve(self, default):
                return default if self.keys == "auto" else self.keys
    """,
    LAYER: """
        from vllm.indexer import uses_fp4
        from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache
        def _resolve_dsv4_kv_cache_dtype(packed, kv_cache_dtype, cache_config):
            if packed:
                if not kv_cache_dtype.startswith("fp8"):
                    raise TypeError(f"no {kv_cache_dtype} here")
                return "fp8_ds_mla", torch.uint8
            return kv_cache_dtype, torch.bfloat16
        class DeepseekV4Attention:
            packed = True
            def __init__(self, cache_config):
                _resolve_dsv4_kv_cache_dtype(self.packed, cache_config.cache_dtype, cache_config)
                if self.compress_ratio == 4:
                    self.indexer = DeepseekV4Indexer()
                self.window = DeepseekV4SWACache(dtype=self.dtype, rows=32)
            def get_kv_cache_spec(self, vllm_config):
                packed = self.kv_cache_dtype == "fp8_ds_mla"
                return MLAAttentionSpec(alignment=64 if packed else 32, state_content_bytes=60 if packed else None)
        class PlainAttention(DeepseekV4Attention):
            packed = False
        class DeepseekV4IndexerCache:
            def get_kv_cache_spec(self, vllm_config):
                return MLAAttentionSpec(alignment=64)
        class DeepseekV4Indexer:
            def __init__(self):
                self.use_fp4_kv = uses_fp4(vllm_config)
                if self.use_fp4_kv:
                    k_cache_head_dim = self.head_dim // 2
                else:
                    k_cache_head_dim = self.head_dim + 4
    """,
    "indexer.py": """
        def uses_fp4(vllm_config):
            return vllm_config.attention_config.resolve("fp8") == "mxfp4"
    """,
    "models/deepseek_v4/nvidia/model.py": """
        from vllm.models.deepseek_v4.attention import DeepseekV4Attention, PlainAttention
        def _select_dsv4_attn_cls(vllm_config):
            return PlainAttention if vllm_config.plain else DeepseekV4Attention
    """,
    "v1/attention/backends/mla/sparse_swa.py": """
        class DeepseekV4SWACache:
            def __init__(self, dtype, rows=64, size=60):
                self.size = size
                self.block_size = rows
            def get_kv_cache_spec(self, vllm_config):
                packed = self.cache_config.cache_dtype == "fp8_ds_mla"
                return SlidingWindowMLASpec(
                    alignment=64 if packed else 32, state_content_bytes=self.size if packed else None
                )
    """,
    "models/deepseek_v4/compressor.py": """
        class CompressorStateCache:
            def __init__(self, compress_ratio):
                self.block_size = 2 if compress_ratio == 4 else 16
            def get_kv_cache_spec(self, vllm_config):
                return SlidingWindowMLASpec(
                    alignment=64 if vllm_config.cache_config.cache_dtype == "fp8_ds_mla" else 32
                )
    """,
    "v1/kv_cache_interface.py": "class MLAAttentionSpec: ...\nclass SlidingWindowMLASpec: ...\n",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("kv_cache", version)


def test_figures_and_messages_follow_the_text(tmp_path: Path) -> None:
    assert learn(made_up(tmp_path, FILES)) == {
        "choices": ["auto", "fp8"],
        "open_string": False,
        "packed": {
            "auto": "refused",
            "exception": "TypeError",
            "error": "no {dtype} here",
            "where": f"{LAYER}:_resolve_dsv4_kv_cache_dtype",
            "bytes_per_state": 60,
            "alignment": 64,
        },
        "indexer": {"option": "keys", "alias": "old_switch", "mxfp4_states_shrink": True},
        "swa_block": 32,
        "state_blocks": {"c4": 2, "c128": 16, "indexer": 2},
        "float_must_match_model": False,
        "plain": {"alignment": 32, "indexer_alignment": 64},
        "nvfp4_refused": {"names": "prefix", "error": "nvfp4 KV cache is not supported with MLA"},
    }


def test_an_open_string_needs_its_check(tmp_path: Path) -> None:
    text = "CacheDType = Literal['auto']\nclass CacheConfig:\n    cache_dtype: CacheDType | str = 'auto'\n"
    check = "    def check(cls, value):\n        raise ValueError(f'Invalid kv_cache_dtype: {value}')\n"
    assert learn(made_up(tmp_path, FILES | {"config/cache.py": text + check}))["open_string"]
    with pytest.raises(LearningError, match="without checking it"):
        learn(made_up(tmp_path, FILES | {"config/cache.py": text}))


def test_float_dtypes_and_nvfp4_follow_the_checks_of_the_config(tmp_path: Path) -> None:
    text = """
        class VllmConfig:
            def __post_init__(self):
                self._reject_mismatched_float_kv_cache()
            def _reject_mismatched_float_kv_cache(self):
                if self.cache_config.cache_dtype in ("float16",) and self.model_config.dtype != "float16":
                    raise ValueError(f'kv_cache_dtype="{self.x}" is incompatible with dtype="{self.y}"')
    """
    found = learn(made_up(tmp_path, FILES | {CONFIG: text}))
    assert found["float_must_match_model"]
    assert "nvfp4_refused" not in found
    with pytest.raises(LearningError, match="does not call"):
        learn(made_up(tmp_path, FILES | {CONFIG: text.replace("self._reject_mismatched_float_kv_cache()", "pass")}))


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (LAYER, 'startswith("fp8")', 'startswith(("fp8", "probe"))', "does not refuse a cache dtype"),
        (LAYER, "alignment=64 if packed", "alignment=128 if packed", "do not share one alignment"),
        (LAYER, "self.use_fp4_kv = ", "self.fp4 = ", "sets no use_fp4_kv"),
        (LAYER, "self.compress_ratio == 4", "self.compress_ratio < 8", "for one compress_ratio"),
        (LAYER, "alignment=64)", "alignment=wide())", "alignment is not a number"),
        ("indexer.py", "attention_config.resolve", "other.look", "no field of AttentionConfig decides"),
        ("models/deepseek_v4/compressor.py", "self.block_size =", "self.rows =", "does not assign self.block_size"),
        ("v1/attention/backends/mla/sparse_swa.py", "self.block_size = rows", "pass", "has no block_size of its own"),
        (CONFIG, "validate_nvfp4_kv_cache_with_mla", "check", "in another function"),
        (CONFIG, '.startswith("nvfp4")', '.startswith("")', "refuses names in an unknown way"),
    ],
)
def test_code_that_moved_is_a_clear_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    assert old in FILES[path]
    release = made_up(tmp_path, FILES | {path: FILES[path].replace(old, new)})
    with pytest.raises(LearningError, match=message):
        learn(release)
