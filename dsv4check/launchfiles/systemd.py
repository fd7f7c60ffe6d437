"""Launches in unit files of systemd: services with their drop-ins, and containers of Podman's Quadlet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dsv4check.launchfiles.argv import servers_of_argv
from dsv4check.launchfiles.records import SHELL, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.systemd_quadlet import container_setting, servers_of_quadlet
from dsv4check.launchfiles.systemd_text import Setting, UnitWord, settings
from dsv4check.launchfiles.systemd_unit import Unit, environment_file, environment_setting, plain_word, words_of_setting
from dsv4check.launchfiles.text import Span

_VARIABLE: Final = re.compile(r"\$(?:\$|\{([^{}]*)\})")
_LONGEST: Final = 1 << 16
"""Characters that variables may add to a word."""
_WHOLE: Final = re.compile(r"\$([A-Za-z_]\w*)")


def systemd_launches(context: Context) -> list[Launch]:
    """The launches of a unit file."""
    unit = Unit()
    for setting in settings(context.source):
        if setting.section == "Service":
            _service(unit, setting, context)
        elif setting.section == "Container":
            container_setting(unit, setting, context)
    name = context.source.path.rsplit("/", 1)[-1]
    launches = []
    for command in unit.commands:
        found = _servers_of_command(command, unit.environment(), context)
        launches += [_launch(f"unit {name} {command.name}", server, command) for server in found]
    if unit.head is not None:
        found = servers_of_quadlet(unit, context)
        launches += [_launch(f"unit {name} Exec", server, unit.command or unit.head) for server in found]
    return launches


def _launch(name: str, server: Server, setting: Setting) -> Launch:
    return Launch("systemd", name, server, heads=(setting.key,), image=server.image)


def _service(unit: Unit, setting: Setting, context: Context) -> None:
    match setting.name:
        case "ExecStart":
            if setting.value.text:
                unit.commands.append(setting)
            else:
                unit.commands.clear()
        case "Environment":
            environment_setting(unit, setting, context)
        case "EnvironmentFile":
            environment_file(unit, setting, context)
        case "UnsetEnvironment":
            unit.unset |= {word.text for word in words_of_setting(setting, context)}
        case _:
            return


def _servers_of_command(setting: Setting, env: Mapping[str, Stated], context: Context) -> list[Server]:
    found: list[Server] = []
    words = words_of_setting(setting, context)
    while words:
        # `;` as a word of its own separates commands.
        stop = next((index for index, word in enumerate(words) if word.text == ";"), len(words))
        command, words = words[:stop], words[stop + 1 :]
        found += servers_of_argv(_argv(command, env, context), env, context)
    return found


def _argv(words: list[UnitWord], env: Mapping[str, Stated], context: Context) -> list[FileWord]:
    """The words that the process gets: prefixes taken off the program, variables replaced."""
    if not words:
        return []
    program = words[0]
    bare = program.text.lstrip("@-:+!|")
    prefix = program.text[: len(program.text) - len(bare)]
    first = UnitWord(bare, program.offsets[len(prefix) :], program.span, program.open)
    behind = words[2:] if "@" in prefix else words[1:]
    if ":" in prefix:
        return [plain_word(word) for word in (first, *behind)]
    return [plain_word(first), *(done for word in behind for done in _expanded(word, env, context))]


def _value(name: str, env: Mapping[str, Stated], context: Context) -> tuple[str, list[int]] | None:
    """A variable's value, and where its characters stand; the list is empty where that is not in the file."""
    stated = env.get(name)
    if stated is None:
        outside = context.variables.get(name)
        return None if outside is None else (outside, [])
    start, length = stated.span.start, len(stated.value)
    if context.source.text[start : start + length] == stated.value:
        return stated.value, list(range(start, start + length))
    return stated.value, [start] * length


def _expanded(word: UnitWord, env: Mapping[str, Stated], context: Context) -> list[FileWord]:
    """A word with its variables replaced; ``$NAME`` on its own gives as many words as its value has.

    A variable that is not set would be replaced by nothing; a drop-in or a file that is not at hand may set it,
    so it stays as it is written.
    """
    whole = _WHOLE.fullmatch(word.text)
    if whole is not None:
        found = _value(whole.group(1), env, context)
        if found is None:
            return [FileWord(word.text, word.span, SHELL, (word.text,), word.offsets)]
        value, places = found
        return [_of_value(item.group(), places[item.start() : item.end()], word) for item in re.finditer(r"\S+", value)]
    characters: list[str] = []
    offsets: list[int] = []
    unknown = list(word.open)
    at = 0
    for match in _VARIABLE.finditer(word.text):
        characters.append(word.text[at : match.start()])
        offsets += word.offsets[at : match.start()]
        at = match.end()
        if match.group(1) is None:
            characters.append("$")
            offsets.append(word.offsets[match.start()])
            continue
        found = _value(match.group(1), env, context)
        if found is None or len(offsets) + len(found[0]) > max(_LONGEST, len(word.text)):
            characters.append(match.group())
            offsets += word.offsets[match.start() : at]
            unknown.append(match.group())
            continue
        value, places = found
        if match.group() == word.text:
            return [_of_value(value, places, word)]
        characters.append(value)
        alone = not (word.text[: match.start()].strip() and word.text[match.start() - 1].strip()) and (
            not word.text[at : at + 1].strip()
        )
        offsets += places if alone and places else _in_place(value, word.offsets[match.start()], word.offsets[at - 1])
    characters.append(word.text[at:])
    offsets += word.offsets[at:]
    return [FileWord("".join(characters), word.span, SHELL, tuple(dict.fromkeys(unknown)), tuple(offsets))]


def _of_value(text: str, places: list[int], word: UnitWord) -> FileWord:
    """A word that is nothing but a variable's value: it stands where the value is set."""
    if not places:
        return FileWord(text, word.span, SHELL, (), (word.span.start,) * len(text))
    return FileWord(text, Span(places[0], places[-1] + 1), SHELL, (), tuple(places))


def _in_place(value: str, first: int, last: int) -> list[int]:
    """A value that stands for the expansion it replaces."""
    return [*([first] * (len(value) - 1)), last] if value else []
