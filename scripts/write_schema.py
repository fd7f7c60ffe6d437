#!/usr/bin/env python3
"""Write docs/report.schema.json from the models in dsv4check/report/schema.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4check.report.schema import json_schema


def main() -> None:
    target = Path(__file__).parents[1] / "docs" / "report.schema.json"
    target.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
