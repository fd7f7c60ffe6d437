"""Plain text: what a pipe, a file or NO_COLOR gets. Does not import rich."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from dsv4check.report.bar import Bar, bar_lines
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, printable, report_blocks
from dsv4check.report.model import Report


def render(report: Report, width: int = 110) -> str:
    """The report as text of at most ``width`` columns (commands and tables are not wrapped)."""
    return render_blocks(report_blocks(report), width)


def render_blocks(blocks: Iterable[Block], width: int = 110) -> str:
    """Blocks as text; a blank line before every section."""
    lines: list[str] = []
    for block in map(printable, blocks):
        match block:
            case Heading(text, style):
                if lines and style != "plain":
                    lines.append("")
                lines.append(text)
            case Paragraph(text, indent, _style, True):
                lines += [" " * indent + line for line in text.splitlines()]
            case Paragraph(text, indent):
                lines += _wrap(text, indent, width)
            case Table(header, rows, True) if header:
                *columns, prose = zip(header, *rows, strict=True)
                # All columns but the last make one label, beside which the last is wrapped.
                labels = [line[2:] for line in _columns(list(zip(*columns, strict=True)))]
                lines += _table((), tuple(zip(labels, prose, strict=True)), width)
            case Table(header, rows):
                lines += _table(header, rows, width)
            case Bar():
                lines += ["".join(text for text, _style in line).rstrip() for line in bar_lines(block, width)]
    return "\n".join(lines) + "\n"


def _wrap(text: str, indent: int, width: int) -> list[str]:
    pad = " " * indent
    wrapped: list[str] = []
    for line in text.splitlines() or [""]:
        wrapped += textwrap.wrap(
            line,
            width,
            initial_indent=pad,
            subsequent_indent=pad,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [pad.rstrip()]
    return wrapped


def _table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...], width: int) -> list[str]:
    if not header:
        label = max((len(row[0]) for row in rows), default=0)
        lines: list[str] = []
        for name, value in rows:
            first, *rest = _wrap(value, label + 4, width)
            lines.append(f"  {name:<{label}}  {first.strip()}")
            lines += rest
        return lines
    return _columns([header, *rows])


def _columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    """The header and its rows in columns, figures to the right."""
    header, *rows = table
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    left = [column == 0 or not any(row[column][:1].isdigit() for row in rows) for column in range(len(header))]
    return [
        "  "
        + "  ".join(
            f"{cell:<{size}}" if is_left else f"{cell:>{size}}"
            for cell, size, is_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in table
    ]
