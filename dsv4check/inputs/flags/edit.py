"""Edits of a launch command, in the form the user typed.

Every function returns a new command, or None where the edit cannot be made on the command line (the value
stands in a ``--config`` file and nothing on the command line overrides it). ``flags`` is what
:func:`~dsv4check.inputs.flags.parser.parse_flags` returned for exactly this command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Command, FlagUse, ServeFlags, Token
from dsv4check.inputs.flags.json_edit import dump_like, remove_key, set_nested, text_of
from dsv4check.inputs.flags.repair import repair_json
from dsv4check.problems import Origin
from dsv4check.releases.flag_table import FlagSpec, FlagTable

SPEC_SHORTCUTS: Final = {
    "method": "spec_method",
    "model": "spec_model",
    "num_speculative_tokens": "spec_tokens",
}
"""Keys of ``--speculative-config`` that have a flag of their own from 0.22.0 on."""


def bare_spelling(table: FlagTable, dest: str, value: bool) -> str:
    """How a boolean flag is written: ``--enforce-eager`` or ``--no-enforce-eager``.

    The ``--no-`` form is preferred because every release understands it. A flag without a negative form
    gives its positive one.
    """
    spec = table.by_dest[dest]
    if value:
        return next(
            (option for option in spec.options if option.startswith("--") and option not in spec.negative),
            spec.flag,
        )
    negative = sorted(spec.negative, key=lambda option: (not option.startswith("--no-"), option))
    return negative[0] if negative else spec.flag


def set_flag(command: Command, flags: ServeFlags, table: FlagTable, dest: str, value: Any) -> Command | None:
    """Give a flag a value; True and False stand for the bare flag and its negative form.

    The last appearance is edited in place, earlier ones go. A flag that does not appear is appended.
    """
    spec = table.by_dest.get(dest)
    if spec is None or _unfilled(value):
        return None
    if isinstance(value, bool) and not spec.takes_value:
        if not value and not spec.negative:
            return drop_flag(command, flags, table, dest)
        words = [bare_spelling(table, dest, value)]
    else:
        words = [spec.flag, *_texts(spec, value)]
    uses = [use for use in flags.uses if use.dest == dest]
    if any(use.path and not _typed(use) for use in uses):
        return None
    typed = [use for use in uses if _typed(use)]
    if not typed:
        return _append(command, words)
    whole = [use for use in typed if not use.path]
    target = whole[-1] if whole else typed[-1]
    if target in whole and spec.takes_value:
        words = _respell(command, target, words[1:])
    elif target.path:
        words = [target.option.partition(".")[0], *words[1:]]
    return _splice(command, {use: words if use is target else [] for use in typed})


def drop_flag(command: Command, flags: ServeFlags, table: FlagTable, dest: str) -> Command | None:
    """Remove every appearance of a flag; ``dest`` may also be the spelling of a flag vLLM does not know."""
    if dest.startswith("-"):
        for flag in dest.split(" "):
            command = _drop_unknown(command, flags, flag)
        return command
    uses = [use for use in flags.uses if use.dest == dest]
    edited = _splice(command, {use: [] for use in uses if _typed(use)})
    if all(_typed(use) for use in uses):
        return edited
    # What stands in a --config file can only be overridden.
    spec = table.by_dest.get(dest)
    if spec is None or any(use.path for use in uses if not _typed(use)):
        return None
    if not spec.takes_value and spec.negative:
        return _append(edited, [bare_spelling(table, dest, bool(spec.default))])
    if spec.takes_value and spec.default is not None and not isinstance(spec.default, dict | list):
        return _append(edited, [spec.flag, text_of(spec.default)])
    return _append(edited, [spec.flag, "None"]) if spec.kind.startswith("opt:") else None


def drop_speculation(command: Command, flags: ServeFlags, table: FlagTable) -> Command | None:
    """Remove ``--speculative-config`` in every form, and the ``--spec-*`` shortcuts."""
    given = [use for use in flags.uses if use.dest in ("speculative_config", *SPEC_SHORTCUTS.values())]
    if all(_typed(use) for use in given):
        return _splice(command, {use: [] for use in given})
    dests = {use.dest for use in given}
    return drop_flag(command, flags, table, dests.pop()) if len(dests) == 1 else None


def set_key(
    command: Command, flags: ServeFlags, table: FlagTable, dest: str, path: Sequence[str], value: Any
) -> Command | None:
    """Set one key of a JSON-valued flag, as JSON or dotted, whichever was typed."""
    spec = table.by_dest.get(dest)
    if spec is None or not spec.is_json or _unfilled(value) or any(map(_unfilled, path)):
        return None
    path = tuple(path)
    shortcut = _shortcut(flags, table, dest, path)
    if shortcut is not None:
        return set_flag(command, flags, table, shortcut, value)
    uses = [use for use in flags.uses if use.dest == dest]
    if any(use.path and not _typed(use) for use in uses):
        return None
    typed = [use for use in uses if _typed(use)]
    dotted = [use for use in typed if use.path]
    if dotted:
        return _set_dotted(command, dotted, path, value)
    if typed:
        data = _json_of(flags, typed[-1])
        if data is None:
            return None
        edited = set_nested(data, path, value)
        words = _respell(command, typed[-1], [dump_like(edited, typed[-1].raw)])
        return _splice(command, {use: words if use is typed[-1] else [] for use in typed})
    current = dict(flags.section(dest)) if uses else {}
    return _append(command, [spec.flag, dump_like(set_nested(current, path, value), None)])


def drop_key(command: Command, flags: ServeFlags, table: FlagTable, dest: str, path: Sequence[str]) -> Command | None:
    """Remove one key of a JSON-valued flag; without keys left the flag goes too."""
    spec = table.by_dest.get(dest)
    if spec is None or not spec.is_json:
        return None
    path = tuple(path)
    shortcut = _shortcut(flags, table, dest, path)
    if shortcut is not None:
        return drop_flag(command, flags, table, shortcut)
    uses = [use for use in flags.uses if use.dest == dest]
    typed = [use for use in uses if _typed(use)]
    edits: dict[FlagUse, list[str]] = {}
    for use in typed:
        if use.path[: len(path)] == path:
            edits[use] = []
        elif path[: len(use.path)] == use.path and (data := _json_of(flags, use)) is not None:
            left = remove_key(data, path[len(use.path) :])
            if left != data:
                edits[use] = _respell(command, use, [dump_like(left, use.raw)]) if left else []
    if edits:
        return _splice(command, edits)
    if any(not _typed(use) for use in uses):
        left = remove_key(dict(flags.section(dest)), path)
        if left == flags.section(dest):
            return command
        return _append(command, [spec.flag, dump_like(left, None)])
    return command


def rename_flag(command: Command, old: str, to: str) -> Command | None:
    """Write a flag differently: ``--kv-cache-type`` -> ``--kv-cache-dtype``, ``-tp8`` -> ``-tp 8``.

    A blank at the end of ``to`` makes two words of ``--flag=value``. None when the flag does not appear.
    """
    if not to.startswith("-"):
        return None
    tokens: list[Token] = []
    changed = False
    for token in command.tokens:
        name, equals, value = token.text.partition("=")
        if name == old:
            words = to.split(" ")
            words[-1] += value if not words[-1] else equals + value
            tokens.extend(_token(word) for word in words)
            changed = True
        else:
            tokens.append(token)
    return replace(command, tokens=tuple(tokens)) if changed else None


def set_model(command: Command, flags: ServeFlags, name: str) -> Command | None:
    """Serve another model; None when the command does not name one."""
    if flags.model is None:
        return None
    tokens = list(command.tokens)
    for index, token in enumerate(tokens):
        if token.text == "--model" and index + 1 < len(tokens):
            tokens[index + 1] = _token(name)
            break
        if token.text.startswith("--model="):
            tokens[index] = _token(f"--model={name}")
            break
    else:
        values = {index for use in flags.uses for index in range(*use.token_span)}
        where = next((i for i, token in enumerate(tokens) if token.text == flags.model and i not in values), None)
        if where is None:
            # It stands in a --config file, where a positional model wins over it.
            return replace(command, tokens=(_token(name), *tokens)) if command.entrypoint == "serve" else None
        tokens[where] = _token(name)
    return replace(command, tokens=tuple(tokens))


def set_env(command: Command, name: str, value: str) -> Command:
    """Set an environment variable in front of the command."""
    return replace(command, env={**command.env, name: value})


def unset_env(command: Command, name: str) -> Command:
    """Remove an environment variable from the command."""
    return replace(command, env={key: value for key, value in command.env.items() if key != name})


# -- parts ---------------------------------------------------------------------------------------------------


def _unfilled(value: Any) -> bool:
    """True for a placeholder of a rule that the problem has no value for."""
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value) is not None


_PLACEHOLDER: Final = re.compile(r"\{\w+\}")


def _token(text: str) -> Token:
    return Token(text, Origin("flag", text))


def _typed(use: FlagUse) -> bool:
    return use.token_span[0] >= 0


def _append(command: Command, words: Iterable[str]) -> Command:
    return replace(command, tokens=(*command.tokens, *(_token(word) for word in words)))


def _splice(command: Command, edits: dict[FlagUse, list[str]]) -> Command:
    """Replace the words of some appearances."""
    tokens = list(command.tokens)
    for use, words in sorted(edits.items(), key=lambda item: item[0].token_span, reverse=True):
        start, stop = use.token_span
        tokens[start:stop] = [_token(word) for word in words]
    return replace(command, tokens=tuple(tokens))


def _respell(command: Command, use: FlagUse, values: list[str]) -> list[str]:
    """A flag with new values, spelled and joined as it was typed."""
    first = command.tokens[use.token_span[0]].text
    if use.option.startswith("-O"):
        return [f"-O{values[0]}"] if use.option != "-O" else ["-O", *values]
    if use.token_span[1] - use.token_span[0] == 1 and "=" in first:
        return [f"{use.option}={values[0]}", *values[1:]]
    return [use.option, *values]


def _texts(spec: FlagSpec, value: Any) -> list[str]:
    if spec.nargs == "+" and isinstance(value, list | tuple):
        return [text_of(item) for item in value]
    if spec.nargs == "?" and value is True:
        return []
    return [dump_like(value, None) if isinstance(value, dict | list) else text_of(value)]


def _shortcut(flags: ServeFlags, table: FlagTable, dest: str, path: tuple[str, ...]) -> str | None:
    """The ``--spec-*`` flag that says a key of the speculative config in this command."""
    if dest != "speculative_config" or len(path) != 1:
        return None
    shortcut = SPEC_SHORTCUTS.get(path[0])
    if shortcut is None or shortcut not in table.by_dest or not flags.given(shortcut):
        return None
    return shortcut


def _json_of(flags: ServeFlags, use: FlagUse) -> dict[str, Any] | None:
    """The mapping an appearance says, read forgivingly when it is broken."""
    raw = use.raw or ""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        words = [token.text for token in flags.tokens[use.token_span[0] + 1 : use.token_span[1]]]
        data = repair_json(" ".join(words) or raw)
        if data is None:
            data = dict(flags.section(use.dest))
    return data if isinstance(data, dict) else None


def _set_dotted(command: Command, dotted: list[FlagUse], path: tuple[str, ...], value: Any) -> Command:
    same = [use for use in dotted if use.path == path]
    text = text_of(value, dotted=True)
    if same:
        # A list element form (`--flag.key+ x`) is replaced by the whole value.
        last = same[-1]
        words = _respell(command, replace(last, option=last.option.removesuffix("+")), [text])
        return _splice(command, {use: words if use is last else [] for use in same})
    last = dotted[-1]
    option = ".".join((last.option.partition(".")[0], *path))
    first = command.tokens[last.token_span[0]].text
    joined = last.token_span[1] - last.token_span[0] == 1 and "=" in first
    tokens = list(command.tokens)
    added = [f"{option}={text}"] if joined else [option, text]
    tokens[last.token_span[1] : last.token_span[1]] = [_token(word) for word in added]
    inner = [use for use in dotted if use.path[: len(path)] == path or path[: len(use.path)] == use.path]
    return _splice(replace(command, tokens=tuple(tokens)), {use: [] for use in inner if use is not last})


def _drop_unknown(command: Command, flags: ServeFlags, flag: str) -> Command:
    """Remove a flag the release does not know, with the word that is its value."""
    tokens: list[Token] = []
    index = 0
    value = next(
        (problem.data["values"][flag] for problem in flags.problems if flag in problem.data.get("values", ())), None
    )
    while index < len(command.tokens):
        token = command.tokens[index]
        index += 1
        name, equals, _ = token.text.partition("=")
        if name != flag:
            tokens.append(token)
            continue
        if not equals and value is not None and index < len(command.tokens) and command.tokens[index].text == value:
            index += 1
    return replace(command, tokens=tuple(tokens))
