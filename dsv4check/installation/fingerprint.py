"""Fingerprints: what a vLLM tree does about each trouble that was fixed in some release, read from its own text.

A release number says which fixes a build has only where it is a release. A nightly, a fork or a patched image is asked
itself: one question a fix, and each answer quotes the lines that decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from dsv4check.learning.source import Source
from dsv4check.records import dataclass

if TYPE_CHECKING:
    from dsv4check.installation.tree import VllmTree


@dataclass(frozen=True, slots=True)
class Quote:
    """A line of the tree."""

    file: str
    """Relative to the folder that holds ``vllm``: ``vllm/models/deepseek_v4/attention.py``."""
    line: int
    text: str
    """That line, stripped, at most 160 characters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tree does, and the lines that say so."""

    value: str | None
    """Kebab-case words; None where it could not be told."""
    says: str
    """One sentence for people: what that means for a launch."""
    quotes: tuple[Quote, ...]
    why: str = ""
    """Why it could not be told; empty with a value."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One question about a tree."""

    id: str
    """Kebab-case and stable."""
    question: str
    values: Mapping[str, str]
    """Every possible value, with the sentence for it."""
    read: Callable[[Source], Answer]
    """Never raises."""
    references: tuple[str, ...]
    """Pull requests and issues: ``vllm#47716``."""
    good: frozenset[str]
    """Values with which the trouble is not there, be it fixed or not made yet."""
    rules: tuple[str, ...]
    """Rules of ``rules/checks`` that it bears on: their trouble is in a tree whose value is not among the good ones."""


def fingerprints() -> tuple[Fingerprint, ...]:
    """All of them, always in the same order."""
    from .fingerprints import attention, drafts, kv_dtype, loading, model, reshape, runner, serving, specs, speculative

    modules = (reshape, specs, kv_dtype, attention, runner, drafts, speculative, model, loading, serving)
    return tuple(item for module in modules for item in module.FINGERPRINTS)


def read_fingerprints(source: Source) -> dict[str, Answer]:
    """Every answer of a tree by the fingerprint's id. Whatever is odd about the tree is a reason, never an error."""
    from .fingerprints.kit import ForgivingSource

    forgiving = ForgivingSource.of(source)
    return {item.id: item.read(forgiving) for item in fingerprints()}


@lru_cache(maxsize=8)
def fingerprints_of(tree: VllmTree) -> Mapping[str, Answer]:
    """Every answer of a tree by the fingerprint's id, read once: reports show them and rules ask for them."""
    return read_fingerprints(tree.source)
