"""Pre-flight checker for serving DeepSeek-V4 models with vLLM.

>>> from dsv4check import check
>>> report = check("vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8", gpu="H200", vllm="0.24.0")
>>> report.verdict, report.stage
(<Verdict.FAIL: 'fail'>, <Stage.MODEL_INIT: 'model-init'>)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4check.api import check
    from dsv4check.errors import InputError
    from dsv4check.report.model import Edit, Finding, Fix, Report, Verdict
    from dsv4check.triage.answer import Candidate, Outcome, Sureness, TriageReport
    from dsv4check.triage.api import triage_logs

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Edit",
    "Finding",
    "Fix",
    "InputError",
    "Outcome",
    "Report",
    "Sureness",
    "TriageReport",
    "Verdict",
    "__version__",
    "check",
    "triage_logs",
]

_HOMES = {
    "check": "dsv4check.api",
    "InputError": "dsv4check.errors",
    "triage_logs": "dsv4check.triage.api",
    **dict.fromkeys(("Candidate", "Outcome", "Sureness", "TriageReport"), "dsv4check.triage.answer"),
    **dict.fromkeys(("Edit", "Finding", "Fix", "Report", "Verdict"), "dsv4check.report.model"),
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use: the command line must not pay for what it does not need."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dsv4check' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
