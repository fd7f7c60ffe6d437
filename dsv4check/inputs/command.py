"""Launch commands as people write them, taken apart into program, environment and words.

Accepted: a list of words, one quoted string, or shell text with line continuations, comments, exports,
wrappers (``exec``, ``nohup``, ``numactl`` ...) and whatever stands behind the command (``| tee log``).
Nothing is executed and no file is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dsv4check.deployment import Command, Token
from dsv4check.errors import InputError
from dsv4check.inputs.server_program import (
    looks_like_arguments,
    place_of_environment,
    split_program,
)
from dsv4check.inputs.shell_commands import Script, Segment, simple_commands
from dsv4check.inputs.shell_quoting import quote
from dsv4check.inputs.shell_values import Word
from dsv4check.inputs.shell_words import Lexer
from dsv4check.problems import Origin

MAX_TEXT: Final = 1 << 20
"""Characters of a command; longer input is not a command but a file given by mistake."""

_PASTED: Final = {
    "\u201c": "curly double quotes",
    "\u201d": "curly double quotes",
    "\u2018": "curly single quotes",
    "\u2019": "curly single quotes",
    "\u2013": "long dashes",
    "\u2014": "long dashes",
    "\u2212": "minus signs",
}
_SPECIAL: Final = re.compile("[" + "".join(_PASTED) + "]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read_command(words: Sequence[str] | str, *, source: str = "command line") -> Command:
    """Take a launch command apart.

    Args:
        words: The words as a shell delivers them, or text to split as a shell would. A list of one word
            that holds blanks is such a text.
        source: What the input is called in messages and places, e.g. ``standard input`` or a file name.

    Raises:
        InputError: The input is empty, binary, too large, has an unclosed quote or no vLLM server in it.
    """
    if isinstance(words, str):
        return _read_text(words, source)
    listed = [str(word) for word in words]
    if len(listed) == 1 and len(listed[0].split()) > 1 and not listed[0].lstrip().startswith("{"):
        return _read_text(listed[0], source)
    _refuse_unusable(listed, source)
    kind = _kind(source)
    tokens = tuple(Token(word, Origin(kind, word)) for word in listed)
    env: dict[str, str] = {}
    notes = [note for word in listed for note in _pasted_characters(word, None)]
    program, rest, entrypoint = split_program(tokens, env)
    if not program and not looks_like_arguments(rest):
        raise InputError(_not_a_launch(source, rest[0].text if rest else ""))
    notes.extend(_ignored_model(rest, entrypoint))
    return Command(program, rest, env, entrypoint, tuple(dict.fromkeys(notes)))


def _ignored_model(rest: tuple[Token, ...], entrypoint: str) -> list[str]:
    """The API server module takes its model from ``--model`` alone and starts a default one without it."""
    if entrypoint != "api_server" or not rest or rest[0].text.startswith("-"):
        return []
    return [f"{rest[0].text}: the api_server module does not read a positional model, only --model"]


def _read_text(text: str, source: str, *, document: bool = False, first_line: int = 1) -> Command:
    """Read shell text; ``document`` says that it stood in a here-document, where no further ones are looked into."""
    # Editors on Windows put a byte order mark in front.
    text = text.removeprefix("\ufeff")
    _refuse_unusable([text], source)
    script = Script()
    lexer = Lexer(text, source, script.variables, first_line=first_line)
    found: list[tuple[Command, Segment]] = []
    others: list[Segment] = []
    first_plain: Segment | None = None
    kind = _kind(source)
    for segment in simple_commands(lexer, script):
        if not segment.words:
            continue
        tokens = tuple(Token(word.text, Origin(kind, word.text, word.line, word.column)) for word in segment.words)
        env = {name: value.text for name, value in script.exported.items()}
        program, rest, entrypoint = split_program(tokens, env, [word.plain for word in segment.words])
        if program:
            found.append((Command(program, rest, env, entrypoint), segment))
            continue
        if first_plain is None and rest and looks_like_arguments(rest):
            first_plain = segment
            found_plain = Command((), rest, env, "serve")
        others.append(segment)
    if found:
        command, chosen = found[0]
    elif first_plain is not None:
        command, chosen = found_plain, first_plain
    else:
        written = None if document else _launch_in_documents(text, lexer, source)
        if written is None:
            raise InputError(_not_a_launch(source, others[0].words[0].text if others else ""))
        return written
    notes = [
        *_pasted_characters(text, first_line),
        *lexer.notes,
        *_ignored_model(command.tokens, command.entrypoint),
    ]
    if len(found) > 1:
        notes.append(f"{len(found)} launches in this text: only the first was read")
    notes.extend(f"left out: {text}" for text in chosen.dropped)
    if chosen.ended_by not in ("", "\n", ";"):
        following = " ".join(word.text for word in _after(chosen, others))
        notes.append(f"left out: {chosen.ended_by} {following}".rstrip())
    else:
        # Behind a whole launch another command is nothing to speak of, a lost flag is.
        following = " ".join(word.text for word in _after(chosen, others))
        if following and (not found or following.startswith("-")):
            notes.append(f"left out, as a shell would end the command before it: {following}")
    return Command(command.program, command.tokens, command.env, command.entrypoint, tuple(dict.fromkeys(notes)))


def _launch_in_documents(text: str, lexer: Lexer, source: str) -> Command | None:
    """The launch in a script that the text only writes or feeds to a shell (``cat > run.sh <<EOF``)."""
    for start, stop in lexer.documents:
        try:
            command = _read_text(text[start:stop], source, document=True, first_line=lexer.place(start)[0])
        except InputError:
            continue
        if command.program:
            return command
    return None


def _after(chosen: Segment, others: list[Segment]) -> list[Word]:
    """The words of the command that follows the chosen one in the text."""
    if not chosen.words:
        return []
    place = (chosen.words[-1].line, chosen.words[-1].column)
    later = [segment for segment in others if (segment.words[0].line, segment.words[0].column) > place]
    return later[0].words if later else []


def _not_a_launch(source: str, first: str) -> str:
    expected = "expected `vllm serve MODEL ...`, `python -m vllm.entrypoints.openai.api_server ...` or only flags"
    if not first:
        return f"{source}: no command in it; {expected}"
    shown = first if len(first) <= 40 else first[:37] + "..."
    return f"{source}: {shown!r} starts no vLLM server; {expected}"


def _kind(source: str) -> str:
    if source == "command line":
        return "flag"
    return "stdin" if source in ("standard input", "stdin", "-") else "file"


def _refuse_unusable(texts: list[str], source: str) -> None:
    if sum(map(len, texts)) > MAX_TEXT:
        raise InputError(f"{source}: longer than {MAX_TEXT} characters; expected one launch command")
    for text in texts:
        if (found := _CONTROL.search(text)) is not None:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(f"{source}, line {line}: control character {found.group()!r}; expected plain text")
    if not any(text.strip() for text in texts):
        raise InputError(f"{source}: no command in it; expected `vllm serve MODEL ...`")


def _pasted_characters(text: str, first_line: int | None) -> list[str]:
    """Notes on characters that look like quotes or dashes and are none to a shell; None for a word without lines."""
    notes = []
    for match in _SPECIAL.finditer(text):
        place = ""
        if first_line is not None:
            place = f"line {text.count(chr(10), 0, match.start()) + first_line}: "
        notes.append(
            f"{place}{_PASTED[match.group()]} ({match.group()}) pasted from formatted text: a shell takes them"
            " as ordinary characters"
        )
    return notes


def format_command(command: Command, *, width: int = 100) -> str:
    """The whole command, ready to paste: environment in front, words quoted for a shell.

    A command longer than ``width`` characters gets one flag per line. Reading the text again gives the same
    words and environment. Without a program ``vllm serve`` is printed.
    """
    program = command.program or ("vllm", "serve")
    at = place_of_environment(program)
    assignments = [f"{name}={quote(value) if value else ''}" for name, value in command.env.items()]
    groups = [[*map(quote, program[:at]), *assignments, *map(quote, program[at:])]]
    for token in command.tokens:
        starts_flag = token.text.startswith("-") and not _NUMBER.fullmatch(token.text)
        if starts_flag:
            groups.append([_quote_flag(token.text)])
        else:
            groups[-1].append(quote(token.text))
    lines = [" ".join(group) for group in groups]
    joined = " ".join(lines)
    if len(joined) <= width:
        return joined
    return " \\\n  ".join(lines)


_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
_PLAIN_FLAG: Final = re.compile(r"(-[A-Za-z0-9_.+-]*=)(.*)", re.DOTALL)


def _quote_flag(text: str) -> str:
    """``--flag='{...}'`` rather than ``'--flag={...}'``."""
    match = _PLAIN_FLAG.fullmatch(text)
    return match.group(1) + (quote(match.group(2)) if match.group(2) else "") if match else quote(text)
