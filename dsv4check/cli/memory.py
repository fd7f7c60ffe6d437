"""``dsv4check memory``: where a GPU's memory goes, whether the launch fits, and what its KV cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.cli.launch_options import LaunchOptions, Output, Rules, Threshold, refuse_late_options, takes_launch
from dsv4check.cli.output import FailOn, Format, print_blocks, reaches

if TYPE_CHECKING:
    from dsv4check.memory_report import MemoryReport


@takes_launch
def memory(
    launch: LaunchOptions,
    rules: Rules = None,
    output: Output = Format.TEXT,
    fail_on: Threshold = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 when the answer stayed open.")] = False,
) -> None:
    """Say where a GPU's memory goes in a launch, whether it fits, and what context the KV cache holds."""
    refuse_late_options(launch.command, "memory")
    request = launch.request("memory")
    from dsv4check.api import check_request
    from dsv4check.engine.rule import load_rules
    from dsv4check.memory_report import build_memory_report

    item = build_memory_report(check_request(request, load_rules(rules)))
    _print(item, output)
    raise typer.Exit(exit_code(item, fail_on, strict))


def exit_code(item: MemoryReport, fail_on: FailOn, strict: bool) -> int:
    """1 when the launch does not fit or a finding about that reaches ``fail_on``; with ``strict``, when it is open."""
    if strict and (item.memory is None or item.memory.fits is None):
        return FINDINGS
    if fail_on is FailOn.NEVER:
        return OK
    return FINDINGS if item.fails or reaches(item.findings, fail_on) else OK


def _print(item: MemoryReport, output: Format) -> None:
    if output is Format.JSON:
        from dsv4check.report.memory_json import render

        print(render(item))
    else:
        from dsv4check.report.memory_text import memory_report_blocks

        print_blocks(memory_report_blocks(item))
