"""Known findings: a file lists them, and only new ones count."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dsv4check.engine.rule import Severity
from dsv4check.errors import InputError
from dsv4check.gate.reading import read_source
from dsv4check.gate.records import FileProblem, GateFinding, GateReport
from dsv4check.gate.writing import replace_file
from dsv4check.records import dataclass

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024

_LINE: Final = re.compile(r"\bline \d+")
_KEYS: Final = {"path": str, "launch": str, "rule": str, "fingerprint": str, "count": int}


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """Findings that are alike."""

    path: str
    launch: str
    rule: str
    fingerprint: str
    count: int
    """How many of them are known."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Known findings, ordered by path, launch and rule."""

    entries: tuple[BaselineEntry, ...] = ()


def fingerprint(path: str, launch: str, rule: str, token: str, message_key: str) -> str:
    """What a finding is recognised by, wherever its lines move: 16 hexadecimal digits.

    ``message_key`` tells findings of one rule and token apart. Numbers of lines in it do not count.
    """
    import hashlib

    parts = json.dumps([path, _unnumbered(launch), rule, token, _unnumbered(message_key)])
    return hashlib.sha256(parts.encode("ascii")).hexdigest()[:16]


def load_baseline(path: Path) -> Baseline:
    """Read a file of known findings; InputError where it is missing, broken or of another version."""
    source = read_source(path, str(path), limit=MAX_BYTES)
    if isinstance(source, FileProblem):
        raise InputError(f"{path}: {source.why}; expected a baseline (--update-baseline makes one)")
    try:
        content = json.loads(source.text)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a baseline") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict) or "version" not in content:
        raise InputError(f"{path}: no baseline: expected an object with version and findings")
    version = content["version"]
    if type(version) is not int or version != VERSION:
        raise InputError(f"{path}: a baseline of version {str(version)[:20]}; this release reads version {VERSION}")
    findings = content.get("findings")
    if not isinstance(findings, list):
        raise InputError(f"{path}: findings: expected a list")
    return Baseline(
        tuple(sorted((_entry(item, f"{path}: findings[{at}]") for at, item in enumerate(findings, 1)), key=_order))
    )


def apply_baseline(report: GateReport, baseline: Baseline, *, looked: Container[str] | None = None) -> GateReport:
    """Mark the findings that are known, as many of each kind as the baseline lists.

    Entries that match fewer are stale. ``looked`` are the paths of this run, where it did not look at everything:
    entries for others are left alone, as are those for launches that were not checked this time.
    """
    left: Counter[tuple[str, str]] = Counter()
    for entry in baseline.entries:
        left[entry.rule, entry.fingerprint] += entry.count
    launches = []
    for launch in report.launches:
        findings = []
        for item in launch.findings:
            key = (item.rule, item.fingerprint)
            known = item.ignored is None and left[key] > 0
            if known:
                left[key] -= 1
            findings.append(replace(item, baseline=True) if known else item)
        launches.append(replace(launch, findings=tuple(findings)))
    unchecked = {(launch.path, _unnumbered(launch.name)) for launch in report.launches if launch.verdict is None}
    stale = []
    for entry in baseline.entries:
        over = min(entry.count, left[entry.rule, entry.fingerprint])
        if over > 0:
            left[entry.rule, entry.fingerprint] -= over
            met = looked is None or entry.path in looked
            if met and (entry.path, entry.launch) not in unchecked:
                stale.append(_stale(entry, over))
    return replace(report, launches=tuple(launches), stale=tuple(stale))


def baseline_of(report: GateReport) -> Baseline:
    """The findings that count, notes and the gate's own aside."""
    counts = Counter(
        (item.path, _unnumbered(item.launch), item.rule, item.fingerprint)
        for launch in report.launches
        for item in launch.findings
        if _is_listed(item)
    )
    return Baseline(tuple(sorted((BaselineEntry(*key, count) for key, count in counts.items()), key=_order)))


def write_baseline(path: Path, report: GateReport) -> None:
    """Write the findings that count as known ones; the file is there whole, or as it was.

    A report that a baseline was applied to holds only the new ones as active: write before applying.
    """
    entries = [{name: getattr(entry, name) for name in sorted(_KEYS)} for entry in baseline_of(report).entries]
    text = json.dumps({"version": VERSION, "findings": entries}, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode("utf-8", "backslashreplace"))


def _entry(item: Any, place: str) -> BaselineEntry:
    if not isinstance(item, dict):
        raise InputError(f"{place}: expected an object")
    for name, kind in _KEYS.items():
        if name not in item:
            raise InputError(f"{place}: {name}: missing")
        if type(item[name]) is not kind:
            raise InputError(f"{place}: {name}: expected {'text' if kind is str else 'a whole number'}")
    if item["count"] < 1:
        raise InputError(f"{place}: count: expected at least 1")
    return BaselineEntry(*(item[name] for name in _KEYS))


def _order(entry: BaselineEntry) -> tuple[str, str, str, str]:
    return entry.path, entry.launch, entry.rule, entry.fingerprint


def _is_listed(item: GateFinding) -> bool:
    return item.active and item.severity.rank >= Severity.WARNING.rank


def _unnumbered(text: str) -> str:
    """A launch's name, or a message, without numbers of lines, which move."""
    return _LINE.sub("line", text)


def _stale(entry: BaselineEntry, over: int) -> str:
    some = "" if over == entry.count else f" ({over} of {entry.count})"
    return f"{entry.path}: {entry.launch}: {entry.rule}{some}"
