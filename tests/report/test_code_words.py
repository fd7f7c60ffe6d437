"""The `code:` of a rule as `explain` prints it."""

from __future__ import annotations

import json

from dsv4check.engine.code_marks import marks_from_record
from dsv4check.report.code_words import code_lines
from tests.cli.program import run
from tests.launches import all_rules


def test_every_kind_of_mark_has_its_words() -> None:
    record = [
        {"in": ["a/b.py:f", "c.py"], "has": ["x = 1", "y"], "lacks": "z", "matches": "p.*q"},
        {"in": "d/", "exists": False},
        {"any": [{"in": "e.py", "exists": True}, [{"in": "g.py", "has": "h"}, {"in": "i.py", "lacks": "j"}]]},
        {"not": {"fingerprint": "auto-kv-cache-dtype", "is": ["fp8", "refused"]}},
    ]
    assert list(code_lines(marks_from_record(record))) == [
        (0, "vllm/a/b.py:f or vllm/c.py:"),
        (1, "has `x = 1`"),
        (1, "has `y`"),
        (1, "has what matches `p.*q`"),
        (1, "has no `z`"),
        (0, "vllm/d/ is not there"),
        (0, "any of:"),
        (1, "vllm/e.py is there"),
        (1, "all of:"),
        (2, "vllm/g.py:"),
        (3, "has `h`"),
        (2, "vllm/i.py:"),
        (3, "has no `j`"),
        (0, "not:"),
        (1, "the answer to auto-kv-cache-dtype is fp8 or refused"),
    ]


def test_every_rule_with_code_says_something() -> None:
    marked = {rule.id: rule.code for rule in all_rules() if rule.code is not None}
    assert len(marked) > 50
    for rule_id, code in marked.items():
        lines = [text for _depth, text in code_lines(marks_from_record(code))]
        assert lines, rule_id
        assert all(text.strip() and "\n" not in text for text in lines), rule_id


def test_explain_shows_it() -> None:
    text = run("explain", "RU006").stdout
    assert "- vllm/v1/worker/gpu/cudagraph_utils.py:CudaGraphManager._init_candidates:" in text
    assert "- has `mixed_mode == CUDAGraphMode.PIECEWISE and self.use_breakable_cg`" in text
    assert "How a vLLM tree shows it" not in run("explain", "KV001").stdout
    assert json.loads(run("explain", "RU006", "--format", "json").stdout)["code"]
