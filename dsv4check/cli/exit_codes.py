"""Exit codes, the same for every command and format."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""Nothing at or above ``--fail-on``."""
FINDINGS: Final = 1
"""At least one finding at or above ``--fail-on`` (or, with ``--strict``, an open question)."""
UNUSABLE: Final = 2
"""Usage error, or input that cannot be read."""
INTERNAL: Final = 3
"""A fault of dsv4check itself."""
