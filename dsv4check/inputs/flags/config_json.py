"""Validation of JSON-valued flags, as vLLM's config dataclasses do it while the command line is parsed.

vLLM hands the text to pydantic inside an argparse type, so an unknown key or a bad value ends the parser
with exit status 2. The fields, literals and bounds come from the release's flag table; this module knows how
pydantic converts JSON values (lax mode) and which checks over several keys the classes make afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dsv4check.inputs.flags.config_checks import CHECKS
from dsv4check.inputs.flags.config_values import SCALARS, ConfigIssue, RefusedConfigError, refuse
from dsv4check.releases.flag_table import ConfigClass, ConfigField, FlagTable, Shape


def validation_text(title: str, issues: Sequence[ConfigIssue]) -> str:
    """The text of pydantic's ValidationError."""
    plural = "s" if len(issues) > 1 else ""
    return "\n".join([f"{len(issues)} validation error{plural} for {title}", *(issue.lines for issue in issues)])


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
        except RefusedConfigError as refused:
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


def _field(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if value is None and field.null_ok:
        return None
    path = (field.name,)
    if field.before is not None:
        value = _BEFORE[field.before](table, field, value)
        named = field.before == "quant" and isinstance(value, str)
        if named or field.before in _FINAL or (field.before != "lower" and value is None):
            return value
    value = _convert(table, field.shape, value, path)
    for bound, limit in field.bounds if value is not None else ():
        test, text, kind = _BOUNDS[bound]
        if not test(value, limit):
            raise refuse(path, text.format(limit), kind, value)
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
        raise RefusedConfigError([ConfigIssue(path, repr(upper), "key_error", name, members, "KeyError")])
    message = f"Value error, Unknown {title}: '{upper}'. Valid options are: {', '.join(members)}"
    raise refuse(path, message, "value_error", name, members)


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
        raise refuse((field.name,), message, "value_error", value, tuple(members))
    return members[value.upper()]


def _before_per_kind(table: FlagTable, field: ConfigField, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise refuse((field.name,), "Input should be a valid dictionary", "dict_type", value)
    parsed = {}
    for kind, backend in value.items():
        if kind not in table.kv_cache_kinds:
            known = ", ".join(table.kv_cache_kinds)
            message = f"Value error, Unknown KV cache group kind '{kind}' in backend_per_kind. "
            message += f"Valid kinds are: {known}."
            raise refuse((field.name,), message, "value_error", value, table.kv_cache_kinds)
        if not isinstance(backend, str):
            raise refuse((field.name, kind), "Input should be an attention backend", "enum", backend)
        parsed[kind] = _member(table, "AttentionBackendEnum", backend, (field.name,))
    return parsed


def _before_lower(table: FlagTable, field: ConfigField, value: Any) -> Any:
    return value.lower().replace("-", "_") if isinstance(value, str) else value


def _before_split(table: FlagTable, field: ConfigField, value: Any) -> Any:
    return value.replace(" ", "").split(",") if isinstance(value, str) else value


def _before_quant(table: FlagTable, field: ConfigField, value: Any) -> Any:
    """``linear`` and ``moe``: an online shorthand that covers the layer kind, or a quantization key."""
    if not isinstance(value, str):
        return value
    covered = table.quantization["shorthands"].get(value)
    if covered is None:
        return _before_quant_key(table, field, value)
    if field.name not in covered:
        message = f"Value error, online shorthand {value!r} does not define a {field.name} spec"
        raise refuse((field.name,), message, "value_error", value)
    return value


def _before_quant_key(table: FlagTable, field: ConfigField, value: Any) -> Any:
    keys = table.quantization["keys"]
    if value is None or value in keys:
        return value
    if not isinstance(value, str):
        message = f"expected str or QuantKey, got {type(value).__name__}"
        raise refuse((field.name,), message, "type_error", value)
    message = f"Value error, unknown quantization name {value!r}; expected one of {keys}"
    raise refuse((field.name,), message, "value_error", value, tuple(keys))


def _before_quant_targets(table: FlagTable, field: ConfigField, value: Any) -> Any:
    """``targets`` (0.30 and later): layer pattern -> online shorthand."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise refuse((field.name,), f"targets must be a dict, got {type(value).__name__}", "type_error", value)
    names = sorted(table.quantization["shorthands"])
    for pattern, shorthand in value.items():
        if shorthand not in names:
            message = f"Value error, targets[{pattern}] = {shorthand} is not a valid online shorthand name; "
            message += f"expected one of {names}"
            raise refuse((field.name,), message, "value_error", shorthand, tuple(names))
    return value


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
    "quant": _before_quant,
    "quant_key": _before_quant_key,
    "quant_targets": _before_quant_targets,
}
_FINAL: Final = frozenset({"per_kind", "quant_key", "quant_targets"})
"""Steps that leave nothing to convert."""


# -- pydantic's lax conversions of JSON values ---------------------------------------------------------------


def _convert(table: FlagTable, shape: Shape, value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(shape, str):
        if shape.startswith("dc:"):
            config = table.configs.get(shape[3:])
            if config is None:
                return value
            accepted, issues = validate_config(table, config, value)
            if issues:
                raise RefusedConfigError(
                    [
                        ConfigIssue((*path, *i.path), i.message, i.kind, i.value, i.choices, i.raw_exception)
                        for i in issues
                    ]
                )
            return accepted
        if shape.startswith("enum:"):
            return _enum(table, shape[5:], value, path)
        convert = SCALARS.get(shape)
        return value if convert is None else convert(value, path)
    head, *parts = shape
    if head == "u":
        return _union(table, parts, value, path)
    if head == "lit":
        if any(value == option and type(value) is type(option) for option in parts):
            return value
        names = [repr(option) for option in parts]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
        raise refuse(path, f"Input should be {listed}", "literal_error", value, tuple(parts))
    if head == "d":
        if not isinstance(value, Mapping):
            raise refuse(path, "Input should be an object", "dict_type", value)
        return {key: _convert(table, parts[1], item, (*path, str(key))) for key, item in value.items()}
    if not isinstance(value, list):
        raise refuse(path, "Input should be a valid array", f"{_SEQUENCES[head]}_type", value)
    if head == "t" and "..." not in parts:
        if len(value) != len(parts):
            raise refuse(path, f"Tuple should have {len(parts)} items", "too_long", value)
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
        except RefusedConfigError as refused:
            if len(parts) - ("none" in parts) > 1:
                refused.issues = [replace(issue, branch=_branch(part)) for issue in refused.issues]
            issues.extend(refused.issues)
    order = [_branch(part) for part in parts]
    raise RefusedConfigError(sorted(issues, key=lambda issue: order.index(issue.branch) if issue.branch else 0))


def _branch(part: Shape) -> str:
    if isinstance(part, str):
        return part.partition(":")[2] or part
    if part[0] == "lit":
        return f"literal[{','.join(map(repr, part[1:]))}]"
    inner = ",".join(_branch(item) for item in part[1:])
    return f"{'dict' if part[0] == 'd' else _SEQUENCES.get(part[0], 'union')}[{inner}]"


def _enum(table: FlagTable, enum: str, value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, _Checked):
        return str(value)
    members = table.enums.get(enum, {})
    known = [member for member in members.values() if member is not None]
    number = float(value) if isinstance(value, str) and value.strip().isdecimal() else value
    for name, member in members.items():
        if member is not None and (member == value or (isinstance(member, int) and member == number)):
            # CUDA graph modes are spoken of by name; compilation modes by number.
            return name if enum == "CUDAGraphMode" else member
    listed = ", ".join(repr(item) for item in known) or "a member of the enumeration"
    raise refuse(path, f"Input should be {listed}", "enum", value, tuple(members))
