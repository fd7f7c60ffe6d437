"""Plans: the command holds when it is checked from scratch, and no smaller number of GPUs would do."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsv4check import InputError, check
from dsv4check.api import check_request, read_request
from dsv4check.planning.layouts import HEAD_ADDRESS, gpu_counts, layouts
from dsv4check.planning.records import Plan
from tests.conftest import SLOWER
from tests.launches import all_rules
from tests.planning.plans import FLASH, FLASH_0731, PRO, holds, planned

QUESTIONS = [
    (FLASH, "H200", "0.33.0", 131072, 32),
    (FLASH, "H200", "0.24.0", 131072, 320),
    (FLASH, "H100", "0.29.0", 1048576, 8),
    (FLASH, "B200", "0.31.0", 32768, 3000),
    (FLASH, "RTX-PRO-6000", "0.28.0", 65536, 40),
    (PRO, "H200", "0.33.0", 131072, 32),
    (PRO, "H100", "0.22.1", 131072, 16),
    (PRO, "H100", "0.33.0", 65536, 64),
    (PRO, "B200", "0.25.1", 262144, 64),
]
DRAFTS = [
    (FLASH, "H200", "0.33.0", 131072, 200, "mtp"),
    (FLASH, "H100", "0.24.0", 65536, 16, "mtp"),
    (FLASH_0731, "H200", "0.29.0", 1048576, 16, "dspark"),
    (FLASH_0731, "B200", "0.33.0", 262144, 100, "dspark"),
]


def confirm(plan: Plan, gpu: str, vllm: str) -> None:
    best, concurrency = plan.best, plan.wanted.concurrency
    assert best is not None
    for trial in (best, *plan.alternatives):
        report = check(trial.texts[0], gpu=gpu, gpus=plan.per_node, nodes=trial.layout.nodes, vllm=vllm, fixes=False)
        assert report.errors == ()
        assert report.resolution.memory is not None
        assert report.resolution.memory.fits is True
        assert report.resolution.memory.max_model_len == plan.wanted.context
        assert report.resolution.parallel is not None
        assert report.resolution.parallel.total == best.layout.gpus
        assert holds(report, concurrency)
        assert trial.seqs * trial.layout.data >= concurrency
        for text in trial.texts[1:]:
            follower = check(text, gpu=gpu, gpus=plan.per_node, nodes=trial.layout.nodes, vllm=vllm, fixes=False)
            assert follower.errors == ()


@pytest.mark.parametrize(("model", "gpu", "vllm", "context", "concurrency"), QUESTIONS)
def test_the_command_serves_when_it_is_checked_from_scratch(
    model: str, gpu: str, vllm: str, context: int, concurrency: int
) -> None:
    confirm(planned(model, gpu, vllm, context, concurrency), gpu, vllm)


@pytest.mark.parametrize(("model", "gpu", "vllm", "context", "concurrency", "draft"), DRAFTS)
def test_with_a_draft(model: str, gpu: str, vllm: str, context: int, concurrency: int, draft: str) -> None:
    plan = planned(model, gpu, vllm, context, concurrency, draft=draft)
    confirm(plan, gpu, vllm)
    assert plan.best is not None
    resolved = plan.best.report.resolution.draft
    assert resolved is not None
    assert resolved.method == draft


@pytest.mark.parametrize(("model", "gpu", "vllm", "context", "concurrency"), QUESTIONS)
def test_no_smaller_number_of_gpus_serves(model: str, gpu: str, vllm: str, context: int, concurrency: int) -> None:
    plan = planned(model, gpu, vllm, context, concurrency)
    assert plan.best is not None
    smaller = [count for count in gpu_counts(8, 2) if count < plan.best.layout.gpus]
    assert [item.gpus for item in plan.shortfalls] == smaller
    needed = plan.best.additions.words
    for gpus in smaller:
        for layout in layouts(gpus, 8):
            share = -(-concurrency // layout.data)
            flags = [word for flag in layout.flags() for word in flag]
            # Everything a plan may tune, in all combinations; chunks between its own steps, too.
            for chunk in (None, 8192, 3072, 1024, 768, 512):
                if chunk is not None and chunk < share:
                    continue
                for seqs in (None, share):
                    tuned = [] if chunk is None else ["--max-num-batched-tokens", str(chunk)]
                    tuned += [] if seqs is None else ["--max-num-seqs", str(seqs)]
                    words = ["vllm", "serve", model, "--max-model-len", str(context), *flags, *needed, *tuned]
                    words += ["--gpu-memory-utilization", "0.95"]
                    request = read_request(words, gpu=gpu, gpus=8, nodes=layout.nodes, vllm=vllm)
                    report = check_request(request, all_rules(), fixes=False)
                    assert not holds(report, concurrency), " ".join(words)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([(FLASH, "H200", "0.33.0"), (FLASH, "H100", "0.24.0"), (PRO, "B200", "0.30.0")]),
    st.integers(10, 20),
    st.integers(0, 10),
    st.integers(0, 2),
    st.integers(0, 4),
)
@example((FLASH, "H200", "0.33.0"), 17, 5, 1, 1)
def test_more_never_needs_fewer_gpus(
    machine: tuple[str, str, str], context: int, concurrency: int, longer: int, more: int
) -> None:
    def gpus(length: int, requests: int) -> float:
        best = planned(*machine, length, requests).best
        return best.layout.gpus if best is not None else float("inf")

    length, requests = 1 << context, 1 << concurrency
    base = gpus(length, requests)
    assert gpus(length, requests + (1 << more)) >= base
    assert gpus(min(length << longer, 1 << 20), requests) >= base


def test_flags_that_the_release_needs_come_from_the_check() -> None:
    old, new = (planned(FLASH, "H200", vllm, 131072, 32).best for vllm in ("0.24.0", "0.33.0"))
    assert old is not None
    assert new is not None
    assert old.additions.words == ("--kv-cache-dtype", "fp8")
    assert new.additions.words == ()


def test_several_nodes() -> None:
    plan = planned(PRO, "H100", "0.33.0", 131072, 32)
    best = plan.best
    assert best is not None
    assert best.layout.nodes == 2
    assert len(best.commands) == 2
    assert all(HEAD_ADDRESS in text for text in best.texts)
    assert "--headless" in best.texts[1]
    assert "--headless" not in best.texts[0]
    assert plan.base.deployment.hardware.nodes == 2


def test_given_flags_stay_as_they_are() -> None:
    flags = ("-tp", "4", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.9")
    best = planned(FLASH, "H200", "0.33.0", 131072, 32, flags).best
    assert best is not None
    assert best.layout.tensor == 4
    assert best.tuning.seqs is None
    words = tuple(token.text for token in best.commands[0].tokens)
    assert words == (FLASH, *flags, "--max-model-len", "131072")


def test_a_stated_limit_on_requests_counts() -> None:
    plan = planned(FLASH, "H200", "0.33.0", 16384, 64, ("--max-num-seqs", "4"))
    assert plan.best is not None
    assert plan.best.layout.data * 4 >= 64
    assert all("--max-num-seqs 4" in item.reason or "no room" in item.reason for item in plan.shortfalls)


def test_the_search_is_short() -> None:
    planned.__wrapped__(FLASH, "H200", "0.24.0", 131072, 32)
    start = time.process_time()
    plan = planned.__wrapped__(PRO, "H100", "0.24.0", 131072, 32)
    # Two nodes at most: 2 s on an idle core.
    assert time.process_time() - start < 2 * SLOWER
    assert plan.checks < 200


def test_nothing_serves() -> None:
    plan = planned(PRO, "H100", "0.33.0", 1048576, 5000)
    assert plan.best is None
    assert [item.gpus for item in plan.shortfalls] == gpu_counts(8, 2)
    assert re.search(r"over 2 nodes holds \d+ of 5,000 requests", plan.shortfalls[-1].reason)


def test_an_error_that_no_flag_removes_is_the_reason() -> None:
    plan = planned(FLASH, "L40S", "0.33.0", 8192, 1)
    assert plan.best is None
    assert all("GA002" in item.reason for item in plan.shortfalls)


def test_fixes_that_change_the_question_do_not_count() -> None:
    # The check offers to drop the draft or to move to 0.25; neither is a flag that may be added.
    plan = planned(FLASH_0731, "H200", "0.24.0", 131072, 8, draft="dspark")
    assert plan.best is None
    assert "SD002" in plan.shortfalls[-1].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 1 << 21}, "takes 1048576 tokens at most"),
        ({"concurrency": 0}, "--concurrency 0"),
        ({"context": 0}, "--context 0"),
        ({"max_nodes": 0}, "--max-nodes 0"),
        ({"draft": "eagle"}, "--draft eagle"),
        ({"draft": "dspark"}, "holds a draft for mtp"),
        ({"draft_tokens": 2}, "--draft-tokens needs"),
        ({"model": "nobody/nothing"}, "no config.json"),
        ({"model": "deepseek-ai/DeepSeek-V4.1-Flash"}, "nothing can be planned"),
        ({"gpu": "MI300X"}, "only vLLM's CUDA path"),
        ({"gpu": "sm90"}, "memory of this GPU"),
        ({"flags": ("--max-model-len", "8")}, "--context says it"),
        ({"flags": ("--nnodes", "2")}, "--nnodes: leave it out"),
        ({"flags": ("-tp", "3")}, "no layout of a plan agrees"),
        ({"flags": ("--speculative-config", '{"method":"mtp"}'), "draft": "mtp"}, "say it once"),
    ],
)
def test_unusable_questions(options: dict[str, object], message: str) -> None:
    asked = {"model": FLASH, "gpu": "H200", "vllm": "0.33.0", "context": 8192, "concurrency": 1} | options
    with pytest.raises(InputError, match=re.escape(message)):
        planned(**asked)  # type: ignore[arg-type]
