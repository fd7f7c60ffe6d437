"""``dsv4check triage``: from the log of a launch that failed to its cause and what to change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.cli.launch_options import Env, Gpu, GpuMemory, Gpus, ModelConfig, Nodes, Packages, Rules, assignments
from dsv4check.cli.output import print_blocks
from dsv4check.cli.progress import bytes_read
from dsv4check.errors import InputError
from dsv4check.report.triage_formats import TriageFormat

if TYPE_CHECKING:
    from dsv4check.triage.answer import TriageReport


def triage(
    logs: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG...", help="Logs of one launch: files (also .gz), or - for standard input."),
    ] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    gpu_memory_gib: GpuMemory = None,
    vllm: Annotated[str | None, typer.Option(help="vLLM release or build, where the log does not say it.")] = None,
    model: Annotated[str | None, typer.Option(help="Published id of the model, where its path says nothing.")] = None,
    model_config: ModelConfig = None,
    package: Packages = None,
    env: Env = None,
    rules: Rules = None,
    run: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Which start in the log [default: the last that failed].")
    ] = None,
    output: Annotated[TriageFormat, typer.Option("--format", help="Output format.")] = TriageFormat.TEXT,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a redacted report for a bug report (.md or .json) as well."),
    ] = None,
) -> None:
    """Find the first real error in a log, and say its cause, how sure that is and what to change."""
    if not logs:
        raise InputError("no log given: expected `dsv4check triage LOG...` (files, or - for standard input)")
    from dsv4check.engine.rule import load_rules
    from dsv4check.inputs.packages import parse_packages
    from dsv4check.triage.diagnosis import triage as diagnose_logs
    from dsv4check.triage.said import SaidByUser

    said = SaidByUser(
        vllm=vllm,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        model=model,
        model_config=model_config,
        packages=parse_packages(package or ()),
        env=assignments(env or []),
    )
    with bytes_read() as progress:
        answer = diagnose_logs(logs, load_rules(rules), said, run_number=run, stdin=sys.stdin.buffer, progress=progress)
    if bundle is not None:
        from dsv4check.triage.bundle import write_bundle

        write_bundle(bundle, answer)
    _print(answer, output)
    raise typer.Exit(exit_code(answer))


def exit_code(answer: TriageReport) -> int:
    """1 when the log shows an error, explained or not, or the checker finds one in its launch; else 0."""
    from dsv4check.triage.answer import Outcome

    if answer.outcome is not Outcome.NO_ERROR:
        return FINDINGS
    return FINDINGS if answer.report is not None and answer.report.errors else OK


def _print(answer: TriageReport, output: TriageFormat) -> None:
    if output is TriageFormat.TEXT:
        from dsv4check.report.triage_text import triage_blocks

        print_blocks(triage_blocks(answer))
        return
    from dsv4check.report.triage_formats import render

    print(render(answer, output), end="")
