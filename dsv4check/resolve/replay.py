"""``--return-sampling-mask`` and ``--enable-trace-replay``: what their config checks want.

Source: ``config/vllm.py:_verify_sampling_replay_config`` (0.28 and later) and ``_verify_trace_replay_config`` (0.30
and later); a release without the flags has no checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Runner
from dsv4check.resolve.flag_values import config_problem, where

_SUBJECT = "sampling distribution replay"


def replay_problems(deployment: Deployment, facts: ReleaseFacts, draft: Draft, runner: Runner) -> list[Problem]:
    """The first refusal of each of the two flags."""
    flags = deployment.flags
    found: list[Problem] = []
    if flags.get("return_sampling_mask") is True:
        error, fix = _sampling(deployment, facts.section("engine_config"), draft, runner)
        if error:
            data = {"flag": "--return-sampling-mask", "dest": "return_sampling_mask", "reason": error, "other": fix}
            found.append(config_problem("replay-refused", error, data, where(deployment, "return_sampling_mask")))
    if flags.get("enable_trace_replay") is True and runner.name == "v1":
        error = "trace replay requires Model Runner V2"
        data = {"flag": "--enable-trace-replay", "dest": "enable_trace_replay", "reason": error, "other": ""}
        found.append(config_problem("replay-refused", error, data, where(deployment, "enable_trace_replay")))
    return found


def _sampling(deployment: Deployment, section: Mapping[str, Any], draft: Draft, runner: Runner) -> tuple[str, str]:
    """(error, flag to drop); empty when nothing is refused."""
    flags = deployment.flags
    if runner.name == "v1":
        return f"{_SUBJECT} requires Model Runner V2", ""
    if draft.config and section.get("sampling_replay_with_drafts") is False:
        return f"{_SUBJECT} does not support speculative decoding", "speculative_config"
    if draft.config.get("enable_adaptive_verification") is True:
        error = "requires fixed verification boundaries; disable adaptive verification"
        return f"{_SUBJECT} with speculative decoding {error}", ""
    if flags.get("logits_processors"):
        return f"{_SUBJECT} does not support custom logits processors", "logits_processors"
    if flags.get("logprobs_mode", "raw_logprobs") != "processed_logprobs":
        return (
            f"{_SUBJECT} requires logprobs_mode='processed_logprobs' so that returned logprobs are normalized over "
            "the same nucleus as the sampling mask",
            "",
        )
    return "", ""
