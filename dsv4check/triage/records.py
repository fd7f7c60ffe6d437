"""What was read from logs: lines without their prefixes, errors with their tracebacks, runs."""

from __future__ import annotations

from collections.abc import Mapping

from dsv4check.problems import Stage
from dsv4check.records import dataclass, field


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that is worth keeping, without ANSI codes and prefixes."""

    source: str
    """Name of the file it stands in (``-`` for standard input)."""
    number: int
    """1-based line in that file."""
    text: str
    """The message: what is left behind container, time, process and level prefixes."""
    process: str = ""
    """vLLM process as the log names it (``EngineCore_DP0``, ``Worker_TP3``, ``APIServer``); empty when it does not."""
    level: str = ""
    """``DEBUG``, ``INFO``, ``WARNING``, ``ERROR``, ``CRITICAL``; empty for text that did not come from the logger."""
    module: str = ""
    """``core.py:1110``, from the logger's prefix."""
    count: int = 1
    """How often the same message came, whatever the process and the numbers in it."""
    moment: str = ""
    """``11-30 10:00:34``, from the logger's prefix."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback."""

    path: str
    """As the log shows it; for code of vLLM from ``vllm/`` on, for other packages from the package's name on."""
    line: int
    function: str
    code: str = ""
    """The quoted source line."""

    @property
    def place(self) -> str:
        """What a signature's ``frame`` is searched in: ``vllm/path/file.py:function``."""
        return f"{self.path}:{self.function}"


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """One error a log shows, however many ranks repeat it."""

    kind: str
    """Type of the exception without its modules (``OutOfMemoryError``); ``argparse`` for a refused command line; empty
    for an error that is only a line (a CUDA or NCCL message, ``Killed``)."""
    message: str
    """What follows the type, all its lines, without prefixes; long ones are cut."""
    line: LogLine
    """The line that says it (the exception line of a traceback)."""
    frames: tuple[Frame, ...] = ()
    """Outermost first; empty where the log has no traceback."""
    processes: tuple[str, ...] = ()
    """All processes that said it, in order."""
    times: int = 1
    caused_by: ErrorEvent | None = None
    """The exception that stands before ``The above exception was the direct cause`` (or ``During handling``)."""
    consequence: bool = False
    """True for what only points to another error (``Engine core initialization failed``) or follows from a shutdown."""
    survived: bool = False
    """True when the process that said it, or the server, went on: it did not end the start."""
    excerpt: tuple[str, ...] = ()
    """Some lines as they stand in the log, last ones of the traceback first to be kept."""

    @property
    def said(self) -> str:
        """What a signature's ``text`` is searched in: exception line, message, and those of what caused it."""
        own = f"{self.kind}: {self.message}" if self.kind and self.kind != "argparse" else self.message
        return own if self.caused_by is None else f"{own}\n{self.caused_by.said}"

    @property
    def places(self) -> tuple[str, ...]:
        """Places of all frames, those of the causing exception included."""
        own = tuple(frame.place for frame in self.frames)
        return own if self.caused_by is None else (*own, *self.caused_by.places)


@dataclass(frozen=True, slots=True)
class Run:
    """One start of vLLM in a log: from a version banner (or the log's begin) to the next one."""

    first: LogLine | None
    """The line it starts with; None for a log without a banner."""
    lines: tuple[LogLine, ...]
    """Lines that state facts or stages, and warnings and errors once each, in the log's order."""
    events: tuple[ErrorEvent, ...]
    """Errors in the log's order, each once."""


@dataclass(frozen=True, slots=True)
class LogReading:
    """Everything that was read."""

    sources: tuple[str, ...]
    size: int
    """Bytes read, after decompression."""
    line_count: int
    runs: tuple[Run, ...]
    """In order; at least one."""
    head: str
    """The text as it stands, up to a limit: where a bug report has its command, its environment and its prose."""
    notes: tuple[str, ...] = ()
    """What was cut or could not be read, one sentence each."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing a log states about the launch."""

    name: str
    """``vllm``, ``model``, ``gpu``, ``gpus``, ``gpu_memory_gib``, ``nodes``, ``flags``, ``env NAME``, ``package NAME``,
    or what vLLM decided: ``architecture``, ``attention_backend``, ``kv_cache_dtype``, ``block_size``, ``runner``."""
    value: str
    how: str
    """The kind of text it was read from: ``version banner``, ``non-default args``, ``engine config``, ``collect_env``,
    ``command``, ``image``, ``log line``, ``traceback``, ``prose``."""
    line: LogLine | None = None


@dataclass(frozen=True, slots=True)
class Stated:
    """The deployment as far as a log states it."""

    facts: tuple[Fact, ...] = ()
    """Everything that was found, with where."""
    vllm: str | None = None
    """Version text as vLLM prints it (``0.24.0``, ``0.23.1rc1.dev788+gabc``)."""
    model: str | None = None
    words: tuple[str, ...] = ()
    """The flags as words of a command line, without program and model."""
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None
    """Name or compute capability (``sm90``) in a form that ``inputs.gpu.resolve_gpu`` takes."""
    gpus: int | None = None
    """GPUs of one node."""
    gpu_memory_gib: float | None = None
    nodes: int | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)
    """What vLLM said it decided: ``architecture``, ``attention_backend``, ``kv_cache_dtype``, ``runner``, ..."""
    missing: tuple[str, ...] = ()
    """What a check would need and the log does not say, one sentence each."""
    flags_from: str = ""
    """How ``words`` were read: ``non-default args``, ``command``, ``engine config``; ``prose`` for those that sentences
    name, which are not all; empty where none were."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """How far a start got."""

    stage: Stage
    """The stage that was under way when the log ended or the first error came."""
    reached: str
    """In words: ``weights loaded (84.2 GiB), KV cache not yet allocated``."""
    line: LogLine | None = None
    """The last line that shows it."""
    shown: bool = True
    """False when the log does not show how far the start got; the stage is then the first candidate's, or a guess."""
