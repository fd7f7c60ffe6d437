"""``dsv4check weights``: what is in a checkpoint, and what a launch does with each of its tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.cli.launch_options import (
    LaunchOptions,
    Output,
    Rules,
    Threshold,
    command_text,
    refuse_late_options,
    takes_launch,
)
from dsv4check.cli.output import FailOn, Format, print_blocks, reaches
from dsv4check.errors import InputError

if TYPE_CHECKING:
    from dsv4check.checkpoint.locate import Located
    from dsv4check.report.model import Report
    from dsv4check.request import Request
    from dsv4check.weights_report import OwnDraft, WeightsReport


class DraftOption(StrEnum):
    """Which draft to look at."""

    AUTO = "auto"
    MTP = "mtp"
    DSPARK = "dspark"
    NONE = "none"


@takes_launch
def weights(
    launch: LaunchOptions,
    draft: Annotated[
        DraftOption,
        typer.Option(help="The draft to load: auto is the launch's own, else the one in the checkpoint."),
    ] = DraftOption.AUTO,
    rules: Rules = None,
    output: Output = Format.TEXT,
    names: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every tensor's name with what becomes of it, as TSV (- for standard output, instead of the "
            "report).",
        ),
    ] = None,
    fail_on: Threshold = FailOn.ERROR,
) -> None:
    """Say what is in a checkpoint, where each tensor goes, what stays empty, and what each GPU holds."""
    refuse_late_options(launch.command, "weights")
    text, source = command_text(launch.command, "weights")
    from dsv4check.api import check_request
    from dsv4check.engine.rule import load_rules
    from dsv4check.inputs.shell_quoting import quote
    from dsv4check.releases.facts import facts_of
    from dsv4check.weights_report import build_weights_report

    if isinstance(text, str) and source == "command line" and _on_disk(text):
        # A path alone is the model, also with blanks in it.
        text = quote(text)
    request = launch.request_of(text, source)
    request, located = find_checkpoint(request, own_config=launch.model_config is None)
    loaded = load_rules(rules)
    report = check_request(request, loaded)
    facts = facts_of(report.deployment.vllm)
    item = build_weights_report(report, located, facts, loaded, draft.value, find_draft(report))
    if names is not None:
        from dsv4check.report.weights_names import tensor_lines

        _write(tensor_lines(item), names)
    if names != "-":
        _print(item, output)
    raise typer.Exit(exit_code(item, fail_on))


def find_checkpoint(request: Request, *, own_config: bool) -> tuple[Request, Located]:
    """The target's checkpoint, and the request with it where its files were read.

    ``own_config`` is False when config.json is not the model's own. Raises InputError when nothing is known about it.
    """
    from dsv4check.checkpoint.locate import CACHE, HUB, LOCAL, Located, locate_checkpoint
    from dsv4check.checkpoint.published import fill_shapes, published_tensors
    from dsv4check.request import build_deployment

    deployment = build_deployment(request)
    name = deployment.model.name
    if deployment.checkpoint is not None:
        on_disk = request.checkpoint is not None or _on_disk(name)
        located: Located | None = Located(deployment.checkpoint, LOCAL if on_disk else CACHE)
    else:
        located = locate_checkpoint(name, deployment.flags, deployment.env, online=request.online)
    if located is None:
        raise InputError(
            f"{name}: its tensors are not known: there is no checkpoint of it on this machine, and it is not one of "
            "the published ones; give --checkpoint PATH (a folder, an index or a .safetensors file)"
            + ("" if request.online else ", or --online to read its headers from the Hugging Face Hub")
        )
    if located.place in (LOCAL, CACHE, HUB):
        request = replace(request, checkpoint=located.checkpoint)
    published = published_tensors(name) if located.checkpoint.without_shape and own_config else None
    if published is not None:
        located = Located(fill_shapes(located.checkpoint, published), located.place)
    return request, located


def find_draft(report: Report) -> OwnDraft | None:
    """The draft model that ``--speculative-config`` names and its checkpoint; None without one, or an unknown one."""
    from dsv4check.checkpoint.locate import CACHE, LOCAL, Located, locate_checkpoint
    from dsv4check.deployment import ServeFlags
    from dsv4check.inputs.model import load_model

    deployment, draft = report.deployment, report.resolution.draft
    if deployment.draft is not None and deployment.draft_checkpoint is not None:
        place = LOCAL if _on_disk(deployment.draft.name) else CACHE
        return deployment.draft, Located(deployment.draft_checkpoint, place)
    name = draft.config.get("model") if draft is not None else None
    if not isinstance(name, str) or name == deployment.model.name:
        return None
    flags = ServeFlags(model=name)
    try:
        located = locate_checkpoint(name, flags, deployment.env)
        if located is None:
            return None
        return load_model(name, flags=flags, release=report.resolution.release, env=deployment.env), located
    except InputError:
        # Not a DeepSeek-V4 model: another kind of draft, of which nothing is known here.
        return None


def _on_disk(name: str) -> bool:
    return os.path.exists(os.path.expanduser(name))


def exit_code(item: WeightsReport, fail_on: FailOn) -> int:
    """1 when the weights do not fit or a finding reaches ``fail_on``."""
    if fail_on is FailOn.NEVER:
        return OK
    return FINDINGS if item.fails or reaches(item.findings, fail_on) else OK


def _print(item: WeightsReport, output: Format) -> None:
    if output is Format.JSON:
        from dsv4check.report.weights_json import render

        print(render(item))
    else:
        from dsv4check.report.weights_text import weights_blocks

        print_blocks(weights_blocks(item))


def _write(lines: Iterable[tuple[str, ...]], target: str) -> None:
    """Tab-separated lines; whatever would end a cell or a line is escaped. Raises InputError."""
    text = ("\t".join(map(_cell, line)) + "\n" for line in lines)
    if target == "-":
        sys.stdout.writelines(text)
        return
    try:
        with open(target, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.writelines(text)
    except OSError as error:
        raise InputError(f"--names {target}: cannot be written ({error.strerror})") from None


def _cell(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
