"""The command line as the parser of one vLLM release reads it.

argparse is followed step by step rather than called: its own parser exits on the first error, words its
messages differently from one Python to the next and takes 20 ms to build. Reading goes on behind an error,
so that everything wrong with a command is said at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dsv4check.deployment import Command, FlagUse, ServeFlags
from dsv4check.inputs.flags.arguments import Arg, prepare
from dsv4check.inputs.flags.convert import RefusedValueError, convert_lora_modules, convert_value
from dsv4check.inputs.flags.leftovers import Positional, State, bool_data, place_leftovers
from dsv4check.inputs.flags.refusals import bad_value_problem
from dsv4check.inputs.flags.serve_checks import optimization_level, serve_problems
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.flag_table import FlagSpec, FlagTable

_NEGATIVE_NUMBER: Final = re.compile(r"^-\d+$|^-\d*\.\d+$")

ReadFile = Callable[[str], str]


def read_text_file(path: str) -> str:
    """Content of a file as text. Raises OSError and UnicodeDecodeError."""
    return Path(path).read_text(encoding="utf-8")


def parse_flags(command: Command, table: FlagTable, *, read_file: ReadFile = read_text_file) -> ServeFlags:
    """Read a command's flags with the parser of one release.

    Args:
        command: The command taken apart.
        table: The release's flags.
        read_file: Reads a ``--config`` file; may raise OSError or UnicodeDecodeError.

    Returns:
        The values that parsed, every appearance of a flag, and what the parser refuses, drops or misreads.
        JSON-valued flags hold dicts; keys that vLLM refuses are left out of them.

    Raises:
        InputError: A ``--config`` file is not usable as YAML at all (too large, too deeply nested).
    """

    def read_yaml(path: str, origin: Origin) -> tuple[list[Arg], list[Problem]]:
        from dsv4check.inputs.vllm_yaml import config_file_args

        # `vllm serve` loads the file with the outer parser, which has no flags of its own: a false value
        # never finds its negative form there. The module's parser has them from 0.28.0 on.
        return config_file_args(path, origin, table, entrypoint=command.entrypoint, read_file=read_file)

    named = bool(command.program)
    prepared = prepare(command.tokens, command.entrypoint, named=named, read_yaml=read_yaml)
    state = State(table, prepared.args, problems=list(prepared.problems))
    _consume(state)
    model = place_leftovers(state, command, named)
    if not any(problem.exception for problem in state.problems):
        state.problems.extend(serve_problems(command, state.values, table))
    _read_level(state)
    # A false value that the file lost does not matter where the command line says it again.
    state.problems = [
        problem
        for problem in state.problems
        if problem.code != "yaml-false-ignored" or problem.data["dest"] not in state.values
    ]
    return ServeFlags(
        model=model,
        values=state.values,
        uses=tuple(state.uses),
        problems=tuple(state.problems),
        defaults=table.defaults,
        tokens=command.tokens,
    )


def _read_level(state: State) -> None:
    origin = next((use.origin for use in reversed(state.uses) if use.dest == "optimization_level"), None)
    level, problem = optimization_level(state.values, origin)
    if level is not None:
        state.values["optimization_level"] = level
    if problem is not None:
        del state.values["optimization_level"]
        state.problems.append(problem)


# -- words -> options (argparse._parse_optional) -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Option:
    spec: FlagSpec | None
    option: str
    explicit: str | None


def _classify(state: State, arg: Arg) -> _Option | None:
    """The option a word is, None for a word that is none; an ambiguous prefix is reported and skipped."""
    text, by_option = arg.text, state.table.by_option
    if not text.startswith("-"):
        return None
    if (spec := by_option.get(text)) is not None:
        return _Option(spec, text, None)
    if len(text) == 1:
        return None
    name, equals, explicit = text.partition("=")
    if equals and (spec := by_option.get(name)) is not None:
        return _Option(spec, name, explicit)
    found = _prefixes(state.table, text, name, explicit if equals else None)
    if len(found) > 1:
        state.problems.append(_ambiguous(state.table, arg, [option.option for option in found]))
        return _Option(None, text, None)
    if found:
        return found[0]
    if _NEGATIVE_NUMBER.match(text) or " " in text:
        return None
    return _Option(None, text, None)


def _prefixes(table: FlagTable, text: str, name: str, explicit: str | None) -> list[_Option]:
    """Options that a word abbreviates."""
    by_option = table.by_option
    if text.startswith("--"):
        known = table.by_initial.get(name[:4], ()) if len(name) >= 4 else by_option
        return [_Option(by_option[option], option, explicit) for option in known if option.startswith(name)]
    found = []
    for option in by_option:
        if option == text[:2]:
            found.append(_Option(by_option[option], option, text[2:]))
        elif option.startswith(text):
            found.append(_Option(by_option[option], option, None))
    return found


def _ambiguous(table: FlagTable, arg: Arg, matches: list[str]) -> Problem:
    error = f"ambiguous option: {arg.text} could match {', '.join(matches)}"
    flags = list(dict.fromkeys(table.by_option[match].flag for match in matches))
    shown = ", ".join(flags[:6]) + (", ..." if len(flags) > 6 else "")
    data = {
        "flag": (arg.typed or arg.text).partition("=")[0],
        "matches": shown,
        "closest": min(matches, key=len),
    }
    return Problem("ambiguous-flag", Stage.ARGPARSE, "SystemExit", error, data, arg.origin)


# -- options and their values (argparse._parse_known_args) ---------------------------------------------------


def _consume(state: State) -> None:
    args = state.args
    # What stands behind a bare `--` is no flag.
    dashes = next((index for index, arg in enumerate(args) if arg.text == "--"), len(args))
    kinds = [_classify(state, arg) if index < dashes else None for index, arg in enumerate(args)]
    index, after, flag, use = 0, "start", "", -1
    while index < len(args):
        option = kinds[index]
        if index == dashes:
            state.dashes = args[index]
            index, after = index + 1, "plain"
            continue
        if option is None:
            state.positionals.append(Positional(args[index], after, flag, use))
            index += 1
            # The rest of a value that the shell split may be several words.
            after = after if after == "refused" else "plain"
            continue
        if option.spec is None:
            state.unknown.append(args[index])
            state.extras.append(args[index])
            after, flag, use = "unknown", args[index].text, -1
            index += 1
            continue
        index, after = _take(state, kinds, index, option, option.spec)
        flag, use = option.spec.flag, len(state.uses) - 1


def _take(state: State, kinds: list[_Option | None], index: int, option: _Option, spec: FlagSpec) -> tuple[int, str]:
    """Consume one option; returns the next index and what a word behind it would follow."""
    args = state.args
    arg = args[index]
    if not spec.takes_value:
        if option.explicit is not None:
            _refuse_value(state, arg, spec, option.explicit)
        else:
            _store(state, arg, spec, option, [])
        return index + 1, "bare"
    if option.explicit is not None:
        return index + 1, _store(state, arg, spec, option, [replace(arg, text=option.explicit)])
    stop = index + 1
    limit = len(args) if spec.nargs == "+" else index + 2
    while stop < min(limit, len(args)) and kinds[stop] is None and args[stop].text != "--":
        stop += 1
    if stop == index + 1 and spec.nargs != "?":
        wanted = "expected at least one argument" if spec.nargs == "+" else "expected one argument"
        data = {"flag": spec.flag, "next": args[stop].text if stop < len(args) else ""}
        error = f"argument {spec.display}: {wanted}"
        state.problems.append(Problem("missing-value", Stage.ARGPARSE, "SystemExit", error, data, arg.origin))
        return stop, "plain"
    return stop, _store(state, arg, spec, option, args[index + 1 : stop])


def _refuse_value(state: State, arg: Arg, spec: FlagSpec, value: str) -> None:
    error = f"argument {spec.display}: ignored explicit argument {value!r}"
    option = arg.text.partition("=")[0]
    data = bool_data(spec, option, value)
    state.problems.append(Problem("bool-with-value", Stage.ARGPARSE, "SystemExit", error, data, arg.origin))
    _add_use(state, arg, spec, [])


def _store(state: State, arg: Arg, spec: FlagSpec, option: _Option, words: list[Arg]) -> str:
    """Convert and store a flag's value; returns what a word behind it would follow."""
    _add_use(state, arg, spec, words)
    if spec.action == "help":
        data = {"flag": spec.flag}
        state.problems.append(Problem("help-requested", Stage.ARGPARSE, "SystemExit", "", data, arg.origin))
        return "bare"
    if not spec.takes_value:
        state.values[spec.dest] = option.option not in spec.negative
        return "bare"
    if spec.nargs == "?" and not words:
        state.values[spec.dest] = spec.const
        return "plain"
    converted = []
    for word in words:
        try:
            converted.append(convert_value(state.table, spec, word.text))
        except RefusedValueError as refusal:
            origin = word.origin if word.span[0] >= 0 else arg.origin
            state.problems.append(bad_value_problem(state.table, spec, word, refusal, origin))
            if refusal.partial:
                state.values[spec.dest] = refusal.partial
            return "refused" if spec.is_json else "plain"
    value: Any = converted if spec.nargs == "+" else converted[0]
    if spec.action == "lora":
        try:
            value = convert_lora_modules(converted)
        except RefusedValueError as refusal:
            state.problems.append(bad_value_problem(state.table, spec, words[0], refusal, arg.origin))
            return "refused"
    if spec.action == "append":
        value = [*state.values.get(spec.dest, []), value]
    _note_replaced(state, arg, spec, value)
    state.values[spec.dest] = value
    return "plain"


