"""Examples of rules that are logs: each leads to its rule first, or (``silent``) not to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import rules_dir
from dsv4check.engine.rule import read_sources
from dsv4check.triage.diagnosis import triage
from dsv4check.triage.said import SaidByUser
from tests.launches import all_rules


def _logs(kind: str) -> list[Any]:
    return [
        pytest.param(record["id"], example["log"], id=f"{record['id']}-{number}")
        for record, _area, _path in read_sources(rules_dir() / "checks")
        for number, example in enumerate(record["examples"][kind])
        if "log" in example
    ]


def _candidates(text: str, folder: Path) -> list[str]:
    log = folder / "vllm.log"
    log.write_text(text, encoding="utf-8")
    return [item.rule.id for item in triage([str(log)], all_rules(), SaidByUser()).candidates]


@pytest.mark.parametrize(("rule", "text"), _logs("fires"))
def test_log_leads_to_its_rule(rule: str, text: str, tmp_path: Path) -> None:
    assert _candidates(text, tmp_path)[:1] == [rule]


@pytest.mark.parametrize(("rule", "text"), _logs("silent"))
def test_log_does_not_lead_to_the_rule(rule: str, text: str, tmp_path: Path) -> None:
    assert rule not in _candidates(text, tmp_path)[:1]
