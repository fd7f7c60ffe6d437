from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dsv4check.errors import InputError
from dsv4check.triage.root_cause import ordered_causes
from tests.triage.read import read_text

PIECES = [
    "Traceback (most recent call last):",
    '  File "/x/site-packages/vllm/a.py", line 2, in g',
    'File "/x/y.py", li',
    "    h()",
    "ValueError: no",
    "ray.exceptions.RayTaskError(ValueError): ray::f()",
    "The above exception was the direct cause of the following exception:",
    "  + Exception Group Traceback (most recent call last):",
    "  | ExceptionGroup: a (1 sub-exception)",
    "  +-+---------------- 1 ----------------",
    "Fatal Python error: Aborted",
    "Current thread 0x1 (most recent call first):",
    '  File "a.py", line 1 in f',
    "terminate called after throwing an instance of 'x'",
    "usage: vllm",
    "vllm: error: x",
    "Worker failed with error 'a",
    "version 0.24.0",
    "Initializing a V1 LLM engine (v0.24.0) with config: x",
    "Application startup complete.",
    "",
    "^^^^",
    "\x1b[31m",
    '{"log":"a\\n","stream":"x"}',
    '{"log":"part","stream":"x"}',
    "[" * 200,
    "{" * 2000 + "}",
]
FRONTS = [
    "",
    "(EngineCore pid=1) ",
    "(Worker_TP0 pid=2) ERROR 11-30 10:00:00 [a.py:1] ",
    "vllm-1  | ",
    "> ",
    "0: ",
    "INFO:    ",
]
LINES = st.tuples(st.sampled_from(FRONTS), st.sampled_from(FRONTS), st.sampled_from(PIECES) | st.text(max_size=60)).map(
    "".join
)


def use(raw: bytes) -> None:
    reading = read_text(raw)
    for run in reading.runs:
        for event in ordered_causes(run):
            assert event.said is not None
            assert len(event.excerpt) <= 14
            assert event.times >= 1


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=40), st.sampled_from(["\n", "\r\n", "\r", "\n\r"]))
def test_garbled_logs(lines: list[str], end: str) -> None:
    with suppress(InputError):
        use(end.join(lines).encode("utf-8", "surrogatepass"))


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"\x1f\x8b\x08", b"\xff\xfe", b"\xfe\xff", b"ERROR 11-30 10:00:00 [a.py:1] "]),
)
def test_any_bytes(raw: bytes, front: bytes) -> None:
    with suppress(InputError):
        use(front + raw)


@pytest.mark.parametrize(
    "line",
    [
        "a." * 30_000,
        "a" * 60_000 + "!",
        " " * 60_000 + "x",
        "(" * 60_000,
        "((A pid=1) " * 5_000,
        "2026-11-30T10:00:00Z " * 2_500,
        '  File "' * 8_000,
        '  File "' + "x" * 60_000,
        "> " * 30_000,
        "~^" * 30_000 + "x",
        "\x1b[" * 20_000,
        "\x1b]" * 20_000,
        "[0;" * 20_000,
        "&#x27" * 12_000,
        "<p " * 20_000,
        "`" * 60_000,
        "1 " * 30_000,
        "[a] " * 15_000,
        "Error: " * 9_000,
        "x: error: " * 6_000,
        "a " * 20_000 + ": error: x",
        "NVIDIA version " * 4_000,
        "Initializing a LLM engine" * 2_000,
        "ERROR 11-30 10:00:00 [" + "a" * 60_000,
        "Worker failed with error '" * 2_000,
        "[repeated 7x across cluster]" * 2_000 + ")",
        "1234567890" * 6_000,
        ".cu:1 Assertion " * 4_000,
        "{" + '"a":' * 15_000 + "}",
        "[" * 60_000 + "]",
        "a|" * 30_000,
        "-" * 60_000,
        "\r".join("ValueError: a" for _ in range(4_000)),
    ],
    ids=lambda line: line[:12],
)
def test_lines_that_are_made_to_be_slow(line: str) -> None:
    use(b"warm up\n")
    begin = time.process_time()
    use(f"{line}\n{line}\nERROR 11-30 10:00:00 [a.py:1] {line}\nValueError: {line}\n".encode())
    assert time.process_time() - begin < 1.5


def test_a_chain_without_end() -> None:
    once = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: {n}\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
    )
    use("".join(once.replace("{n}", "x" * (number % 50)) for number in range(5_000)).encode())


def test_a_process_per_line() -> None:
    use("".join(f"(W{number} pid={number}) Traceback (most recent call last):\n" for number in range(5_000)).encode())
