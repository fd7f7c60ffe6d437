"""The speculative config as a release reads it: the merged keys, their types and their allowed values.

Sources: ``engine/arg_utils.py:create_speculative_config`` (merging) and the annotations of
``config/speculative.py:SpeculativeConfig``, which pydantic validates in lax mode with unknown keys forbidden.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dsv4check.deployment import Deployment, ServeFlags
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.history import release_data

SHORTCUTS = (
    ("--spec-method", "spec_method", "method"),
    ("--spec-model", "spec_model", "model"),
    ("--spec-tokens", "spec_tokens", "num_speculative_tokens"),
)
"""Flags that stand for one key of the speculative config, in the order vLLM merges them."""

_INTERNAL = ("draft_model_config", "draft_parallel_config", "target_model_config", "target_parallel_config")
"""Fields vLLM fills itself; given by the user they are overwritten or not validated."""

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})

_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "gt": ("greater than", operator.gt),
    "ge": ("greater than or equal to", operator.ge),
}


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """What ``--speculative-config`` and the ``--spec-*`` flags say together."""

    values: Mapping[str, Any]
    """Keys as vLLM sees them, values converted as pydantic does."""
    problems: tuple[Problem, ...]
    """Why the config object cannot be built; empty when all fields are valid."""


def merge(deployment: Deployment, section: Mapping[str, Any], release: str) -> MergedConfig | None:
    """The merged speculative config; None when the launch has none or the parser already refused it.

    ``section`` is the ``spec_decode`` facts of ``release``.
    """
    flags = deployment.flags
    given = flags.values.get("speculative_config")
    if given is None and flags.use("speculative_config") is not None:
        return None  # refused by the parser, or null
    if given is not None and not isinstance(given, Mapping):
        return MergedConfig({}, (_no_object(flags, given, section),))
    config: dict[str, Any] | None = dict(given) if isinstance(given, Mapping) else None
    for flag, dest, key in SHORTCUTS:
        value = flags.values.get(dest)
        if value is None:
            if flags.use(dest) is not None:
                return None  # the parser refused the value and says so
            continue
        if config is not None and key in config and not section.get("shortcut_flags"):
            continue
        if config is not None and key in config:
            error = f"{flag} and --speculative-config['{key}'] are mutually exclusive"
            problem = Problem(
                "spec-flag-conflict",
                Stage.ENGINE_CONFIG,
                "ValueError",
                error,
                {"flag": flag, "dest": dest, "key": key, "value": value, "other": config[key]},
                origin(flags, key),
            )
            return MergedConfig(config | {key: value}, (problem,))
        config = (config or {}) | {key: value}
    if config is None:
        return None
    if section.get("dashed_keys"):
        config = {str(key).replace("-", "_"): value for key, value in config.items()}
    return _validate(flags, config, section, release)


def _no_object(flags: ServeFlags, given: Any, section: Mapping[str, Any]) -> Problem:
    """JSON, but no object: ``create_speculative_config`` calls a method that only a dict has."""
    method = "items" if section.get("dashed_keys") else "update"
    error = f"'{type(given).__name__}' object has no attribute '{method}'"
    use = flags.use("speculative_config")
    data = {"value": use.raw if use is not None else given}
    return Problem("spec-no-object", Stage.ENGINE_CONFIG, "AttributeError", error, data, use.origin if use else None)


def origin(flags: ServeFlags, key: str) -> Origin | None:
    """Where a key of the speculative config was said: its ``--spec-*`` flag, its dotted form, or the JSON."""
    for _flag, dest, name in SHORTCUTS:
        if name == key and flags.given(dest):
            use = flags.use(dest)
            return use.origin if use else None
    for use in reversed(flags.uses):
        if use.dest == "speculative_config" and (not use.path or use.path[0].replace("-", "_") == key):
            return use.origin
    last = flags.use("speculative_config") or flags.use("spec_method") or flags.use("spec_tokens")
    return last.origin if last else None


def _validate(flags: ServeFlags, config: dict[str, Any], section: Mapping[str, Any], release: str) -> MergedConfig:
    fields: Mapping[str, str] = section.get("fields") or {}
    literals: Mapping[str, Any] = section.get("literals") or {}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in config.items():
        if key in _INTERNAL:
            if key == "draft_model_config":
                values[key] = value  # overwritten, but extract_hidden_states takes its layers from it first
            continue
        if key not in fields:
            problems.append(_unknown_key(flags, key, value, fields, release))
            continue
        converted, error = check_value(fields[key], value, literals)
        if error is None:
            values[key] = converted
            continue
        code = "spec-unknown-method" if key == "method" and isinstance(value, str) else "spec-bad-value"
        data = {"key": key, "value": value, "expected": error}
        error = f"1 validation error for SpeculativeConfig\n{key}\n  {error}"
        if code == "spec-unknown-method":
            error += f" [type=literal_error, input_value={value!r}, input_type=str]"
        if key == "method":
            data["method"] = value
            data["methods"] = ", ".join(literals.get("method") or ())
        problems.append(Problem(code, Stage.ENGINE_CONFIG, "ValidationError", error, data, origin(flags, key)))
    return MergedConfig(values if not problems else config, tuple(problems))


def _unknown_key(flags: ServeFlags, key: str, value: Any, fields: Mapping[str, str], release: str) -> Problem:
    """A key without a field; ``renamed`` is empty where another release knows the key or nothing is similar."""
    name = key.replace("-", "_")
    known = release_data(f"speculative_config.{name}", release)
    data = {"key": key, "value": value, "renamed": "", "vllm_spec": known["vllm_spec"], "hint": known["when"]}
    if not known["when"]:
        from difflib import get_close_matches

        near = get_close_matches(name, fields, n=1, cutoff=0.68)
        if near:
            data |= {"renamed": f"speculative_config.{near[0]}", "hint": f"; the closest is {near[0]}"}
    return Problem(
        "spec-unknown-key",
        Stage.ENGINE_CONFIG,
        "ValidationError",
        f"1 validation error for SpeculativeConfig\n{key}\n  Unexpected keyword argument",
        data,
        origin(flags, key),
    )


@cache
def _parse_code(code: str) -> tuple[str, bool, tuple[tuple[str, float], ...]]:
    head, *rest = code.split(" ")
    bounds = tuple((name, float(value)) for name, _, value in (part.partition("=") for part in rest))
    return head.removesuffix("?"), head.endswith("?"), bounds


def check_value(code: str, value: Any, literals: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Check one value against a field's type code: (converted value, pydantic's message or None).

    Codes are those of the facts: ``int? ge=1``, ``bool``, ``float``, ``str?``, ``list[float]?``,
    ``list[int3]?``, ``any?`` or the name of a literal set; ``?`` allows null.
    """
    kind, optional, bounds = _parse_code(code)
    if value is None and optional:
        return None, None
    if kind == "any":
        return value, None
    if kind == "attention_backend":
        return _attention_backend(value, literals)
    if kind in literals:
        names = [str(name) for name in literals[kind]]
        if isinstance(value, str) and value in names:
            return value, None
        quoted = [f"'{name}'" for name in names]
        return value, "Input should be " + ", ".join(quoted[:-1]) + f" or {quoted[-1]}"
    converted, error = _SCALARS[kind](value)
    if error is None:
        for name, bound in bounds:
            words, holds = _BOUNDS[name]
            if not holds(converted, bound):
                return value, f"Input should be {words} {bound:g}"
    return converted, error


