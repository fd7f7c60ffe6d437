"""A trial of a release's cache planning in short."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ESTIMATE: Final = re.compile(r"estimated maximum model length is (\d+)")
KEPT: Final = 160
"""Characters of a message that is no refusal for want of memory."""


def result_of(trial: Mapping[str, Any]) -> list[Any] | int | str:
    """A trial's answer in short, see ``record_of`` in ``scripts/plan_records.py``."""
    if "error" not in trial:
        return [one(trial["blocks"]), one(trial["concurrency"]), trial["max_model_len"]]
    text = " ".join(trial["error"].split())
    estimate = _ESTIMATE.search(text)
    if estimate is not None:
        return int(estimate[1])
    return 0 if "KV cache" in text and ("memory" in text or "max_model_len" in text) else text[:KEPT]


def one(values: list[Any]) -> Any:
    """The value that all pipeline stages have, else the list."""
    return values[0] if len(set(values)) == 1 else values
