"""Problems for what the parser refuses, with what was probably meant."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4check.inputs.flags.arguments import Arg
from dsv4check.inputs.flags.config_values import ConfigIssue
from dsv4check.inputs.flags.convert import RefusedValueError
from dsv4check.inputs.flags.explain import (
    GONE,
    choice_data,
    closest,
    config_key,
    key_data,
    replacement_flag,
)
from dsv4check.inputs.flags.repair import explain_json, repair_json
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.flag_table import ConfigClass, FlagSpec, FlagTable, Shape
from dsv4check.releases.history import release_data


def unknown_flag_problem(table: FlagTable, arg: Arg, value: Arg | None, error: str) -> Problem:
    """A flag that no spelling of the release matches, with the word behind it if that is its value."""
    typed = (arg.typed or arg.text).partition("=")[0]
    flag, equals, explicit = arg.text.partition("=")
    data: dict[str, Any] = {"flag": typed, "hint": "", "release": table.release}
    if equals or value is not None:
        data["value"] = explicit if equals else value.text if value is not None else ""
        data["values"] = {typed: data["value"]}
    data.update(release_data(flag, table.release))
    key = config_key(table, flag) if "value" in data else None
    found = replacement_flag(table, flag, has_value=bool(equals) or value is not None)
    attached = _attached(table, flag)
    if attached is not None:
        data["hint"] = f"; a value stands apart: {attached}"
        data["attached"] = attached
    elif found is None and key is not None:
        merged = json.dumps({key[1]: json_or_text(str(data["value"]))})
        data.update(dest=key[0], keys=key[1], config=table.by_dest[key[0]].flag, merged=merged)
        return Problem("flag-is-config-key", Stage.ARGPARSE, "SystemExit", error, data, arg.origin)
    elif found is not None:
        data["closest"] = found[1]
        data["dest"] = found[0].dest
        data["hint"] = f"; {found[1]} is what {table.release} has" if data["when"] else f"; the closest is {found[1]}"
    elif flag in GONE:
        data["hint"] = f"; {GONE[flag]}"
    return Problem("unknown-flag", Stage.ARGPARSE, "SystemExit", error, data, arg.origin)


def json_or_text(text: str) -> Any:
    """A word as the JSON value it reads as, else as it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def merge_config_keys(problems: list[Problem], values: Mapping[str, Any]) -> list[Problem]:
    """Flags that are keys of one JSON-valued flag become one problem, with the value they make together."""
    merged: dict[str, Problem] = {}
    out: list[Problem] = []
    for problem in problems:
        if problem.code != "flag-is-config-key":
            out.append(problem)
            continue
        dest = problem.data["dest"]
        first = merged.get(dest)
        given = values.get(dest)
        old: Any = given if isinstance(given, Mapping) else {}
        if first is not None:
            old = json.loads(first.data["merged"])
        data = {**problem.data, "merged": json.dumps({**old, **json.loads(problem.data["merged"])})}
        if first is not None:
            data["flag"] = f"{first.data['flag']} {problem.data['flag']}"
            data["keys"] = f"{first.data['keys']}, {problem.data['keys']}"
            data["values"] = {**first.data["values"], **problem.data["values"]}
            out[out.index(first)] = replace(first, data=data)
            merged[dest] = next(item for item in out if item.data is data)
        else:
            merged[dest] = replace(problem, data=data)
            out.append(merged[dest])
    return out


def _attached(table: FlagTable, flag: str) -> str | None:
    """``-tp8``, which argparse does not take apart: ``-tp 8``."""
    if flag.startswith("--"):
        return None
    head = flag.rstrip("0123456789")
    return f"{head} {flag[len(head) :]}" if head != flag and head in table.by_option else None


def bad_value_problem(
    table: FlagTable, spec: FlagSpec, word: Arg, refusal: RefusedValueError, origin: Origin
) -> Problem:
    """A value that the flag does not take."""
    error = f"argument {spec.display}: {refusal.error}"
    if refusal.exception != "SystemExit" or spec.action == "lora":
        error = refusal.error
    data: dict[str, Any] = {"flag": spec.flag, "dest": spec.dest, "value": word.text, "hint": ""}
    match refusal.code:
        case "bad-choice":
            data.update(choice_data(table, spec, word.text))
        case "bad-json":
            data["reason"] = explain_json(word.text)
            data.update(_repaired(word.text))
        case "unknown-config-key" | "bad-config-value":
            issue = _leading(refusal)
            origin = _dotted_origin(word, issue) or origin
            data["value"] = issue.value if isinstance(issue.value, str) else json.dumps(issue.value, default=str)
            data.update(_issue_data(table, spec, issue))
        case _:
            data["hint"] = _type_hint(spec)
            data.update(_suggested_number(spec, word.text))
    code = refusal.code
    if code == "unknown-config-key" and "new_path" in data:
        code = "config-key-renamed"
    return Problem(code, Stage.ARGPARSE, refusal.exception, error, data, origin)


