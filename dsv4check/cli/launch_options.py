"""Options that say which launch is meant: the same in every command that takes one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from dsv4check.cli.output import FailOn, Format
from dsv4check.errors import InputError
from dsv4check.records import dataclass

if TYPE_CHECKING:
    from dsv4check.request import Request

CommandWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[--] COMMAND...",
        help="The launch as you would type it: vllm serve MODEL FLAGS... (with or without the program, "
        "with NAME=VALUE in front, as one quoted string, or - to read it from standard input).",
    ),
]
Gpu = Annotated[str | None, typer.Option(help="GPU name (H200, RTX-PRO-6000, ...) or sm90 / 9.0.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs on each node.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Number of nodes.")]
GpuMemory = Annotated[
    float | None,
    typer.Option(min=1, help="Memory of one GPU in GiB, where it differs from the catalogue."),
]
Vllm = Annotated[
    str | None,
    typer.Option(help="vLLM release or build, e.g. 0.24.0 [default: the installed one, else the newest]."),
]
ModelConfig = Annotated[
    str | None,
    typer.Option(help="config.json, or a directory with one, to use instead of the model's own."),
]
CheckpointPath = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="Folder, index or .safetensors file with the target's tensors [default: where the model is, else, to "
        "load by name, the published names]; for rehearse, none leaves them out.",
    ),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VERSION", help="Version of a package beside vLLM; repeatable."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Environment variable of the server; repeatable."),
]
Rules = Annotated[Path | None, typer.Option(help="Folder with further rules.")]
Output = Annotated[Format, typer.Option("--format", help="Output format.")]
Threshold = Annotated[FailOn, typer.Option(help="Lowest severity that exits with 1.")]
Online = Annotated[
    bool,
    typer.Option(
        "--online", help="May fetch config.json (weights: the headers of the safetensors files, too) from the hub."
    ),
]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The launch and what is said about the machine and the software around it, as typed."""

    command: CommandWords = None
    gpu: Gpu = None
    gpus: Gpus = None
    nodes: Nodes = None
    gpu_memory_gib: GpuMemory = None
    vllm: Vllm = None
    model_config: ModelConfig = None
    checkpoint: CheckpointPath = None
    package: Packages = None
    env: Env = None
    online: Online = False

    def request(self, program: str, vllm_path: str | None = None) -> Request:
        """The launch that is asked about, judged by the vLLM tree at ``vllm_path`` where one is given.

        Raises InputError without a command, or when it cannot be used.
        """
        text, source = command_text(self.command, program)
        return self.request_of(text, source, vllm_path)

    def request_of(self, text: str | list[str], source: str, vllm_path: str | None = None) -> Request:
        """The same with the command's text in hand; ``source`` is what it is called in messages."""
        from dsv4check.api import read_request

        return read_request(text, source=source, vllm_path=vllm_path, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        """All but the command, as keyword arguments of ``dsv4check.api.read_request``; plain data."""
        return {
            "gpu": self.gpu,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "gpu_memory_gib": self.gpu_memory_gib,
            "vllm": self.vllm,
            "model_config": self.model_config,
            "checkpoint": self.checkpoint,
            "env": assignments(self.env or []),
            "packages": list(self.package or ()),
            "online": self.online,
        }

    def words(self, text: str | list[str]) -> list[str]:
        """The options as words to type again, and behind them the command's ``text``."""
        words = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            if name == "command" or value is None or value is False:
                continue
            if value is True:
                words.append(option)
                continue
            for item in value if isinstance(value, list) else [value]:
                words += [option, str(item)]
        return [*words, "--", *([text] if isinstance(text, str) else text)]


def takes_launch(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first parameter is the launch: its options come before the function's own.

    typer reads options off a signature and cannot take a group of them as one parameter.
    """
    own = list(inspect.signature(function).parameters.values())[1:]
    hints = get_type_hints(function, include_extras=True)
    launch = _launch_parameters()
    parameters = [*launch, *(item.replace(annotation=hints[item.name]) for item in own)]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        options = LaunchOptions(**{item.name: values.pop(item.name) for item in launch})
        function(options, **values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


@functools.cache
def _launch_parameters() -> tuple[inspect.Parameter, ...]:
    hints = get_type_hints(LaunchOptions, include_extras=True)
    return tuple(
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=item.default, annotation=hints[name])
        for name, item in LaunchOptions.__dataclass_fields__.items()
    )


def command_text(command: list[str] | None, program: str) -> tuple[str | list[str], str]:
    """The launch (words, or text to split) and what it is called in messages. Raises InputError without one."""
    words = list(command or ())
    if words and words[0] == "--":
        words = words[1:]
    if not words:
        raise InputError(f"no command given: expected `dsv4check {program} [options] -- vllm serve MODEL FLAGS...`")
    if words == ["-"]:
        return sys.stdin.read(), "standard input"
    return (words[0] if len(words) == 1 else words), "command line"


def refuse_late_options(command: list[str] | None, program: str, more: frozenset[str] = frozenset()) -> None:
    """Options of this program behind the model would be read as vLLM's. Raises InputError for the first one.

    ``more``: options that only this program has.
    """
    for word in command or ():
        if word == "--":
            return
        if word.partition("=")[0] in _OWN_OPTIONS | more:
            raise InputError(
                f"{word}: stands behind the model, where flags of vllm serve are expected; "
                f"write it first: `dsv4check {program} {word} ... MODEL`"
            )


_OWN_OPTIONS: Final = frozenset(
    {"--vllm", "--gpus", "--gpu", "--nodes", "--checkpoint", "--draft", "--names", "--model-config", "--online"}
    | {"--fail-on", "--package", "--env", "--format", "--gpu-memory-gib", "--rules", "--strict"}
)
"""None of them is a flag of ``vllm serve``."""


def assignments(items: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping. Raises InputError for anything else."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.replace("_", "").isalnum() or name[0].isdigit():
            raise InputError(f"--env {item!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs
