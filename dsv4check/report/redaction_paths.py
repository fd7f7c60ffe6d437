"""Paths made fit for strangers: the folder becomes a number, code of packages keeps its place in the package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_CHAR: Final = r"[^\s/'\"`,;:()\[\]{}<>|=*?!&$\\\x00-\x1f，。；：、（）《》“”‘’]"
_SEGMENT: Final = rf"(?:{_CHAR}|\\ ){{1,400}}"

POSIX: Final = re.compile(
    rf"(?<![\w.<>/~)\]}}$%*-])(?:~[\w.-]{{0,64}})?/(?=[\w.~@+])(?![.]{{2}}/){_SEGMENT}(?:/+{_SEGMENT})*/?"
)
QUOTED: Final = re.compile(r"(?P<quote>[\"'])(?P<path>~?/[^\"'\n]{2,400})(?P=quote)")
WINDOWS: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]:(?:\\{1,2}[^\\\s:*?\"'<>|,;()]{1,255})+")

_HUB: Final = re.compile(r"^(?P<folder>.*)/(?P<rest>(?:models|datasets)--[\w.-]+?--[\w.-]+(?:/.*)?)$")
_SITE: Final = re.compile(r"^.*/(?:site|dist)-packages/(.+)$")
_STANDARD: Final = re.compile(r"^.*/python3(?:\.\d+)?/(.+\.py)$")
_SOURCE: Final = re.compile(
    r"^.*/(csrc/.+|vllm/(?:v1|engine|entrypoints|model_executor|models|platforms|utils|config|distributed|attention|compilation"
    r"|executor|worker|kernels|third_party|transformers_utils|lora|multimodal|plugins|profiler|ray|reasoning|tool_parsers"
    r"|tokenizers|usage|benchmarks|inputs|logging_utils|renderers|triton_utils|vllm_flash_attn|\w+\.py)(?:/.*)?)"
    r"(?:(?<=\.(?:py|so|cu|cc))|(?<=\.(?:cuh|hpp|cpp|pyx|inl))|(?<=\.[ch]))$"
)
# Where everybody has them: vLLM's messages name these.
_OWN_CACHE: Final = re.compile(r"(?:~|/root)/\.cache/(?:vllm|flashinfer|triton|tilelang|deep_gemm)(?:/|$)")
_SYSTEM: Final = frozenset(["bin", "dev", "lib", "lib64", "proc", "sbin", "sys", "usr", "pytorch"])
_ROUTES: Final = frozenset(["v1", "v2", "inference", "docs"])
_HOMES: Final = frozenset(["home", "Users", "users"])


def shortened(path: str, folder: Callable[[str], str], user: Callable[[str], str]) -> str:
    """The path without what it says about its owner.

    Args:
        path: An absolute path, or one that starts with ``~``.
        folder: Gives the placeholder of a folder.
        user: Gives the placeholder of a user name.
    """
    path = re.sub("/{2,}", "/", path)
    bare = path.rstrip("/")
    end = path[len(bare) :]
    if _OWN_CACHE.match(bare):
        return path
    for pattern in (_SITE, _STANDARD, _SOURCE):
        match = pattern.match(bare)
        if match:
            return match[1] + end
    hub = _HUB.match(bare)
    if hub:
        return f"{folder(hub['folder'])}/{hub['rest']}{end}"
    parts = bare.split("/")[1:]
    if bare.startswith("/") and (len(parts) < 2 or parts[0] in _SYSTEM or parts[0] in _ROUTES):
        return path
    if bare.startswith("/") and len(parts) == 2 and parts[0] in _HOMES:
        return f"/{parts[0]}/{user(parts[1])}{end}"
    parent, _, last = bare.rpartition("/")
    return f"{folder(parent)}/{last}{end}"


def quoted_path(match: re.Match[str]) -> bool:
    """True where all that stands between the quotes is one path with blanks in it."""
    text = match["path"]
    return " " in text and text.count("/") > 1 and re.search(r"\s[-/]|\s\w+=|[|;&<>]", text) is None


def windows_shortened(path: str, folder: Callable[[str], str]) -> str:
    """The same for a path with a drive."""
    parent, _, last = path.replace("\\\\", "\\").rpartition("\\")
    return f"{folder(parent)}\\{last}"
