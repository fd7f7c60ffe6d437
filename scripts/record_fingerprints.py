#!/usr/bin/env python3
"""Write rules/releases/fingerprints.yaml: what every unpacked release answers to the questions about its code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4check.data import rules_dir
from dsv4check.installation.fingerprint import read_fingerprints
from dsv4check.learning.source import Source
from dsv4check.releases.facts import known_releases

HEAD = """\
# What each release answers to the questions of dsv4check/installation/fingerprints/, by question and answer.
# Written by scripts/record_fingerprints.py; never edited by hand.
"""


def record(trees: Path) -> str:
    """The file's text. Raises SystemExit where a release is missing."""
    found: dict[str, dict[str, list[str]]] = {}
    for release in known_releases():
        package = trees / release / "vllm"
        if not package.is_dir():
            raise SystemExit(f"{package}: no such folder; every known release is needed")
        for name, answer in read_fingerprints(Source(package)).items():
            if answer.value is not None:
                found.setdefault(name, {}).setdefault(answer.value, []).append(release)
    lines = [HEAD + "fingerprints:"]
    for name, values in found.items():
        lines.append(f"  {name}:")
        # JSON's quotes: YAML would read `true`, `none` or `0.20` as something else.
        lines += [f"    {json.dumps(value)}: {json.dumps(names)}" for value, names in values.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, help="folder with the unpacked releases (0.33.0/vllm, ...)")
    target = rules_dir() / "releases" / "fingerprints.yaml"
    target.write_text(record(parser.parse_args().trees), encoding="utf-8")
    print(f"{target}; now run scripts/compile_data.py")


if __name__ == "__main__":
    main()
