"""A launch to check, put together from what a log states and what its reader says about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from dsv4check.deployment import Command, Hardware, Token, VllmBuild
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import find_published, guess_sibling
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.packages import normalise_name, parse_packages
from dsv4check.inputs.vllm_version import resolve_vllm, unstated_vllm
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.request import Request
from dsv4check.triage.model_hint import published_like
from dsv4check.triage.records import Stated
from dsv4check.triage.version_banner import is_preview

_ASCEND: Final = "the launch runs on vLLM-Ascend, whose plugin decides in vLLM's place: it cannot be checked"
_NO_MODEL: Final = "the log does not say which model was served: expected --model MODEL or --model-config PATH"


def to_request(
    stated: Stated,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    gpu_memory_gib: float | None = None,
    vllm: str | None = None,
    model: str | None = None,
    model_config: str | None = None,
    env: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | Sequence[str] | None = None,
    online: bool = False,
) -> Request:
    """The launch that a log states.

    The arguments are those of :func:`dsv4check.api.check` and win over the log. This machine's GPUs and vLLM are never
    asked: the log is of another one.

    Raises InputError where no model is known, or where an argument cannot be used.
    """
    name = model or stated.model
    if name is None and model_config is None:
        raise InputError(_NO_MODEL)
    if _is_ascend(stated):
        raise InputError(_ASCEND)
    served = _served(stated.words)
    choice = _choose(name, served) if name is not None and model_config is None else _Choice()
    build, note = _vllm(stated, vllm)
    notes = [item for item in (choice.note, note) if item]
    hardware, note = _hardware(stated, gpu, gpus, nodes, gpu_memory_gib)
    notes += [note] if note else []
    words = [*([name] if name is not None else []), *stated.words]
    command = Command(
        ("vllm", "serve"),
        tuple(Token(word, Origin("flag", word)) for word in words),
        dict(stated.env),
        "serve",
        tuple(notes),
    )
    return Request(
        command=command,
        vllm=build,
        hardware=hardware,
        env=dict(env or {}),
        packages={**_packages(stated.packages), **parse_packages(packages)},
        model_name=name,
        model_config=model_config,
        config_like=choice.like,
        online=online,
        read_file=_no_file,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    like: str | None = None
    note: str = ""


def _choose(name: str, served: Sequence[str]) -> _Choice:
    """The published checkpoint that stands in for a model whose own name does not lead to one."""
    if find_published(name) or guess_sibling(name) or _lies_here(name):
        return _Choice()
    for hint, why in ((name, f"by the name of {name}"), *((item, f"it is served as {item}") for item in served)):
        entry = published_like([hint])
        if entry is not None:
            return _Choice(entry.id, f"the model is read as {entry.id}: {why}")
    return _Choice()


def _lies_here(name: str) -> bool:
    try:
        return os.path.isfile(name) or os.path.isfile(os.path.join(name, "config.json"))
    except ValueError:
        return False


def _is_ascend(stated: Stated) -> bool:
    """True for a launch on Huawei's NPUs."""
    if "npu" in (stated.observed.get("device"), stated.observed.get("platform")) or "vllm-ascend" in stated.packages:
        return True
    if any(name.startswith(("VLLM_ASCEND_", "ASCEND_", "HCCL_")) for name in stated.env):
        return True
    return "--quantization=ascend" in stated.words or ("--quantization", "ascend") in pairwise(stated.words)


def _served(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    follows = False
    for word in words:
        if follows and not word.startswith("-"):
            found.append(word)
            continue
        flag, equals, value = word.partition("=")
        follows = flag.replace("_", "-") == "--served-model-name" and not equals
        if equals and flag.replace("_", "-") == "--served-model-name":
            found.append(value)
    return found


def _vllm(stated: Stated, option: str | None) -> tuple[VllmBuild, str]:
    """The build, and a note where the log's version cannot be used."""
    if option is not None and option.strip():
        return resolve_vllm(option), ""
    if stated.vllm is None:
        return unstated_vllm(), ""
    if is_preview(stated.vllm):
        why = "the number of a build without tags, which does not tell what code is in it"
        return unstated_vllm(), f"vLLM {stated.vllm}: {why}"
    try:
        build = resolve_vllm(stated.vllm)
    except InputError as error:
        return unstated_vllm(), str(error)
    return replace(build, origin=Origin("stdin", "log")), ""


def _hardware(
    stated: Stated, gpu: str | None, gpus: int | None, nodes: int | None, memory: float | None
) -> tuple[Hardware, str]:
    """The GPUs, and a note where the log's name for them is not known."""
    count = gpus if gpus is not None else stated.gpus
    machines = nodes if nodes is not None else stated.nodes
    if gpu is not None and gpu.strip():
        # A count in the option (8xH200) wins over the log's.
        counted = resolve_gpu(gpu).gpus_per_node
        own = gpus if gpus is not None else counted or stated.gpus
        return resolve_gpu(gpu, gpus=own, nodes=machines, memory_gib=memory), ""
    if stated.gpu is not None:
        amount = memory if memory is not None else stated.gpu_memory_gib
        try:
            return resolve_gpu(stated.gpu, gpus=count, nodes=machines, memory_gib=amount), ""
        except InputError as error:
            if gpus is not None or nodes is not None or memory is not None:
                # Not the log's fault: say what is wrong with the option.
                resolve_gpu("H200", gpus=gpus, nodes=nodes, memory_gib=memory)
            note = f"{str(error).removeprefix('--gpu ')}: answers that depend on the GPU stay open"
    else:
        note = ""
        if gpus is not None or nodes is not None or memory is not None:
            resolve_gpu("H200", gpus=gpus, nodes=nodes, memory_gib=memory)
    known = memory if memory is not None else stated.gpu_memory_gib
    mib = round(known * 1024) if known is not None else None
    return Hardware(memory_mib=mib, gpus_per_node=count, nodes=machines or 1), note


def stated_hardware(stated: Stated) -> Hardware:
    """The GPUs that a log states, where no launch could be put together; empty where it names none that is known."""
    try:
        return _hardware(stated, None, None, None, None)[0]
    except InputError:
        return Hardware()


def stated_build(stated: Stated) -> VllmBuild | None:
    """The vLLM that a log states; None where it states none, or one of which nothing is known."""
    build, _note = _vllm(stated, None)
    return None if build.kind == "unstated" else build


def _packages(stated: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, version in stated.items():
        try:
            found.update(parse_packages({name: version}))
        except InputError:
            continue
    return {normalise_name(name): version for name, version in found.items()}


def _no_file(path: str) -> str:
    """The ``--config`` file of a log lies on another machine."""
    from dsv4check.inputs.vllm_yaml import NotAtHandError

    raise NotAtHandError(path)
