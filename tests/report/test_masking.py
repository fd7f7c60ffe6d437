"""Which environment variables hold secrets."""

from __future__ import annotations

import pytest

from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.report.masking import MASK, masked_env
from tests.cli.program import run


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AUTH_TOKENS", "MYTOKEN", "hf_token", "VLLM_API_KEY", "VLLM_API_KEY_2"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "SSH_PRIVATE_KEY", "MY_KEY", "KEY", "DB_PASSWORD", "DB_PASSWD"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "WANDB_APIKEY", "MAX_TOKENS_SECRET", "TOKENIZER_TOKEN"),
    ],
)
def test_secrets(name: str) -> None:
    assert masked_env({name: "x"}) == {name: MASK}


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_TOKENIZER_POOL", "NUM_DRAFT_TOKENS", "MONKEY"])
def test_tokens_of_text_are_no_secrets(name: str) -> None:
    assert masked_env({name: "1"}) == {name: "1"}


def test_of_vllms_own_variables_only_the_key_is_a_secret() -> None:
    known = {f"VLLM_{name}" for name in known_releases() for name in load_facts(name).section("env")["known"].split()}
    assert len(known) > 200
    assert {name for name, value in masked_env(dict.fromkeys(known, "1")).items() if value == MASK} == {"VLLM_API_KEY"}


def test_a_corrected_command_keeps_them() -> None:
    words = ["VLLM_USE_FASTOKENS=1", "HF_TOKEN=abc", "vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8"]
    said = run("serve-args", "--gpu", "H200", "--gpus", "8", "--vllm", "0.24.0", "--", *words).stdout
    assert "VLLM_USE_FASTOKENS=1" in said
    assert "abc" not in said
