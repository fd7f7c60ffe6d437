"""The written logs themselves: every form shows the failure, and is what its log driver or terminal would write."""

from __future__ import annotations

import ast
import itertools
import json
import re
from typing import Any

import pytest

from dsv4check.engine.rule import Severity
from dsv4check.problems import Stage
from tests.engine.test_rules import SOURCES
from tests.launches import all_rules
from tests.triage.log_errors import frame_place, satisfied
from tests.triage.log_forms import BY_NAME, key_line
from tests.triage.log_records import LogError
from tests.triage.log_table import LogFrame, table
from tests.triage.logs import FORMS, error_of, sample_for, write_log, write_start
from tests.triage.regex_text import text_for

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
LAUNCH: dict[str, Any] = {"vllm": "0.24.0", "gpu": "H200", "gpus": 8, "model": FLASH, "args": "-tp 4"}
NEWER: dict[str, Any] = {**LAUNCH, "vllm": "0.33.0"}
ERRORS = (
    LogError("argparse", "unrecognized arguments: --spec-tokens 1", Stage.ARGPARSE),
    LogError("KeyError", "'FLASHMLA'", Stage.ARGPARSE),
    LogError("ValueError", "max_num_batched_tokens (16) must be greater", Stage.ENGINE_CONFIG),
    LogError("AssertionError", "DeepseekV4 only supports fp8 kv-cache format for now, got auto", Stage.MODEL_INIT),
    LogError("KeyError", "'lm_head.weight'", Stage.WEIGHT_LOAD),
    LogError("ValueError", "No common block size for 64", Stage.KV_CACHE_INIT),
    LogError("RuntimeError", "setStorage: sizes [4, 2], strides [2, 1] are out of bounds", Stage.KV_CACHE_INIT),
    LogError("RuntimeError", "PDL is not supported", Stage.WARMUP),
    LogError("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", Stage.CUDAGRAPH),
    LogError("AssertionError", "", Stage.RUNTIME),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.stage}-{error.short_kind}")
def test_every_form_shows_the_failure(form: str, error: LogError) -> None:
    text = write_log(LAUNCH, error, form)
    if form == "json-file":
        text = "".join(json.loads(line)["log"] for line in text.splitlines())
    if form == "wrapped":
        text = text.replace("\n", "")
    assert key_line(error) in re.sub(r"\033\[[0-9;]*m", "", text)


@pytest.mark.parametrize("form", BY_NAME)
def test_a_seed_gives_one_text(form: str) -> None:
    assert write_log(LAUNCH, ERRORS[3], form, 5) == write_log(LAUNCH, ERRORS[3], form, 5)
    assert write_log({**LAUNCH, "args": ""}, ERRORS[7], form) != ""


@pytest.mark.parametrize("version", table()["releases"])
def test_every_release_writes_every_stage(version: str) -> None:
    for error in ERRORS:
        text = write_log({**LAUNCH, "vllm": version}, error, "plain")
        assert error.said in re.sub(r"\([A-Z]\w+ pid=\d+\) (?:ERROR [\d-]+ [\d:]+ \[[\w.:]+\] )?", "", text)
        assert f"version {version}" in text or error.stage is Stage.ARGPARSE


def test_prefixes_before_and_after_the_logger_names_the_process() -> None:
    older, newer = (write_log(launch, ERRORS[3], "plain") for launch in (LAUNCH, NEWER))
    assert "(Worker_TP3 pid=643) ERROR 11-30 10:00:34 [multiproc_executor.py:898] AssertionError: Deep" in older
    assert "(Worker_TP3 pid=643) ERROR 11-30 10:00:34 [multiproc_executor.py:1057] AssertionError: Deep" in newer
    assert "(APIServer pid=1) RuntimeError: Engine core initialization failed." in older
    assert "\nRuntimeError: Engine core initialization failed." in newer
    assert "(EngineCore pid=311) Exception: WorkerProc initialization failed" in older
    assert "\nException: WorkerProc initialization failed" in newer


def test_records_of_several_lines_have_carriage_returns() -> None:
    lines = write_log(LAUNCH, ERRORS[3], "plain").split("\n")
    inner = [line for line in lines if "multiproc_executor.py:898]" in line]
    assert all(line.endswith("\r") for line in inner if "AssertionError: " not in line)
    assert sum("AssertionError: " in line for line in inner) == 4


