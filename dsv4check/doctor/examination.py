"""One look at an installation: every part on its own, so that what one of them lacks leaves the others."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dsv4check import __version__
from dsv4check.doctor.answers import anonymous, build_answer, fingerprint_answers, machine_answer
from dsv4check.doctor.guard import Guard, Say
from dsv4check.doctor.launch import (
    check_launch,
    hardware_of,
    read_launch,
    server_environment,
    utilization_of,
    wanted_packages,
)
from dsv4check.doctor.looks import Looks
from dsv4check.doctor.public import hidden_values, with_hidden
from dsv4check.doctor.records import DoctorReport, DoctorRequest, FingerprintAnswer
from dsv4check.errors import InputError
from dsv4check.host.records import Observation, State

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.host.gpus import GpuSeen
    from dsv4check.host.interpreter import InterpreterFacts
    from dsv4check.installation.build_facts import BuildFacts
    from dsv4check.installation.fingerprint import Answer, Fingerprint
    from dsv4check.installation.tree import VllmTree
    from dsv4check.releases.facts import ReleaseFacts
    from dsv4check.report.model import Report

_NO_GPUS: Final[tuple[list[Observation], list[GpuSeen]]] = ([], [])
_MORE_PACKAGES: Final = ("deep-ep", "nixl", "lmcache", "mooncake-transfer-engine", "nvidia-nvshmem-cu13")
"""Packages that launches name or rules ask for, beside those that every look asks for."""
_VISIBLE: Final = "variable-cuda-visible-devices"


def examine(
    request: DoctorRequest,
    *,
    say: Say | None = None,
    looks: Looks | None = None,
    env: Mapping[str, str] | None = None,
) -> DoctorReport:
    """Look at the build, the machine and, where there is one, the launch.

    Args:
        request: What is looked at.
        say: Told what is being done.
        looks: Where the parts come from; this machine by default.
        env: The environment that a server started here would get; this process's by default.

    Raises:
        InputError: The launch, or a path that was named, cannot be used.
    """
    return _Examination(request, say, looks or Looks(), os.environ if env is None else env).report()


class _Examination:
    """The parts in order, each with what the parts before it found."""

    def __init__(self, asked: DoctorRequest, say: Say | None, looks: Looks, process: Mapping[str, str]) -> None:
        self._asked = asked
        self._looks = looks
        self._process = process
        self._guard = Guard(say)
        # First what may be unusable: nobody waits for that.
        _refuse_blank(asked)
        self._launch = read_launch(asked)
        self._rules = _rules(asked)
        self._env = server_environment(process, self._launch)
        self._tree, self._no_tree = self._find()
        self._readable = True
        self._facts: BuildFacts | None = None
        self._gpus: list[GpuSeen] = []
        self._interpreter: InterpreterFacts | None = None

    def report(self) -> DoctorReport:
        """Everything."""
        run, looks, tree = self._guard.run, self._looks, self._tree
        questions: list[tuple[Fingerprint, Answer]] = []
        odd = None if tree is None else run("vLLM's files", "build", lambda: looks.odd_file(tree), None)
        if tree is not None and odd is not None:
            why = f"{odd}: nothing of the tree was read."
            self._guard.observations.append(_unknown("build-files", "build", "vLLM's code", why))
            self._readable = False
        elif tree is not None:
            self._facts = run("vLLM's code", "build", lambda: looks.build(tree), None)
            questions = run("fingerprints", "fingerprints", lambda: looks.fingerprints(tree), questions)
        nearest = self._release()
        seen, self._gpus = run(
            "GPUs",
            "gpu",
            lambda: looks.gpus(self._whole_env(), self._release(), utilization_of(self._launch)),
            _NO_GPUS,
        )
        packages = self._look_at_packages()
        kernels = self._look_at_kernels()
        seen = [*seen, *self._look_at_driver(kernels), *packages, *kernels]
        report = run("launch", "launch", self._check, None, passing=(InputError,))
        seen += run("limits", "limits", lambda: looks.limits(report, self._gpus, self._whole_env()), [])
        seen += self._look_at_variables(report, {item.id for item in seen})
        answers: tuple[FingerprintAnswer, ...] = ()
        answers = run("comparison", "fingerprints", lambda: fingerprint_answers(questions, nearest), answers)
        return DoctorReport(
            build=build_answer(tree, self._no_tree, self._facts),
            fingerprints=answers,
            machine=machine_answer(self._gpus, self._interpreter, self._env),
            observations=tuple(map(anonymous, [*seen, *self._guard.observations])),
            launch=None if report is None else with_hidden(report.to_dict(), hidden_values(self._added())),
            report=report,
            notes=tuple(self._notes()),
            tool_version=__version__,
        )

    def _find(self) -> tuple[VllmTree | None, str]:
        """The tree, or why there is none. Raises InputError where a path was named that is not there."""
        asked = self._asked

        def find() -> VllmTree | str:
            return self._looks.tree(asked.vllm_path, asked.python)

        failed: VllmTree | str = "looking for it failed"
        found = self._guard.run("vLLM", "build", find, failed, passing=(InputError,))
        return (None, found) if isinstance(found, str) else (found, "")

    def _release(self) -> str | None:
        """The release that pins and variables are compared with; None without any hint of one."""
        if self._facts is not None and self._facts.learned:
            return self._facts.nearest
        from dsv4check.inputs.vllm_version import resolve_vllm

        stated = self._asked.vllm or (None if self._tree is None else self._tree.version)
        try:
            return None if stated is None else resolve_vllm(stated).release
        except InputError:
            return None

    def _release_facts(self) -> ReleaseFacts | None:
        from dsv4check.releases.facts import load_facts

        release = self._release()
        if release is None:
            return None
        own = self._facts
        return load_facts(release) if own is None or not own.learned else own.over(release)

    def _added(self) -> dict[str, str]:
        """Variables of this machine that the launch does not set."""
        own = {} if self._launch is None else {**self._launch.command.env, **self._launch.env}
        return {name: value for name, value in server_environment(self._process, None).items() if name not in own}

    def _whole_env(self) -> dict[str, str]:
        return {**self._process, **self._env}

    def _look_at_packages(self) -> list[Observation]:
        asked, looks = self._asked, self._looks
        python = asked.python or (None if self._tree is None else self._tree.python)
        if python is None and self._tree is not None:
            why = "The tree belongs to no Python, so what is installed beside it is not known."
            return [_unknown("packages", "packages", "packages beside vLLM", why, "name its Python (--python)")]

        def ask() -> InterpreterFacts | str:
            return looks.interpreter(python, _MORE_PACKAGES)

        found = self._guard.run("installed packages", "packages", ask, None)
        if found is None:
            return []
        if isinstance(found, str):
            return [_unknown("packages", "packages", "installed packages", found)]
        self._interpreter = found

        def compare() -> list[Observation]:
            facts = self._release_facts()
            pins = {} if facts is None else facts.section("pins")
            return looks.packages(found, pins, wanted_packages(self._launch), self._whole_env())

        return self._guard.run("packages", "packages", compare, [])

    def _look_at_kernels(self) -> list[Observation]:
        tree = self._tree
        if tree is None:
            return []
        capability = hardware_of(self._gpus, self._launch, self._asked).capability

        def look() -> list[Observation]:
            return self._looks.extensions(tree.package, capability, self._whole_env())

        return self._guard.run("compiled extensions", "extensions", look, [])

    def _look_at_driver(self, kernels: Sequence[Observation]) -> list[Observation]:
        torch = None if self._interpreter is None or self._interpreter.torch is None else self._interpreter.torch.cuda
        version = None if self._tree is None else self._tree.version
        majors = next((item.data.get("cuda_majors") for item in kernels if item.id == "extensions-cuda-runtime"), None)
        cudart = f"libcudart.so.{majors[0]}" if isinstance(majors, list) and len(majors) == 1 else None

        def look() -> list[Observation]:
            return self._looks.driver(torch, version, cudart, self._whole_env())

        return self._guard.run("driver", "driver", look, [])

    def _look_at_variables(self, report: Report | None, said: Collection[str]) -> list[Observation]:
        def look() -> list[Observation]:
            tree = self._tree if self._readable else None
            return self._looks.variables(self._whole_env(), self._release_facts(), tree, report)

        nothing: list[Observation] = []
        found = self._guard.run("variables", "environment", look, nothing)
        # The GPUs that it leaves were listed with the GPUs.
        return [item for item in found if not (item.id == _VISIBLE and "gpu-visible" in said)]

    def _check(self) -> Report | None:
        if self._launch is None:
            return None
        beside = self._interpreter
        found = {} if beside is None else {name: beside.installed(name) for name in beside.distributions}
        return check_launch(
            self._launch,
            self._asked,
            self._rules,
            tree=self._tree,
            facts=self._facts,
            gpus=self._gpus,
            packages={name: version for name, version in found.items() if version is not None and name != "vllm"},
            process=self._process,
        )

    def _notes(self) -> list[str]:
        asked, tree = self._asked, self._tree
        if asked.vllm is None or tree is None or tree.version is None or tree.version == asked.vllm:
            return []
        return [f"--vllm {asked.vllm}: the tree says that it is {tree.version}; its own code counts"]


def _refuse_blank(asked: DoctorRequest) -> None:
    """A variable of a script that is not set must not turn into a look at something else. Raises InputError."""
    for option, value in (("--vllm-path", asked.vllm_path), ("--python", asked.python)):
        if value is not None and not value.strip():
            raise InputError(f"{option}: expected a path, got an empty text")


def _rules(asked: DoctorRequest) -> tuple[Rule, ...]:
    if asked.command is None:
        return ()
    from dsv4check.engine.rule import load_rules

    return load_rules(asked.rules)


def _unknown(id_: str, area: str, what: str, why: str, advice: str = "") -> Observation:
    return Observation(id_, area, State.UNKNOWN, what, why=why, advice=advice)
