"""What changed from one release to the next, in words for a maintainer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .repository import Learned

_LONGEST: Final = 160
"""A value is cut after this many characters."""
_ENV: Final = "env"
_PINS: Final = "pins"
_FLAG_WORDS: Final[Mapping[str, str]] = {
    "o": "spellings",
    "s": "shown as",
    "a": "action",
    "n": "number of values",
    "k": "type",
    "c": "choices",
    "df": "default",
    "neg": "negative spellings",
    "cv": "value when given bare",
}
_FOLLOWS_SPELLINGS: Final = frozenset({"s", "neg"})
_FIELD_WORDS: Final[Mapping[str, str]] = {
    "t": "type",
    "df": "default",
    "req": "required",
    "b": "step before the type check",
    "nn": "takes null",
}


def describe(old: Learned, new: Learned) -> list[str]:
    """One line for every difference; empty when there is none."""
    return [*_sections(old.sections, new.sections), *_flag_table(old.flags, new.flags)]


def _sections(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new:
            yield f"{name}: section gone"
        elif name not in old:
            yield f"{name}: new section"
        elif name == _ENV:
            yield from _environment(old[name], new[name])
        elif name == _PINS:
            yield from _pins(old[name], new[name])
        else:
            yield from _values(name, old[name], new[name])


def _environment(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = (set(str(section.get("known", "")).split()) for section in (old, new))
    yield from (f"VLLM_{name}: new variable" for name in sorted(after - before))
    yield from (f"VLLM_{name}: variable gone" for name in sorted(before - after))
    for key in sorted({*old, *new} - {"known"}):
        first, second = old.get(key), new.get(key)
        if isinstance(first, str) and isinstance(second, str):
            yield from _values(f"{_ENV}.{key}", first.split(), second.split())
        else:
            yield from _values(f"{_ENV}.{key}", first, second)


def _pins(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in ("packages", "extras"):
        before, after = old.get(key, {}), new.get(key, {})
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield f"{_PINS}: {name} {before.get(name, 'not pinned')} -> {after.get(name, 'not pinned')}"
    rest = [{key: value for key, value in side.items() if key not in ("packages", "extras")} for side in (old, new)]
    yield from _values(_PINS, *rest)


def _values(path: str, old: Any, new: Any) -> Iterator[str]:
    """Differences of nested values, each with its dotted path."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}, key=str):
            place = f"{path}.{key}"
            if key not in new:
                yield f"{place}: gone, was {_short(old[key])}"
            elif key not in old:
                yield f"{place}: new, {_short(new[key])}"
            else:
                yield from _values(place, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list):
        yield f"{path}: {_list_change(old, new)}"
    elif _is_word_list(old) and _is_word_list(new):
        yield f"{path}: {_list_change(old.split(), new.split())}"
    else:
        yield f"{path}: {_short(old)} -> {_short(new)}"


def _is_word_list(value: Any) -> bool:
    """True for the sorted names that a section keeps in one text."""
    return isinstance(value, str) and len(words := value.split()) > 1 and words == sorted(set(words))


def _list_change(old: list[Any], new: list[Any]) -> str:
    arrived = [_short(item) for item in new if item not in old]
    gone = [_short(item) for item in old if item not in new]
    parts = [f"{word} {', '.join(items)}" for word, items in (("new", arrived), ("gone", gone)) if items]
    return "; ".join(parts) or "another order or number of the same values"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


# -- flag tables -----------------------------------------------------------------------------------------------


def _flag_table(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old.get("flags", {}), new.get("flags", {})
    for dest in [*after, *(name for name in before if name not in after)]:
        if dest not in after:
            yield f"flag {_spelling(before[dest])}: gone"
        elif dest not in before:
            yield f"flag {_spelling(after[dest])}: new, {_introduced(after[dest])}"
        else:
            yield from _entries(f"flag {_spelling(after[dest])}", before[dest], after[dest], _FLAG_WORDS)
    yield from _configs(old.get("configs", {}), new.get("configs", {}))
    for part in ("enums", "kinds", "quant"):
        yield from _values(part, _names(old.get(part)), _names(new.get(part)))


def _spelling(flag: Mapping[str, Any]) -> str:
    return str(next((option for option in flag["o"] if option.startswith("--")), flag["o"][0]))


def _introduced(flag: Mapping[str, Any]) -> str:
    words = []
    if "c" in flag:
        words.append(f"choices {_short(flag['c'])}")
    elif "k" in flag:
        words.append(f"type {flag['k']}")
    elif flag.get("a") == "bool":
        words.append("a switch")
    words.append(f"default {_short(flag['df'])}" if "df" in flag else "no default")
    return ", ".join(words)


def _entries(place: str, old: Mapping[str, Any], new: Mapping[str, Any], words: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        first, second = old.get(key), new.get(key)
        if first == second or (key in _FOLLOWS_SPELLINGS and old.get("o") != new.get("o")):
            continue
        name = words.get(key, key)
        if isinstance(first, list) and isinstance(second, list):
            yield f"{place}: {name}: {_list_change(first, second)}"
        else:
            yield f"{place}: {name} {_or_none(first)} -> {_or_none(second)}"


def _or_none(value: Any) -> str:
    return "none" if value is None else _short(value)


def _configs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            yield f"config class {name}: {'gone' if name not in new else 'new, keys ' + ', '.join(new[name]['f'])}"
            continue
        before, after = old[name]["f"], new[name]["f"]
        for key in [*after, *(key for key in before if key not in after)]:
            place = f"config key {name}.{key}"
            if key not in after:
                yield f"{place}: gone"
            elif key not in before:
                yield f"{place}: new, {_short(after[key]['t'])}, default {_or_none(after[key].get('df'))}"
            else:
                yield from _entries(place, before[key], after[key], _FIELD_WORDS)
        yield from _values(f"config class {name}: checks", old[name].get("after", []), new[name].get("after", []))


def _names(part: Any) -> Any:
    """Enumerations as lists of names where their values say nothing."""
    if not isinstance(part, Mapping):
        return part or []
    return {
        key: list(value) if isinstance(value, Mapping) and all(item is None for item in value.values()) else value
        for key, value in part.items()
    }
