"""Reading flags: sizes, where they stand, and a refusal that a config class reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage

_VALIDATION = "ValidationError"


def size(deployment: Deployment, dest: str, default: int = 1) -> int:
    """A parallel size from the flags: ``default`` when it is unset or not a positive integer."""
    value = deployment.flags.get(dest, default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def where(deployment: Deployment, *dests: str) -> Origin | None:
    """Where the first of these flags that was given stands."""
    for dest in dests:
        use = deployment.flags.use(dest)
        if use is not None:
            return use.origin
    return None


def integer(deployment: Deployment, dest: str) -> int | None:
    """A flag that was given as an integer; None otherwise."""
    value = deployment.flags.values.get(dest)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def reads_as_int(text: str) -> bool:
    """Whether Python's ``int()`` takes the text."""
    try:
        int(text)
    except ValueError:
        return False
    return True


def config_problem(code: str, error: str, data: Mapping[str, Any], origin: Origin | None) -> Problem:
    """A refusal inside a config class, which pydantic reports."""
    return Problem(code, Stage.ENGINE_CONFIG, _VALIDATION, error, data, origin)
