"""One call of the gate: what was named is found and checked, and fixes are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dsv4check.gate.file_check import FileChecker, FileResult
from dsv4check.gate.fix import diff_of, fix_source
from dsv4check.gate.reading import MAX_BYTES, read_source, source_from_bytes
from dsv4check.gate.records import FileProblem, GateReport
from dsv4check.gate.run import Progress, check_files, report_of
from dsv4check.gate.walk import candidates
from dsv4check.gate.writing import replace_file
from dsv4check.records import dataclass, field

Bar = Callable[[int], AbstractContextManager[Progress]]
"""Shows how far the work on so many files is."""


@dataclass(slots=True)
class Changes:
    """What ``--fix`` did, or would do."""

    diff: str = ""
    said: list[str] = field(default_factory=list)
    """A line for every change, and for every one that was not made, with the reason."""


class Session:
    """Checks files and folders, and changes the files that were checked.

    ``text`` is what stands on standard input with the name it has in reports, where that is to be checked, too.
    """

    def __init__(
        self,
        checker: FileChecker,
        paths: Sequence[str],
        *,
        text: tuple[str, bytes] | None = None,
        exclude: Sequence[str] = (),
        respect_git: bool = True,
        jobs: int = 1,
    ) -> None:
        self._checker = checker
        self._paths = paths
        self._text = text
        self._exclude = exclude
        self._respect_git = respect_git
        self._jobs = jobs
        self._files: dict[str, Path] = {}

    @property
    def looked(self) -> frozenset[str]:
        """The files that were looked at, as reports call them."""
        return frozenset(self._files)

    def check(self, *, allow_none: bool, bar: Bar = lambda _total: nullcontext(lambda _done: None)) -> GateReport:
        """Find and check; without ``allow_none`` a file that was named and holds no launch is a problem."""
        settings = self._checker.settings
        found = candidates(
            self._paths,
            root=self._checker.root,
            exclude=self._exclude,
            excluded=settings.excludes,
            respect_git=self._respect_git,
        )
        self._files = {item.shown: item.path for item in found.files}
        with bar(len(found.files)) as progress:
            results = check_files(found.files, self._checker, jobs=self._jobs, progress=progress)
        named = {item.shown for item in found.files if item.explicit}
        if self._text is not None:
            results.append(self._of_text(*self._text))
            named.add(results[-1].shown)
        for result in results:
            if result.shown in named and not result.launches and not result.problems and not allow_none:
                result.problems.append(FileProblem(result.shown, 0, "no launch in it"))
        around = (settings.folder, *settings.folder.parents)
        return report_of(
            results,
            self._checker,
            problems=found.problems,
            notes=found.notes,
            files=len(results),
            complete=any(Path(os.path.realpath(path)) in around for path in self._paths),
        )

    def fix(self, report: GateReport, rank: int, *, write: bool) -> Changes:
        """Change, or with ``write`` False only work out, what fixes findings of at least ``rank``.

        Raises InputError when a file cannot be written.
        """
        wanted = [
            finding
            for finding in report.findings
            if finding.active and finding.severity.rank >= rank and finding.fixes and finding.path in self._files
        ]
        fingerprints = {finding.fingerprint for finding in wanted}
        changes = Changes()
        for shown in sorted({finding.path for finding in wanted}):
            path = self._files[shown]
            source = read_source(path, shown)
            if isinstance(source, FileProblem):
                continue
            outcome = fix_source(source, path, self._checker, fingerprints)
            changes.said += [f"fixed {line}" for line in outcome.applied] if write else []
            changes.said += outcome.refused
            if outcome.source is source:
                continue
            changes.diff += diff_of(source, outcome.source)
            if write:
                replace_file(path, outcome.source.encode())
        return changes

    def _of_text(self, name: str, data: bytes) -> FileResult:
        if len(data) > MAX_BYTES:
            return FileResult(name, problems=[FileProblem(name, 0, f"larger than {MAX_BYTES >> 20} MiB; not read")])
        source = source_from_bytes(data, name)
        if isinstance(source, FileProblem):
            return FileResult(name, problems=[source])
        return self._checker.check_text(source, None)
