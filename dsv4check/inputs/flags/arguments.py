"""What happens to the words before argparse sees them (vllm/utils/argparse_utils.py, ``parse_args``).

``--model`` moves to the front, ``--config FILE`` is replaced by the file's content, underscores in flag names
become dashes up to the first dot, ``-O3`` becomes ``--optimization-level 3``, and dotted flags are collected
into one JSON value per flag that is appended behind everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Token
from dsv4check.inputs.flags.convert import human_readable_int
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Dotted:
    """One ``--flag.key value``."""

    option: str
    path: tuple[str, ...]
    raw: str
    value: Any
    span: tuple[int, int]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Arg:
    """One word as argparse gets it."""

    text: str
    span: tuple[int, int]
    """Tokens of the command it comes from; (-1, -1) for a ``--config`` file."""
    origin: Origin
    typed: str = ""
    """The word as typed, where it differs."""
    dotted: tuple[Dotted, ...] = ()
    """The flags that were collected into this JSON value."""


@dataclass(slots=True)
class Prepared:
    """The words for argparse and what was noticed on the way."""

    args: list[Arg] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


ReadYaml = Callable[[str, Origin], "tuple[list[Arg], list[Problem]]"]

_MODEL: Final = re.compile(r"^--model(=.+|$)", re.DOTALL)
_CONFIG: Final = re.compile(r"^--config(=.+|$)", re.DOTALL)
_SERVED: Final = re.compile(r"^--served[-_]model[-_]name(=.+|$)", re.DOTALL)


def prepare(tokens: Sequence[Token], entrypoint: str, *, named: bool, read_yaml: ReadYaml) -> Prepared:
    """Turn the command's words into what argparse gets.

    ``named`` says that the program stands in the command, so that a missing model is the user's mistake and
    not something that was given elsewhere.
    """
    out = Prepared()
    args = [Arg(token.text, (index, index + 1), token.origin) for index, token in enumerate(tokens)]
    if entrypoint == "serve":
        args = _move_model(args, out)
        has_config = any(_CONFIG.match(arg.text) for arg in args)
        if named and args and args[0].text.startswith("-") and not has_config:
            served = next((arg for arg in args if _SERVED.match(arg.text)), None)
            if served is not None:
                out.problems.append(_missing_model(served.origin, _SERVED_TEXT))
    args = _read_config(args, entrypoint, named, out, read_yaml)
    out.args = _collect_dotted(_normalise(args), out)
    return out


_SERVED_TEXT: Final = (
    "`model` should be provided as the first positional argument when using `vllm serve`. "
    "i.e. `vllm serve <model> --<arg> <value>`."
)
_NO_MODEL_TEXT: Final = "No model specified! Please specify model either as a positional argument or in a config file."


def _missing_model(origin: Origin, error: str) -> Problem:
    return Problem("model-missing", Stage.ARGPARSE, "ValueError", error, {"flag": origin.text}, origin)


def _no_next_word(arg: Arg, flag: str) -> Problem:
    """vLLM takes the next word itself here, before argparse could complain that there is none."""
    return Problem("missing-value", Stage.ARGPARSE, "IndexError", "list index out of range", {"flag": flag}, arg.origin)


def _move_model(args: list[Arg], out: Prepared) -> list[Arg]:
    """``--model X`` to the front, as ``vllm serve`` does with a warning."""
    index = next((i for i, arg in enumerate(args) if _MODEL.match(arg.text)), None)
    if index is None:
        return args
    arg = args[index]
    if arg.text == "--model":
        if index + 1 >= len(args):
            out.problems.append(_no_next_word(arg, "--model"))
            return args[:index]
        model = args[index + 1]
        moved = replace(model, span=(arg.span[0], model.span[1]), typed="--model")
        return [moved, *args[:index], *args[index + 2 :]]
    moved = replace(arg, text=arg.text.removeprefix("--model="), typed="--model=")
    return [moved, *args[:index], *args[index + 1 :]]


def _read_config(args: list[Arg], entrypoint: str, named: bool, out: Prepared, read_yaml: ReadYaml) -> list[Arg]:
    """Put the words of a ``--config`` file where vLLM puts them: before the rest of the command line."""
    places = [index for index, arg in enumerate(args) if arg.text == "--config"]
    for arg in args:
        if arg.text.startswith("--config=") and not places:
            ignored = {"flag": "--config", "value": arg.text.partition("=")[2]}
            out.problems.append(Problem("config-equals-file-ignored", Stage.ARGPARSE, "", "", ignored, arg.origin))
    if not places:
        return args
    index = places[0]
    origin = args[index].origin
    if len(places) > 1:
        error = "More than one config file specified!"
        data: dict[str, Any] = {"flag": "--config", "count": len(places)}
        out.problems.append(
            Problem("yaml-given-twice", Stage.ARGPARSE, "AssertionError", error, data, args[places[1]].origin)
        )
        return [arg for i, arg in enumerate(args) if i not in places and i - 1 not in places]
    if index + 1 >= len(args):
        error = "No config file specified! Please check your command-line arguments."
        out.problems.append(Problem("missing-value", Stage.ARGPARSE, "ValueError", error, {"flag": "--config"}, origin))
        return args[:index]
    file_args, problems = read_yaml(args[index + 1].text, origin)
    out.problems.extend(problems)
    before, after = args[:index], args[index + 2 :]
    if entrypoint != "serve":
        if args[0].text.startswith("-"):
            return [*file_args, *before, *after]
        return [args[0], *file_args, *before[1:], *after]
    if not args[0].text.startswith("-"):
        return [args[0], *file_args, *before[1:], *after]
    if (
        named
        and not any(problem.exception for problem in problems)
        and not any(arg.text == "--model" for arg in file_args)
    ):
        out.problems.append(_missing_model(origin, _NO_MODEL_TEXT))
    return [*file_args, *before, *after]


def _dash(text: str) -> str:
    """``--kv_cache_dtype`` -> ``--kv-cache-dtype``; nothing behind the first dot changes."""
    head, dot, tail = text[2:].partition(".")
    return f"--{head.replace('_', '-')}{dot}{tail}"


def _normalise(args: list[Arg]) -> list[Arg]:
    out: list[Arg] = []
    for index, arg in enumerate(args):
        text = arg.text
        if text.startswith("--help="):
            out.append(replace(arg, text="--help", typed=text))
        elif text.startswith("--"):
            name, equals, value = text.partition("=")
            new = _dash(name) + equals + value
            out.append(arg if new == text else replace(arg, text=new, typed=text))
        elif text.startswith("-O") and text != "-O":
            level = text[3:] if text[2] == "=" else text[2:]
            out.append(replace(arg, text="--optimization-level", typed=text))
            out.append(replace(arg, text=level, typed=text))
        elif text == "-O" and index + 1 < len(args) and args[index + 1].text in ("0", "1", "2", "3"):
            out.append(replace(arg, text="--optimization-level", typed=text))
        else:
            out.append(arg)
    return out


def _collect_dotted(args: list[Arg], out: Prepared) -> list[Arg]:
    """Dotted flags become one JSON argument per flag, behind all others: they replace JSON given before."""
    kept: list[Arg] = []
    values: dict[str, dict[str, Any]] = {}
    uses: dict[str, list[Dotted]] = {}
    index = 0
    while index < len(args):
        arg = args[index]
        name, equals, raw = arg.text.partition("=")
        index += 1
        if not arg.text.startswith("-") or "." not in name:
            kept.append(arg)
            continue
        span = arg.span
        if not equals:
            if index >= len(args):
                out.problems.append(_no_next_word(arg, name))
                continue
            raw = args[index].text
            if span[0] >= 0 and args[index].span[0] >= 0:
                span = (span[0], args[index].span[1])
            index += 1
        text = raw
        if name.endswith("+"):
            name = name[:-1]
            text = json.dumps(text.split(","))
        option, *path = name.split(".")
        value = _dotted_value(text)
        nested: Any = value
        for key in reversed(path):
            nested = {key: nested}
        _merge(values.setdefault(option, {}), nested)
        typed = (arg.typed or arg.text).partition("=")[0]
        uses.setdefault(option, []).append(Dotted(typed, tuple(path), raw, value, span, arg.origin))
    for option, merged in values.items():
        dotted = tuple(uses[option])
        last = dotted[-1]
        kept.append(Arg(option, last.span, last.origin, last.option, dotted))
        kept.append(Arg(json.dumps(merged), last.span, last.origin, last.raw, dotted))
    return kept


def _dotted_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return human_readable_int(text)
    except ValueError:
        return text


def _merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            old += value
        else:
            into[key] = value
