"""Weights reports as the tests ask for them."""

from __future__ import annotations

import shlex
from pathlib import Path

from dsv4check.api import check_request, read_request
from dsv4check.cli.weights import find_checkpoint, find_draft
from dsv4check.releases.facts import load_facts
from dsv4check.weights_report import WeightsReport, build_weights_report
from tests.launches import all_rules


def weights(
    model: str | Path,
    vllm: str,
    args: str = "",
    *,
    gpu: str = "B200",
    gpus: int = 8,
    nodes: int = 1,
    draft: str = "auto",
    env: dict[str, str] | None = None,
) -> WeightsReport:
    request = read_request([str(model), *shlex.split(args)], gpu=gpu, gpus=gpus, nodes=nodes, vllm=vllm, env=env)
    request, located = find_checkpoint(request, own_config=True)
    report = check_request(request, all_rules(), fixes=False)
    facts = load_facts(report.resolution.release)
    return build_weights_report(report, located, facts, all_rules(), draft, find_draft(report))
