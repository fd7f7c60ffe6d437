"""The command line program: commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from dsv4check import __version__
from dsv4check.cli.exit_codes import INTERNAL, UNUSABLE
from dsv4check.errors import InputError

_PASS_THROUGH: Final[dict[str, Any]] = {"ignore_unknown_options": False, "allow_interspersed_args": False}
COMMANDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "serve-args": ("serve_args:serve_args", _PASS_THROUGH),
    "gate": ("gate:gate", {}),
    "triage": ("triage:triage", {}),
    "doctor": ("doctor:doctor", _PASS_THROUGH),
    "rehearse": ("rehearse:rehearse", _PASS_THROUGH),
    "probe": ("probe:probe", _PASS_THROUGH),
    "memory": ("memory:memory", _PASS_THROUGH),
    "plan": ("plan:plan", _PASS_THROUGH),
    "weights": ("weights:weights", _PASS_THROUGH),
    "synthesize": ("synthesize:synthesize", {}),
    "explain": ("catalogue:explain", {}),
    "rules": ("catalogue:rules", {}),
    "releases": ("catalogue:releases", {}),
    "matrix": ("matrix:matrix", {}),
}
"""Name -> module and function below ``dsv4check.cli``, and how the words behind it are read."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dsv4check {__version__}")
        raise typer.Exit


def _root(
    _version_flag: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Will this vLLM launch of a DeepSeek-V4 model work, why not, and what fixes it."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with some of its commands: what is not asked for need not be imported."""
    app = typer.Typer(
        name="dsv4check",
        help="Will this vLLM launch of a DeepSeek-V4 model work, why not, and what fixes it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        place, settings = COMMANDS[name]
        module, _colon, function = place.partition(":")
        command = getattr(import_module(f"dsv4check.cli.{module}"), function)
        app.command(name, context_settings=settings)(command)
    return app


def main() -> None:
    """Run the program. Exits with 0, 1, 2 or 3 as ``exit_codes`` says; never shows a traceback."""
    # The streams may have an encoding that lacks a character of the user's own command.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        make_app([wanted] if wanted in COMMANDS else COMMANDS)()
    except InputError as error:
        print(f"dsv4check: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    except BrokenPipeError:
        # The reader has gone (`| head`): point stdout elsewhere so that the interpreter's own flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(UNUSABLE)
    except Exception as error:
        if os.environ.get("DSV4CHECK_DEBUG"):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        print(
            f"dsv4check: internal error ({text}). Please report it with the command; DSV4CHECK_DEBUG=1 shows where.",
            file=sys.stderr,
        )
        sys.exit(INTERNAL)


if __name__ == "__main__":
    main()
