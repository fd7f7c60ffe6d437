"""The static mapping against vLLM's own ``load_weights``: name by name, as recorded for every release.

``scripts/record_weights.py`` fed the names of every published kind of checkpoint (and mutilated ones) to the release on
the meta device. Here each name must reach the same parameters, the same parameters must be registered, the same ones
stay empty, and the same tensors be refused with the same words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from dsv4check.checkpoint.loading import Outcome, load, outcomes, pattern_of
from dsv4check.checkpoint.parts import Part, draft_part, target_part
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.deployment import Model, ServeFlags
from dsv4check.inputs.model import load_model
from dsv4check.releases.facts import known_releases, load_facts
from scripts.record_weights import CORPUS, KINDS, TABLES, Kind, tensors_of
from scripts.weight_records import read_table

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_SHAPE_ERRORS = ("RuntimeError", "AssertionError")
"""What vLLM and torch raise for a tensor that has a parameter, but not its shape."""
_RANKS = 8
"""Ranks that share the experts in launches with expert parallelism."""


Table = tuple[dict[str, tuple[str, ...]], frozenset[str]]
"""Tensor -> the parameters it reached, and all registered parameters."""


@cache
def _table(key: str) -> Table:
    return read_table((TABLES / f"{key}.tsv").read_text(encoding="utf-8"))


@cache
def _tensors(name: str) -> dict[str, Tensor]:
    return tensors_of(KINDS[name])


def _records(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CORPUS / f"{release}.json").read_text(encoding="utf-8"))
    return found


def _part(part: str, kind: Kind, release: str, model: Model) -> Part:
    facts = load_facts(release)
    mega = "deep_gemm_mega_moe" in kind.words
    if part == "target":
        found = target_part(model, facts, "nvidia", mega_moe=mega)
    else:
        found = draft_part(kind.method, model, facts, "nvidia", mega_moe=mega)
    assert found is not None
    assert found.model is not None, found.unknown
    return found


def _spelled_out(found: Iterator[Outcome]) -> dict[str, Outcome]:
    """Every tensor on its own: experts one by one."""
    single: dict[str, Outcome] = {}
    for outcome in found:
        if not outcome.experts:
            single[outcome.name] = outcome
            continue
        before, _, rest = outcome.name.partition(".experts.")
        after = rest.partition(".")[2]
        for number in outcome.experts:
            single[f"{before}.experts.{number}.{after}"] = outcome
    return single


def test_every_release_and_kind_is_recorded() -> None:
    for release in known_releases():
        records = _records(release)
        older = [name for name, kind in KINDS.items() if _number(release) < _number(kind.since)]
        assert set(records) == set(KINDS) - set(older), release


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_names_reach_the_parameters_that_vllm_loads_them_into(figures: Callable[[str], None]) -> None:
    compared: Counter[str] = Counter()
    differ: list[str] = []
    loads = set()
    for release in known_releases():
        for name, record in _records(release).items():
            if "not_loaded" not in record:
                loads.add((release, name))
                differ += [
                    f"{release} {name} {line}"
                    for line in compare(release, KINDS[name], _tensors(name), record, _table, compared)
                ]
    releases, kinds = {release for release, _name in loads}, {name for _release, name in loads}
    figures(
        f"names of weights against vLLM's load_weights: {len(releases)} releases x {len(kinds)} kinds "
        f"({len(loads)} loads): {compared['names']:,} names and {compared['parameters']:,} parameters compared, "
        f"{len(differ)} mismatches; {compared['by shape']:,} names that vLLM refuses by their shape"
    )
    assert len(releases) == len(known_releases())
    assert not differ, differ[:20]


def compare(
    release: str,
    kind: Kind,
    tensors: dict[str, Tensor],
    record: dict[str, Any],
    table: Callable[[str], Table],
    compared: Counter[str],
) -> Iterator[str]:
    """What differs between a record and the static mapping, counting what was compared."""
    model = load_model(kind.model, flags=ServeFlags(model=kind.model), release=release)
    for which in ("target", "draft"):
        if which in record:
            part = _part(which, kind, release, model)
            held = part.experts // _RANKS if "--enable-expert-parallel" in kind.words else part.experts
            for line in _differences(part, tensors, record[which], table(record[which]["table"]), held, compared):
                yield f"{which}: {line}"


def _differences(
    part: Part,
    tensors: dict[str, Tensor],
    recorded: dict[str, Any],
    table: Table,
    held: int,
    compared: Counter[str],
) -> Iterator[str]:
    """What differs; the rank that was recorded holds the first ``held`` experts of every layer."""
    loaded, parameters = table
    assert part.model is not None
    static = _spelled_out(outcomes(tensors, part.rules, part.model, part.experts))
    assert set(static) == set(tensors)
    refused = {tensor: (exception, message) for tensor, exception, message in recorded["refused"]}
    by_shape = {pattern_of(name) for name, (exception, _message) in refused.items() if exception in _SHAPE_ERRORS}
    whole = recorded.get("whole", True)
    # After the first refusal of a pattern vLLM was fed no other tensor like it.
    not_fed = {pattern_of(name) for name in refused}
    not_told = set()
    for name, outcome in static.items():
        if pattern_of(name) in by_shape:
            # The names agree as far as they go: vLLM found the parameter. The rest of the pattern was not fed.
            compared["by shape"] += 1
            not_told.update(target.parameter for target in outcome.targets)
            assert outcome.targets, name
            continue
        if pattern_of(name) in not_fed and name not in loaded and name not in refused:
            not_told.update(target.parameter for target in outcome.targets)
            continue
        compared["names"] += 1
        expert = _EXPERT.search(name)
        elsewhere = expert is not None and int(expert[1]) >= held
        reached = () if elsewhere else tuple(sorted({target.parameter for target in outcome.targets}))
        if outcome.exception:
            if name in refused and refused[name] != (outcome.exception, outcome.message):
                yield f"{name}: refused with {refused[name]}, static {outcome.exception} {outcome.message}"
            if name not in refused and loaded.get(name) and whole:
                yield f"{name}: vLLM loads it into {loaded[name]}, static {outcome.exception}"
        elif name in refused:
            yield f"{name}: vLLM refuses it with {refused[name]}, static {reached or outcome.skipped}"
        elif reached != loaded.get(name, ()) and (whole or name in loaded):
            yield f"{name}: vLLM loads it into {loaded.get(name, ())}, static {reached or outcome.skipped}"
    compared["parameters"] += len(parameters)
    # What the model gives up at the end of its load is not registered any more.
    given_up = {name for name in part.model.names - parameters if name.startswith(part.rules.optional() or ("\0",))}
    if part.model.names - given_up != parameters:
        yield f"registered: {sorted(part.model.names ^ parameters)[:6]}"
    empty = parameters - {target for targets in loaded.values() for target in targets} - part.model.not_stored
    gaps = load(tensors, part.rules, part.model, part.experts).gaps
    found = {name for gap in gaps if not gap.lacking for name in gap.names}
    if whole and found - not_told != empty - not_told:
        yield f"empty: {sorted((found ^ empty) - not_told)[:6]}"
