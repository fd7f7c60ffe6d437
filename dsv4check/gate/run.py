"""The whole gate: the files of a tree checked, several at a time, and put together into one report."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv4check.gate.file_check import FileChecker, FileResult
from dsv4check.gate.ignores import apply_configured
from dsv4check.gate.records import FileProblem, GateReport, LaunchResult
from dsv4check.gate.walk import Candidate
from dsv4check.records import dataclass

_FEW: Final = 48
"""Files for which starting processes costs more than they save."""
_CHUNK: Final = 16
INTERNAL_ERROR: Final = "internal error"
"""How a problem begins that is the gate's own fault."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Task:
    files: tuple[Candidate, ...]


def check_files(
    files: Sequence[Candidate], checker: FileChecker, *, jobs: int, progress: Progress = lambda _done: None
) -> list[FileResult]:
    """Check every file, in order; ``progress`` is told how many are done."""
    results: list[FileResult] = []
    for batch in _in_batches(files, checker, jobs):
        results += batch
        progress(len(results))
    return results


def report_of(
    results: Iterable[FileResult],
    checker: FileChecker,
    *,
    problems: Sequence[FileProblem] = (),
    notes: Sequence[str] = (),
    files: int = 1,
    complete: bool = True,
) -> GateReport:
    """One report of the results of files; ignores of the configuration are applied.

    ``complete``: all files that the configuration speaks of were looked at.
    """
    listed = list(results)
    used = {path for result in listed for path in result.config_files}
    launches = [launch for result in listed for launch in _own_launches(result, used, checker.root)]
    launches.sort(key=lambda item: (item.path, item.region.line, item.region.column))
    own = [item for result in listed for item in result.own]
    settings = checker.settings
    if settings.ignores:
        launches, unused = apply_configured(launches, settings, rules=checker.rule_names, complete=complete)
        own += unused
    own.sort(key=lambda item: (item.path, item.region.line, item.rule))
    met = [*problems, *(item for result in listed for item in result.problems)]
    met.sort(key=lambda item: (item.path, item.line))
    return GateReport(
        launches=tuple(launches),
        problems=tuple(met),
        own=tuple(own),
        files=files,
        notes=(*settings.notes, *notes),
    )


def _own_launches(result: FileResult, used: set[str], root: Path) -> Iterator[LaunchResult]:
    """A file's launches, without a ``--config`` file that a launch of another file reads: it was checked with that."""
    for launch in result.launches:
        if launch.format == "vllm-config" and os.path.realpath(root / result.shown) in used:
            continue
        yield launch


def _in_batches(files: Sequence[Candidate], checker: FileChecker, jobs: int) -> Iterator[list[FileResult]]:
    tasks = [_Task(tuple(files[at : at + _CHUNK])) for at in range(0, len(files), _CHUNK)]
    if jobs <= 1 or len(files) < _FEW:
        for task in tasks:
            yield _check(task, checker)
        return
    # Forked processes have the rules already; elsewhere each one loads them for itself.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(checker,)) as pool:
        yield from pool.map(_check_in_process, tasks)


_checker: FileChecker | None = None


def _start(checker: FileChecker) -> None:
    global _checker
    _checker = checker


def _check_in_process(task: _Task) -> list[FileResult]:
    assert _checker is not None
    return _check(task, _checker)


def _check(task: _Task, checker: FileChecker) -> list[FileResult]:
    results = []
    for item in task.files:
        result = _check_one(item, checker)
        # Nothing but the report is kept: a corrected command taken apart would hold secrets.
        result.launches = [_bare(launch) for launch in result.launches]
        results.append(result)
    return results


def _check_one(item: Candidate, checker: FileChecker) -> FileResult:
    """The result of one file; a fault of the gate itself loses no other one."""
    try:
        return checker.check_file(item.path, item.shown, explicit=item.explicit)
    except Exception as error:
        if os.environ.get("DSV4CHECK_DEBUG"):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        why = f"{INTERNAL_ERROR} ({text}); please report it with the file, DSV4CHECK_DEBUG=1 shows where"
        return FileResult(item.shown, problems=[FileProblem(item.shown, 0, why)])


def _bare(launch: LaunchResult) -> LaunchResult:
    findings = tuple(
        replace(item, fixes=tuple(replace(fix, edited=None) for fix in item.fixes)) for item in launch.findings
    )
    return replace(launch, findings=findings)
