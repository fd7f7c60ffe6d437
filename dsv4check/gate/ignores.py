"""Ignores are applied to findings, and what is wrong with them is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dsv4check.engine.rule import Certainty
from dsv4check.gate.baseline import fingerprint
from dsv4check.gate.directives import Directives, Ignore, StatedFacts
from dsv4check.gate.globs import matches
from dsv4check.gate.own_rules import (
    DIRECTIVE_UNUSED,
    IGNORE_UNKNOWN_RULE,
    IGNORE_UNUSED,
    IGNORE_WITHOUT_REASON,
    OWN_RULES,
    PREFIX,
)
from dsv4check.gate.records import GateFinding, LaunchResult, Region
from dsv4check.gate.settings import Settings
from dsv4check.launchfiles.records import Stated
from dsv4check.records import dataclass

Heads = Sequence[frozenset[int]]
"""For every launch of a file the lines that stand for all of it."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """What the comments of a file say about one launch."""

    facts: Mapping[str, Stated]
    """By key; what stands at the launch wins over what stands at the top of the file, and later over earlier."""
    skip: str
    """Why it is not checked; empty where it is."""


def facts_at(directives: Directives, heads: frozenset[int]) -> Assigned:
    """The facts for a launch with these head lines."""
    facts: dict[str, Stated] = {}
    skip = ""
    for item in sorted(directives.facts, key=lambda item: (not item.whole_file, item.region.line)):
        if item.whole_file or item.covers in heads:
            facts |= item.facts
            skip = item.skip or skip
    return Assigned(facts, skip)


def directive_findings(directives: Directives, heads: Heads, *, path: str) -> list[GateFinding]:
    """Findings about comments that cannot be read, and about facts and skips that no launch gets."""
    found = [own_finding(item.rule, item.why, path, item.region) for item in directives.bad]
    lines = frozenset[int]().union(*heads)
    found.extend(
        own_finding(DIRECTIVE_UNUSED, _without_launch(item), path, item.region)
        for item in directives.facts
        if not (item.covers in lines or (item.whole_file and heads))
    )
    return sorted(found, key=lambda item: (item.region.line, item.region.column))


def apply_ignores(
    launches: Sequence[LaunchResult],
    heads: Heads,
    ignores: Sequence[Ignore],
    *,
    path: str,
    rules: Mapping[str, str],
) -> tuple[list[LaunchResult], list[GateFinding]]:
    """Mark the findings of one file's launches that its comments ignore.

    ``heads`` are the head lines of each launch (the line where it starts is one without being named), ``rules`` the
    names of all rules by id. Returns the launches, and the findings about the ignores themselves.
    """
    done = list(launches)
    starts = [lines | {launch.region.line} for launch, lines in zip(done, heads, strict=True)]
    own: list[GateFinding] = []
    for ignore in ignores:
        if not ignore.reason:
            why = f"ignore[{', '.join(ignore.rules)}] without a reason; expected one behind the bracket"
            own.append(own_finding(IGNORE_WITHOUT_REASON, why, path, ignore.region))
            continue
        ids, unknown = _known(ignore.rules, rules)
        own.extend(own_finding(IGNORE_UNKNOWN_RULE, why, path, ignore.region) for why in unknown)
        used: set[str] = set()
        for index, launch in enumerate(done):
            line = None if ignore.covers in starts[index] else ignore.covers
            done[index] = _ignored(launch, ids, ignore.reason, used, line)
        if _in_doubt(done, starts, ignore.covers):
            continue
        own.extend(
            own_finding(IGNORE_UNUSED, f"{written} covers no finding; {_place(ignore.covers)}", path, ignore.region)
            for rule, written in ids.items()
            if rule not in used
        )
    return done, own


def apply_configured(
    launches: Sequence[LaunchResult], settings: Settings, *, rules: Mapping[str, str], complete: bool = True
) -> tuple[list[LaunchResult], list[GateFinding]]:
    """Mark the findings that the configuration ignores (``[[ignore]]``).

    ``complete`` is False for a run over part of the tree: then an ignore for files that were not met is no unused one.
    """
    done = list(launches)
    paths = [settings.relative(launch.path) for launch in done]
    own: list[GateFinding] = []
    for ignore in settings.ignores:
        region = Region(ignore.line, 1, ignore.line, 1)
        ids, unknown = _known(ignore.rules, rules)
        own.extend(own_finding(IGNORE_UNKNOWN_RULE, why, settings.source, region) for why in unknown)
        used: set[str] = set()
        met = [
            index
            for index, launch in enumerate(done)
            if ignore.launch in launch.name and any(matches(paths[index], glob) for glob in ignore.globs)
        ]
        for index in met:
            done[index] = _ignored(done[index], ids, ignore.reason, used, None)
        if any(done[index].verdict is None for index in met) or not (met or complete):
            continue
        place = f"{', '.join(ignore.globs)}{f' (launch {ignore.launch})' if ignore.launch else ''}"
        own.extend(
            own_finding(IGNORE_UNUSED, f"{written} covers no finding in {place}", settings.source, region)
            for rule, written in ids.items()
            if rule not in used
        )
    return done, own


def own_finding(rule: str, message: str, path: str, region: Region) -> GateFinding:
    """A finding of the gate itself."""
    known = OWN_RULES[rule]
    return GateFinding(
        rule=known.id,
        name=known.name,
        severity=known.severity,
        certainty=Certainty.PROVEN,
        stage=None,
        message=message,
        error="",
        path=path,
        region=region,
        launch="",
        no_fix=known.help,
        fingerprint=fingerprint(path, "", rule, region.token, message),
    )


def _known(written: Iterable[str], rules: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Rules by id with what is written for them, and what is to be said about those that do not exist."""
    ids: dict[str, str] = {}
    unknown = []
    by_name: dict[str, str] | None = None
    for word in written:
        if word in rules:
            ids.setdefault(word, word)
            continue
        if by_name is None:
            by_name = {name: rule for rule, name in rules.items()}
        if word in by_name:
            ids.setdefault(by_name[word], word)
        elif word.startswith(PREFIX) or any(word == own.name for own in OWN_RULES.values()):
            unknown.append(f"{word} is a rule of the gate itself; those cannot be ignored")
        else:
            unknown.append(f"no rule {word!r}{_nearest(word, (*rules, *by_name))}")
    return ids, unknown


