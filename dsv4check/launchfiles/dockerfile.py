"""Launches in Dockerfiles: what each stage's entry point and command start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dsv4check.launchfiles.argv import SHELLS, program_name
from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.dockerfile_text import Instruction, exec_form, expanded, instructions
from dsv4check.launchfiles.records import DERIVED, ITEM, SHELL, Context, FileWord, Launch, NotUnderstood, Server, Stated
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.text import Located, Span
from dsv4check.records import dataclass, field

_AS: Final = re.compile(r"(\S+)(?:\s+[Aa][Ss]\s+(\S+))?\s*\Z")
_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'\\]|[\"'])*)\s*", re.DOTALL)
_OLD_PAIR: Final = re.compile(r"([A-Za-z_]\w*)\s+(.*)\Z", re.DOTALL)
_SERVER: Final = re.compile(r"vllm[\"',\s]+serve|api_server|dynamo\.vllm")
_VLLM_VERSION: Final = re.compile(r"(?<![\w.-])vllm(?:\[[\w,-]*\])?==([\w.${}:+-]+)")
_UNEXPANDED: Final = re.compile(r"\$(?:[A-Za-z_]\w*|\{[^{}]*\})")


@dataclass(slots=True)
class _Stage:
    """What a stage's instructions have said so far."""

    name: str
    image: Stated
    head: Span
    env: dict[str, Stated] = field(default_factory=dict)
    args: dict[str, Stated] = field(default_factory=dict)
    entrypoint: list[FileWord] | None = None
    command: list[FileWord] | None = None
    shell_entrypoint: bool = False
    own_command: bool = False
    scripts: dict[str, Located] = field(default_factory=dict)
    """Scripts written with ``COPY <<EOF``: path in the image -> content."""
    runs: list[Located] = field(default_factory=list)
    vllm: Stated | None = None
    places: tuple[Span, ...] = ()

    def known(self) -> dict[str, Stated]:
        """What an instruction of the stage can refer to."""
        return {**self.args, **self.env}


def dockerfile_launches(context: Context) -> list[Launch]:
    """The launches of a Dockerfile, one for each stage that starts a server."""
    stages = _stages(context)
    launches = []
    for index, stage in enumerate(stages):
        last = index == len(stages) - 1
        if last or (stage.own_command and not any(_keeps(later, stage) for later in stages[index + 1 :])):
            launches += [_launch(stage, server) for server in _servers(stage, context)]
        for text in stage.runs:
            launches += [_launch(stage, server) for server in servers_of_shell(text, stage.known(), context)]
    return launches


def _keeps(later: _Stage, stage: _Stage) -> bool:
    """True for a stage that starts what an earlier one has stated: that one is a base, not started itself."""
    return (stage.command is not None and later.command is stage.command) or (
        stage.entrypoint is not None and later.entrypoint is stage.entrypoint
    )


def _launch(stage: _Stage, server: Server) -> Launch:
    return Launch(
        "dockerfile",
        f"stage {stage.name}",
        server,
        heads=(*stage.places, stage.head),
        image=server.image or stage.image,
        vllm=stage.vllm,
    )


def _stages(context: Context) -> list[_Stage]:
    stages: list[_Stage] = []
    before: dict[str, Stated] = {}
    for instruction in instructions(context.source):
        if instruction.keyword == "FROM":
            stages.append(_stage(instruction, stages, before))
        elif not stages:
            if instruction.keyword == "ARG":
                before.update(_arguments(instruction, before, before, context))
        else:
            _apply(stages[-1], instruction, before, context)
    return stages


def _stage(instruction: Instruction, stages: Sequence[_Stage], before: Mapping[str, Stated]) -> _Stage:
    match = _AS.match(instruction.text.text)
    stop = match.end(1) if match is not None else len(instruction.text.text)
    reference = instruction.text.part(0, stop)
    name = (match.group(2) if match is not None else None) or str(len(stages))
    base = expanded(reference, before)
    head = instruction.text.span()
    image = base.only or Stated(base.text, reference.span())
    for earlier in reversed(stages):
        if earlier.name.lower() == base.text.lower():
            return replace(
                earlier,
                name=name,
                head=head,
                env=dict(earlier.env),
                args={},
                scripts=dict(earlier.scripts),
                own_command=False,
                runs=[],
            )
    return _Stage(name, image, head)


def _arguments(
    instruction: Instruction, before: Mapping[str, Stated], known: Mapping[str, Stated], context: Context
) -> Iterator[tuple[str, Stated]]:
    """``ARG NAME``, ``ARG NAME=default``."""
    for name, value in _pairs(instruction.text, known):
        yield name, value
    for bare in re.finditer(r"(?<!\S)([A-Za-z_]\w*)(?!\S)", instruction.text.text):
        name = bare.group(1)
        if name in before:
            yield name, before[name]
        elif name in context.variables:
            yield name, Stated(context.variables[name], instruction.text.span(bare.start(), bare.end()))


