"""The command line program: commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from dsv4check import __version__
from dsv4check.cli import catalogue, gate, matrix, memory, plan, rehearse, serve_args, synthesize, weights
from dsv4check.cli.exit_codes import INTERNAL, UNUSABLE
from dsv4check.errors import InputError

app = typer.Typer(
    name="dsv4check",
    help="Will this vLLM launch of a DeepSeek-V4 model work, why not, and what fixes it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dsv4check {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version_flag: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Will this vLLM launch of a DeepSeek-V4 model work, why not, and what fixes it."""


_PASS_THROUGH: dict[str, Any] = {"ignore_unknown_options": False, "allow_interspersed_args": False}
app.command("serve-args", context_settings=_PASS_THROUGH)(serve_args.serve_args)
app.command("rehearse", context_settings=_PASS_THROUGH)(rehearse.rehearse)
app.command("memory", context_settings=_PASS_THROUGH)(memory.memory)
app.command("plan", context_settings=_PASS_THROUGH)(plan.plan)
app.command("weights", context_settings=_PASS_THROUGH)(weights.weights)
app.command("gate")(gate.gate)
app.command("synthesize")(synthesize.synthesize)
app.command("explain")(catalogue.explain)
app.command("rules")(catalogue.rules)
app.command("releases")(catalogue.releases)
app.command("matrix")(matrix.matrix)


def main() -> None:
    """Run the program. Exits with 0, 1, 2 or 3 as ``exit_codes`` says; never shows a traceback."""
    # The streams may have an encoding that lacks a character of the user's own command.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        app()
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
