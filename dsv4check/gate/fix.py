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
from dsv4check.gate.records import GateFinding
from dsv4check.gate.rewrite import NotPlainError, rewritten
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
    tried: set[tuple[int, str]] = set()
    checked = _check(source, path, checker)
    for _step in range(_MAX_STEPS):
        step = next(_open(checked, wanted, tried), None)
        if step is None:
            break
        index, finding, fix = step
        tried.add((index, finding.rule))
        place = f"{finding.path}:{finding.region.line}: {finding.rule}"
        edits = "; ".join(edit.text for edit in (*fix.edits, *fix.also))
        try:
            text = _changed_text(outcome.source, checked, index, fix)
            changed = SourceText(source.path, text, bom=source.bom)
            again = _check(changed, path, checker)
            _verify(checked, again, index, finding, fix)
        except NotPlainError as error:
            outcome.refused.append(f"{place}: {edits}: not applied, {error}")
            continue
        outcome.applied.append(f"{place}: {edits}")
        outcome.source, checked = changed, again
    return outcome


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


def _open(
    checked: Checked, wanted: Container[str], tried: set[tuple[int, str]]
) -> Iterator[tuple[int, GateFinding, Fix]]:
    """Findings with a fix that is a change of flags, not tried yet."""
    for index, judged in enumerate(checked.judged):
        for finding in judged.result.findings:
            if finding.fingerprint not in wanted or (index, finding.rule) in tried:
                continue
            for fix in finding.fixes:
                kinds = {edit.kind for edit in (*fix.edits, *fix.also)}
                if fix.verified and fix.edited is not None and kinds <= _FLAG_EDITS:
                    yield index, finding, fix
                    break


def _changed_text(source: SourceText, checked: Checked, index: int, fix: Fix) -> str:
    launch, judged = checked.launches[index], checked.judged[index]
    assert fix.edited is not None
    if launch.config_file:
        return with_settings(source.text, judged.tokens, fix.edited.tokens)
    return rewritten(source.text, judged.words, judged.tokens, fix.edited.tokens)


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
    errors = {item.rule for item in before.judged[index].result.findings if item.severity is Severity.ERROR}
    left = after.judged[index].result
    if any(item.rule == finding.rule and item.message == finding.message for item in left.findings):
        raise NotPlainError("the finding would stay")
    if any(item.severity is Severity.ERROR and item.rule not in errors for item in left.findings):
        raise NotPlainError("another error would come in")
    if left.verdict is None:
        raise NotPlainError("the changed launch could not be checked")
