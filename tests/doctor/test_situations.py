"""The whole command on machines and builds that users have: what is well says nothing, and nothing breaks the rest."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.specifiers import SpecifierSet

from dsv4check.api import check
from dsv4check.doctor import DoctorReport, DoctorRequest, examine
from dsv4check.doctor.looks import Looks, needs_of
from dsv4check.host.cache_folders import Disk
from dsv4check.host.gpus import GpuSeen
from dsv4check.host.interpreter import InterpreterFacts, TorchBuild
from dsv4check.host.limits import look_at_limits
from dsv4check.host.packages import NAMES
from dsv4check.host.records import Observation, State
from dsv4check.releases.facts import known_releases
from dsv4check.report.doctor_formats import DoctorFormat, render
from dsv4check.report.model import Report
from tests.cli.test_doctor_cli import install
from tests.host.fake_nvml import DriverNotLoadedError, FakeNvml, NoPermissionError, NotSupportedError, gpu
from tests.host.test_extensions import PACKAGES, WHEEL
from tests.host.test_limits import FINE, GIB, MIB, tree
from tests.host.test_packages import facts, pins

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/doctor.schema.json").read_text(encoding="utf-8"))
FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8"
H200X8 = [gpu() for _ in range(8)]


def packages_of(release: str) -> dict[str, str]:
    """What pip would install of a release's pins, PyTorch's as its own index names them."""
    found = {"vllm": release}
    for name, text in pins(release)["packages"].items():
        wanted = SpecifierSet(text)
        versions = (part.version for part in wanted if part.operator in ("==", ">=", "~="))
        found[name] = next((version for version in versions if wanted.contains(version)), "1.0")
        if name in ("torch", "torchvision", "torchaudio"):
            found[name] += "+cu130"
    return {name: version for name, version in found.items() if name in NAMES}


class Machine(Looks):
    """A machine below a folder: its limits, its driver, and a Python with a release's own packages."""

    def __init__(
        self,
        root: Path,
        release: str = "0.33.0",
        nvml: Any = None,
        *,
        packages: Mapping[str, str] | None = None,
        shm: int = 256 * GIB,
        cpus: int = 128,
    ) -> None:
        super().__init__(nvml if nvml is not None else FakeNvml(H200X8), root)
        self.release, self.shm, self.cpus = release, shm, cpus
        self.installed = {**packages_of(release), **(packages or {})}

    def interpreter(self, python: str | None, more: Any) -> InterpreterFacts | str:
        torch = self.installed.get("torch", "")
        cuda = None if torch.endswith("+cpu") else "13.0"
        return facts(self.installed, torch=TorchBuild(torch, cuda, None, None, "/site/torch/version.py"))

    def limits(self, report: Report | None, gpus: Sequence[GpuSeen], env: Mapping[str, str]) -> list[Observation]:
        def disk(path: Path) -> Disk:
            return Disk(self.shm, self.shm) if path == self.root / "dev/shm" else Disk(900 * GIB, 900 * GIB)

        return look_at_limits(
            self.root,
            launch=needs_of(report, gpus),
            env=env,
            disk=disk,
            limit=FINE.get,
            can_write=lambda _path: True,
            cpus=self.cpus,
            platform="linux",
        )


def wheel_of(folder: Path, release: str) -> Path:
    install(folder, release)
    for name, content in {**WHEEL, **PACKAGES}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def looked(folder: Path, machine: Looks, env: Mapping[str, str] | None = None, **asked: Any) -> DoctorReport:
    report = examine(
        DoctorRequest(vllm_path=str(folder), python="/venv/bin/python", **asked),
        looks=machine,
        env={"HOME": "/root", **(env or {})},
    )
    jsonschema.validate(json.loads(render(report, DoctorFormat.JSON)), SCHEMA)
    for format in DoctorFormat:
        assert "internal error" not in render(report, format)
    return report


def problems(report: DoctorReport) -> dict[str, State]:
    return {item.id: item.state for item in report.with_state(State.ERROR, State.WARNING)}


