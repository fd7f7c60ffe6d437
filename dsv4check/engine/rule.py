"""Rule records: what one YAML file in ``rules/checks/`` holds, and how all of them are loaded.

Loading is the slow part of a cold start, so the bundled rules come from ``rules/compiled.json``: the same
records, written by ``scripts/compile_rules.py``. The file names the digest of the YAML sources it was
made from; when that does not match, the sources are read instead, so an edited rule is never ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from dsv4check.data import load_yaml, rules_dir
from dsv4check.errors import InputError
from dsv4check.problems import Stage


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
    development: tuple[DevelopmentRange, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    fixes: tuple[Mapping[str, Any], ...] = ()
    no_fix: str = ""
    yields_to: tuple[str, ...] = ()
    """Rules whose finding makes this one a mere consequence: it is left out when one of them fired."""
    fixed_in: str | None = None
    references: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    verified: tuple[Mapping[str, Any], ...] = ()


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
        "examples",
    }
)


def rule_from_record(record: Mapping[str, Any], area: str, source: str) -> Rule:
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
            development=tuple(
                DevelopmentRange(str(item["base"]), item.get("from"), item.get("to"))
                for item in record.get("development") or ()
            ),
            when=record.get("when") or {},
            error=str(record.get("error") or "").strip(),
            fixes=tuple(record.get("fixes") or ()),
            no_fix=" ".join(str(record.get("no_fix") or "").split()),
            yields_to=tuple(record.get("yields_to") or ()),
            fixed_in=None if record.get("fixed_in") is None else str(record["fixed_in"]),
            references=tuple(str(item) for item in record.get("references") or ()),
            signatures=tuple(str(item) for item in record.get("signatures") or ()),
            verified=tuple(record.get("verified") or ()),
        )
    except KeyError as missing:
        raise InputError(f"{source}: a rule needs the key {missing}") from None
    except (TypeError, ValueError, AttributeError) as wrong:
        raise InputError(f"{source}: {wrong}") from None


def load_rules(extra: Path | None = None) -> tuple[Rule, ...]:
    """The bundled rules, then those of ``extra`` (``--rules DIR``), ordered by id.

    Raises InputError for a broken file or an id used twice.
    """
    rules = bundled_rules()
    if extra is None:
        return rules
    own = tuple(rule_from_record(record, area, source) for record, area, source in read_sources(extra))
    seen = {rule.id for rule in rules}
    for rule in own:
        if rule.id in seen:
            raise InputError(f"{extra}: rule id {rule.id} is already taken")
        seen.add(rule.id)
    return rules + own


@cache
def bundled_rules() -> tuple[Rule, ...]:
    """The rules that come with the package, ordered by id."""
    folder = rules_dir() / "checks"
    compiled = rules_dir() / "compiled.json"
    if compiled.is_file():
        content = json.loads(compiled.read_text(encoding="utf-8"))
        if content["digest"] == sources_digest(folder):
            records = [(item["record"], item["area"], item["source"]) for item in content["rules"]]
            return tuple(rule_from_record(*item) for item in records)
    rules = [rule_from_record(record, area, source) for record, area, source in read_sources(folder)]
    return tuple(sorted(rules, key=lambda rule: rule.id))


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


def sources_digest(folder: Path) -> str:
    """Digest over names and contents of all rule files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.yaml")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
