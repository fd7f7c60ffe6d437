#!/usr/bin/env python3
"""Write rules/compiled.json from the YAML files in rules/checks/. Run it after every change of a rule."""

from __future__ import annotations

import json
from pathlib import Path

from dsv4check.data import rules_dir
from dsv4check.engine.rule import read_sources, rule_from_record, sources_digest

# Only `explain` and `triage` read these; a check does not, and they are half of the bytes.
LEFT_OUT = ("examples",)


def main() -> None:
    folder = rules_dir() / "checks"
    rules = []
    for record, area, source in read_sources(folder):
        rule_from_record(record, area, source)
        kept = {key: value for key, value in record.items() if key not in LEFT_OUT}
        rules.append({"record": kept, "area": area, "source": str(Path(source).relative_to(folder))})
    rules.sort(key=lambda item: item["record"]["id"])
    content = {"digest": sources_digest(folder), "rules": rules}
    target = rules_dir() / "compiled.json"
    target.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{len(rules)} rules -> {target}")


if __name__ == "__main__":
    main()
