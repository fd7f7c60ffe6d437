"""From a checked deployment to the launch that the child runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from dsv4check.checkpoint.locate import LOCAL, PUBLISHED, Located, locate_checkpoint
from dsv4check.checkpoint.published import few_experts, fill_shapes, published_tensors
from dsv4check.checkpoint.tensors import NO_HEADER, Checkpoint
from dsv4check.deployment import Deployment, ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.gpu import find_gpu
from dsv4check.inputs.model import load_config_file
from dsv4check.rehearsal.environment import RehearsalUnavailable
from dsv4check.rehearsal.protocol import Launch, SimulatedDevice, TensorRecord
from dsv4check.request import Request
from dsv4check.resolution import Resolution

SIMULATED: Final = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
"""Compute capabilities the child can pretend to have."""
NO_CHECKPOINT: Final = "none"
"""Instead of a checkpoint's path: weights are not loaded by name."""
_DEFAULT_COUNT: Final = 8
_MAX_FILE: Final = 1 << 20


def build_launch(
    request: Request,
    deployment: Deployment,
    *,
    draft: str | None,
    stage_timeout: float,
    checkpoint: str | None = None,
) -> Launch:
    """What the child needs to run ``deployment``.

    ``draft`` names the model of ``--speculative-config``, where it has one of its own. ``checkpoint`` is a path to
    read the target's tensors from, or ``none``; by default they are those of the request, or looked for where the
    model is.
    Raises InputError without a GPU, RehearsalUnavailable for one that cannot be simulated.
    """
    models = _models(request, deployment, draft)
    names = [name for name, _config in models]
    words = [_with_markers(token.text, names) for token in deployment.command.tokens]
    files: list[tuple[str, str]] = []
    for index, word in enumerate(words[:-1]):
        if word == "--config":
            text = _read(words[index + 1])
            if text is not None:
                files.append((words[index + 1], _yaml_with_markers(text, names)))
                words[index + 1] = f"{{file:{len(files) - 1}}}"
    if not any("{model:0}" in word for word in words) and not any("{model:0}" in text for _name, text in files):
        # The model does not stand in the command: --model-config alone, or a batch line.
        words = ["{model:0}", *words] if deployment.command.entrypoint == "serve" else ["--model", "{model:0}", *words]
    return Launch(
        entrypoint=deployment.command.entrypoint,
        argv=tuple(words),
        device=_device(request),
        env=dict(deployment.env),
        models=models,
        weights=tuple(_weights(request, deployment, name, checkpoint if name == names[0] else None) for name in names),
        files=tuple(files),
        stage_timeout=stage_timeout,
    )


def draft_model(resolution: Resolution) -> str | None:
    """The model that ``--speculative-config`` names, for :func:`build_launch`; None without one."""
    named = resolution.draft.config.get("model") if resolution.draft is not None else None
    return named if isinstance(named, str) else None


def _device(request: Request) -> SimulatedDevice:
    hardware = request.hardware
    if hardware.vendor is None:
        raise InputError("a rehearsal needs a GPU to simulate: give --gpu NAME or --gpu sm90")
    if hardware.sm is None or hardware.sm not in SIMULATED:
        wanted = f"compute capability {hardware.sm}" if hardware.sm else f"a GPU of {hardware.vendor}"
        raise RehearsalUnavailable(f"{wanted} is not simulated; known: SM {', '.join(SIMULATED)}")
    spec = find_gpu(hardware.name) if hardware.name else None
    return SimulatedDevice(
        sm=hardware.sm,
        name=spec.smi_names[0] if spec is not None and spec.smi_names else "",
        count=hardware.gpus_per_node or (spec.per_node if spec is not None else _DEFAULT_COUNT),
        memory_mib=hardware.memory_mib,
    )


