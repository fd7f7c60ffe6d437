"""How loads of whole checkpoints by vLLM's own code are kept as text: tables of tensors and parameters.

A table has one line for tensors that differ only in their layer (``{l}``) and expert (``{e}``), with the numbers they
stand for and the parameters they reached. Tables are shared: many releases do the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dsv4check.checkpoint.published import numbers_of_span

_LAYER: Final = re.compile(r"^((?:mtp|layers|.*?\blayers|vision\.blocks)\.)(\d+)(\..+)$")

Row = tuple[str, tuple[int, ...], tuple[str, ...]]
"""(tensor with ``{e}``, its experts, the parameters it reached)."""


def table_of(rows: Iterable[Row], parameters: Iterable[str]) -> str:
    """The text of a table."""
    merged: dict[tuple[str, str, str], list[int]] = {}
    for tensor, experts, targets in rows:
        match = _LAYER.match(tensor)
        number = None if match is None else int(match[2])
        name = tensor if match is None else f"{match[1]}{{l}}{match[3]}"
        spelled = " ".join(_with_layer(target, number) for target in targets)
        numbers = merged.setdefault((name, spans(experts), spelled), [])
        if number is not None:
            numbers.append(number)
    lines = [f"{name}\t{spans(numbers)}\t{experts}\t{targets}" for (name, experts, targets), numbers in merged.items()]
    registered: dict[str, list[int]] = {}
    for name in parameters:
        match = _LAYER.match(name)
        numbers = registered.setdefault(name if match is None else f"{match[1]}{{l}}{match[3]}", [])
        if match is not None:
            numbers.append(int(match[2]))
    lines += [f"= {name}\t{spans(numbers)}" for name, numbers in registered.items()]
    return "\n".join(sorted(lines)) + "\n"


def key_of(table: str) -> str:
    """Name of a table: a hash of its text."""
    return hashlib.sha256(table.encode()).hexdigest()[:12]


def read_table(text: str) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """(tensor -> the parameters it reached, all registered parameters) of a table, every name spelled out."""
    loaded: dict[str, tuple[str, ...]] = {}
    parameters: set[str] = set()
    for line in text.splitlines():
        if line.startswith("= "):
            name, layers = line[2:].split("\t")
            parameters.update(name.replace("{l}", str(layer)) for layer in numbers_of(layers))
            continue
        name, layers, experts, targets = line.split("\t")
        for layer in numbers_of(layers):
            reached = tuple(targets.replace("{l}", str(layer)).split())
            for expert in numbers_of(experts):
                loaded[name.replace("{l}", str(layer)).replace("{e}", str(expert))] = reached
    return loaded, frozenset(parameters)


def spans(numbers: Sequence[int]) -> str:
    """``0-2,5`` for 0, 1, 2, 5; empty for none."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers_of(text: str) -> Iterator[int | None]:
    """The numbers of a span; one None for an empty one, so that a name without number is still one name."""
    if not text:
        yield None
        return
    yield from numbers_of_span(text)


def rows_of(trace: dict[str, Any]) -> list[Row]:
    """The rows of a rehearsal's trace."""
    return [(tensor, tuple(experts), tuple(targets)) for tensor, experts, targets in trace["loaded"]]


def _with_layer(target: str, number: int | None) -> str:
    match = _LAYER.match(target)
    if match is None or number is None or int(match[2]) != number:
        return target
    return f"{match[1]}{{l}}{match[3]}"
