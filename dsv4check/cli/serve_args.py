"""``dsv4check serve-args``: check one launch command, or a batch of them."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv4check.cli.launch_options import LaunchOptions, Output, Rules, Threshold, takes_launch
from dsv4check.cli.output import FailOn, Format, exit_code, print_report
from dsv4check.errors import InputError


@takes_launch
def serve_args(
    launch: LaunchOptions,
    rules: Rules = None,
    output: Output = Format.TEXT,
    fail_on: Threshold = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 when an answer stayed open.")] = False,
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Check one launch per JSON line of FILE (- for standard input)."),
    ] = None,
    vllm_path: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Judge by this vLLM tree's own code (an unpacked or installed vLLM, or a checkout); its version is "
            "the one asked about unless --vllm says another.",
        ),
    ] = None,
) -> None:
    """Check a `vllm serve` command: what vLLM will decide, whether it works, and what fixes it."""
    if batch is not None:
        if launch.command:
            raise InputError("--batch takes its launches from the file; remove the command after it")
        if vllm_path is not None:
            raise InputError("--batch states the version of each launch in the file; remove --vllm-path")
        from dsv4check.batch import run_batch

        raise typer.Exit(run_batch(batch, rules=rules, fail_on=fail_on, strict=strict, online=launch.online))
    request = launch.request("serve-args", vllm_path)
    from dsv4check.api import check_request
    from dsv4check.engine.rule import load_rules

    report = check_request(request, load_rules(rules))
    print_report(report, output)
    raise typer.Exit(exit_code(report, fail_on, strict))
