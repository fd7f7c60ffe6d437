"""Questions of the tests, and answers worked out without the planner's own arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Any

from dsv4check.api import read_request
from dsv4check.memory import requests
from dsv4check.planning.question import Wanted
from dsv4check.planning.records import Plan
from dsv4check.planning.search import plan_deployment
from dsv4check.report.model import Report
from tests.launches import all_rules

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
PRO = "deepseek-ai/DeepSeek-V4-Pro"
FLASH_0731 = "deepseek-ai/DeepSeek-V4-Flash-0731"


@cache
def planned(
    model: str, gpu: str, vllm: str, context: int, concurrency: int, flags: tuple[str, ...] = (), **more: Any
) -> Plan:
    """A plan on nodes of eight GPUs; ``more``: further fields of :class:`Wanted`, and ``gpus``."""
    gpus = more.pop("gpus", 8)
    request = read_request([model, *flags], gpu=gpu, gpus=gpus, vllm=vllm)
    return plan_deployment(request, Wanted(context, concurrency, **more), all_rules())


def holds(report: Report, concurrency: int) -> bool:
    """Whether a checked launch serves that many requests of its context, from the cache plan itself."""
    memory, parallel, draft = report.resolution.memory, report.resolution.parallel, report.resolution.draft
    if report.errors or memory is None or memory.fits is not True or memory.plan is None or memory.blocks is None:
        return False
    assert parallel is not None
    assert memory.max_model_len
    assert memory.in_flight_tokens
    step = 1 + ((draft.num_speculative_tokens if draft is not None else None) or 0)
    prefill = requests.request_blocks(memory.plan, memory.max_model_len, memory.in_flight_tokens)
    decode = requests.request_blocks(memory.plan, memory.max_model_len, step)
    share = -(-concurrency // parallel.data)
    return 1 + prefill + (share - 1) * decode <= memory.blocks.low
