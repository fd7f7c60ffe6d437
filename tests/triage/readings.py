"""Readings of logs, made of lines; and arguments printed as vLLM prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4check.releases.flag_table import ConfigClass, FlagTable
from dsv4check.triage.records import ErrorEvent, Frame, LogLine, LogReading, Run

SAMPLES = Path(__file__).parent / "data" / "non_default_args.tsv"
"""``release<TAB>case of tests/corpus<TAB>arguments as that release's own parser and logger print them``."""


def log_lines(text: str | Iterable[str]) -> tuple[LogLine, ...]:
    lines = text.splitlines() if isinstance(text, str) else list(text)
    return tuple(LogLine("vllm.log", number, line) for number, line in enumerate(lines, 1))


def log_run(text: str | Iterable[str] = "", events: Sequence[ErrorEvent] = ()) -> Run:
    lines = log_lines(text)
    return Run(lines[0] if lines else None, lines, tuple(events))


def log_reading(run: Run, head: str | None = None, *, more: Sequence[Run] = ()) -> LogReading:
    said = "\n".join(line.text for line in run.lines) if head is None else head
    return LogReading(("vllm.log",), len(said), len(run.lines), (run, *more), said)


def report_of(head: str) -> tuple[LogReading, Run]:
    """A report without a log in it."""
    run = Run(None, (), ())
    return log_reading(run, head), run


def error(*places: str, kind: str = "RuntimeError", number: int = 10_000) -> ErrorEvent:
    """An error whose traceback passes through ``vllm/path.py:function``."""
    frames = tuple(Frame(place.rpartition(":")[0], 1, place.rpartition(":")[2]) for place in places)
    return ErrorEvent(kind, "it failed", LogLine("vllm.log", number, f"{kind}: it failed"), frames)


def sampled_arguments() -> list[tuple[str, str, str]]:
    rows = [line.split("\t") for line in SAMPLES.read_text(encoding="utf-8").splitlines()]
    return [(release, case, text) for release, case, text in rows]


def printed_arguments(values: Mapping[str, Any], model: str, table: FlagTable) -> str:
    """The dict that ``non-default args`` shows for parsed flags: configs as records with all their fields."""
    shown: dict[str, str] = {"model_tag": repr(model), "model": repr(model)}
    for dest, value in values.items():
        config = table.config_of(dest)
        if config is not None and isinstance(value, Mapping):
            shown[dest] = _record(value, config, table)
        elif value != table.defaults.get(dest):
            shown[dest] = repr(value)
    return "{" + ", ".join(f"{name!r}: {text}" for name, text in shown.items()) + "}"


def _record(value: Mapping[str, Any], config: ConfigClass, table: FlagTable) -> str:
    shown = {}
    for name, known in config.fields.items():
        inner = known.shape.removeprefix("dc:") if isinstance(known.shape, str) else ""
        if isinstance(value.get(name), Mapping) and inner in table.configs:
            shown[name] = _record(value[name], table.configs[inner], table)
        else:
            shown[name] = _printed(value.get(name, known.default), known.shape)
    if config.name == "CompilationConfig":
        return "{" + ", ".join(f"{name!r}: {text}" for name, text in shown.items()) + "}"
    return f"{config.name}({', '.join(f'{name}={text}' for name, text in shown.items())})"


def _printed(value: Any, shape: Any) -> str:
    enum = shape if isinstance(shape, str) else next((item for item in shape if str(item).startswith("enum:")), "")
    if isinstance(value, str) and enum.startswith("enum:") and value.isupper():
        return f"<{enum.removeprefix('enum:')}.{value}: (2, 1)>"
    return repr(value)