def _models(request: Request, deployment: Deployment, draft: str | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """config.json of the target as it is on disk, and of the draft where it can be found."""
    target = load_config_file(
        deployment.model.name,
        flags=deployment.flags,
        model_config=request.model_config,
        config_overrides=request.config_overrides,
        config_like=request.config_like,
        online=request.online,
        env=deployment.env,
    )
    models: list[tuple[str, Mapping[str, Any]]] = [(deployment.model.name, target)]
    if draft and draft != deployment.model.name:
        try:
            config = load_config_file(draft, flags=ServeFlags(model=draft), online=request.online, env=deployment.env)
        except InputError:
            # A method name, or a checkpoint that is not at hand: vLLM says what it makes of it.
            return tuple(models)
        models.append((draft, config))
    return tuple(models)


def _weights(
    request: Request, deployment: Deployment, name: str, checkpoint: str | None
) -> tuple[TensorRecord, ...] | None:
    """What is in a model's checkpoint: the stated one, the one on this machine, or the published one.

    None when that is not known, or when config.json is not the checkpoint's own.
    """
    if checkpoint == NO_CHECKPOINT:
        return None
    if request.checkpoint is not None and name == deployment.model.name:
        located: Located | None = Located(request.checkpoint, LOCAL)
    else:
        path = Path(checkpoint) if checkpoint is not None else None
        located = locate_checkpoint(name, deployment.flags, deployment.env, path=path)
    own_config = not (request.config_overrides or request.config_like or request.model_config)
    if located is None or located.place == PUBLISHED:
        return _published(name) if located is not None and own_config else None
    found = located.checkpoint
    for defect in found.defects:
        if defect.kind in NO_HEADER and defect.kind != "shard-missing":
            # A file that is there and unreadable is damage; vLLM must not be blamed for tensors that it lacks.
            raise InputError(f"{found.source}: {defect.file}: {defect.detail}")
    if found.without_shape and own_config:
        published = published_tensors(name)
        found = found if published is None else fill_shapes(found, published)
    return _records(found)


@cache
def _published(name: str) -> tuple[TensorRecord, ...] | None:
    """A published checkpoint's records; kept, because a batch asks for the same again and again."""
    found = published_tensors(name)
    return None if found is None else _records(found)


def _records(checkpoint: Checkpoint) -> tuple[TensorRecord, ...]:
    return tuple((key, tensor.dtype, tensor.shape) for key, tensor in few_experts(checkpoint.tensors).items())


def _with_markers(word: str, names: list[str]) -> str:
    """A word of the command, with ``{model:N}`` where it names model N."""
    for number, name in enumerate(names):
        marker = f"{{model:{number}}}"
        flag, equals, value = word.partition("=")
        if word == name:
            return marker
        if equals and value == name and flag.startswith("-"):
            return f"{flag}={marker}"
        # JSON values: the name stands in quotes of its own.
        word = word.replace(f'"{name}"', f'"{marker}"')
    return word


def _yaml_with_markers(text: str, names: list[str]) -> str:
    for number, name in enumerate(names):
        text = re.sub(rf"(?<![^\s\"']){re.escape(name)}(?![^\s\"',])", f"'{{model:{number}}}'", text)
        text = text.replace(f"\"'{{model:{number}}}'\"", f'"{{model:{number}}}"').replace(
            f"''{{model:{number}}}''", f"'{{model:{number}}}'"
        )
    return text


def _read(path: str) -> str | None:
    """The file's text; None where it cannot be read (vLLM then says so itself)."""
    try:
        file = Path(path).expanduser()
        if file.stat().st_size > _MAX_FILE:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def for_environment(request: Request, version: str) -> Request:
    """The request with the vLLM that will be rehearsed. Raises InputError when another one was asked for."""
    from dsv4check.inputs.vllm_version import resolve_vllm

    found = resolve_vllm(version)
    stated = request.vllm
    if stated.origin.kind == "option" and stated.version != found.version:
        raise InputError(
            f"--vllm {stated.version}, but the vLLM to rehearse with is {found.version}; "
            "leave --vllm out, or name that release's interpreter or tree"
        )
    return replace(request, vllm=replace(found, note=""))
