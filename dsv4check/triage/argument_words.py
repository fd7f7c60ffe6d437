"""Arguments by the names vLLM stores them under, as words of a command line of one release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsv4check.inputs.flags.config_json import validate_config
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import ConfigClass, FlagSpec, FlagTable
from dsv4check.triage.reprs import Member, Opaque, Record

_SECRET: Final = frozenset({"api_key", "hf_token", "ssl_keyfile_password", "watermark_config"})
_NOT_FLAGS: Final = frozenset(
    {"model", "model_tag", "config", "subparser", "dispatch_function", "help", "command", "gpu_id"}
)
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FILLED_IN: Final[Mapping[str, Any]] = {
    "backend": "inductor",
    "cudagraph_num_of_warmups": 1,
    "fast_moe_cold_start": True,
    "use_inductor_graph_partition": False,
    "compile_sizes": [],
}
"""Values that ``CompilationConfig`` gives itself when it is made, in one release or another."""
_FILLED_IN_INDUCTOR: Final = frozenset(
    {"enable_auto_functionalized_v2", "combo_kernels", "benchmark_combo_kernel"}
    | {"size_asserts", "alignment_asserts", "scalar_asserts"}
)
_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")


@dataclass(slots=True)
class Words:
    """A command's words and what could not be said in them."""

    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def words_of(arguments: Mapping[Any, Any], table: FlagTable) -> Words:
    """The flags for arguments that a release was started with, in their order; secrets are left out."""
    made = Words()
    for dest, value in arguments.items():
        if not isinstance(dest, str) or dest in _NOT_FLAGS or dest in _SECRET or _follows(dest, value, arguments):
            continue
        spec = table.by_dest.get(dest)
        if spec is None:
            made.notes.append(f"{dest}: no flag of vLLM {table.release}, left out")
            continue
        try:
            made.words += _flag_words(spec, value, table, made.notes)
        except (_NoWordsError, RecursionError):
            made.notes.append(f"{spec.flag}: its value cannot be read from the log, left out")
    return made


class _NoWordsError(Exception):
    """A value that no text on a command line gives."""


def _follows(dest: str, value: Any, arguments: Mapping[Any, Any]) -> bool:
    """True for what ``vllm serve`` sets by itself before it logs its arguments."""
    if dest == "api_server_count":
        return value in (0, arguments.get("data_parallel_size"), arguments.get("data_parallel_size_local"))
    return False


def _flag_words(spec: FlagSpec, value: Any, table: FlagTable, notes: list[str]) -> list[str]:
    if isinstance(value, Opaque):
        raise _NoWordsError
    if spec.action == "bool":
        negative = next((option for option in spec.options if option in spec.negative), None)
        return [spec.flag] if value else [negative] if negative is not None else []
    if not spec.takes_value:
        return [spec.flag] if value else []
    if spec.action == "lora":
        return [spec.flag, *(compact(plain(item)) for item in _listed(value))]
    if spec.action == "append":
        return [word for item in _listed(value) for word in _pair(spec, _text(item))]
    if spec.is_json:
        return _json_words(spec, value, table, notes)
    if spec.kind == "device_ids":
        return _pair(spec, ",".join(_text(item) for item in _listed(value)))
    if isinstance(value, list) and spec.nargs == "+":
        texts = [_text(item) for item in value]
        return _pair(spec, texts[0]) if len(texts) == 1 else [spec.flag, *texts] if texts else []
    if isinstance(value, list | dict | Record):
        return _pair(spec, compact(plain(value)))
    return _pair(spec, _text(value))


def _pair(spec: FlagSpec, text: str) -> list[str]:
    return [f"{spec.flag}={text}"] if text.startswith("-") or not text else [spec.flag, text]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> str:
    if isinstance(value, Member):
        return value.value if isinstance(value.value, str) and "." not in value.value else value.name.lower()
    if isinstance(value, Opaque):
        return value.text.removeprefix("torch.")
    return str(value)


def _json_words(spec: FlagSpec, value: Any, table: FlagTable, notes: list[str]) -> list[str]:
    if isinstance(value, str):
        return _pair(spec, value)
    config = table.config_of(spec.dest)
    if config is None:
        said = plain(value)
        return _pair(spec, compact(said)) if said is not None else []
    fields = value.fields if isinstance(value, Record) else value
    if not isinstance(fields, Mapping):
        raise _NoWordsError
    kept, lost = _accepted(_stated(fields, config, table), config, table)
    notes += [f"{spec.flag}: its key {key} cannot be read from the log, left out" for key in lost]
    return _pair(spec, compact(kept)) if kept else []


def _stated(fields: Mapping[Any, Any], config: ConfigClass, table: FlagTable) -> dict[str, Any]:
    """The fields that are not as an untouched config has them."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        known = config.fields.get(name) if isinstance(name, str) else None
        if known is None:
            continue
        inner = table.configs.get(_class_of(known.shape))
        if inner is not None and isinstance(value, Record | dict):
            below = value.fields if isinstance(value, Record) else value
            value = _stated(below, inner, table)
        if config.name == "CompilationConfig":
            value = _without_filled_in(name, value)
        if name == "engine_id" and isinstance(value, str) and _UUID.match(value):
            # Made up anew at every start.
            continue
        if value in _EMPTY if known.default in _EMPTY else _same(value, known.default):
            continue
        found[name] = value
    return found


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, Member):
        return default in (value.value, value.name, value.name.lower())
    return bool(value == default and isinstance(value, bool) == isinstance(default, bool))


def _without_filled_in(name: str, value: Any) -> Any:
    if name == "inductor_compile_config" and isinstance(value, dict):
        return {key: item for key, item in value.items() if key not in _FILLED_IN_INDUCTOR}
    if name in _FILLED_IN and value == _FILLED_IN[name]:
        return None
    return value


def _class_of(shape: Any) -> str:
    """Name of the config class that a field holds, empty for others."""
    if isinstance(shape, str):
        return shape.removeprefix("dc:") if shape.startswith("dc:") else ""
    if not isinstance(shape, list) or shape[:1] != ["u"]:
        return ""
    return next((name for part in shape[1:] if (name := _class_of(part))), "")


def _accepted(stated: dict[str, Any], config: ConfigClass, table: FlagTable) -> tuple[dict[str, Any], list[str]]:
    """The fields as JSON that the release takes, and the names of those for which no such JSON is known."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in stated.items():
        for said in _spellings(value):
            _, issues = validate_config(table, config, {name: said})
            if not any(issue.path[:1] == (name,) for issue in issues):
                kept[name] = said
                break
        else:
            lost.append(name)
    return kept, lost


def _spellings(value: Any) -> Iterator[Any]:
    """What JSON may say for a value: members of an enumeration by their name or by their value."""
    seen: list[str] = []
    for by_value in (False, True):
        try:
            said = plain(value, members_by_value=by_value)
            text = json.dumps(said)
        except (_NoWordsError, ValueError, TypeError):
            continue
        if text not in seen:
            seen.append(text)
            yield said


def plain(value: Any, *, members_by_value: bool = False) -> Any:
    """A repr's value as JSON has it. Raises an error for what JSON cannot say."""
    if isinstance(value, Member):
        return plain(value.value) if members_by_value else value.name
    if isinstance(value, Opaque):
        raise _NoWordsError
    if isinstance(value, Record):
        return {key: plain(item, members_by_value=members_by_value) for key, item in value.fields.items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item, members_by_value=members_by_value) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, members_by_value=members_by_value) for item in value]
    return value


def compact(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
