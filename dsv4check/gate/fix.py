"""``--fix``: verified changes of flags made inside the file, and checked again in the file's own terms.

A change is kept only when the changed file still holds the same launches, this one with exactly the corrected words
and all others as they were, when the finding is gone and when no error has come in.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from dsv4check.engine.rule import Severity
from dsv4check.gate.directives import parse_directives
from dsv4check.gate.file_check import Checked, FileChecker
from dsv4check.gate.judge import Judged
from dsv4check.gate.records import GateFinding
from dsv4check.gate.rewrite import QUOTINGS, NotPlainError, rewritten
from dsv4check.gate.settings_mapping import with_settings
from dsv4check.launchfiles.text import SourceText
from dsv4check.records import dataclass, field
from dsv4check.report.model import Fix

_FLAG_EDITS: Final = frozenset(("set_flag", "drop_flag", "rename_flag", "set_key", "drop_key"))
_MAX_STEPS: Final = 200
"""Changes of one file."""


@dataclass(slots=True)
class FixOutcome:
    """What was done to one file."""

    source: SourceText
    """As it is after the changes."""
    applied: list[str] = field(default_factory=list)
    """``line: rule: edits``."""
    refused: list[str] = field(default_factory=list)
    """``line: rule: why not``."""


def fix_source(source: SourceText, path: Path | None, checker: FileChecker, wanted: Container[str]) -> FixOutcome:
    """Apply what can be applied to the findings with the fingerprints ``wanted``."""
    outcome = FixOutcome(source)
    checked = _check(source, path, checker)
    # Fingerprints change with the lines that a change takes away or puts in; the order of the launches does not.
    left = {
        _key(index, finding)
        for index, judged in enumerate(checked.judged)
        for finding in judged.result.findings
        if finding.fingerprint in wanted
    }
    for _step in range(_MAX_STEPS):
        step = next(_open(checked, left), None)
        if step is None:
            break
        index, finding, fix = step
        left.discard(_key(index, finding))
        place = f"{finding.path}:{finding.region.line}: {finding.rule}"
        edits = "; ".join(edit.text for edit in (*fix.edits, *fix.also))
        try:
            outcome.source, checked = _applied(outcome.source, path, checker, checked, step)
        except NotPlainError as error:
            outcome.refused.append(f"{place}: {edits}: not applied, {error}")
            continue
        outcome.applied.append(f"{place}: {edits}")
    return outcome


def _applied(
    source: SourceText, path: Path | None, checker: FileChecker, checked: Checked, step: tuple[int, GateFinding, Fix]
) -> tuple[SourceText, Checked]:
    """The changed file and what is found in it. Raises NotPlainError where it cannot be changed or verified."""
    refused: NotPlainError | None = None
    tried: set[str] = set()
    for quoting in QUOTINGS:
        text = _changed_text(source, checked, *step, quoting)
        if text in tried:
            continue
        tried.add(text)
        changed = SourceText(source.path, text, bom=source.bom)
        again = _check(changed, path, checker)
        try:
            _verify(checked, again, *step)
        except NotPlainError as error:
            refused = refused or error
            continue
        return changed, again
    raise refused or NotPlainError("the file would stay as it is")


def diff_of(before: SourceText, after: SourceText) -> str:
    """The change as a unified diff."""
    lines = difflib.unified_diff(
        before.text.splitlines(keepends=True),
        after.text.splitlines(keepends=True),
        f"a/{before.path}",
        f"b/{after.path}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _check(source: SourceText, path: Path | None, checker: FileChecker) -> Checked:
    return checker.launches(source, path, parse_directives(source))


def _key(index: int, finding: GateFinding) -> tuple[int, str, str]:
    return index, finding.rule, finding.region.token


def _open(checked: Checked, left: set[tuple[int, str, str]]) -> Iterator[tuple[int, GateFinding, Fix]]:
    """Findings that are left, with a fix that is a change of flags."""
    for index, judged in enumerate(checked.judged):
        for finding in judged.result.findings:
            if _key(index, finding) not in left:
                continue
            for fix in finding.fixes:
                kinds = {edit.kind for edit in (*fix.edits, *fix.also)}
                if fix.verified and fix.edited is not None and kinds <= _FLAG_EDITS:
                    yield index, finding, fix
                    break


def _changed_text(
    source: SourceText, checked: Checked, index: int, _finding: GateFinding, fix: Fix, quoting: str
) -> str:
    launch, judged = checked.launches[index], checked.judged[index]
    assert fix.edited is not None
    if launch.config_file:
        return with_settings(source.text, judged.tokens, fix.edited.tokens)
    place = launch.server.place
    return rewritten(source.text, judged.words, judged.tokens, fix.edited.tokens, place=place, quoting=quoting)


def _verify(before: Checked, after: Checked, index: int, finding: GateFinding, fix: Fix) -> None:
    """Raise NotPlainError unless the changed file says exactly what the fix says."""
    assert fix.edited is not None
    if len(after.judged) != len(before.judged) or len(after.context.problems) > len(before.context.problems):
        raise NotPlainError("the changed file would be read differently")
    for number, (old, new) in enumerate(zip(before.judged, after.judged, strict=True)):
        wanted = fix.edited.tokens if number == index and not before.launches[index].config_file else old.tokens
        if [token.text for token in new.tokens] != [token.text for token in wanted]:
            if number != index:
                raise NotPlainError("the words are shared with another launch")
            raise NotPlainError("the words would be read differently")
        if _facts(new) != _facts(old):
            raise NotPlainError("what the launch runs on would be read differently")
    errors = {item.rule for item in before.judged[index].result.findings if item.severity is Severity.ERROR}
    left = after.judged[index].result
    if any(item.rule == finding.rule and item.message == finding.message for item in left.findings):
        raise NotPlainError("the finding would stay")
    if any(item.severity is Severity.ERROR and item.rule not in errors for item in left.findings):
        raise NotPlainError("another error would come in")
    if left.verdict is None:
        raise NotPlainError("the changed launch could not be checked")


def _facts(judged: Judged) -> dict[str, str]:
    return {name: fact.value for name, fact in judged.result.facts.items()}
