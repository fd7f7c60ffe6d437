"""A launch as the log writer needs it: what the checker worked out, and the processes that vLLM starts for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from dsv4check.report.model import Report
from tests.launches import run_launch
from tests.triage.log_table import table

GPU_NAMES: Mapping[str, str] = {
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "H20": "NVIDIA H20",
    "H800": "NVIDIA H800",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "A100": "NVIDIA A100-SXM4-80GB",
    "B200": "NVIDIA B200",
    "B300": "NVIDIA B300 SXM6 AC",
    "GB200": "NVIDIA GB200",
    "GB300": "NVIDIA GB300",
    "GB10": "NVIDIA GB10",
    "RTX-PRO-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "RTX-5090": "NVIDIA GeForce RTX 5090",
    "RTX-4090": "NVIDIA GeForce RTX 4090",
    "L20": "NVIDIA L20",
    "L40S": "NVIDIA L40S",
    "MI300X": "AMD Instinct MI300X",
    "MI355X": "AMD Instinct MI355X",
}
MOST_RANKS = 8
"""Logs of larger launches show this many ranks: what is behind them says nothing new."""


@dataclass(frozen=True)
class Launch:
    """A launch in the mapping form of the rules' examples, checked once."""

    source: Mapping[str, Any]
    report: Report = field(repr=False)
    ranks: int = MOST_RANKS
    """Ranks that the log shows."""

    @cached_property
    def version(self) -> str:
        return str(self.source["vllm"])

    @cached_property
    def release(self) -> str:
        """The release whose recorded lines are used: for a build between releases, the nearest one."""
        release = self.report.deployment.vllm.release
        known: list[str] = table()["releases"]
        return release if release in known else known[-1]

    @cached_property
    def model(self) -> str:
        if self.source.get("checkpoint"):
            return "/models/DeepSeek-V4-Flash"
        return self.report.deployment.flags.model or str(self.source.get("model") or "deepseek-ai/DeepSeek-V4-Flash")

    @property
    def decorated(self) -> bool:
        """True where every line a process writes gets its name; from 0.31.0 on only the logger's lines have it."""
        known: list[str] = table()["releases"]
        return known.index(self.release) < known.index("0.31.0")

    def flag(self, dest: str, default: Any = None) -> Any:
        return self.report.deployment.flags.get(dest, default)

    def size(self, dest: str) -> int:
        value = self.flag(dest, 1)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1

    @cached_property
    def engines(self) -> tuple[str, ...]:
        data = min(self.size("data_parallel_size"), self.ranks)
        return ("EngineCore",) if data == 1 else tuple(f"EngineCore_DP{rank}" for rank in range(data))

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """The worker processes; none where the engine runs the model itself."""
        data, pipeline = self.size("data_parallel_size"), self.size("pipeline_parallel_size")
        tensor = self.size("tensor_parallel_size")
        if data * pipeline * tensor == 1:
            return ()
        expert = bool(self.flag("enable_expert_parallel"))
        names = []
        # The log of one node shows the ranks that run on it.
        here = self.hosted if self.size("nnodes") > 1 else self.ranks
        for rank in range(min(data * pipeline * tensor, self.ranks, here)):
            name = "Worker"
            name += f"_DP{rank // (pipeline * tensor)}" if data > 1 else ""
            name += f"_PP{rank // tensor % pipeline}" if pipeline > 1 else ""
            name += f"_TP{rank % tensor}" if tensor > 1 else ""
            name += f"_EP{rank}" if expert else ""
            names.append(name)
        return tuple(names)

    @cached_property
    def runners(self) -> tuple[str, ...]:
        """The processes that run the model."""
        return self.workers or self.engines

    @property
    def second_runner(self) -> bool:
        """True for vLLM's model runner V2."""
        runner = self.report.resolution.runner
        return runner is not None and runner.name == "v2"

    @property
    def vendor(self) -> str:
        return self.report.deployment.hardware.vendor or "nvidia"

    @cached_property
    def gpu_name(self) -> str:
        stated = str(self.report.deployment.hardware.name or self.source.get("gpu") or "NVIDIA H200")
        maker = {"amd": "AMD ", "intel": "Intel "}.get(self.vendor, "NVIDIA ")
        return GPU_NAMES.get(stated, stated if " " in stated else f"{maker}{stated.replace('-', ' ')}")

    @cached_property
    def gpu_count(self) -> int:
        return self.report.deployment.hardware.gpus_per_node or int(self.source.get("gpus") or len(self.runners))

    @cached_property
    def hosted(self) -> int:
        """GPUs of one node."""
        return self.report.deployment.hardware.gpus_per_node or int(self.source.get("gpus") or MOST_RANKS)

    @cached_property
    def memory_gib(self) -> float:
        memory = self.report.deployment.hardware.memory_mib
        return round((memory or 143771) * 0.9957 / 1024, 2)

    @property
    def env(self) -> dict[str, str]:
        return {name: str(value) for name, value in (self.source.get("env") or {}).items()}

    @property
    def words(self) -> list[str]:
        args = self.source.get("args", [])
        if isinstance(args, str):
            import shlex

            return shlex.split(args)
        return [str(word) for word in args]


def checked(launch: Mapping[str, Any], ranks: int = MOST_RANKS) -> Launch:
    """The launch with the checker's report; one that was checked before is not checked again."""
    text = json.dumps(launch, sort_keys=True, default=str)
    return Launch(json.loads(text), _report(text), ranks)


@cache
def _report(text: str) -> Report:
    return run_launch(json.loads(text))
