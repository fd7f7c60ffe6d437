"""What is read from the forms in which a log reaches a person: the failure first, and the launch it states."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import rules_dir
from dsv4check.engine.rule import read_sources
from dsv4check.problems import Stage
from dsv4check.triage.events import MOST_EARLY, MOST_LATE
from dsv4check.triage.reading import read_logs
from dsv4check.triage.records import ErrorEvent, LogReading, Stated
from dsv4check.triage.root_cause import ordered_causes
from dsv4check.triage.stated import read_stated
from tests.launches import all_rules
from tests.triage.log_errors import satisfied
from tests.triage.log_forms import key_line
from tests.triage.log_launch import checked
from tests.triage.logs import FORMS, LogError, error_of, sample_for, write_log
from tests.triage.read import causes, read_text

Example = tuple[str, dict[str, Any], LogError]
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
LAUNCH: dict[str, Any] = {"vllm": "0.24.0", "gpu": "H200", "gpus": 8, "model": FLASH, "args": "-tp 4"}
MISSING = LogError("KeyError", "'lm_head.weight'", Stage.WEIGHT_LOAD)
STARTS = ("plain", "docker", "kubectl", "cri", "journald", "json-file", "ray", "github-issue", "zh-issue", "wrapped")
"""Forms that show the begin of the log."""
QUOTING = ("KC014", "PA018", "FL018", "CG001", "GA001", "WT022")
"""Rules whose texts have been hard to read."""
PER_FORM = 5


@cache
def sources() -> list[dict[str, Any]]:
    found = [record for record, _area, _path in read_sources(rules_dir() / "checks") if record.get("signatures")]
    return [record for record in found if any("log" not in item for item in record["examples"]["fires"])]


@cache
def example(rule_id: str) -> Example | None:
    record = next(item for item in sources() if item["id"] == rule_id)
    launch = next(item for item in record["examples"]["fires"] if "log" not in item)
    rule = next(item for item in all_rules() if item.id == rule_id)
    error = error_of(rule_id, launch)
    if error is None or not satisfied(rule, error):
        error = sample_for(rule)
    return None if error is None else (rule_id, launch, error)


@cache
def plainly(rule_id: str) -> str:
    found = example(rule_id)
    assert found is not None
    return write_log(found[1], found[2], "plain")


@cache
def plainly_read(rule_id: str) -> tuple[ErrorEvent | None, Stated]:
    reading = read_text(plainly(rule_id))
    return next(iter(ordered_causes(reading.runs[-1])), None), read_stated(reading, reading.runs[-1])


def sample(form: str, *, hard: bool = True) -> list[Example]:
    """Some rules, others for each form."""
    known = sorted(record["id"] for record in sources())
    at = [*FORMS, "consequences"].index(form)
    chosen = [*(QUOTING if hard else ()), *known[at * 5 :: max(len(known) // PER_FORM, 1)]]
    return [found for name in dict.fromkeys(chosen) if name in known and (found := example(name)) is not None]


def squeezed(text: str) -> str:
    return re.sub(r"[\s`]+", "", text)


def said(error: LogError) -> str:
    if error.kind == "argparse":
        return error.said.removeprefix("vllm serve: ")
    return error.said.replace(error.kind, error.short_kind, 1)


@pytest.mark.parametrize("form", [*FORMS, "consequences"])
def test_the_failure_comes_first(form: str) -> None:
    looked_at = 0
    for rule, launch, error in sample(form):
        text = write_log(launch, error, form)
        shown = json.dumps(text)[1:-1] if form == "json-file" else re.sub(r"\x1b\[[\d;]*m", "", text)
        if form != "json-file" and squeezed(error.said.split("\n")[0]) not in squeezed(shown):
            # A cut log may not hold what the failure begins with.
            continue
        looked_at += 1
        run = read_text(text).runs[-1]
        if not error.fatal:
            where = read_text(text).runs[0] if form == "crash-loop" else run
            assert any(squeezed(error.said) in squeezed(line.text) for line in where.lines), rule
            continue
        first = ordered_causes(run)[0]
        assert squeezed(said(error)) in squeezed(first.said), (rule, key_line(error))
        assert not first.survived, rule
    assert looked_at > PER_FORM // 2


@pytest.mark.parametrize("form", STARTS)
def test_the_launch_is_stated(form: str) -> None:
    looked_at = 0
    for rule, launch, error in sample(form, hard=False):
        text = write_log(launch, error, form)
        if error.kind == "argparse" or "non-default args" not in text:
            continue
        known = checked(launch)
        reading = read_text(text)
        stated = read_stated(reading, reading.runs[-1])
        looked_at += 1
        assert stated.vllm == known.version, rule
        assert stated.model == known.model, rule
        assert stated.words == plainly_read(rule)[1].words, rule
        assert stated.words or not known.words, rule
    assert looked_at > 1


def with_bars(text: str) -> str:
    bar = "\rLoading: {n}%|##  | {n}/99\rLoading safetensors checkpoint shards:  {n}% Completed | 1/46 [00:01<00:10]\r"
    lines = text.replace("\r", "").split("\n")
    return "\n".join(
        line + (f"\n{bar.format(n=number % 99)}" if number % 7 == 3 else "") for number, line in enumerate(lines)
    )


def per_line(pattern: str) -> Callable[[str], str]:
    return lambda text: "\n".join(pattern.format(n=n, line=line) for n, line in enumerate(text.split("\n"), 1))


def as_records(make: Callable[[str], dict[str, Any]]) -> Callable[[str], str]:
    return lambda text: "\n".join(json.dumps(make(line)) for line in text.split("\n"))


COPIES: dict[str, Callable[[str], str | bytes]] = {
    "crlf": lambda text: text.replace("\r", "").replace("\n", "\r\n"),
    "bars": with_bars,
    "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "gb18030": lambda text: text.encode("gb18030"),
    "numbered": per_line("{n:5d}  {line}"),
    "numbered-tab": per_line("{n:6d}\t{line}"),
    "numbered-bar": per_line("{n:4d} | {line}"),
    "quoted": per_line("> {line}"),
    "quoted-twice": per_line("> > {line}"),
    "indented": per_line("      {line}"),
    "one-line": lambda text: " ".join(line.strip("\r") for line in text.split("\n")),
    "one-line-squeezed": lambda text: re.sub(r"\s+", " ", text),
    "loki": as_records(lambda line: {"line": line, "timestamp": "1764496800", "labels": {"pod": "vllm-0"}}),
    "datadog": as_records(lambda line: {"id": "A", "attributes": {"message": line, "service": "vllm"}}),
    "gcp": as_records(lambda line: {"jsonPayload": {"message": line}, "severity": "DEFAULT"}),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_say_the_same(name: str) -> None:
    for rule, _launch, error in sample("plain"):
        if not error.fatal:
            continue
        first, known = plainly_read(rule)
        after = read_text(COPIES[name](plainly(rule)))
        copied = ordered_causes(after.runs[-1])[0]
        assert first is not None
        assert squeezed(copied.said).startswith(squeezed(first.said)[:2_000]), rule
        assert copied.places[-1:] == first.places[-1:], rule
        stated = read_stated(after, after.runs[-1])
        assert (stated.vllm, stated.model, stated.words) == (known.vllm, known.model, known.words), rule


def test_marks_of_quotation_stay_in_wrapped_lines() -> None:
    assert causes("> Traceback (most recent call last):\n> ValueError: a <b> c\n")[0].said == "ValueError: a <b> c"
    assert "> c" in causes("INFO x\nValueError: a <b\n> c\nINFO y\n")[0].said


# -- starts and files ----------------------------------------------------------------------------------------


def opening(count: int = 12) -> str:
    """A start that dies before its engine is set up."""
    return "\n".join(write_log(LAUNCH, None, "plain").split("\n")[:count]) + "\n"


def test_a_silent_death_ends_a_start() -> None:
    log = write_log(LAUNCH, MISSING, "plain")
    runs = read_text(opening() + opening() + log).runs
    assert [len(run.events) > 0 for run in runs] == [False, False, True]
    assert all(run.first is not None for run in runs)
    other = log.replace("APIServer pid=1)", "APIServer pid=77)")
    assert len(read_text(opening() + "$ ls\n" * 40 + other).runs) == 2


def test_containers_that_start_together_are_one_start() -> None:
    both = [f"vllm-{number}  | {line}" for line in opening().splitlines() for number in (0, 1)]
    assert len(read_text("\n".join(both)).runs) == 1


def test_lines_before_the_banner_belong_to_the_next_start() -> None:
    early = "(APIServer pid=1) WARNING 11-30 09:59:58 [cli.py:1] an early warning\n"
    runs = read_text((early + write_log(LAUNCH, MISSING, "plain")) * 2).runs
    assert [any("early" in line.text for line in run.lines) for run in runs] == [True, True]


def test_errors_beyond_the_limit_are_said_to_be_left_out() -> None:
    words = [
        f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(MOST_EARLY + MOST_LATE + 40)
    ]
    text = "".join(f"INFO 11-30 10:00:00 [a.py:1] step\nValueError: unlike: x{word}y\n" for word in words)
    reading = read_text(text)
    found = [event.message for event in reading.runs[0].events]
    assert len(found) == MOST_EARLY + MOST_LATE
    assert (found[0], found[-1]) == (f"unlike: x{words[0]}y", f"unlike: x{words[-1]}y")
    assert any("40 errors were left out" in note for note in reading.notes)


def of_files(folder: Path, *texts: str) -> LogReading:
    names = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.log"
        path.write_text(text, encoding="utf-8")
        names.append(str(path))
    return read_logs(names)


def parted(text: str) -> tuple[str, str]:
    """What went to stderr by itself, and what the logger wrote."""
    lines = text.replace("\r", "").split("\n")
    logged = [line for line in lines if re.search(r"(?:INFO|WARNING|ERROR) \d\d-\d\d ", line)]
    return "\n".join(line for line in lines if line not in logged), "\n".join(logged)


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
@pytest.mark.parametrize("turned", [False, True])
def test_streams_in_two_files(version: str, turned: bool, tmp_path: Path) -> None:
    raw, logged = parted(write_log({**LAUNCH, "vllm": version}, MISSING, "plain"))
    reading = of_files(tmp_path, *((logged, raw) if turned else (raw, logged)))
    assert len(reading.runs) == 1
    assert ordered_causes(reading.runs[0])[0].said == "KeyError: 'lm_head.weight'"
    stated = read_stated(reading, reading.runs[0])
    assert (stated.vllm, stated.model) == (version, FLASH)


@pytest.mark.parametrize("turned", [False, True])
def test_nodes_in_two_files(turned: bool, tmp_path: Path) -> None:
    lines = write_log(LAUNCH, MISSING, "plain").replace("\r", "").split("\n")
    late = "(EngineCore pid=311) ERROR 11-30 10:03:34 [core.py:1110] TimeoutError: RPC call to init_device timed out."
    head = "\n".join([*lines[:12], late])
    node = "\n".join(line for line in lines if "(Worker_TP" in line)
    reading = of_files(tmp_path, *((node, head) if turned else (head, node)))
    assert len(reading.runs) == 1
    assert [event.kind for event in ordered_causes(reading.runs[0])] == ["KeyError", "TimeoutError"]
    assert read_stated(reading, reading.runs[0]).words == ("--tensor-parallel-size", "4")


def test_an_older_part_is_a_start_of_its_own(tmp_path: Path) -> None:
    older = "(Worker_TP0 pid=9) ERROR 11-29 10:00:00 [a.py:1] ValueError: yesterday\n"
    reading = of_files(tmp_path, older, write_log(LAUNCH, MISSING, "plain"))
    assert [run.events[0].kind for run in reading.runs] == ["ValueError", "KeyError"]


def test_the_earlier_of_two_ranks_wins() -> None:
    worker = "(Worker_TP{rank} pid=64{rank}) ERROR 11-30 10:00:01 [multiproc_executor.py:898] "
    text = ""
    for line in ("Traceback (most recent call last):", '  File "/x/vllm/a.py", line 1, in f', "    g()", "{what}"):
        for rank, what in enumerate(("ValueError: first", "TypeError: second")):
            text += worker.format(rank=rank) + line.format(what=what) + "\n"
    assert [event.said for event in causes(text)] == ["ValueError: first", "TypeError: second"]


def test_a_log_that_ends_inside_of_a_traceback() -> None:
    lines = write_log(LAUNCH, MISSING, "plain").replace("\r", "").split("\n")
    at = next(number for number, line in enumerate(lines) if "Traceback" in line)
    (cut,) = causes("\n".join(lines[: at + 8]))
    assert (cut.said, bool(cut.frames)) == ("", True)


def test_acceptance_rates_are_told_apart() -> None:
    line = (
        "(APIServer pid=1) INFO 11-30 10:02:06 [metrics.py:120] SpecDecoding metrics: Avg Draft acceptance rate: {}%\n"
    )
    lines = read_text("".join(line.format(rate) for rate in ("47.1", "47.9", "0.8", "0.6"))).runs[0].lines
    assert [item.text[-5:] for item in lines] == ["47.1%", " 0.8%"]
    assert [item.count for item in lines] == [2, 2]
