#!/usr/bin/env python3
"""Rehearse random launches of one release and write what it did: tests/corpus/rehearsals/RELEASE.jsonl.

Maintainers run it for a new release, after scripts/learn_release.py. One interpreter start per compute capability
(10 - 60 s), then a second or less per launch. ``--again`` repeats single launches of the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsv4check.engine.rule import load_rules
from dsv4check.errors import InputError
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable, find_environment
from dsv4check.rehearsal.parent import RehearsalSession
from scripts.recordings import record, rehearse
from scripts.samples import GPUS, samples

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "corpus" / "rehearsals"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("release")
    options.add_argument("--vllm-path", help="unpacked release; further folders after a colon")
    options.add_argument("--python", help="interpreter with CPU PyTorch and vLLM's Python dependencies")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=115)
    options.add_argument("--sm", nargs="+", default=list(GPUS), choices=list(GPUS), help="compute capabilities")
    options.add_argument("--again", nargs="+", metavar="ID", help="launches of the file to rehearse once more")
    options.add_argument(
        "--append", action="store_true", help="add to the file (with another seed) instead of replacing it"
    )
    arguments = options.parse_args()
    target = FOLDER / f"{arguments.release}.jsonl"
    target.parent.mkdir(exist_ok=True)
    environment = find_environment(arguments.python, arguments.vllm_path)
    if arguments.again:
        rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
        lines = [{key: row[key] for key in row if key != "seen"} for row in rows if row["id"] in arguments.again]
        fresh = {row["id"]: row for row in rehearsed(lines, environment)}
        target.write_text("".join(text(fresh.get(row["id"], row)) for row in rows), encoding="utf-8")
        print(f"{target}: {len(fresh)} rehearsals repeated")
        return 0
    # One compute capability after the other: a child serves one.
    lines = sorted(
        samples(arguments.seed, arguments.release, tuple(arguments.sm), arguments.count),
        key=lambda line: next(sm for sm, names in GPUS.items() if line["gpu"] in names),
    )
    written = 0
    with target.open("a" if arguments.append else "w", encoding="utf-8") as stream:
        for row in rehearsed(lines, environment):
            stream.write(text(row))
            stream.flush()
            written += 1
    print(f"{target}: {written} rehearsals")
    return 0


def rehearsed(lines: list[dict[str, Any]], environment: Environment) -> Iterator[dict[str, Any]]:
    rules = load_rules()
    with RehearsalSession(environment) as session:
        for line in lines:
            try:
                _report, rehearsal = rehearse(line, session, rules)
            except (InputError, RehearsalUnavailable) as error:
                print(f"{line['id']}: left out: {error}", file=sys.stderr)
                continue
            yield {**line, "seen": record(rehearsal)}


def text(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
