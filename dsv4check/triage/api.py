"""Explaining a log from Python, as ``dsv4check triage`` does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dsv4check.engine.rule import load_rules
from dsv4check.inputs.packages import parse_packages
from dsv4check.triage.answer import TriageReport
from dsv4check.triage.diagnosis import triage
from dsv4check.triage.said import SaidByUser


def triage_logs(
    logs: str | Path | Sequence[str | Path],
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    gpu_memory_gib: float | None = None,
    vllm: str | None = None,
    model: str | None = None,
    model_config: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | Sequence[str] | None = None,
    rules: str | Path | None = None,
    run: int | None = None,
    stdin: BinaryIO | None = None,
) -> TriageReport:
    """Find the first real error in a log of vLLM, and say its cause, how sure that is and what to change.

    What is said about the launch here wins over what the log states. The log is of another machine: neither this
    one's GPUs nor its vLLM are asked.

    Args:
        logs: One log, or several files of one launch: plain or gzip, and ``-`` for ``stdin``. A bug report or a pasted
            traceback will do.
        gpu: Catalogue name (``H200``), nvidia-smi name or compute capability (``sm90``, ``9.0``).
        gpus: GPUs per node.
        nodes: Number of nodes.
        gpu_memory_gib: Memory of one GPU where it differs from the catalogue's.
        vllm: Release, development build or image.
        model: Published id of the model, where its path in the log says nothing.
        model_config: config.json (or its directory) to use instead of the model's own.
        env: Environment variables of the server.
        packages: Versions of packages beside vLLM, ``{"flashinfer-python": "0.6.14"}`` or ``["name=version"]``.
        rules: Folder with further rules.
        run: Which start of vLLM in the log, from 1; by default the last one that failed.
        stdin: What ``-`` reads; by default standard input.

    Raises:
        InputError: A log or an argument cannot be used; the message says what and where.
    """
    names = [os.fspath(logs)] if isinstance(logs, (str, os.PathLike)) else [os.fspath(item) for item in logs]
    said = SaidByUser(
        vllm=vllm,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        model=model,
        model_config=None if model_config is None else os.fspath(model_config),
        packages=parse_packages(packages),
        env=dict(env or {}),
    )
    return triage(names, load_rules(Path(rules) if rules is not None else None), said, run_number=run, stdin=stdin)
