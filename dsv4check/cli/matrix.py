"""``dsv4check matrix``: what each KV dtype x backend x SM resolves to, or why it fails."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dsv4check.matrix import Cell


class MatrixFormat(StrEnum):
    """Output formats of the matrix."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def matrix(
    vllm: Annotated[str | None, typer.Option(help="vLLM release [default: installed, else newest].")] = None,
    output: Annotated[MatrixFormat, typer.Option("--format", help="Output format.")] = MatrixFormat.TEXT,
) -> None:
    """Print the KV dtype x attention backend x compute capability matrix of a release."""
    from dsv4check.inputs.vllm_version import resolve_vllm
    from dsv4check.matrix import matrix_cells

    release = resolve_vllm(vllm).release
    cells = matrix_cells(release)
    match output:
        case MatrixFormat.JSON:
            print(json.dumps({"release": release, "cells": [_cell(cell) for cell in cells]}, indent=2))
        case MatrixFormat.MARKDOWN:
            print(_markdown(release, cells), end="")
        case MatrixFormat.TEXT:
            print(_text(release, cells), end="")


def _cell(cell: Cell) -> dict[str, object]:
    problem = cell.problem
    return {
        "sm_major": cell.sm_major,
        "backend": cell.backend,
        "kv_cache_dtype": cell.dtype,
        "class": cell.cls,
        "resolved": cell.resolved,
        "torch_dtype": cell.torch_dtype,
        "fails": None
        if problem is None
        else {"stage": problem.stage.value, "exception": problem.exception, "error": problem.error},
        "remark": cell.remark,
    }


def _short(cell: Cell) -> str:
    if cell.problem is not None:
        return f"{cell.problem.exception} ({cell.problem.stage.value})"
    text = f"{cell.resolved}/{cell.torch_dtype}"
    return f"{text} ({cell.remark})" if cell.remark else text


def _grid(cells: list[Cell], sm_major: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    mine = [cell for cell in cells if cell.sm_major == sm_major]
    columns = tuple(dict.fromkeys(cell.backend for cell in mine))
    by_key = {(cell.dtype, cell.backend): cell for cell in mine}
    rows = [
        (dtype, *(_short(by_key[dtype, backend]) for backend in columns))
        for dtype in dict.fromkeys(cell.dtype for cell in mine)
    ]
    return ("--kv-cache-dtype", *columns), rows


def _markdown(release: str, cells: list[Cell]) -> str:
    lines = [f"# vLLM {release}: KV dtype x attention backend x SM", ""]
    for sm_major in dict.fromkeys(cell.sm_major for cell in cells):
        header, rows = _grid(cells, sm_major)
        lines += [f"## SM {sm_major}.x", ""]
        lines.append("| " + " | ".join(header) + " |")
        lines.append("|" + " --- |" * len(header))
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _text(release: str, cells: list[Cell]) -> str:
    """One line for each group of dtypes with the same outcome: the full grid is too wide for a terminal."""
    lines = [f"vLLM {release}: what --kv-cache-dtype becomes, by compute capability and --attention-backend"]
    for sm_major in dict.fromkeys(cell.sm_major for cell in cells):
        lines += ["", f"SM {sm_major}.x"]
        mine = [cell for cell in cells if cell.sm_major == sm_major]
        for backend in dict.fromkeys(cell.backend for cell in mine):
            lines.append(f"  {backend}")
            groups: dict[str, list[str]] = {}
            for cell in mine:
                if cell.backend == backend:
                    groups.setdefault(_short(cell), []).append(cell.dtype)
            lines += [f"    {', '.join(dtypes)}: {outcome}" for outcome, dtypes in groups.items()]
    return "\n".join(lines) + "\n"
