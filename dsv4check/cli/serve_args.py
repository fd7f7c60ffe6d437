"""``dsv4check serve-args``: check one launch command, or a batch of them."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv4check.cli.launch_options import (
    CheckpointPath,
    CommandWords,
    Env,
    Gpu,
    GpuMemory,
    Gpus,
    ModelConfig,
    Nodes,
    Online,
    Output,
    Packages,
    Rules,
    Threshold,
    Vllm,
    assignments,
    command_text,
)
from dsv4check.cli.output import FailOn, Format, exit_code, print_report
from dsv4check.errors import InputError


def serve_args(
    command: CommandWords = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    gpu_memory_gib: GpuMemory = None,
    vllm: Vllm = None,
    model_config: ModelConfig = None,
    checkpoint: CheckpointPath = None,
    package: Packages = None,
    env: Env = None,
    rules: Rules = None,
    output: Output = Format.TEXT,
    fail_on: Threshold = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 when an answer stayed open.")] = False,
    online: Online = False,
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Check one launch per JSON line of FILE (- for standard input)."),
    ] = None,
) -> None:
    """Check a `vllm serve` command: what vLLM will decide, whether it works, and what fixes it."""
    if batch is not None:
        if command:
            raise InputError("--batch takes its launches from the file; remove the command after it")
        from dsv4check.batch import run_batch

        raise typer.Exit(run_batch(batch, rules=rules, fail_on=fail_on, strict=strict, online=online))
    text, source = command_text(command, "serve-args")
    from dsv4check.api import check_request, read_request
    from dsv4check.engine.rule import load_rules

    request = read_request(
        text,
        source=source,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        vllm=vllm,
        model_config=model_config,
        checkpoint=checkpoint,
        env=assignments(env or []),
        packages=package or (),
        online=online,
    )
    report = check_request(request, load_rules(rules))
    print_report(report, output)
    raise typer.Exit(exit_code(report, fail_on, strict))