@pytest.mark.parametrize("launch", [None, FLASH])
@pytest.mark.parametrize("release", known_releases())
def test_a_healthy_machine_with_the_packages_of_a_release_has_no_problem(
    tmp_path: Path, release: str, launch: str | None
) -> None:
    folder = wheel_of(tmp_path / "site", release)
    machine = Machine(tree(tmp_path / "root"), release)
    report = looked(folder, machine, command=launch)
    assert problems(report) == {}
    if report.report is None:
        assert report.verdict == "pass"
    else:
        # Neither the packages nor the machine add anything to what the launch alone is told.
        alone = check(FLASH, gpu="H200", gpus=8, vllm=release)
        assert [item.rule for item in report.report.findings] == [item.rule for item in alone.findings]


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.14.0", None),
        ("2.14.0+cu130", None),
        ("2.14.0+gitabc1234", None),
        ("2.14.0.post1", State.WARNING),
        ("2.14.1", State.WARNING),
        ("2.13.0+cu130", State.ERROR),
        ("no version!", None),
    ],
)
def test_versions_of_pytorch_beside_the_pin(tmp_path: Path, version: str, state: State | None) -> None:
    machine = Machine(tree(tmp_path / "root"), packages={"torch": version})
    seen = problems(looked(wheel_of(tmp_path / "site", "0.33.0"), machine))
    assert seen == ({} if state is None else {"package-torch": state})


def test_pytorch_for_the_cpu_has_the_right_version_and_the_wrong_build(tmp_path: Path) -> None:
    machine = Machine(tree(tmp_path / "root"), packages={"torch": "2.14.0+cpu"})
    seen = problems(looked(wheel_of(tmp_path / "site", "0.33.0"), machine))
    assert seen == {"package-torch-build": State.ERROR}


CALLS = [name for name in dir(FakeNvml) if name.startswith("nvml")]


