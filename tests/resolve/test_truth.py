"""What vLLM itself did on a simulated GPU, for 9,702 flag combinations of V4-Flash over 13 releases and 7 SMs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from dsv4check.problems import Stage
from dsv4check.report.model import Report
from tests.conftest import CORPUS
from tests.launches import run_launch

_STAGES = {"parse": Stage.ARGPARSE, "config": Stage.ENGINE_CONFIG, "model": Stage.MODEL_INIT}
_KINDS = {"DeepseekV4SWACache": "swa", "DeepseekV4IndexerCache": "indexer_k"}
_STATE_KINDS = {2048: "state_c4", 1024: "state_c128", 512: "state_indexer"}


def _rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = json.loads((CORPUS / "truth.json").read_text(encoding="utf-8"))
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    for row in rows:
        row["args"] = data["args"][row["args"]]
        row["error"] = None if row["error"] is None else data["errors"][row["error"]]
    return data["specs"], rows


def _launch(row: dict[str, Any]) -> dict[str, Any]:
    multi = "--nnodes" in row["args"]
    nodes = int(row["args"][row["args"].index("--nnodes") + 1]) if multi else 1
    return {
        "vllm": row["vllm"],
        "gpu": f"sm{row['sm'].replace('.', '')}",
        "gpus": 8,
        "nodes": nodes,
        "model": "deepseek-ai/DeepSeek-V4-Flash",
        "args": row["args"],
    }


def _early(report: Report) -> Stage | None:
    """The first stage at which we say the launch fails, of the three that were recorded."""
    stages = [finding.stage for finding in report.errors if finding.stage in _STAGES.values()]
    return min(stages, key=lambda stage: stage.order, default=None)


def _pages(report: Report) -> Counter[tuple[Any, ...]]:
    cache = report.resolution.kv_cache
    assert cache is not None
    return Counter(
        {
            (item.kind, item.padded_page_bytes, item.block_size if item.kind == "swa" else 0): item.count
            for item in cache.layers
        }
    )


def _recorded_pages(specs: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    pages: Counter[tuple[Any, ...]] = Counter()
    for spec in specs:
        kind = _KINDS.get(spec["layer"])
        if spec["layer"] == "CompressorStateCache":
            kind = _STATE_KINDS[spec["head_size"]]
        if kind is None:
            kind = f"main_c{spec.get('compress_ratio') or spec['tokens_per_state']}"
        pages[kind, spec["page_size_bytes"], spec["block_size"] if kind == "swa" else 0] += spec["layers"]
    return pages


def test_every_row_agrees(figures: Callable[[str], None]) -> None:
    specs, rows = _rows()
    wrong: list[tuple[Any, ...]] = []
    checked: Counter[str] = Counter()
    reports: dict[str, Report] = {}
    for row in rows:
        launch = _launch(row)
        key = json.dumps(launch)
        report = reports.get(key) or reports.setdefault(key, run_launch(launch))
        expected = _STAGES.get(row["stage"])
        checked[row["stage"]] += 1
        found = _early(report)
        where = (row["vllm"], row["sm"], " ".join(row["args"]))
        if found is not expected:
            wrong.append((*where, "stage", found, expected, row["error"], [f.rule for f in report.errors]))
            continue
        if expected is not None:
            continue
        cache = report.resolution.kv_cache
        assert cache is not None, where
        layer_dtype = cache.resolved_dtype
        if layer_dtype != row["cache_dtype"]:
            wrong.append((*where, "dtype", layer_dtype, row["cache_dtype"]))
        if cache.block_size != row["block_size"]:
            wrong.append((*where, "block size", cache.block_size, row["block_size"]))
        recorded = specs[row["specs"]]
        backend = next(
            (s["backend"] for s in recorded if s["layer"].startswith("DeepseekV4") and s["layer"] not in _KINDS),
            None,
        )
        attention = report.resolution.attention
        assert attention is not None, where
        if backend != attention.backend:
            wrong.append((*where, "backend", attention.backend, backend))
        if _pages(report) != _recorded_pages(recorded):
            wrong.append((*where, "pages", _pages(report), _recorded_pages(recorded)))
        if row["v2_runner"] is not None and (
            report.resolution.runner is None or (report.resolution.runner.name == "v2") is not row["v2_runner"]
        ):
            wrong.append((*where, "runner", report.resolution.runner, row["v2_runner"]))
    stages = ", ".join(f"{stage} {count}" for stage, count in sorted(checked.items()))
    figures(f"vLLM on a simulated GPU: {sum(checked.values())} launches compared ({stages}), {len(wrong)} differ")
    assert not wrong, "\n".join(map(str, wrong[:12]))
    assert sum(checked.values()) == len(rows)
