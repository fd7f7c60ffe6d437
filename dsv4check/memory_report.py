"""What ``dsv4check memory`` says, as data: the memory of a launch, and the findings that bear on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsv4check.engine.rule import Severity
from dsv4check.problems import Stage
from dsv4check.records import dataclass
from dsv4check.report.model import Finding, Report, Verdict
from dsv4check.resolution import NotEvaluated

if TYPE_CHECKING:
    from dsv4check.memory.records import Memory

_AREA: Final = "ME"
"""Letters that the ids of rules about memory start with."""
_WHAT: Final = "memory"
"""How an open answer about memory starts."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The answer for one launch."""

    report: Report
    findings: tuple[Finding, ...]
    """About memory, or errors that stop the launch before its KV cache is there."""
    missing: NotEvaluated | None
    """Why it is not known whether the launch fits, and how to know; None where it is."""

    @property
    def memory(self) -> Memory | None:
        """Where the memory goes."""
        return self.report.resolution.memory

    @property
    def others(self) -> int:
        """Findings about anything else, which this report leaves out."""
        return len(self.report.findings) - len(self.findings)

    @property
    def stopped(self) -> Finding | None:
        """The first error that stops the launch before memory matters."""
        errors = (item for item in self.findings if item.severity is Severity.ERROR and not _about_memory(item))
        return min(errors, key=lambda item: item.stage.order, default=None)

    @property
    def fails(self) -> bool:
        """True when the launch does not fit, whatever the rules say."""
        return self.memory is not None and self.memory.fits is False

    @property
    def verdict(self) -> Verdict | None:
        """The answer in one word; None when the question stays open, which is not a pass."""
        severities = {item.severity for item in self.findings}
        if self.fails or Severity.ERROR in severities:
            return Verdict.FAIL
        if self.missing is not None:
            return None
        if Severity.WARNING in severities or self.memory is None or self.memory.fits is None:
            return Verdict.WARN
        return Verdict.PASS


def build_memory_report(report: Report) -> MemoryReport:
    """Take from a report what bears on memory."""
    last = Stage.KV_CACHE_INIT.order
    findings = tuple(
        item
        for item in report.findings
        if _about_memory(item) or (item.severity is Severity.ERROR and item.stage.order <= last)
    )
    return MemoryReport(report, findings, _missing(report))


def _about_memory(finding: Finding) -> bool:
    return finding.rule.startswith(_AREA)


def _missing(report: Report) -> NotEvaluated | None:
    memory = report.resolution.memory
    if memory is not None and memory.blocks is not None:
        return None
    for item in report.not_evaluated:
        # Questions that are open for the same reason have become one.
        for what in item.what.split("; "):
            if what.lower().startswith(_WHAT):
                return NotEvaluated(what, item.why, item.how)
    why, how = _reason(report, memory)
    return NotEvaluated("memory of the launch", why, how)


def _reason(report: Report, memory: Memory | None) -> tuple[str, str]:
    """Why nothing is known, where the resolution did not say so itself."""
    hardware, model, cache = report.deployment.hardware, report.deployment.model, report.resolution.kv_cache
    if model.family != "deepseek_v4":
        return "the caches of DeepSeek-V4.1 are not modelled", "start it once and read vLLM's log"
    if hardware.vendor is None:
        return "no GPU was named and none was found on this machine", "give --gpu, e.g. --gpu H200 --gpus 8"
    if hardware.vendor != "nvidia":
        return "only vLLM's CUDA path is modelled, and this GPU runs another", "start it once and read vLLM's log"
    if hardware.memory_mib is None:
        return "the memory of this GPU is not known", "give its catalogue name (--gpu H200), or --gpu-memory-gib"
    if cache is None or not cache.layers:
        return "vLLM settles on no KV cache for this launch", "correct what stops it first (`dsv4check serve-args`)"
    if memory is not None and memory.weights is None:
        return "the size of the weights is not known", "give --checkpoint PATH"
    if memory is not None and memory.plan is None:
        return "how this release cuts the KV cache is not known", "start it once and read vLLM's log"
    return "the inputs do not settle it", "give --gpu, --gpus and --vllm, and --checkpoint PATH for the weights"
