"""Records as plain data: what JSON can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any


def plain_record(record: Any) -> dict[str, Any]:
    """A dataclass as a mapping, in the order of its fields; what it holds is followed."""
    return {item.name: plain_value(getattr(record, item.name)) for item in fields(record)}


def plain_value(value: Any) -> Any:
    """Records as mappings, sequences as lists, sets as sorted lists, members of an enumeration as their values."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        # A set has no order of its own: the same record is the same text in every process.
        return [plain_value(item) for item in sorted(value, key=str)]
    if hasattr(value, "__dataclass_fields__"):
        return plain_record(value)
    return str(value)
