"""``--config FILE.yaml``: vLLM's own configuration file, turned into command line words as vLLM does it.

From ``load_config_file`` in vllm/utils/argparse_utils.py: a true value becomes the bare flag, a false one is
dropped (see :func:`config_file_args`), lists become several words, mappings JSON, anything else its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dsv4check.errors import InputError
from dsv4check.inputs.flags.arguments import Arg
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.flag_table import FlagTable

MAX_BYTES: Final = 1 << 20
MAX_NODES: Final = 50_000
"""Values after aliases are followed: a few nested aliases can stand for billions."""


class NotAtHandError(FileNotFoundError):
    """The file lies where nobody here can look: in a container, or on another machine."""


def config_file_args(
    path: str, origin: Origin, table: FlagTable, *, entrypoint: str, read_file: Callable[[str], str]
) -> tuple[list[Arg], list[Problem]]:
    """The words vLLM reads from a ``--config`` file, each with its line, and what goes wrong there.

    A false value is dropped under ``vllm serve`` in every release: the outer parser that loads the file does
    not know the negative forms. Under ``python -m ...api_server`` it becomes ``--no-KEY`` from 0.28.0 on.

    Raises:
        InputError: The file is larger than 1 MiB, or its aliases stand for too many values.
    """
    extension = path.split(".")[-1]
    if extension not in ("yaml", "yml"):
        error = f"Config file must be of a yaml/yml type. {extension} supplied"
        return [], [_problem("yaml-extension", "ValueError", error, {"path": path}, origin)]
    try:
        text = read_file(path)
    except NotAtHandError:
        return [], [_problem("yaml-not-read", "", "", {"path": path, "values": {"--config": path}}, origin)]
    except (FileNotFoundError, NotADirectoryError):
        error = f"[Errno 2] No such file or directory: {path!r}"
        here = Path(path).parent.is_dir()
        code, exception = ("yaml-not-found", "FileNotFoundError") if here else ("yaml-not-read", "")
        data = {"path": path, "values": {"--config": path}}
        return [], [_problem(code, exception, error if here else "", data, origin)]
    except (OSError, UnicodeDecodeError) as error:
        return [], [_invalid(path, error, origin)]
    return _args_of(text, path, origin, table, entrypoint)


def _problem(code: str, exception: str, error: str, data: dict[str, Any], origin: Origin) -> Problem:
    return Problem(code, Stage.ARGPARSE, exception, error, {"flag": "--config", **data}, origin)


def _python_complaint(text: str, path: str) -> str:
    """The error as PyYAML's own loader words it, which is the one vLLM uses."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        loader.name = path
        loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        return str(error)
    return ""


def _invalid(path: str, error: Exception, origin: Origin) -> Problem:
    data = {"path": path, "reason": str(error).split("\n")[0]}
    return _problem("yaml-invalid", type(error).__name__, str(error), data, origin)


def _args_of(
    text: str, path: str, origin: Origin, table: FlagTable, entrypoint: str
) -> tuple[list[Arg], list[Problem]]:
    import yaml

    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes; expected the flags of one launch")
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        node = loader.get_single_node()
        if node is not None:
            _count(node, path, {}, set())
        config = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; expected a mapping of flags to values") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Origin("yaml", path, mark.line + 1, mark.column + 1) if mark is not None else origin
        data = {"path": path, "reason": str(getattr(error, "problem", None) or error).split("\n")[0]}
        return [], [_problem("yaml-invalid", type(error).__name__, _python_complaint(text, path), data, where)]
    except (ValueError, TypeError, OverflowError) as error:
        # PyYAML reads dates and numbers by rules of its own and fails on impossible ones.
        return [], [_invalid(path, error, origin)]
    if node is None or not isinstance(config, dict):
        kind = type(config).__name__
        error_text = f"'{kind}' object has no attribute 'items'"
        data = {"path": path, "found": "nothing" if config is None else f"a {kind}"}
        return [], [_problem("yaml-no-mapping", "AttributeError", error_text, data, origin)]
    places = {}
    for key_node, value_node in node.value:
        places[str(key_node.value)] = Origin(
            "yaml", path, value_node.start_mark.line + 1, key_node.start_mark.column + 1
        )
    return _words(config, places, path, table, entrypoint)


def _count(node: Any, path: str, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Values a node stands for once aliases are followed."""
    if id(node) in open_nodes:
        raise InputError(f"{path}: an alias contains itself; expected a mapping of flags to values")
    if id(node) not in sizes:
        open_nodes.add(id(node))
        size = 1
        if isinstance(node.value, list):
            for item in node.value:
                for part in item if isinstance(item, tuple) else (item,):
                    size += _count(part, path, sizes, open_nodes)
        open_nodes.discard(id(node))
        sizes[id(node)] = size
    if sizes[id(node)] > MAX_NODES:
        raise InputError(f"{path}: more than {MAX_NODES} values; expected the flags of one launch")
    return sizes[id(node)]


def _words(
    config: dict[Any, Any], places: dict[str, Origin], path: str, table: FlagTable, entrypoint: str
) -> tuple[list[Arg], list[Problem]]:
    args: list[Arg] = []
    problems: list[Problem] = []
    finds_negative = entrypoint != "serve" and _knows_negative_forms(table)
    for key, value in config.items():
        where = places.get(str(key), Origin("yaml", path))
        if not isinstance(key, str):
            error = f'can only concatenate str (not "{type(key).__name__}") to str'
            problems.append(_problem("yaml-invalid", "TypeError", error, {"path": path, "reason": error}, where))
            return [], problems
        flag = f"--{key}"
        if isinstance(value, bool):
            if value:
                args.append(Arg(flag, (-1, -1), where))
            elif finds_negative and f"--no-{key}" in table.by_option:
                args.append(Arg(f"--no-{key}", (-1, -1), where))
            else:
                problems.extend(_dropped_false(key, where, table))
            continue
        words = _value_words(value)
        if words is None:
            error = "Object of this type is not JSON serializable"
            problems.append(_problem("yaml-invalid", "TypeError", error, {"path": path, "reason": error}, where))
            return [], problems
        if words or not isinstance(value, list):
            args.append(Arg(flag, (-1, -1), where))
            args.extend(Arg(word, (-1, -1), where) for word in words)
    return args, problems


def _value_words(value: Any) -> list[str] | None:
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, dict):
        try:
            return [json.dumps(value)]
        except (TypeError, ValueError):
            return None
    return [str(value)]


def _knows_negative_forms(table: FlagTable) -> bool:
    from packaging.version import Version

    return Version(table.release) >= Version("0.28.0")


def _dropped_false(key: str, where: Origin, table: FlagTable) -> list[Problem]:
    """A false value that is dropped matters only where the flag is on, or decided by vLLM, without it."""
    spec = table.by_option.get(f"--{key.replace('_', '-')}")
    if spec is None or spec.takes_value:
        return []
    switches_off = f"--{key.replace('_', '-')}" not in spec.negative
    if switches_off and spec.default is False:
        return []
    negative = next((option for option in sorted(spec.negative) if option.startswith("--no-")), "")
    data = {
        "flag": spec.flag,
        "dest": spec.dest,
        "key": key,
        "bare": negative,
        "yaml": negative.removeprefix("--"),
    }
    return [Problem("yaml-false-ignored", Stage.ARGPARSE, "", "", data, where)]
