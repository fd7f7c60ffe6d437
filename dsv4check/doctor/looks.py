"""Where each part of a look comes from; imported one by one, so that one that breaks takes no other with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4check.host.gpus import GpuSeen
    from dsv4check.host.interpreter import InterpreterFacts
    from dsv4check.host.limits import Launch
    from dsv4check.host.records import Observation
    from dsv4check.installation.build_facts import BuildFacts
    from dsv4check.installation.fingerprint import Answer, Fingerprint
    from dsv4check.installation.tree import VllmTree
    from dsv4check.releases.facts import ReleaseFacts
    from dsv4check.report.model import Report


class Looks:
    """The parts of a look at this machine. A test puts others in their place."""

    def __init__(self, nvml: Any = None, root: Path = Path("/")) -> None:
        """``nvml`` answers for the driver (None imports ``pynvml``); ``root`` is where ``/proc`` and ``/dev`` lie."""
        self.nvml = nvml
        self.root = root

    def tree(self, vllm_path: str | None, python: str | None) -> VllmTree | str:
        """The vLLM package, or why there is none."""
        from dsv4check.installation.locate import find_tree

        return find_tree(vllm_path, python)

    def odd_file(self, tree: VllmTree) -> str | None:
        """Why nothing of the tree may be read."""
        from dsv4check.doctor.odd_files import odd_file

        return odd_file(tree.package)

    def build(self, tree: VllmTree) -> BuildFacts:
        """What the tree's own code decides."""
        from dsv4check.installation.build_facts import read_build

        return read_build(tree)

    def fingerprints(self, tree: VllmTree) -> list[tuple[Fingerprint, Answer]]:
        """Every question about the tree's code with its answer."""
        from dsv4check.installation.fingerprint import fingerprints, fingerprints_of

        answers = fingerprints_of(tree)
        return [(item, answers[item.id]) for item in fingerprints() if item.id in answers]

    def gpus(
        self, env: Mapping[str, str], release: str | None, utilization: float | None
    ) -> tuple[list[Observation], list[GpuSeen]]:
        """The GPUs that the driver shows; ``utilization`` is the launch's share of their memory, where it says one."""
        from dsv4check.host.gpus import UTILIZATION, look_at_gpus

        share = UTILIZATION if utilization is None else utilization
        return look_at_gpus(self.nvml, env=env, release=release, utilization=share)

    def interpreter(self, python: str | None, more: Collection[str]) -> InterpreterFacts | str:
        """What is installed in a Python, or why it cannot be asked; ``more`` are names beside the usual ones."""
        from dsv4check.host.interpreter import ask_interpreter
        from dsv4check.host.packages import NAMES

        return ask_interpreter(python, {*NAMES, *more})

    def packages(
        self, facts: InterpreterFacts, pins: Mapping[str, Any], extras: Collection[str], env: Mapping[str, str]
    ) -> list[Observation]:
        """Installed packages against a release's pins."""
        from dsv4check.host.packages import look_at_packages

        return look_at_packages(facts, pins, extras, env=env)

    def extensions(
        self, package: Path, capability: tuple[int, int] | None, env: Mapping[str, str]
    ) -> list[Observation]:
        """What the compiled extensions of a vLLM were built for."""
        from dsv4check.host.extensions import look_at_extensions

        return look_at_extensions(package, capability, root=self.root, env=env)

    def driver(
        self, torch_cuda: str | None, version: str | None, needs_cudart: str | None, env: Mapping[str, str]
    ) -> list[Observation]:
        """The driver against what is installed; ``version`` is vLLM's."""
        from dsv4check.host.driver import cuda_of_wheel, look_at_driver

        wheel_cuda, _where = cuda_of_wheel(version)
        return look_at_driver(self.nvml, torch_cuda, wheel_cuda, needs_cudart, env=env, root=self.root)

    def limits(self, report: Report | None, gpus: Sequence[GpuSeen], env: Mapping[str, str]) -> list[Observation]:
        """Shared memory, memory of the container, ulimits: for the launch of ``report``, else for the GPUs seen."""
        from dsv4check.host.limits import look_at_limits

        return look_at_limits(self.root, launch=needs_of(report, gpus), env=env)

    def variables(
        self, env: Mapping[str, str], facts: ReleaseFacts | None, tree: VllmTree | None, report: Report | None
    ) -> list[Observation]:
        """Environment variables that this build does not know or ignores, and others that change a launch."""
        from dsv4check.host.variables import look_at_variables

        deployment = None if report is None else report.deployment
        source = None if tree is None else tree.source
        return look_at_variables(env, facts, source, deployment=deployment, root=self.root)


def needs_of(report: Report | None, gpus: Sequence[GpuSeen]) -> Launch:
    """What the machine has to serve: the launch, or one that takes all GPUs that are visible here."""
    from dsv4check.host.limits import Launch

    if report is None:
        return Launch(gpus=sum(gpu.visible is not False for gpu in gpus) or None)
    checkpoint = report.deployment.checkpoint
    size = None if checkpoint is None else checkpoint.total_size
    return Launch(gpus=_used_here(report), checkpoint_bytes=size, here=bool(gpus))


def _used_here(report: Report) -> int | None:
    """GPUs of this machine that the launch takes."""
    parallel, hardware = report.resolution.parallel, report.deployment.hardware
    if parallel is None:
        return hardware.gpus_per_node
    share = -(-parallel.total // hardware.nodes)
    return share if hardware.gpus_per_node is None else min(share, hardware.gpus_per_node)
