"""One text, several causes: the launch that the log states decides which rule comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import rules_dir
from dsv4check.engine.rule import read_sources
from dsv4check.problems import Stage
from dsv4check.triage.answer import Candidate, Sureness
from dsv4check.triage.diagnosis import triage
from dsv4check.triage.said import SaidByUser
from tests.launches import all_rules
from tests.triage.log_records import LogError
from tests.triage.logs import write_log

EXAMPLES = {record["id"]: record["examples"]["fires"] for record, *_rest in read_sources(rules_dir() / "checks")}

FP8 = LogError(
    "AssertionError", "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16", Stage.MODEL_INIT
)
SHAPE = LogError(
    "RuntimeError", "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)", Stage.WARMUP
)
ARCHITECTURE = LogError(
    "RuntimeError",
    "Assertion error (/workspace/.deps/deepgemm-src/csrc/apis/hyperconnection.hpp:56): Unsupported architecture",
    Stage.WARMUP,
)
TRANSFORMATION = LogError(
    "RuntimeError",
    "Assertion error (/workspace/.deps/deepgemm-src/csrc/apis/layout.hpp:60): Unknown SF transformation",
    Stage.WEIGHT_LOAD,
)
ILLEGAL = LogError("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", Stage.CUDAGRAPH)
ILLEGAL_SERVING = LogError(
    "torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", Stage.RUNTIME
)


def out_of_memory(stage: Stage) -> LogError:
    return LogError("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", stage)


BLOCK = LogError("ValueError", "No common block size for 64. ", Stage.KV_CACHE_INIT)
TOO_LONG = LogError(
    "ValueError",
    "To serve at least one request with the models's max seq len (1048576), (40.00 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (20.00 GiB). Try increasing `gpu_memory_utilization`.",
    Stage.KV_CACHE_INIT,
)
PARAMETER = LogError(
    "ValueError", "There is no module or parameter named 'vision' in DeepseekV4ForCausalLM", Stage.WEIGHT_LOAD
)
EXPERTS = LogError("KeyError", "'layers.0.ffn.experts.w13_weight_scale_2'", Stage.WEIGHT_LOAD)
TIMEOUT = LogError("TimeoutError", "RPC call to sample_tokens timed out.", Stage.RUNTIME)


def example(rule: str, number: int = 0) -> dict[str, Any]:
    launch = EXAMPLES[rule][number]
    assert isinstance(launch, dict)
    return launch


def answer(launch: dict[str, Any], error: LogError, folder: Path) -> tuple[Candidate, ...]:
    """vLLM's log names no GPU and no environment: the user does."""
    log = folder / "vllm.log"
    log.write_text(write_log(launch, error, "plain"), encoding="utf-8")
    said = SaidByUser(gpu=launch["gpu"], gpus=launch["gpus"], env=launch.get("env", {}))
    return triage([str(log)], all_rules(), said).candidates


def first(launch: dict[str, Any], error: LogError, folder: Path) -> str:
    found = answer(launch, error, folder)
    return found[0].rule.id if found else "unknown"


SAME_TEXT = [
    (FP8, ("KV002", "KV003", "SD053", "SD062")),
    (SHAPE, ("KV009", "KV010")),
    (ARCHITECTURE, ("GA002", "GA005", "PK003")),
    (TRANSFORMATION, ("PK001", "PK002")),
    (ILLEGAL, ("CG001",)),
    (out_of_memory(Stage.WEIGHT_LOAD), ("ME001",)),
    (out_of_memory(Stage.KV_CACHE_INIT), ("ME017",)),
    (out_of_memory(Stage.WARMUP), ("ME009",)),
    (BLOCK, ("KV012", "VX002", "VX003")),
    (TOO_LONG, ("KC003", "KC004", "ME003")),
    (PARAMETER, ("MC008",)),
    (EXPERTS, ("QN004",)),
    (TIMEOUT, ("EV015", "SD039", "SD042", "SD060", "SD065")),
]
PAIRS = [
    pytest.param(rule, error, id=f"{error.short_kind or 'line'}-{error.stage.value}-{rule}")
    for error, rules in SAME_TEXT
    for rule in rules
]


@pytest.mark.parametrize(("rule", "error"), PAIRS)
def test_the_launch_decides(rule: str, error: LogError, tmp_path: Path) -> None:
    assert first(example(rule), error, tmp_path) == rule


FLASH = "deepseek-ai/DeepSeek-V4-Flash"
HEALTHY = {"vllm": "0.33.0", "gpu": "B200", "gpus": 8, "model": FLASH, "args": "-tp 4 --kv-cache-dtype fp8"}


@pytest.mark.parametrize(
    "error", [ILLEGAL, ILLEGAL_SERVING, SHAPE, ARCHITECTURE, TRANSFORMATION], ids=lambda e: e.message[:40]
)
def test_a_launch_that_no_rule_is_about_gets_no_sure_answer(error: LogError, tmp_path: Path) -> None:
    assert all(item.sureness is Sureness.POSSIBLE for item in answer(HEALTHY, error, tmp_path))


MTP_KEY = LogError("KeyError", "'model.layers.43.mtp_block.attn.wq_b.weight_scale'", Stage.WEIGHT_LOAD)
DSPARK_KEY = LogError("KeyError", "'model.layers.43.mtp_block.main_norm.weight'", Stage.WEIGHT_LOAD)


def test_a_missing_draft_parameter_is_told_from_the_wrong_method(tmp_path: Path) -> None:
    launch = example("WT001")
    assert first(launch, DSPARK_KEY, tmp_path) == "WT001"
    assert first(launch, MTP_KEY, tmp_path) != "WT001"


@pytest.mark.parametrize(
    "error",
    [SHAPE, ARCHITECTURE, TRANSFORMATION, ILLEGAL, out_of_memory(Stage.WARMUP), BLOCK, TOO_LONG, TIMEOUT],
    ids=lambda error: error.message[:30],
)
def test_a_shared_text_alone_gives_no_sure_answer(error: LogError, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(f"(Worker_TP0 pid=88) ERROR 08-03 13:36:00 [multiproc_executor.py:1004] {error.said}\n")
    found = triage([str(log)], all_rules(), SaidByUser()).candidates
    assert all(item.sureness is Sureness.POSSIBLE for item in found)
