"""Rule records: what one YAML file in ``rules/checks/`` holds, and how all of them are loaded.

The bundled rules come from their compiled twin (see ``dsv4check/data.py``), which also knows the releases that
each rule's specifier admits.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from dsv4check.data import compiled_path, installed, load_yaml, rules_dir
from dsv4check.engine.signature import Signature, check_signature, signature_from_record
from dsv4check.errors import InputError
from dsv4check.problems import Stage
from dsv4check.records import dataclass, field


class Severity(StrEnum):
    """Whether a finding stops a deployment."""

    ERROR = "error"
    """The launch fails, or runs with wrong output."""
    WARNING = "warning"
    """The launch starts, with a hazard or without something that was asked for."""
    NOTE = "note"
    """Good to know."""

    @property
    def rank(self) -> int:
        """2 for error, 1 for warning, 0 for note."""
        return {"error": 2, "warning": 1, "note": 0}[self.value]


class Certainty(StrEnum):
    """How a rule's claim is known."""

    PROVEN = "proven"
    """Read in, or run with, vLLM's own code of the releases named."""
    DECLARED = "declared"
    """vLLM's documentation, package metadata or a declaration that the code does not enforce."""
    REPORTED = "reported"
    """Public reports."""


class FoundIn(StrEnum):
    """What a rule is found in."""

    LAUNCH = "launch"
    """The launch itself; its signatures then find it in a log, too."""
    LOG = "log"
    """A log alone: a fault of the machine or its software that no flag, config or version shows beforehand."""


@dataclass(frozen=True, slots=True)
class DevelopmentRange:
    """Development builds a rule is known to hold for: commits ``first`` to ``last`` after the tag ``base``."""

    base: str
    first: int | None = None
    last: int | None = None

    def contains(self, base: str | None, number: int | None) -> bool:
        """True for a build of this base whose number lies in the range (open ends allowed)."""
        if base != self.base or number is None:
            return False
        return (self.first is None or number >= self.first) and (self.last is None or number <= self.last)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Everything known about one hazard. Compared by identity: a rule is loaded once."""

    id: str
    name: str
    summary: str
    severity: Severity
    certainty: Certainty
    stage: Stage
    message: str
    area: str
    problem: str | None = None
    vllm: str | None = None
    releases: frozenset[str] | None = None
    """The known releases that ``vllm`` admits, where that was worked out beforehand."""
    development: tuple[DevelopmentRange, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    fixes: tuple[Mapping[str, Any], ...] = ()
    no_fix: str = ""
    advice: tuple[str, ...] = ()
    """What to do on the machine, one sentence each: for what no edit of the launch cures."""
    yields_to: tuple[str, ...] = ()
    """Rules whose finding makes this one a mere consequence: it is left out when one of them fired."""
    fixed_in: str | None = None
    references: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    verified: tuple[Mapping[str, Any], ...] = ()
    found_in: FoundIn = FoundIn.LAUNCH
    code: Any = None
    """How the fault looks in vLLM's source, as written; see ``dsv4check/engine/code_marks.py``."""


COMPILED_RULES: Final = "checks"
"""Name of the compiled twin that holds all rules."""

RULE_KEYS: Final = frozenset(
    {
        "id",
        "name",
        "summary",
        "severity",
        "certainty",
        "stage",
        "message",
        "problem",
        "vllm",
        "development",
        "when",
    }
    | {
        "error",
        "fixes",
        "no_fix",
        "yields_to",
        "fixed_in",
        "references",
        "signatures",
        "verified",
        "found_in",
        "advice",
        "examples",
        "code",
    }
)