def _attention_backend(value: Any, literals: Mapping[str, Any]) -> tuple[Any, str | None]:
    names = [str(name) for name in literals.get("attention_backend") or ()]
    if not isinstance(value, str):
        return value, "Input should be an attention backend"
    if value.lower() == "auto":
        return None, None
    if value.upper() in names:
        return value.upper(), None
    return value, (f"Value error, Unknown attention backend: '{value.upper()}'. Valid options are: {', '.join(names)}")


def _integer(value: Any) -> tuple[Any, str | None]:
    if isinstance(value, bool | int):
        return int(value), None
    if isinstance(value, float):
        if value.is_integer():
            return int(value), None
        return value, "Input should be a valid integer, got a number with a fractional part"
    if isinstance(value, str):
        try:
            return int(value.strip()), None
        except ValueError:
            return value, "Input should be a valid integer, unable to parse string as an integer"
    return value, "Input should be a valid integer"


def _boolean(value: Any) -> tuple[Any, str | None]:
    if isinstance(value, bool):
        return value, None
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value), None
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE, None
    if isinstance(value, str | int | float):
        return value, "Input should be a valid boolean, unable to interpret input"
    return value, "Input should be a valid boolean"


def _number(value: Any) -> tuple[Any, str | None]:
    if isinstance(value, bool | int | float):
        return float(value), None
    if isinstance(value, str):
        try:
            return float(value), None
        except ValueError:
            return value, "Input should be a valid number, unable to parse string as a number"
    return value, "Input should be a valid number"


def _string(value: Any) -> tuple[Any, str | None]:
    return (value, None) if isinstance(value, str) else (value, "Input should be a valid string")


def _numbers(value: Any) -> tuple[Any, str | None]:
    if not isinstance(value, list | tuple):
        return value, "Input should be a valid list"
    pairs = [_number(item) for item in value]
    error = next((text for _item, text in pairs if text is not None), None)
    return [item for item, _text in pairs] if error is None else value, error


def _triples(value: Any) -> tuple[Any, str | None]:
    if not isinstance(value, list | tuple):
        return value, "Input should be a valid list"
    result = []
    for item in value:
        if not isinstance(item, list | tuple):
            return value, "Input should be a valid tuple"
        if len(item) != 3:
            return value, f"Tuple should have 3 items after validation, not {len(item)}"
        pairs = [_integer(part) for part in item]
        error = next((text for _part, text in pairs if text is not None), None)
        if error is not None:
            return value, error
        result.append(tuple(part for part, _text in pairs))
    return result, None


_SCALARS = {
    "int": _integer,
    "bool": _boolean,
    "float": _number,
    "str": _string,
    "list[float]": _numbers,
    "list[int3]": _triples,
}
