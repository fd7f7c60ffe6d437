"""A launch to check, put together from what a log states."""

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


def to_request(stated: Stated, *, model_config: str | None = None) -> Request:
    """The launch that a log states, or that its reader says (:meth:`SaidByUser.over`).

    ``model_config`` is a config.json or its folder to read instead of the model's own. This machine's GPUs and vLLM
    are never asked: the log is of another one. Raises InputError where no model is known.
    """
    name = stated.model
    if name is None and model_config is None:
        raise InputError(_NO_MODEL)
    if _is_ascend(stated):
        raise InputError(_ASCEND)
    served = _served(stated.words)
    choice = _choose(name, served) if name is not None and model_config is None else _Choice()
    build, note = _vllm(stated)
    notes = [item for item in (choice.note, note) if item]
    hardware, note = _hardware(stated)
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
        packages=_packages(stated.packages),
        model_name=name,
        model_config=model_config,
        config_like=choice.like,
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


def _vllm(stated: Stated) -> tuple[VllmBuild, str]:
    """The build, and a note where the log's version cannot be used."""
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


def _hardware(stated: Stated) -> tuple[Hardware, str]:
    """The GPUs, and a note where the log's name for them is not known."""
    note = ""
    if stated.gpu is not None:
        try:
            return resolve_gpu(stated.gpu, gpus=stated.gpus, nodes=stated.nodes, memory_gib=stated.gpu_memory_gib), note
        except InputError as error:
            note = f"{str(error).removeprefix('--gpu ')}: answers that depend on the GPU stay open"
    mib = round(stated.gpu_memory_gib * 1024) if stated.gpu_memory_gib is not None else None
    return Hardware(memory_mib=mib, gpus_per_node=stated.gpus, nodes=stated.nodes or 1), note


def stated_hardware(stated: Stated) -> Hardware:
    """The GPUs that a log states, where no launch could be put together."""
    return _hardware(stated)[0]


def stated_build(stated: Stated) -> VllmBuild | None:
    """The vLLM that a log states; None where it states none, or one of which nothing is known."""
    build, _note = _vllm(stated)
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