def _nearest(word: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    # An id in lower case has nothing in common with the one that is meant.
    if word.upper() in known:
        return f"; did you mean {word.upper()}?"
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _ignored(
    launch: LaunchResult, ids: Mapping[str, str], reason: str, used: set[str], line: int | None
) -> LaunchResult:
    """The launch with the findings of these rules on a line (None: anywhere) marked; ``used`` gets their rules."""
    findings = list(launch.findings)
    changed = False
    for index, item in enumerate(findings):
        if item.rule in ids and (line is None or _lies_on(item, line)):
            used.add(item.rule)
            # A second ignore covers it, too, and the first one's reason stays.
            if item.ignored is None:
                findings[index] = replace(item, ignored=reason)
                changed = True
    return replace(launch, findings=tuple(findings)) if changed else launch


def _lies_on(finding: GateFinding, line: int) -> bool:
    region = finding.region
    # A region that ends in front of a line's first character does not reach into that line.
    last = region.end_line - 1 if region.end_column <= 1 and region.end_line > region.line else region.end_line
    return region.line <= line <= last


def _in_doubt(launches: Sequence[LaunchResult], starts: Sequence[frozenset[int]], line: int) -> bool:
    """True where the line may belong to a launch that was not checked: nobody knows what it would have covered."""
    at_line = [launch for launch, lines in zip(launches, starts, strict=True) if line in lines]
    return any(launch.verdict is None for launch in at_line or launches)


def _place(line: int) -> str:
    return f"it stands for line {line}" if line else "no line follows that it could stand for"


def _without_launch(item: StatedFacts) -> str:
    what = "skip" if item.skip else "facts"
    if item.whole_file:
        return f"{what} for a file that holds no launch"
    return f"{what} for {f'line {item.covers}, where no launch begins' if item.covers else 'no line: none follows'}"