@pytest.mark.parametrize("error", [NotSupportedError, NoPermissionError, DriverNotLoadedError, OSError])
@pytest.mark.parametrize("call", CALLS)
def test_any_call_of_nvml_may_fail(tmp_path: Path, call: str, error: type[Exception]) -> None:
    class Broken(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name != call:
                return super().__getattribute__(name)

            def fail(*_words: object) -> None:
                raise error("as the driver says")

            return fail

    machine = Machine(tree(tmp_path / "root"), nvml=Broken([gpu(), gpu()]))
    report = looked(wheel_of(tmp_path / "site", "0.33.0"), machine)
    # What cannot be asked is not known, and no fault of the machine.
    assert problems(report) == {}
    if call not in ("nvmlShutdown", "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert len(report.machine.gpus) == 2


def test_small_machines_are_no_problem_while_nothing_is_to_be_served(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", proc__meminfo="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    none = FakeNvml(init=DriverNotLoadedError())
    small = Machine(root, nvml=none, shm=64 * MIB, cpus=2)
    site = wheel_of(tmp_path / "site", "0.33.0")
    assert problems(looked(site, small)) == {}
    # The machine that builds an image: the GPUs are named, and are not here.
    built = looked(site, small, command=FLASH, gpu="H200", gpus=8)
    assert problems(built) == {}
    assert {"limit-cpus", "limit-memory", "limit-shm"} <= {item.id for item in built.with_state(State.NOTE)}
    serving = Machine(root, nvml=FakeNvml(H200X8), shm=64 * MIB, cpus=2)
    for report in (looked(site, serving), looked(site, serving, command=FLASH)):
        assert problems(report) == dict.fromkeys(("limit-shm", "limit-memory", "limit-cpus"), State.WARNING)
        assert "10 or more" in next(item.wanted for item in report.observations if item.id == "limit-cpus")
    # One GPU of eight is served, and needs little of them.
    one = looked(site, serving, env={"CUDA_VISIBLE_DEVICES": "2"})
    assert next(item.wanted for item in one.observations if item.id == "limit-cpus") == "3 or more"


def test_memory_that_others_hold_is_measured_against_the_share_of_the_launch(tmp_path: Path) -> None:
    busy = Machine(tree(tmp_path / "root"), nvml=FakeNvml([gpu(used_mib=50000) for _ in range(8)]))
    site = wheel_of(tmp_path / "site", "0.33.0")
    assert len(problems(looked(site, busy, command=FLASH))) == 8
    half = looked(site, busy, command=f"{FLASH} --gpu-memory-utilization 0.6")
    assert problems(half) == {}
    odd = looked(site, busy, command=f"{FLASH} --gpu-memory-utilization much")
    assert len(problems(odd)) == 8


def test_problems_that_are_alike_are_told_together(tmp_path: Path) -> None:
    nvml = FakeNvml([gpu("NVIDIA X999", used_mib=130000 + index, mig=[0, 0]) for index in range(8)])
    report = looked(wheel_of(tmp_path / "site", "0.33.0"), Machine(tree(tmp_path / "root"), nvml=nvml))
    text = render(report, DoctorFormat.TEXT)
    assert text.count("warning gpu-") == 1
    assert "warning gpu-0-memory, gpu-1-memory, gpu-2-memory and 5 more [GPUs]" in text
    assert text.count("The catalogue has no GPU of this name") == 1
    assert len([item for item in report.observations if item.id.endswith("-memory") and item.area == "gpu"]) == 8


def test_the_gpus_of_a_launch_are_those_that_it_sees(tmp_path: Path) -> None:
    nvml = FakeNvml([*(gpu("NVIDIA H100 80GB HBM3", (9, 0), 81559) for _ in range(4)), *H200X8])
    machine = Machine(tree(tmp_path / "root"), nvml=nvml)
    site = wheel_of(tmp_path / "site", "0.33.0")

    def hardware(**env: str) -> tuple[object, ...]:
        report = looked(site, machine, env, command=FLASH)
        assert report.report is not None
        found = report.report.deployment.hardware
        return found.name, found.memory_mib, found.gpus_per_node

    assert hardware(CUDA_VISIBLE_DEVICES="4,5,6,7,8,9,10,11") == ("H200", 143771, 8)
    # The smallest one decides how many blocks all of them get.
    assert hardware(CUDA_VISIBLE_DEVICES="4,5,6,7,8,9,10,0") == ("H100", 81559, 8)
    assert hardware(CUDA_VISIBLE_DEVICES="5")[2] == 1
    assert hardware()[2] == 12


def test_boards_of_one_kind_may_differ_by_some_mib(tmp_path: Path) -> None:
    nvml = FakeNvml([gpu(mib=143771 - index % 2 * 40) for index in range(8)])
    report = looked(wheel_of(tmp_path / "site", "0.33.0"), Machine(tree(tmp_path / "root"), nvml=nvml))
    assert problems(report) == {}


def test_what_machine_and_launch_both_find_is_told_once(tmp_path: Path) -> None:
    env = {"VLLM_USE_V2_MODEL_RUNER": "1", "VLLM_PORT": "tcp://10.1.2.3:80"}
    packages = {"flashinfer-python": "0.6.8", "flashinfer-cubin": "0.6.8"}
    machine = Machine(tree(tmp_path / "root"), packages=packages)
    site = wheel_of(tmp_path / "site", "0.33.0")
    report = looked(site, machine, env, command=FLASH)
    text = render(report, DoctorFormat.TEXT)
    assert {"package-flashinfer-python", "variable-vllm-port"} <= problems(report).keys()
    assert "warning package-flashinfer-python" not in text
    assert "error variable-vllm-port" not in text
    assert "told by findings of the launch: " in text
    assert "variable-vllm-port (EV005)" in text
    alone = render(looked(site, machine, env), DoctorFormat.TEXT)
    assert "error variable-vllm-port [Variables]" in alone
    # What is stated for the launch is another package than the installed one.
    stated = looked(site, machine, {}, command=FLASH, packages=("flashinfer-python=0.6.7",))
    assert "warning package-flashinfer-python" in render(stated, DoctorFormat.TEXT)


SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
    "VLLM_API_KEY": "hunter-two-22",
    "VLLM_SOME_PASSWORD": "hunter-two-23",
    "VLLM_WHATEVER": "https://user:hunter-two-24@proxy.corp.example/x",
    "VLLM_HOST_IP": "10.11.12.13",
    "VLLM_PORT": "tcp://10.11.12.13:8000",
    "VLLM_S3_ACCESS_KEY_SECRET": "hunter-two-25",
    "LD_PRELOAD": "/x/hf_abcdefghijklmnopqrstuvwx.so",
    "AWS_SECRET_ACCESS_KEY": "hunter-two-26",
}


@pytest.mark.parametrize("launch", [None, FLASH])
def test_secrets_and_addresses_of_the_environment_stay_out(tmp_path: Path, launch: str | None) -> None:
    machine = Machine(tree(tmp_path / "root"))
    report = looked(wheel_of(tmp_path / "site", "0.33.0"), machine, SECRETS, command=launch)
    for format in DoctorFormat:
        said = render(report, format)
        for secret in ("hunter-two", "hf_abcdef", "10.11.12.13"):
            assert secret not in said, (format, said[max(said.find(secret) - 200, 0) :][:300])


def test_a_machine_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("LC_ALL", "tr_TR.nowhere")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    looks = Looks(types.ModuleType("pynvml"), root)
    report = looked(wheel_of(tmp_path / "site", "0.33.0"), looks)
    unknown = {item.id for item in report.with_state(State.UNKNOWN)}
    assert {"limit-shm", "limit-memory", "driver-cuda", "gpus"} <= unknown
    assert not [item for item in report.observations if item.id.startswith("internal-")]


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(200 << 20)


@pytest.mark.parametrize(
    ("spoil", "file", "words"),
    [
        (pipe, "vllm/_version.py", "no ordinary file"),
        (pipe, "vllm/envs.py", "no ordinary file"),
        (pipe, "vllm-0.33.0.dist-info/METADATA", "no ordinary file"),
        (huge, "vllm/envs.py", "200 MiB"),
    ],
)
def test_files_that_would_never_end_are_not_read(
    tmp_path: Path, spoil: Callable[[Path], None], file: str, words: str
) -> None:
    site = wheel_of(tmp_path / "site", "0.33.0")
    spoil(site / file)
    report = looked(site, Machine(tree(tmp_path / "root")), command=FLASH)
    said = next(item for item in report.observations if item.id == "build-files")
    assert said.state is State.UNKNOWN
    assert f"{file} " in said.why
    assert words in said.why
    assert report.report is not None


def test_a_tree_that_says_nothing_is_compared_with_nothing(tmp_path: Path) -> None:
    package = tmp_path / "site/vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    report = looked(tmp_path / "site", Machine(tree(tmp_path / "root")), {"VLLM_WHATEVER": "1"})
    assert report.build.nearest is None
    unknown = {item.id for item in report.with_state(State.UNKNOWN)}
    assert {"package-pins", "variables-vllm"} <= unknown
    text = render(report, DoctorFormat.TEXT)
    assert "  its code  was not read: " in text
    assert "other than in" not in text


@pytest.mark.parametrize("version", ["acme-5.x_final", "2026.3-acme", "0.33.0+acme.1", "1!0.33.0", "0.33.0rc1"])
def test_versions_of_forks(tmp_path: Path, version: str) -> None:
    report = looked(wheel_of(tmp_path / "site", version), Machine(tree(tmp_path / "root")), command=FLASH)
    assert report.build.version == version
    assert report.report is not None


@pytest.mark.parametrize("option", ["vllm_path", "python"])
def test_an_empty_path_is_not_taken_for_none(option: str) -> None:
    from dsv4check.errors import InputError

    with pytest.raises(InputError, match="expected a path"):
        examine(DoctorRequest(**{option: " "}), env={})  # type: ignore[arg-type]
