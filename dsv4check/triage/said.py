"""What the user says about the launch of a log: it wins over what the log states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.records import dataclass, field
from dsv4check.triage.records import Fact, Stated


@dataclass(frozen=True, slots=True)
class SaidByUser:
    """Options of ``dsv4check triage``; None and empty ones leave it to the log."""

    vllm: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpu_memory_gib: float | None = None
    model: str | None = None
    model_config: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises InputError for a version or a GPU that cannot be used: an option is not passed over like a log's."""
        if self.vllm is not None:
            resolve_vllm(self.vllm)
        if self.gpu is not None or self._counts:
            # The counts are looked at with any GPU: this machine's driver is never asked.
            resolve_gpu(self.gpu or "H200", **self._counts)

    @property
    def _counts(self) -> dict[str, Any]:
        counts = {"gpus": self.gpus, "nodes": self.nodes, "memory_gib": self.gpu_memory_gib}
        return {name: value for name, value in counts.items() if value is not None}

    def over(self, stated: Stated) -> Stated:
        """The launch with the options in place of what the log says. Raises InputError as ``check``."""
        self.check()
        given = {
            name: value
            for name in ("vllm", "gpu", "gpus", "nodes", "gpu_memory_gib", "model")
            if (value := getattr(self, name)) is not None
        }
        if self.gpu is not None and self.gpus is None and (counted := resolve_gpu(self.gpu).gpus_per_node) is not None:
            given["gpus"] = counted
        facts = [Fact(name, str(value), "option") for name, value in given.items()]
        facts += [Fact(f"package {name}", value, "option") for name, value in self.packages.items()]
        facts += [Fact(f"env {name}", value, "option") for name, value in self.env.items()]
        answered = [f"(--{name.replace('_', '-')})" for name in given]
        if self.model_config is not None:
            answered.append("(--model)")
        return replace(
            stated,
            **given,
            facts=(*facts, *(fact for fact in stated.facts if fact.name not in {item.name for item in facts})),
            packages={**stated.packages, **self.packages},
            env={**stated.env, **self.env},
            missing=tuple(text for text in stated.missing if not any(option in text for option in answered)),
        )
