"""Where the rule data lies, and how its YAML is read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def rules_dir() -> Path:
    """The ``rules/`` folder: inside the package when installed, beside it in a source checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"


def load_yaml(text: str) -> Any:
    """Parse one of our own YAML files (safe loader, the C one where PyYAML has it)."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
