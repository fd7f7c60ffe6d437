#!/usr/bin/env python3
"""Rehearse random launches of one release and write what it did: tests/corpus/rehearsals/RELEASE.jsonl.

Maintainers run it for a new release, after scripts/learn_release.py. One interpreter start per compute capability
(10 - 60 s), then a second or less per launch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsv4check.engine.rule import load_rules
from dsv4check.errors import InputError
from dsv4check.rehearsal.environment import RehearsalUnavailable, find_environment
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
    options.add_argument("--count", type=int, default=110)
    options.add_argument("--sm", nargs="+", default=list(GPUS), choices=list(GPUS), help="compute capabilities")
    arguments = options.parse_args()
    rules = load_rules()
    # One compute capability after the other: a child serves one.
    lines = sorted(
        samples(arguments.seed, arguments.release, tuple(arguments.sm), arguments.count),
        key=lambda line: next(sm for sm, names in GPUS.items() if line["gpu"] in names),
    )
    target = FOLDER / f"{arguments.release}.jsonl"
    target.parent.mkdir(exist_ok=True)
    written = 0
    with (
        RehearsalSession(find_environment(arguments.python, arguments.vllm_path)) as session,
        target.open("w", encoding="utf-8") as stream,
    ):
        for line in lines:
            try:
                _report, rehearsal = rehearse(line, session, rules)
            except (InputError, RehearsalUnavailable) as error:
                print(f"{line['id']}: left out: {error}", file=sys.stderr)
                continue
            seen = record(rehearsal)
            stream.write(json.dumps({**line, "seen": seen}, ensure_ascii=False) + "\n")
            stream.flush()
            written += 1
    print(f"{target}: {written} rehearsals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
