"""``dsv4check plan``: the smallest deployment that serves a context and a concurrency, as a checked command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.cli.launch_options import (
    CheckpointPath,
    Env,
    Gpu,
    GpuMemory,
    Gpus,
    LaunchOptions,
    ModelConfig,
    Online,
    Output,
    Packages,
    Rules,
    Vllm,
    command_text,
    refuse_late_options,
)
from dsv4check.cli.output import Format, print_blocks
from dsv4check.errors import InputError

if TYPE_CHECKING:
    from dsv4check.planning.records import Plan

_EXPECTED: Final = "`dsv4check plan --gpu H200 --context 131072 --concurrency 32 MODEL`"
_OWN_OPTIONS: Final = frozenset({"--context", "--concurrency", "--max-nodes", "--draft-tokens"})


def plan(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [[--] FLAGS...]", help="The model; further vllm serve flags are kept as they are."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a request, prompt and answer together. Required.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests of that length at once. Required.")] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    max_nodes: Annotated[int, typer.Option(help="Most nodes to spread over.")] = 2,
    gpu_memory_gib: GpuMemory = None,
    vllm: Vllm = None,
    draft: Annotated[str, typer.Option(help="Speculative decoding: none, mtp or dspark.")] = "none",
    draft_tokens: Annotated[
        int | None, typer.Option(help="Tokens the draft proposes [default: what the checkpoint was made for].")
    ] = None,
    model_config: ModelConfig = None,
    checkpoint: CheckpointPath = None,
    package: Packages = None,
    env: Env = None,
    online: Online = False,
    rules: Rules = None,
    output: Output = Format.TEXT,
) -> None:
    """Find the fewest GPUs that serve a context and a concurrency, and print the command, checked."""
    refuse_late_options(command, "plan", _OWN_OPTIONS)
    if not command:
        raise InputError(f"no model given: expected {_EXPECTED}")
    if context is None or concurrency is None:
        raise InputError(f"{'--context' if context is None else '--concurrency'} is missing: expected {_EXPECTED}")
    text, source = command_text(command, "plan")
    if isinstance(text, list) and "--" in text:
        text = [word for number, word in enumerate(text) if number != text.index("--")]
    options = LaunchOptions(
        gpu=gpu,
        gpus=gpus,
        gpu_memory_gib=gpu_memory_gib,
        vllm=vllm,
        model_config=model_config,
        checkpoint=checkpoint,
        package=package,
        env=env,
        online=online,
    )
    request = options.request_of(text, source)
    from dsv4check.engine.rule import load_rules
    from dsv4check.planning.question import Wanted
    from dsv4check.planning.search import plan_deployment

    wanted = Wanted(context, concurrency, max_nodes, draft, draft_tokens)
    found = plan_deployment(request, wanted, load_rules(rules))
    _print(found, output)
    raise typer.Exit(OK if found.best is not None else FINDINGS)


def _print(found: Plan, output: Format) -> None:
    if output is Format.JSON:
        from dsv4check.report.plan_json import render

        print(render(found))
    else:
        from dsv4check.report.plan_text import plan_blocks

        print_blocks(plan_blocks(found))
