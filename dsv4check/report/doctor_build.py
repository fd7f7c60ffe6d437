"""The build and its fingerprints as text blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.doctor.public import without_home
from dsv4check.doctor.records import BuildAnswer, FingerprintAnswer
from dsv4check.report.blocks import Block, Heading, Paragraph, Table

_SHOWN: Final = 12
"""Differences that are shown; the JSON has all of them."""
_LONG: Final = 90
_UNTOLD: Final = 4
"""Open questions of which each has a line of its own."""


def build_blocks(build: BuildAnswer) -> Iterator[Block]:
    """Where vLLM is, which one it says it is, and whether its code is that."""
    yield Heading("Build")
    if not build.found:
        yield Paragraph(f"no vLLM was looked at: {without_home(build.why)}")
        return
    yield Table((), tuple(_rows(build)))
    if build.differs:
        yield Paragraph(f"differs from {build.nearest} in:")
        shown = build.differs[:_SHOWN]
        rows = tuple(
            (item.path, f"{_short(item.here) or 'gone'} ({build.nearest}: {_short(item.release) or 'not there'})")
            for item in shown
        )
        yield Table((), rows)
        if len(build.differs) > len(shown):
            yield Paragraph(f"and {len(build.differs) - len(shown)} more (--format json)", style="dim")


def _rows(build: BuildAnswer) -> Iterator[tuple[str, str]]:
    yield "found", without_home(build.package) + (f" ({build.found_by})" if build.found_by else "")
    version = build.version or "says none"
    yield "version", version + (f" ({build.version_from})" if build.version_from else "")
    if build.commit:
        yield "commit", build.commit + (f" ({build.commit_from})" if build.commit_from else "")
    number = len(build.learned)
    sections = f"{number} section{'s' * (number != 1)} of facts"
    match build.is_release:
        case True:
            yield "its code", f"that of release {build.nearest}, in all {sections} that were read from it"
        case False:
            count = len(build.differs)
            yield (
                "its code",
                f"nearest to release {build.nearest}, but {count} fact{'s' * (count != 1)} differ{'s' * (count == 1)}",
            )
        case None:
            why = f": {_short(without_home(build.unread[0].why))}" if build.unread else ""
            yield "its code", f"was not read{why}" + (" (the rest: --format json)" if build.unread[1:] else "")
    if build.unread and build.learned:
        whys: dict[str, list[str]] = {}
        for item in build.unread:
            whys.setdefault(item.why, []).append(item.part)
        stand_in = f"; there the facts of {build.nearest} stand in" if build.nearest else ""
        said = "; ".join(f"{', '.join(parts)} ({_short(without_home(why))})" for why, parts in whys.items())
        yield "not read", said + stand_in


def fingerprint_blocks(answers: Sequence[FingerprintAnswer], met: frozenset[str] | None) -> Iterator[Block]:
    """The questions about the build's code: what differs from the release and known troubles first.

    Args:
        answers: The answers.
        met: Rules that a launch meets, or may meet: other troubles are only named then. None without a launch.
    """
    if not answers:
        return
    yield Heading(f"What this build's code does ({', '.join(_counts(answers))})")
    told = [item for item in answers if _is_told(item, met)]
    for item in sorted(told, key=_rank):
        yield from _answer_blocks(item)
    silent = [item for item in answers if item not in told]
    troubles = [item for item in silent if item.fault]
    good = [item for item in silent if not item.fault and item.value is not None]
    if met is not None and (troubles or good):
        # The launch is what was asked about; what does not touch it stands in the JSON.
        number = len(troubles)
        other = f"{number} known trouble{'s' * (number != 1)} that no finding of this launch names, " if number else ""
        yield Paragraph(f"not shown: {other}{len(good)} without one (--format json)", style="dim")
    elif good:
        yield Paragraph(f"Without a known trouble: {_names(good)}.", style="dim")
    untold = [item for item in silent if item.value is None]
    if len(untold) == len(answers):
        # The heading says it, and the build why.
        return
    if len(untold) > _UNTOLD:
        yield Paragraph(f"could not be told: {', '.join(item.id for item in untold)} (--format json says why)")
        return
    for item in untold:
        yield Paragraph(f"{item.id}: could not be told: {item.why}")


def _counts(answers: Sequence[FingerprintAnswer]) -> Iterator[str]:
    yield f"{len(answers)} question{'s' * (len(answers) != 1)}"
    troubles = sum(item.fault is True for item in answers)
    told = [item for item in answers if item.value is not None]
    if told:
        yield f"{troubles} with a known trouble" if troubles else "no known trouble"
    release = next((item.release for item in told if item.release_value is not None), None)
    if release is not None:
        other = sum(item.as_release is False for item in answers)
        yield f"{other or 'none'} other than in {release}"
    unread = sum(item.value is None for item in answers)
    if unread:
        yield f"{unread} could not be told"


def _is_told(item: FingerprintAnswer, met: frozenset[str] | None) -> bool:
    if item.as_release is False:
        return True
    return item.fault is True and (met is None or not met.isdisjoint(item.rules))


def _rank(item: FingerprintAnswer) -> tuple[bool, bool]:
    return not item.fault, item.as_release is not False


def _answer_blocks(item: FingerprintAnswer) -> Iterator[Block]:
    rules = f" ({', '.join(item.rules)})" if item.rules else ""
    other = f"; {item.release}: {item.release_value}" if item.as_release is False else ""
    mark = "" if item.fault else "no trouble: "
    yield Paragraph(f"{mark}{item.id} = {item.value}{rules}{other}. {item.says}")
    for quote in item.quotes[:1]:
        line = _short(" ".join(quote.text.split()))
        yield Paragraph(f"{quote.file}:{quote.line}: {line}", indent=6, style="dim", verbatim=True)


def _names(items: Sequence[FingerprintAnswer]) -> str:
    return ", ".join(f"{item.id} = {item.value}" for item in items)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 3].rstrip() + "..."
