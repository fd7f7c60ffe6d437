"""Conversion of a flag's text into its value, with the error argparse prints when it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.inputs.flags.config_json import validate_config, validation_text
from dsv4check.inputs.flags.config_values import ConfigIssue
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import FlagSpec, FlagTable


@dataclass(slots=True)
class RefusedValueError(Exception):
    """A text that the flag does not take."""

    code: str
    """Problem code, e.g. ``bad-value``, ``bad-json``, ``bad-choice`` or ``unknown-config-key``."""
    error: str
    """What argparse prints after ``argument --flag:``."""
    exception: str = "SystemExit"
    issues: list[ConfigIssue] = field(default_factory=list)
    partial: dict[str, Any] | None = None
    """Keys of a JSON value that passed."""


_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_OBJECT: Final = re.compile(r"(?s)^\s*{.*}\s*$")
_QUOTED: Final = re.compile(r'("(?:[^"\\]|\\.)*")')
_NUMBER_WITH_SUFFIX: Final = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")


class _TypeRefusedError(ValueError):
    """argparse's ArgumentTypeError: its text is printed as it is."""


def human_readable_int(text: str) -> int:
    """``25.6k`` -> 25600, ``1K`` -> 1024; decimals only with the lower-case, decimal suffixes.

    Raises ValueError for anything else (vllm/utils/argparse_utils.py, the same in every release).
    """
    text = text.strip()
    match = _HUMAN.fullmatch(text)
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        try:
            return int(float(number) * _DECIMAL[suffix])
        except OverflowError as error:
            raise _TypeRefusedError(str(error)) from None
    try:
        return int(number) * _BINARY[suffix]
    except ValueError:
        raise _TypeRefusedError(
            f"Decimals are not allowed with binary suffixes like {suffix}. Did you mean to use "
            f"{number}{suffix.lower()} instead?"
        ) from None


def _int_or_auto(text: str) -> int:
    return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else human_readable_int(text)


def _dict_or_str(text: str) -> Any:
    return text if _OBJECT.match(text) is None else _optional(json.loads, text, "loads")


def _device_ids(text: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in (piece.strip() for piece in text.split(","))]


_CONVERTERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    # kind -> (converter, what argparse calls it in "invalid X value")
    "str": (str, "str"),
    "int": (int, "int"),
    "float": (float, "float"),
    "human_readable_int": (human_readable_int, "human_readable_int"),
    "human_readable_int_or_auto": (_int_or_auto, "human_readable_int_or_auto"),
    "loads": (json.loads, "loads"),
    "lower": (lambda text: text.lower().replace("-", "_"), "<lambda>"),
    "union_dict_and_str": (_dict_or_str, "union_dict_and_str"),
    "device_ids": (_device_ids, "<lambda>"),
    "parse_reasoning_parser": (lambda text: "" if text.lower() == "none" else text, "parse_reasoning_parser"),
}
_PRINTED: Final = {"int": "<class 'int'>", "float": "<class 'float'>", "str": "<class 'str'>"}


def _wrapped(convert: Callable[[str], Any], text: str, name: str) -> Any:
    """vLLM's own wrapper words the failure itself; functions are printed with their address."""
    try:
        return convert(text)
    except _TypeRefusedError:
        raise
    except (ValueError, RecursionError):
        printed = _PRINTED.get(name, f"<function {name} at 0x...>")
        raise _TypeRefusedError(f"Value {text} cannot be converted to {printed}.") from None


def _optional(convert: Callable[[str], Any], text: str, name: str) -> Any:
    return None if text in ("", "None") else _wrapped(convert, text, name)


def convert_value(table: FlagTable, spec: FlagSpec, text: str) -> Any:
    """The value of one text given to a flag.

    Raises RefusedValueError with argparse's wording.
    """
    kind, optional = spec.kind, False
    if kind.startswith("opt:"):
        kind, optional = kind[4:], True
        if text in ("", "None"):
            return _check_choice(spec, None)
    if kind.startswith("dc:"):
        return _dataclass(table, kind[3:], text)
    wrapped = optional or kind.startswith("parse:")
    kind = kind.removeprefix("parse:")
    convert, name = _CONVERTERS[kind]
    try:
        value = _wrapped(convert, text, name) if wrapped else convert(text)
    except _TypeRefusedError as error:
        raise RefusedValueError(_code(kind), str(error)) from None
    except (ValueError, RecursionError):
        raise RefusedValueError(_code(kind), f"invalid {name} value: {text!r}") from None
    return _check_choice(spec, value)


