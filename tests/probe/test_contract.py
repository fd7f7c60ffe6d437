"""FlashMLA's checks: each one alone, two at once in the kernel's order, and on real tensors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.probe.contract import Call, TensorShape, cache_refusal, layout_of, refusal, view_of
from dsv4check.probe.packed import padded_page_bytes

BYTES = "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
EXTRA_BYTES = "extra_kv must have shape (extra_num_blocks, extra_page_block_size, h_kv, bytes_per_token)"
BLOCK = "The whole block must be contiguous when is_fp8_cache is True for kv cache"
MQA = "Currently only MQA (i.e. h_kv == 1) is supported for sparse decoding"
LAST = "must have contiguous last dimension"


def kv(
    states: int = 64, bytes_: int = 584, stride: tuple[int, ...] | None = None, dtype: str = "uint8", **kwargs: Any
) -> TensorShape:
    whole = (padded_page_bytes(states), 584, 584, 1) if stride is None else stride
    return TensorShape((9, states, 1, bytes_), dtype, whole, **kwargs)


def ints(*shape: int, **kwargs: Any) -> TensorShape:
    return TensorShape(shape, "int32", **kwargs)


SWA_ONLY = Call(q=TensorShape((3, 1, 64, 512), "bfloat16"), k_cache=kv(), indices=ints(3, 1, 128))
FULL = replace(
    SWA_ONLY,
    topk_length=ints(3),
    attn_sink=TensorShape((64,), "float32"),
    extra_k_cache=kv(2),
    extra_indices=ints(3, 1, 128),
    extra_topk_length=ints(3),
)


def q(*shape: int, **kwargs: Any) -> TensorShape:
    return TensorShape(shape, kwargs.pop("dtype", "bfloat16"), **kwargs)


IN_ORDER = [
    ({"q": q(3, 64, 512)}, "q must have 4 dimensions"),
    ({"k_cache": TensorShape((9, 64, 584), "uint8", (37440, 584, 1))}, "kv must have 4 dimensions"),
    ({"indices": ints(3, 128)}, "indices must have 3 dimensions"),
    ({"k_cache": TensorShape((9, 64, 2, 584), "uint8", (74880, 1168, 584, 1))}, MQA),
    ({"q": q(3, 1, 64, 256)}, "Only head_size_k == 576 or 512 is supported for sparse decoding"),
    ({"head_dim_v": 448}, "Only head_size_v == 512 is supported for sparse decoding"),
    (
        {"extra_indices": None},
        "extra_indices_in_kvcache must be provided when extra_kcache is provided for sparse attention",
    ),
    ({"q": q(3, 1, 64, 512, dtype="float16")}, "q must have dtype torch::kBFloat16"),
    ({"k_cache": kv(dtype="bfloat16")}, "key must have dtype fp8_e4m3fn, int8 or uint8"),
    ({"extra_k_cache": kv(2, dtype="float8_e5m2")}, "extra k cache must have dtype fp8_e4m3fn, int8 or uint8"),
    ({"indices": TensorShape((3, 1, 128), "int64")}, "indices must have dtype torch::kInt32"),
    ({"topk_length": TensorShape((3,), "int64")}, "topk_length must have dtype torch::kInt32"),
    ({"attn_sink": TensorShape((64,), "bfloat16")}, "attn_sink must have dtype torch::kFloat32"),
    ({"q": q(3, 1, 64, 512, stride=(65536, 65536, 1024, 2))}, f"q {LAST}"),
    ({"k_cache": kv(stride=(37440, 1168, 1168, 2))}, f"kv {LAST}"),
    ({"topk_length": ints(3, stride=(2,))}, "topk_length must be contiguous"),
    ({"extra_k_cache": kv(2, stride=(1728, 584, 584, 3))}, f"extra_kv {LAST}"),
    ({"k_cache": kv(bytes_=512, stride=(32832, 512, 512, 1))}, BYTES),
    ({"extra_k_cache": kv(2, bytes_=576, stride=(1152, 576, 576, 1))}, EXTRA_BYTES),
    ({"k_cache": kv(stride=(38016, 592, 592, 1))}, BLOCK),
    ({"extra_k_cache": kv(2, stride=(1728, 600, 600, 1))}, BLOCK.replace("for kv", "for extra kv")),
    ({"indices": ints(2, 1, 128)}, "indices must have shape (b, s_q, topk)"),
    ({"topk_length": ints(4)}, "topk_length must have shape (b)"),
    ({"attn_sink": TensorShape((128,), "float32")}, "attn_sink must have shape (h_q)"),
    ({"extra_indices": ints(3, 2, 128)}, "extra_indices must have shape (b, s_q, extra_topk)"),
    ({"extra_topk_length": ints(3, 1)}, "extra_topk_length must have shape (b)"),
    ({"q": q(3, 1, 16, 512), "attn_sink": TensorShape((16,), "float32")}, "Unsupported h_q: 16"),
    ({"indices": ints(3, 1, 100)}, "topk (100) mod B_TOPK (64) must be 0"),
    ({"extra_indices": ints(3, 1, 96)}, "extra_topk (96) mod B_TOPK (64) must be 0"),
    (
        {"k_cache": kv(stride=(37376, 584, 584, 1))},
        "k_cache.stride(0) (37376) must be a multiple of 576. Padding might be necessary",
    ),
    (
        {"extra_k_cache": kv(2, stride=(1168, 584, 584, 1))},
        "extra_k_cache.stride(0) (1168) must be a multiple of 576. Padding might be necessary",
    ),
]


@pytest.mark.parametrize("call", [SWA_ONLY, FULL], ids=["swa-only", "full"])
@pytest.mark.parametrize("sm", [None, 9, 10])
@pytest.mark.parametrize("detects", [False, True])
def test_what_vllm_passes_is_accepted(call: Call, sm: int | None, detects: bool) -> None:
    assert refusal(call, sm=sm, detects_format=detects) == ""


@pytest.mark.parametrize(("wrong", "said"), IN_ORDER, ids=[said[:50] for _, said in IN_ORDER])
def test_one_wrong_argument(wrong: dict[str, Any], said: str) -> None:
    assert refusal(replace(FULL, **wrong)) == said


@given(st.data())
def test_the_first_of_two_is_named(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(IN_ORDER) - 2))
    second = data.draw(st.integers(first + 1, len(IN_ORDER) - 1))
    (one, said), (other, _) = IN_ORDER[first], IN_ORDER[second]
    if not set(one) & set(other):
        assert refusal(replace(FULL, **other, **one)) == said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"q": q(0, 1, 64, 512)}, "Expected b > 0 to be true, but got false."),
        ({"q": q(3, 0, 64, 512)}, "Expected s_q > 0 to be true"),
        ({"indices": ints(3, 1, 0)}, "Expected topk > 0 to be true"),
    ],
)
def test_nothing_to_do_is_refused(wrong: dict[str, Any], said: str) -> None:
    assert refusal(replace(FULL, **wrong)).startswith(said)


def test_extra_arguments_without_an_extra_cache() -> None:
    call = replace(SWA_ONLY, extra_indices=ints(3, 1, 64), extra_topk_length=ints(3))
    assert refusal(call) == "extra_indices_in_kvcache must not be provided when extra_k_cache is not provided"
    call = replace(SWA_ONLY, extra_topk_length=ints(3))
    assert refusal(call) == "extra_topk_length must not be provided when extra_k_cache is not provided"


def test_devices_are_checked_on_request_only() -> None:
    there = {"is_cuda": True}
    call = Call(q=q(3, 1, 64, 512, **there), k_cache=kv(dtype="bfloat16"), indices=ints(3, 1, 64, **there))
    assert refusal(call, on_cuda=True) == "kv must be on CUDA", "before any dtype"
    assert refusal(call) == "key must have dtype fp8_e4m3fn, int8 or uint8"
    assert refusal(replace(call, k_cache=kv(**there)), on_cuda=True) == ""


@pytest.mark.parametrize("sm", [8, 12])
def test_other_architectures(sm: int) -> None:
    assert refusal(SWA_ONLY, sm=sm) == "Unsupported architecture for sparse decode fwd"


def test_sm90_asks_less_of_the_distance_between_blocks() -> None:
    call = replace(FULL, k_cache=kv(stride=(37376, 584, 584, 1)), extra_indices=ints(3, 1, 96))
    assert refusal(call, sm=9) == ""
    assert refusal(call, sm=10) == "extra_topk (96) mod B_TOPK (64) must be 0"


@pytest.mark.parametrize("bytes_", [512, 576, 656])
def test_kernels_that_detect_the_format(bytes_: int) -> None:
    call = replace(FULL, k_cache=kv(bytes_=bytes_, stride=(37440, bytes_, bytes_, 1)))
    said = f"Unsupported bytes_per_token for d_qk=512: {bytes_}. Expected 584 (V4), 528 (V4.1) or 288 (V4.1 fp4)"
    assert refusal(call, detects_format=True) == said
    assert refusal(call) == BYTES
    assert refusal(replace(call, indices=TensorShape((3, 1, 128), "int64")), detects_format=True) == (
        "indices must have dtype ScalarType::Int"
    )


def test_v32_heads_want_656_bytes() -> None:
    call = replace(SWA_ONLY, q=q(3, 1, 128, 576))
    assert refusal(call) == BYTES
    assert refusal(replace(call, k_cache=kv(bytes_=656, stride=(64 * 656, 656, 656, 1)))) == ""


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_real_views(torch: Any) -> None:
    storage = torch.zeros(8 * 37440, dtype=torch.uint8)
    right = storage.as_strided((8, 64, 584), (37440, 584, 1))
    wrong = {
        BYTES: storage.as_strided((8, 64, 512), (37440, 512, 1)),
        BLOCK: storage.as_strided((7, 64, 584), (37440, 585, 1)),
        f"kv {LAST}": storage.as_strided((3, 64, 584), (37440, 584, 2)),
        "key must have dtype fp8_e4m3fn, int8 or uint8": torch.zeros(2, 64, 584, dtype=torch.bfloat16),
        MQA: storage.as_strided((3, 32, 2, 584), (37440, 1168, 584, 1)),
        "kv must have 4 dimensions": storage.as_strided((8, 37376), (37440, 1)),
        "k_cache.stride(0) (37376) must be a multiple of 576. Padding might be necessary": storage[: 8 * 37376].view(
            8, 64, 584
        ),
        "The base address of k_ptr must be 16B aligned for sparse fp8 attention on sm100f": storage.as_strided(
            (7, 64, 584), (37440, 584, 1), 8
        ),
    }
    assert cache_refusal(right) == ""
    assert cache_refusal(right.view(torch.float8_e4m3fn).unsqueeze(2), detects_format=True) == ""
    assert {said: cache_refusal(view) for said, view in wrong.items()} == {said: said for said in wrong}
    missing_scales = storage.as_strided((8, 64, 576), (37440, 576, 1))
    assert cache_refusal(missing_scales) == BYTES
    q_, listed = torch.zeros(2, 1, 64, 512, dtype=torch.bfloat16), torch.zeros(2, 1, 64, dtype=torch.int32)
    call = Call(q_, right.unsqueeze(2), listed, attn_sink=torch.zeros(64))
    assert refusal(call) == ""
    assert refusal(call, on_cuda=True) == "q must be on CUDA"
    assert refusal(replace(call, attn_sink=torch.zeros(128)[::2])) == "attn_sink must be contiguous"
    assert refusal(replace(call, k_cache=right)) == "kv must have 4 dimensions"


def test_layout(torch: Any) -> None:
    view = torch.zeros(4000, dtype=torch.uint8).as_strided((2, 2, 584), (1728, 584, 1), 16)
    described = {"shape": [2, 2, 584], "stride": [1728, 584, 1], "dtype": "uint8"}
    assert view_of(view) == described
    assert layout_of(view) == {**described, "storage_offset": 16, "storage_bytes": 4000}


def test_the_rehearsal_s_child_has_the_same_checks_without_dsv4check() -> None:
    folder = Path(__file__).resolve().parents[2] / "dsv4check" / "rehearsal"
    program = f"""
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("dsv4check_rehearsal", {str(folder / "__init__.py")!r},
                                              submodule_search_locations=[{str(folder)!r}])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
flashmla = importlib.import_module("dsv4check_rehearsal.worker.flashmla")
class Cache:
    shape, dtype = (9, 64, 1, 512), "torch.uint8"
    def stride(self): return (32832, 512, 512, 1)
print(flashmla.violation(Cache()), flashmla.STATE_BYTES, "dsv4check" in sys.modules, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{BYTES} 584 False False"
