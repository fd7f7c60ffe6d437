"""Launches in shell text: scripts, SLURM jobs, ``run:`` blocks, the word behind ``bash -c``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dsv4check.inputs.server_program import assignment
from dsv4check.inputs.shell_commands import Script, Segment, simple_commands
from dsv4check.inputs.shell_values import Value, Word
from dsv4check.inputs.shell_words import Lexer, ShellTextError
from dsv4check.launchfiles.argv import MAX_DEPTH, servers_of_argv
from dsv4check.launchfiles.records import SHELL, Context, FileWord, Launch, NotUnderstood, Server, Stated
from dsv4check.launchfiles.text import Located, SourceText, Span

_SOURCING: Final = frozenset(("source", "."))


def shell_launches(context: Context) -> list[Launch]:
    """The launches of a file that is a shell script."""
    servers = servers_of_shell(Located.verbatim(context.source), {}, context)
    return [Launch("shell", f"line {context.line(server.place.start)}", server) for server in servers]


def servers_of_shell(text: Located, env: Mapping[str, Stated], context: Context, *, depth: int = 0) -> list[Server]:
    """The servers that a shell text starts, in every branch, in order.

    ``env`` is what the process gets from its surroundings. A quote that is never closed ends the reading; it is
    added to ``context.problems``, and what was found before it is returned.
    """
    script = _script(env, context)
    return _servers(text, script, env, context, depth)


def _script(env: Mapping[str, Stated], context: Context) -> Script:
    script = Script()
    for name, outside in context.variables.items():
        script.variables.values[name] = Value(outside)
    for name, stated in env.items():
        value = Value(stated.value, _offsets(context.source, stated))
        script.variables.values[name] = value
        script.exported[name] = value
    return script


def _offsets(source: SourceText, stated: Stated) -> tuple[int, ...]:
    """Where the characters of a value stand: one by one where the file spells it so, else all at its start."""
    start, length = stated.span.start, len(stated.value)
    for at in (start, start + 1):
        # With or without an opening quote.
        if source.text[at : at + length] == stated.value:
            return tuple(range(at, at + length))
    return (start,) * length


def _servers(text: Located, script: Script, env: Mapping[str, Stated], context: Context, depth: int) -> list[Server]:
    if depth > MAX_DEPTH:
        return []
    source = context.source
    lexer = Lexer(text.text, source.path, script.variables, offsets=text.offsets, place=source.place)
    found: list[Server] = []
    try:
        for segment in simple_commands(lexer, script):
            if segment.words:
                found += _of_segment(segment, script, env, context, depth)
    except ShellTextError as error:
        context.problems.append(NotUnderstood(error.line, f"{error.reason}; the rest of the text was not read"))
    # What is not set shows in `open` of the words concerned.
    notes = tuple(note for note in lexer.notes if not note.endswith("kept as written"))
    found = [replace(server, notes=tuple(dict.fromkeys((*server.notes, *notes)))) for server in found]
    for start, stop in lexer.documents:
        document = text.part(start, stop)
        if "vllm" in document.text:
            found += _servers(document, script, env, context, depth + 1)
    return found


def _of_segment(
    segment: Segment, script: Script, env: Mapping[str, Stated], context: Context, depth: int
) -> list[Server]:
    words = [_file_word(word) for word in segment.words]
    if words[0].text in _SOURCING and len(words) > 1:
        _read_sourced(words[1].text, script, context, depth)
        return []
    process = {**env, **{name: _stated(value, context) for name, value in script.exported.items()}}
    at = 0
    while at < len(words) and (pair := assignment(words[at].text, segment.words[at].plain)):
        start = len(words[at].text) - len(pair[1])
        process[pair[0]] = _stated(Value(pair[1], segment.words[at].offsets[start:]), context, words[at].span)
        at += 1
    return servers_of_argv(words[at:], process, context, depth=depth + 1)


def _file_word(word: Word) -> FileWord:
    return FileWord(word.text, Span(word.start, word.stop), SHELL, word.open, word.offsets)


def _stated(value: Value, context: Context, otherwise: Span = Span(0, 0)) -> Stated:  # noqa: B008
    if value.offsets and value.offsets[0] >= 0 and value.offsets[-1] >= 0:
        return Stated(value.text, Span(value.offsets[0], value.offsets[-1] + 1))
    return Stated(value.text, otherwise)


def _read_sourced(path: str, script: Script, context: Context, depth: int) -> None:
    """Apply the assignments of a script that is read with ``source``."""
    content = context.neighbour(path)
    if content is None or depth >= MAX_DEPTH:
        return
    lexer = Lexer(content, path, script.variables, offsets=[-1] * (len(content) + 1), place=lambda _at: (1, 1))
    try:
        for _segment in simple_commands(lexer, script):
            pass
    except ShellTextError:
        # That file is looked at by itself.
        return
