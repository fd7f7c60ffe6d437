"""A look at an installation as headings, paragraphs and tables: the build, its code, the machine, the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsv4check.doctor.records import DoctorReport
from dsv4check.host.records import State
from dsv4check.report.blocks import Block, Heading, Paragraph, report_blocks
from dsv4check.report.doctor_build import build_blocks, fingerprint_blocks
from dsv4check.report.doctor_machine import machine_blocks
from dsv4check.report.text_format import render_blocks


def render(report: DoctorReport, width: int = 110) -> str:
    """The report as text of at most ``width`` columns (commands and tables are not wrapped)."""
    return render_blocks(doctor_blocks(report), width)


def doctor_blocks(report: DoctorReport) -> Iterator[Block]:
    """The whole report, top to bottom."""
    yield Heading(_headline(report), report.verdict.value)
    for note in report.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    yield from build_blocks(report.build)
    yield from fingerprint_blocks(report.fingerprints, _met(report))
    yield from machine_blocks(report.observations, _told(report))
    if report.report is not None:
        yield Heading(f"Launch, judged by {_judge(report)}")
        yield from report_blocks(report.report)
    elif report.launch is not None:
        yield Heading("Launch")
        yield Paragraph(f"{report.launch['verdict']}; see the JSON of the machine that looked at it")


def _met(report: DoctorReport) -> frozenset[str] | None:
    """Rules that the launch meets or that stayed open for it."""
    if report.launch is None:
        return None
    rules = {finding["rule"] for finding in report.launch["findings"]}
    open_texts = " ".join(item["what"] for item in report.launch["not_evaluated"])
    named = {rule for item in report.fingerprints for rule in item.rules if rule in open_texts}
    return frozenset(rules | named)


def _told(report: DoctorReport) -> dict[str, str]:
    """Problems of the machine that findings of the launch name as well, by the same rule or of the same variable."""
    if report.report is None or report.launch is None:
        return {}
    findings = report.launch["findings"]
    packages = report.launch["deployment"]["packages"]
    told: dict[str, str] = {}
    for item in report.with_state(State.ERROR, State.WARNING):
        name, version = item.data.get("name"), item.data.get("version")
        for finding in findings:
            if item.area == "packages":
                # What the launch states of a package says nothing of the one that is installed.
                same = finding["rule"] == item.data.get("rule") and packages.get(name, version) == version
            else:
                same = item.area == "environment" and name is not None and _names(finding["message"], name)
            if same:
                told.setdefault(item.id, finding["rule"])
    return told


def _names(message: str, variable: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(variable)}(?!\w)", message) is not None


def _headline(report: DoctorReport) -> str:
    parts = []
    severities = {} if report.launch is None else {item["rule"]: item["severity"] for item in report.launch["findings"]}
    told = {id: severities[rule] for id, rule in _told(report).items()}
    for state in (State.ERROR, State.WARNING):
        # What a finding says as loudly is counted with the launch.
        number = sum(told.get(item.id) not in (state.value, "error") for item in report.with_state(state))
        if number:
            parts.append(f"{number} {state.value}{'s' * (number != 1)} of the machine")
    launch = report.report
    if launch is not None and launch.findings:
        for severity in ("error", "warning"):
            number = sum(item.severity.value == severity for item in launch.findings)
            if number:
                parts.append(f"{number} {severity}{'s' * (number != 1)} of the launch")
    unknown = len(report.with_state(State.UNKNOWN))
    if unknown:
        parts.append(f"{unknown} not looked at")
    tail = f" ({', '.join(parts)})" if parts else ""
    match report.verdict.value:
        case "pass":
            return f"PASS: nothing found that stops {'a' if report.launch is None else 'this'} launch{tail}"
        case "warn":
            return f"WARN: {'a launch here has hazards' if report.launch is None else 'it starts, with a hazard'}{tail}"
    if launch is not None and launch.stage is not None:
        return f"FAIL: the launch stops at {launch.stage.value}{tail}"
    return f"FAIL: a launch fails on this machine{tail}"


def _judge(report: DoctorReport) -> str:
    build = report.build
    if not build.found:
        return "the rules of a release: no build was found"
    if build.learned:
        return "this build's own code, as far as it was read"
    return f"the rules of vLLM {build.nearest or build.version or 'releases'}"
