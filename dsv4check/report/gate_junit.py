"""The gate's report as JUnit XML: a suite for each file, a case for each launch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from dsv4check import __version__
from dsv4check.gate.records import FileProblem, GateFinding, GateReport, LaunchResult
from dsv4check.report.figures import plural
from dsv4check.report.gate_words import fix_words, place

NEVER: Final = 3
"""A rank that no finding reaches."""

# What XML 1.0 cannot hold, not even escaped; and the carriage return, which readers take for an end of line.
_FORBIDDEN: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED: Final = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def render(report: GateReport, fail_rank: int) -> str:
    """The report as JUnit XML.

    Args:
        report: The gate's report.
        fail_rank: Rank of the lowest severity that fails a case (``Severity.rank``), ``NEVER`` for none.
    """
    root = ET.Element("testsuites", _attributes(name="dsv4check gate"))
    suites: dict[str, ET.Element] = {}
    names: Counter[tuple[str, str]] = Counter()
    for path, line, name, case in sorted(_cases(report, fail_rank), key=lambda item: item[0]):
        suite = suites.get(path)
        if suite is None:
            suite = suites[path] = ET.SubElement(root, "testsuite", _attributes(name=path))
            properties = ET.SubElement(suite, "properties")
            ET.SubElement(properties, "property", _attributes(name="dsv4check", value=__version__))
        name = " ".join(name.split())
        title = name if not line or name == f"line {line}" else f"{name} (line {line})"
        names[path, title] += 1
        if names[path, title] > 1:
            # Readers take two cases of one name for one.
            title = f"{title} #{names[path, title]}"
        case.attrib = _attributes(classname=path, name=title, file=path, line=str(line or 1), time="0.000")
        suite.append(case)
    for suite in suites.values():
        _count(suite, 0.0)
    _count(root, report.seconds)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _cases(report: GateReport, fail_rank: int) -> Iterator[tuple[str, int, str, ET.Element]]:
    """Path, line, name and element of each case."""
    for launch in report.launches:
        yield launch.path, launch.region.line, launch.name, _launch(launch, fail_rank)
    for finding in report.own:
        case = ET.Element("testcase")
        _findings(case, (finding,), fail_rank)
        yield finding.path, finding.region.line, f"{finding.rule} {finding.name}", case
    for problem in report.problems:
        yield problem.path, problem.line, "reading the file", _problem(problem)


def _launch(launch: LaunchResult, fail_rank: int) -> ET.Element:
    case = ET.Element("testcase")
    properties = ET.SubElement(case, "properties")
    known = {"verdict": launch.verdict, "model": launch.model}
    known |= {name: fact.value for name, fact in launch.facts.items()}
    for name, value in known.items():
        if value:
            ET.SubElement(properties, "property", _attributes(name=name, value=value))
    if not len(properties):
        case.remove(properties)
    if launch.verdict is None:
        why = "no DeepSeek-V4 launch" if launch.other_model else "not checked"
        why = f"{why}: {launch.not_checked}" if launch.not_checked else why
        ET.SubElement(case, "skipped", _attributes(message=why))
    more = [f"not evaluated: {item.what}: {item.why}. To know: {item.how}." for item in launch.not_evaluated]
    more += [f"note: {note}" for note in launch.notes]
    _findings(case, launch.findings, fail_rank, more)
    return case


def _findings(
    case: ET.Element, findings: tuple[GateFinding, ...], fail_rank: int, more: list[str] | None = None
) -> None:
    """The findings that fail the case in one element, everything else as its output."""
    failing = [item for item in findings if item.active and item.severity.rank >= fail_rank]
    if failing:
        said = failing[0].message
        if len(failing) > 1:
            said = f"{plural(len(failing), 'finding')}: {', '.join(item.rule for item in failing)}. {said}"
        failure = ET.SubElement(case, "failure", _attributes(message=said, type=failing[0].rule))
        failure.text = _clean("\n\n".join(map(_words, failing)))
    output = [_words(item) for item in findings if item not in failing] + (more or [])
    if output:
        ET.SubElement(case, "system-out").text = _clean("\n\n".join(output))


def _words(finding: GateFinding) -> str:
    region = finding.region
    stage = f" [{finding.stage.value}]" if finding.stage else ""
    state = "" if finding.active else " (in the baseline)"
    if finding.ignored is not None:
        state = f" (ignored: {finding.ignored})"
    lines = [
        f"{finding.path}:{region.line}:{region.column}: {finding.severity.value} {finding.rule} {finding.name}"
        f"{stage}{state}",
        finding.message,
    ]
    if finding.error:
        lines.append(f"vLLM prints: {finding.error}")
    if finding.fixes:
        fix = finding.fixes[0]
        lines.append(f"fix: {fix_words(fix)}" + (f" ({fix.note})" if fix.note else ""))
        lines.append(fix.command)
    elif finding.no_fix:
        lines.append(f"no fix: {finding.no_fix}")
    return "\n".join(lines)


def _problem(problem: FileProblem) -> ET.Element:
    case = ET.Element("testcase")
    if problem.skipped:
        ET.SubElement(case, "skipped", _attributes(message=problem.why))
    else:
        error = ET.SubElement(case, "error", _attributes(message=problem.why, type="not-understood"))
        error.text = _clean(f"{place(problem.path, problem.line)}: {problem.why}")
    return case


def _count(element: ET.Element, seconds: float) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    for attribute, tag in _COUNTED.items():
        element.set(attribute, str(len(element.findall(f".//testcase/{tag}"))))
    element.set("time", f"{seconds:.3f}")


def _attributes(**values: str) -> dict[str, str]:
    return {name: _clean(value) for name, value in values.items()}


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("", text)
