"""The ``setStorage`` arithmetic, against torch's own on real tensors, and vLLM's reshape with the fault put in."""

from __future__ import annotations

import ast
import os
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.probe.packed import padded_page_bytes
from dsv4check.probe.storage import compressed_spec_bug, needed_bytes, view_refusal

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
BLOCKS, STATES, PAGE, BLOCK_SIZE = 30_819, 2, 1728, 256
ALLOCATED, FAULTY_NEED, RIGHT_NEED = 53_255_232, 6_816_669_136, 53_254_672


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_the_compressed_spec_bug_in_numbers() -> None:
    (faulty, stride), (right, right_stride) = compressed_spec_bug(BLOCKS, STATES, PAGE, BLOCK_SIZE)
    assert padded_page_bytes(STATES) == PAGE
    assert BLOCKS * PAGE == ALLOCATED
    assert faulty == (BLOCKS * 128, 2, 584)
    assert right == (BLOCKS, 2, 584)
    assert stride == right_stride == (1728, 584, 1)
    assert needed_bytes(faulty, stride, 0, 1) == FAULTY_NEED
    assert needed_bytes(right, stride, 0, 1) == RIGHT_NEED
    assert view_refusal(right, stride, 0, 1, ALLOCATED) == ""


def test_the_compressed_spec_bug_with_real_tensors(torch: Any) -> None:
    raw = torch.zeros(ALLOCATED, dtype=torch.uint8)
    (faulty, stride), (right, _) = compressed_spec_bug(BLOCKS, STATES, PAGE, BLOCK_SIZE)
    with pytest.raises(RuntimeError) as caught:
        torch.as_strided(raw, size=faulty, stride=stride)
    said = str(caught.value)
    assert said == view_refusal(faulty, stride, 0, 1, ALLOCATED)
    assert said.endswith("requiring a storage size of 6816669136 are out of bounds for storage of size 53255232")
    assert torch.as_strided(raw, size=right, stride=stride).shape == right
    shrunk = torch.zeros(RIGHT_NEED, dtype=torch.uint8)
    assert torch.as_strided(shrunk, size=right, stride=stride).shape == right
    with pytest.raises(RuntimeError, match="requiring a storage size of 53254672 are out of bounds"):
        torch.as_strided(shrunk[1:].clone(), size=right, stride=stride)


@settings(deadline=None, max_examples=200)
@given(
    dimensions=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=0, max_size=4),
    offset=st.integers(0, 30),
    storage=st.integers(0, 300),
    dtype=st.sampled_from(["uint8", "bfloat16", "float32"]),
)
def test_torch_says_the_same(
    torch: Any, dimensions: list[tuple[int, int]], offset: int, storage: int, dtype: str
) -> None:
    raw = torch.zeros(storage, dtype=getattr(torch, dtype))
    shape, stride = [size for size, _ in dimensions], [step for _, step in dimensions]
    said = view_refusal(shape, stride, offset, raw.element_size(), raw.untyped_storage().nbytes())
    if said:
        with pytest.raises(RuntimeError) as caught:
            torch.as_strided(raw, shape, stride, offset)
        assert str(caught.value) == said
    else:
        assert list(torch.as_strided(raw, shape, stride, offset).shape) == shape


RUNNER = "vllm/v1/worker/gpu/attn_utils.py"
RIGHT, FAULT = "kv_cache_spec.storage_block_size // kernel_block_size", "kv_cache_spec.block_size // kernel_block_size"
"""What the correction brought (0.23), and what stood there."""


class Spec:
    """The C128 cache's spec, as the reshape reads it."""

    block_size, storage_block_size, num_kv_heads, head_size = BLOCK_SIZE, STATES, 1, 512
    page_size_bytes = page_size_padded = PAGE
    dtype: Any = None


class Backend:
    @staticmethod
    def get_kv_cache_shape(blocks: int, size: int, *_: Any, **__: Any) -> tuple[int, ...]:
        return (blocks, size, 584)

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        raise NotImplementedError


def v2_view(text: str, kernel_block_size: int, torch: Any) -> Any:
    """The C128 cache as a release's ``_reshape_kv_cache`` makes it of 53,255,232 bytes.

    The function is cut out of the release's file and given the classes it asks for.
    """
    body = [node for node in ast.parse(text).body if getattr(node, "name", "") == "_reshape_kv_cache"]
    names: dict[str, Any] = {
        "torch": torch,
        "AttentionSpec": Spec,
        "MambaSpec": type("MambaSpec", (), {}),
        "UniformTypeKVCacheSpecs": type("UniformTypeKVCacheSpecs", (), {}),
        "get_dtype_size": lambda dtype: dtype.itemsize,
    }
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + body, []), RUNNER, "exec"), names)
    reshape, spec = names["_reshape_kv_cache"], Spec()
    spec.dtype = torch.uint8
    group = types.SimpleNamespace(kv_cache_group_id=0, kv_cache_spec=spec, backend=Backend, layer_names=["c128"])
    arguments = {
        "attn_groups": [group],
        "kv_cache_config": types.SimpleNamespace(kv_cache_groups=[group]),
        "attn_backends": {"c128": Backend},
        "kv_cache_raw_tensors": {"c128": torch.zeros(ALLOCATED, dtype=torch.int8)},
        "cache_dtype": "fp8_ds_mla",
        "kernel_block_sizes": [kernel_block_size],
        "shared_kv_cache_layers": {},
    }
    asked = reshape.__code__.co_varnames[: reshape.__code__.co_argcount]
    return reshape(**{name: arguments[name] for name in asked})["c128"]


def runner_of(release: str) -> str:
    path = Path(TREES or "/nowhere") / release / RUNNER
    if not path.is_file():
        pytest.skip(f"vLLM {release} is not unpacked under DSV4CHECK_VLLM_TREES")
    return path.read_text(encoding="utf-8")


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")
class TestVllmsOwnReshape:
    @pytest.mark.parametrize("release", ["0.21.0", "0.22.0", "0.23.0"])
    def test_releases_take_the_right_view(self, release: str, torch: Any) -> None:
        view = v2_view(runner_of(release), BLOCK_SIZE, torch)
        assert (tuple(view.shape), view.stride()) == compressed_spec_bug(BLOCKS, STATES, PAGE, BLOCK_SIZE)[1]

    @pytest.mark.parametrize(("release", "kernel_block_size"), [("0.22.0", STATES), ("0.23.0", BLOCK_SIZE)])
    def test_the_fault_needs_128_times_the_bytes(self, release: str, kernel_block_size: int, torch: Any) -> None:
        # 0.22 still divides the spec's block size; it is right because its kernel block is that size too. 0.23 takes
        # the stored states for both: with the correction taken back it divides the spec's block size by them.
        text = runner_of(release)
        assert (RIGHT in text) == (release == "0.23.0")
        with pytest.raises(RuntimeError) as caught:
            v2_view(text.replace(RIGHT, FAULT), kernel_block_size, torch)
        (shape, stride), _ = compressed_spec_bug(BLOCKS, STATES, PAGE, BLOCK_SIZE)
        assert str(caught.value) == view_refusal(shape, stride, 0, 1, ALLOCATED)
        assert str(FAULTY_NEED) in str(caught.value)
