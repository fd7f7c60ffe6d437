"""Validation of JSON-valued flags, as vLLM's config dataclasses do it while the command line is parsed.

vLLM hands the text to pydantic inside an argparse type, so an unknown key or a bad value ends the parser
with exit status 2. The fields, literals and bounds come from the release's flag table; this module knows how
pydantic converts JSON values (lax mode) and which checks over several keys the classes make afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4check.inputs.flags.config_checks import CHECKS
from dsv4check.releases.flag_table import ConfigClass, ConfigField, FlagTable, Shape


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """One thing pydantic refuses."""

    path: tuple[str, ...]
    """Keys down to the value; empty for a check over the whole object."""
    message: str
    """As pydantic words it."""
    kind: str
    """pydantic's error type: ``unexpected_keyword_argument``, ``literal_error``, ``value_error``, ..."""
    value: Any
    choices: tuple[Any, ...] = ()
    """What would be accepted, where that is a list."""
    raw_exception: str = ""
    """``KeyError`` where the exception is none that argparse turns into an error message."""

    @property
    def lines(self) -> str:
        """The issue as pydantic prints it."""
        detail = f"  {self.message} [type={self.kind}, input_value={_short(self.value)}, "
        detail += f"input_type={type(self.value).__name__}]"
        return "\n".join([*([".".join(self.path)] if self.path else []), detail])


def validation_text(title: str, issues: Sequence[ConfigIssue]) -> str:
    """The text of pydantic's ValidationError."""
    plural = "s" if len(issues) > 1 else ""
    return "\n".join([f"{len(issues)} validation error{plural} for {title}", *(issue.lines for issue in issues)])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:25]}...{text[-24:]}"


class _Refused(Exception):
    """A value that does not fit its type."""

    def __init__(self, issues: list[ConfigIssue]) -> None:
        super().__init__()
        self.issues = issues


def validate_config(table: FlagTable, config: ConfigClass, data: Any) -> tuple[dict[str, Any], list[ConfigIssue]]:
    """Validate parsed JSON against a config class.

    Returns the accepted keys with converted values (a refused key is left out) and what was refused. A check
    over several keys runs only when every key passed, as in pydantic, and leaves nothing accepted.
    """
    if not isinstance(data, Mapping):
        return {}, [ConfigIssue((), "Input should be an object", "dataclass_type", data)]
    accepted: dict[str, Any] = {}
    issues: list[ConfigIssue] = []
    for key, value in data.items():
        field = config.fields.get(key)
        if field is None:
            issues.append(ConfigIssue((key,), "Unexpected keyword argument", "unexpected_keyword_argument", value))
            continue
        try:
            accepted[key] = _field(table, field, value)
        except _Refused as refused:
            issues.extend(refused.issues)
    issues.extend(
        ConfigIssue((name,), "Field required", "missing", data)
        for name, field in config.fields.items()
        if field.required and name not in data
    )
    if not issues:
        for name in config.after:
            if message := CHECKS[name](config, accepted):
                return {}, [ConfigIssue((), message, _kind_of(message), data)]
    return accepted, issues


def _kind_of(message: str) -> str:
    return "assertion_error" if message.startswith("Assertion failed") else "value_error"


def _refuse(path: tuple[str, ...], message: str, kind: str, value: Any, choices: tuple[Any, ...] = ()) -> _Refused:
    return _Refused([ConfigIssue(path, message, kind, value, choices)])


