"""``dsv4check probe``: a tiny real cache of a launch, allocated as vLLM does it, through the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsv4check.cli.exit_codes import FINDINGS, INTERNAL, OK
from dsv4check.cli.launch_options import LaunchOptions, Output, Rules, assignments, command_text, takes_launch
from dsv4check.cli.output import Format, print_blocks

if TYPE_CHECKING:
    from dsv4check.probe.node import ProbeResult


@takes_launch
def probe(
    launch: LaunchOptions,
    rules: Rules = None,
    output: Output = Format.TEXT,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Interpreter or virtual environment with vLLM or PyTorch [default: this]."),
    ] = None,
    vllm_path: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder with an unpacked vLLM; further folders (FlashInfer) after a colon."),
    ] = None,
    all_gpus: Annotated[bool, typer.Option("--all-gpus", help="Probe every visible GPU, all at once.")] = False,
    allow_no_gpu: Annotated[
        bool, typer.Option("--allow-no-gpu", help="Exit with 0 when all went well but no kernel was run.")
    ] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Stay off the GPU: everything up to the kernel, on the CPU.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for all checks of a device together, imports left out.")
    ] = 15.0,
) -> None:
    """Allocate a few blocks of this launch's caches as vLLM does it, and compare the kernel with a reference."""
    from dsv4check.probe.node import ProbeRequest, probe_node

    text, source = command_text(launch.command, "probe")
    question = ProbeRequest(
        launch=launch_arguments(launch, text, source),
        python=python,
        vllm_path=vllm_path,
        all_gpus=all_gpus,
        device="cpu" if cpu else "auto",
        check_seconds=timeout,
        rules=None if rules is None else str(rules),
    )
    result = probe_node(question)
    _print(result, output)
    raise typer.Exit(exit_code(result, allow_no_gpu))


def launch_arguments(launch: LaunchOptions, text: str | list[str], source: str) -> dict[str, object]:
    """The launch as plain data: keyword arguments of ``dsv4check.api.read_request``."""
    return {
        "command": text,
        "source": source,
        "gpu": launch.gpu,
        "gpus": launch.gpus,
        "nodes": launch.nodes,
        "gpu_memory_gib": launch.gpu_memory_gib,
        "vllm": launch.vllm,
        "model_config": launch.model_config,
        "checkpoint": launch.checkpoint,
        "env": assignments(launch.env or []),
        "packages": list(launch.package or ()),
        "online": launch.online,
    }


def exit_code(result: ProbeResult, allow_no_gpu: bool) -> int:
    """0 when the kernel's numbers agree; 3 when there is nothing to probe with; else 1, unless that is allowed."""
    from dsv4check.probe.records import Verdict

    match result.verdict:
        case Verdict.PASS:
            return OK
        case Verdict.UNAVAILABLE:
            return INTERNAL
        case Verdict.NO_GPU if allow_no_gpu:
            return OK
        case _:
            return FINDINGS


def _print(result: ProbeResult, output: Format) -> None:
    from dsv4check.probe.report import probe_blocks, render

    if output is Format.JSON:
        print(render(result))
    else:
        print_blocks(probe_blocks(result))
