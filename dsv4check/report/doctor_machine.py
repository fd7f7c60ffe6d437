"""The observations of a machine as text blocks: problems first, what is in order in a line an area."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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
_INSTALL: Final = "pip install "
_NAMED: Final = 3
"""Names that a heading has for problems that are alike, and differing pieces of advice."""


def machine_blocks(observations: Sequence[Observation], told: Mapping[str, str] | None = None) -> Iterator[Block]:
    """Errors and warnings, those that are alike together; then what is in order; then what could not be looked at.

    Args:
        observations: In the order they were made.
        told: Observation -> the rule of the launch's finding that says the same: it is only named here.
    """
    told = told or {}
    yield Heading("Machine")
    if not observations:
        yield Paragraph("nothing was looked at")
    if told:
        named = [f"{item.id} ({told[item.id]})" for item in observations if item.id in told]
        yield Paragraph(f"told by findings of the launch: {', '.join(named)}")
    for state in (State.ERROR, State.WARNING):
        problems = [item for item in observations if item.state is state and item.id not in told]
        for alike in _groups(problems, lambda item: (item.area, item.why, item.data.get("rule"))):
            yield from _problem_blocks(alike)
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


def _problem_blocks(alike: Sequence[Observation]) -> Iterator[Block]:
    item = alike[0]
    area = _AREAS.get(item.area, item.area)
    ids = ", ".join(one.id for one in alike[:_NAMED])
    more = f" and {len(alike) - _NAMED} more" if len(alike) > _NAMED else ""
    yield Heading(f"{item.state.value} {ids}{more} [{area}]", item.state.value)
    yield Paragraph(without_home(_sentences(_told(alike), item.why)))
    advice = _advice([one.advice for one in alike])
    if advice:
        yield Paragraph(without_home(f"do: {advice}"), style="fix")
    rule = item.data.get("rule")
    sources = list(dict.fromkeys(one.source for one in alike))
    read = [f"read from: {sources[0]}"] if sources[0] and item.area not in _SELF_EVIDENT else []
    read += [f"see: dsv4check explain {rule}"] if rule else []
    if read:
        yield Paragraph(without_home("; ".join(read)), style="dim")


def _told(alike: Sequence[Observation]) -> str:
    """What was found and what is needed, of one or of several that are alike."""
    wanted = {item.wanted for item in alike}
    if len(wanted) == 1:
        return _found(alike) + (f"; needed: {alike[0].wanted}" if alike[0].wanted else "")
    if len({item.found for item in alike}) == 1:
        return f"{', '.join(f'{item.what} ({item.wanted})' for item in alike)}: {alike[0].found}"
    return "; ".join(f"{_said(item)} (needed: {item.wanted})" for item in alike)


def _found(alike: Sequence[Observation]) -> str:
    """Each thing with what was found; those with the same once."""
    same = _groups(alike, lambda item: item.found)
    shown = same if len(same) <= _NAMED + 1 else same[:_NAMED]
    told = "; ".join(", ".join(item.what for item in items) + _colon(items[0].found) for items in shown)
    return told + (f"; and {len(same) - len(shown)} more" if shown is not same else "")


def _advice(texts: Iterable[str]) -> str:
    several = [text for text in dict.fromkeys(texts) if text]
    if len(several) > 1 and all(text.startswith(_INSTALL) for text in several):
        return _INSTALL + " ".join(text.removeprefix(_INSTALL) for text in several)
    return " ".join(several[:1] if len(several) > _NAMED else several)


def _compact(observations: Sequence[Observation]) -> Iterator[tuple[str, str]]:
    areas = dict.fromkeys([*_AREAS, *(item.area for item in observations)])
    for area in areas:
        name = _AREAS.get(area, area)
        good = [item for item in observations if item.area == area and item.state is State.OK]
        if good:
            said = f"in order: {', '.join(_names(good))}" if area in _NAMES_ALONE else _values(good)
            yield name, without_home(said)
        notes = [item for item in observations if item.area == area and item.state is State.NOTE]
        for alike in _groups(notes, lambda item: (item.why, item.advice)):
            told = _sentences(_found(alike), alike[0].why)
            yield f"{name}, note", without_home(_sentences(told, alike[0].advice))


def _names(items: Sequence[Observation]) -> Iterator[str]:
    folders = [item for item in items if item.id.startswith("limit-folder-")]
    yield from (item.what for item in items if len(folders) < 2 or item not in folders)
    if len(folders) > 1:
        yield f"{len(folders)} folders that are written to"


def _values(items: Sequence[Observation]) -> str:
    """What was found, once for those that are alike: eight GPUs of a kind."""
    alike = _groups(items, lambda item: item.found if _GPU.fullmatch(item.id) else item.id)
    return "; ".join(_said(same[0]) if len(same) == 1 else f"{len(same)} x {same[0].found}" for same in alike)


def _groups(items: Iterable[Observation], key: Callable[[Observation], Hashable]) -> list[list[Observation]]:
    """Those with the same key together, in the order in which the first of them stands."""
    found: dict[Hashable, list[Observation]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _said(item: Observation) -> str:
    return item.what + _colon(item.found)


def _colon(found: str) -> str:
    return f": {found}" if found else ""


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