def _pairs(text: Located, known: Mapping[str, Stated]) -> Iterator[tuple[str, Stated]]:
    """``NAME=value`` pairs; variables refer to what was known before the instruction."""
    at = 0
    while at < len(text.text):
        match = _PAIR.match(text.text, at)
        if match is None:
            at = _behind_word(text.text, at)
            continue
        yield match.group(1), _value(text.part(match.start(2), match.end(2)), known, text.span(*match.span(1)))
        at = match.end()


def _behind_word(text: str, at: int) -> int:
    match = re.compile(r"\S*\s*").match(text, at)
    return max(match.end() if match else at, at + 1)


def _value(raw: Located, known: Mapping[str, Stated], otherwise: Span) -> Stated:
    result = expanded(raw, known)
    span = raw.span() if raw.text else otherwise
    return Stated(result.text, result.only.span if result.only is not None else span)


def _apply(stage: _Stage, instruction: Instruction, before: Mapping[str, Stated], context: Context) -> None:
    text = instruction.text
    match instruction.keyword:
        case "ARG":
            stage.args.update(_arguments(instruction, before, stage.known(), context))
        case "ENV":
            old = _OLD_PAIR.match(text.text)
            if old is not None:
                raw = text.part(old.start(2), old.end(2))
                stage.env[old.group(1)] = _value(raw, stage.known(), text.span(*old.span(1)))
            else:
                stage.env.update(_pairs(text, stage.known()))
        case "ENTRYPOINT":
            stage.entrypoint, stage.shell_entrypoint = _command(text, context)
            stage.command = stage.command if stage.own_command else None
            stage.own_command = True
            stage.places = (text.span(),)
        case "CMD":
            stage.command, _shell = _command(text, context)
            stage.own_command = True
            stage.places = (text.span(),)
        case "COPY" | "ADD":
            target = text.text.split()[-1:]
            for name, content in instruction.documents:
                path = target[0] if target else ""
                stage.scripts[path + name if path.endswith("/") else path] = content
        case "RUN":
            _run(stage, instruction)
        case _:
            return


def _command(text: Located, context: Context) -> tuple[list[FileWord], bool]:
    """The words of CMD or ENTRYPOINT; True where it is in shell form."""
    words = exec_form(text)
    if words is not None:
        return words, False
    if text.text.startswith("[") and "vllm" in text.text:
        why = "not a JSON list of double-quoted strings, so Docker runs it as shell text; expected the JSON form"
        context.problems.append(NotUnderstood(context.line(text.span().start), why))
    span = text.span()
    script = FileWord(text.text, span, SHELL, (), tuple(text.offsets[:-1]))
    return [FileWord("/bin/sh", span), FileWord("-c", span), script] if text.text else [], True


def _run(stage: _Stage, instruction: Instruction) -> None:
    text = instruction.text
    match = _VLLM_VERSION.search(text.text)
    if match is not None:
        result = expanded(text.part(match.start(1), match.end(1)), stage.known())
        if not result.open:
            place = result.only.span if result.only is not None else text.span(match.start(1), match.end(1))
            stage.vllm = Stated(result.text, place)
    for part in (text, *(content for _name, content in instruction.documents)):
        if _SERVER.search(part.text):
            words = exec_form(part)
            stage.runs.append(part if words is None else _as_shell(words))


def _as_shell(words: Sequence[FileWord]) -> Located:
    """The words of a JSON form as shell text."""
    characters: list[str] = []
    offsets: list[int] = []
    for word in words:
        quoted = "'" + word.text.replace("'", "'\\''") + "' "
        characters.append(quoted)
        offsets += [word.span.start] * len(quoted)
    return Located("".join(characters), [*offsets, words[-1].span.stop if words else 0])


def _servers(stage: _Stage, context: Context) -> list[Server]:
    entrypoint = stage.entrypoint or []
    command = [] if stage.shell_entrypoint and entrypoint else stage.command or []
    words = (*entrypoint, *command)
    if not words:
        return []
    script = _script(words, stage.scripts)
    if script is not None:
        found = servers_of_shell(script, stage.env, context)
        return [replace(server, image=server.image or stage.image) for server in found]
    servers = servers_of_container(
        context, image=stage.image, command=entrypoint, args=command, env=stage.env, place=words[0].span
    )
    literal = dict.fromkeys(
        name
        for server in servers
        for word in server.words
        if word.slot == ITEM and not word.open
        for name in _UNEXPANDED.findall(word.text)
    )
    if not literal or words[0].slot == DERIVED:
        return servers
    note = f"no shell replaces {', '.join(literal)} in the JSON form of CMD and ENTRYPOINT: vLLM gets it as written"
    return [replace(server, notes=(*server.notes, note)) for server in servers]


def _script(words: Sequence[FileWord], scripts: Mapping[str, Located]) -> Located | None:
    """The script that the command runs, where the Dockerfile holds it."""
    for word in words[:4]:
        path = word.text if word.text in scripts else "/" + word.text.removeprefix("./")
        if path in scripts:
            return scripts[path]
        if program_name(word.text) not in SHELLS and not word.text.startswith("-"):
            return None
    return None
