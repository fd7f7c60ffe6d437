"""One file: read, its launches found and checked, comments that speak to the gate applied."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv4check.gate.baseline import fingerprint
from dsv4check.gate.directives import Directives, parse_directives
from dsv4check.gate.ignores import apply_ignores, directive_findings, facts_at
from dsv4check.gate.judge import Judge, Judged
from dsv4check.gate.reading import MAX_BYTES, read_source
from dsv4check.gate.records import FileProblem, GateFinding, LaunchResult
from dsv4check.gate.settings import Settings
from dsv4check.launchfiles.extract import MARKS, extract
from dsv4check.launchfiles.records import Context, Launch
from dsv4check.launchfiles.text import SourceText
from dsv4check.records import dataclass, field

_NEIGHBOUR_LIMIT: Final = 1 << 20
_PIECE: Final = 1 << 20
_MOST_SEARCHED: Final = 1 << 30
"""Bytes of a file that are searched for a word of vLLM, to tell whether its being unreadable matters."""


@dataclass(slots=True)
class FileResult:
    """What one file holds."""

    shown: str
    launches: list[LaunchResult] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)
    own: list[GateFinding] = field(default_factory=list)
    config_files: list[str] = field(default_factory=list)
    """``--config`` files that its launches name and that were found, by their real paths."""


@dataclass(slots=True)
class Checked:
    """A file's launches with what ``--fix`` needs of them."""

    launches: list[Launch]
    judged: list[Judged]
    context: Context
    config_files: list[str]


@dataclass(frozen=True, slots=True)
class FileChecker:
    """Checks files with the same rules, options and configuration."""

    judge: Judge
    settings: Settings
    root: Path
    """The current folder; nothing outside it, or outside the repository around it, is read for a file that names it."""
    rule_names: Mapping[str, str]

    def check_file(self, path: Path, shown: str, *, explicit: bool) -> FileResult:
        """Read and check a file; an unreadable one without a sign of vLLM is passed over unless it was named."""
        source = read_source(path, shown)
        if isinstance(source, FileProblem):
            relevant = explicit or mentions_vllm(path)
            return FileResult(shown, problems=[source] if relevant else [])
        return self.check_text(source, path)

    def check_text(self, source: SourceText, path: Path | None) -> FileResult:
        """Check a text; ``path`` is where it lies, None for standard input."""
        result = FileResult(source.path)
        if not MARKS.search(source.text):
            return result
        directives = parse_directives(source)
        checked = self.launches(source, path, directives)
        heads = [_head_lines(launch, source) for launch in checked.launches]
        result.config_files = checked.config_files
        results = [item.result for item in checked.judged]
        result.launches, own = apply_ignores(
            results, heads, directives.ignores, path=source.path, rules=self.rule_names
        )
        result.own = [*own, *directive_findings(directives, heads, path=source.path)]
        result.problems = [
            FileProblem(source.path, item.line, item.why, item.skipped) for item in checked.context.problems
        ]
        return result

    def launches(self, source: SourceText, path: Path | None, directives: Directives) -> Checked:
        """The launches of a text and the answers."""
        found: list[str] = []
        configured = self.settings.facts_for(source.path)
        context = Context(
            source,
            {**configured.env, **self.judge.options.env},
            _neighbour(path or self.root / source.path, self.root, found.append),
        )
        extraction = extract(context)
        context.problems[:] = extraction.problems
        before = len(found)
        judged = []
        for launch in extraction.launches:
            assigned = facts_at(directives, _head_lines(launch, source))
            comment = {name.replace("-", "_"): value for name, value in assigned.facts.items()}
            answer = self.judge.judge(launch, context, configured, comment, assigned.skip)
            answer.result = _fingerprinted(answer.result)
            judged.append(answer)
        return Checked(list(extraction.launches), judged, context, found[before:])


def _fingerprinted(result: LaunchResult) -> LaunchResult:
    findings = tuple(
        replace(item, fingerprint=fingerprint(item.path, item.launch, item.rule, item.region.token, item.message))
        for item in result.findings
    )
    return replace(result, findings=findings)


def mentions_vllm(path: Path) -> bool:
    """True for a file with a word that a launch would have; read in pieces. One that cannot be opened counts."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as stream:
            tail, left = b"", _MOST_SEARCHED
            while left > 0 and (piece := stream.read(_PIECE)):
                # Text in another encoding has a NUL beside every letter.
                if MARKS.search((tail + piece).replace(b"\0", b"").decode("latin-1")):
                    return True
                tail, left = piece[-64:], left - len(piece)
        return False
    except (OSError, ValueError):
        return True


def _head_lines(launch: Launch, source: SourceText) -> frozenset[int]:
    return frozenset(source.line_of(span.start) for span in (launch.server.place, *launch.heads))


def _neighbour(path: Path, root: Path, found: Callable[[str], None]) -> Callable[[str], str | None]:
    """Reads files that a file names: beside it, or from the current folder, and only below that."""
    base = os.path.realpath(root)

    def read(name: str) -> str | None:
        if not name or os.path.isabs(name) or "\0" in name:
            return None
        for folder in (path.parent, root):
            target = os.path.realpath(folder / name)
            if target != base and not target.startswith(base + os.sep):
                continue
            source = read_source(Path(target), name, limit=min(MAX_BYTES, _NEIGHBOUR_LIMIT))
            if isinstance(source, SourceText):
                found(target)
                return source.text
        return None

    return read
