"""The process' own limits (``ulimit``) and the container's limit of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsv4check.records import dataclass

from .cgroups import Cgroup
from .records import Observation, State

LimitOf = Callable[[str], tuple[int, int] | None]
"""Soft and hard limit by name (``RLIMIT_NOFILE``), -1 for unlimited; None when the system has no such limit."""
_FILES_WANTED: Final = 65_535
"""vLLM raises its soft limit to this number, or leaves it where the hard limit is lower."""
_FILES_LEAST: Final = 4_096
_TASKS_LEAST: Final = 4_096
_STACK_LEAST: Final = 1 << 20
_MEMLOCK_LEAST: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class _Verdict:
    state: State
    why: str = ""
    advice: str = ""


_FINE: Final = _Verdict(State.OK)


def limit_of(name: str) -> tuple[int, int] | None:
    """Asks the system."""
    try:
        import resource
    except ImportError:
        return None
    number = getattr(resource, name, None)
    if number is None:
        return None
    soft, hard = resource.getrlimit(number)
    return _plain(soft, resource.RLIM_INFINITY), _plain(hard, resource.RLIM_INFINITY)


def look_at_ulimits(limit: LimitOf, cgroup: Cgroup) -> list[Observation]:
    """Open files, processes, locked memory and stack."""
    found = [
        _look(limit, "RLIMIT_NOFILE", "nofile", "open files", _files, f"hard limit {_FILES_WANTED} or more"),
        _look(limit, "RLIMIT_NPROC", "nproc", "processes and threads of this user", _tasks, ""),
        _look(limit, "RLIMIT_MEMLOCK", "memlock", "locked memory", _locked, ""),
        _look(limit, "RLIMIT_STACK", "stack", "stack size", _stack, ""),
    ]
    if cgroup.tasks is not None:
        allowed = int(cgroup.tasks.value)
        verdict = _tasks(allowed, allowed)
        found.append(
            Observation(
                id="limit-cgroup-pids",
                area="limits",
                state=verdict.state,
                what="processes and threads of the container",
                found=str(allowed),
                why=verdict.why,
                advice="Start the container with `--pids-limit -1`." if verdict.why else "",
                source=cgroup.tasks.source,
                data={"limit": allowed},
            )
        )
    return found


def _look(
    limit: LimitOf, name: str, short: str, what: str, judge: Callable[[int, int], _Verdict], wanted: str
) -> Observation:
    pair = limit(name)
    identifier, source = f"limit-{short}", f"getrlimit({name})"
    if pair is None:
        why = "This system does not have the limit."
        return Observation(identifier, "limits", State.UNKNOWN, what, why=why, source=source)
    soft, hard = pair
    verdict = judge(soft, hard)
    return Observation(
        id=identifier,
        area="limits",
        state=verdict.state,
        what=what,
        found=f"{_shown(soft)} (hard limit {_shown(hard)})",
        wanted=wanted,
        why=verdict.why,
        advice=verdict.advice,
        source=source,
        data={"soft": soft if soft >= 0 else None, "hard": hard if hard >= 0 else None},
    )


def _files(soft: int, hard: int) -> _Verdict:
    advice = "Raise it: `ulimit -n 1048576`, docker: `--ulimit nofile=1048576`."
    raised = hard < 0 or hard >= _FILES_WANTED
    if not raised and 0 <= soft < _FILES_LEAST:
        why = "vLLM raises the limit only where the hard limit allows all of it. "
        why += 'Sockets, shards and libraries of every process count: "Too many open files" is near.'
        return _Verdict(State.WARNING, why, advice)
    if not raised and 0 <= soft < _FILES_WANTED:
        why = (
            f"vLLM asks for {_FILES_WANTED} and cannot have them; it warns, and many connections may end with an error."
        )
        return _Verdict(State.NOTE, why, advice)
    return _FINE


def _tasks(soft: int, _hard: int) -> _Verdict:
    if 0 <= soft < _TASKS_LEAST:
        why = 'Every process of a launch starts hundreds of threads: "can\'t start new thread" is near.'
        return _Verdict(State.WARNING, why, "Raise it: `ulimit -u unlimited`.")
    return _FINE


def _locked(soft: int, _hard: int) -> _Verdict:
    if 0 <= soft < _MEMLOCK_LEAST:
        why = "RDMA (NCCL over InfiniBand, NIXL, Mooncake, DeepEP between nodes) must lock memory and is refused: "
        why += '"Cannot allocate memory" from ibv_reg_mr. A launch on one machine without a connector does not need it.'
        return _Verdict(State.NOTE, why, "For RDMA: `ulimit -l unlimited`, docker: `--ulimit memlock=-1`.")
    return _FINE


def _stack(soft: int, _hard: int) -> _Verdict:
    if 0 <= soft < _STACK_LEAST:
        why = "Compilers called at start (ptxas, nvcc, Inductor's) need some MiB of stack and crash with less."
        return _Verdict(State.WARNING, why, "Raise it: `ulimit -s 8192`.")
    return _FINE


def _plain(value: int, infinity: int) -> int:
    return -1 if value == infinity or value < 0 else value


def _shown(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
