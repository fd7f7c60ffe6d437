"""Every KV dtype x attention backend x compute capability of a release, resolved."""

from __future__ import annotations

from typing import Final

from dsv4check.deployment import Command, Deployment, Hardware, ServeFlags, VllmBuild
from dsv4check.inputs.model import load_model
from dsv4check.problems import Origin, Problem
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts, load_facts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.attention import resolve_attention
from dsv4check.resolve.kv_dtype import resolve_kv_dtype

SM_MAJORS: Final = (8, 9, 10, 11, 12)
UNSET: Final = "(unset)"
OTHER: Final = "(any other)"
# Kernels of the packed FlashMLA path exist for these; every other one passes Python and stops in a kernel.
_FLASHMLA_SM: Final = (9, 10)
_MODEL: Final = "deepseek-ai/DeepSeek-V4-Flash"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    sm_major: int
    backend: str
    dtype: str
    cls: str | None
    resolved: str | None
    torch_dtype: str | None
    problem: Problem | None
    """What refuses the combination (with an exception)."""
    remark: str = ""
    """What is odd about an accepted combination."""


def matrix_cells(release: str) -> list[Cell]:
    """All cells of a release, ordered by SM, backend and dtype. Raises InputError for an unknown release."""
    facts = load_facts(release)
    every_dtype = dict.fromkeys(name for name in facts.section("kv_cache")["choices"])
    return [
        resolve_cell(facts, sm_major, backend, dtype)
        for sm_major in SM_MAJORS
        for backend in backends(facts)
        for dtype in every_dtype
    ]


def backends(facts: ReleaseFacts) -> tuple[str, ...]:
    """Backend options that make a difference, with ``(unset)`` first and ``(any other)`` last."""
    attention = facts.section("attention")
    return (UNSET, *attention["named"], *attention["refused"]["names"], OTHER)


def resolve_cell(facts: ReleaseFacts, sm_major: int, backend: str, dtype: str) -> Cell:
    """Resolve one combination for the target layers of an official checkpoint."""
    option = {UNSET: None, OTHER: "FLASH_ATTN"}.get(backend, backend)
    deployment = _deployment(facts, sm_major, option, dtype)
    attention, found = resolve_attention(deployment, facts, _ONE_RANK)
    kv = resolve_kv_dtype(deployment, facts, attention)
    problems = [*found, *kv.problems]
    raised = [problem for problem in problems if problem.exception]
    first = min(raised, key=lambda problem: problem.stage.order, default=None)
    remarks = [_remark(problem) for problem in problems if not problem.exception]
    if first is None and attention.cls and attention.layout == "plain" and sm_major != 10:
        remarks.append("no kernel for this GPU")
    if first is None and attention.backend and "FLASHMLA" in attention.backend and sm_major not in _FLASHMLA_SM:
        remarks.append("no kernel for this GPU")
    return Cell(
        sm_major,
        backend,
        dtype,
        attention.cls if first is None else None,
        kv.resolved if first is None else None,
        kv.torch_dtype if first is None else None,
        first,
        "; ".join(remarks),
    )


_ONE_RANK: Final = Parallelism(1, 1, 1, 1, 1, False, 1, 1, 1, 64, 8)


def _deployment(facts: ReleaseFacts, sm_major: int, backend: str | None, dtype: str) -> Deployment:
    values = {"kv_cache_dtype": dtype}
    if backend is not None:
        values["attention_backend"] = backend
    flags = ServeFlags(model=_MODEL, values=values)
    return Deployment(
        command=Command((), ()),
        flags=flags,
        env={},
        hardware=Hardware(vendor="nvidia", capability=(sm_major, 0)),
        vllm=VllmBuild(facts.version, "release", facts.version, Origin("option")),
        model=load_model(_MODEL, flags=ServeFlags(model=_MODEL), release=facts.version),
    )


def _remark(problem: Problem) -> str:
    match problem.code:
        case "kv-dtype-stored-otherwise":
            return f"stored as {problem.data['stored']}"
        case "packed-dtype-on-plain-rows":
            return "fails at the first forward pass"
        case "attention-backend-ignored":
            return "backend ignored"
        case _:
            return problem.code
