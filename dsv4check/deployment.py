"""The whole question: one launch of vLLM, as frozen data with the origin of every value.

Nothing here reads a file or decides anything. ``inputs/`` builds these records, ``resolve/`` and
``engine/`` only read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsv4check.problems import Origin, Problem
from dsv4check.records import dataclass, field

if TYPE_CHECKING:
    from dsv4check.checkpoint.tensors import Checkpoint
    from dsv4check.installation.build_facts import BuildFacts


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the command line after the shell has split it."""

    text: str
    """The word, quotes removed."""
    origin: Origin
    """Where it stands."""


@dataclass(frozen=True, slots=True)
class Command:
    """A launch command taken apart, before its flags are read."""

    program: tuple[str, ...]
    """How the server is started, as typed: ``("vllm", "serve")``, ``("python", "-m", "vllm...")`` or ``()``."""
    tokens: tuple[Token, ...]
    """Everything after the program: the model, if positional, and the flags."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment assignments in front of the program (or exported before it)."""
    entrypoint: str = "serve"
    """``serve`` for ``vllm serve`` (also when no program was typed), ``api_server`` for the module."""
    notes: tuple[str, ...] = ()
    """What was left out of the text and why (comments, redirections, other commands)."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """One appearance of a flag on the command line or in a ``--config`` file."""

    dest: str
    """The name vLLM stores it under, e.g. ``kv_cache_dtype``."""
    flag: str
    """The release's own spelling, e.g. ``--kv-cache-dtype``."""
    option: str
    """The spelling that was typed, e.g. ``--kv_cache_dtype`` or ``--attention-config.backend``."""
    raw: str | None
    """The value as typed, None for a bare flag."""
    token_span: tuple[int, int]
    """Half-open range of indices into ``Command.tokens``; (-1, -1) for a value from a ``--config`` file."""
    origin: Origin
    path: tuple[str, ...] = ()
    """For dotted forms, the keys after the flag: ``--attention-config.backend`` gives ``("backend",)``."""


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """The flags as the release's parser reads them."""

    model: str | None
    """The model argument (positional, ``--model``, or ``model:`` in the YAML file)."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """dest -> value for every flag that was given and parsed. JSON-valued flags hold dicts."""
    uses: tuple[FlagUse, ...] = ()
    """Every appearance, in order; for a flag given twice the last one wins, as in vLLM."""
    problems: tuple[Problem, ...] = ()
    """What the parser of this release refuses, drops or misreads."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """dest -> default of this release for every flag it has."""
    tokens: tuple[Token, ...] = ()
    """The command's tokens that ``FlagUse.token_span`` points into."""

    def given(self, dest: str) -> bool:
        """True when the flag appears (and parsed)."""
        return dest in self.values

    def get(self, dest: str, default: Any = None) -> Any:
        """The flag's value: as given, else this release's default, else ``default``."""
        if dest in self.values:
            return self.values[dest]
        value = self.defaults.get(dest)
        return default if value is None else value

    def section(self, dest: str) -> Mapping[str, Any]:
        """The value of a JSON-valued flag as a mapping; empty when it was not given or is no mapping."""
        value = self.values.get(dest)
        return value if isinstance(value, Mapping) else {}

    def use(self, dest: str) -> FlagUse | None:
        """The last appearance of the flag, the one that counts."""
        for use in reversed(self.uses):
            if use.dest == dest:
                return use
        return None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one launch."""

    vendor: str | None = None
    """``nvidia``, ``amd``, ``intel``, ``huawei``; None when no GPU was named."""
    name: str | None = None
    """Catalogue name, e.g. ``H200``."""
    capability: tuple[int, int] | None = None
    """Compute capability (major, minor): SM90 is (9, 0). None for other vendors and when unknown."""
    memory_mib: int | None = None
    """Memory of one GPU in MiB as nvidia-smi reports it."""
    unified_memory: bool = False
    """True where CPU and GPU share the memory (GB10)."""
    gpus_per_node: int | None = None
    """GPUs vLLM can see on one node; None when not stated."""
    nodes: int = 1
    origin: Origin = field(default_factory=lambda: Origin("default"))

    @property
    def sm_major(self) -> int | None:
        """Major compute capability, 9 for Hopper; None when unknown."""
        return self.capability[0] if self.capability else None

    @property
    def sm(self) -> str | None:
        """Compute capability as text, ``"9.0"``."""
        return f"{self.capability[0]}.{self.capability[1]}" if self.capability else None

    @property
    def total_gpus(self) -> int | None:
        """GPUs over all nodes, None when not stated."""
        return None if self.gpus_per_node is None else self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class VllmBuild:
    """Which vLLM runs the launch."""

    version: str
    """As stated or found, e.g. ``0.24.0`` or ``0.23.1rc1.dev788+gfa4321de3``."""
    kind: str
    """``release``, ``development`` for a build between releases, or ``unstated``: any release."""
    release: str
    """The release whose facts are used (for a development build: the nearest one, see ``brackets``)."""
    origin: Origin
    brackets: tuple[str, ...] = ()
    """The releases a development or unstated build may resemble. What holds in all of them holds here."""
    dev_base: str | None = None
    """Development builds: ``0.23.1rc1``."""
    dev_number: int | None = None
    """Development builds: commits since the tag, 788."""
    commit: str | None = None
    note: str = ""
    """Said in the report when the choice was not the user's (default, unknown release)."""
    own: BuildFacts | None = None
    """What its own tree says, where that is at hand: it counts before the facts of ``release``."""

    @property
    def uncounted(self) -> bool:
        """True for a development build whose number tells nothing: it sorts before every release."""
        return self.kind == "development" and self.dev_base is None and len(self.brackets) > 1

    @property
    def may_be_any(self) -> bool:
        """True when its code may be that of any release: nobody says which, or the number of the build does not."""
        return self.own is None and (self.kind == "unstated" or self.uncounted)


