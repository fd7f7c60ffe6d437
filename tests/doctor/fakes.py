"""A machine and a build that a test describes, in the place of this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4check.doctor.looks import Looks
from dsv4check.host.gpus import GpuSeen
from dsv4check.host.interpreter import Distribution, InterpreterFacts, TorchBuild
from dsv4check.host.records import Observation, State
from dsv4check.installation.build_facts import BuildFacts, Difference
from dsv4check.installation.code_answers import TreeCode
from dsv4check.installation.fingerprint import Answer, Fingerprint, Quote
from dsv4check.installation.tree import VllmTree
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.report.model import Report

QUOTE = Quote("vllm/models/deepseek_v4/attention.py", 79, 'assert kv_cache_dtype.startswith("fp8"), (')


def unread(_source: object) -> Answer:
    raise AssertionError("the fake answers")


def question(id_: str, good: frozenset[str] = frozenset({"fixed"}), rules: tuple[str, ...] = ()) -> Fingerprint:
    return Fingerprint(id_, f"What about {id_}?", {}, unread, ("vllm#1",), good, rules)


AUTO = question("auto-kv-cache-dtype", frozenset({"fp8"}), ("KV001",))
OTHER = question("other-question", frozenset({"fixed"}), ("KV009",))
OPEN = question("open-question")

H200 = GpuSeen(0, "NVIDIA H200", (9, 0), 143771, 143000, False, True, "GPU-00000000-1111-2222-3333-444444444444")
PACKAGES = {"torch": "2.11.0+cu130", "flashinfer-python": "0.6.8", "triton": "3.6.0", "vllm": "0.24.0"}


def tree_of(folder: Path, version: str | None = "0.24.0") -> VllmTree:
    package = folder / "vllm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    return VllmTree(
        package, version, "vllm/_version.py:1", "abc1234", "vllm/_version.py:2", "this Python", "/py/bin/python"
    )


class FakeLooks(Looks):
    """Everything is in order; what a test wants otherwise it passes, and ``failing`` parts raise."""

    def __init__(
        self,
        tree: VllmTree | str,
        *,
        gpus: int = 8,
        differs: tuple[Difference, ...] = (),
        failing: Collection[str] = (),
        seen: Mapping[str, list[Observation]] | None = None,
    ) -> None:
        super().__init__()
        self.found = tree
        self.count = gpus
        self.differs = differs
        self.failing = failing
        self.seen = seen or {}
        self.told: dict[str, Any] = {}
        """What parts were asked with."""

    def _may_fail(self, part: str) -> None:
        if part in self.failing:
            raise ZeroDivisionError(f"{part} broke\nin two lines")

    def _observed(self, part: str, area: str, found: str = "all right") -> list[Observation]:
        self._may_fail(part)
        return self.seen.get(part, [Observation(f"{part}-one", area, State.OK, part, found)])

    def tree(self, vllm_path: str | None, python: str | None) -> VllmTree | str:
        self._may_fail("tree")
        return self.found

    def build(self, tree: VllmTree) -> BuildFacts:
        self._may_fail("build")
        return BuildFacts(
            tree, {"kv_cache": {}}, {"moe": "not by reading"}, "0.24.0", self.differs, TreeCode(tree.source)
        )

    def fingerprints(self, tree: VllmTree) -> list[tuple[Fingerprint, Answer]]:
        self._may_fail("fingerprints")
        return [
            (OTHER, Answer("fixed", "It is fixed.", ())),
            (AUTO, Answer("refused", "It is refused.", (QUOTE,))),
            (OPEN, Answer(None, "", (), "the function is gone")),
        ]

    def gpus(
        self, env: Mapping[str, str], release: str | None, utilization: float | None
    ) -> tuple[list[Observation], list[GpuSeen]]:
        self.told["gpus"] = (dict(env), release)
        self.told["utilization"] = utilization
        data = {"uuid": H200.uuid, "sm": "9.0"}
        observed = [Observation("gpu-0", "gpu", State.OK, "GPU 0", "NVIDIA H200, SM 9.0", data=data)]
        self._may_fail("gpus")
        return self.seen.get("gpus", observed), [H200] * self.count

    def interpreter(self, python: str | None, more: Collection[str]) -> InterpreterFacts | str:
        self.told["interpreter"] = python
        self._may_fail("interpreter")
        found = {name: (Distribution(name, version, "/py"),) for name, version in PACKAGES.items()}
        torch = TorchBuild("2.11.0+cu130", "13.0", None, None, "/py/torch/version.py")
        return InterpreterFacts("3.12.3", "cpython", "/py/bin/python", "/py", found, {}, torch)

    def packages(
        self, facts: InterpreterFacts, pins: Mapping[str, Any], extras: Collection[str], env: Mapping[str, str]
    ) -> list[Observation]:
        self.told["packages"] = (dict(pins), tuple(extras))
        return self._observed("packages", "packages")

    def extensions(
        self, package: Path, capability: tuple[int, int] | None, env: Mapping[str, str]
    ) -> list[Observation]:
        self.told["extensions"] = capability
        self._may_fail("extensions")
        data = {"cuda_majors": [13]}
        runtime = Observation("extensions-cuda-runtime", "extensions", State.OK, "CUDA runtime", "libcudart", data=data)
        return self.seen.get("extensions", [runtime])

    def driver(
        self, torch_cuda: str | None, version: str | None, needs_cudart: str | None, env: Mapping[str, str]
    ) -> list[Observation]:
        self.told["driver"] = (torch_cuda, version, needs_cudart)
        return self._observed("driver", "driver", "driver 580.95.05, CUDA 13.0")

    def limits(self, report: Report | None, gpus: Sequence[GpuSeen], env: Mapping[str, str]) -> list[Observation]:
        self.told["limits"] = None if report is None else report.deployment.model.name
        return self._observed("limits", "limits")

    def variables(
        self, env: Mapping[str, str], facts: ReleaseFacts | None, tree: VllmTree | None, report: Report | None
    ) -> list[Observation]:
        self.told["variables"] = (dict(env), None if facts is None else facts.version)
        return self._observed("variables", "environment")
