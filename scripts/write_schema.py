#!/usr/bin/env python3
"""Write docs/*.schema.json from the models in dsv4check/report/*schema.py and gate/settings_schema.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4check.gate.settings_schema import config_json_schema
from dsv4check.report.cluster_schema import cluster_json_schema
from dsv4check.report.doctor_schema import doctor_json_schema
from dsv4check.report.gate_schema import gate_json_schema
from dsv4check.report.memory_report_schema import memory_json_schema
from dsv4check.report.plan_schema import plan_json_schema
from dsv4check.report.probe_schema import probe_json_schema
from dsv4check.report.schema import json_schema
from dsv4check.report.triage_schema import triage_json_schema
from dsv4check.report.weights_schema import weights_json_schema


def main() -> None:
    docs = Path(__file__).parents[1] / "docs"
    schemas = {
        "report": json_schema(),
        "weights": weights_json_schema(),
        "memory": memory_json_schema(),
        "plan": plan_json_schema(),
        "probe": probe_json_schema(),
        "cluster": cluster_json_schema(),
        "doctor": doctor_json_schema(),
        "gate": gate_json_schema(),
        "config": config_json_schema(),
        "triage": triage_json_schema(),
    }
    for name, schema in schemas.items():
        target = docs / f"{name}.schema.json"
        target.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
