"""Which file holds a V4 model class for each GPU vendor.

Source: the choice by platform in ``models/deepseek_v4/__init__.py`` and in that of ``models/deepseek_v41``.
"""

from __future__ import annotations

import ast
from typing import Final

from ...source import LearningError, Source
from .queries import branches, class_

VENDORS: Final = ("nvidia", "amd", "intel")
_PLATFORMS: Final = {"is_cuda": "nvidia", "is_rocm": "amd", "is_xpu": "intel"}
_OTHERS: Final = ("is_cpu", "is_tpu")
"""Platforms that are none of our vendors."""


def files_by_vendor(source: Source, folder: str, name: str) -> dict[str, str]:
    """File of a model class by vendor, without the vendors that have none.

    Raises LearningError where the choice cannot be read, or a chosen file lacks the class.
    """
    entry = f"{folder}/__init__.py"
    found: dict[str, str] = {}
    chains = [item for item in source.tree(entry).body if isinstance(item, ast.If)]
    if len(chains) != 1:
        raise LearningError(f"{entry}: expected one choice by platform")
    for vendor in VENDORS:
        body = next(
            (body for test, body in branches(chains[0]) if test is None or _holds(entry, test, vendor)),
            [],
        )
        for item in body:
            if isinstance(item, ast.ImportFrom) and any(alias.name == name for alias in item.names):
                found[vendor] = f"{folder}/{(item.module or '').replace('.', '/')}.py"
                class_(source, found[vendor], name)
    if not found:
        raise LearningError(f"{entry}: expected {name}")
    return found


def _holds(entry: str, test: ast.expr, vendor: str) -> bool:
    """The value of a test for the platform on a machine of this vendor."""
    match test:
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_holds(entry, value, vendor) for value in values)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_holds(entry, value, vendor) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(entry, operand, vendor)
        case ast.Name(id="TYPE_CHECKING"):
            return False
        case ast.Call(func=ast.Attribute(attr=attribute), args=[]) if attribute in _PLATFORMS:
            return _PLATFORMS[attribute] == vendor
        case ast.Call(func=ast.Attribute(attr=attribute), args=[]) if attribute in _OTHERS:
            return False
    raise LearningError(f"{entry}: no vendor for {ast.unparse(test)}")
