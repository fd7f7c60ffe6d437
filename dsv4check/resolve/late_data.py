"""Values of a problem that take work to find, and that most readers of the problem never ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


class LateData(Mapping[str, Any]):
    """A mapping whose values for ``names`` are worked out when one of them is first asked for."""

    __slots__ = ("_names", "_values", "_work")

    def __init__(self, known: Mapping[str, Any], names: Collection[str], work: Callable[[], Mapping[str, Any]]) -> None:
        self._values = {**known, **dict.fromkeys(names)}
        self._names = frozenset(names)
        self._work: Callable[[], Mapping[str, Any]] | None = work

    def __getitem__(self, name: str) -> Any:
        if self._work is not None and name in self._names:
            work, self._work = self._work, None
            self._values.update(work())
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
