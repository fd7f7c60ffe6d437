"""The bundle for a bug report as one Markdown file. Made from redacted data alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsv4check.report.gate_words import clipped
from dsv4check.report.markdown import code, escaped, fence

_DECISIONS: Final = ("release", "kv_cache", "attention", "runner", "runner_why", "draft", "moe", "parallel")
_FACTS: Final = 80
_CELL: Final = 600


def render(data: Mapping[str, Any]) -> str:
    """The bundle as Markdown: sections in the order a maintainer asks for them."""
    return "\n\n".join(_parts(data))


def _parts(data: Mapping[str, Any]) -> Iterator[str]:
    tool = data["tool"]
    yield "# vLLM with DeepSeek-V4: bug report"
    yield f"{escaped(data['headline'])}. Written by {tool['name']} {tool['version']}; names and secrets are masked."
    yield from _launch(data)
    yield from _error(data)
    if data["log"]:
        yield "## Log"
        yield "Lines that state the launch, its stages, warnings and errors; the same message once."
        yield fence("\n".join(f"{_place(line)}: {line['text']}" for line in data["log"]), "text")
    yield from _candidates(data)
    yield from _findings(data)
    yield "## What was masked"
    if data["masked"]:
        rows = ((item["what"], str(item["different"]), str(item["places"])) for item in data["masked"])
        yield _table(("kind", "different", "places"), rows)
    else:
        yield "Nothing."
    yield "Masking is by rules: read this file before you post it."


def _launch(data: Mapping[str, Any]) -> Iterator[str]:
    stated = data["stated"]
    yield "## Launch"
    rows = [
        (name, str(stated[name]))
        for name in ("vllm", "model", "gpu", "gpus", "gpu_memory_gib", "nodes")
        if stated[name]
    ]
    rows += [(f"vLLM decided: {name}", value) for name, value in stated["observed"].items()]
    rows.append(("stage reached", f"{data['milestone']['stage']}: {data['milestone']['reached']}"))
    yield _table(("what", "as the log states it"), rows)
    command = data["command"] or " ".join(stated["flags"])
    if command:
        yield fence(command, "sh")
    if stated["env"]:
        yield fence("\n".join(f"{name}={value}" for name, value in stated["env"].items()), "text")
    if stated["packages"]:
        yield "### Packages"
        yield fence("\n".join(f"{name} {version}" for name, version in stated["packages"].items()), "text")
    facts = [item for item in stated["facts"] if not item["name"].startswith(("package ", "env "))]
    if facts:
        yield "### Where this was read"
        rows = [
            (item["name"], f"{clipped(item['value'], _CELL)} [{item['how']}{_at(item['line'])}]")
            for item in facts[:_FACTS]
        ]
        yield _table(("what", "value"), rows)
    if data["config"]:
        yield "### Model config"
        yield fence(_one_key_a_line(data["config"]), "json")


def _error(data: Mapping[str, Any]) -> Iterator[str]:
    event = data["error"]
    yield "## Error"
    if event is None:
        yield "No error was found in the log."
    label = ""
    while event is not None:
        said = f"{event['kind']}: {event['message']}" if event["kind"] else event["message"]
        where = f"{_place(event['line'])}; {event['times']} times" if event["times"] > 1 else _place(event["line"])
        yield f"{label}{escaped(where)}:"
        yield fence(said, "text")
        if event["frames"]:
            yield fence("\n".join(map(_frame, event["frames"])), "text")
        if event["excerpt"]:
            yield _folded("as it stands in the log", fence(event["excerpt"], "text"))
        event, label = event["caused_by"], "caused by, "
    if data["later"]:
        yield "### Later errors"
        yield "\n".join(
            f"- {code(clipped(_said(item), _CELL))} ({escaped(_place(item['line']))})" for item in data["later"]
        )


def _candidates(data: Mapping[str, Any]) -> Iterator[str]:
    if data["candidates"]:
        yield "## Causes that dsv4check names"
        for item in data["candidates"]:
            title = f"**{escaped(item['rule'])} {escaped(item['name'])}**"
            yield f"{title} ({item['sureness']}): {escaped(item['message'])}"
            points = [
                f"- {'for' if it['supports'] else 'against'}: {escaped(clipped(it['text'], _CELL) + _at(it['line']))}"
                for it in item["evidence"]
            ]
            points += [f"- change (checked: {_yes(fix['verified'])}): {escaped(_edits(fix))}" for fix in item["fixes"]]
            points += [f"- change (not checked): {escaped(text)}" for text in item["remedies"] if not item["fixes"]]
            if item["fixed_in"]:
                points.append(f"- first release without it: {escaped(item['fixed_in'])}")
            if points:
                yield "\n".join(points)
    elif data["nearest"]:
        yield "## Nearest rules of dsv4check"
        yield "None of them explains the error."
        yield "\n".join(
            f"- {escaped(it['rule'])} {escaped(it['name'])}: {escaped(it['summary'])}" for it in data["nearest"]
        )


def _findings(data: Mapping[str, Any]) -> Iterator[str]:
    report = data["report"]
    yield "## The launch, checked"
    if report is None:
        yield "The log states too little of the launch to check it."
        return
    yield f"Verdict: {report['verdict']}."
    points = [
        f"- {it['severity']} {escaped(it['rule'])} {escaped(it['name'])} ({it['stage']}): {escaped(it['message'])}"
        for it in report["findings"]
    ]
    points += [f"- not evaluated: {escaped(it['what'])} ({escaped(it['why'])})" for it in report["not_evaluated"]]
    if points:
        yield "\n".join(points)
    resolution = {key: report["resolution"].get(key) for key in _DECISIONS}
    yield _folded("what vLLM decides for it", fence(_one_key_a_line(resolution), "json"))


def _one_key_a_line(data: Mapping[str, Any]) -> str:
    """JSON with a line for each key: lists of layers would fill a page each."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in data.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _said(event: Mapping[str, Any]) -> str:
    return f"{event['kind']}: {event['message']}" if event["kind"] else str(event["message"])


def _place(line: Mapping[str, Any]) -> str:
    number = line.get("number", line.get("line"))
    return f"{line['source']}:{number}" if number else str(line["source"])


def _at(line: Mapping[str, Any] | None) -> str:
    return f", {_place(line)}" if line else ""


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{frame['path']}:{frame['line']} in {frame['function']}" + (f": {frame['code']}" if frame["code"] else "")


def _edits(fix: Mapping[str, Any]) -> str:
    return "; ".join(edit["text"] for edit in (*fix["edits"], *fix["also"]))


def _yes(value: bool) -> str:
    return "no error is left" if value else "other errors are left"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]] | list[tuple[str, str]]) -> str:
    lines = [header, ["---"] * len(header), *([escaped(cell) or " " for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
