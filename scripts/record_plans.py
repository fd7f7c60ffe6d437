#!/usr/bin/env python3
"""Record how a release cuts the KV cache: about thirty launches, each planned with many sizes of memory and lengths.

    python scripts/record_plans.py RELEASE --vllm-path TREE[:FLASHINFER] [--python PY] [--only ID..] [--check]

The release's engine core plans on a simulated GPU, as ``dsv4check rehearse`` does. What it planned goes to
``tests/corpus/plans/RELEASE.jsonl``, a line a launch; ``tests/memory/test_recorded_plans.py`` compares it with the
static plan. ``--check`` writes nothing and exits with 1 when a record would change.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsv4check.learning.plan_launches import TRIALS, launch_of, launches_of
from dsv4check.rehearsal.environment import find_environment
from dsv4check.rehearsal.parent import RehearsalSession
from scripts.plan_records import CORPUS, read, record_of, text


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


if __name__ == "__main__":
    sys.exit(main())
