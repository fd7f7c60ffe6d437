"""Answers about checkpoints that are kept: a search for fixes or a batch asks about the same one again and again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from dsv4check.checkpoint.tensors import Checkpoint

_Answer = TypeVar("_Answer")
_MOST: Final = 16


class Kept(Generic[_Answer]):
    """Answers by the identity of a checkpoint, which is too large to compare, and by what else they depend on."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, Hashable], tuple[Checkpoint, _Answer]] = {}

    def get(self, checkpoint: Checkpoint, key: Hashable, make: Callable[[], _Answer]) -> _Answer:
        """The answer from before, else a new one; of many the oldest are given up."""
        place = (id(checkpoint), key)
        kept = self._answers.get(place)
        # The checkpoint is held with its answer, so that its id stays its own.
        if kept is None or kept[0] is not checkpoint:
            while len(self._answers) >= _MOST:
                self._answers.pop(next(iter(self._answers)))
            kept = self._answers[place] = (checkpoint, make())
        return kept[1]
