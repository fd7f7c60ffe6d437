"""``dsv4check doctor``: this very installation, and a launch judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.cli.launch_options import (
    LaunchOptions,
    Rules,
    Threshold,
    command_text,
    refuse_late_options,
    takes_launch,
)
from dsv4check.cli.output import FailOn, print_blocks
from dsv4check.cli.progress import passing_words
from dsv4check.report.doctor_formats import DoctorFormat

if TYPE_CHECKING:
    from dsv4check.doctor.records import DoctorReport, DoctorRequest


@takes_launch
def doctor(
    launch: LaunchOptions,
    vllm_path: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder with a vLLM tree to read (installed, unpacked or a checkout)."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Interpreter or virtual environment with vLLM [default: this one]."),
    ] = None,
    rules: Rules = None,
    output: Annotated[DoctorFormat, typer.Option("--format", help="Output format.")] = DoctorFormat.TEXT,
    fail_on: Threshold = FailOn.ERROR,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit with 1 when something could not be looked at or stayed open.")
    ] = False,
) -> None:
    """Look at the installed vLLM (as text), the machine, and what both make of a launch."""
    refuse_late_options(launch.command, "doctor", frozenset(("--vllm-path", "--python")))
    from dsv4check.doctor.examination import examine

    request = _request(launch, vllm_path, python, rules)
    with passing_words() as say:
        report = examine(request, say=say)
    _print(report, output)
    raise typer.Exit(exit_code(report, fail_on, strict))


def exit_code(report: DoctorReport, fail_on: FailOn, strict: bool) -> int:
    """0, or 1 when machine or launch reach ``fail_on`` or, with ``strict``, something stayed open."""
    if strict and report.open_answers:
        return FINDINGS
    seen = [item.state.value for item in report.observations]
    if report.launch is not None:
        seen += [finding["severity"] for finding in report.launch["findings"]]
    ranks = [FailOn(word).rank for word in seen if word in (FailOn.ERROR, FailOn.WARNING, FailOn.NOTE)]
    return FINDINGS if any(rank >= fail_on.rank for rank in ranks) else OK


def _request(launch: LaunchOptions, vllm_path: str | None, python: str | None, rules: Rules) -> DoctorRequest:
    from dsv4check.doctor.records import DoctorRequest

    arguments = launch.arguments()
    command: str | tuple[str, ...] | None = None
    source = "command line"
    if launch.command and launch.command != ["--"]:
        text, source = command_text(launch.command, "doctor")
        command = text if isinstance(text, str) else tuple(text)
    return DoctorRequest(
        vllm_path=vllm_path,
        python=python,
        command=command,
        source=source,
        rules=rules,
        **(arguments | {"packages": tuple(arguments["packages"])}),
    )


def _print(report: DoctorReport, output: DoctorFormat) -> None:
    if output is DoctorFormat.TEXT:
        from dsv4check.report.doctor_text import doctor_blocks

        print_blocks(doctor_blocks(report))
        return
    from dsv4check.report.doctor_formats import render

    print(render(report, output), end="")
