"""How a fault looks in vLLM's own source: the ``code:`` of a rule, checked and taken apart.

Only a build whose tree is at hand is judged by it; a check without one never imports this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dsv4check.records import dataclass

_WORDS: Final = frozenset({"any", "all", "not"})
_TESTS: Final = ("has", "lacks", "matches", "exists")
_PLACE: Final = re.compile(r"(?P<path>[\w./-]+\.\w+|[\w./-]+/)(?::(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*))?")


@dataclass(frozen=True, slots=True)
class Place:
    """A file below the package ``vllm`` (a folder ends in ``/``), and a function, class or assignment in it."""

    path: str
    name: str = ""

    def __str__(self) -> str:
        return f"vllm/{self.path}" + (f":{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the code of a place has, lacks, or is."""

    places: tuple[Place, ...]
    """The first one that is there is looked at."""
    has: tuple[str, ...] = ()
    """Pieces of code; all of them must be there."""
    lacks: tuple[str, ...] = ()
    """Pieces of code of which none may be there."""
    matches: str = ""
    """Regular expression, searched in the code."""
    exists: bool | None = None
    """Whether one of the places is there."""


@dataclass(frozen=True, slots=True)
class FingerprintMark:
    """The answer of a fingerprint is one of these."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``all`` of the marks, ``any`` of them, or ``not`` (all of) them."""

    word: str
    marks: tuple[AnyMark, ...]


AnyMark = Mark | FingerprintMark | Group


def marks_from_record(record: Any) -> Group:
    """The ``code:`` of a rule file: a mark, a list of marks that must all hold, or ``any``, ``all`` and ``not``.

    Raises ValueError that quotes what is wrong.
    """
    return _all(record)


def _all(record: Any) -> Group:
    items = record if isinstance(record, list) else [record]
    if not items:
        raise ValueError("code: an empty list says nothing")
    return Group("all", tuple(_mark(item) for item in items))


def _mark(record: Any) -> AnyMark:
    if not isinstance(record, Mapping):
        raise ValueError(f"code: expected a mapping with in, fingerprint, any, all or not, found {record!r}")
    keys = set(record)
    if keys & _WORDS:
        if len(keys) != 1:
            raise ValueError(f"code: {', '.join(sorted(map(str, keys)))} cannot stand in one mapping")
        word = next(iter(keys))
        branches = record[word]
        if word == "any":
            if not isinstance(branches, list) or not branches:
                raise ValueError(f"code: any takes a list of alternatives, found {branches!r}")
            return Group("any", tuple(_all(item) for item in branches))
        return Group(word, _all(branches).marks)
    return _fingerprint(record) if "fingerprint" in keys else _code(record)


def _fingerprint(record: Mapping[str, Any]) -> FingerprintMark:
    if set(record) != {"fingerprint", "is"}:
        raise ValueError(f"code: a fingerprint takes the key is and no other, found {dict(record)!r}")
    return FingerprintMark(_text(record["fingerprint"], "fingerprint"), _texts(record["is"], "is"))


def _code(record: Mapping[str, Any]) -> Mark:
    unknown = sorted(set(map(str, record)) - {"in", *_TESTS})
    if unknown:
        raise ValueError(f"code: unknown key {unknown[0]!r}; known keys: in, {', '.join(_TESTS)}, fingerprint, is")
    tests = [key for key in _TESTS if key in record]
    if "in" not in record or not tests:
        raise ValueError(f"code: a mark needs in and one of {', '.join(_TESTS)}, found {dict(record)!r}")
    exists = record.get("exists")
    if "exists" in record and (not isinstance(exists, bool) or len(tests) > 1):
        raise ValueError(f"code: exists takes true or false and stands alone, found {dict(record)!r}")
    matches = _text(record["matches"], "matches") if "matches" in record else ""
    try:
        re.compile(matches)
    except re.error as error:
        raise ValueError(f"code: matches {matches!r}: {error}") from None
    places = tuple(_place(text) for text in _texts(record["in"], "in"))
    if exists is None and any(place.path.endswith("/") for place in places):
        raise ValueError(f"code: of a folder only exists can be asked, found {dict(record)!r}")
    return Mark(
        places=places,
        has=_texts(record["has"], "has") if "has" in record else (),
        lacks=_texts(record["lacks"], "lacks") if "lacks" in record else (),
        matches=matches,
        exists=exists,
    )


def _place(text: str) -> Place:
    found = _PLACE.fullmatch(text)
    if found is None or ".." in text or text.startswith("/"):
        raise ValueError(f"code: in {text!r}: expected a path below vllm and perhaps a name, like config/vllm.py:Cls.f")
    return Place(found["path"], found["name"] or "")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"code: {key} takes a text, found {value!r}")
    return value


def _texts(value: Any, key: str) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError(f"code: {key} takes a text or a list of texts, found {value!r}")
    return tuple(_text(item, key) for item in items)
