"""Every cell of the KV dtype x backend x SM matrix that was executed with the releases' own code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dsv4check.matrix import OTHER, UNSET, resolve_cell
from dsv4check.releases.facts import load_facts
from tests.conftest import CORPUS

_STAGES = {"cli": "argparse", "cli/config": "engine-config", "config": "engine-config"}
_BACKENDS = {"(unset)": UNSET, "(any other valid enum member)": OTHER}


def _expected(outcome: dict[str, Any]) -> tuple[str, ...]:
    if "resolved" in outcome:
        return (outcome["resolved"], outcome["torch_dtype"])
    return (
        _STAGES.get(outcome["stage"], "model-init"),
        outcome["error"].split("; use")[0].split(". Valid")[0][:40],
    )


def test_every_cell_agrees(figures: Callable[[str], None]) -> None:
    data = json.loads((CORPUS / "kv_matrix.json").read_text(encoding="utf-8"))
    compared, wrong, not_choices = 0, [], 0
    for release, by_backend in data["cells"].items():
        facts = load_facts(release)
        choices = facts.section("kv_cache")["choices"]
        for backend, by_sm in by_backend.items():
            for sm, by_dtype in by_sm.items():
                for dtype, index in by_dtype.items():
                    outcome = data["outcomes"][index]
                    if outcome.get("stage") == "cli":
                        # The parser's choice list refuses the name: the table must not have it.
                        not_choices += 1
                        assert dtype not in choices, (release, dtype)
                        continue
                    cell = resolve_cell(facts, int(sm), _BACKENDS.get(backend, backend), dtype)
                    compared += 1
                    if cell.problem is None:
                        found: tuple[str, ...] = (str(cell.resolved), str(cell.torch_dtype))
                    else:
                        found = (
                            cell.problem.stage.value,
                            cell.problem.error.removeprefix("Value error, ")[:40],
                        )
                    if found[:1] != _expected(outcome)[:1] or (cell.problem is None and found != _expected(outcome)):
                        wrong.append((release, backend, sm, dtype, found, _expected(outcome)))
    figures(f"KV matrix: {compared} cells resolved, {not_choices} refused by the choice list, {len(wrong)} differ")
    assert not wrong, wrong[:10]
    assert compared > 10_000
