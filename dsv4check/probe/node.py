"""Everything a probe does on one machine: static check, caches by vLLM's own code, a child for each device.

Question and answer are plain data, so that another machine can be asked in the same way.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from dsv4check.probe import caches, machine, parent
from dsv4check.probe.records import (
    Check,
    CheckStatus,
    DeviceResult,
    Layouts,
    Verdict,
    combined,
)
from dsv4check.records import dataclass, field

if TYPE_CHECKING:
    from dsv4check.rehearsal.environment import Environment
    from dsv4check.report.model import Report
    from dsv4check.request import Request

DETECTS_FORMAT_FROM: Final = (0, 30)
"""vLLM's FlashMLA of this release and later tells a cache's format by the bytes of a state."""
HOW_TO_GET_TORCH: Final = "name an interpreter that has it (--python), or `pip install 'dsv4check[probe]'`"
_STAGE_SECONDS: Final = 120.0
_DIFFERING: Final = ("name", "capability", "torch", "cuda")
"""What several GPUs of a machine are compared by."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A probe, as plain data."""

    launch: dict[str, Any]
    """Keyword arguments of ``dsv4check.api.read_request``, ``command`` among them."""
    python: str | None = None
    vllm_path: str | None = None
    all_gpus: bool = False
    device: str = "auto"
    check_seconds: float = parent.CHECK_SECONDS
    rules: str | None = None
    """Folder with further rules for the static check."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of it."""

    static: dict[str, Any]
    """The static check in brief."""
    layouts: Layouts | None
    origin: Check
    """How the caches' layouts were come by."""
    devices: tuple[DeviceResult, ...]
    environment: str
    """Interpreter and vLLM in one line."""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    differences: tuple[str, ...] = field(default=())
    """What is not the same on all devices."""

    @property
    def verdict(self) -> Verdict:
        """Of the whole."""
        if self.origin.status in (CheckStatus.FAILED, CheckStatus.CRASHED):
            return Verdict.FAIL
        return combined([device.verdict for device in self.devices])

    @property
    def unavailable(self) -> str:
        """Why there is no answer, where there is none."""
        if self.verdict is not Verdict.UNAVAILABLE:
            return ""
        said = next((device.unavailable for device in self.devices if device.unavailable), "")
        return f"{said}; {HOW_TO_GET_TORCH}" if said else self.origin.message

    def to_dict(self) -> dict[str, Any]:
        """As plain data, in the schema ``docs/probe.schema.json``."""
        return {
            "schema_version": PROBE_SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "kernel_ran": bool(self.devices) and all(device.kernel_ran for device in self.devices),
            "unavailable": self.unavailable or None,
            "static": self.static,
            "environment": self.environment,
            "caches": self.origin.to_dict(),
            "layouts": None if self.layouts is None else self.layouts.to_dict(),
            "devices": [device.to_dict() for device in self.devices],
            "differences": list(self.differences),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


PROBE_SCHEMA_VERSION: Final = 1
"""Version of the document; additions keep it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that is ready to be probed."""

    static: dict[str, Any]
    layouts: Layouts | None
    origin: Check
    child: parent.ChildRequest | None
    """What a child is asked; None without layouts."""
    environment: str
    notes: tuple[str, ...]


def probe_node(question: ProbeRequest) -> ProbeResult:
    """Probe a launch on this machine. Raises InputError for a launch or a path that cannot be used."""
    began = time.monotonic()
    prepared = prepare(question)
    devices = () if prepared.child is None else _devices(prepared.child, question.all_gpus)
    return ProbeResult(
        static=prepared.static,
        layouts=prepared.layouts,
        origin=prepared.origin,
        devices=devices,
        environment=prepared.environment,
        seconds=round(time.monotonic() - began, 3),
        notes=prepared.notes,
        differences=differences(devices),
    )


def prepare(question: ProbeRequest) -> Prepared:
    """The static check and the caches' layouts. Raises InputError like :func:`probe_node`."""
    from pathlib import Path

    from dsv4check.api import check_request, read_request
    from dsv4check.engine.rule import load_rules

    request = read_request(**question.launch)
    environment, missing = _environment(question, request.vllm.version)
    python = _interpreter(question, environment)
    if request.hardware.vendor is None and question.device != "cpu":
        # No NVML module here, but perhaps a PyTorch that sees the GPU.
        request = _with_own_gpu(question, python) or request
    if environment is not None:
        from dsv4check.rehearsal.launch import for_environment

        request = for_environment(request, environment.vllm)
    rules = load_rules(None if question.rules is None else Path(question.rules))
    report = check_request(request, rules, fixes=False)
    layouts, origin, notes = _layouts(request, report, environment, missing)
    return Prepared(
        static=caches.static_summary(report),
        layouts=layouts,
        origin=origin,
        child=None if layouts is None else _child(question, report, layouts, python, environment),
        environment=environment.description if environment is not None else f"{python}, no vLLM",
        notes=(*report.notes, *notes),
    )


def _with_own_gpu(question: ProbeRequest, python: str) -> Request | None:
    """The request with the GPU that PyTorch sees; None without one."""
    from dsv4check.api import read_request
    from dsv4check.inputs.gpu import find_gpu

    seen = machine.gpus_seen(python)
    if not seen:
        return None
    name, capability = seen[0]
    count = question.launch.get("gpus") or len(seen)
    gpu = name if find_gpu(name) is not None else capability
    return read_request(**{**question.launch, "gpu": gpu, "gpus": count})


def _environment(question: ProbeRequest, version: str) -> tuple[Environment | None, str]:
    """vLLM where it is to be found, or why it is not."""
    from dsv4check.rehearsal.environment import RehearsalUnavailable, find_environment
    from dsv4check.rehearsal.provision import provisioned

    try:
        return find_environment(question.python, question.vllm_path), ""
    except RehearsalUnavailable as unavailable:
        named = question.python is not None or question.vllm_path is not None
        return None if named else provisioned(version), str(unavailable)


def _interpreter(question: ProbeRequest, environment: Environment | None) -> str:
    """Which interpreter a child runs in: the one that is named, this one, or that of vLLM's environment."""
    import importlib.util

    from dsv4check.rehearsal.environment import interpreter_path

    if environment is None or environment.notes:
        # What --provision builds has PyTorch for the CPU only.
        own = interpreter_path(question.python)
        if environment is None or importlib.util.find_spec("torch") is not None:
            return own
    return environment.python


def _layouts(
    request: Request, report: Report, environment: Environment | None, missing: str
) -> tuple[Layouts | None, Check, tuple[str, ...]]:
    """The layouts, how they were come by, and what has to be said about that."""
    if request.hardware.vendor is None:
        missing = missing or "no GPU is known to simulate (give --gpu NAME)"
        environment = None
    if environment is not None:
        found, check = caches.from_vllm(request, report, environment, _STAGE_SECONDS)
        if found is not None or check.status is CheckStatus.FAILED:
            # Where vLLM itself stops there are no caches: computed ones would be those of another launch.
            return found, check, ()
    else:
        check = Check(caches.NAME, CheckStatus.SKIPPED, f"{caches.NOT_RUN}: {missing}")
    computed = caches.from_facts(report)
    if computed is None:
        return None, check, ("the caches of this launch cannot be worked out: there is nothing to probe",)
    notes = [f"layouts {computed.origin}"]
    if report.errors and report.stage is not None:
        notes.append(
            f"the static check says that vLLM stops at {report.stage.value}, with caches like these or without"
        )
    return computed, check, tuple(notes)


def _child(
    question: ProbeRequest, report: Report, layouts: Layouts, python: str, environment: Environment | None
) -> parent.ChildRequest:
    from packaging.version import Version

    return parent.ChildRequest(
        python=python,
        layouts=layouts,
        attention=caches.attention_of(report),
        folders=environment.folders if environment is not None else (),
        detects_format=Version(report.resolution.release).release[:2] >= DETECTS_FORMAT_FROM,
        device=question.device,
        check_seconds=question.check_seconds,
    )


def _devices(child: parent.ChildRequest, all_gpus: bool) -> tuple[DeviceResult, ...]:
    gpus = machine.visible_gpus(child.python) if all_gpus and child.device != "cpu" else []
    return parent.run_on_gpus(child, gpus) if gpus else (parent.run_child(child),)


def differences(devices: tuple[DeviceResult, ...]) -> tuple[str, ...]:
    """What is not the same on all devices: the GPU itself, PyTorch, and how a check ended."""
    found = []
    for key in _DIFFERING:
        seen = {device.device: _figure(device, key) for device in devices}
        if len(set(seen.values())) > 1:
            found.append(f"{key}: {', '.join(f'{value} on {name}' for name, value in seen.items())}")
    for name in dict.fromkeys(check.name for device in devices for check in device.checks):
        ended = {
            device.device: next((check.status.value for check in device.checks if check.name == name), "not done")
            for device in devices
        }
        if len(set(ended.values())) > 1:
            found.append(f"{name}: {', '.join(f'{value} on {device}' for device, value in ended.items())}")
    return tuple(found)


def _figure(device: DeviceResult, key: str) -> str:
    for check in device.checks:
        if check.name in ("device", "PyTorch") and key in check.data:
            value = check.data[key]
            return ".".join(map(str, value)) if isinstance(value, list) else str(value)
    return "unknown"
