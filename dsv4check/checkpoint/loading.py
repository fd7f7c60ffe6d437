"""What a release's loader does with a checkpoint, name by name: the mapping, what it refuses and what stays empty.

The names of the tensors decide it (``checkpoint/names.py``), together with the parameters the model registers
(``checkpoint/parameters.py``). Shapes and values are not looked at; ``dsv4check rehearse`` does that with vLLM's own
``load_weights``. Experts of a layer whose tensors have the same names are looked at once, which makes a checkpoint
of 70,000 tensors a matter of some thousand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dsv4check.checkpoint.names import NameRules, Refused, Skipped, Target
from dsv4check.checkpoint.parameters import Registered
from dsv4check.records import dataclass

_EXPERT: Final = re.compile(r"^(.*\.experts\.)(0|[1-9][0-9]{0,8})(\..+)$")
"""Only numbers as vLLM writes them: ``experts.007`` is a name of its own."""
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Row:
    """Tensors of one name pattern and what becomes of them."""

    pattern: str
    """Their name, ``{n}`` for numbers."""
    count: int
    first: str
    """The first of them."""
    targets: tuple[str, ...] = ()
    """Patterns of the parameters they are loaded into; with a shard, as ``name[0]``."""
    skipped: str = ""
    """Why the loader leaves them out."""
    exception: str = ""
    message: str = ""
    """What the loader says of the first of them, where it stops."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Parameters of one name pattern that are not filled, or only in part."""

    pattern: str
    count: int
    first: str
    lacking: str = ""
    """Which part of the first one is not there; empty when nothing of it is."""
    names: tuple[str, ...] = ()
    """All of them."""


@dataclass(frozen=True, slots=True)
class Load:
    """One model (target or draft) and one checkpoint."""

    rows: tuple[Row, ...]
    """Every tensor that the loader looks at, in patterns."""
    gaps: tuple[Gap, ...]
    """Parameters that stay as they were allocated; empty too where the registered parameters are not known."""
    parameters: int | None
    """How many parameters the model registers (without those no checkpoint has); None when that is not known."""
    filled: int
    """How many of them get all they need."""

    @property
    def refused(self) -> tuple[Row, ...]:
        """Rows at which vLLM stops."""
        return tuple(row for row in self.rows if row.exception)


