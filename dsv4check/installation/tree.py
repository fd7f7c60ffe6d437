"""The vLLM package on a disk: where it was found, which version and commit it says it is."""

from __future__ import annotations

from pathlib import Path

from dsv4check.learning.source import Source
from dsv4check.records import dataclass


@dataclass(frozen=True, slots=True)
class VllmTree:
    """One vLLM package, as text."""

    package: Path
    """The folder ``vllm`` itself."""
    version: str | None
    """What the tree says of itself; None where nothing does."""
    version_from: str
    """Where the version stands: ``vllm/_version.py:31``, ``vllm-0.24.0.dist-info/METADATA``; empty without one."""
    commit: str | None = None
    commit_from: str = ""
    found_by: str = ""
    """How the package was found: ``--vllm-path``, ``--python``, ``this Python``."""
    python: str | None = None
    """The interpreter it is installed in, where it was found by one."""

    @property
    def source(self) -> Source:
        """Its files, parsed on demand; a new reader with every call."""
        return Source(self.package)
