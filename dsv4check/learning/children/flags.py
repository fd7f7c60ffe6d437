"""Inside the simulation: the parser of ``vllm serve`` and the dataclasses behind its JSON-valued flags, as data.

Nothing is decided here; ``learning.flags`` makes the flag table from it.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import enum
import importlib
import inspect
import types
import typing
from typing import Any

_BOUNDS = {
    "Ge": ("ge", "ge"),
    "Gt": ("gt", "gt"),
    "Le": ("le", "le"),
    "Lt": ("lt", "lt"),
    "MinLen": ("minlen", "min_length"),
}
"""pydantic's annotation -> (name in the flag tables, its attribute)."""


def main(words: list[str]) -> dict[str, Any]:
    """``flags``, ``classes``, ``enums``, ``kinds`` and ``quant``."""
    classes: dict[str, Any] = {}
    parser = _parser()
    flags = [_action(action, parser, classes) for action in parser._actions]
    enums: dict[str, Any] = {}
    done: dict[str, Any] = {}
    while len(done) < len(classes):
        for name, cls in list(classes.items()):
            if name not in done:
                done[name] = _describe(cls, classes, enums)
    return {"flags": flags, "classes": done, "enums": enums, "kinds": _kinds(), "quant": _quantization(done)}


def _parser() -> Any:
    serve = importlib.import_module("dsv4check_rehearsal.worker.serve_command")
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    return serve.first(serve.PARSER_MODULES, "make_arg_parser")(flexible())


# -- flags ---------------------------------------------------------------------------------------------------


def _action(action: Any, parser: Any, classes: dict[str, Any]) -> dict[str, Any]:
    options = [name for name, item in parser._option_string_actions.items() if item is action]
    negative = getattr(action, "negative_option_strings", None)
    return {
        "dest": action.dest,
        "options": options,
        "shown": list(action.option_strings),
        "action": type(action).__name__,
        "negative": sorted(negative or []),
        "nargs": action.nargs,
        "kind": _kind(action.type, classes),
        "choices": None if action.choices is None else _plain(list(action.choices)),
        "const": _plain(action.const),
        "default": _plain(action.default),
    }


def _kind(convert: Any, classes: dict[str, Any]) -> str | None:
    """What an argparse type does, as a name."""
    if convert is None:
        return None
    if isinstance(convert, type):
        return convert.__name__
    name = str(getattr(convert, "__qualname__", repr(convert)))
    for wrapper, prefix in (("optional_type", "opt:"), ("parse_type", "parse:")):
        if name.startswith(f"{wrapper}."):
            return prefix + str(_kind(inspect.getclosurevars(convert).nonlocals["return_type"], classes))
    if "parse_dataclass" in name:
        cls = inspect.signature(convert).parameters["cls"].default
        classes.setdefault(cls.__name__, cls)
        return f"dc:{cls.__name__}"
    if "<lambda>" in name:
        called = _called(convert.__code__)
        if "lower" in called:
            return "lower"
        return "device_ids" if "isdigit" in called else f"lambda of {', '.join(sorted(called))}"
    return name