def test_progress_is_one_line_of_states() -> None:
    lines = write_log(LAUNCH, ERRORS[5], "plain").split("\n")
    bars = [line for line in lines if "Loading safetensors" in line]
    assert len(bars) == 1
    assert bars[0].count("\r") == 8
    assert "blob data" in write_log(LAUNCH, ERRORS[5], "journald")


def test_one_gpu_has_no_workers() -> None:
    text = write_log({**LAUNCH, "args": ""}, ERRORS[3], "plain")
    assert "WorkerProc" not in text
    assert "uniproc_executor.py" in text
    assert "(EngineCore pid=311) ERROR" in text


def test_data_parallel_names() -> None:
    text = write_log({**LAUNCH, "args": "-dp 8 --enable-expert-parallel"}, ERRORS[7], "plain")
    assert "(Worker_DP7_EP7 pid=" in text
    assert "(EngineCore_DP3 pid=314) ERROR" in text
    assert "DPEngineCoreProc" in text


def test_ranks_of_a_container_are_interleaved() -> None:
    text = re.sub(r"\033\[[0-9;]*m", "", write_log(LAUNCH, ERRORS[3], "docker"))
    who = [found.group(1) for found in re.finditer(r"\((Worker_TP\d) pid=\d+\) ERROR", text)]
    changes = sum(one != other for one, other in itertools.pairwise(who))
    assert changes > 40
    assert all(re.match(r"vllm-1  \| 2026-11-30T10:0\d:\d\d\.\d{9}Z ", line) for line in text.splitlines())
    assert who.count("Worker_TP0") == who.count("Worker_TP3")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("kubectl", r"\[pod/vllm-dsv4-0/vllm\] "),
        ("cri", r"2026-11-30T10:0\d:\d\d\.\d{9}Z stderr [FP] "),
        ("journald", r"Nov 30 10:0\d:\d\d gpu-node vllm\[4242\]: "),
        ("ray", r"\((APIServer pid=1|EngineCore pid=311)\) |[/ ]"),
    ],
)
def test_prefixes(form: str, pattern: str) -> None:
    for line in write_log(LAUNCH, ERRORS[3], form).split("\n")[:-1]:
        assert re.match(pattern, line) or not line, line


def test_ray_names_its_workers() -> None:
    text = write_log(LAUNCH, ERRORS[3], "ray")
    assert "(EngineCore pid=311) (RayWorkerWrapper pid=144) ERROR" in text
    assert "(RayWorkerWrapper pid=145, ip=192.0.2.12) ERROR" in text
    assert "[repeated 3x across cluster]" in text
    assert "Worker_TP" not in text


