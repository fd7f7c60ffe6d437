"""A reading that follows code it cannot decide in full: for functions that anybody may have rewritten.

:class:`~.interpret.Reading` stops at the first condition that is not known. Here both ways are taken, and what they do
not agree on is not known afterwards. Statements and expressions that people put in the place of an ``if`` (``match``,
tables, defaults of ``getattr``, helper functions) are understood as well.
"""

from __future__ import annotations

from .functions import Following
from .things import Thing, keywords

__all__ = ["Following", "Thing", "keywords"]
