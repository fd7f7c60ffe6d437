"""The forms in which a log reaches a person: through log drivers, terminals, bug reports and cut pastes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from tests.triage.log_issue import chinese_report, english_report
from tests.triage.log_launch import Launch
from tests.triage.log_records import Entry, LogError
from tests.triage.log_writer import START, Writer, Written, physical, rendered

Shown = Callable[[Writer, LogError | None, random.Random], str]
PASTED = 15
TAIL = 60
WIDTH = 120


def in_form(writer: Writer, error: LogError | None, form: str, choice: random.Random) -> str:
    return BY_NAME[form](writer, error, choice)


def text_of(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def plain(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    return text_of(line.text for line in physical(writer))


def interleaved(lines: list[Written], choice: random.Random) -> list[Written]:
    """The lines of processes that write at the same time, mixed; each process keeps its own order."""
    mixed: list[Written] = []
    position = 0
    while position < len(lines):
        end = position
        while end < len(lines) and lines[end].burst == lines[position].burst:
            end += 1
        queues: dict[str, list[Written]] = {}
        for line in lines[position:end]:
            queues.setdefault(line.process, []).append(line)
        waiting = [list(reversed(queue)) for queue in queues.values()]
        while waiting:
            queue = choice.choice(waiting)
            mixed.extend(queue.pop() for _ in range(min(choice.randint(1, 3), len(queue))))
            waiting = [item for item in waiting if item]
        position = end
    return mixed


def stamp(second: float, number: int) -> str:
    """RFC 3339 with nanoseconds, as container runtimes write it."""
    moment = START + timedelta(seconds=second)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{(number * 7919) % 1000000:06d}{number % 1000:03d}Z"


def docker(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    lines = interleaved(physical(writer, colour=True), choice)
    return text_of(f"vllm-1  | {stamp(line.second, number)} {line.text}" for number, line in enumerate(lines))


def kubectl(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    return text_of(f"[pod/vllm-dsv4-0/vllm] {line.text}" for line in interleaved(physical(writer), choice))


def cri(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """The container runtime's file; long lines come in parts (``P``)."""
    written = []
    for number, line in enumerate(interleaved(physical(writer), choice)):
        pieces = [line.text[start : start + 4000] for start in range(0, len(line.text), 4000)] or [""]
        for index, piece in enumerate(pieces):
            kind = "F" if index == len(pieces) - 1 else "P"
            written.append(f"{stamp(line.second, number)} stderr {kind} {piece}")
    return text_of(written)


