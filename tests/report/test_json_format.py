"""The JSON report against its published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.deployment import Command, Token
from dsv4check.problems import Origin
from dsv4check.report.masking import masked_command, masked_settings
from dsv4check.report.schema import json_schema
from tests.launches import run_launch

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/report.schema.json").read_text(encoding="utf-8"))
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
LAUNCHES: list[dict[str, Any]] = [
    {"vllm": "0.33.0", "gpu": "H200", "gpus": 8, "model": FLASH, "args": "-tp 8"},
    {"vllm": "0.24.0", "gpu": "H200", "gpus": 8, "model": FLASH, "args": "-tp 3 --no-such-flag"},
    {"vllm": "0.28.0", "model": FLASH, "args": "-tp 8"},
    {"vllm": "0.30.0", "gpu": "MI355X", "gpus": 8, "model": FLASH, "args": "-tp 8"},
    {"vllm": "0.30.0", "gpu": "B200", "gpus": 8, "model": "deepseek-ai/DeepSeek-V4.1-Flash", "args": "-tp 8"},
    {
        "vllm": "0.23.1rc1.dev788+gfa4321de3",
        "gpu": "H200",
        "gpus": 8,
        "model": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
        "args": "-tp 8 --kv-cache-dtype fp8 --spec-method dspark --spec-tokens 5",
    },
]


def test_schema_file_is_current() -> None:
    assert json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch['vllm']}-{launch.get('gpu')}")
def test_reports_are_valid(launch: dict[str, Any]) -> None:
    report = json.loads(json.dumps(run_launch(launch, fixes=True).to_dict()))
    jsonschema.validate(report, SCHEMA)
    assert report["schema_version"] == 1


def test_resolution_of_a_packed_cache() -> None:
    report = run_launch({"vllm": "0.33.0", "gpu": "H200", "gpus": 8, "model": FLASH, "args": "-tp 8"}).to_dict()
    cache = report["resolution"]["kv_cache"]
    assert (cache["requested_dtype"], cache["resolved_dtype"], cache["torch_dtype"]) == ("auto", "fp8_ds_mla", "uint8")
    assert (cache["layout"], cache["block_size"], cache["bytes_per_state"]) == ("fp8_ds_mla", 256, 584)
    pages = {
        layer["kind"]: (layer["count"], layer["page_bytes"], layer["padded_page_bytes"]) for layer in cache["layers"]
    }
    # Flash: 43 layers, 2 of them without compression at the front, then C4 and C128 in turn.
    assert pages == {
        "main_c4": (21, 37376, 37440),
        "main_c128": (20, 1168, 1728),
        "swa": (43, 37376, 37440),
        "indexer_k": (21, 8448, 8640),
        "state_c4": (21, 32768, 32832),
        "state_c128": (20, 32768, 32832),
        "state_indexer": (21, 8192, 8640),
    }
    attention = report["resolution"]["attention"]
    assert (attention["class"], attention["padded_q_heads"]) == ("DeepseekV4FlashMLAAttention", 64)
    assert report["resolution"]["runner"] == "v2"


def test_secrets_are_masked_in_flags() -> None:
    secret = '"kv_connector_extra_config":{"aws_secret_access_key":"hidden-1"}'
    extra = f'{{"kv_connector":"NixlConnector","kv_role":"kv_both",{secret}}}'
    args = [
        "-tp",
        "8",
        "--api-key",
        "hidden-2",
        "--hf-token",
        "hidden-3",
        "--max-num-batched-tokens",
        "8192",
        "--kv-transfer-config",
        extra,
    ]
    made = run_launch(LAUNCHES[0] | {"args": args, "env": {"HF_TOKEN": "hidden-5"}}, fixes=True).to_dict()
    flags = made["deployment"]["flags"]
    assert flags["api_key"] == flags["hf_token"] == "***"
    assert flags["max_num_batched_tokens"] == 8192
    assert flags["kv_transfer_config"]["kv_connector_extra_config"] == {"aws_secret_access_key": "***"}
    assert flags["kv_transfer_config"]["kv_connector"] == "NixlConnector"
    shown = json.dumps(made["deployment"]["flags"]) + json.dumps(made["deployment"]["env"])
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "name", ["ssl_keyfile_password", "hf-token", "API_KEY", "auth_token", "client_secret", "token"]
)
def test_names_of_secret_settings(name: str) -> None:
    assert masked_settings({name: "hidden", "more": [{name: ["hidden"]}]}) == {name: "***", "more": [{name: "***"}]}


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "tokenizer", "bos_token", "served_model_name", "key"])
def test_other_settings_stay(name: str) -> None:
    assert masked_settings({name: "said"}) == {name: "said"}


def test_a_bare_token_flag_is_no_secret() -> None:
    made = run_launch(LAUNCHES[0] | {"args": "-tp 8 --hf-token"}).to_dict()
    assert made["deployment"]["flags"]["hf_token"] is True


def test_secrets_in_json_words_of_the_command_are_masked() -> None:
    text = '--kv-transfer-config={"kv_connector":"X","kv_connector_extra_config":{"api_key": "sk-a\\"b","size":"12"}}'
    command = Command(("vllm", "serve"), (Token(text, Origin("flag", text)),))
    said = masked_command(command).tokens[0].text
    assert said.endswith('{"api_key": "***","size":"12"}}')
    assert "sk-a" not in said
