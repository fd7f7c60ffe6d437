"""What the user says about the launch of a log: it wins over what the log states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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

    def over(self, stated: Stated) -> Stated:
        """The launch with the options in place of what the log says."""
        given = {
            name: value
            for name in ("vllm", "gpu", "gpus", "nodes", "gpu_memory_gib", "model")
            if (value := getattr(self, name)) is not None
        }
        facts = [Fact(name, str(value), "option") for name, value in given.items()]
        facts += [Fact(f"package {name}", value, "option") for name, value in self.packages.items()]
        facts += [Fact(f"env {name}", value, "option") for name, value in self.env.items()]
        return replace(
            stated,
            **given,
            facts=(*facts, *(fact for fact in stated.facts if fact.name not in {item.name for item in facts})),
            packages={**stated.packages, **self.packages},
            env={**stated.env, **self.env},
            missing=tuple(text for text in stated.missing),
        )
