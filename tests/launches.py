"""Launches as the tests write them: a mapping with model or checkpoint (``tests/synthetic.py``), args, gpu, vllm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from dsv4check.api import check_request
from dsv4check.deployment import Token
from dsv4check.engine.examples import example_request
from dsv4check.engine.rule import Rule, load_rules
from dsv4check.problems import Origin
from dsv4check.report.model import Report
from dsv4check.request import Request
from tests.synthetic import synthetic_folder


@cache
def all_rules() -> tuple[Rule, ...]:
    return load_rules()


def launch_request(launch: Mapping[str, Any]) -> Request:
    request = example_request({**launch, "args": launch.get("args", [])})
    if not launch.get("checkpoint"):
        return request
    folder = str(synthetic_folder(launch["checkpoint"]))
    tokens = (Token(folder, Origin("flag", folder)), *request.command.tokens)
    return replace(request, command=replace(request.command, tokens=tokens))


def run_launch(launch: Mapping[str, Any], *, fixes: bool = False) -> Report:
    return check_request(launch_request(launch), all_rules(), fixes=fixes)