def test_non_default_args_are_a_dictionary() -> None:
    args = [
        "-tp",
        "4",
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":2}',
        "--max-model-len",
        "8192",
    ]
    text = write_log({**LAUNCH, "args": args}, ERRORS[3], "plain")
    found = re.search(r"non-default args: (\{.*\})", text)
    assert found is not None
    values = ast.literal_eval(found.group(1))
    assert values["tensor_parallel_size"] == 4
    assert values["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert values["max_model_len"] == 8192
    assert values["model_tag"] == values["model"] == FLASH
    assert "gpu_memory_utilization" not in values


def test_config_objects_are_printed_as_such() -> None:
    transfer = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    graphs = '{"cudagraph_mode":"FULL_AND_PIECEWISE"}'
    args = ["--kv-transfer-config", transfer, "--compilation-config", graphs]
    text = write_log({**LAUNCH, "args": args}, ERRORS[3], "plain")
    assert "'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', engine_id='" in text
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>" in text


def test_a_refused_command_line_has_no_banner() -> None:
    text = write_log(LAUNCH, ERRORS[0], "plain")
    assert text == (
        "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --spec-tokens 1\n"
    )


def test_a_failing_step_comes_after_traffic() -> None:
    text = write_log(LAUNCH, ERRORS[9], "plain")
    order = [
        "Application startup complete.",
        "200 OK",
        "WorkerProc hit an exception.",
        "fatal error",
        "EngineDeadError",
    ]
    places = [text.index(item) for item in order]
    assert places == sorted(places)


def test_workers_repeat_the_traceback_of_a_call() -> None:
    text = write_log(LAUNCH, ERRORS[7], "plain")
    assert text.count("RuntimeError: PDL is not supported") == 8
    assert "RuntimeError: Worker failed with error 'PDL is not supported', please check" in text


def test_planning_fails_in_the_engine() -> None:
    text = write_log(LAUNCH, ERRORS[5], "plain")
    assert "WorkerProc" not in text
    assert "(EngineCore pid=311) ERROR" in text


def test_a_warning_lets_the_start_go_on() -> None:
    warning = LogError("", "Turning off hybrid kv cache manager because", Stage.KV_CACHE_INIT, level="WARNING")
    text = write_log(LAUNCH, warning, "plain")
    assert re.search(r"\(Worker_TP0 pid=640\) WARNING .*Turning off hybrid", text)
    assert text.index("Turning off hybrid") < text.index("Application startup complete.")
    assert "Traceback" not in text


@pytest.mark.parametrize("rule", ["CG002", "GA012", "KV011", "ME004", "MC038", "PK011", "PA005", "SD039", "KC027"])
def test_what_ends_a_start_is_an_error_however_the_rule_ranks_it(rule: str) -> None:
    launch = next(record for record, _area, _path in SOURCES if record["id"] == rule)["examples"]["fires"][0]
    error = error_of(rule, launch)
    assert error is not None
    text = write_log(launch, error, "plain")
    assert "Traceback (most recent call last):" in text
    assert "WARNING" not in next(line for line in text.splitlines() if key_line(error) in line)


def test_a_part_of_a_text_is_written_as_the_whole() -> None:
    launch = next(record for record, _area, _path in SOURCES if record["id"] == "GA002")["examples"]["fires"][0]
    error = error_of("GA002", launch)
    assert error is not None
    place = "/workspace/.deps/deepgemm-src/csrc/apis/hyperconnection.hpp:56"
    assert error.said == f"RuntimeError: Assertion error ({place}): Unsupported architecture"


def test_a_native_abort_has_no_traceback_of_its_own() -> None:
    error = LogError("", "Memory access fault by GPU node-8 on address 0x7f3c1a200000.", Stage.WARMUP)
    text = write_log(LAUNCH, error, "plain")
    assert text.count("Memory access fault") == 1
    assert "died unexpectedly, shutting down executor" in text
    assert text.index("Memory access fault") < text.index("Traceback")


def test_a_failed_request_does_not_stop_the_server() -> None:
    error = LogError("ValueError", "no chat template", Stage.RUNTIME, survived=True)
    text = write_log(LAUNCH, error, "plain")
    assert "ERROR 11-30" in text
    assert text.index("Application startup complete.") < text.index("ValueError: no chat template")
    assert "EngineDeadError" not in text


def test_the_report_of_a_draft_stands_alone() -> None:
    said = "SpecDecoding metrics: Avg Draft acceptance rate: 0.8%"
    text = write_log(LAUNCH, LogError("", said, Stage.ACCURACY, level="INFO"), "plain")
    assert text.count("SpecDecoding metrics") == 1
    assert "WARNING" not in text


@pytest.mark.parametrize("rule", ["EN014", "SD002", "SD003", "SD004", "SD044"])
@pytest.mark.parametrize("form", ["paste", "bare"])
def test_a_paste_ends_with_the_refused_field(rule: str, form: str) -> None:
    launch = next(record for record, _area, _path in SOURCES if record["id"] == rule)["examples"]["fires"][0]
    error = error_of(rule, launch)
    assert error is not None
    text = write_log(launch, error, form)
    assert "non-default args" not in text
    assert key_line(error) in text
    assert "Input should be" in key_line(error) or "Unexpected keyword" in key_line(error)


def test_a_start_that_works_and_one_that_hangs() -> None:
    text = write_log(LAUNCH, None, "plain")
    assert "Application startup complete." in text
    assert "ERROR" not in text
    hangs = write_start(LAUNCH, Stage.WEIGHT_LOAD)
    assert "Starting to load model" in hangs
    assert "Loading weights took" not in hangs


def test_a_bug_report_names_what_the_template_asks_for() -> None:
    launch = {**LAUNCH, "packages": {"flashinfer-python": "0.6.9"}, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
    for form in ("github-issue", "zh-issue"):
        text = write_log(launch, ERRORS[3], form)
        assert text.count("GPU 7: NVIDIA H200") == 1
        assert "vLLM Version                 : 0.24.0" in text
        assert "[pip3] flashinfer-python==0.6.9" in text
        assert "export VLLM_USE_V2_MODEL_RUNNER=1\nvllm serve deepseek-ai/DeepSeek-V4-Flash \\\n  -tp 4" in text
    assert "报错" in write_log(launch, ERRORS[3], "zh-issue")


def test_pastes_are_short() -> None:
    paste, bare = (write_log(LAUNCH, ERRORS[3], form) for form in ("paste", "bare"))
    for text in (paste, bare):
        assert len(text.splitlines()) <= 20
        assert "non-default args" not in text
    assert re.search(r"0\.24\.0.*NVIDIA H200", paste.splitlines()[0])
    assert "0.24.0" not in bare
    assert "H200" not in bare


def test_frames_of_the_failure_come_last() -> None:
    frame = LogFrame("vllm/models/deepseek_v4/attention.py", 80, "_resolve_dsv4_kv_cache_dtype", "raise ValueError(")
    error = LogError("ValueError", "no such dtype", Stage.MODEL_INIT, (frame,))
    lines = write_log(LAUNCH, error, "bare").splitlines()
    assert lines[-3].endswith('vllm/models/deepseek_v4/attention.py", line 80, in _resolve_dsv4_kv_cache_dtype')
    assert lines[-1] == "ValueError: no such dtype"


def test_a_bare_assertion_shows_its_condition_in_the_last_frame() -> None:
    launch = next(record for record, _area, _path in SOURCES if record["id"] == "PA047")["examples"]["fires"][0]
    error = error_of("PA047", launch)
    assert error is not None
    lines = write_log(launch, error, "bare").splitlines()
    assert lines[-2:] == ["    assert parallel_config.local_engines_only or dp_rank == 0", "AssertionError"]


def test_other_vendors_are_named() -> None:
    launch = {**LAUNCH, "gpu": "MI355X", "vllm": "0.26.0"}
    text = write_log(launch, ERRORS[3], "github-issue")
    assert "GPU 0: AMD Instinct MI355X" in text
    assert "ROCM Version                 : 7.0" in text
    assert "models/deepseek_v4/amd/model.py" in text


def test_crash_loop_has_three_starts_in_order() -> None:
    text = write_log(LAUNCH, ERRORS[3], "crash-loop")
    assert text.count("version 0.24.0") == 3
    stamps = re.findall(r" 11-30 (\d\d:\d\d:\d\d) ", text)
    assert stamps == sorted(stamps)


def test_tail_begins_with_the_end_of_the_cause() -> None:
    lines = write_log(LAUNCH, ERRORS[3], "tail").splitlines()
    place = next(number for number, line in enumerate(lines) if "AssertionError: Deep" in line)
    assert place <= 9
    assert "non-default args" not in "\n".join(lines)
    assert "AssertionError: Deep" not in write_log(LAUNCH, ERRORS[3], "consequences")


@pytest.mark.parametrize(
    "record",
    [record for record, _area, _path in SOURCES if "log" not in record["examples"]["fires"][0]],
    ids=lambda record: record["id"],
)
def test_rules_have_a_failure_to_write(record: dict[str, Any]) -> None:
    """What the finding states, or a sample that the rule's signatures find."""
    rule = next(item for item in all_rules() if item.id == record["id"])
    launch = record["examples"]["fires"][0]
    error = error_of(rule.id, launch)
    sample = sample_for(rule)
    if rule.signatures:
        assert sample is not None
        assert satisfied(rule, sample), (sample.said, [frame_place(frame) for frame in sample.frames])
    if error is None:
        assert not rule.signatures
        return
    assert error.message or error.kind
    assert key_line(error) in write_log(launch, error, "plain")
    if rule.severity is not Severity.ERROR and not error.fatal:
        assert "Application startup complete." in write_log(launch, error, "plain")


@pytest.mark.parametrize(
    "expression",
    [
        r"error: argument --[\w/-]+: invalid \w+ value: ",
        r"^AssertionError$",
        r"validation errors? for SpeculativeConfig\b[\s\S]*input_value='dspark'",
        r"only supports fp8 kv-cache, got (?!auto)\w+",
        r"(hyperconnection|layout)\.hpp:\d+\): (Unsupported architecture|Unknown)",
        r"Capturing CUDA graphs.*\n(.*\n)*.*illegal memory access",
        r"a{3}[^\n]b|c\d{2,}",
    ],
)
def test_texts_for_expressions(expression: str) -> None:
    text = text_for(expression)
    assert text is not None
    assert re.search(expression, text, re.MULTILINE)
    assert text == text_for(expression)


def test_no_text_for_what_nothing_matches() -> None:
    assert text_for(r"a(?!a)a") is None
