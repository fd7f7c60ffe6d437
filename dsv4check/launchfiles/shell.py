"""Launches in shell text: scripts, SLURM jobs, ``run:`` blocks, the word behind ``bash -c``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from dsv4check.inputs.server_program import assignment
from dsv4check.inputs.shell_commands import Script, Segment, simple_commands
from dsv4check.inputs.shell_values import Value, Word
from dsv4check.inputs.shell_words import Lexer, ShellTextError
from dsv4check.launchfiles.argv import MAX_DEPTH, SHELLS, may_start, program_name, servers_of_argv
from dsv4check.launchfiles.recipe_lines import recipe_kind, recipe_texts, recipe_variables
from dsv4check.launchfiles.records import SHELL, Context, FileWord, Launch, NotUnderstood, Server, Stated
from dsv4check.launchfiles.slurm import job_of
from dsv4check.launchfiles.text import Located, SourceText, Span
from dsv4check.records import dataclass

_SOURCING: Final = frozenset(("source", "."))
_PRINTING: Final = frozenset(("cat", "echo", "printf"))
"""Programs that show what they are given."""
_READERS: Final = frozenset((":", "read", "git", "mail", "python", "python3", "psql", "grep", "true"))
"""Programs for which it is no script of a shell."""
_NO_SCRIPT: Final = (".md", ".txt", ".rst", ".html", ".py", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf")
_MANIFEST: Final = re.compile(r"^(?:apiVersion|services|kind):", re.MULTILINE)
_LONGEST_LINE: Final = 20
_MOST_NOTES: Final = 50


def shell_launches(context: Context) -> list[Launch]:
    """The launches of a file that is a shell script, or whose recipes are shell text."""
    source = context.source
    if recipe_kind(source.path):
        values, env = recipe_variables(source)
        inner = replace(context, variables={**values, **context.variables})
        servers = [server for text in recipe_texts(source) for server in servers_of_shell(text, env, inner)]
        return [Launch("shell", _name(server, context), server, image=server.image) for server in servers]
    servers = servers_of_shell(Located.verbatim(source), {}, context)
    job = job_of(source)
    if job is None:
        return [Launch("shell", _name(server, context), server, image=server.image) for server in servers]
    return [
        Launch(
            "slurm",
            _name(server, context),
            server,
            image=server.image,
            gpu=job.gpu,
            gpus=job.gpus,
            nodes=job.nodes,
        )
        for server in servers
    ]


def _name(server: Server, context: Context) -> str:
    return f"line {context.line(server.place.start)}"


def servers_of_shell(text: Located, env: Mapping[str, Stated], context: Context, *, depth: int = 0) -> list[Server]:
    """The servers that a shell text starts, in every branch, in order.

    ``env`` is what the process gets from its surroundings. A quote that is never closed ends the reading; it is
    added to ``context.problems``, and what was found before it is returned.
    """
    outer = _EFFORT.get()
    effort = outer or _Effort()
    token = _EFFORT.set(effort) if outer is None else None
    try:
        return _servers(text, _script(env, context), env, context, depth, effort)
    finally:
        if token is not None:
            _EFFORT.reset(token)


@dataclass(slots=True)
class _Effort:
    """What is left to be read in one text and in those inside it."""

    characters: int = 300_000
    """Of texts inside the text."""
    servers: int = 500

    def spent(self, context: Context) -> bool:
        """True, and said, once nothing is left."""
        if self.characters > 0 and self.servers > 0:
            return False
        why = "too much shell text inside shell text" if self.servers > 0 else "more than 500 launches"
        context.problems.append(NotUnderstood(0, f"{why}: the rest was not read"))
        return True


_EFFORT: Final[ContextVar[_Effort | None]] = ContextVar("effort", default=None)
"""Text inside text can multiply: what all of it takes is bounded together."""


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


def _servers(
    text: Located, script: Script, env: Mapping[str, Stated], context: Context, depth: int, effort: _Effort
) -> list[Server]:
    if depth > MAX_DEPTH or effort.spent(context):
        return []
    if depth > 0:
        effort.characters -= len(text.text)
    source = context.source
    lexer = Lexer(text.text, source.path, script.variables, offsets=text.offsets, place=source.place)
    found: list[Server] = []
    line: list[Segment] = []
    documents: list[Server] = []
    try:
        for segment in simple_commands(lexer, script):
            # The documents of a line are read behind it.
            documents += _of_documents(lexer, line, context, depth, effort)
            if line and line[-1].ended_by == "\n":
                line = []
            line.append(segment)
            # What starts nothing is of no use later.
            line = line[-_LONGEST_LINE:]
            if not segment.words:
                continue
            servers = _of_segment(segment, script, env, context, depth)
            found += servers
            effort.servers -= len(servers)
            if servers and effort.spent(context):
                break
    except ShellTextError as error:
        context.problems.append(NotUnderstood(error.line, f"{error.reason}; the rest of the text was not read"))
    documents += _of_documents(lexer, line, context, depth, effort)
    # What is not set shows in `open` of the words concerned.
    notes = tuple(note for note in lexer.notes if not note.endswith("kept as written"))
    if notes:
        found = [replace(item, notes=tuple(dict.fromkeys((*item.notes, *notes[:_MOST_NOTES])))) for item in found]
    return [*found, *documents]


def _of_documents(lexer: Lexer, line: list[Segment], context: Context, depth: int, effort: _Effort) -> list[Server]:
    """The servers in here-documents that are scripts: written to a file, or read by a shell."""
    found: list[Server] = []
    for document in lexer.here_documents:
        if "vllm" not in document.text:
            continue
        if _MANIFEST.search(document.text):
            from dsv4check.launchfiles.yaml_launches import yaml_launches

            # `kubectl apply -f - <<EOF`, `cat > compose.yaml <<EOF`
            context.found.extend(yaml_launches(context, Located(document.text, document.offsets))[1])
            continue
        if not is_script(line):
            continue
        problems = len(context.problems)
        text = Located(document.text, document.offsets)
        servers = _servers(text, Script(), {}, context, depth + 1, effort)
        if not _read_by_shell(line) and not document.text.startswith("#!"):
            # It may be text of any kind.
            del context.problems[problems:]
        found += servers
    lexer.here_documents.clear()
    return found


def is_script(line: list[Segment]) -> bool:
    """Whether the here-document of a line of commands can be a script, and is not text for people to read."""
    written = [item for segment in line for item in segment.dropped if item.lstrip("0123456789&").startswith(">")]
    written += [word.text for segment in line for word in segment.words[1:] if segment.words[0].text == "tee"]
    if any(item.lower().endswith(_NO_SCRIPT) for item in written):
        return False
    programs = {program_name(segment.words[0].text) for segment in line if segment.words}
    if programs & _READERS:
        return False
    return bool(written) or not programs <= _PRINTING


def _read_by_shell(line: list[Segment]) -> bool:
    return any(segment.words and program_name(segment.words[0].text) in SHELLS for segment in line)


def _of_segment(
    segment: Segment, script: Script, env: Mapping[str, Stated], context: Context, depth: int
) -> list[Server]:
    words = [_file_word(word) for word in segment.words]
    if words[0].text in _SOURCING and len(words) > 1 and not words[1].open:
        _read_sourced(words[1].text, script, context, depth)
        return []
    at = 0
    process: dict[str, Stated] = {}
    while at < len(words) and (pair := assignment(words[at].text, segment.words[at].plain)):
        start = len(words[at].text) - len(pair[1])
        process[pair[0]] = _stated(Value(pair[1], segment.words[at].offsets[start:]), context, words[at].span)
        at += 1
    if at == len(words) or words[at].text == "serve" or not may_start(words[at].text):
        # `serve` alone is a function of the script, not vLLM's command.
        return []
    process = {**env, **{name: _stated(value, context) for name, value in script.exported.items()}, **process}
    return servers_of_argv(words[at:], process, context, depth=depth + 1)


def _file_word(word: Word) -> FileWord:
    return FileWord(word.text, Span(word.start, word.stop), SHELL, word.open, word.offsets)


def _stated(value: Value, context: Context, otherwise: Span = Span(0, 0)) -> Stated:  # noqa: B008
    if value.offsets and value.offsets[0] >= 0 and value.offsets[-1] >= 0:
        return Stated(value.text, Span(value.offsets[0], value.offsets[-1] + 1))
    return Stated(value.text, otherwise)


def _read_sourced(path: str, script: Script, context: Context, depth: int) -> None:
    """Apply the assignments of a script that is read with ``source``."""
    content = context.neighbour(path.removeprefix("./"))
    if content is None or depth >= MAX_DEPTH:
        return
    lexer = Lexer(content, path, script.variables, offsets=[-1] * (len(content) + 1), place=lambda _at: (1, 1))
    try:
        for _segment in simple_commands(lexer, script):
            pass
    except ShellTextError:
        # That file is looked at by itself.
        return
