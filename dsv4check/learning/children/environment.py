"""Inside the simulation: what ``vllm.envs`` knows, which values its readers take, and which are read early.

Words: the path of a DeepSeek-V4 config.json, then the words of a launch after the model.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORKER = "dsv4check_rehearsal.worker"
_JUNK = "x!"
"""No number, and no choice of any variable."""


def main(words: list[str]) -> dict[str, Any]:
    """``known``, ``int``, ``float``, ``choices`` and ``early``."""
    path, *arguments = words
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    table = importlib.import_module("vllm.envs").environment_variables
    found: dict[str, Any] = {"known": sorted(table), "int": [], "float": [], "choices": {}}
    found["flashinfer"] = importlib.util.find_spec("flashinfer") is not None
    for name, read in table.items():
        said = _refusal(name, read)
        if said.startswith("invalid literal for int()"):
            found["int"].append(name)
        elif said.startswith("could not convert string to float"):
            found["float"].append(name)
        elif said.startswith("Invalid value"):
            choices = _choices(read)
            if choices is not None:
                found["choices"][name] = choices
    typed = {*found["int"], *found["float"], *found["choices"]}
    with tempfile.TemporaryDirectory() as folder:
        stages = importlib.import_module(f"{_WORKER}.stages")
        model = stages.write_model(Path(folder), "deepseek-ai/DeepSeek-V4-Flash", config)
        found["early"] = _early(typed, [str(model), *arguments])
    return found


def _refusal(name: str, read: Callable[[], Any]) -> str:
    """What a variable's reader says about a value that means nothing; empty when it takes it."""
    before = os.environ.get(name)
    os.environ[name] = _JUNK
    try:
        read()
    except Exception as error:
        return str(error)
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    return ""


def _choices(read: Callable[[], Any]) -> dict[str, Any] | None:
    """The values of ``env_with_choices``; None for a reader of another make (lists of choices)."""
    if "env_with_choices" not in getattr(read, "__qualname__", ""):
        return None
    inside = inspect.getclosurevars(read).nonlocals
    values = inside["choices"]
    return {"exact": bool(inside["case_sensitive"]), "values": list(values() if callable(values) else values)}


def _early(typed: set[str], words: list[str]) -> list[str]:
    """The variables whose bad value ends a launch before the engine config exists.

    Every module is imported beforehand: what is read once, while a module is imported, does not count, so that the
    answer does not hang on the order of imports.
    """
    plain = _forked(lambda: _launch(words, spying=False))
    if plain["error"]:
        raise RuntimeError(f"the plain launch fails: {plain['error']}")
    for name in plain["modules"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    _forget()
    read = _forked(lambda: _launch(words, spying=True))["read"]
    early = []
    for name in sorted(typed & set(read)):
        os.environ[name] = _JUNK
        if _forked(lambda: _launch(words, spying=False))["error"]:
            early.append(name)
        del os.environ[name]
    return early


def _forget() -> None:
    """Clear what vLLM's memoised functions answered while modules were imported."""
    gc.collect()
    for item in gc.get_objects():
        if type(item) is functools._lru_cache_wrapper and str(getattr(item, "__module__", "")).startswith("vllm"):
            item.cache_clear()


def _launch(words: list[str], spying: bool) -> dict[str, Any]:
    """Parse a launch and create its engine config: the variables it asked for, what it imported, how it failed."""
    command = importlib.import_module(f"{_WORKER}.serve_command").Command
    read: set[str] = set()
    before = set(sys.modules)
    if spying:
        _spy(read)
    error = ""
    try:
        launch = command("serve", words)
        launch.parse()
        launch.engine_config()
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"
    modules = [name for name in sys.modules if name.startswith("vllm.") and name not in before]
    return {"read": sorted(read), "modules": modules, "error": error}


def _spy(read: set[str]) -> None:
    """Note every name that is looked up in the environment."""
    kind: Any = type(os.environ)
    get, contains = kind.__getitem__, kind.__contains__

    def spying_get(self: Any, key: Any) -> Any:
        read.add(str(key))
        return get(self, key)

    def spying_contains(self: Any, key: Any) -> Any:
        read.add(str(key))
        return contains(self, key)

    kind.__getitem__, kind.__contains__ = spying_get, spying_contains


def _forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Answer of ``work`` in a process of its own, so that nothing it imports or caches stays."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        answer = work()
        with os.fdopen(writing, "w") as stream:
            json.dump(answer, stream)
        sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(process, 0)
    answer = json.loads(text) if text else {"error": "the process ended without an answer"}
    return dict(answer)
