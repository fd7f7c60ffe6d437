"""What a launch is checked with: what its file states, then the gate's options, then the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dsv4check.deployment import Hardware, VllmBuild
from dsv4check.errors import InputError
from dsv4check.gate.records import Fact
from dsv4check.gate.settings import Facts
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.vllm_version import resolve_vllm, unstated_vllm
from dsv4check.launchfiles.images import holds_a_release, release_of_image
from dsv4check.launchfiles.records import Launch, Stated
from dsv4check.launchfiles.text import SourceText
from dsv4check.records import dataclass, field

_DEVICES: Final = re.compile(r"[\"']?device=(?P<list>[^\"']+)[\"']?")


@dataclass(slots=True)
class Known:
    """The facts of one launch."""

    vllm: VllmBuild | None
    """None where an image is named of which nobody knows what it holds."""
    hardware: Hardware
    shown: dict[str, Fact] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unknown_image: str = ""


class FactFinder:
    """Puts the facts of a file's launches together.

    ``stated`` are facts that a comment in the file states, ``options`` those of the command line, ``configured`` those
    of the configuration file.
    """

    def __init__(self, source: SourceText, options: Facts, configured: Facts) -> None:
        self._source = source
        self._options = options
        self._configured = configured

    def known(self, launch: Launch, comment: Mapping[str, Stated]) -> Known:
        """The facts of one launch; ``comment`` are those that a comment states for it."""
        known = Known(None, Hardware())
        known.vllm = self._vllm(launch, comment, known)
        known.hardware = self._hardware(launch, comment, known)
        return known

    def _fact(self, name: str, stated: Stated | None, known: Known) -> str | None:
        """A fact by its name: as the file states it, else as an option, else as configured."""
        if stated is not None:
            known.shown[name] = Fact(stated.value, "file", self._source.line_of(stated.span.start))
            return stated.value
        for facts, origin in ((self._options, "option"), (self._configured, "config")):
            value = getattr(facts, name)
            if value is not None:
                known.shown[name] = Fact(str(value), origin)
                return str(value)
        return None

    def _vllm(self, launch: Launch, comment: Mapping[str, Stated], known: Known) -> VllmBuild | None:
        image = launch.image or launch.server.image
        if image is not None:
            known.shown["image"] = Fact(image.value, "file", self._source.line_of(image.span.start))
        stated = comment.get("vllm") or launch.vllm
        if stated is None and image is not None and release_of_image(image.value) is not None:
            stated = image
        text = self._fact("vllm", stated, known)
        if text is not None:
            try:
                build = resolve_vllm(text)
            except InputError as error:
                known.notes.append(str(error))
            else:
                known.shown["vllm"] = Fact(build.version, known.shown["vllm"].source, known.shown["vllm"].line)
                return build
        known.shown.pop("vllm", None)
        if image is not None and text is None and not holds_a_release(image.value) and not is_unset(image.value):
            known.unknown_image = image.value
            return None
        build = unstated_vllm()
        known.shown["vllm"] = Fact(build.version, "assumed")
        return build

    def _hardware(self, launch: Launch, comment: Mapping[str, Stated], known: Known) -> Hardware:
        gpu = self._fact("gpu", comment.get("gpu") or launch.gpu, known)
        gpus = self._count("gpus", comment.get("gpus") or launch.gpus or launch.server.gpus, known)
        nodes = self._count("nodes", comment.get("nodes") or launch.nodes, known)
        said = comment.get("gpu_memory_gib")
        memory = float(said.value) if said is not None else None
        memory = memory or self._options.gpu_memory_gib or self._configured.gpu_memory_gib
        hardware = Hardware(gpus_per_node=gpus, nodes=nodes or 1)
        if gpu is None or not gpu.strip() or is_unset(gpu):
            known.shown.pop("gpu", None)
            return hardware
        try:
            hardware = resolve_gpu(gpu, gpus=gpus, nodes=nodes, memory_gib=memory)
        except InputError as error:
            known.notes.append(f"{error}: answers that depend on the GPU stay open")
            return hardware
        # By its name in the catalogue, however the file spells it.
        known.shown["gpu"] = replace(known.shown["gpu"], value=hardware.name or f"SM {hardware.sm}")
        if "gpus" not in known.shown and hardware.gpus_per_node is not None:
            known.shown["gpus"] = replace(known.shown["gpu"], value=str(hardware.gpus_per_node))
        return hardware

    def _count(self, name: str, stated: Stated | None, known: Known) -> int | None:
        if stated is not None:
            number = _number(stated.value)
            if number is None:
                stated = None
            else:
                stated = Stated(str(number), stated.span)
        text = self._fact(name, stated, known)
        return None if text is None else int(text)


def _number(text: str) -> int | None:
    """How many GPUs ``8``, ``"device=0,1"`` or ``all`` are; None where it is not said."""
    match = _DEVICES.fullmatch(text.strip())
    if is_unset(text):
        return None
    if match:
        return len(match["list"].split(","))
    bare = text.strip().strip("\"'")
    return int(bare) if bare.isdecimal() and 0 < int(bare) <= 4096 else None


def is_unset(text: str) -> bool:
    """True for text with a variable or a template in it."""
    return "$" in text or "{{" in text
