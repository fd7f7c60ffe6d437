"""Single values inside JSON-valued flags: how pydantic converts them, and what it says when it cannot.

Lax mode, as vLLM's config classes use it: ``"5"`` and ``5.0`` are integers, ``"yes"`` and ``1`` are booleans,
but a number is no string.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.records import dataclass


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
    branch: str = ""
    """pydantic's name for the branch of a union that refused."""

    @property
    def lines(self) -> str:
        """The issue as pydantic prints it."""
        detail = f"  {self.message} [type={self.kind}, input_value={_short(self.value)}, "
        detail += f"input_type={type(self.value).__name__}]"
        place = ".".join((*self.path, self.branch) if self.branch else self.path)
        return "\n".join([*([place] if place else []), detail])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:25]}...{text[-24:]}"


class RefusedConfigError(Exception):
    """A value that does not fit its type."""

    def __init__(self, issues: list[ConfigIssue]) -> None:
        super().__init__()
        self.issues = issues


def refuse(
    path: tuple[str, ...], message: str, kind: str, value: Any, choices: tuple[Any, ...] = ()
) -> RefusedConfigError:
    """The exception for one refused value."""
    return RefusedConfigError([ConfigIssue(path, message, kind, value, choices)])


def _int(value: Any, path: tuple[str, ...]) -> int:
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        if not math.isfinite(value):
            raise refuse(path, "Input should be a finite number", "finite_number", value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise refuse(path, message, "int_from_float", value)
    if isinstance(value, str):
        text = value.strip()
        whole, _, fraction = text.partition(".")
        try:
            return int(whole if fraction.strip("0") == "" and whole else text)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise refuse(path, message, "int_parsing", value) from None
    raise refuse(path, "Input should be a valid integer", "int_type", value)


def _float(value: Any, path: tuple[str, ...]) -> float:
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            raise refuse(path, "Input should be a valid number", "float_type", value) from None
    if isinstance(value, str):
        try:
            return float(value.strip())
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            raise refuse(path, message, "float_parsing", value) from None
    raise refuse(path, "Input should be a valid number", "float_type", value)


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
        raise refuse(path, message, "bool_parsing", value)
    raise refuse(path, "Input should be a valid boolean", "bool_type", value)


def _str(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    raise refuse(path, "Input should be a valid string", "string_type", value)


def _none(value: Any, path: tuple[str, ...]) -> None:
    if value is not None:
        raise refuse(path, "Input should be null", "none_required", value)


def _callable(value: Any, path: tuple[str, ...]) -> Any:
    raise refuse(path, "Input should be callable", "callable_type", value)


SCALARS: Final[Mapping[str, Callable[[Any, tuple[str, ...]], Any]]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "Path": _str,
    "none": _none,
    "callable": _callable,
}