def _field(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if value is None and field.null_ok:
        return None
    path = (field.name,)
    if field.before is not None:
        value = _BEFORE[field.before](table, field, value)
        if field.before in ("opaque", "per_kind") or (field.before != "lower" and value is None):
            return value
    value = _convert(table, field.shape, value, path)
    for bound, limit in field.bounds if value is not None else ():
        test, text, kind = _BOUNDS[bound]
        if not test(value, limit):
            raise _refuse(path, text.format(limit), kind, value)
    return value


_BOUNDS: Final[Mapping[str, tuple[Callable[[Any, float], bool], str, str]]] = {
    "ge": (lambda v, n: v >= n, "Input should be greater than or equal to {}", "greater_than_equal"),
    "gt": (lambda v, n: v > n, "Input should be greater than {}", "greater_than"),
    "le": (lambda v, n: v <= n, "Input should be less than or equal to {}", "less_than_equal"),
    "lt": (lambda v, n: v < n, "Input should be less than {}", "less_than"),
    "minlen": (lambda v, n: len(v) >= n, "String should have at least {} character", "string_too_short"),
}


# -- what happens to a value before its type is checked ------------------------------------------------------


def _enum_name(shape: Shape) -> str:
    names = [shape] if isinstance(shape, str) else [part for part in shape if isinstance(part, str)]
    return next((name.partition(":")[2] for name in names if name.startswith("enum:")), "")


_ENUM_TITLES: Final[Mapping[str, str]] = {
    "AttentionBackendEnum": "attention backend",
    "MLAPrefillBackendEnum": "MLA prefill backend",
}


def _member(table: FlagTable, enum: str, name: str, path: tuple[str, ...]) -> str:
    members = tuple(table.enums.get(enum, ()))
    upper = name.upper()
    if upper in members:
        return upper
    title = _ENUM_TITLES.get(enum)
    if title is None:
        # A plain Enum raises KeyError, which neither pydantic nor argparse handles.
        raise _Refused([ConfigIssue(path, repr(upper), "key_error", name, members, "KeyError")])
    message = f"Value error, Unknown {title}: '{upper}'. Valid options are: {', '.join(members)}"
    raise _refuse(path, message, "value_error", name, members)


def _before_enum(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _Checked(_member(table, _enum_name(field.shape), value, (field.name,)))


def _before_enum_auto(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if isinstance(value, str) and value.lower() == "auto":
        return None
    return _before_enum(table, field, value)


def _before_mode(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    enum = _enum_name(field.shape) or "CompilationMode"
    members = table.enums.get(enum, {})
    if value.upper() not in members:
        message = f"Value error, Invalid compilation mode: {value}. Valid modes are: {', '.join(members)}"
        raise _refuse((field.name,), message, "value_error", value, tuple(members))
    return members[value.upper()]


def _before_per_kind(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _refuse((field.name,), "Input should be a valid dictionary", "dict_type", value)
    parsed = {}
    for kind, backend in value.items():
        if kind not in table.kv_cache_kinds:
            known = ", ".join(table.kv_cache_kinds)
            message = (
                f"Value error, Unknown KV cache group kind '{kind}' in backend_per_kind. Valid kinds are: {known}."
            )
            raise _refuse((field.name,), message, "value_error", value, table.kv_cache_kinds)
        if not isinstance(backend, str):
            raise _refuse((field.name, kind), "Input should be an attention backend", "enum", backend)
        parsed[kind] = _member(table, "AttentionBackendEnum", backend, (field.name,))
    return parsed


def _before_lower(table: FlagTable, field: ConfigField, value: Any) -> Any:
    return value.lower().replace("-", "_") if isinstance(value, str) else value


def _before_split(table: FlagTable, field: ConfigField, value: Any) -> Any:
    return value.replace(" ", "").split(",") if isinstance(value, str) else value


class _Checked(str):
    """An enum member's name that needs no further check."""

    __slots__ = ()


_BEFORE: Final[Mapping[str, Callable[[FlagTable, ConfigField, Any], Any]]] = {
    "enum": _before_enum,
    "enum_auto": _before_enum_auto,
    "mode": _before_mode,
    "per_kind": _before_per_kind,
    "lower": _before_lower,
    "split": _before_split,
    "opaque": lambda table, field, value: value,
}


# -- pydantic's lax conversions of JSON values ---------------------------------------------------------------


def _convert(table: FlagTable, shape: Shape, value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(shape, str):
        if shape.startswith("dc:"):
            config = table.configs.get(shape[3:])
            if config is None:
                return value
            accepted, issues = validate_config(table, config, value)
            if issues:
                raise _Refused(
                    [
                        ConfigIssue((*path, *i.path), i.message, i.kind, i.value, i.choices, i.raw_exception)
                        for i in issues
                    ]
                )
            return accepted
        if shape.startswith("enum:"):
            return _enum(table, shape[5:], value, path)
        convert = _SCALARS.get(shape)
        return value if convert is None else convert(value, path)
    head, *parts = shape
    if head == "u":
        return _union(table, parts, value, path)
    if head == "lit":
        if any(value == option and type(value) is type(option) for option in parts):
            return value
        names = [repr(option) for option in parts]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
        raise _refuse(path, f"Input should be {listed}", "literal_error", value, tuple(parts))
    if head == "d":
        if not isinstance(value, Mapping):
            raise _refuse(path, "Input should be an object", "dict_type", value)
        return {key: _convert(table, parts[1], item, (*path, str(key))) for key, item in value.items()}
    if not isinstance(value, list):
        raise _refuse(path, "Input should be a valid array", f"{_SEQUENCES[head]}_type", value)
    if head == "t" and "..." not in parts:
        if len(value) != len(parts):
            raise _refuse(path, f"Tuple should have {len(parts)} items", "too_long", value)
        return [_convert(table, part, item, path) for part, item in zip(parts, value, strict=True)]
    return [_convert(table, parts[0], item, (*path, str(index))) for index, item in enumerate(value)]


_SEQUENCES: Final = {"l": "list", "s": "set", "t": "tuple"}


def _union(table: FlagTable, parts: list[Shape], value: Any, path: tuple[str, ...]) -> Any:
    """A value of exactly one branch's type stays as it is; else the first branch that can convert it."""
    if isinstance(value, _Checked):
        return str(value)
    if value is None and "none" in parts:
        return None
    exact = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(value))
    issues: list[ConfigIssue] = []
    for part in sorted(parts, key=lambda part: part != exact):
        if part == "none":
            continue
        try:
            return _convert(table, part, value, path)
        except _Refused as refused:
            issues.extend(refused.issues)
    raise _Refused(issues)


def _enum(table: FlagTable, enum: str, value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, _Checked):
        return str(value)
    members = table.enums.get(enum, {})
    known = [member for member in members.values() if member is not None]
    number = float(value) if isinstance(value, str) and value.strip().isdigit() else value
    for name, member in members.items():
        if member is not None and (member == value or (isinstance(member, int) and member == number)):
            # CUDA graph modes are spoken of by name; compilation modes by number.
            return name if enum == "CUDAGraphMode" else member
    listed = ", ".join(repr(item) for item in known) or "a member of the enumeration"
    raise _refuse(path, f"Input should be {listed}", "enum", value, tuple(members))


def _int(value: Any, path: tuple[str, ...]) -> int:
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        if not math.isfinite(value):
            raise _refuse(path, "Input should be a finite number", "finite_number", value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise _refuse(path, message, "int_from_float", value)
    if isinstance(value, str):
        text = value.strip()
        whole, _, fraction = text.partition(".")
        try:
            return int(whole if fraction.strip("0") == "" and whole else text)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise _refuse(path, message, "int_parsing", value) from None
    raise _refuse(path, "Input should be a valid integer", "int_type", value)


def _float(value: Any, path: tuple[str, ...]) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value.strip())
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            raise _refuse(path, message, "float_parsing", value) from None
    raise _refuse(path, "Input should be a valid number", "float_type", value)


_TRUE: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
_FALSE: Final = frozenset(("0", "off", "f", "false", "n", "no"))


def _bool(value: Any, path: tuple[str, ...]) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
    if isinstance(value, int | float | str):
        message = "Input should be a valid boolean, unable to interpret input"
        raise _refuse(path, message, "bool_parsing", value)
    raise _refuse(path, "Input should be a valid boolean", "bool_type", value)


def _str(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    raise _refuse(path, "Input should be a valid string", "string_type", value)


def _none(value: Any, path: tuple[str, ...]) -> None:
    if value is not None:
        raise _refuse(path, "Input should be null", "none_required", value)


def _callable(value: Any, path: tuple[str, ...]) -> Any:
    raise _refuse(path, "Input should be callable", "callable_type", value)


_SCALARS: Final[Mapping[str, Callable[[Any, tuple[str, ...]], Any]]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "Path": _str,
    "none": _none,
    "callable": _callable,
}
