#!/usr/bin/env python3
"""Write rules/compiled/ from the YAML files in rules/. Run it after every change there."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

# The data of this checkout, whichever dsv4check the interpreter has installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4check.data import compiled_path, load_yaml, rules_dir
from dsv4check.engine.conditions import version_in
from dsv4check.engine.examples import COMPILED_EXAMPLES, firing_examples_of
from dsv4check.engine.rule import COMPILED_RULES, listing, read_sources, rule_from_source
from dsv4check.releases.facts import SECTIONS_APART, known_releases

# Only triage and the tests read examples; they are half of the bytes, and have a twin of their own.
LEFT_OUT = ("examples",)


def write(name: str, content: dict[str, Any]) -> None:
    target = compiled_path(name)
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def compile_files() -> int:
    names = ["gpus", "models/index"]
    for folder in ("releases", *(f"releases/{section}" for section in SECTIONS_APART)):
        names += [f"{folder}/{path.stem}" for path in (rules_dir() / folder).glob("*.yaml")]
    for name in names:
        source = (rules_dir() / f"{name}.yaml").read_bytes()
        write(name, {"checksum": zlib.crc32(source), "content": load_yaml(source.decode())})
    return len(names)


def compile_rules() -> int:
    folder = rules_dir() / "checks"
    rules: list[tuple[str, dict[str, Any]]] = []
    for record, area, source in read_sources(folder):
        rule = rule_from_source(record, area, source)
        kept = {key: value for key, value in record.items() if key not in LEFT_OUT}
        releases = None if rule.vllm is None else [name for name in known_releases() if version_in(name, rule.vllm)]
        rules.append((str(kept["id"]), {"record": kept, "area": area, "releases": releases}))
    rules.sort(key=lambda item: item[0])
    write(COMPILED_RULES, {"listing": listing(folder), "rules": [rule for _, rule in rules]})
    write(COMPILED_EXAMPLES, {"listing": listing(folder), "examples": firing_examples_of(folder)})
    return len(rules)


def main() -> None:
    for old in (rules_dir() / "compiled").glob("*.json"):
        old.unlink()
    print(f"{compile_files()} data files and {compile_rules()} rules -> {rules_dir() / 'compiled'}")


if __name__ == "__main__":
    main()
