"""``dsv4check serve-args``: check one launch command, or a batch of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsv4check.cli.output import FailOn, Format, exit_code, print_report
from dsv4check.errors import InputError


def serve_args(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND...",
            help="The launch as you would type it: vllm serve MODEL FLAGS... (with or without the program, "
            "with NAME=VALUE in front, as one quoted string, or - to read it from standard input).",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU name (H200, RTX-PRO-6000, ...) or sm90 / 9.0.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs on each node.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes.")] = None,
    gpu_memory_gib: Annotated[
        float | None,
        typer.Option(min=1, help="Memory of one GPU in GiB, where it differs from the catalogue."),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(help="vLLM release or build, e.g. 0.24.0 [default: the installed one, else the newest]."),
    ] = None,
    model_config: Annotated[
        str | None,
        typer.Option(help="config.json, or a directory with one, to use instead of the model's own."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VERSION", help="Version of a package beside vLLM; repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Environment variable of the server; repeatable."),
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="Folder with further rules.")] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
    fail_on: Annotated[FailOn, typer.Option(help="Lowest severity that exits with 1.")] = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 when an answer stayed open.")] = False,
    online: Annotated[bool, typer.Option("--online", help="May fetch config.json from the Hugging Face hub.")] = False,
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
    words = list(command or ())
    if words and words[0] == "--":
        words = words[1:]
    if not words:
        raise InputError("no command given: expected `dsv4check serve-args [options] -- vllm serve MODEL FLAGS...`")
    from dsv4check.api import check_request, read_request
    from dsv4check.engine.rule import load_rules

    text: str | list[str] = words
    source = "command line"
    if words == ["-"]:
        text, source = sys.stdin.read(), "standard input"
    elif len(words) == 1:
        text = words[0]
    request = read_request(
        text,
        source=source,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        vllm=vllm,
        model_config=model_config,
        env=_assignments(env or []),
        packages=package or (),
        online=online,
    )
    report = check_request(request, load_rules(rules))
    print_report(report, output)
    raise typer.Exit(exit_code(report, fail_on, strict))


def _assignments(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.replace("_", "").isalnum() or name[0].isdigit():
            raise InputError(f"--env {item!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs
