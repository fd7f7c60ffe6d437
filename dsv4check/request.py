"""A launch as it was asked about, before anything is looked up: what the fix search edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dsv4check.deployment import Command, Deployment, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint_files import checkpoint_on_this_machine
from dsv4check.inputs.flags.parser import ReadFile, parse_flags, read_text_file
from dsv4check.inputs.gpu import apply_visible_devices
from dsv4check.inputs.model import load_model
from dsv4check.records import dataclass, field
from dsv4check.releases.facts import ReleaseFacts, facts_of
from dsv4check.releases.flag_table import load_flag_table

if TYPE_CHECKING:
    from dsv4check.checkpoint.tensors import Checkpoint


@dataclass(frozen=True, slots=True)
class Request:
    """One launch: the command, and what was said about the machine and the software around it."""

    command: Command
    vllm: VllmBuild
    hardware: Hardware = field(default_factory=Hardware)
    env: Mapping[str, str] = field(default_factory=dict)
    """``--env``: wins over assignments in the command."""
    packages: Mapping[str, str] = field(default_factory=dict)
    model_name: str | None = None
    """The model when it does not stand in the command (batch)."""
    model_config: str | None = None
    """``--model-config``: a config.json or a directory to read instead of the model's own."""
    config_overrides: Mapping[str, Any] | None = None
    """Merged into config.json (batch); null deletes a key."""
    config_like: str | None = None
    """The published id whose config.json to start from (batch)."""
    online: bool = False
    checkpoint: Checkpoint | None = None
    """The target's checkpoint, where it was stated (``--checkpoint``); else it is looked for on this machine."""
    read_file: ReadFile = read_text_file
    """Reads the file that ``--config`` names."""
    reading: tuple[Command, str, ServeFlags] | None = None
    """What a command's flags are on a release, where they were read before; used for exactly that command."""

    def on_release(self, release: str) -> Request:
        """The same launch with the facts of another release; a development build keeps its identity."""
        return replace(self, vllm=replace(self.vllm, release=release))


def build_deployment(request: Request) -> Deployment:
    """Read the flags with the release's parser, find the model's config and put the deployment together.

    Raises InputError when there is no model, its config cannot be read or it is not DeepSeek-V4.
    """
    table = load_flag_table(request.vllm.release)
    facts = facts_of(request.vllm)
    env = {**request.command.env, **request.env}
    command = replace(request.command, env=env) if request.env else request.command
    read = request.reading
    if read is not None and read[0] is request.command and read[1] == request.vllm.release:
        flags = read[2]
    else:
        flags = parse_flags(command, table, read_file=request.read_file)
    name = flags.model or request.model_name
    if name is None and request.model_config is None:
        raise InputError(
            "no model in the command: expected `vllm serve MODEL ...`, `--model MODEL`, or --model-config PATH"
        )
    checkpoint = request.checkpoint
    if checkpoint is None and request.model_config is None and name is not None:
        checkpoint = checkpoint_on_this_machine(name, flags, env)
    model = load_model(
        name,
        flags=flags,
        release=request.vllm.release,
        model_config=request.model_config,
        config_overrides=request.config_overrides,
        config_like=request.config_like,
        online=request.online,
        env=env,
        checkpoint=checkpoint,
        facts=facts,
    )
    draft, draft_checkpoint = _draft(request, flags, env, model, facts)
    return Deployment(
        command=request.command,
        flags=flags,
        env=env,
        hardware=apply_visible_devices(request.hardware, env),
        vllm=request.vllm,
        model=model,
        packages=request.packages,
        checkpoint=checkpoint,
        draft=draft,
        draft_checkpoint=draft_checkpoint,
    )


def _draft(
    request: Request, flags: ServeFlags, env: Mapping[str, str], target: Model, facts: ReleaseFacts
) -> tuple[Model | None, Checkpoint | None]:
    """The draft model of the launch and its checkpoint, where it is a model of its own on this machine."""
    name = flags.values.get("spec_model") or flags.section("speculative_config").get("model")
    if not isinstance(name, str) or name == target.name:
        return None, None
    checkpoint = checkpoint_on_this_machine(name, flags, env)
    if checkpoint is None:
        return None, None
    own = ServeFlags(model=name, values={key: flags.values[key] for key in _PLACE if key in flags.values})
    try:
        release = request.vllm.release
        return load_model(name, flags=own, release=release, env=env, checkpoint=checkpoint, facts=facts), checkpoint
    except InputError:
        # Not a DeepSeek-V4 model: another kind of draft, of which nothing is known here.
        return None, None


_PLACE: Final = ("download_dir",)
"""Flags that say where a draft is looked for; ``--revision`` is the target's alone."""
