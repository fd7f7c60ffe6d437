from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.triage.read import plain

LOGGER = '(EngineCore_DP0 pid=311) ERROR 11-30 10:00:00 [core.py:1110]   File "x.py", line 3, in run'
RAW = "(EngineCore_DP0 pid=311)     raise ValueError("

CONTAINERS = {
    "none": "",
    "compose": "vllm-1  | ",
    "compose-short": "vllm  | ",
    "docker-t": "2026-11-30T10:00:00.123456789Z ",
    "kubectl": "2026-11-30T10:00:00.123456789+02:00 ",
    "desktop": "2026-11-30 10:00:00.123 | ",
    "compose-t": "vllm-1  | 2026-11-30T10:00:00.123456789Z ",
    "pod": "[pod/vllm-0/vllm] ",
    "pod-t": "[pod/vllm-7f9c-x2x/vllm] 2026-11-30T10:00:00.123456789Z ",
    "cri": "2026-11-30T10:00:00.123456789Z stderr F ",
    "journal": "Nov 30 10:00:00 node-7 vllm[123]: ",
    "journal-iso": "2026-11-30T10:00:00+0000 node-7 vllm[123]: ",
    "actions": "2026-11-30T10:00:00.1234567Z ",
    "gh": "serve\tRun vllm\t2026-11-30T10:00:00.1234567Z ",
    "rank": "[rank3]: ",
    "colour": "\x1b[1;36m",
    "lost-escape": "[0;36m",
    "quote": "> ",
    "quotes": "> > ",
}


@pytest.mark.parametrize("front", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers(front: str) -> None:
    frame, raw = plain(front + LOGGER, front + RAW)
    assert (frame.process, frame.level, frame.module) == ("EngineCore_DP0", "ERROR", "core.py:1110")
    assert frame.text == '  File "x.py", line 3, in run'
    assert (raw.text, raw.process, raw.level) == ("    raise ValueError(", "EngineCore_DP0", "")
    assert frame.stream == raw.stream


@pytest.mark.parametrize("front", ["0: ", "[node01] ", "vllm-0 vllm ", "  12 ", "12: "])
def test_labels_are_learned_from_lines_that_are_sure(front: str) -> None:
    lines = plain(*[front + LOGGER] * 4, front + "ValueError: no")
    assert [line.text for line in lines[:4]] == ['  File "x.py", line 3, in run'] * 4
    assert lines[4].text == "ValueError: no"


def test_numbers_of_tasks_tell_streams_apart_numbers_of_lines_do_not() -> None:
    tasks = plain(*(f"{number % 2}: {LOGGER}" for number in range(8)))
    assert len({line.stream for line in tasks[2:]}) == 2
    numbered = plain(*(f"{number}: {LOGGER}" for number in range(1, 9)))
    assert len({line.stream for line in numbered}) == 1


@pytest.mark.parametrize(
    ("text", "process", "level", "module", "message"),
    [
        ("ERROR 11-30 10:00:00 [core.py:1110] a b", "", "ERROR", "core.py:1110", "a b"),
        ("WARNING 11-30 10:00:00.123 [v1/engine/core.py:7] a", "", "WARNING", "v1/engine/core.py:7", "a"),
        ("INFO 2026-11-30 10:00:00 [utils.py:1] a", "", "INFO", "utils.py:1", "a"),
        ("INFO 06-05 16:30:08 worker_base.py:148] a", "", "INFO", "worker_base.py:148", "a"),
        (
            "(Worker_DP1_TP0_EP4 pid=9) DEBUG 11-30 10:00:00 [model_executor/.../utils/fp8_utils.py:12] a",
            "Worker_DP1_TP0_EP4",
            "DEBUG",
            "model_executor/.../utils/fp8_utils.py:12",
            "a",
        ),
        ("my-prefix (ApiServer_2 pid=9) INFO 11-30 10:00:00 [a.py:1] b", "ApiServer_2", "INFO", "a.py:1", "b"),
        ("(VllmWorker rank=3 pid=4665) ERROR 08-05 14:13:44 [x.py:4] b", "VllmWorker rank=3", "ERROR", "x.py:4", "b"),
        (
            "(EngineCore pid=311) (RayWorkerWrapper pid=144, ip=172.18.0.2) boom",
            "RayWorkerWrapper pid=144",
            "",
            "",
            "boom",
        ),
        (
            "(APIServer pid=1) INFO:     Application startup complete.",
            "APIServer",
            "INFO",
            "",
            "Application startup complete.",
        ),
        (
            "[rank0]:[W424 10:12:58.109407662 ProcessGroupNCCL.cpp:1575] Warning: x",
            "rank0",
            "WARNING",
            "ProcessGroupNCCL.cpp:1575",
            "Warning: x",
        ),
        ("ERROR:    [Errno 98] address already in use", "", "ERROR", "", "[Errno 98] address already in use"),
        ("plain text", "", "", "", "plain text"),
    ],
)
def test_process_and_logger(text: str, process: str, level: str, module: str, message: str) -> None:
    (line,) = plain(text)
    assert (line.process, line.level, line.module, line.text) == (process, level, module, message)


def test_ray_says_how_often() -> None:
    (line,) = plain(
        "(RayWorkerWrapper pid=1, ip=10.0.0.2) ValueError: a [repeated 7x across cluster] (Ray deduplicates)"
    )
    assert (line.text, line.times) == ("ValueError: a", 8)


@pytest.mark.parametrize(
    "record",
    [
        {"log": LOGGER + "\n", "stream": "stderr", "time": "2026-11-30T10:00:00Z"},
        {"message": LOGGER, "timestamp": "x"},
        {"msg": LOGGER, "level": "info"},
    ],
)
def test_records_of_collectors(record: dict[str, str]) -> None:
    (line,) = plain(json.dumps(record))
    assert (line.text, line.process, line.level) == ('  File "x.py", line 3, in run', "EngineCore_DP0", "ERROR")


def test_vllm_s_own_json_with_a_traceback() -> None:
    record = {
        "asctime": "2026-11-30 10:00:00,000",
        "levelname": "ERROR",
        "name": "vllm.v1.engine.core",
        "processName": "EngineCore_DP0",
        "process": 9,
        "message": "EngineCore failed to start.",
        "exc_info": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no',
    }
    lines = plain(json.dumps(record))
    assert [line.text for line in lines] == [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ValueError: no",
    ]
    assert {(line.level, line.process) for line in lines} == {("ERROR", "EngineCore_DP0")}


def test_parts_of_a_line_that_the_runtime_cut() -> None:
    stamp = "2026-11-30T10:00:00.1Z stdout"
    assert [line.text for line in plain(f"{stamp} P INFO 11-30 10:00:00 [a.py:1] be", f"{stamp} F gin")] == ["begin"]
    records = [{"log": "Value", "stream": "stdout"}, {"log": "Error: x\n", "stream": "stdout"}]
    assert [line.text for line in plain(*map(json.dumps, records))] == ["ValueError: x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```ValueError: x```", "ValueError: x"),
        ("```python", ""),
        ("AssertionError: a &gt; b &#x27;c&#x27;", "AssertionError: a > b 'c'"),
        ("<details><summary>ValueError: x</summary>", "ValueError: x"),
        ("\x01\x00\x00\x00\x00\x00\x00\x0fValueError: x", "ValueError: x"),
        ("^[[31mValueError: x^[[0m", "ValueError: x"),
        ("KeyError: [0] m", "KeyError: [0] m"),
        ("x = a[0m]", "x = a[0m]"),
    ],
)
def test_marks_around_a_line(text: str, message: str) -> None:
    (line,) = plain(text)
    assert line.text == message
