"""Errors that are meant for the person at the keyboard."""

from __future__ import annotations


class InputError(Exception):
    """The input cannot be used: a file is missing, a value makes no sense, a name is unknown.

    The message is one line that names the source (file, flag, line), the place in it and what was
    expected there. The CLI prints it and exits with 2; the batch mode puts it into ``input_error``.
    """

    def __init__(self, message: str) -> None:
        # The message quotes the input, which may hold anything: control characters must neither break the line
        # nor reach a terminal.
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in message))