def _leading(refusal: RefusedValueError) -> ConfigIssue:
    unknown = [issue for issue in refusal.issues if issue.kind == "unexpected_keyword_argument"]
    return unknown[0] if unknown else refusal.issues[0]


def _dotted_origin(word: Arg, issue: ConfigIssue) -> Origin | None:
    """The dotted flag that said the offending key."""
    return next((d.origin for d in word.dotted if d.path[: len(issue.path)] == issue.path), None)


def _issue_data(table: FlagTable, spec: FlagSpec, issue: ConfigIssue) -> dict[str, Any]:
    config = table.config_of(spec.dest)
    if issue.kind == "unexpected_keyword_argument" and config is not None:
        holder = _holder(table, config, issue.path[:-1])
        known = list(holder.fields) if holder is not None else []
        return {"known": ", ".join(known), **key_data(table, spec.dest, issue.path, issue.value, known)}
    path = ".".join(issue.path)
    message = issue.message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    value = issue.value if isinstance(issue.value, str) else json.dumps(issue.value, default=str)
    what = f"`{value}` for {path}" if path else f"`{value}`"
    data: dict[str, Any] = {"key": path or spec.flag, "path": path, "what": what, "reason": message, "hint": ""}
    if issue.choices:
        choices = [str(choice) for choice in issue.choices]
        data["choices"] = ", ".join(choices)
        if issue.raw_exception:
            data["reason"] = f"no such value; there are {data['choices']}"
        data.update(release_data(_history_name(spec.dest, path, value), table.release))
        near = closest(value.lower(), [choice.lower() for choice in choices], 0.6)
        if near is not None:
            data["closest"] = next(choice for choice in choices if choice.lower() == near)
            data["hint"] = f"; the closest is {data['closest']}"
    if path == "" and "kv_role" in message:
        data.update(missing_key="kv_role", missing_value="kv_both", hint="; kv_both fits either side")
    return data


def _history_name(dest: str, path: str, value: str) -> str:
    if dest == "attention_config" and path == "backend":
        return f"attention-backend={value.upper()}"
    return f"{dest}.{path}={value}"


def _holder(table: FlagTable, config: ConfigClass, path: tuple[str, ...]) -> ConfigClass | None:
    """The class that a nested key belongs to."""
    for key in path:
        field = config.fields.get(key)
        name = _class_in(field.shape) if field is not None else None
        if name is None or name not in table.configs:
            return None
        config = table.configs[name]
    return config


def _class_in(shape: Shape) -> str | None:
    parts = [shape] if isinstance(shape, str) else shape
    return next((part[3:] for part in parts if isinstance(part, str) and part.startswith("dc:")), None)


def _repaired(text: str) -> dict[str, Any]:
    value = repair_json(text)
    if not isinstance(value, Mapping | list):
        return {}
    return {"repaired": json.dumps(value)}


def stray_problem(problem: Problem, stray: str) -> Problem:
    """A ``bad-json`` problem that gains a word which the shell split off its value."""
    rest = f"{problem.data.get('rest', '')} {stray}".strip()
    value = problem.data["value"]
    data = {**problem.data, "rest": rest, "reason": explain_json(value, rest)}
    data.pop("repaired", None)
    data.update(_repaired(f"{value} {rest}"))
    return replace(problem, data=data)


def _suggested_number(spec: FlagSpec, text: str) -> dict[str, Any]:
    """A number the flag takes: ``1k`` for a flag without suffixes, ``1.5K`` for one with."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([kKmMgG])?", text.strip().replace(",", "").replace("_", ""))
    if match is None or "int" not in spec.kind:
        return {}
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}.get(match.group(2) or "", 1)
    return {"suggest": int(float(match.group(1)) * factor)}


def _type_hint(spec: FlagSpec) -> str:
    if "human_readable_int" in spec.kind:
        return "; it takes a number such as 8192, 8k (8000) or 8K (8192)"
    if "int" in spec.kind:
        return "; it takes a whole number"
    return "; it takes a number" if "float" in spec.kind else ""
