"""Text for a terminal, with rich. Imported only when there is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dsv4check.report.bar import Bar, bar_lines
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, printable, report_blocks
from dsv4check.report.model import Report

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {
    "section": "bold",
    "pass": "bold green",
    "warn": "bold yellow",
    "fail": "bold red",
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "dim": "dim",
    "fix": "green",
    "plain": "",
    # Parts of a bar.
    "experts": "black on blue",
    "cut": "black on cyan",
    "whole": "black on bright_blue",
    "draft": "black on magenta",
    "before": "black on yellow",
    "cache": "black on green",
    "after": "black on red",
    "free": "dim",
    "unknown": "dim",
}


def print_report(report: Report, console: Console) -> None:
    """Print the report on ``console``."""
    print_blocks(report_blocks(report), console)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks on ``console``; a blank line before every section."""
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    for number, block in enumerate(map(printable, blocks)):
        match block:
            case Heading(text, style):
                if number:
                    console.print()
                console.print(Text(text, style=_STYLES[style]))
            case Paragraph(text, indent, style, verbatim):
                content = Text(text, style=_STYLES[style], no_wrap=verbatim, overflow="ignore" if verbatim else "fold")
                console.print(Padding(content, (0, 0, 0, indent)), soft_wrap=verbatim)
            case Table(header, rows, prose):
                grid = RichTable(box=None, show_header=bool(header), padding=(0, 1), header_style="bold")
                for index, name in enumerate(header or ("", "")):
                    sentences = prose and index == len(header) - 1
                    numeric = index > 0 and not sentences and any(row[index][:1].isdigit() for row in rows)
                    grid.add_column(
                        name, justify="right" if header and numeric else "left", no_wrap=prose and not sentences
                    )
                for row in rows:
                    grid.add_row(*(Text(cell) for cell in row))
                console.print(Padding(grid, (0, 0, 0, 1)))
            case Bar():
                for line in bar_lines(block, console.width):
                    # Never wrapped: a bar cut in two would be read wrongly.
                    console.print(Text.assemble(*((text, _STYLES[style]) for text, style in line)), soft_wrap=True)
