"""Lines that state facts or stages: which ones are kept of a start, and how far each process got."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import Final

from dsv4check.triage.events import log_line, same_text
from dsv4check.triage.prefixes import PlainLine
from dsv4check.triage.records import LogLine

FACT_WORDS: Final[tuple[str, ...]] = (
    "version ",
    "non-default args",
    "LLM engine (v",
    "Resolved architecture",
    "attention backend",
    "Using ",
    "kv cache",
    "KV cache",
    "kv_cache",
    "Loading weights took",
    "Model loading took",
    "model weights took",
    "Starting to load model",
    "Loading safetensors",
    "Capturing CUDA graph",
    "Capturing cudagraph",
    "Graph capturing finished",
    "init engine",
    "Application startup complete",
    "Starting vLLM API server",
    "Starting vLLM server",
    "Waiting for init message",
    "Started server process",
    "Uvicorn running",
    "Maximum concurrency",
    "GiB",
    "torch.compile",
    "Compiling a graph",
    "Dynamo bytecode",
    "profiling",
    "warmup",
    "Warmup",
    "warming up",
    "autotun",
    "world_size",
    "rank",
    "Chunked prefill",
    "hunked prefill",
    "Asynchronous scheduling",
    "speculative",
    "Speculative",
    "draft",
    "Draft",
    "MoE",
    "Mxfp4",
    "MXFP4",
    "DeepGEMM",
    "DeepEP",
    "FlashInfer",
    "FlashMLA",
    "FLASHMLA",
    "GPU ",
    "NVIDIA",
    "CUDA",
    "cuda",
    "NCCL version",
    "nccl==",
    "Overriding",
    "overrid",
    "is deprecated",
    "ignored",
    "disabl",
    "Disabl",
    "enabled",
    "not support",
    "fall back",
    "falling back",
    "Falling back",
    "Automatically detected platform",
    "Platform plugin",
    "Environment variable",
    "environment variable",
    "expert",
    "Expert",
    "model   ",
    "image:",
    "Image:",
    "vllm serve",
    "Warning:",
    "[shutdown]",
    "terminated",
    "exited with",
    "exit code",
)
"""Literal pieces of lines that are kept; readers of facts may add to it."""

# What only a process says that goes on with its start.
_PROGRESS: Final = (
    "Loading weights took",
    "Model loading took",
    "Starting to load model",
    "GPU KV cache size",
    "Available KV cache memory",
    "init engine",
    "Graph capturing finished",
    "torch.compile took",
    "Loading safetensors",
    "Capturing CUDA graphs",
    "Initializing a V1 LLM engine",
    "Resolved architecture",
    "Chunked prefill is enabled",
    "Waiting for init message",
    "attention backend",
    "non-default args",
    "is assigned as DP rank",
    "Application startup complete",
)
_SERVER_UP: Final = (
    "Application startup complete",
    "Uvicorn running on",
    "Starting vLLM API server",
    "Starting vLLM server on",
)
_ANSWERED: Final = ('" 200 OK', '" 200')
_FIRST: Final = 4_000
_LAST: Final = 500
_COUNTED: Final = 6_000
_SIZE: Final = 1 << 20
"""Characters of the earliest lines; the engine's configuration has 10,000."""
_LEVELS: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})


# Messages whose numbers tell: ranks say where they run, and a rate may fall.
_TELLING: Final = re.compile(r"\blocal_rank=\d{1,4}\b|Draft acceptance rate: \d{1,3}")


def _key(text: str) -> str:
    """What a message is told apart by: its text without numbers, but for those that tell."""
    telling = _TELLING.search(text) if "rate: " in text or "local_rank=" in text else None
    return same_text(text) + telling[0] if telling is not None else same_text(text)


class KeptLines:
    """Keeps each message once, the earliest and the last ones of a start."""

    def __init__(self, source: str, *, everything: bool = False) -> None:
        self._source = source
        self._everything = everything
        """A few lines that were pasted: without level and place, any may be the one that matters."""
        self._first: list[LogLine] = []
        self._last: deque[tuple[str, LogLine]] = deque(maxlen=_LAST)
        self._counts: dict[str, int] = {}
        self._size = 0
        self.progress: dict[str, int] = {}
        """Index of the last step of its start that each stream showed."""
        self.up_at: int | None = None
        """Index of the line that says that the server is up."""
        self.answered_at = -1
        """Index of the last request that was answered."""
        self._keys: list[str] = []

    def take(self, index: int, line: PlainLine) -> None:
        """The next line."""
        text = line.text
        if not text or text.isspace():
            return
        if any(step in text for step in _PROGRESS) and line.level not in _LEVELS:
            self.progress[line.stream] = index
            if any(word in text for word in _SERVER_UP[:2]):
                self.up_at = index
        elif "POST /" in text and any(word in text for word in _ANSWERED):
            self.answered_at = index
            return
        if not (self._everything or line.level in _LEVELS or any(word in text for word in FACT_WORDS)):
            return
        if text.lstrip().startswith('File "'):
            return
        key = _key(text.strip())
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = known + line.times
            return
        if len(self._counts) < _COUNTED:
            self._counts[key] = line.times
        kept = log_line(self._source, line)
        self._size += len(kept.text)
        if len(self._first) < _FIRST and self._size < _SIZE:
            self._first.append(kept)
            self._keys.append(key)
        else:
            self._last.append((key, kept))

    def all(self) -> tuple[LogLine, ...]:
        """The kept lines in order, counted."""
        pairs = [*zip(self._keys, self._first, strict=True), *self._last]
        return tuple(
            replace(line, count=count) if (count := self._counts.get(key, 1)) != line.count else line
            for key, line in pairs
        )
