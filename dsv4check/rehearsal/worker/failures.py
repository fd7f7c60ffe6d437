"""Telling vLLM's refusals from the rehearsal's own limits.

Only an exception that vLLM raised of its own is a verdict. Whatever goes back to a stub, a package that is not
installed here, the missing driver, the meta device or the missing network says nothing about a real launch.
"""

from __future__ import annotations

import os
import re
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass

_HERE = os.path.dirname(os.path.abspath(__file__))

_LIMITS = re.compile(
    "|".join(
        (
            r"not compiled with CUDA",
            r"Found no NVIDIA driver",
            r"No CUDA GPUs are available",
            r"Cannot access accelerator device",
            r"CUDA driver (initialization|version)",
            r"libcuda",
            r"DefaultCPUAllocator",
            r"can't allocate memory",
            r"meta tensor",
            r"'Meta' backend",
            r"on meta tensors",
            r"offline mode is enabled",
            r"outgoing traffic has been disabled",
            r"couldn't connect to 'https://huggingface",
            r"No such file or directory: '(nvcc|ptxas)",
            r"Couldn't instantiate the backend tokenizer",
            # vLLM's model registry swallows an import that failed, and says only this.
            r"failed to be inspected",
            r"pin_memory|pinned memory",
            r"Failed to infer device type",
            r"requires [\w-]+ package",
            r"Invalid repository ID or local directory specified: '[\w.\-]+(/[\w.\-]+)?'",  # the hub is not asked here
            r"must match torch.distributed world size",
        )
    ),
    re.IGNORECASE,
)
_WANTED = re.compile(r"requires?\b|install|lacks?\b|needs?\b|missing|unavailable|not (available|found)", re.IGNORECASE)
_LIMIT_TYPES = frozenset(
    {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "RepositoryNotFoundError", "ConnectionError"}
)


class HarnessLimit(RuntimeError):
    """The rehearsal cannot go on here: a stub was called, or vLLM no longer has what is stubbed."""


class RepeatedCheck(ValueError):
    """A refusal of vLLM whose check stands where the rehearsal does not get, and is therefore made here."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


@dataclass(frozen=True)
class Failure:
    """An exception, read."""

    verdict: bool
    """True when vLLM itself refused; False when the rehearsal could not tell."""
    exception: str
    message: str
    """What vLLM said, or why the rehearsal is unavailable."""
    where: str


def read_failure(error: BaseException, absent: frozenset[str] = frozenset()) -> Failure:
    """Say what an exception means. ``absent`` names packages that vLLM would like and that are not installed."""
    if isinstance(error, RepeatedCheck):
        return Failure(True, "ValueError", str(error), error.where)
    where = deepest_frame(error)
    name = type(error).__name__
    text = message_of(error)
    reason = _limit(error, text, absent)
    if reason:
        return Failure(False, name, reason, where)
    return Failure(True, name, text, where)


def message_of(error: BaseException, length: int = 1500) -> str:
    """What the exception says; a pydantic one without its links, one part per field."""
    errors = getattr(error, "errors", None)
    if type(error).__name__ == "ValidationError" and callable(errors):
        try:
            parts = [
                (".".join(str(step) for step in item["loc"]) + ": " if item["loc"] else "") + item["msg"]
                for item in errors(include_url=False)
            ]
            return " | ".join(parts)[:length]
        except (KeyError, TypeError, ValueError):
            pass
    return str(error)[:length]


def one_line(text: str, length: int = 300) -> str:
    """Text without line breaks, cut to ``length``."""
    return " ".join(text.split())[:length]


def deepest_frame(error: BaseException) -> str:
    """``file:line:function`` of the deepest frame inside vLLM, the file relative to the package."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/vllm/" in frame.filename and not frame.filename.startswith(_HERE)]
    chosen = inside or frames
    if not chosen:
        return ""
    frame = chosen[-1]
    return f"{frame.filename.rpartition('/vllm/')[2]}:{frame.lineno}:{frame.name}"


def _limit(error: BaseException, text: str, absent: frozenset[str]) -> str:
    """Why this exception is no verdict; empty when it is one."""
    for link in _chain(error):
        if isinstance(link, HarnessLimit):
            return str(link)
        if isinstance(link, ModuleNotFoundError):
            return f"the package {(link.name or str(link)).partition('.')[0]} is not installed here ({link})"
        if isinstance(link, ImportError):
            return f"an import fails here: {link}"
        if isinstance(link, MemoryError):
            return "the rehearsal's memory limit was reached"
        if isinstance(link, AttributeError):
            if isinstance(link.obj, types.ModuleType) and not link.obj.__name__.startswith("vllm"):
                return f"{link.obj.__name__} here has no {link.name!r}: another version than this vLLM wants"
            if getattr(type(link.obj), "stand_in", False):
                return f"vLLM asks a stand-in for {link.name!r}, which it does not have"
        said = str(link)
        if type(link).__name__ in _LIMIT_TYPES or _LIMITS.search(said):
            return f"{type(link).__name__}: {one_line(said)}"
    for package in sorted(absent):
        # A refusal may merely mention the package: it must say that something of it is wanted.
        if re.search(rf"\b{package}\b", text, re.IGNORECASE) and _WANTED.search(text):
            return f"{package} is not installed here, and vLLM stops without it: {one_line(text)}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames and frames[-1].name == "__torch_function__" and "func(*args" in (frames[-1].line or ""):
        frames.pop()  # torch refused what vLLM asked of it; the loading of weights only looks on
    if frames and frames[-1].filename.startswith(_HERE):
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}:{frames[-1].name}"
        return f"the rehearsal itself failed at {place}: {type(error).__name__}: {one_line(text)}"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those it was raised from or while handling."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
