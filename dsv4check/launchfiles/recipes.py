"""Recipes in the manner of vllm-project/recipes: a model's arguments, and what strategies and hardware add to them.

How many GPUs there are is chosen when a command is made of a recipe; until then it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import yaml

from dsv4check.launchfiles.records import DERIVED, VALUE, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.settings_nodes import environment, flag, implied
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.text import Span
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of

MAX_LAUNCHES: Final = 64
"""Of one recipe: variants, strategies and kinds of hardware multiply."""
# Of any language: the closing mark of one block looks like the opening one of a block without a language.
_FENCE: Final = re.compile(r"^[ \t]*```([^`\n]*)\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_SHELLS: Final = frozenset(("", "bash", "sh", "shell", "console"))
_GPUS: Final = "{gpu_count}"
_ROLES: Final = ("prefill", "decode")


def recipe_launches(document: Document, context: Context) -> list[Launch] | None:
    """The commands that a recipe stands for, and those of its guide."""
    root = document.root
    model = get(root, "model")
    if text_of(get(model, "model_id")) is None or (get(model, "base_args") is None and get(root, "variants") is None):
        return None
    found = list(islice(_Recipe(document).launches(), MAX_LAUNCHES))
    guide = get(root, "guide")
    if guide is not None:
        text = document.located(guide)
        for fence in _FENCE.finditer(text.text):
            if fence[1].strip().lower() not in _SHELLS:
                continue
            for server in servers_of_shell(text.part(*fence.span(2)), {}, context):
                name = f"guide line {context.line(server.place.start)}"
                found.append(Launch("recipe", name, server, image=server.image))
    return found


class _Recipe:
    def __init__(self, document: Document) -> None:
        self._document = document
        root = document.root
        self._model = get(root, "model")
        self._hardware = get(root, "hardware_overrides")
        self._overrides = get(root, "strategy_overrides")
        default = get(root, "default_strategy")
        self._default = text_of(default) or ""
        self._default_span = None if default is None else document.span(default)

    def launches(self) -> Iterator[Launch]:
        strategies = dict.fromkeys([self._default, *(key.value for key, _value in pairs(self._overrides))])
        variants: list[tuple[str, yaml.Node | None]] = [
            (key.value, value) for key, value in pairs(get(self._document.root, "variants"))
        ]
        for variant, settings in variants or [("", None)]:
            for strategy in strategies:
                node = get(self._overrides, strategy)
                roles = [role for role in _ROLES if get(node, role) is not None]
                for role in roles:
                    yield self._launch(variant, settings, strategy, "", role)
                if roles:
                    continue
                kinds = [key.value for key, _value in pairs(self._hardware)]
                kinds += [key.value for key, _value in pairs(get(node, "hardware_overrides"))]
                for hardware in dict.fromkeys(kinds) or [""]:
                    yield self._launch(variant, settings, strategy, hardware, "")

    def _launch(self, variant: str, settings: yaml.Node | None, strategy: str, hardware: str, role: str) -> Launch:
        document, override = self._document, get(self._overrides, strategy)
        part = get(override, role) if role else override
        model = document.word(get(settings, "model_id"), VALUE) or document.word(get(self._model, "model_id"), VALUE)
        words = [] if model is None else [model]
        words += document.words(get(self._model, "base_args"))
        words += self._features(hardware)
        words += self._strategy(strategy, part)
        # What a strategy says about a kind of hardware stands in for what the recipe says about it.
        special = get(override, "hardware_overrides", hardware) or get(self._hardware, hardware)
        lists = [
            get(settings, "extra_args"),
            get(part, "extra_args"),
            get(part, "vllm_args"),
            get(special, "extra_args"),
        ]
        for node in lists:
            words += document.words(node)
        env = environment(
            document,
            get(self._model, "base_env"),
            get(settings, "extra_env"),
            get(override, "env"),
            get(override, "extra_env"),
            get(part, "env"),
            get(special, "extra_env"),
        )
        place = Span(0, 0) if model is None else model.span
        named = key_of(self._hardware, hardware) or key_of(get(override, "hardware_overrides"), hardware)
        gpu = None if named is None or not re.search(r"\d", hardware) else Stated(hardware, document.span(named))
        image = self._image(hardware)
        name = " ".join(item for item in (variant, strategy, role, hardware) if item)
        server = Server(("vllm", "serve"), tuple(words), place, env=env, image=image)
        return Launch(
            "recipe", name or "recipe", server, image=image, gpu=gpu, nodes=document.stated(get(part, "nodes"))
        )

    def _features(self, hardware: str) -> Iterator[FileWord]:
        """The features that are on unless they are chosen."""
        root = self._document.root
        chosen = {text_of(item) for item in items(get(root, "opt_in_features"))}
        for key, feature in pairs(get(root, "features")):
            if key.value not in chosen:
                special = get(feature, "hardware_overrides", hardware, "args")
                yield from self._document.words(special if special is not None else get(feature, "args"))

    def _strategy(self, strategy: str, part: yaml.Node | None) -> Iterator[FileWord]:
        """What the name of a strategy implies; the number of GPUs is that of the hardware."""
        kind = (text_of(get(part, "parallelism")) or strategy).rpartition("_")[2]
        key = key_of(self._overrides, strategy)
        place = self._default_span if key is None else self._document.span(key)
        if place is None or kind not in ("tp", "tep", "dep"):
            return
        tensor = key_of(part, "tp")
        word = self._document.word(get(part, "tp"), VALUE)
        if kind == "dep":
            yield implied("--data-parallel-size", place)
            yield FileWord(_GPUS, place, DERIVED, (_GPUS,))
        elif tensor is not None and word is not None:
            yield flag(self._document, "--tensor-parallel-size", tensor)
            yield word
        else:
            yield implied("--tensor-parallel-size", place)
            yield FileWord(_GPUS, place, DERIVED, (_GPUS,))
        if kind != "tp":
            yield implied("--enable-expert-parallel", place)

    def _image(self, hardware: str) -> Stated | None:
        node = get(self._model, "docker_image")
        if isinstance(node, yaml.MappingNode):
            node = get(node, hardware) or (None if hardware == "amd" else get(node, "nvidia"))
        return self._document.stated(node)
