from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4check import InputError, Outcome, Sureness, TriageReport, triage_logs

LOG = """\
vLLM API server version 0.24.0
non-default args: {'model_tag': 'deepseek-ai/DeepSeek-V4-Flash', 'model': 'deepseek-ai/DeepSeek-V4-Flash'}
(EngineCore pid=7) ERROR 11-30 10:00:09 [core.py:1110] ValueError: DeepseekV4 only supports fp8 kv-cache format for \
now, got auto
"""


def test_one_log_several_and_a_stream(tmp_path: Path) -> None:
    path, packed = tmp_path / "vllm.log", tmp_path / "vllm.log.gz"
    path.write_text(LOG, encoding="utf-8")
    packed.write_bytes(gzip.compress(LOG.encode()))
    for answer in (
        triage_logs(path),
        triage_logs(str(packed)),
        triage_logs([path, packed], run=1),
        triage_logs("-", stdin=io.BytesIO(LOG.encode())),
    ):
        assert isinstance(answer, TriageReport)
        assert answer.outcome is Outcome.EXPLAINED
        assert answer.candidates[0].rule.id == "KV001"


def test_what_is_said_wins(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(LOG, encoding="utf-8")
    config = Path(__file__).parents[2] / "rules/models/deepseek-ai/DeepSeek-V4-Flash-0731"
    answer = triage_logs(
        path,
        gpu="4xH200",
        nodes=1,
        gpu_memory_gib=141,
        vllm="0.25.0",
        model_config=config,
        env={"VLLM_A": "1"},
        packages=["torch=2.11.0"],
    )
    stated = answer.stated
    assert (stated.vllm, stated.gpus, stated.nodes, stated.gpu_memory_gib) == ("0.25.0", 4, 1, 141)
    assert (stated.env, stated.packages) == ({"VLLM_A": "1"}, {"torch": "2.11.0"})
    assert answer.candidates[0].sureness is Sureness.CERTAIN


def test_what_cannot_be_used_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        triage_logs(tmp_path / "no.log")
    with pytest.raises(InputError, match="H2000"):
        triage_logs("-", gpu="H2000", stdin=io.BytesIO(LOG.encode()))


def test_the_package_itself_imports_none_of_it() -> None:
    code = "import sys, dsv4check; print([name for name in sys.modules if name.startswith('dsv4check.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
