"""The flags of ``vllm serve`` in one release, from ``rules/releases/flags/<version>.json``.

The files hold what each release's own parser holds: every option string, its destination, choices and
defaults, and for JSON-valued flags the fields of the dataclass that validates them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from dsv4check.data import rules_dir
from dsv4check.errors import InputError
from dsv4check.records import dataclass, field
from dsv4check.releases.history import flag_history

_EMPTY: Mapping[str, Any] = MappingProxyType({})

Shape = Any
"""Type of a config field: a name (``"int"``, ``"dc:PassConfig"``, ``"enum:CUDAGraphMode"``) or a list whose
head says what it is: ``u`` union, ``l`` list, ``s`` set, ``t`` tuple, ``d`` dict, ``lit`` literal values."""


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One flag of a release."""

    dest: str
    """Name vLLM stores the value under, e.g. ``kv_cache_dtype``."""
    options: tuple[str, ...]
    """Every spelling the parser accepts, in the order it registers them."""
    shown: tuple[str, ...]
    """The spellings that error messages name."""
    action: str
    """``store``, ``bool`` (has a negative form), ``true``, ``append``, ``lora`` or ``help``."""
    nargs: str | None
    """``+``, ``?`` or None (one value, or none for flags without a value)."""
    kind: str
    """How the text is converted: ``str``, ``int``, ``float``, ``human_readable_int``, ``loads``,
    ``dc:<class>``, ``lower``, ``union_dict_and_str``, ...; ``opt:`` in front accepts ``None`` and ``""``."""
    choices: tuple[Any, ...] | None
    default: Any
    negative: frozenset[str]
    """Spellings that set a boolean flag to False."""
    const: Any = None
    """Value of a ``?`` flag given bare."""

    @property
    def flag(self) -> str:
        """The main spelling: the first long one."""
        return next((option for option in self.options if option.startswith("--")), self.options[0])

    @property
    def display(self) -> str:
        """The spellings as argparse names them in an error."""
        return "/".join(self.shown)

    @property
    def takes_value(self) -> bool:
        """False for flags that stand alone."""
        return self.action in ("store", "append", "lora")

    @property
    def config(self) -> str | None:
        """Name of the dataclass that validates a JSON-valued flag, None for others."""
        _, found, name = self.kind.partition("dc:")
        return name if found else None

    @property
    def is_json(self) -> bool:
        """True when the value is written as JSON or in dotted form."""
        return "dc:" in self.kind or "loads" in self.kind or self.kind.endswith("union_dict_and_str")


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One key of a JSON-valued flag."""

    name: str
    shape: Shape
    default: Any = None
    required: bool = False
    bounds: tuple[tuple[str, float], ...] = ()
    """Pairs like ``("ge", 0)``; also ``gt``, ``le``, ``lt``, ``minlen``."""
    before: str | None = None
    """What happens to the value before its type is checked: ``enum``, ``enum_auto``, ``lower``, ..."""
    null_ok: bool = False
    """True where null passes although the type does not name it."""


@dataclass(frozen=True, slots=True)
class ConfigClass:
    """The dataclass behind a JSON-valued flag. Keys it does not have are refused."""

    name: str
    fields: Mapping[str, ConfigField]
    after: tuple[str, ...] = ()
    """Names of the checks over several keys that this release has."""


@dataclass(frozen=True, slots=True)
class FlagTable:
    """All flags of one release."""

    release: str
    by_dest: Mapping[str, FlagSpec]
    by_option: Mapping[str, FlagSpec]
    """Every spelling, in registration order."""
    configs: Mapping[str, ConfigClass]
    enums: Mapping[str, Mapping[str, Any]]
    """Enum name -> member name -> value where JSON can say the value, else None."""
    kv_cache_kinds: tuple[str, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)
    """Names inside ``--quantization-config``: ``keys`` (list) and ``shorthands`` (name -> layer kinds it covers)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """dest -> default."""
    by_initial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """First four characters of a spelling -> spellings, for prefix matching."""

    def config_of(self, dest: str) -> ConfigClass | None:
        """The dataclass behind a JSON-valued flag, None when it has none."""
        spec = self.by_dest.get(dest)
        name = spec.config if spec is not None else None
        return self.configs.get(name) if name else None


_BOUNDS: Final = ("ge", "gt", "le", "lt", "minlen")


def _flag(dest: str, raw: Mapping[str, Any]) -> FlagSpec:
    options = tuple(raw["o"])
    choices = raw.get("c")
    return FlagSpec(
        dest=dest,
        options=options,
        shown=tuple(raw.get("s", options)),
        action=raw.get("a", "store"),
        nargs=raw.get("n"),
        kind=raw.get("k", "str"),
        choices=None if choices is None else tuple(choices),
        default=raw.get("df"),
        negative=frozenset(raw.get("neg", ())),
        const=raw.get("cv"),
    )


def _config(name: str, raw: Mapping[str, Any]) -> ConfigClass:
    fields = {
        key: ConfigField(
            name=key,
            shape=item["t"],
            default=item.get("df"),
            required=bool(item.get("req")),
            bounds=tuple((bound, item[bound]) for bound in _BOUNDS if bound in item),
            before=item.get("b"),
            null_ok=bool(item.get("nn")),
        )
        for key, item in raw["f"].items()
    }
    return ConfigClass(name=name, fields=fields, after=tuple(raw.get("after", ())))


@cache
def load_flag_table(release: str) -> FlagTable:
    """The flags of a known release (cached).

    Raises InputError when there is no table for ``release``.
    """
    path = rules_dir() / "releases" / "flags" / f"{release}.json"
    if not path.is_file():
        raise InputError(f"no flag table for vLLM {release}; known releases: {', '.join(flag_history().releases)}")
    raw = json.loads(path.read_text(encoding="utf-8"))
    by_dest = {dest: _flag(dest, item) for dest, item in raw["flags"].items()}
    by_option = {option: spec for spec in by_dest.values() for option in spec.options}
    initial: dict[str, list[str]] = {}
    for option in by_option:
        initial.setdefault(option[:4], []).append(option)
    return FlagTable(
        release=release,
        by_dest=by_dest,
        by_option=by_option,
        configs={name: _config(name, item) for name, item in raw["configs"].items()},
        enums=raw["enums"],
        kv_cache_kinds=tuple(raw["kinds"]),
        quantization=raw.get("quant", _EMPTY),
        defaults={dest: spec.default for dest, spec in by_dest.items()},
        by_initial={key: tuple(names) for key, names in initial.items()},
    )
