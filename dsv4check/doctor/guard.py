"""Parts of a look that run one by one: an error in one becomes an answer, and the others are still given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from dsv4check.host.records import Observation, State

T = TypeVar("T")
Say = Callable[[str], None]
"""Told what is being looked at."""


class Guard:
    """Runs parts, and keeps what went wrong in them."""

    def __init__(self, say: Say | None = None) -> None:
        self._say = say
        self.observations: list[Observation] = []
        """One for every part that failed."""

    def run(
        self,
        part: str,
        area: str,
        function: Callable[[], T],
        otherwise: T,
        passing: tuple[type[Exception], ...] = (),
    ) -> T:
        """What the part gives, or ``otherwise`` when it fails.

        Args:
            part: What is looked at, in a few words.
            area: The observation's area.
            function: The part.
            otherwise: Stands for its answer when it raises.
            passing: Errors that are the user's, and are raised on.
        """
        if self._say is not None:
            self._say(part)
        try:
            return function()
        except passing:
            raise
        except Exception as error:
            if os.environ.get("DSV4CHECK_DEBUG"):
                raise
            self.observations.append(failed(part, area, error))
            return otherwise


def failed(part: str, area: str, error: Exception) -> Observation:
    """What is said of a part that broke: it is the program's fault and says nothing of the machine."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return Observation(
        id=f"internal-{part.replace(' ', '-')}",
        area=area,
        state=State.UNKNOWN,
        what=part,
        why=f"internal error ({text})",
        advice="please report it; DSV4CHECK_DEBUG=1 shows where",
    )
