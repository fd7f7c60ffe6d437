from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.attention import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

REGISTRY = "class AttentionBackendEnum(Enum):\n    FAST_DSV4 = 'x'\n    SLOW = 'y'\n    WRONG = 'z'\n    OTHER = 'o'\n"
LAYER = """
    class DeepseekV4Attention:
        packed = True
        def __init__(self, cache_config):
            _resolve_dsv4_kv_cache_dtype(self.packed, cache_config.cache_dtype, cache_config)
"""
CLASSES = """
    from vllm.models.deepseek_v4.attention import DeepseekV4Attention
    SIZES = (16, 48)
    class FastBackend:
        @staticmethod
        def get_name():
            return "FAST_DSV4"
    class FastAttention(DeepseekV4Attention):
        backend_cls = FastBackend
        @classmethod
        def get_padded_num_q_heads(cls, num_heads):
            for size in SIZES:
                if num_heads <= size:
                    return size
            raise ValueError(f"no {num_heads} heads")
    class PlainAttention(FastAttention):
        packed = False
"""
SELECTOR = """
    from vllm.classes import FastAttention, PlainAttention
    def _select_dsv4_attn_cls(vllm_config):
        backend = vllm_config.attention_config.backend
        capability = current_platform.get_device_capability()
        if backend == AttentionBackendEnum.WRONG:
            raise TypeError(f"{backend.name} is wrong")
        if backend == AttentionBackendEnum.SLOW and capability is not None and capability.major == 10:
            return PlainAttention
        return FastAttention
"""
FILES = {
    "v1/attention/backends/registry.py": REGISTRY,
    "models/deepseek_v4/attention.py": LAYER,
    "models/deepseek_v4/nvidia/model.py": SELECTOR,
    "classes.py": CLASSES,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("attention", version)


def test_classes_names_and_heads_follow_the_text(tmp_path: Path) -> None:
    found = learn(made_up(tmp_path, FILES))
    assert found["enum"] == ["FAST_DSV4", "SLOW", "WRONG", "OTHER"]
    assert found["default"] == {"default": "FastAttention"}
    # OTHER is not asked for; FAST_DSV4 is neither, but is what the class is.
    assert found["named"] == {
        "SLOW": {"default": "FastAttention", "10": "PlainAttention"},
        "FAST_DSV4": {"default": "FastAttention"},
    }
    assert found["refused"] == {"names": ["WRONG"], "exception": "TypeError", "error": "{backend} is wrong"}
    fast = {"backend": "FAST_DSV4", "padded_q_heads": [16, 48], "too_many": "no {heads} heads"}
    assert found["classes"]["FastAttention"] == fast | {"layout": "fp8_ds_mla"}
    assert found["classes"]["PlainAttention"] == fast | {"layout": "plain"}


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("models/deepseek_v4/nvidia/model.py", "_select_dsv4_attn_cls", "choose", "neither .* nor .* is there"),
        ("models/deepseek_v4/nvidia/model.py", "capability.major == 10", "is_new(capability)", "cannot decide"),
        ("models/deepseek_v4/nvidia/model.py", "return FastAttention", "return pick()", "else than a class"),
        ("models/deepseek_v4/attention.py", "_resolve_dsv4", "_other", "does not call _resolve_dsv4_kv_cache_dtype"),
        ("classes.py", "backend_cls", "backend", "names no backend_cls"),
        ("classes.py", "no {num_heads} heads", "too many", "in an unknown way"),
        ("classes.py", "return size", "return str(size)", "does not pad 1 heads to a number"),
        ("v1/attention/backends/registry.py", "Enum)", "Enum)\nclass Gone(Enum)", "has no members|has no Att"),
    ],
)
def test_code_that_moved_is_a_clear_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    files = FILES | {path: FILES[path].replace(old, new)}
    if path.endswith("registry.py"):
        files[path] = "class AttentionBackendEnum(Enum):\n    pass\n"
    with pytest.raises(LearningError, match=message):
        learn(made_up(tmp_path, files))
