"""Rules made for one test."""

from __future__ import annotations

from typing import Any

from dsv4check.engine.rule import Rule, rule_from_record

_LEAST = {
    "name": "made-up",
    "summary": "Made up.",
    "severity": "error",
    "certainty": "proven",
    "stage": "model-init",
    "message": "It is made up.",
}


def own_rule(id: str, *signatures: Any, **more: Any) -> Rule:
    return rule_from_record({"id": id, **_LEAST, "signatures": signatures, **more}, "made-up", id)
