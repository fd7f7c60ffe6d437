"""Compute capabilities that a text states."""

from __future__ import annotations

import re
from typing import Final

_CAPABILITY: Final = re.compile(
    r"(?:compute capability|cuda capability|capability)[ :=(]{1,3}(?:of |is )?(?:sm_?)?(?P<dotted>1?\d\.\d)\b"
    r"|\b(?:sm|SM|compute)_?(?P<digits>(?:7|8|9|10|11|12)[0-9])a?f?\b"
)
_CURRENT: Final = re.compile(r"Current capability: (?P<digits>\d{2,3})\b")
CAPABILITY_HINT: Final = re.compile(r"capability|sm_?\d\d|compute_\d\d", re.IGNORECASE)


def capabilities_in(text: str) -> list[str]:
    """Compute capabilities that a line states, as ``sm90``."""
    current = _CURRENT.search(text)
    if current is not None:
        return [f"sm{current['digits']}"] if current["digits"] in _CAPABILITIES else []
    found = []
    for match in _CAPABILITY.finditer(text):
        digits = match["digits"] or match["dotted"].replace(".", "")
        if digits in _CAPABILITIES:
            found.append(f"sm{digits}")
    return list(dict.fromkeys(found))


_CAPABILITIES: Final = frozenset(("70", "75", "80", "86", "87", "89", "90", "100", "101", "103", "110", "120", "121"))
