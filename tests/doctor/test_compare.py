"""Reports of several machines beside each other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.doctor.compare import NOT_KNOWN, Difference, compare_nodes
from dsv4check.doctor.records import (
    BuildAnswer,
    DoctorReport,
    FactDifference,
    FingerprintAnswer,
    Machine,
)
from dsv4check.host.records import Observation, State

BUILD = BuildAnswer(
    found=True,
    package="/opt/vllm",
    version="0.24.0",
    commit="abc1234",
    nearest="0.24.0",
    learned=("kv_cache",),
)
FINGERPRINT = FingerprintAnswer("swa-quant-mode", "Does it?", "set", "It does.", release="0.24.0", release_value="set")
MACHINE = Machine(
    gpus=({"name": "NVIDIA H200", "sm": "9.0", "memory_mib": 143771},) * 2,
    python="3.12.3",
    packages={"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.2.0"},
    variables={"VLLM_USE_DEEP_GEMM": "1"},
)
DRIVER = Observation("driver-cuda", "driver", State.OK, "NVIDIA driver", "driver 580.65.06, CUDA 13.0")
SHM = Observation("limit-shm", "limits", State.OK, "/dev/shm", "64 GiB")
REPORT = DoctorReport(BUILD, (FINGERPRINT,), MACHINE, (DRIVER, SHM))


def compared(other: DoctorReport) -> list[Difference]:
    return compare_nodes({"a": REPORT.to_dict(), "b": other.to_dict()})


def with_machine(**values: Any) -> DoctorReport:
    return replace(REPORT, machine=replace(MACHINE, **values))


def with_gpu(**values: Any) -> DoctorReport:
    return with_machine(gpus=({**MACHINE.gpus[0], **values},) * 2)


def test_the_same_machine_twice_differs_in_nothing() -> None:
    assert compared(REPORT) == []
    assert compare_nodes({"a": REPORT.to_dict()}) == []
    assert compare_nodes({}) == []


@pytest.mark.parametrize(
    ("other", "id", "state", "values", "says"),
    [
        (replace(REPORT, build=replace(BUILD, version="0.25.0")), "vllm-version", State.ERROR, ("0.24.0", "0.25.0"),
         "cache layout"),
        (replace(REPORT, build=replace(BUILD, commit="fff")), "vllm-commit", State.ERROR, ("abc1234", "fff"), "builds"),
        (replace(REPORT, build=replace(BUILD, differs=(FactDifference("kv_cache.x", "1", "2"),))), "vllm-code",
         State.ERROR, ("as 0.24.0", "as 0.24.0 but kv_cache.x = 1"), "patched"),
        (replace(REPORT, fingerprints=(replace(FINGERPRINT, value="missing"),)), "fingerprint-swa-quant-mode",
         State.ERROR, ("set", "missing"), "different code"),
        (with_gpu(sm="12.0"), "gpu-sm", State.ERROR, ("9.0", "12.0"), "attention class"),
        (with_gpu(name="NVIDIA H100"), "gpu-name", State.WARNING, ("NVIDIA H200", "NVIDIA H100"), "slowest"),
        (with_gpu(memory_mib=81559), "gpu-memory", State.WARNING, ("140 GiB", "80 GiB"), "smallest KV cache"),
        (with_machine(gpus=MACHINE.gpus[:1]), "gpu-count", State.WARNING, ("2", "1"), "smaller"),
        (with_machine(python="3.11.9"), "python", State.WARNING, ("3.12.3", "3.11.9"), "same Python"),
        (with_machine(packages={**MACHINE.packages, "torch": "2.10.0"}), "package-torch", State.ERROR,
         ("2.11.0", "2.10.0"), "PyTorch"),
        (with_machine(packages={**MACHINE.packages, "triton": "3.5.0"}), "package-triton", State.WARNING,
         ("3.6.0", "3.5.0"), "kernels"),
        (with_machine(packages={**MACHINE.packages, "nvidia-nccl-cu13": "2.29"}), "package-nvidia-nccl-cu13",
         State.ERROR, ("none", "2.29"), "NCCL"),
        (with_machine(packages={**MACHINE.packages, "numpy": "2.3.0"}), "package-numpy", State.NOTE,
         ("2.2.0", "2.3.0"), "same versions"),
        (with_machine(variables={}), "variable-VLLM_USE_DEEP_GEMM", State.WARNING, ("1", "none"), "environment"),
        (replace(REPORT, observations=(replace(DRIVER, found="driver 550.1, CUDA 12.4"), SHM)), "driver-cuda",
         State.WARNING, ("driver 580.65.06, CUDA 13.0", "driver 550.1, CUDA 12.4"), "oldest"),
        (replace(REPORT, observations=(DRIVER, replace(SHM, found="64 MiB", state=State.WARNING))), "limit-shm",
         State.WARNING, ("64 GiB", "64 MiB"), "enough"),
    ],
)  # fmt: skip
def test_one_difference_is_told_with_why_it_matters(
    other: DoctorReport, id: str, state: State, values: tuple[str, str], says: str
) -> None:
    (found,) = compared(other)
    assert (found.id, found.state, tuple(found.values.values())) == (id, state, values)
    assert says in found.why


def test_what_a_machine_does_not_say_is_no_difference() -> None:
    empty = DoctorReport(BuildAnswer(found=False, why="no vllm"))
    found = compared(empty)
    # A variable that is not set is known not to be set.
    assert [item.id for item in found] == ["variable-VLLM_USE_DEEP_GEMM"]
    third = with_gpu(sm="12.0")
    reports = {"a": REPORT.to_dict(), "b": empty.to_dict(), "c": third.to_dict()}
    sm = next(item for item in compare_nodes(reports) if item.id == "gpu-sm")
    assert dict(sm.values) == {"a": "9.0", "b": NOT_KNOWN, "c": "12.0"}


def test_sizes_that_are_enough_everywhere_and_addresses_of_a_node_are_no_difference() -> None:
    other = replace(REPORT, observations=(DRIVER, replace(SHM, found="65 GiB")))
    assert compared(other) == []
    assert compared(with_machine(variables={**MACHINE.variables, "VLLM_HOST_IP": "x"})) == []
    # vLLM's version is compared once, as the build's.
    assert compared(with_machine(packages={**MACHINE.packages, "vllm": "0.25.0"})) == []
    # The same board under another driver.
    assert compared(with_gpu(memory_mib=143770)) == []


def test_what_stops_a_launch_comes_first_and_machines_are_grouped() -> None:
    other = with_machine(python="3.11.9", packages={**MACHINE.packages, "torch": "2.10.0", "numpy": "1"})
    reports = {"a": REPORT.to_dict(), "b": REPORT.to_dict(), "c": other.to_dict()}
    found = compare_nodes(reports)
    assert [item.id for item in found] == ["package-torch", "python", "package-numpy"]
    assert found[0].groups == {"2.11.0": ("a", "b"), "2.10.0": ("c",)}


def test_mixed_gpus_of_one_machine_are_compared_as_a_set() -> None:
    mixed = with_machine(gpus=(MACHINE.gpus[0], {"name": "NVIDIA H200", "sm": "12.0", "memory_mib": 143771}))
    (found,) = compared(mixed)
    assert dict(found.values) == {"a": "9.0", "b": "12.0, 9.0"}


def test_a_commit_may_be_said_in_short() -> None:
    assert compared(replace(REPORT, build=replace(BUILD, commit="abc1234" + "0" * 33))) == []


def test_a_report_without_a_machine_says_nothing_of_variables() -> None:
    other = REPORT.to_dict()
    del other["machine"]
    assert compare_nodes({"a": REPORT.to_dict(), "b": other}) == []


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ODD = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=5), LEAVES, max_size=2)


PLAIN = json.dumps(REPORT.to_dict())


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A report from which parts are missing or in whose place something else stands."""
    report: Any = json.loads(PLAIN)
    for _ in range(draw(st.integers(0, 3))):
        place = report
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.booleans()):
                del place[key]
            else:
                place[key] = draw(ODD)
            break
    return report


@given(st.dictionaries(st.sampled_from("abc"), damaged()))
def test_damaged_reports_are_compared_as_far_as_they_go(reports: dict[str, Any]) -> None:
    found = compare_nodes(reports)
    assert found == compare_nodes(reports)
    for item in found:
        assert set(item.values) == set(reports)
        assert len(set(item.values.values()) - {NOT_KNOWN}) > 1
        assert sorted(name for names in item.groups.values() for name in names) == sorted(reports)
    order = [State.ERROR, State.WARNING, State.NOTE]
    assert [item.state for item in found] == sorted((item.state for item in found), key=order.index)


@given(damaged())
def test_a_report_beside_itself_differs_in_nothing(report: dict[str, Any]) -> None:
    assert compare_nodes({"a": report, "b": report}) == []
