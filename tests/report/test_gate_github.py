"""Workflow commands of the gate's report, read as GitHub's runner reads them."""

from __future__ import annotations

import re

from dsv4check.engine.rule import Severity
from dsv4check.gate.records import GateReport
from dsv4check.report.gate_github import render
from tests.report.gate import NASTY_PATH, empty_report, finding, launch, region, rich_report

COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def unescaped(text: str) -> str:
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def commands(report: GateReport) -> list[tuple[str, dict[str, str], str]]:
    read = []
    *lines, last = render(report).splitlines()
    assert last.startswith("dsv4check: ")
    for line in lines:
        found = COMMAND.fullmatch(line)
        assert found, line
        pairs = dict(item.split("=", 1) for item in found[2].split(","))
        read.append((found[1], {name: unescaped(value) for name, value in pairs.items()}, unescaped(found[3])))
    return read


def test_errors_come_first() -> None:
    kinds = [kind for kind, _properties, _message in commands(rich_report())]
    assert kinds == ["error"] * 5 + ["warning"] * 2 + ["notice"] * 4


def test_places_and_titles() -> None:
    said = {properties["title"]: properties for _kind, properties, _message in commands(rich_report())}
    assert said["EV001 unknown-variable"] == {
        "file": "compose.yaml",
        "line": "14",
        "col": "7",
        "endColumn": "21",
        "title": "EV001 unknown-variable",
    }
    several = said["CG001 full-graphs-read-out-of-bounds-on-hopper"]
    assert (several["line"], several["endLine"]) == ("4", "6")
    assert not {"col", "endColumn"} & set(several)


def test_nothing_breaks_out_of_a_command() -> None:
    text = "50% of a:b, c\r\n::error::forged %0A"
    report = GateReport((launch(findings=(finding(path=NASTY_PATH, name=text, message=text, error=""),)),))
    ((kind, properties, message),) = commands(report)
    assert (kind, properties["file"], properties["title"], message) == ("error", NASTY_PATH, f"KV001 {text}", text)


def test_quiet_findings_are_left_out() -> None:
    quiet = (finding(ignored="ours"), finding(baseline=True))
    assert commands(GateReport((launch(findings=quiet),))) == []
    assert len(commands(GateReport((launch(findings=(*quiet, finding())),)))) == 1


def test_other_models_are_left_out() -> None:
    assert not any("llama" in message for _kind, _properties, message in commands(rich_report()))


def test_the_counts_stand_last() -> None:
    assert render(empty_report()) == "dsv4check: 0 files, 0 launches; no findings"
    one = GateReport(
        (launch(verdict="fail", findings=(finding(severity=Severity.NOTE, region=region(1, 1)),)),), files=1
    )
    assert render(one).splitlines()[-1] == "dsv4check: 1 file, 1 launch: 1 fail; 1 note"
