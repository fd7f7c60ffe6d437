"""The observations of a machine as text blocks: problems first, what is in order in a line an area."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.doctor.public import without_home
from dsv4check.host.records import Observation, State
from dsv4check.report.blocks import Block, Heading, Paragraph, Table

_AREAS: Final = {
    "gpu": "GPUs",
    "driver": "Driver",
    "packages": "Packages",
    "extensions": "Kernels",
    "limits": "Limits",
    "environment": "Variables",
}

_NAMES_ALONE: Final = frozenset(("extensions", "limits"))
"""Areas of which nobody wants the figures while they are enough."""

_SELF_EVIDENT: Final = frozenset(("packages", "limits"))
"""Areas where everybody knows where to look; the JSON says it all the same."""
_GPU: Final = re.compile(r"gpu-\d+")


def machine_blocks(observations: Sequence[Observation]) -> Iterator[Block]:
    """Errors and warnings one by one; then what is in order; then what could not be looked at."""
    yield Heading("Machine")
    if not observations:
        yield Paragraph("nothing was looked at")
    for state in (State.ERROR, State.WARNING):
        for item in observations:
            if item.state is state:
                yield from _problem_blocks(item)
    rows = tuple(_compact(observations))
    if rows:
        if any(item.state in (State.ERROR, State.WARNING) for item in observations):
            yield Heading("Else on this machine", "plain")
        yield Table((), rows)
    unknown = [item for item in observations if item.state is State.UNKNOWN]
    if unknown:
        yield Heading("Not looked at")
        for why, items in _by_reason(unknown).items():
            yield Paragraph(f"{', '.join(items)}: {why}")


def _problem_blocks(item: Observation) -> Iterator[Block]:
    area = _AREAS.get(item.area, item.area)
    yield Heading(f"{item.state.value} {item.id} [{area}]", item.state.value)
    said = f"{item.what}: {item.found}" if item.found else item.what
    if item.wanted:
        said += f"; needed: {item.wanted}"
    yield Paragraph(without_home(_sentences(said, item.why)))
    if item.advice:
        yield Paragraph(without_home(f"do: {item.advice}"), style="fix")
    rule = item.data.get("rule")
    read = [f"read from: {item.source}"] if item.source and item.area not in _SELF_EVIDENT else []
    read += [f"see: dsv4check explain {rule}"] if rule else []
    if read:
        yield Paragraph(without_home("; ".join(read)), style="dim")


def _compact(observations: Sequence[Observation]) -> Iterator[tuple[str, str]]:
    areas = dict.fromkeys([*_AREAS, *(item.area for item in observations)])
    for area in areas:
        good = [item for item in observations if item.area == area and item.state is State.OK]
        if good:
            name = _AREAS.get(area, area)
            said = f"in order: {', '.join(item.what for item in good)}" if area in _NAMES_ALONE else _values(good)
            yield name, without_home(said)
        for item in observations:
            if item.area == area and item.state is State.NOTE:
                told = _sentences(_said(item), item.why)
                yield f"{_AREAS.get(area, area)}, note", without_home(_sentences(told, item.advice))


def _values(items: Sequence[Observation]) -> str:
    """What was found, once for those that are alike: eight GPUs of a kind."""
    alike: dict[str, list[Observation]] = {}
    for item in items:
        alike.setdefault(item.found if _GPU.fullmatch(item.id) else item.id, []).append(item)
    return "; ".join(_said(same[0]) if len(same) == 1 else f"{len(same)} x {same[0].found}" for same in alike.values())


def _said(item: Observation) -> str:
    return f"{item.what}: {item.found}" if item.found else item.what


def _sentences(first: str, second: str) -> str:
    return f"{first.rstrip('.')}. {second}" if second else first


def _by_reason(items: Sequence[Observation]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        why = without_home(item.why.rstrip("."))
        found.setdefault(f"{why}. To know: {item.advice.rstrip('.')}." if item.advice else f"{why}.", []).append(
            item.what
        )
    return found
