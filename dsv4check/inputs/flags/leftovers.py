"""The words that are no flag and no flag's value: the model, and what found no place."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Command, FlagUse
from dsv4check.inputs.flags.arguments import Arg
from dsv4check.inputs.flags.refusals import merge_config_keys, stray_problem, unknown_flag_problem
from dsv4check.problems import Problem, Stage
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import FlagSpec, FlagTable

BOOLEAN_WORDS: Final = frozenset(("true", "false", "1", "0", "yes", "no", "on", "off"))


@dataclass(slots=True)
class Positional:
    """A word that is no flag and no flag's value."""

    arg: Arg
    after: str
    """What stands before it: ``start``, ``unknown`` flag, ``bare`` flag, ``refused`` value or ``plain``."""
    flag: str = ""
    """The flag it follows."""
    use: int = -1
    """Index of that flag's use."""


@dataclass(slots=True)
class State:
    """A command line while it is being read."""

    table: FlagTable
    args: list[Arg]
    values: dict[str, Any] = field(default_factory=dict)
    uses: list[FlagUse] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    positionals: list[Positional] = field(default_factory=list)
    unknown: list[Arg] = field(default_factory=list)
    extras: list[Arg] = field(default_factory=list)
    """Words argparse cannot place, in order."""
    dashes: Arg | None = None
    """A bare ``--``."""


def bool_data(spec: FlagSpec, option: str, value: str) -> dict[str, Any]:
    """``bare`` is the spelling that says what the value wanted to say, ``wanted`` the truth value."""
    wanted = value.lower() not in ("false", "0", "no", "off", "none")
    negative = option in spec.negative
    truth = wanted != negative
    bare = spec.flag if truth else next(iter(sorted(spec.negative)), "")
    return {"flag": spec.flag, "dest": spec.dest, "value": value, "bare": bare, "wanted": truth}


def _suspect(positional: Positional) -> bool:
    """True for a word that is more likely the value of the flag before it than the model."""
    text = positional.arg.text
    if positional.after == "bare":
        return text.lower() in BOOLEAN_WORDS
    if positional.after == "refused":
        return True
    return positional.after == "unknown"


def place_leftovers(state: State, command: Command, named: bool) -> str | None:
    """Find the model among the words that are left, and report the others."""
    positionals = state.positionals
    taken = _model_word(positionals, named)
    consumed = taken
    if named and positionals:
        # argparse gives its one positional the first such word, whatever it was meant to be.
        consumed = positionals[0]
    left = [positional for positional in positionals if positional is not consumed]
    order = {id(arg): index for index, arg in enumerate(state.args)}
    state.extras.extend(positional.arg for positional in left)
    if state.dashes is not None:
        at = order[id(state.dashes)]
        if consumed is None or abs(order[id(consumed.arg)] - at) > 1:
            state.extras.append(state.dashes)
    state.extras.sort(key=lambda arg: order[id(arg)])
    error = "unrecognized arguments: " + " ".join(arg.text for arg in state.extras)
    for arg in state.unknown:
        if any(problem.code == "ambiguous-flag" and problem.origin == arg.origin for problem in state.problems):
            continue
        value = next(
            (item.arg for item in positionals if item.flag == arg.text and item is not taken and _next_to(item, arg)),
            None,
        )
        state.problems.append(unknown_flag_problem(state.table, arg, value, error))
    state.problems = merge_config_keys(state.problems, state.values)
    for positional in positionals:
        if positional is taken or positional.after == "unknown":
            continue
        if positional is not consumed or _suspect(positional):
            _report_stray(state, positional, error, misread=positional is consumed)
    model = state.values.get("model")
    # The api_server module reads --model alone: a positional word only stands in where that is missing.
    if taken is not None and (model is None or command.entrypoint != "api_server"):
        return taken.arg.text
    return model if isinstance(model, str) else None


def _next_to(positional: Positional, arg: Arg) -> bool:
    return arg.span[0] < 0 or positional.arg.span[0] == arg.span[1]


def _model_word(positionals: list[Positional], named: bool) -> Positional | None:
    if not positionals:
        return None
    if positionals[0].after == "start":
        return positionals[0]
    likely = [item for item in positionals if not _suspect(item)]
    if not named:
        # The model was given elsewhere unless a word cannot be anything else.
        likely = [item for item in likely if re.fullmatch(r"[\w.~-]*(/[\w.@-]+)+/?", item.arg.text)]
    if likely:
        return likely[0]
    paths = [item for item in positionals if item.after == "unknown" and "/" in item.arg.text]
    return paths[0] if named and len(positionals) == 1 and paths else None


def _report_stray(state: State, positional: Positional, error: str, *, misread: bool) -> None:
    """A word that is neither the model nor a value."""
    arg = positional.arg
    use = state.uses[positional.use] if 0 <= positional.use < len(state.uses) else None
    if positional.after == "refused" and use is not None:
        for index, problem in enumerate(state.problems):
            if problem.code == "bad-json" and problem.data.get("dest") == use.dest:
                # The shell split the value: the words behind it are its rest.
                state.problems[index] = stray_problem(problem, arg.text)
                if use.token_span[0] >= 0 and arg.span[0] == use.token_span[1]:
                    state.uses[positional.use] = replace(use, token_span=(use.token_span[0], arg.span[1]))
                return
    if positional.after == "bare" and arg.text.lower() in BOOLEAN_WORDS and use is not None:
        spec = state.table.by_dest[use.dest]
        data = bool_data(spec, use.option, arg.text)
        if use.token_span[0] >= 0 and arg.span[0] == use.token_span[1]:
            state.uses[positional.use] = replace(use, token_span=(use.token_span[0], arg.span[1]), raw=arg.text)
        exception = "SystemExit"
        if misread and not state.extras:
            # Nothing is refused here: vLLM goes on with this word as the model, and does not find it.
            error, exception = f"{arg.text!r} is read as the model", ""
        state.problems.append(Problem("bool-with-value", Stage.ARGPARSE, exception, error, data, arg.origin))
        return
    data = {"value": arg.text, "after": positional.flag}
    state.problems.append(Problem("positional-extra", Stage.ARGPARSE, "SystemExit", error, data, arg.origin))
