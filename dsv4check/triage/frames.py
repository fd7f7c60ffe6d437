"""The lines a Python traceback is made of."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.triage.records import Frame

HEADER: Final = "Traceback (most recent call last)"
DIRECT_CAUSE: Final = "The above exception was the direct cause"
HANDLING: Final = "During handling of the above exception"

_FRAME: Final = re.compile(r'File "(?P<path>[^"\n]{1,1000})", line (?P<line>\d{1,7})(?:,? in (?P<function>.{1,300}))?')
_BROKEN_FRAME: Final = re.compile(
    r'File "[^"\n]{0,1000}(?:"(?:, ?(?:l(?:i(?:n(?:e(?: \d{0,7}(?:,(?: (?:i(?:n ?)?)?)?)?)?)?)?)?)?)?)?$'
)
_CARETS: Final = re.compile(r"^[\s~^.]*[~^]{2,}[\s~^.]*$|^\s*\^\s*$")
_BAR: Final = re.compile(r"[\w ,.()-]{0,80}:? {1,4}\d{1,3}%(?:\|| Completed)|\d{1,3}%\|")
_TYPE: Final = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?:\([\w.]{1,100}\))?")
_ERROR_WORD: Final = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Expired|ExceptionGroup|CompilerFailed|Unsupported|Violation|Died|NotFound"
    r"|StopIteration|StopAsyncIteration|Exhausted|Unavailable|Rejected|Refused|OutOfMemory|Failed)$"
)
_GUTTER: Final = re.compile(r"^\s*(?:\|(?: |$)|\+-\+-{5,}(?: \d+ -{5,})?$|\+-{5,}$|\+ (?=Exception Group))")

_OWN: Final = frozenset(
    {
        "assets",
        "benchmarks",
        "compilation",
        "config",
        "device_allocator",
        "distributed",
        "engine",
        "entrypoints",
        "inputs",
        "ir",
        "kernels",
        "logging_utils",
        "lora",
        "model_executor",
        "models",
        "multimodal",
        "parser",
        "platforms",
        "plugins",
        "profiler",
        "ray",
        "reasoning",
        "renderers",
        "third_party",
        "tokenizers",
        "tool_parsers",
        "tracing",
        "transformers_utils",
        "triton_utils",
        "usage",
        "utils",
        "v1",
        "vllm_flash_attn",
    }
)
_PACKAGES: Final = (
    "flashinfer",
    "deep_gemm",
    "flash_mla",
    "deep_ep",
    "tilelang",
    "tvm",
    "triton",
    "transformers",
    "torch",
    "ray",
    "lmcache",
    "vllm_ascend",
)


def frame_of(text: str) -> Frame | None:
    """The frame a line shows; None for any other line."""
    at = text.find('File "')
    if at < 0 or text[:at].strip(" |>-*"):
        return None
    found = _FRAME.match(text, at)
    if found is None:
        return None
    return Frame(short_path(found["path"]), int(found["line"]), (found["function"] or "").strip())


def is_broken_frame(text: str) -> bool:
    """True for the first part of a frame's line that a terminal or a mail program has wrapped."""
    stripped = text.strip()
    return stripped.startswith('File "') and _BROKEN_FRAME.match(stripped) is not None


def is_carets(text: str) -> bool:
    """True for the marks under a quoted source line."""
    return _CARETS.match(text[:500]) is not None if "^" in text or "~" in text else False


def is_progress(text: str) -> bool:
    """True for the state of a progress bar."""
    return _BAR.match(text) is not None


def exception_of(text: str, *, strict: bool = True) -> tuple[str, str] | None:
    """Type without its modules and message of a traceback's last line; None for any other line.

    ``strict`` asks for a type that is called like an error, for lines that stand alone.
    """
    stripped = text.strip()
    head, colon, message = stripped.partition(":")
    if colon and message and not message.startswith(" "):
        return None
    if len(head) > 300 or _TYPE.fullmatch(head) is None:
        return None
    # `ray.exceptions.RayTaskError(pkg.SomeError)`
    name, bracket, inner = head.partition("(")
    kind = name.rpartition(".")[2] + bracket + inner
    if _ERROR_WORD.search(name) is None and (strict or not (colon or "." in name or name[:1].isupper())):
        return None
    if strict and not colon and _ERROR_WORD.search(name) is None:
        return None
    return kind, message[1:] if message else ""


def without_gutter(text: str) -> tuple[str, bool]:
    """The line without the lines that a printed exception group draws at its left, and whether there were any."""
    found = _GUTTER.match(text)
    return (text[found.end() :], True) if found is not None else (text, False)


def short_path(path: str) -> str:
    """The path from the package's name on."""
    path = path.replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        _, found, rest = path.rpartition(folder)
        if found:
            return rest
    front, found, rest = path.rpartition("/vllm/")
    if not found and path.startswith("vllm/"):
        return path
    if found and "/lib/python" not in rest and (rest.split("/", 1)[0].removesuffix(".py") in _OWN or "/vllm" in front):
        return f"vllm/{rest}"
    for package in _PACKAGES:
        _, found, rest = path.rpartition(f"/{package}/")
        if found and not rest.startswith("."):
            return f"{package}/{rest}"
    _, found, rest = path.partition("/lib/python3")
    if found and "/" in rest:
        return rest.partition("/")[2]
    return path
