"""What a release planned, as compact records (``tests/corpus/plans``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.learning.plan_launches import Planned
from dsv4check.learning.plan_trials import KEPT, one, result_of
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage

CORPUS: Final = Path(__file__).resolve().parent.parent / "tests" / "corpus" / "plans"


def record_of(name: str, planned: Planned, answer: Rehearsal) -> dict[str, Any]:
    """The launch and what the release planned; ``stops`` instead, where it does not get that far.

    A trial is ``[blocks, concurrency, max_model_len]``, one figure where all stages have the same; refused for want of
    memory it is the estimated length of the message, or 0 where the message has none; otherwise it is the message.
    """
    row: dict[str, Any] = {"id": name, "model": planned.model, "args": list(planned.argv)}
    row |= {"gpu": planned.gpu, "gpus": planned.gpus} | ({"env": dict(planned.env)} if planned.env else {})
    row |= {"config": dict(planned.changes)} if planned.changes else {}
    detail = answer.result(RehearsedStage.KV_CACHE_INIT).detail
    if "trials" not in detail:
        stopped = answer.unavailable or answer.failure
        said = f"{stopped.stage.value}: {stopped.exception}: {stopped.message}" if stopped else "not planned"
        return row | {"stops": " ".join(said.split())[:KEPT]}
    groups = {json.dumps(_groups(trial["groups"])) for trial in detail["trials"] if "groups" in trial}
    if len(groups) != 1:
        raise SystemExit(f"{name}: the trials have {len(groups)} different sets of groups")
    trials = [result_of(trial) for trial in detail["trials"]]
    return row | {"basis": detail["basis"], "groups": json.loads(groups.pop()), "trials": trials}


def _groups(stages: list[list[list[int]]]) -> list[list[Any]]:
    """Of each group its layers by stage and its block size."""
    found = []
    for parts in zip(*stages, strict=True):
        (block_size,) = {size for _layers, size in parts}
        found.append([one([layers for layers, _size in parts]), block_size])
    return found


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file by the launch's name."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row for row in rows}


def text(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"
