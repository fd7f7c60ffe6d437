"""The files of a release as text: compact, sorted, and the same bytes for the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

_FLOW_WIDTH: Final = 140
"""A mapping without nested values stays on one line up to this length."""
_BY_LINE: Final = ("flags", "configs", "enums")
"""Parts of a flag table with one entry a line, so that a difference shows what changed."""
_NESTING: Final = 2
"""Levels of classes inside a JSON-valued flag that the history names."""


class _Dumper(yaml.SafeDumper):
    """No aliases; lists and mappings of plain values in flow style."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _flat(values: Any) -> bool:
    return all(not isinstance(value, (dict, list)) for value in values)


def _list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=_flat(data))


def _mapping(dumper: yaml.SafeDumper, data: dict[Any, Any]) -> yaml.Node:
    ordered = sorted(data.items(), key=lambda item: str(item[0]))
    flow = _flat(data.values()) and len(str(data)) < _FLOW_WIDTH
    return dumper.represent_mapping("tag:yaml.org,2002:map", ordered, flow_style=flow)


_Dumper.add_representer(list, _list)
_Dumper.add_representer(dict, _mapping)


def facts_text(version: str, sections: Mapping[str, Any]) -> str:
    """``rules/releases/<version>.yaml``."""
    return section_text({"version": version, **sections})


def section_text(section: Mapping[str, Any]) -> str:
    """``rules/releases/<section>/<version>.yaml``: the facts of a section that has a file of its own."""
    # Through JSON: what is written does not depend on tuples, or on the order in which keys were learned.
    content = json.loads(json.dumps(section, sort_keys=True))
    return str(yaml.dump(content, Dumper=_Dumper, width=130, allow_unicode=True))


def flags_text(table: Mapping[str, Any]) -> str:
    """``rules/releases/flags/<version>.json``. Flags stay in the parser's order: it decides between prefixes."""
    parts = []
    for key, value in table.items():
        if key in _BY_LINE:
            entries = ",\n".join(f"{_json(name)}: {_json(entry)}" for name, entry in value.items())
            parts.append(f"{_json(key)}: {{\n{entries}\n}}")
        else:
            parts.append(f"{_json(key)}: {_json(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def history_text(tables: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]]) -> str:
    """``rules/releases/flags/history.json``: which releases know a flag, a choice, or a key of a JSON-valued flag.

    ``tables`` and ``facts`` are those of every release, oldest first.
    """
    known: dict[str, list[int]] = {}
    for index, (version, table) in enumerate(tables.items()):
        for name in {*_names(table), *_speculative_keys(facts[version])}:
            known.setdefault(name, []).append(index)
    always = sorted(name for name, indices in known.items() if len(indices) == len(tables))
    ranges = ",\n".join(
        f"{_json(name)}: {_json(_runs(indices))}"
        for name, indices in sorted(known.items())
        if len(indices) < len(tables)
    )
    return f'{{\n"releases": {_json(list(tables))},\n"always": {_json(always)},\n"ranges": {{\n{ranges}\n}}\n}}\n'


def _names(table: Mapping[str, Any]) -> Iterator[str]:
    """``--flag``, ``--flag=choice``, ``dest.key``, ``dest.key=choice`` and ``attention-backend=NAME``."""
    for dest, flag in table["flags"].items():
        yield from flag["o"]
        for choice in flag.get("c") or ():
            if isinstance(choice, str) and "," not in choice:
                yield f"{flag['o'][0]}={choice}"
        name = flag.get("k", "").partition("dc:")[2]
        if name:
            yield from _keys(table, name, dest, _NESTING)
    yield from (f"attention-backend={name}" for name in table["enums"].get("AttentionBackendEnum", ()))


def _keys(table: Mapping[str, Any], name: str, prefix: str, depth: int) -> Iterator[str]:
    for key, field in table["configs"].get(name, {"f": {}})["f"].items():
        yield f"{prefix}.{key}"
        shape = field["t"]
        for inner in re.findall(r"dc:(\w+)", json.dumps(shape)) if depth else ():
            yield from _keys(table, inner, f"{prefix}.{key}", depth - 1)
        for part in (shape, *(shape[1:] if shape[0] == "u" else ())) if isinstance(shape, list) else ():
            if isinstance(part, list) and part[0] == "lit":
                yield from (f"{prefix}.{key}={choice}" for choice in part[1:] if isinstance(choice, str))


def _speculative_keys(facts: Mapping[str, Any]) -> Iterator[str]:
    """Keys of ``--speculative-config``: its text is plain JSON for the parser, so the flag table has no class."""
    yield from (f"speculative_config.{key}" for key in facts.get("spec_decode", {}).get("fields", ()))


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """Inclusive runs of consecutive numbers."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return runs


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
