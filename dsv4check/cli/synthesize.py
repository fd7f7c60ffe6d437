"""``dsv4check synthesize``: write a small checkpoint that looks like a published one, to try things out with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4check.errors import InputError


def synthesize(
    folder: Annotated[Path, typer.Argument(help="New or empty folder to write it to.")],
    like: Annotated[
        str,
        typer.Option(help="What it looks like: flash, pro, flash-dspark, pro-nvfp4, ... or a published id."),
    ],
    layers: Annotated[int | None, typer.Option(help="Layers of the target [default: as published].")] = None,
    stages: Annotated[int | None, typer.Option(help="Draft stages; 0 leaves the draft out.")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts of a layer.")] = None,
    shards: Annotated[int | None, typer.Option(help="Safetensors files [default: each below 4 GB].")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Leave out the tensors whose names match, e.g. 'mtp.*'; repeatable."),
    ] = None,
    header_only: Annotated[
        bool, typer.Option("--header-only", help="Files end behind their header; vLLM refuses these.")
    ] = False,
    config_change: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Merged into config.json at the end; null deletes a key."),
    ] = None,
) -> None:
    """Write a checkpoint of zeros with the names, dtypes and shapes of a published one; it takes next to no space."""
    from dsv4check.checkpoint.synthetic import write_checkpoint
    from dsv4check.inputs.shell_quoting import quote

    written = write_checkpoint(
        folder.expanduser(),
        like,
        layers=layers,
        stages=stages,
        experts=experts,
        shards=shards,
        drop=drop or (),
        header_only=header_only,
        config_changes=_changes(config_change),
    )
    disk = sum(path.stat().st_blocks * 512 for path in written.folder.iterdir())
    files, tensors = len(written.files), len(written.tensors)

    print(f"{written.folder}: {files:,} file{'s' * (files != 1)}, {tensors:,} tensor{'s' * (tensors != 1)}")
    print(f"{written.total_size:,} bytes claimed, {disk:,} bytes on disk")
    if header_only:
        print("without data: safetensors and vLLM refuse these files")
    print(f"next: dsv4check weights {quote(str(written.folder))}")


def _changes(text: str | None) -> dict[str, Any] | None:
    """The object of ``--config-change``. Raises InputError for anything else."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--config-change: not JSON ({error}); expected an object like '{{\"key\": 1}}'") from None
    if not isinstance(value, dict):
        raise InputError(f"--config-change: expected a JSON object, found {type(value).__name__}")
    return value
