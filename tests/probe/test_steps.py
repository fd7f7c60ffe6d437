"""The child's checks in order, in this process: what is reported for which caches and which kernels."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import child, insert_ops, kernel, packed, steps  # noqa: E402
from tests.probe.layouts import ATTENTION, packed_layouts  # noqa: E402
from tests.probe.stand import Stand  # noqa: E402


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_ops, "find_ops", lambda interpret: ([], {"x": "no vllm on the path"}))


def ran(device: str = "cpu", **changes: Any) -> dict[str, dict[str, Any]]:
    """Checks by name. ``device`` is only what the checks are told: all tensors are on the CPU."""
    channel = io.BytesIO()
    request = {"layouts": packed_layouts().to_dict(), "attention": ATTENTION.to_dict(), "seed": 1, **changes}
    steps.run_all(request, device, child.Reporter(channel), child.Outcome)
    messages = [json.loads(line) for line in channel.getvalue().splitlines()]
    return {message["name"]: message for message in messages if message["type"] == "check"}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, dict[str, Any]]]:
    """Runs the checks as on a GPU, with a stand-in for FlashMLA."""

    def run(stand: Stand | None, **changes: Any) -> dict[str, dict[str, Any]]:
        allocate = steps.device_caches.allocate
        monkeypatch.setattr(steps.device_caches, "allocate", lambda layouts, _device: allocate(layouts, "cpu"))
        if stand is not None:
            monkeypatch.setattr(kernel, "load", stand.interface)
        return ran("cuda", **changes)

    return run


def test_everything_up_to_the_kernel() -> None:
    checks = ran()
    assert [name for name, check in checks.items() if check["status"] != "ok"] == [
        "vLLM's insert ops",
        "512-byte view: argument checks",
        "kernel: sparse decode",
    ]
    assert checks["512-byte view: argument checks"]["status"] == "refused-as-expected"
    assert checks["kernel: sparse decode"]["message"] == "the kernel was not run: PyTorch sees no CUDA GPU"


def test_a_right_kernel(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    checks = on_a_gpu(Stand())
    kernels = {name: check["status"] for name, check in checks.items() if name.startswith("kernel: ")}
    assert kernels == {"kernel: swa": "ok", "kernel: swa + main_c4": "ok", "kernel: swa + main_c128": "ok"}
    narrow = checks["512-byte view: the kernel"]
    assert narrow["status"] == "refused-as-expected"
    assert narrow["message"] == "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
    assert checks["neighbours of the kernel"]["status"] == "ok"


def test_a_wrong_kernel(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    checks = on_a_gpu(Stand(lambda output: output * 1.1))
    assert checks["kernel: swa"]["status"] == "failed"
    assert checks["kernel: swa"]["message"].startswith("the kernel's numbers are not the reference's: max error")
    assert checks["kernel: swa"]["data"]["worst_share_of_bound"] > 1


def test_a_kernel_that_writes_into_the_cache(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    class Writer(Stand):
        def decode(self, **given: Any) -> tuple[Any, Any]:
            done = super().decode(**given)
            given["k_cache"].as_strided((1,), (1,), 37_400).fill_(7)
            return done

    checks = on_a_gpu(Writer())
    assert checks["neighbours of the kernel"]["status"] == "failed"
    assert checks["neighbours of the kernel"]["message"].endswith("first at byte 37400")


def test_a_kernel_that_takes_the_narrow_view(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    class Lenient(Stand):
        def decode(self, **given: Any) -> tuple[Any, Any]:
            return given["out"].zero_(), None if given["k_cache"].shape[-1] == 512 else super().decode(**given)[1]

    assert on_a_gpu(Lenient())["512-byte view: the kernel"]["status"] == "failed"


def test_a_lost_context_ends_the_checks(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    class Broken(Stand):
        def decode(self, **_given: Any) -> tuple[Any, Any]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    checks = on_a_gpu(Broken())
    assert checks["kernel: swa"]["status"] == "failed"
    assert checks["kernel: swa + main_c4"]["status"] == "skipped"
    assert checks["512-byte view: the kernel"]["message"] == "the CUDA context was lost in an earlier check"


def test_out_of_memory_is_no_failure(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    class Full(Stand):
        def decode(self, **_given: Any) -> tuple[Any, Any]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    check = on_a_gpu(Full())["kernel: swa"]
    assert check["status"] == "skipped"
    assert check["message"].startswith("not enough free memory: CUDA out of memory")


def test_flashmla_that_is_not_there(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    checks = on_a_gpu(None)
    assert checks["FlashMLA"]["status"] == "skipped"
    assert checks["kernel: sparse decode"]["message"] == "the kernel was not run: FlashMLA is not there"


def test_an_unknown_attention_class_has_no_kernel(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    checks = on_a_gpu(Stand(), attention={**ATTENTION.to_dict(), "class": "DeepseekV5Attention"})
    assert checks["kernel: sparse decode"]["message"] == (
        "the kernel was not run: no kernel is known here for DeepseekV5Attention"
    )


def test_flashinfer_classes_go_to_flashinfer(on_a_gpu: Callable[..., dict[str, dict[str, Any]]]) -> None:
    checks = on_a_gpu(Stand(), attention={**ATTENTION.to_dict(), "class": "DeepseekV4FlashInferSM120Attention"})
    assert "FlashMLA" not in checks
    assert "kernel: swa" not in checks
    kernels = [check for name, check in checks.items() if name.startswith("kernel: FlashInfer")]
    assert len(kernels) == 3
    # Nothing here is on a GPU: FlashInfer, where it is there at all, has no kernels for it.
    assert {check["status"] for check in kernels} == {"skipped"}


def test_a_view_of_512_bytes_fails_the_contract() -> None:
    layouts = packed_layouts().to_dict()
    layouts["caches"][0]["shape"][-1] = layouts["caches"][0]["stride"][1] = 512
    check = ran(layouts=layouts)["contract: swa"]
    assert check["status"] == "failed"
    assert check["message"].startswith("FlashMLA would say: kv must have shape")


def test_a_view_beyond_its_storage_fails_and_ends_the_checks() -> None:
    layouts = packed_layouts().to_dict()
    layouts["storages"] = [100_000]
    checks = ran(layouts=layouts)
    assert checks["storage arithmetic"]["status"] == "failed"
    assert "are out of bounds for storage of size 100000" in checks["storage arithmetic"]["message"]
    assert list(checks)[-1] == "kernel: sparse decode"


def op(name: str, insert: Callable[[Any, Any, Any], None]) -> Callable[..., insert_ops.InsertResult]:
    def run(_op: Any, cache: Any, slots: Any, keys: Any, **_more: Any) -> insert_ops.InsertResult:
        insert(cache, slots, keys)
        return insert_ops.InsertResult(True, name, "", 0.0)

    return run


@pytest.mark.parametrize(
    ("insert", "status", "said"),
    [
        (packed.write_states, "ok", "8 keys by quantize come back as the reference's do, every value"),
        (lambda cache, slots, keys: packed.write_states(cache, slots, keys.roll(1, dims=0)), "failed", "values differ"),
        (lambda _cache, _slots, _keys: None, "failed", "values differ"),
    ],
)
def test_what_vllm_inserts_is_compared(
    monkeypatch: pytest.MonkeyPatch, insert: Callable[[Any, Any, Any], None], status: str, said: str
) -> None:
    known = insert_ops.Op("quantize", "vllm.x", "packed", "by-name", "keys")
    monkeypatch.setattr(insert_ops, "find_ops", lambda interpret: ([known], {}))
    monkeypatch.setattr(insert_ops, "insert_with_vllm", op("quantize", insert))
    checks = ran()
    assert checks["insert: swa"]["status"] == status
    assert said in checks["insert: swa"]["message"]
    assert "insert: main_c4" not in checks
    assert checks["neighbours of the inserts"]["status"] == "ok"
