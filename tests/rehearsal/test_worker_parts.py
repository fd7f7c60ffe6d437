"""The parts of the child that need neither torch nor vllm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4check.rehearsal.launch import SIMULATED
from dsv4check.rehearsal.protocol import SimulatedDevice
from dsv4check.rehearsal.worker import flashmla
from dsv4check.rehearsal.worker.extensions import ExtensionFinder, OperatorStub
from dsv4check.rehearsal.worker.failures import HarnessLimit, read_failure
from dsv4check.rehearsal.worker.groups import StandInGroup
from dsv4check.rehearsal.worker.simulated_device import USUAL, DeviceState, Inert, nvml_module
from dsv4check.rehearsal.worker.stages import write_model


class Cache:
    """A tensor's shape, strides and type."""

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: str = "torch.uint8") -> None:
        self.shape, self._stride, self.dtype = shape, stride, dtype

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, index: int | None = None) -> Any:
        return self._stride if index is None else self._stride[index]

    def unsqueeze(self, _position: int) -> Cache:
        *shape, last = self.shape
        *stride, step = self._stride
        return Cache((*shape, 1, last), (*stride, last, step), self.dtype)


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (Cache((9, 64, 584), (37440, 584, 1)), ""),
        (Cache((9, 64, 1, 584), (1002240, 584, 584, 1)), ""),
        (Cache((9, 2, 584), (1728, 584, 1)), ""),
        # V4.1's, which only kernels get that tell formats by their size.
        (Cache((9, 32, 528), (17280, 528, 1)), ""),
        (
            Cache((9, 256, 512), (131328, 512, 1)),
            "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)",
        ),
        (Cache((9, 64, 584), (37440, 585, 1)), "The whole block must be contiguous"),
        (Cache((9, 64, 584), (37376, 584, 1)), "37376 bytes apart, not a multiple of 576"),
        (Cache((9, 64, 584), (37440, 584, 1), "torch.bfloat16"), "key must have dtype"),
        (Cache((9, 64, 584), (37440, 584, 2)), "contiguous last dimension"),
        (Cache((9, 64, 2, 584), (74880, 1168, 584, 1)), "h_kv == 1"),
        (Cache((9, 584), (584, 1)), "4 dimensions"),
    ],
)
def test_flashmla_contract(cache: Cache, said: str) -> None:
    refusal = flashmla.violation(cache)
    assert refusal.count(said)
    assert bool(refusal) == bool(said)


class Spec:
    def __init__(self, head_size: int, dtype: str) -> None:
        self.head_size, self.dtype = head_size, dtype


def test_only_packed_caches_of_flashmla_are_checked() -> None:
    specs = {"main": Spec(512, "torch.uint8"), "indexer": Spec(132, "torch.uint8"), "state": Spec(512, "torch.float32")}
    assert flashmla.packed_caches(specs, {"main": "FLASHMLA_SPARSE_DSV4"}) == ["main"]
    assert flashmla.packed_caches(specs, {"main": "FLASHINFER_MLA_SPARSE_DSV4"}) == []


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The exception with a traceback that looks as if vLLM had raised it."""
    code = compile("def vllm_function(error, cause):\n raise error from cause\n", "/x/vllm/config/vllm.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    try:
        names["vllm_function"](error, cause)
    except BaseException as caught:
        return caught
    raise AssertionError


def test_what_vllm_raises_is_a_verdict_with_its_place() -> None:
    failure = read_failure(raised(ValueError("no such backend")))
    assert (failure.verdict, failure.exception, failure.message) == (True, "ValueError", "no such backend")
    assert failure.where == "config/vllm.py:2:vllm_function"


@pytest.mark.parametrize(
    "error",
    [
        raised(HarnessLimit("a stub")),
        raised(ValueError("cannot load"), HarnessLimit("a stub")),
        raised(ModuleNotFoundError("No module named 'ray'", name="ray")),
        raised(ValueError("install it"), ImportError("cannot import name 'x'")),
        raised(RuntimeError("Found no NVIDIA driver on your system.")),
        raised(NotImplementedError("Cannot copy out of meta tensor; no data!")),
        raised(MemoryError()),
        raised(ValueError("Model architectures ['DeepseekV4ForCausalLM'] failed to be inspected.")),
        raised(OSError("We couldn't connect to 'https://huggingface.co' to load the files")),
    ],
)
def test_limits_of_the_rehearsal_are_no_verdict(error: BaseException) -> None:
    failure = read_failure(error)
    assert not failure.verdict
    assert failure.message


def test_an_absent_package_makes_its_refusal_no_verdict() -> None:
    error = raised(RuntimeError("FlashInfer lacks the sparse MLA decode API"))
    assert read_failure(error).verdict
    assert not read_failure(error, frozenset({"flashinfer"})).verdict
    mentioned = raised(ValueError("X is not a DeepSeek V4 attention backend. Use Y for FlashInfer sparse MLA."))
    assert read_failure(mentioned, frozenset({"flashinfer"})).verdict


def test_a_stand_in_that_lacks_something_is_no_verdict() -> None:
    class Runner:
        stand_in = True

    try:
        Runner().model_state  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        failure = read_failure(error)
    assert not failure.verdict


def test_every_capability_that_can_be_asked_for_is_known() -> None:
    assert set(SIMULATED) == set(USUAL)


def test_the_device_answers_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DeviceState()
    state.set(SimulatedDevice("12.1", count=2))
    assert (state.capability, state.name, state.present, state.visible) == ((12, 1), "NVIDIA GB10", 2, 2)
    state.set(SimulatedDevice("9.0", "NVIDIA H20", 8, 97871))
    assert (state.name, state.memory) == ("NVIDIA H20", 97871 << 20)
    for listed, count in (("0,1,-1,2", 2), ("0,0", 0), ("", 0), ("3", 1), ("0,9,1", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert state.visible == count, listed


def test_nvml_and_inert_objects() -> None:
    nvml = nvml_module("x")
    assert issubclass(nvml.NVMLError_NotSupported, nvml.NVMLError)
    assert nvml.nvmlDeviceGetMemoryInfo(0).total == nvml.nvmlDeviceGetMemoryInfo(0).free > 0
    assert Inert().cudaMalloc(1) is None


def test_operators_can_be_named_but_not_called() -> None:
    stub = OperatorStub("_C.gemm")
    with pytest.raises(HarnessLimit, match=r"_C\.gemm\.default"):
        stub.default(1)


def test_only_known_extensions_are_answered_for() -> None:
    finder = ExtensionFinder()
    assert finder.find_spec("vllm._C", None) is not None
    assert finder.find_spec("vllm.config", None) is None


def test_groups_know_size_and_place() -> None:
    group = StandInGroup(16, 15)
    assert (group.world_size, group.is_first_rank, group.is_last_rank) == (16, False, True)
    assert group.barrier() is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash"),
        ("/data/models/V4", "models/V4"),
        ("../../etc/x", "etc/x"),
        ("cfg/config.json", "cfg/config"),
    ],
)
def test_models_are_written_below_the_folder_under_their_own_name(name: str, folder: str, tmp_path: Path) -> None:
    written = write_model(tmp_path, name, {"a": 1})
    assert written == tmp_path / folder
    assert json.loads((written / "config.json").read_text()) == {"a": 1}


def test_running_out_of_the_rehearsals_own_memory_is_no_verdict() -> None:
    said = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
    assert not read_failure(raised(RuntimeError(said))).verdict


def test_a_package_of_another_version_is_no_verdict() -> None:
    try:
        json.frobnicate  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        failure = read_failure(error)
    assert not failure.verdict
    assert "json here has no 'frobnicate'" in failure.message
