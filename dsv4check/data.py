"""Where the rule data lies, and how its YAML is read.

Parsing YAML is the slow part of a cold start, so every file has a twin in ``rules/compiled/``: the same content as
JSON, written by ``scripts/compile_data.py``. A twin carries the checksum of its source; in a source checkout it
is used only while that matches, so an edited YAML file is never ignored. An installed package cannot be edited
that way, and its twins are taken as they are.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from dsv4check.errors import InputError


@cache
def rules_dir() -> Path:
    """The ``rules/`` folder: inside the package when installed, beside it in a source checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"


def installed() -> bool:
    """True when the rule data was installed with the package (then it does not change)."""
    return rules_dir().parent == Path(__file__).resolve().parent


def load_data(name: str) -> Any:
    """Content of ``rules/<name>.yaml``, from its compiled twin where that is current.

    Raises InputError when there is no such file.
    """
    source = rules_dir() / f"{name}.yaml"
    twin = compiled_path(name)
    if twin.is_file():
        content = json.loads(twin.read_bytes())
        if installed() or (source.is_file() and content["checksum"] == zlib.crc32(source.read_bytes())):
            return content["content"]
    if not source.is_file():
        raise InputError(f"{source}: no such file")
    return load_yaml(source.read_text(encoding="utf-8"))


def compiled_path(name: str) -> Path:
    """Where the compiled twin of ``rules/<name>.yaml`` lies."""
    return rules_dir() / "compiled" / f"{name.replace('/', '__')}.json"


def load_yaml(text: str) -> Any:
    """Parse one of our own YAML files (safe loader, the C one where PyYAML has it)."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
