"""Which lines of a log the readers here look for: what a reader of large logs must keep."""

from __future__ import annotations

from typing import Final

from dsv4check.triage.decisions import DECISIONS
from dsv4check.triage.milestones import MILESTONES

_FORMAT_STARTS: Final = ("%", "{")
_OTHERS: Final = (
    *("  version ", "  model ", "vLLM server version ", "vLLM API server version ", "non-default args: "),
    *("V1 LLM engine (v", "Unknown vLLM environment variable", "device_name=", "has a total capacity of "),
    *("Free memory on device ", "local_world_size=", "world_size=", "apability", "NVIDIA ", "draft model loaded"),
    *("Application startup complete", "Avg prompt throughput", "POST /v1/", "Using AttentionBackendEnum", " backend."),
)


def _before_values(words: str) -> str:
    """What stands in front of the first value of a message's format."""
    ends = [at for mark in _FORMAT_STARTS if (at := words.find(mark)) >= 0]
    return words[: min(ends)] if ends else words


TELLING: Final = tuple(
    dict.fromkeys(
        words
        for words in (
            *(_before_values(words) for _, words, _ in DECISIONS),
            *(_before_values(words) for words, _, _, _ in MILESTONES),
            *_OTHERS,
        )
        # A piece of a few letters would keep every line.
        if len(words) > 8 or words in _OTHERS
    )
)
"""A line without any of these states nothing that is read here, reports and tables of the driver aside."""