def convert_lora_modules(texts: list[Any]) -> list[dict[str, str]]:
    """``--lora-modules name=path`` or ``{"name": ..., "path": ...}``, several of them.

    Raises RefusedValueError; its text stands alone, without the flag in front.
    """
    modules: list[dict[str, str]] = []
    for text in texts:
        if text in (None, ""):
            continue
        if "=" in text and "," not in text:
            name, _, path = text.partition("=")
            modules.append({"name": name, "path": path})
            continue
        try:
            module = json.loads(text)
        except (ValueError, RecursionError):
            raise RefusedValueError("bad-json", f"Invalid JSON format for --lora-modules: {text}") from None
        if not isinstance(module, dict) or not {"name", "path"} <= set(module) <= _LORA_KEYS:
            raise RefusedValueError("bad-value", f"Invalid fields for --lora-modules: {text}")
        modules.append(module)
    return modules


_LORA_KEYS: Final = frozenset(("name", "path", "base_model_name", "is_3d_lora_weight"))


def _code(kind: str) -> str:
    return "bad-json" if kind in ("loads", "union_dict_and_str") else "bad-value"


def _check_choice(spec: FlagSpec, value: Any) -> Any:
    if spec.choices is not None and value not in spec.choices:
        listed = ", ".join(map(repr, spec.choices))
        raise RefusedValueError("bad-choice", f"invalid choice: {value!r} (choose from {listed})")
    return value


def _dataclass(table: FlagTable, name: str, text: str) -> Any:
    """Parse and validate the JSON of a flag that pydantic checks."""
    try:
        text = _expand_suffixes(text)
    except _TypeRefusedError as error:
        raise RefusedValueError("bad-value", str(error)) from None
    config = table.configs[name]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        issue = ConfigIssue((), f"Invalid JSON: {_json_complaint(error)}", "json_invalid", text)
        raise RefusedValueError("bad-json", validation_text(name, [issue])) from None
    accepted, issues = validate_config(table, config, data)
    if not issues:
        return accepted
    raw = next((issue for issue in issues if issue.raw_exception), None)
    if raw is not None:
        raise RefusedValueError("bad-config-value", raw.message, raw.raw_exception, [raw], accepted)
    unknown = any(issue.kind == "unexpected_keyword_argument" for issue in issues)
    code = "unknown-config-key" if unknown else "bad-config-value"
    raise RefusedValueError(code, validation_text(name, issues), "SystemExit", issues, accepted or None)


def _expand_suffixes(text: str) -> str:
    """``{"cpu_bytes_to_use": 80g}``: bare numbers with a suffix are numbers; inside strings they stay."""
    if not _NUMBER_WITH_SUFFIX.search(text):
        return text
    parts = _QUOTED.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _NUMBER_WITH_SUFFIX.sub(lambda match: str(human_readable_int(match.group())), parts[index])
    return "".join(parts)


def _json_complaint(error: Exception) -> str:
    """Python's complaint in the words of pydantic's JSON reader where they are known."""
    if not isinstance(error, json.JSONDecodeError):
        return "recursion limit exceeded"
    text = str(error)
    place = f" at line {error.lineno} column {error.colno}"
    if error.pos >= len(error.doc.rstrip()):
        return f"EOF while parsing a value{place}"
    if text.startswith("Expecting property name"):
        return f"key must be a string{place}"
    if text.startswith("Expecting value"):
        return f"expected value{place}"
    if text.startswith("Extra data"):
        return f"trailing characters{place}"
    if text.startswith("Unterminated string"):
        return f"EOF while parsing a string{place}"
    if "delimiter" in text:
        return f"expected `,` or `}}`{place}"
    return text
