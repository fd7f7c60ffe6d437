"""Containers of Podman's Quadlet (``.container`` units), after podman-systemd.unit(5)."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.dockerfile_text import exec_form
from dsv4check.launchfiles.records import Context, Server, Stated
from dsv4check.launchfiles.systemd_text import Setting, UnitWord
from dsv4check.launchfiles.systemd_unit import Unit, environment_file, environment_setting, plain_word, words_of_setting

_GPU_DEVICE: Final = re.compile(r"nvidia\.com/gpu=(.+)|/dev/nvidia(\d+)")


def container_setting(unit: Unit, setting: Setting, context: Context) -> None:
    """A setting of a Quadlet ``.container`` file."""
    value = setting.value
    match setting.name:
        case "Image":
            unit.image = Stated(value.text, value.span())
            unit.head = setting
        case "Exec":
            unit.command = setting if value.text else None
        case "Entrypoint":
            unit.entrypoint = setting if value.text else None
        case "Environment":
            environment_setting(unit, setting, context)
        case "EnvironmentFile":
            environment_file(unit, setting, context)
        case "Volume":
            parts = value.text.split(":")
            if len(parts) > 1:
                unit.mounts[parts[1]] = parts[0]
        case "AddDevice":
            match = _GPU_DEVICE.match(value.text.strip("\"'"))
            if match is not None:
                unit.devices.append(Stated(match.group(1) or match.group(2), value.span()))
        case "PodmanArgs":
            _podman_args(unit, words_of_setting(setting, context))
        case _:
            return


def _podman_args(unit: Unit, words: list[UnitWord]) -> None:
    for index, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        if not equals and index + 1 < len(words):
            text = words[index + 1].text
        if name == "--gpus" and text:
            unit.gpus = Stated(text.strip("\"'"), word.span)
        elif name == "--device" and (match := _GPU_DEVICE.match(text)):
            unit.devices.append(Stated(match.group(1) or match.group(2), word.span))


def servers_of_quadlet(unit: Unit, context: Context) -> list[Server]:
    """The servers that the container starts."""
    gpus = unit.gpus
    if gpus is None and unit.devices:
        names = [device.value for device in unit.devices]
        gpus = Stated("all" if "all" in names else "device=" + ",".join(names), unit.devices[0].span)
    command = [] if unit.entrypoint is None else [plain_word(word) for word in _entrypoint(unit.entrypoint)]
    args = [] if unit.command is None else [plain_word(word) for word in words_of_setting(unit.command, context)]
    place = unit.command or unit.head
    if place is None:
        return []
    return servers_of_container(
        context,
        image=unit.image,
        command=command,
        args=args,
        env=unit.environment(),
        mounts=unit.mounts,
        gpus=gpus,
        place=place.key,
    )


def _entrypoint(setting: Setting) -> list[UnitWord]:
    """``Entrypoint=PROGRAM`` or a JSON list."""
    items = exec_form(setting.value)
    if items is not None:
        return [UnitWord(item.text, tuple(item.offsets), item.span) for item in items]
    value = setting.value
    return [UnitWord(value.text, tuple(value.offsets[:-1]), value.span())]