def _called(code: types.CodeType) -> set[str]:
    """The names a function uses, those of its comprehensions included."""
    inner = (_called(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _plain(value: Any) -> Any:
    """The value as JSON can say it; None for objects."""
    if value is argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, (int, float, str, bool)) else None


# -- the classes behind JSON-valued flags -----------------------------------------------------------------------


def _describe(cls: Any, classes: dict[str, Any], enums: dict[str, Any]) -> dict[str, Any] | None:
    """Fields, validators and checks of a pydantic dataclass; None for a class of another kind."""
    fields = getattr(cls, "__pydantic_fields__", None)
    if fields is None:
        return None
    decorators = cls.__pydantic_decorators__
    validators = [
        {"name": name, "fields": list(item.info.fields), "mode": item.info.mode, "source": inspect.getsource(item.func)}
        for name, item in decorators.field_validators.items()
    ]
    checks = [inspect.getsource(item.func) for item in decorators.model_validators.values()]
    if hasattr(cls, "__post_init__"):
        checks.append(inspect.getsource(cls.__post_init__))
    return {
        "fields": {name: _field(item, classes, enums) for name, item in fields.items() if item.init is not False},
        "validators": validators,
        "checks": checks,
    }


def _field(field: Any, classes: dict[str, Any], enums: dict[str, Any]) -> dict[str, Any]:
    undefined = importlib.import_module("pydantic_core").PydanticUndefined
    found: dict[str, Any] = {
        "shape": _shape(field.annotation, classes, enums),
        "bounds": {},
        "metadata": [],
        "default": None,
        "required": False,
    }
    for item in field.metadata:
        kind = type(item).__name__
        if kind in _BOUNDS:
            found["bounds"][_BOUNDS[kind][0]] = getattr(item, _BOUNDS[kind][1])
        else:
            found["metadata"].append(kind)
    if field.default is not undefined:
        found["default"] = _plain(field.default)
    elif field.default_factory is not None:
        try:
            found["default"] = _plain(field.default_factory())
        except Exception:
            found["default"] = None  # a factory that needs the rest of the object
    else:
        found["required"] = True
    return found


def _shape(annotation: Any, classes: dict[str, Any], enums: dict[str, Any]) -> Any:
    """A type as the flag tables spell it."""

    def inner(item: Any) -> Any:
        return "..." if item is Ellipsis else _shape(item, classes, enums)

    if annotation is type(None):
        return "none"
    if annotation in (Any, inspect.Parameter.empty):
        return "any"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return inner(arguments[0])
    if origin is typing.Literal:
        return ["lit", *arguments]
    if origin is collections.abc.Callable:
        return "any"
    heads: tuple[tuple[tuple[Any, ...], str], ...] = (
        ((typing.Union, types.UnionType), "u"),
        ((list, collections.abc.Sequence), "l"),
        ((set, frozenset), "s"),
        ((tuple,), "t"),
        ((dict, collections.abc.Mapping), "d"),
    )
    for kinds, head in heads:
        if origin in kinds:
            return [head, *map(inner, arguments)]
    return _class_shape(annotation, classes, enums)


def _class_shape(annotation: Any, classes: dict[str, Any], enums: dict[str, Any]) -> Any:
    if annotation is dict:
        return ["d", "any", "any"]
    if annotation is list:
        return ["l", "any"]
    if not isinstance(annotation, type) or typing.get_origin(annotation) is not None:
        return "any"
    if issubclass(annotation, enum.Enum):
        enums[annotation.__name__] = {
            name: member.value if isinstance(member.value, (int, str)) else None
            for name, member in annotation.__members__.items()
        }
        return f"enum:{annotation.__name__}"
    if dataclasses.is_dataclass(annotation):
        classes.setdefault(annotation.__name__, annotation)
        return f"dc:{annotation.__name__}"
    return annotation.__name__


# -- names that validators compare with ----------------------------------------------------------------------------


def _kinds() -> list[str]:
    """Kinds of KV-cache groups that ``backend_per_kind`` may name; none before 0.22."""
    kind: Any = getattr(importlib.import_module("vllm.v1.kv_cache_interface"), "KVCacheSpecKind", None)
    return [] if kind is None else sorted(item.value for item in kind)


def _quantization(classes: dict[str, Any]) -> dict[str, Any] | None:
    """Names inside ``--quantization-config``; None while the flag's class does not name them (before 0.22)."""
    if "QuantizationConfigArgs" not in classes:
        return None
    module: Any = importlib.import_module("vllm.config.quantization")
    shorthands = module._ONLINE_SHORTHANDS
    covered = {
        name: [kind for kind in ("linear", "moe") if getattr(shorthands[name], kind) is not None]
        for name in sorted(shorthands)
    }
    return {"keys": sorted(module.QUANT_KEY_NAMES), "shorthands": covered}
