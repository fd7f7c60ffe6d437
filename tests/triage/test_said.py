from __future__ import annotations

from typing import Any

import pytest

from dsv4check.errors import InputError
from dsv4check.triage.records import Fact, Stated
from dsv4check.triage.said import SaidByUser

LOG = Stated(
    facts=(
        Fact("vllm", "0.24.0", "version banner"),
        Fact("gpu", "H200", "collect_env"),
        Fact("env VLLM_A", "1", "command"),
        Fact("package torch", "2.9.1", "collect_env"),
    ),
    vllm="0.24.0",
    gpu="H200",
    gpus=8,
    env={"VLLM_A": "1", "VLLM_B": "1"},
    packages={"torch": "2.9.1"},
    missing=("which model was served (--model)", "how many nodes (--nodes)", "the flags"),
)


def test_nothing_said_leaves_the_log() -> None:
    assert SaidByUser().over(LOG) == LOG


def test_what_is_said_wins_and_is_a_fact() -> None:
    said = SaidByUser(vllm="0.25.0", nodes=2, packages={"torch": "2.11.0"}, env={"VLLM_A": "0"}).over(LOG)
    assert (said.vllm, said.gpu, said.gpus, said.nodes) == ("0.25.0", "H200", 8, 2)
    assert said.packages == {"torch": "2.11.0"}
    assert said.env == {"VLLM_A": "0", "VLLM_B": "1"}
    assert [(fact.name, fact.value, fact.how) for fact in said.facts] == [
        ("vllm", "0.25.0", "option"),
        ("nodes", "2", "option"),
        ("package torch", "2.11.0", "option"),
        ("env VLLM_A", "0", "option"),
        ("gpu", "H200", "collect_env"),
    ]


def test_what_is_said_is_not_asked_for() -> None:
    assert SaidByUser(model="deepseek-ai/DeepSeek-V4-Pro").over(LOG).missing == LOG.missing[1:]
    assert SaidByUser(model_config="config.json").over(LOG).missing == LOG.missing[1:]
    assert SaidByUser(nodes=1).over(LOG).missing == (LOG.missing[0], LOG.missing[2])


def test_a_count_in_front_of_the_gpu_wins_over_the_log() -> None:
    assert SaidByUser(gpu="4xB200").over(LOG).gpus == 4
    assert SaidByUser(gpu="4xB200", gpus=2).over(LOG).gpus == 2
    assert SaidByUser(gpu="B200").over(LOG).gpus == 8


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vllm": "banana"}, "banana"),
        ({"gpu": "H2000"}, "--gpu 'H2000'"),
        ({"gpus": 0}, "gpus"),
        ({"nodes": -1}, "nodes"),
        ({"gpu_memory_gib": float("nan")}, "memory"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], says: str) -> None:
    said = SaidByUser(**options)
    with pytest.raises(InputError, match=says):
        said.check()
    with pytest.raises(InputError, match=says):
        said.over(LOG)