@dataclass(frozen=True, slots=True)
class Model:
    """The model and its config.json, read into one shape whatever its generation."""

    name: str
    """As given on the command line."""
    family: str
    """``deepseek_v4`` or ``deepseek_v41``."""
    generation: str
    """``original`` (compress_ratios), ``transformers`` (layer_types) or ``nested`` (V4.1)."""
    source: str
    """Path of the config.json, or the bundled id it came from."""
    raw: Mapping[str, Any]
    """config.json after ``--hf-overrides`` (and batch ``config_overrides``), as parsed."""
    text: Mapping[str, Any]
    """The text model's section: ``raw`` itself, or ``raw["text_config"]`` for V4.1."""
    compress_ratios: tuple[int, ...] = ()
    """Per target layer: 4, 128, or 0/1 for a layer that only has a sliding window. Length ``num_hidden_layers``."""
    draft_kind: str | None = None
    """What the checkpoint's ``mtp.*`` tensors hold: ``mtp``, ``dspark``, ``none``; None when not known."""
    known_id: str | None = None
    """The published repository this config is, or is derived from, when known."""
    problems: tuple[Problem, ...] = ()
    """What is odd about the config (wrong types, missing fields) that a release would stumble over."""
    origin: Origin = field(default_factory=lambda: Origin("model"))

    def get(self, key: str, default: Any = None) -> Any:
        """A field of the text model's config."""
        return self.text.get(key, default)

    def integer(self, key: str) -> int | None:
        """A field that should be an integer; None when absent or of another type."""
        value = self.text.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that decides whether a launch works."""

    command: Command
    flags: ServeFlags
    env: Mapping[str, str]
    """Environment of the server: assignments in the command, then ``--env``."""
    hardware: Hardware
    vllm: VllmBuild
    model: Model
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages beside vLLM that were stated; others are those the release pins."""
    checkpoint: Checkpoint | None = None
    """The target's checkpoint: stated, or found on this machine; None when only its id is known."""
    draft: Model | None = None
    """The model that ``--speculative-config`` names, where it is another one that was found on this machine."""
    draft_checkpoint: Checkpoint | None = None
    """The checkpoint of ``draft``."""
