"""Lines of the table that says where a checkpoint's tensors go: patterns that go the same way share one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Final

from dsv4check.checkpoint.loading import Row
from dsv4check.records import dataclass

_NUMBERED: Final = "{n}."
_WIDTH: Final = 106
"""Letters that a tensor and its parameter may take together."""
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One or several patterns and what they are loaded into."""

    tensor: str
    count: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors below one prefix that go below another."""

    tensors: str
    """What the lines' tensors start with, e.g. ``layers.{n}.``; may be empty."""
    parameters: str
    """What the lines' parameters start with, where they go below it."""
    lines: tuple[Line, ...]


_Target = tuple[str, tuple[str, ...]]
"""A parameter and the parts of it that are filled."""


def loaded_groups(rows: Iterable[Row]) -> Iterator[Group]:
    """The rows that are loaded, without what all names of a group start with."""
    found: dict[tuple[str, str], dict[tuple[str, tuple[str, ...]], _Merged]] = {}
    for row in rows:
        if row.skipped or row.exception or not row.targets:
            continue
        start, below = _prefix(row.pattern), _prefix(row.targets[0])
        targets = [_parted(target.removeprefix(below) if below else target) for target in row.targets]
        merged = found.setdefault((start, below), {})
        key = (row.pattern, tuple(parameter for parameter, _part in targets))
        if key in merged:
            merged[key].add(row.count, targets)
        else:
            merged[key] = _Merged(row.pattern.removeprefix(start), row.count, targets)
    for (start, below), merged in found.items():
        yield Group(start, below, tuple(_suffixes_together([item.line() for item in merged.values()])))


class _Merged:
    """Tensors that fill different parts of the same parameters."""

    def __init__(self, tensor: str, count: int, targets: Iterable[tuple[str, str]]) -> None:
        self.tensor, self.count = tensor, count
        self.parts = {parameter: [part] for parameter, part in targets}

    def add(self, count: int, targets: Iterable[tuple[str, str]]) -> None:
        self.count += count
        for parameter, part in targets:
            if part not in self.parts[parameter]:
                self.parts[parameter].append(part)

    def line(self) -> tuple[str, int, tuple[_Target, ...]]:
        return self.tensor, self.count, tuple((name, tuple(parts)) for name, parts in self.parts.items())


def _prefix(name: str) -> str:
    before, mark, _after = name.partition(_NUMBERED)
    return before + mark if mark else ""


def _parted(target: str) -> tuple[str, str]:
    """``name[part]`` as name and part."""
    name, _, part = target.removesuffix("]").partition("[") if target.endswith("]") else (target, "", "")
    return name, part


def _suffixes_together(items: list[tuple[str, int, tuple[_Target, ...]]]) -> Iterator[Line]:
    """A matrix' weight and scale on one line, where that is not too long."""
    lines: list[Line] = []
    members: list[list[tuple[str, int, tuple[_Target, ...]]]] = []
    places: dict[tuple[object, ...], int] = {}
    for item in items:
        tensor, count, targets = item
        stem, dot, _suffix = tensor.rpartition(".")
        key = (stem, count, tuple((name.rpartition(".")[0], parts) for name, parts in targets))
        place = places.get(key) if dot else None
        if place is not None:
            both = _line([*members[place], item])
            if len(both.tensor) + max(map(len, both.targets)) <= _WIDTH:
                members[place].append(item)
                lines[place] = both
                continue
        places[key] = len(lines)
        lines.append(_line([item]))
        members.append([item])
    return iter(lines)


def _line(items: list[tuple[str, int, tuple[_Target, ...]]]) -> Line:
    targets = []
    for column in zip(*(item[2] for item in items), strict=True):
        parts = ", ".join(part for part in column[0][1] if part)
        targets.append(_together([name for name, _parts in column]) + (f"[{parts}]" if parts else ""))
    return Line(_together([item[0] for item in items]), items[0][1], tuple(targets))


def _together(names: list[str]) -> str:
    """Names that differ at their end as ``a.{b,c}``."""
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        return names[0]
    stem = names[0].rpartition(".")[0] + "."
    leaves = [name.removeprefix(stem) for name in names]
    # w13_{weight,weight_scale}: the leaf's own head, up to an underscore, is said once.
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*leaves, strict=False))
    before, mark, _ = "".join(letters[0] for letters in alike).rpartition("_")
    start = before + mark
    return f"{stem}{start}{{{','.join(leaf.removeprefix(start) for leaf in leaves)}}}"


def skipped_lines(rows: Iterable[Row]) -> Iterator[tuple[str, int, str]]:
    """(tensors, count, why) of what the loader leaves out; many patterns for one reason become one line."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if row.skipped and not row.exception:
            patterns = found.setdefault((row.skipped, _prefix(row.pattern)), {})
            patterns[row.pattern] = patterns.get(row.pattern, 0) + row.count
    by_reason: dict[str, list[tuple[str, Mapping[str, int]]]] = {}
    for (reason, start), patterns in found.items():
        by_reason.setdefault(reason, []).append((start, patterns))
    for reason, groups in by_reason.items():
        if sum(len(patterns) for _start, patterns in groups) <= _FEW:
            yield from ((name, count, reason) for _start, patterns in groups for name, count in patterns.items())
            continue
        starts = [f"{start}*" for start, patterns in groups if start]
        starts += [name for start, patterns in groups if not start for name in patterns]
        shown = ", ".join(starts[:_FEW]) + (", ..." if len(starts) > _FEW else "")
        yield shown, sum(sum(patterns.values()) for _start, patterns in groups), reason
