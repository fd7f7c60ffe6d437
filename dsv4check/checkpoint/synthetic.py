"""Writes small checkpoints that look like the published ones: names, dtypes and shapes, no values.

For trying a converter, a loader, or this checker, without 160 GB: any number of layers, draft stages, experts and
shards, a config.json that fits, and safetensors files of zeros that take no disk space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from dsv4check.checkpoint.kinds import find_kind, kind_config, kind_tensors
from dsv4check.checkpoint.shards import write_index, write_shard
from dsv4check.checkpoint.synthetic_config import cut_config, draft_experts, source_layer, text_section
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import CONFIG_NAME, deep_merge
from dsv4check.records import dataclass

_NUMBERED: Final = re.compile(r"^(layers|mtp)\.(\d+)\.(.+)$")
_FIRST_EXPERT: Final = "ffn.experts.0."
_MAX_LAYERS: Final = 10_000
_SHARD_BYTES: Final = 4_000_000_000
"""PyTorch maps a whole file and the kernel counts it as memory, so that one of 100 GB opens on few machines."""


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that was written."""

    folder: Path
    files: tuple[str, ...]
    """Names of the safetensors files."""
    tensors: Mapping[str, Tensor]
    total_size: int
    """Bytes of all tensors; on disk the files take next to nothing."""
    config: Mapping[str, Any]
    """The config.json written."""


def make_checkpoint(
    like: str,
    *,
    layers: int | None = None,
    stages: int | None = None,
    experts: int | None = None,
    drop: Sequence[str] = (),
    config_changes: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, config.json) of a synthetic checkpoint; arguments and errors as for :func:`write_checkpoint`."""
    kind = find_kind(like)
    for what, number, least in (("layers", layers, 1), ("stages", stages, 0), ("experts", experts, 1)):
        if number is not None and not least <= number <= _MAX_LAYERS:
            raise InputError(f"{what}: {number}: expected a number from {least} to {_MAX_LAYERS}")
    tensors = kind_tensors(kind)
    config = cut_config(kind_config(kind), tensors, layers=layers, stages=stages, experts=experts)
    chosen = _dropped(dict(_tensors(tensors, config, stages)), drop)
    if not chosen:
        raise InputError(f"drop: {', '.join(map(repr, drop))} leaves no tensor")
    return chosen, deep_merge(config, config_changes or {})


def write_checkpoint(
    folder: Path,
    like: str,
    *,
    layers: int | None = None,
    stages: int | None = None,
    experts: int | None = None,
    shards: int | None = None,
    drop: Sequence[str] = (),
    header_only: bool = False,
    config_changes: Mapping[str, Any] | None = None,
) -> Written:
    """Write a synthetic checkpoint: config.json, index and safetensors files.

    ``like`` is a short name (``kinds.KINDS``) or the id of a published checkpoint whose tensors are known; ``layers``
    target layers, ``stages`` draft stages (0: no draft), ``experts`` routed experts a layer: as published when None.
    ``shards`` safetensors files; by default as many as keep each below 4 GB.
    ``drop`` are glob patterns of tensors to leave out, from files and index. ``header_only`` leaves the data part out
    of the files, which safetensors then refuses; otherwise it is a hole that takes no disk space. ``config_changes``
    are merged into config.json at the end (null deletes a key): a way to make config and tensors disagree.

    Raises InputError for an unknown kind, numbers that make no sense, a pattern that matches nothing, a folder that is
    not empty, and when writing fails.
    """
    chosen, config = make_checkpoint(
        like, layers=layers, stages=stages, experts=experts, drop=drop, config_changes=config_changes
    )
    if shards is not None and not 1 <= shards <= len(chosen):
        raise InputError(f"shards: {shards}: expected a number from 1 to {len(chosen)}, the number of tensors")
    try:
        return _write(folder, chosen, _parts(chosen, shards), config, header_only)
    except OSError as error:
        place = error.filename or folder
        raise InputError(f"{place}: the checkpoint could not be written ({error.strerror or error})") from None


def _parts(tensors: Mapping[str, Tensor], shards: int | None) -> list[list[str]]:
    """The names in each file."""
    names = list(tensors)
    if shards is not None:
        bounds = [number * len(names) // shards for number in range(shards + 1)]
        return [names[start:stop] for start, stop in pairwise(bounds)]
    parts: list[list[str]] = [[]]
    size = 0
    for name in names:
        more = tensors[name].size or 0
        if parts[-1] and size + more > _SHARD_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += more
    return parts


def _write(
    folder: Path, tensors: Mapping[str, Tensor], parts: list[list[str]], config: Mapping[str, Any], header_only: bool
) -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; expected a new or empty folder, nothing is overwritten")
    files: dict[str, str] = {}
    written = []
    total = 0
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        total += write_shard(folder / file, {name: tensors[name] for name in part}, header_only=header_only)
        files.update(dict.fromkeys(part, file))
        written.append(file)
    write_index(folder, files, total)
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return Written(folder, tuple(written), tensors, total, config)


def _tensors(
    published: Mapping[str, Tensor], config: Mapping[str, Any], stages: int | None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the cut config asks for."""
    text = text_section(config)
    numbered: dict[str, dict[int, dict[str, Tensor]]] = {"layers": {}, "mtp": {}}
    for name, tensor in published.items():
        found = _NUMBERED.match(name)
        if found is None:
            yield name, tensor
        else:
            numbered[found[1]].setdefault(int(found[2]), {})[found[3]] = tensor
    source = numbered["layers"]
    for layer in range(text["num_hidden_layers"]):
        leaves = source[source_layer(layer, len(source))]
        yield from _layer(f"layers.{layer}.", leaves, text["n_routed_experts"], text["num_experts_per_tok"])
    draft = numbered["mtp"]
    count = len(draft) if stages is None else stages
    for stage in range(count):
        leaves = _stage_leaves(draft, stage, count)
        yield from _layer(f"mtp.{stage}.", leaves, draft_experts(text), text["num_experts_per_tok"])


