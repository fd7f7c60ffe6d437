"""The environment a rehearsal runs in: named, found here, built before, or built now after asking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from dsv4check.errors import InputError

if TYPE_CHECKING:
    from dsv4check.rehearsal.environment import Environment


def choose_environment(
    version: str, python: str | None, vllm_path: str | None, *, provision: bool, yes: bool, offline: bool
) -> Environment:
    """The environment for a release.

    Raises InputError for unusable options, RehearsalUnavailable when there is none.
    """
    from dsv4check.rehearsal.environment import RehearsalUnavailable, find_environment
    from dsv4check.rehearsal.provision import provision as build
    from dsv4check.rehearsal.provision import provisioned

    if provision:
        with _progress() as (report, pause):

            def confirm(question: str) -> bool:
                pause()
                return _always(question) if yes else _ask(question)

            return build(version, offline=offline, confirm=confirm, report=report)
    try:
        return find_environment(python, vllm_path)
    except RehearsalUnavailable:
        built = provisioned(version) if python is None and vllm_path is None else None
        if built is None:
            raise
        return built


def _always(question: str) -> bool:
    print(question, file=sys.stderr)
    return True


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise InputError("--provision asks before it fetches anything, and there is no terminal to ask on: add --yes")
    print(question, file=sys.stderr)
    return typer.confirm("Build it?", err=True)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """How to report and how to pause that for a question.

    Steps go to stderr; what is fetched for a step follows it (on a terminal, in one line that changes).
    """
    if not sys.stderr.isatty():
        yield _plain, lambda: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.status import Status

    console = Console(stderr=True, highlight=False, markup=False)
    status: Status = console.status("")

    def report(text: str) -> None:
        if text.startswith(" "):
            status.update(escape(text.strip()))
        else:
            status.update("")
            console.print(text)
        status.start()

    try:
        yield report, status.stop
    finally:
        status.stop()


def _plain(text: str) -> None:
    if not text.startswith(" ") or text.endswith("MB)"):
        print(text, file=sys.stderr, flush=True)