def _note_replaced(state: State, arg: Arg, spec: FlagSpec, value: Any) -> None:
    """A flag given again: vLLM warns at most, and takes the last; JSON is replaced, not merged."""
    old = state.values.get(spec.dest)
    if spec.dest not in state.values or spec.action == "append" or old == value:
        return
    if isinstance(old, Mapping) and isinstance(value, Mapping) and arg.dotted:
        lost = [key for key in old if key not in value]
        if lost:
            dotted = ", ".join(dict.fromkeys(use.option for use in arg.dotted))
            data = {
                "flag": spec.flag,
                "dest": spec.dest,
                "lost": ", ".join(lost),
                "dotted": dotted,
                "merged": json.dumps({**old, **value}),
            }
            state.problems.append(Problem("dotted-replaces-json", Stage.ARGPARSE, "", "", data, arg.origin))
        return
    uses = [use for use in state.uses if use.dest == spec.dest]
    if all(use.token_span[0] >= 0 for use in uses):
        data = {"flag": spec.flag, "dest": spec.dest, "first": _plain(old), "value": _plain(value)}
        state.problems.append(Problem("duplicate-flag", Stage.ARGPARSE, "", "", data, arg.origin))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _add_use(state: State, arg: Arg, spec: FlagSpec, words: list[Arg]) -> None:
    if arg.dotted:
        state.uses.extend(
            FlagUse(spec.dest, spec.flag, dotted.option, dotted.raw, dotted.span, dotted.origin, dotted.path)
            for dotted in arg.dotted
        )
        return
    typed = arg.typed if arg.typed.startswith("-O") else (arg.typed or arg.text).partition("=")[0]
    raw = " ".join(word.text for word in words) if words else None
    state.uses.append(FlagUse(spec.dest, spec.flag, typed, raw, _span([arg, *words]), arg.origin))


def _span(args: list[Arg]) -> tuple[int, int]:
    starts = [arg.span[0] for arg in args]
    return (-1, -1) if min(starts) < 0 else (starts[0], max(arg.span[1] for arg in args))
