"""The weight-load stage: every rank's target, then the draft, from the checkpoints of the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..protocol import Launch, TensorRecord
from . import weights
from .ranks import Rank, enter


def load_all(config: Any, ranks: Sequence[Rank], launch: Launch, folders: Sequence[str]) -> dict[str, Any]:
    """Load all models by name; ``folders`` are the launch's models as vLLM was told them.

    Raises LoadRefused when vLLM raises; the detail then holds what was found up to there.
    """
    detail: dict[str, Any] = {}
    used: dict[int, set[str]] = {}
    error: BaseException | None = None
    for part, rank, built in _models(ranks):
        number = _checkpoint(built, folders)
        records = None if number is None else launch.weights[number]
        if number is None or records is None:
            continue
        enter(config, rank)
        target = frozenset(id(parameter) for parameter in rank.target.model.parameters())
        most = weights.ALL_REFUSED if launch.trace_weights else weights.MOST_REFUSED
        loaded = weights.load(built, records, shared=target if part == "draft" else frozenset(), most=most)
        detail[part] = _add(detail.get(part), loaded.detail)
        if launch.trace_weights:
            _add_trace(detail[part], loaded.traced)
        used.setdefault(number, set()).update(loaded.used, (one["tensor"] for one in loaded.detail["refused"]))
        error = error or loaded.error
        if error is not None and not launch.trace_weights:
            break
    detail["checkpoints"] = [
        _describe(launch.models[number][0], launch.weights[number] or (), frozenset(names), "draft" in detail)
        for number, names in used.items()
    ]
    if error is not None:
        raise weights.LoadRefused(error, detail)
    return detail


def _models(ranks: Sequence[Rank]) -> list[tuple[str, Rank, weights.Built]]:
    """(part, rank, model) in the order in which vLLM loads them."""
    targets = [("target", rank, rank.target) for rank in ranks]
    return targets + [("draft", rank, rank.draft) for rank in ranks if rank.draft is not None]


def _checkpoint(built: weights.Built, folders: Sequence[str]) -> int | None:
    """Which of the launch's models a built model is loaded from."""
    path = str(getattr(built.model_config, "model", ""))
    return folders.index(path) if path in folders else None


def _add(before: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """What several pipeline stages got, as one model."""
    if before is None:
        return found
    missing = dict(before["missing"])
    for pattern, count in found["missing"].items():
        missing[pattern] = missing.get(pattern, 0) + count
    return {
        **{key: before[key] for key in ("trace",) if key in before},
        "model": found["model"],
        "parameters": before["parameters"] + found["parameters"],
        "loaded": before["loaded"] + found["loaded"],
        "missing": missing,
        "refused": before["refused"] + found["refused"],
    }


def _add_trace(detail: dict[str, Any], traced: dict[str, Any]) -> None:
    """All parameters of a part and what reached each, beside its counts."""
    trace = detail.setdefault("trace", {"parameters": {}, "loaded": [], "whole": True})
    trace["parameters"].update(traced["parameters"])
    trace["loaded"] += traced["loaded"]
    trace["whole"] = trace["whole"] and traced["whole"]


def _describe(name: str, records: Sequence[TensorRecord], used: frozenset[str], drafted: bool) -> dict[str, Any]:
    unused = weights.unused(records, used)
    if not drafted:
        # Nobody asks for the draft's tensors then, and they are many.
        draft = [pattern for pattern in unused if pattern.startswith("mtp.")]
        left_out = sum(unused.pop(pattern) for pattern in draft)
        if left_out:
            unused["mtp.* (no draft is served)"] = left_out
    without_shape = sum(shape is None for _name, _dtype, shape in records)
    return {
        "model": name,
        "tensors": len(records) - without_shape,
        "without_shape": without_shape,
        "unused": unused,
    }
