"""``dsv4check rehearse``: run vLLM's own start-up code on a simulated GPU, and compare it with the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4check.cli.exit_codes import FINDINGS, INTERNAL, OK, UNUSABLE
from dsv4check.cli.launch_options import LaunchOptions, Output, Rules, Threshold, takes_launch
from dsv4check.cli.output import FailOn, Format, print_blocks, reaches
from dsv4check.errors import InputError

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.rehearsal.parent import RehearsalSession
    from dsv4check.report.rehearsal import RehearsalReport
    from dsv4check.request import Request


@takes_launch
def rehearse(
    launch: LaunchOptions,
    rules: Rules = None,
    output: Output = Format.TEXT,
    fail_on: Threshold = FailOn.ERROR,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Interpreter or virtual environment with vLLM [default: this one]."),
    ] = None,
    vllm_path: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder with an unpacked vLLM; further folders (FlashInfer) after a colon."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds one stage may take.")] = 120.0,
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rehearse one launch per JSON line of FILE (- for standard input)."),
    ] = None,
    provision: Annotated[
        bool,
        typer.Option("--provision", help="Build an environment with the release's vLLM first, unless there is one."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --provision fetches anything.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="--provision takes what is on this machine only.")] = False,
) -> None:
    """Run vLLM's own start-up code for a launch on a simulated GPU, without weights, and compare it with the rules."""
    from dsv4check.cli.provisioning import choose_environment
    from dsv4check.engine.rule import load_rules
    from dsv4check.inputs.vllm_version import resolve_vllm
    from dsv4check.rehearsal.environment import RehearsalUnavailable
    from dsv4check.rehearsal.launch import NO_CHECKPOINT
    from dsv4check.rehearsal.parent import RehearsalSession

    if provision and (python or vllm_path):
        raise InputError("--provision builds an environment of its own; leave out --python and --vllm-path")
    if offline and launch.online:
        raise InputError("--offline and --online exclude each other")
    if batch is not None and launch.command:
        raise InputError("--batch takes its launches from the file; remove the command after it")
    request = None
    if batch is None:
        # The rehearsal leaves the stage out; for the rules there is no such checkpoint.
        stated = None if launch.checkpoint == NO_CHECKPOINT else launch.checkpoint
        request = replace(launch, checkpoint=stated).request("rehearse")
    loaded = load_rules(rules)
    try:
        version = (request.vllm if request is not None else resolve_vllm(launch.vllm)).version
        environment = choose_environment(version, python, vllm_path, provision=provision, yes=yes, offline=offline)
        with RehearsalSession(environment) as session:
            if request is None:
                assert batch is not None
                raise typer.Exit(_run_batch(batch, session, loaded, timeout, fail_on, launch.online, launch.checkpoint))
            item = rehearse_request(request, session, loaded, timeout, launch.checkpoint)
    except RehearsalUnavailable as unavailable:
        _print_unavailable(str(unavailable), output)
        raise typer.Exit(INTERNAL) from None
    _print(item, output)
    raise typer.Exit(exit_code(item, fail_on))


def rehearse_request(
    request: Request,
    session: RehearsalSession,
    rules: tuple[Rule, ...],
    timeout: float,
    checkpoint: str | None = None,
) -> RehearsalReport:
    """Check a launch statically, rehearse it, and compare.

    Raises InputError for unusable input, RehearsalUnavailable for a GPU that cannot be simulated.
    """
    from dsv4check.api import check_request
    from dsv4check.rehearsal.compare import compare
    from dsv4check.rehearsal.launch import build_launch, draft_model, for_environment
    from dsv4check.report.rehearsal import RehearsalReport

    request = for_environment(request, session.environment.vllm)
    report = check_request(request, rules)
    launch = build_launch(
        request,
        report.deployment,
        draft=draft_model(report.resolution),
        stage_timeout=timeout,
        checkpoint=checkpoint,
    )
    rehearsal = session.rehearse(launch)
    return RehearsalReport(report, rehearsal, compare(report, rehearsal, rules), session.environment.description)


def exit_code(item: RehearsalReport, fail_on: FailOn) -> int:
    """1 when vLLM stopped or a finding that was not overruled reaches ``fail_on``; 3 when nothing can be said."""
    from dsv4check.rehearsal.compare import remaining_findings

    if item.verdict == "unavailable":
        return INTERNAL
    if fail_on is FailOn.NEVER:
        return OK
    if item.verdict == "fail":
        return FINDINGS
    return FINDINGS if reaches(remaining_findings(item.report, item.comparison), fail_on) else OK


def _run_batch(
    source: str,
    session: RehearsalSession,
    rules: tuple[Rule, ...],
    timeout: float,
    fail_on: FailOn,
    online: bool,
    checkpoint: str | None,
) -> int:
    worst, answered = OK, 0
    for reply, code in _replies(source, session, rules, timeout, fail_on, online, checkpoint):
        answered += 1
        worst = max(worst, code)
        print(json.dumps(reply, ensure_ascii=False), flush=True)
    if not answered:
        raise InputError(f"{source}: no launch in it; expected one JSON object a line")
    return worst


def _replies(
    source: str,
    session: RehearsalSession,
    rules: tuple[Rule, ...],
    timeout: float,
    fail_on: FailOn,
    online: bool,
    checkpoint: str | None,
) -> Iterator[tuple[dict[str, Any], int]]:
    """(reply, exit code) of every line, as soon as it is known."""
    from dsv4check.batch import batch_lines, parse_line, refusal, request_from_record
    from dsv4check.rehearsal.environment import RehearsalUnavailable
    from dsv4check.report.rehearsal import rehearsal_to_dict

    for number, line in batch_lines(source):
        place = f"{source}, line {number}"
        identity: Any = None
        try:
            record = parse_line(line, place)
            identity = record.get("id")
            item = rehearse_request(request_from_record(record, place, online), session, rules, timeout, checkpoint)
        except InputError as error:
            yield refusal(identity, error), UNUSABLE
        except RehearsalUnavailable as unavailable:
            yield {"id": identity, "verdict": "unavailable", "unavailable": str(unavailable)}, INTERNAL
        else:
            yield {"id": identity, **rehearsal_to_dict(item)}, exit_code(item, fail_on)


def _print(item: RehearsalReport, output: Format) -> None:
    from dsv4check.report.rehearsal import rehearsal_blocks, rehearsal_to_dict

    if output is Format.JSON:
        print(json.dumps(rehearsal_to_dict(item), indent=2, ensure_ascii=False))
    else:
        print_blocks(rehearsal_blocks(item))


def _print_unavailable(reason: str, output: Format) -> None:
    from dsv4check.report.blocks import Heading, Paragraph

    if output is Format.JSON:
        print(json.dumps({"verdict": "unavailable", "unavailable": reason}, indent=2, ensure_ascii=False))
    else:
        print_blocks((Heading("REHEARSAL UNAVAILABLE", "warn"), Paragraph(reason)))