def rule_from_record(record: Mapping[str, Any], area: str, source: str, releases: Iterable[str] | None = None) -> Rule:
    """Build a rule from its YAML mapping.

    Raises InputError that names the file and the key when something is missing, unknown or of a wrong type.
    """
    unknown = sorted(set(record) - RULE_KEYS)
    if unknown:
        raise InputError(f"{source}: unknown key {unknown[0]!r} in a rule; known keys: {', '.join(sorted(RULE_KEYS))}")
    try:
        return Rule(
            id=str(record["id"]),
            name=str(record["name"]),
            summary=" ".join(str(record["summary"]).split()),
            severity=Severity(record["severity"]),
            certainty=Certainty(record["certainty"]),
            stage=Stage(record["stage"]),
            message=" ".join(str(record["message"]).split()),
            area=area,
            problem=record.get("problem"),
            vllm=record.get("vllm"),
            releases=None if releases is None else frozenset(releases),
            development=tuple(
                DevelopmentRange(str(item["base"]), item.get("from"), item.get("to"))
                for item in record.get("development") or ()
            ),
            when=record.get("when") or {},
            error=str(record.get("error") or "").strip(),
            fixes=tuple(record.get("fixes") or ()),
            no_fix=" ".join(str(record.get("no_fix") or "").split()),
            advice=tuple(" ".join(str(item).split()) for item in record.get("advice") or ()),
            yields_to=tuple(record.get("yields_to") or ()),
            fixed_in=None if record.get("fixed_in") is None else str(record["fixed_in"]),
            references=tuple(str(item) for item in record.get("references") or ()),
            signatures=tuple(signature_from_record(item) for item in record.get("signatures") or ()),
            verified=tuple(record.get("verified") or ()),
            found_in=FoundIn(record.get("found_in") or FoundIn.LAUNCH),
            code=record.get("code"),
        )
    except KeyError as missing:
        raise InputError(f"{source}: a rule needs the key {missing}") from None
    except (TypeError, ValueError, AttributeError) as wrong:
        raise InputError(f"{source}: {wrong}") from None


def rule_from_source(record: Mapping[str, Any], area: str, source: str) -> Rule:
    """Build a rule from a file that nobody has checked yet, its ``code`` included.

    Raises InputError that names the file and what is wrong.
    """
    rule = rule_from_record(record, area, source)
    if rule.code is not None:
        # Imported here: the compiled rules were checked, and a check without a tree never looks at the code.
        from dsv4check.engine.code_marks import marks_from_record

        try:
            marks_from_record(rule.code)
        except ValueError as wrong:
            raise InputError(f"{source}: {wrong}") from None
    return rule


def load_rules(extra: Path | None = None) -> tuple[Rule, ...]:
    """The bundled rules, then those of ``extra`` (``--rules DIR``), ordered by id.

    Raises InputError for a broken file or an id used twice.
    """
    rules = bundled_rules()
    if extra is None:
        return rules
    own = tuple(rule_from_source(record, area, source) for record, area, source in read_sources(extra))
    seen = {rule.id for rule in rules}
    for rule in own:
        if rule.id in seen:
            raise InputError(f"{extra}: rule id {rule.id} is already taken")
        seen.add(rule.id)
        for signature in rule.signatures:
            try:
                check_signature(signature)
            except ValueError as error:
                raise InputError(f"{extra}: rule {rule.id}: {error}") from None
    return rules + own


@cache
def bundled_rules() -> tuple[Rule, ...]:
    """The rules that come with the package, ordered by id."""
    folder = rules_dir() / "checks"
    twin = compiled_path(COMPILED_RULES)
    if twin.is_file():
        content = json.loads(twin.read_bytes())
        if installed() or _current(content["listing"], folder, twin):
            return tuple(
                rule_from_record(item["record"], item["area"], item["record"]["id"], item["releases"])
                for item in content["rules"]
            )
    rules = [rule_from_source(record, area, source) for record, area, source in read_sources(folder)]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def listing(folder: Path) -> dict[str, int]:
    """Checksum of every rule file, by its path below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): zlib.crc32(path.read_bytes()) for path in sorted(folder.rglob("*.yaml"))
    }


def _current(recorded: Mapping[str, int], folder: Path, twin: Path) -> bool:
    """True when the compiled rules were made from these very files.

    Contents are read only where some file is newer than the twin: for a rule that was not touched a look at the
    folder is enough.
    """
    written = twin.stat().st_mtime_ns
    names = set()
    newer = False
    for area in os.scandir(folder):
        if not area.is_dir():
            continue
        for entry in os.scandir(area.path):
            names.add(f"{area.name}/{entry.name}")
            newer = newer or entry.stat().st_mtime_ns > written
    return names == set(recorded) and (not newer or dict(recorded) == listing(folder))


def read_sources(folder: Path) -> list[tuple[dict[str, Any], str, str]]:
    """(record, area, path) of every rule file below ``folder``; the area is the folder it lies in."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of rules")
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        source = str(path)
        try:
            record = load_yaml(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise InputError(f"{source}: not readable as YAML: {' '.join(str(error).split())}") from None
        if not isinstance(record, dict):
            raise InputError(f"{source}: expected one rule (a mapping), found {type(record).__name__}")
        found.append((record, path.parent.name, source))
    return found
