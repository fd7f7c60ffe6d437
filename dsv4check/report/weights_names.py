"""Every tensor of ``dsv4check weights`` with what becomes of it: the lines of ``--names``."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.weights_report import PartLoad, WeightsReport


def tensor_lines(item: WeightsReport) -> Iterator[tuple[str, ...]]:
    """Every tensor of the target's checkpoint once: name, dtype, shape, bytes, file, target, draft; first a header.

    Tensors of a draft with a checkpoint of its own follow, with ``-`` for the target.
    """
    yield "tensor", "dtype", "shape", "bytes", "file", "target", "draft"
    checkpoint = item.located.checkpoint
    target = _spelled(item.target)
    draft = _spelled(item.draft)
    shared = not item.choice.own
    for name in checkpoint.tensors:
        yield (*_stored(checkpoint, name), target.get(name, "-"), draft.get(name, "-") if shared else "-")
    if item.draft is not None and item.choice.own:
        for name in item.draft.checkpoint.tensors:
            yield (*_stored(item.draft.checkpoint, name), "-", draft.get(name, "-"))


def _stored(checkpoint: Checkpoint, name: str) -> tuple[str, ...]:
    tensor = checkpoint.tensors[name]
    shape = "" if tensor.shape is None else "x".join(map(str, tensor.shape)) or "scalar"
    size = "" if tensor.size is None else str(tensor.size)
    return name, tensor.dtype, shape, size, checkpoint.files.get(name, "")


def _spelled(item: PartLoad | None) -> dict[str, str]:
    """What becomes of each tensor, in words."""
    said: dict[str, str] = {}
    for outcome in item.outcomes if item is not None else ():
        if outcome.exception:
            text = f"refused: {outcome.exception}: {outcome.message}"
        elif outcome.skipped:
            text = f"skipped: {outcome.skipped}"
        else:
            text = ""
        for name, expert in outcome.names():
            into = (target.parameter + _inside(target.shard, expert) for target in outcome.targets)
            said[name] = text or ", ".join(into)
    return said


def _inside(shard: int | str | None, expert: int | None) -> str:
    parts = [str(shard)] if shard is not None else []
    if expert is not None:
        parts.append(f"expert {expert}")
    return f"[{', '.join(parts)}]" if parts else ""
