"""What is found in a file: launches with the place of every word, and parts that could not be understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dsv4check.launchfiles.text import Located, SourceText, Span
from dsv4check.records import dataclass, field

SHELL: Final = "shell"
"""A word of shell text."""
ITEM: Final = "item"
"""An item of a YAML or JSON list, or of a Dockerfile's exec form."""
VALUE: Final = "value"
"""A value (or, for a flag, the key) of a mapping, or a keyword argument."""
DERIVED: Final = "derived"
"""Nothing of its own in the file: put together from several places, or implied."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A fact that a file states."""

    value: str
    span: Span
    """Where it stands."""


@dataclass(frozen=True, slots=True)
class FileWord:
    """One word of a command."""

    text: str
    """As the program gets it; a part whose value is not known stays as it is written (``$TP``)."""
    span: Span
    """What stands for it in the file, with its quotes."""
    slot: str = DERIVED
    """How it stands there: ``shell``, ``item``, ``value`` or ``derived``."""
    open: tuple[str, ...] = ()
    """The expansions in ``text`` whose value is not known: ``("$TP",)``."""
    offsets: Sequence[int] = ()
    """Where each character of ``text`` stands, where that is known."""

    def located(self) -> Located:
        """The word as text that is read further: the script behind ``bash -c``."""
        if len(self.offsets) == len(self.text) and -1 not in self.offsets:
            return Located(self.text, [*self.offsets, self.offsets[-1] + 1 if self.offsets else self.span.start])
        return Located.at(self.text, self.span.start, self.span.stop)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that a command starts."""

    program: tuple[str, ...]
    """``("vllm", "serve")``, ``("python3", "-m", "dynamo.vllm")``, ...; empty where only arguments are known."""
    words: tuple[FileWord, ...]
    """The model and the flags."""
    place: Span
    """Where the command stands: its first word."""
    entrypoint: str = "serve"
    """``serve``, ``api_server`` (the module of vLLM, model only by ``--model``), ``engine`` (flags of the engine
    only: ``LLM(...)``, Ray, Dynamo), ``other`` (another server, see ``other``)."""
    env: Mapping[str, Stated] = field(default_factory=dict)
    """Environment of the process, as far as the file states it."""
    image: Stated | None = None
    """The container image, where the command itself names it (``docker run``)."""
    gpus: Stated | None = None
    """How many GPUs the container gets, where the command itself says it: a number or a list of devices."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Path in the container -> what is mounted there (a path of the host, a volume's name)."""
    other: str = ""
    """Name of a server that is not vLLM (``sglang``): it is counted, not checked."""
    notes: tuple[str, ...] = ()
    """What was read differently from how it looks."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch that a file describes: a server, and what the file says about where it runs."""

    format: str
    """``shell``, ``dockerfile``, ``compose``, ``kubernetes``, ``systemd``, ``vllm-config``, ``python``, ..."""
    name: str
    """For people, without the path: ``Deployment/dsv4-flash container vllm``, ``service dsv4``, ``line 9``."""
    server: Server
    heads: tuple[Span, ...] = ()
    """Further places whose line stands for the whole launch (the container, ``command:``, ``args:``, ``image:``)."""
    image: Stated | None = None
    vllm: Stated | None = None
    """A vLLM version that the file states by other means than an image."""
    gpu: Stated | None = None
    """GPU name or product as the file spells it (``NVIDIA-H200``, ``B200``)."""
    gpus: Stated | None = None
    """GPUs of one node, a number."""
    nodes: Stated | None = None
    """Number of nodes, a number."""
    config_file: str = ""
    """For a vLLM ``--config`` file on its own: its path, as it stands in ``server.words``."""


TEMPLATE: Final = "a template: render it first (helm template ... | dsv4check gate -)"
"""Why a template is passed over."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A file, or a part of one, that could not be read."""

    line: int
    """0 for the whole file."""
    why: str
    skipped: bool = False
    """True where nothing is wrong with the file: it is a template to be rendered first, for instance."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """Everything one file holds."""

    format: str
    """The format it was read as; empty when it is none that is known."""
    launches: tuple[Launch, ...] = ()
    problems: tuple[NotUnderstood, ...] = ()


Neighbour = Callable[[str], str | None]
"""Reads a file named in another one (``env_file: vllm.env``), by its path there; None when it is not at hand."""


@dataclass(frozen=True, slots=True)
class Context:
    """The file that is read, and what is known from outside it."""

    source: SourceText
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for variables that the file uses and does not set."""
    neighbour: Neighbour = lambda _path: None
    problems: list[NotUnderstood] = field(default_factory=list)
    """Collects what could not be understood."""
    found: list[Launch] = field(default_factory=list)
    """Collects launches in manifests inside the text (here-documents)."""

    def line(self, offset: int) -> int:
        """Line of an offset."""
        return self.source.line_of(offset)
