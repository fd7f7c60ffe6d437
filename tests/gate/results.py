"""Launches and findings as the gate reports them, made up for tests."""

from __future__ import annotations

from dsv4check.engine.rule import Certainty, Severity
from dsv4check.gate.baseline import fingerprint
from dsv4check.gate.records import GateFinding, GateReport, LaunchResult, Region
from dsv4check.problems import Stage

RULES = {
    "KV001": "auto-on-packed-layout",
    "KV002": "block-size-refused",
    "ME003": "does-not-fit",
}


def finding(
    rule: str = "KV001",
    line: int = 1,
    *,
    end: tuple[int, int] | None = None,
    path: str = "a.sh",
    launch: str = "line 1",
    token: str = "fp8",
    severity: Severity = Severity.ERROR,
    ignored: str | None = None,
) -> GateFinding:
    end_line, end_column = end or (line, 10)
    return GateFinding(
        rule=rule,
        name=RULES.get(rule, "other"),
        severity=severity,
        certainty=Certainty.PROVEN,
        stage=Stage.ARGPARSE,
        message="m",
        error="",
        path=path,
        region=Region(line, 1, end_line, end_column, token),
        launch=launch,
        fingerprint=fingerprint(path, launch, rule, token, ""),
        ignored=ignored,
    )


def launch(
    *findings: GateFinding, line: int = 1, path: str = "a.sh", name: str = "line 1", verdict: str | None = "fail"
) -> LaunchResult:
    return LaunchResult(
        path=path,
        name=name,
        format="shell",
        region=Region(line, 1, line, 5),
        command="vllm serve x",
        model="x",
        facts={},
        verdict=verdict,
        findings=findings,
    )


def report(*launches: LaunchResult, own: tuple[GateFinding, ...] = ()) -> GateReport:
    return GateReport(launches, own=own)
