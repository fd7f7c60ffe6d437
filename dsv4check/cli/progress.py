"""A progress bar on standard error, for people who watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_FEW: Final = 200
_SHOWN_BYTES: Final = 16 << 20


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how much is done; shows nothing for little work or without a terminal."""
    if total < _FEW or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Without a thread of its own: processes are forked while the bar is shown.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(what, total=total)

        def show(done: int) -> None:
            progress.update(task, completed=done)
            progress.refresh()

        yield show


@contextmanager
def bytes_read() -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many bytes were read; shows nothing below some MB or without a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    shown = 0

    def show(done: int) -> None:
        nonlocal shown
        if done - shown >= _SHOWN_BYTES:
            shown = done
            sys.stderr.write(f"\r{done >> 20} MiB read")
            sys.stderr.flush()

    yield show
    if shown:
        sys.stderr.write("\r" + " " * 40 + "\r")


@contextmanager
def passing_words() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that says what is being done now, in one line that goes away; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    longest = 0

    def show(words: str) -> None:
        nonlocal longest
        longest = max(longest, len(words))
        sys.stderr.write(f"\r{words:<{longest}}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r" + " " * longest + "\r")
        sys.stderr.flush()