def pattern_of(name: str) -> str:
    """A name with ``{n}`` for its numbers."""
    return _NUMBER.sub("{n}", name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the loader does with one tensor, or with the same tensor of several experts."""

    name: str
    """The tensor; of experts, that of the first in ``experts``."""
    experts: tuple[int, ...]
    """Numbers of the experts it stands for; empty for other tensors."""
    targets: tuple[Target, ...] = ()
    skipped: str = ""
    exception: str = ""
    message: str = ""

    def names(self) -> Iterator[tuple[str, int | None]]:
        """Every tensor it stands for, with the number of its expert."""
        match = _EXPERT.match(self.name) if self.experts else None
        if match is None:
            yield self.name, None
        else:
            yield from ((f"{match[1]}{number}{match[3]}", number) for number in self.experts)


def outcomes(names: Iterable[str], rules: NameRules, model: Registered | None, experts: int) -> Iterator[Outcome]:
    """What becomes of each tensor. ``experts``: how many routed experts the model has in a layer."""
    for name, numbers in _grouped(names, experts):
        outcome = rules.map(name)
        if isinstance(outcome, Skipped):
            yield Outcome(name, numbers, skipped=outcome.reason)
            continue
        if isinstance(outcome, Refused):
            yield Outcome(name, numbers, exception=outcome.exception, message=outcome.message)
            continue
        known, refusal = _find(outcome, rules, model)
        if refusal is not None:
            yield Outcome(name, numbers, known, exception=refusal[0], message=refusal[1])
        elif not known:
            yield Outcome(name, numbers, skipped="the model has no such parameter")
        else:
            yield Outcome(name, numbers, known)


def _find(
    targets: Iterable[Target], rules: NameRules, model: Registered | None
) -> tuple[tuple[Target, ...], tuple[str, str] | None]:
    """The targets that the model has a parameter for, and what the loader says of the first it has none for."""
    if model is None:
        return tuple(targets), None
    known = []
    refusal = None
    for target in targets:
        parameter = rules.resolve(target, model.names)
        if parameter is not None:
            known.append(Target(parameter, target.shard, target.expert))
        else:
            refusal = refusal or rules.refusal(target, model.names)
    return tuple(known), refusal


def load(names: Iterable[str], rules: NameRules, model: Registered | None, experts: int) -> Load:
    """Load a checkpoint's names into a model of ``experts`` routed experts.

    ``model`` None: only the mapping is worked out.
    """
    return load_of(outcomes(names, rules, model, experts), rules, model, experts)


def load_of(found: Iterable[Outcome], rules: NameRules, model: Registered | None, experts: int) -> Load:
    """Sum up the outcomes of all tensors; the other arguments as for :func:`load`."""
    rows = _Rows()
    covered: dict[str, dict[Shard, set[int]]] = {}
    for outcome in found:
        rows.add(outcome)
        for target in outcome.targets:
            covered.setdefault(target.parameter, {}).setdefault(target.shard, set()).update(outcome.experts)
    if model is None:
        return Load(rows.done(), (), None, 0)
    given_up = tuple(start for start in rules.optional() if not any(name.startswith(start) for name in covered))
    wanted = {name for name in model.names - model.not_stored if not given_up or not name.startswith(given_up)}
    gaps = _Gaps()
    for parameter in sorted(wanted, key=_natural):
        parts = () if parameter in model.may_lack else rules.shards(parameter)
        gaps.add(parameter, _lacking(covered.get(parameter), parts, experts))
    return Load(rows.done(), gaps.done(), len(wanted), len(wanted) - gaps.total)


Shard = int | str | None


class _Rows:
    """Rows by pattern and outcome, in the order in which they first appear."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, tuple[str, ...], str, str], tuple[str, str]] = {}
        self._counts: dict[tuple[str, tuple[str, ...], str, str], int] = {}

    def add(self, outcome: Outcome) -> None:
        targets = tuple(_spelled(target) for target in outcome.targets)
        key = (pattern_of(outcome.name), targets, outcome.skipped, outcome.exception)
        self._first.setdefault(key, (outcome.name, outcome.message))
        self._counts[key] = self._counts.get(key, 0) + max(1, len(outcome.experts))

    def done(self) -> tuple[Row, ...]:
        return tuple(
            Row(key[0], self._counts[key], first, key[1], key[2], key[3], message)
            for key, (first, message) in self._first.items()
        )


class _Gaps:
    """Unfilled parameters by pattern and by what is lacking."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], list[tuple[str, str]]] = {}
        self.total = 0

    def add(self, parameter: str, lacking: str | None) -> None:
        if lacking is not None:
            self.total += 1
            self._found.setdefault((pattern_of(parameter), bool(lacking)), []).append((parameter, lacking))

    def done(self) -> tuple[Gap, ...]:
        return tuple(
            Gap(pattern, len(items), *items[0], tuple(name for name, _lacking in items))
            for (pattern, _partly), items in self._found.items()
        )


def _grouped(names: Iterable[str], experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names, experts of a layer as one name with the numbers it stands for; numbers the model lacks stay apart."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for name in names:
        match = _EXPERT.match(name)
        if match is None:
            yield name, ()
        else:
            number = int(match[2])
            groups.setdefault((match[1], match[3], number < experts), []).append(number)
    for (before, after, _known), numbers in groups.items():
        yield f"{before}{numbers[0]}{after}", tuple(numbers)


def _spelled(target: Target) -> str:
    part = "" if target.shard is None else f"[{target.shard}]"
    return pattern_of(target.parameter) + part


def _lacking(found: Mapping[Shard, set[int]] | None, shards: Sequence[Shard], experts: int) -> str | None:
    """What of a parameter is not there: None for nothing, empty for all of it, else in words."""
    if found is None:
        return ""
    absent = [str(shard) for shard in shards if shard not in found]
    if absent:
        return f"shard {', '.join(absent)}"
    numbers = [(shard, covered) for shard, covered in found.items() if covered]
    short = [(shard, experts - len(covered)) for shard, covered in numbers if len(covered) < experts]
    if short:
        shard, count = short[0]
        return f"{count} of {experts} experts ({shard})"
    return None


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Order names by their numbers, not by their digits."""
    return tuple((part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split("."))
