#!/usr/bin/env python3
"""Record how a release cuts the KV cache: about thirty launches, each planned with many sizes of memory and lengths.

    python scripts/record_plans.py RELEASE --vllm-path TREE[:FLASHINFER] [--python PY] [--only ID..] [--check]

The release's engine core plans on a simulated GPU, as ``dsv4check rehearse`` does. What it planned goes to
``tests/corpus/plans/RELEASE.jsonl``, a line a launch; ``tests/memory/test_recorded_plans.py`` compares it with the
static plan. ``--check`` writes nothing and exits with 1 when a record would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsv4check.rehearsal.environment import find_environment
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage
from scripts.plan_launches import TRIALS, Planned, launch_of, launches_of

CORPUS: Final = Path(__file__).resolve().parent.parent / "tests" / "corpus" / "plans"
_ESTIMATE: Final = re.compile(r"estimated maximum model length is (\d+)")
_KEPT: Final = 160
"""Characters of a message that is no refusal for want of memory."""


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
        return row | {"stops": " ".join(said.split())[:_KEPT]}
    groups = {json.dumps(_groups(trial["groups"])) for trial in detail["trials"] if "groups" in trial}
    if len(groups) != 1:
        raise SystemExit(f"{name}: the trials have {len(groups)} different sets of groups")
    trials = [_result(trial) for trial in detail["trials"]]
    return row | {"basis": detail["basis"], "groups": json.loads(groups.pop()), "trials": trials}


def _result(trial: Mapping[str, Any]) -> list[Any] | int | str:
    if "error" not in trial:
        return [_one(trial["blocks"]), _one(trial["concurrency"]), trial["max_model_len"]]
    text = " ".join(trial["error"].split())
    estimate = _ESTIMATE.search(text)
    if estimate is not None:
        return int(estimate[1])
    return 0 if "KV cache" in text and ("memory" in text or "max_model_len" in text) else text[:_KEPT]


def _one(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _groups(stages: list[list[list[int]]]) -> list[list[Any]]:
    """Of each group its layers by stage and its block size."""
    found = []
    for parts in zip(*stages, strict=True):
        (block_size,) = {size for _layers, size in parts}
        found.append([_one([layers for layers, _size in parts]), block_size])
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("release")
    options.add_argument("--vllm-path", help="unpacked release; further folders after a colon")
    options.add_argument("--python", help="interpreter with CPU PyTorch and vLLM's Python dependencies")
    options.add_argument("--only", nargs="+", metavar="ID")
    options.add_argument("--check", action="store_true")
    arguments = options.parse_args()
    environment = find_environment(arguments.python, arguments.vllm_path)
    if environment.vllm != arguments.release:
        print(f"the vLLM found is {environment.vllm}, not {arguments.release}", file=sys.stderr)
        return 2
    path = CORPUS / f"{arguments.release}.jsonl"
    before = read(path) if path.is_file() else {}
    launches = launches_of(arguments.release)
    if unknown := set(arguments.only or ()) - set(launches):
        options.error(f"not recorded for {arguments.release}: {', '.join(sorted(unknown))}")
    rows = dict(before)
    changed = False
    with RehearsalSession(environment) as session:
        for name in arguments.only or launches:
            began = time.monotonic()
            rows[name] = record_of(name, launches[name], session.rehearse(launch_of(launches[name])))
            same = rows[name] == before.get(name)
            changed = changed or not same
            words = f"{rows[name].get('stops') or str(len(TRIALS)) + ' trials'}{'' if same else ', new'}"
            print(f"{name}: {words}, {time.monotonic() - began:.1f} s", flush=True)
    if not arguments.check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(text(rows[name]) for name in launches if name in rows), encoding="utf-8")
    return 1 if arguments.check and changed else 0


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file by the launch's name."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row for row in rows}


def text(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