def _stage_leaves(draft: Mapping[int, Mapping[str, Tensor]], stage: int, count: int) -> dict[str, Tensor]:
    """A draft stage: what all published stages have; the first and the last one also have what only these have."""
    last = len(draft) - 1
    common = {name: tensor for name, tensor in draft[0].items() if all(name in leaves for leaves in draft.values())}
    leaves = dict(common)
    if stage == 0:
        leaves |= draft[0]
    if stage == count - 1:
        leaves |= draft[last]
    return leaves


def _layer(prefix: str, leaves: Mapping[str, Tensor], experts: int, chosen: int) -> Iterator[tuple[str, Tensor]]:
    """One layer's tensors, with ``experts`` routed experts like the first one."""
    first = {name: tensor for name, tensor in leaves.items() if name.startswith(_FIRST_EXPERT)}
    for name, tensor in leaves.items():
        shape = tensor.shape or ()
        if name in first:
            continue
        if name == "ffn.gate.tid2eid":
            yield prefix + name, Tensor(tensor.dtype, (shape[0], chosen))
        elif name.startswith("ffn.gate."):
            # Router weight and biases have a row for each expert.
            yield prefix + name, Tensor(tensor.dtype, (experts, *shape[1:]))
        else:
            yield prefix + name, tensor
    for number in range(experts):
        head = f"{prefix}ffn.experts.{number}."
        for name, tensor in first.items():
            yield head + name[len(_FIRST_EXPERT) :], tensor


def _dropped(tensors: dict[str, Tensor], patterns: Sequence[str]) -> dict[str, Tensor]:
    """Without the tensors that match one of the patterns."""
    for pattern in patterns:
        matching = [name for name in tensors if fnmatchcase(name, pattern)]
        if not matching:
            raise InputError(f"drop: {pattern!r} matches no tensor of this checkpoint; expected a glob like 'mtp.1.*'")
        for name in matching:
            del tensors[name]
    return tensors