def journald(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """``journalctl -u``: lines with control characters are not shown."""
    written = []
    for line in interleaved(physical(writer), choice):
        moment = START + timedelta(seconds=line.second)
        text = line.text.rstrip("\r")
        text = f"[{len(text)}B blob data]" if "\r" in text else text
        written.append(f"{moment:%b %d %H:%M:%S} gpu-node vllm[4242]: {text}")
    return text_of(written)


def json_file(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    return text_of(
        json.dumps(
            {"log": f"{line.text}\n", "stream": "stderr", "time": stamp(line.second, number)}, ensure_ascii=False
        )
        for number, line in enumerate(interleaved(physical(writer), choice))
    )


def ray(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """Workers of the Ray executor: their lines come through the engine's process, repeated ones only counted."""
    workers = writer.launch.workers
    if not workers:
        return plain(writer, error, choice)
    engine = writer.launch.engines[0]
    written = []
    for entry in writer.entries:
        if entry.process not in workers:
            written.extend(line for line in rendered(entry, decorated=writer.launch.decorated))
            continue
        rank = workers.index(entry.process)
        repeated = len(workers) > 2 and any(
            other.text == entry.text and other.burst == entry.burst and other is not entry for other in writer.entries
        )
        if repeated and rank > 1:
            continue
        address = "" if rank == 0 else ", ip=192.0.2.12"
        for line in rendered(replace(entry, process=""), decorated=True):
            who = f"(RayWorkerWrapper pid={144 + rank}{address})"
            note = f" [repeated {len(workers) - 1}x across cluster]" if repeated and rank == 1 else ""
            written.append(f"({engine} pid=311) {who} {line.rstrip(chr(13))}{note}")
    return text_of(written)


def crash_loop(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """Three starts of one container, one after another."""
    written = []
    for turn in range(3):
        length = writer.second + 20
        for entry in writer.entries:
            moved = replace(entry, second=entry.second + turn * length)
            written.extend(rendered(moved, decorated=writer.launch.decorated))
    return text_of(written)


def wrapped(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """Copied from a terminal of 120 columns: long lines are broken anywhere."""
    written = []
    for line in physical(writer):
        text = line.text.rstrip("\r").rpartition("\r")[2] if "\r" in line.text.rstrip("\r") else line.text.rstrip("\r")
        written.extend([text[start : start + WIDTH] for start in range(0, len(text), WIDTH)] or [""])
    return text_of(written)


def tail(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """The end of the log: the last lines of the root cause at the top, then what other processes say about it."""
    lines = [line.text for line in physical(writer)]
    if error is None:
        return text_of(lines[-TAIL:])
    key = key_line(error)
    found = [number for number, line in enumerate(lines) if key in line and "Worker failed with error" not in line]
    start = max(0, (found[-1] if found else len(lines)) - 8)
    return text_of(lines[min(start, max(0, len(lines) - TAIL)) :])


def consequences(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    """The last 40 lines, whatever they hold: of most failures only what the server says about it."""
    return text_of([line.text for line in physical(writer)][-40:])


def key_line(error: LogError) -> str:
    """The line of a failure that is its own: the first of the exception, for pydantic the validator's."""
    lines = error.said.split("\n")
    if error.short_kind == "ValidationError":
        # The line of a field's name alone is a word that other lines have too.
        said = [line.strip() for line in lines[1:] if " " in line.strip()]
        return next(iter(said), lines[0])
    return lines[0]


def root_entry(writer: Writer, error: LogError | None) -> Entry | None:
    """The first entry that shows the failure."""
    if error is None:
        return None
    return next((entry for entry in writer.entries if error.said in entry.text), None)


def last_frames(writer: Writer, error: LogError | None, *, prefixed: bool) -> list[str]:
    entry = root_entry(writer, error)
    if entry is None or error is None:
        return [line.text for line in physical(writer)][-PASTED:]
    decorated = writer.launch.decorated
    lines = rendered(entry, decorated=decorated) if prefixed else entry.text.split("\n")
    said = error.said.split("\n")
    place = next(number for number, line in enumerate(lines) if said[0] in line)
    end = place + len(said)
    return [line.rstrip("\r") for line in lines[max(0, end - max(PASTED, len(said) + 4)) : end]]


def paste(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    launch = writer.launch
    model = launch.model.rpartition("/")[2]
    prose = choice.choice(
        (
            f"vLLM {launch.version} on {launch.gpu_count}x {launch.gpu_name} fails to start {model}, any idea?",
            f"Running {model} with vllm=={launch.version} ({launch.gpu_count} x {launch.gpu_name}) gives me this:",
            f"Same here with v{launch.version}, {launch.gpu_name}, {model}:",
        )
    )
    return text_of([prose, "", *last_frames(writer, error, prefixed=True)])


def bare(writer: Writer, error: LogError | None, choice: random.Random) -> str:
    return text_of(last_frames(writer, error, prefixed=False))


def issue(report: Callable[[Launch, str], str]) -> Shown:
    def shown(writer: Writer, error: LogError | None, choice: random.Random) -> str:
        log = re.sub(r"\r+\n", "\n", plain(writer, error, choice))
        return report(writer.launch, log)

    return shown


def text_in_form(text: str, launch: Launch, form: str) -> str:
    """A log that is there as text, through a log driver, pasted behind a sentence, or in a bug report."""
    lines = text.rstrip("\n").split("\n")
    if form == "docker":
        return text_of(f"vllm-1  | {stamp(number / 10, number)} {line}" for number, line in enumerate(lines))
    if form == "paste":
        return text_of([f"vLLM {launch.version} on {launch.gpu_count}x {launch.gpu_name} stops, any idea?", "", *lines])
    return english_report(launch, text) if form == "github-issue" else text_of(lines)


TEXT_FORMS = ("plain", "docker", "paste")
BY_NAME: dict[str, Shown] = {
    "plain": plain,
    "docker": docker,
    "paste": paste,
    "bare": bare,
    "kubectl": kubectl,
    "cri": cri,
    "journald": journald,
    "json-file": json_file,
    "ray": ray,
    "github-issue": issue(english_report),
    "zh-issue": issue(chinese_report),
    "crash-loop": crash_loop,
    "wrapped": wrapped,
    "tail": tail,
    "consequences": consequences,
}
FORMS: tuple[str, ...] = tuple(name for name in BY_NAME if name != "consequences")
"""Forms that show the failure itself. ``consequences`` is written too, but often without it."""
