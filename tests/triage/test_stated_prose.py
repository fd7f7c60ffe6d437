"""Flags and variables in a report's sentences: the weakest text, and never the whole launch."""

from __future__ import annotations

import pytest

from dsv4check.triage.stated import read_stated
from tests.triage.readings import log_reading, log_run, report_of

_FLASH = "deepseek-ai/DeepSeek-V4-Flash"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("with --tensor-parallel-size 8 --kv-cache-dtype fp8.", "--tensor-parallel-size 8 --kv-cache-dtype fp8"),
        (
            "on 4xA100, -tp 4 --kv-cache-dtype fp8. It gets past loading",
            "--tensor-parallel-size 4 --kv-cache-dtype fp8",
        ),
        ("launching it with tp8 on H100", "--tensor-parallel-size 8"),
        ("TP=8, DP=2, EP", "--tensor-parallel-size 8 --data-parallel-size 2 --enable-expert-parallel"),
        ("tp 8", "--tensor-parallel-size 8"),
        ("MTP=1", '--speculative-config {"method":"mtp","num_speculative_tokens":1}'),
        (
            "TP=2 over Ray, --enforce-eager",
            "--enforce-eager --tensor-parallel-size 2 --distributed-executor-backend ray",
        ),
        (
            """After deleting --speculative_config '{"method":"mtp","num_speculative_tokens":2}' it works""",
            '--speculative-config {"method":"mtp","num_speculative_tokens":2}',
        ),
        ("It stops. --enforce-eager works around it", ""),
        ("without --enforce-eager", ""),
        ("you should set --block-size 256", ""),
        ("tp=4 stops, tp=8 stops", ""),
        ("--max-model-len is what it names", ""),
        ("--kv-cache-dtype is ignored, --tokenizer-mode with quotes", ""),
        ("--speculative-config nothing", ""),
        ('--compilation-config {"pass_config": {"a": 1}, "mode": 3}', ""),
        ("--not-a-flag 3", ""),
        ("ValueError: pass --block-size 256", ""),
        ("python3 -m sglang.launch_server --trust-remote-code --tp 4", ""),
        ("[2026-05-20 02:29:31 TP3] Scheduler hit an exception", ""),
        ("(Worker_TP0 pid=3) INFO 05-20 02:29:31 [x.py:1] --block-size 256", ""),
    ],
)
def test_flags_in_sentences(text: str, words: str) -> None:
    stated = read_stated(*report_of(text))
    assert " ".join(stated.words) == words
    assert stated.flags_from == ("prose" if words else "")
    assert any(item.startswith("the flags") for item in stated.missing)


def test_variables_in_sentences() -> None:
    stated = read_stated(*report_of("VLLM_USE_V2_MODEL_RUNNER=1, HF_TOKEN=hf_a, --block-size 256"))
    assert stated.env == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert read_stated(*report_of("Fixed by setting `VLLM_USE_V2_MODEL_RUNNER=1`")).env == {}


def test_a_model_among_the_flags_is_the_model() -> None:
    stated = read_stated(*report_of(f"--model /m/DeepSeek-V4-Flash --block-size 256 # not {_FLASH}"))
    assert (stated.model, stated.words) == ("/m/DeepSeek-V4-Flash", ("--block-size", "256"))


def test_what_the_log_says_is_not_mixed_with_sentences() -> None:
    run = log_run([f"non-default args: {{'model': '{_FLASH}', 'tensor_parallel_size': 4}}"])
    stated = read_stated(log_reading(run, "with --block-size 256, TP=8"), run)
    assert (stated.words, stated.flags_from) == (("--tensor-parallel-size", "4"), "non-default args")


def test_a_command_is_not_mixed_with_sentences() -> None:
    stated = read_stated(*report_of(f"TP=8 fails:\n\nvllm serve {_FLASH} -tp 4"))
    assert (stated.words, stated.flags_from) == (("-tp", "4"), "command")
