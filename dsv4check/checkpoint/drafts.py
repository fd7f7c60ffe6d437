"""Which kind of draft a checkpoint holds, told by names alone."""

from __future__ import annotations

from collections.abc import Iterable


def draft_kind_of_names(names: Iterable[str]) -> str | None:
    """``dspark``, ``mtp`` or ``none``, told by the names of the ``mtp.*`` tensors; None when unclear.

    DSpark alone has ``main_norm`` and ``markov_head``, MTP alone has ``enorm``.
    """
    draft = [name for name in names if name.startswith(("mtp.", "model.mtp."))]
    if any(".main_norm." in name or ".markov_head." in name for name in draft):
        return "dspark"
    if any(".enorm." in name for name in draft):
        return "mtp"
    return None if draft else "none"
