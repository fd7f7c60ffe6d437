"""Launches as the tests write them: a mapping with model or checkpoint (``tests/synthetic.py``), args, gpu, vllm."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from dsv4check.api import check_request
from dsv4check.deployment import Command, Token
from dsv4check.engine.rule import Rule, load_rules
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.packages import parse_packages
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.problems import Origin
from dsv4check.report.model import Report
from dsv4check.request import Request
from tests.synthetic import synthetic_folder


@cache
def all_rules() -> tuple[Rule, ...]:
    return load_rules()


def launch_request(launch: Mapping[str, Any]) -> Request:
    args = launch.get("args", [])
    words = shlex.split(args) if isinstance(args, str) else [str(word) for word in args]
    if launch.get("checkpoint"):
        words = [str(synthetic_folder(launch["checkpoint"])), *words]
    elif launch.get("model"):
        words = [launch["model"], *words]
    return Request(
        command=Command(("vllm", "serve"), tuple(Token(word, Origin("flag", word)) for word in words)),
        vllm=resolve_vllm(str(launch["vllm"])),
        hardware=resolve_gpu(
            launch.get("gpu"),
            gpus=launch.get("gpus"),
            nodes=launch.get("nodes"),
            memory_gib=launch.get("gpu_memory_gib"),
        ),
        env={name: str(value) for name, value in (launch.get("env") or {}).items()},
        packages=parse_packages({name: str(value) for name, value in (launch.get("packages") or {}).items()}),
        config_overrides=launch.get("config_overrides"),
        config_like=launch.get("config_like"),
    )


def run_launch(launch: Mapping[str, Any], *, fixes: bool = False) -> Report:
    return check_request(launch_request(launch), all_rules(), fixes=fixes)
