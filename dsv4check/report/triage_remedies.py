"""What to change as a person says it, where no launch is known on which a change could be checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from dsv4check.engine.edits import edits_text, kind_of
from dsv4check.triage.answer import Candidate

_UNFILLED: Final = re.compile(r"\{[A-Za-z_][\w.]*\}")


def remedies(item: Candidate) -> tuple[str, ...]:
    """The remedies of a candidate in plain words, each once; those that only a known launch could fill are left out."""
    changes = {edits_text(fix["edits"]): fix["edits"] for fix in item.rule.fixes}
    said = [_in_words(changes[text]) if text in changes else text for text in item.remedies]
    return tuple(dict.fromkeys(text for text in said if text))


def _in_words(edits: list[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for edit in edits:
        said = _edit(edit)
        if not said:
            return ""
        value, _, flag = said.rpartition(" in ")
        # Several keys of one flag are one change.
        if parts and said.startswith('"') and parts[-1].startswith('"') and parts[-1].endswith(f" in {flag}"):
            parts[-1] = f"{parts[-1].removesuffix(f' in {flag}')},{value} in {flag}"
        else:
            parts.append(said)
    return "; ".join(parts)


def _edit(edit: Mapping[str, Any]) -> str:
    """One edit; empty where its target depends on the launch."""
    kind = kind_of(edit)
    target, value = edit[kind], edit.get("value", edit.get("to"))
    names = [str(name) for name in target] if isinstance(target, list) else [str(target)]
    if any(map(_UNFILLED.search, names)):
        return "another vLLM release" if kind == "set_vllm" else ""
    open_value = any(isinstance(text, str) and _UNFILLED.search(text) for text in (value, edit.get("text")))
    name = names[0]
    match kind:
        case "set_flag":
            return f"another value of {_flag(name)}" if open_value else _set(name, True if edit.get("bare") else value)
        case "drop_flag":
            return f"remove {_flag(name)}"
        case "rename_flag":
            return "" if open_value else f"{value} instead of {name}"
        case "set_key" | "drop_key":
            flag, *keys = name.split(".")
            where = f"{'.'.join(keys)} in {_flag(flag)}"
            if kind == "drop_key":
                return f"remove {where}"
            return f"another value of {where}" if open_value else f'"{keys[-1]}":{json.dumps(value)} in {_flag(flag)}'
        case "set_env":
            return f"another value of {name}" if open_value else f"{name}={value}"
        case "unset_env":
            return f"unset {name}"
        case "set_package":
            return f"another version of {name}" if open_value else str(edit.get("text") or f"{name}>={value}")
        case "set_vllm":
            return f"vLLM {name}"
        case "set_gpu":
            return f"run on {' or '.join(names)}"
        case _:
            return f"serve {name} instead"


def _set(dest: str, value: Any) -> str:
    if isinstance(value, bool):
        return _flag(dest) if value else f"--no-{_flag(dest).removeprefix('--')}"
    return f"{_flag(dest)} {value if isinstance(value, str) else json.dumps(value)}"


def _flag(dest: str) -> str:
    """The flag in its newest spelling."""
    from dsv4check.releases.facts import known_releases
    from dsv4check.releases.flag_table import load_flag_table

    if dest.startswith("-"):
        return dest
    spec = load_flag_table(known_releases()[-1]).by_dest.get(dest)
    return spec.flag if spec is not None else f"--{dest.replace('_', '-')}"
