"""``dsv4check probe``: a tiny real cache of a launch, allocated as vLLM does it, through the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsv4check.cli.exit_codes import FINDINGS, INTERNAL, OK
from dsv4check.cli.launch_options import LaunchOptions, Output, Rules, command_text, takes_launch
from dsv4check.cli.output import Format, print_blocks
from dsv4check.errors import InputError

if TYPE_CHECKING:
    from dsv4check.probe.node import ProbeResult
    from dsv4check.probe.records import Verdict


_OWN_CLUSTER: Final = "auto"
"""Ray's word for the cluster that this machine is part of."""


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
    ray: Annotated[
        bool, typer.Option("--ray", help="Doctor and probe on every node of the running Ray cluster, compared.")
    ] = False,
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the cluster is [default: the one this machine is part of].")
    ] = _OWN_CLUSTER,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for all checks of a device together, imports left out.")
    ] = 15.0,
) -> None:
    """Allocate a few blocks of this launch's caches as vLLM does it, and compare the kernel with a reference."""
    if ray_address != _OWN_CLUSTER and not ray:
        raise InputError(f"--ray-address {ray_address}: goes with --ray, which probes the nodes of a cluster")
    text, source = command_text(launch.command, "probe")
    if ray:
        own = ["--timeout", str(timeout), *(["--cpu"] if cpu else [])]
        raise typer.Exit(
            _run_cluster(launch.words(text), _places(python, vllm_path, rules), own, ray_address, output, allow_no_gpu)
        )
    from dsv4check.probe.node import ProbeRequest, probe_node

    question = ProbeRequest(
        launch={"command": text, "source": source, **launch.arguments()},
        python=python,
        vllm_path=vllm_path,
        all_gpus=all_gpus,
        device="cpu" if cpu else "auto",
        check_seconds=timeout,
        rules=None if rules is None else str(rules),
    )
    result = probe_node(question)
    _print(result, output)
    raise typer.Exit(exit_code(result.verdict, allow_no_gpu))


def _places(python: str | None, vllm_path: str | None, rules: Rules) -> list[str]:
    """Options that ``doctor`` and ``probe`` share: paths, which every node must have."""
    pairs = (("--python", python), ("--vllm-path", vllm_path), ("--rules", rules))
    return [word for name, value in pairs if value is not None for word in (name, str(value))]


def _run_cluster(
    launch: list[str], shared: list[str], own: list[str], address: str, output: Format, allow_no_gpu: bool
) -> int:
    """Ask the cluster, print what it says, and give the exit code."""
    import json

    from dsv4check.cli.progress import passing_words
    from dsv4check.probe.cluster import ClusterResult, probe_cluster
    from dsv4check.probe.nodes import RayUnavailable

    try:
        with passing_words() as say:
            result = probe_cluster(
                [*shared, *launch], [*shared, *own, *launch], address=address, report=say or (lambda _text: None)
            )
    except RayUnavailable as unavailable:
        result = ClusterResult((), (), unavailable=str(unavailable))
    if output is Format.JSON:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        from dsv4check.report.cluster_text import cluster_blocks

        print_blocks(cluster_blocks(result))
    return exit_code(result.verdict, allow_no_gpu)


def exit_code(verdict: Verdict, allow_no_gpu: bool) -> int:
    """0 when the kernel's numbers agree; 3 when there is nothing to probe with; else 1, unless that is allowed."""
    from dsv4check.probe.records import Verdict

    match verdict:
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
