from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.kernels import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

ABOUT = "../vllm-1.0.dist-info"
WINDOW = "v1/attention/backends/mla/sparse_swa.py"
MODEL = "models/deepseek_v4/nvidia/model.py"
FLASHINFER = "models/deepseek_v4/nvidia/flashinfer_sparse.py"
MHC = "model_executor/kernels/mhc/tilelang.py"
FILES = {
    f"{ABOUT}/RECORD": "vllm/third_party/deep_gemm/include/deep_gemm/impls/sm120_fp8.cuh,sha256=x,1\n",
    f"{ABOUT}/METADATA": "Requires-Dist: flashinfer-cubin==1.0\n",
    WINDOW: """
        from vllm.utils import cdiv
        class Builder:
            def __init__(self):
                self.is_dspark = uses_dspark()
                self.noncausal_index_width = cdiv(self.window_size + self.num_speculative_tokens, 96) * 96
                self.prefill_index_width = self.window_size + self.max_image_tokens
    """,
    "utils.py": "def cdiv(a, b):\n    return -(a // -b)\n",
    MODEL: """
        from vllm.models.deepseek_v4.nvidia.flashinfer_sparse import NewAttention, OldAttention
        def _select_dsv4_attn_cls(vllm_config):
            capability = current_platform.get_device_capability()
            if capability is not None and capability.major == 12:
                return NewAttention
            return OldAttention
    """,
    FLASHINFER: """
        class OldAttention:
            def forward(self):
                decode(sparse_indices_are_storage_offsets=True)
        class NewAttention:
            def __init__(self):
                if not has_flashinfer_sparse_mla_sm120():
                    raise ImportError("no")
    """,
    "v1/kv_cache_interface.py": "class KVCacheTensor:\n    size: int\n    block_stride: int = 0\n",
    MHC: """
        def gemm(fallback=True):
            use_deep_gemm = is_deep_gemm_supported() or not fallback
            if use_deep_gemm:
                tf32_hc_prenorm_gemm(x)
        def first():
            gemm()
    """,
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[path]
    return FILES | {path: FILES[path].replace(old, new)}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("kernels", version)


def test_facts_follow_the_text(tmp_path: Path) -> None:
    assert learn(made_up(tmp_path, FILES)) == {
        "deep_gemm_sm12x": True,
        "sm12x_attention": "api",
        "dspark_index_multiple": 96,
        "image_tokens_widen_prefill": True,
        "sends_storage_offsets": True,
        "packed_cache_strided": True,
        "pins_flashinfer_cubin": True,
        "hyper_connection_needs_deep_gemm": False,
    }


@pytest.mark.parametrize(
    ("path", "old", "new", "key", "value"),
    [
        (f"{ABOUT}/RECORD", "sm120_fp8", "sm100_fp8", "deep_gemm_sm12x", False),
        (f"{ABOUT}/METADATA", "flashinfer-cubin", "flashinfer-python", "pins_flashinfer_cubin", False),
        (FLASHINFER, "mla_sm120()", "mla_sm120_config(1)", "sm12x_attention", "table"),
        (MODEL, "major == 12", "major == 99", "sm12x_attention", "none"),
        (FLASHINFER, "sparse_indices_are_storage_offsets=True", "x=1", "sends_storage_offsets", False),
        (MHC, "    gemm()", "    gemm(fallback=False)", "hyper_connection_needs_deep_gemm", True),
        (MHC, "if use_deep_gemm:", "if n > 16:", "hyper_connection_needs_deep_gemm", True),
        ("v1/kv_cache_interface.py", "block_stride", "offset", "packed_cache_strided", False),
        (WINDOW, "self.prefill_index_width = ", "self.width = ", "image_tokens_widen_prefill", False),
    ],
)
def test_a_changed_line_changes_its_fact(
    tmp_path: Path, path: str, old: str, new: str, key: str, value: object
) -> None:
    assert learn(made_up(tmp_path, changed(path, old, new)))[key] == value


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (f"{ABOUT}/RECORD", "deep_gemm/impls", "other/impls", "the wheel has no"),
        (WINDOW, "self.noncausal_index_width", "self.width", "knows DSpark but sets no"),
        (WINDOW, "96) * 96", "96) * 96 + 1", "not window plus tokens"),
        (FLASHINFER, "has_flashinfer_sparse_mla_sm120", "has_it", "in a known way"),
        (FLASHINFER, "offsets=True", "offsets=maybe", "in another way than True"),
        (MHC, "tf32_hc_prenorm_gemm", "other_gemm", "does not call tf32_hc_prenorm_gemm"),
        ("v1/kv_cache_interface.py", "    size: int\n", "", "has no size"),
    ],
)
def test_code_that_moved_is_a_clear_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        learn(made_up(tmp_path, changed(path, old, new)))
