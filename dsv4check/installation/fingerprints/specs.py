"""What the specs of V4's caches say of one state, and what becomes of its 584 bytes."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any, Final

from dsv4check.learning.attention_layers import PACKED, layouts
from dsv4check.learning.cache_specs import made_spec, main_owner, window_arguments, window_owner
from dsv4check.learning.classes import find_class, lineage, member
from dsv4check.learning.following import Following, keywords
from dsv4check.learning.interpret import Made
from dsv4check.learning.sections.block_size import SHAPING
from dsv4check.learning.source import LearningError, Source
from dsv4check.learning.values import Symbol

from .kit import Decision, Place, assignments, called, fingerprint, function
from .reshape import string_of

_HEAD: Final = 512
"""Bytes of a plain row of one byte a number."""
_PLANNING: Final = ("v1/core/kv_cache_planning.py", "v1/core/kv_cache_utils.py")


# What the specs say of one state


def _made_spec(source: Source, kind: str, dtype: str) -> tuple[str, Made]:
    """The spec that the main or the sliding-window cache of a layer makes for a cache dtype, and its file."""
    if kind == "main":
        return made_spec(source, main_owner(source), dtype, {})
    return made_spec(source, window_owner(source), dtype, _kept_numbers(source))


def _kept_numbers(source: Source) -> dict[str, Any]:
    """Numbers that the sliding window's cache is made with; none where that cannot be told, they may not be needed."""
    try:
        return window_arguments(source)
    except LearningError:
        return {}


def _sets(source: Source, kind: str) -> tuple[dict[str, ast.expr], Place]:
    """What tells the spec of packed states from plain rows, beside the string; and where the spec is made."""
    path, made = _made_spec(source, kind, PACKED)
    values = keywords(made)
    given: dict[str, ast.expr] = {}
    for name in ("kv_quant_mode", "state_content_bytes"):
        if name not in values:
            given |= _inherited(source, path, made, name)
        elif _says(path, name, values[name]):
            given[name] = _keyword(made, name)
    return given, (path, made.node)


def _inherited(source: Source, path: str, made: Made, name: str) -> dict[str, ast.expr]:
    """The field where the spec's own class gives it. Raises LearningError where the class works it out."""
    owner = find_class(source, path, ast.unparse(made.node.func))
    if owner is None:
        return {}
    for item in lineage(source, owner):
        init = item.member("__post_init__")
        if init is not None and any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(init)):
            raise LearningError(f"{item.path} {item.name}: {name} is worked out after the spec is made")
    found = member(source, owner, name)
    default = None if found is None else getattr(found[1], "value", None)
    if found is None or default is None or isinstance(found[1], ast.FunctionDef):
        return {}
    value = Following(source, found[0].path, {}).value(default)
    return {name: made.node} if _says(found[0].path, name, value) else {}


def _says(path: str, name: str, value: Any) -> bool:
    """Does the value tell packed states from plain rows? Raises LearningError where it is not known."""
    if name == "state_content_bytes":
        if value is not None and not isinstance(value, int):
            raise LearningError(f"{path}: {name} of a packed cache is not known")
        return value is not None and value > _HEAD
    if isinstance(value, Made) and called(value.node) == "get_kv_quant_mode" and value.node.args:
        dtype = value.reading.value(value.node.args[0])
        if isinstance(dtype, str):
            return dtype.startswith("fp8")
    if value is None or value == 0:
        return False
    if not isinstance(value, Symbol) or not value.constant:
        raise LearningError(f"{path}: {name} of a packed cache is not known")
    return not value.text.endswith(".NONE")


def _spec_mode(source: Source, kind: str) -> Decision:
    given, place = _sets(source, kind)
    value = "state-size" if "state_content_bytes" in given else "quant-mode" if given else "none"
    return value, [*((place[0], node) for node in given.values()), place]


def _alignment(source: Source) -> Decision:
    if all(layouts(source).values()):
        path, made = _made_spec(source, "main", PACKED)
        return "no-plain-rows", [(path, _keyword(made, "alignment"))]
    specs = {kind: _made_spec(source, kind, "bfloat16") for kind in ("main", "window")}
    sizes = {keywords(made).get("alignment") for _, made in specs.values()}
    value = {None: "none", 512: "aligned-512"}.get(sizes.pop()) if len(sizes) == 1 else None
    if value is None:
        raise LearningError("plain rows do not share one known alignment")
    return value, [(path, _keyword(made, "alignment")) for path, made in specs.values()]


def _keyword(made: Made, name: str) -> ast.expr:
    return next((item.value for item in made.node.keywords if item.arg == name), made.node)


# What is left of it when the hybrid manager is off


def _promoted(source: Source) -> Decision:
    path, promote = _promoting(source)
    carried, places = _carried(source, path, promote)
    strings = {runner: string_of(source, runner) for runner in SHAPING}
    narrow = [runner for runner, (string, _) in strings.items() if not _wide(string, carried)]
    if narrow:
        return "lost", [*places, *(next(iter(strings[runner][1])) for runner in narrow)]
    if {string for string, _ in strings.values()} == {"global"} and "kv_quant_mode" not in carried:
        return "through-global-string", [*places, *(next(iter(found)) for _, found in strings.values())]
    return "kept", places


def _wide(string: str, told: Collection[str]) -> bool:
    """Does a packed cache get its 584 bytes by a runner that shapes by ``string``, when the spec says ``told``?

    The string of the whole launch will do: the layers rewrite it to the packed one.
    """
    needed = {
        "global": set(),
        "global-if-quantised": {"kv_quant_mode"},
        "spec-if-quantised": {"kv_quant_mode", "cache_dtype_str"},
        "spec": {"cache_dtype_str"},
        "spec-shape": {"state_content_bytes"},
    }
    return needed[string] <= set(told)


def _view_width(source: Source) -> Decision:
    """What becomes of the main and of the sliding-window spec in either runner."""
    narrow: dict[str, list[Place]] = {}
    fine: list[Place] = []
    for runner in SHAPING:
        string, found = string_of(source, runner)
        for kind in ("main", "window"):
            given, place = _sets(source, kind)
            told: list[Place] = [(place[0], node) for node in given.values()] or [place]
            if _wide(string, {*given, "cache_dtype_str"}):
                fine += told[:1]
            else:
                narrow.setdefault(runner, []).extend([place, next(iter(found))])
    if not narrow:
        return "packed", fine
    value = f"plain-on-{next(iter(narrow))}" if len(narrow) == 1 else "plain"
    return value, [place for places in narrow.values() for place in places]


def _promoting(source: Source) -> tuple[str, ast.FunctionDef]:
    for path in (path for path in _PLANNING if source.has(path)):
        for name in ("_promote_local_kv_cache_specs", "unify_hybrid_kv_cache_specs"):
            if source.find(path, name) is not None:
                return path, function(source, path, name)
    raise LearningError("nothing promotes sliding windows when the hybrid KV-cache manager is off")


def _carried(source: Source, path: str, promote: ast.FunctionDef) -> tuple[set[str], list[Place]]:
    """Fields of the sliding window's spec that the promoted one has, too."""
    given, place = _sets(source, "window")
    calls = [node for node in ast.walk(promote) if isinstance(node, ast.Call)]
    whole = [node for node in calls if called(node) in ("replace_as", "replace")]
    if whole:
        dropped = {item.value for item in ast.walk(whole[0]) if isinstance(item, ast.Constant)}
        dropped |= {name for name, value in _passed(path, promote, whole[0]) if not _copies(path, promote, name, value)}
        fields = {name for name in (*given, "cache_dtype_str") if name not in dropped}
        return fields, [(path, whole[0]), *((place[0], node) for node in given.values())]
    made = [node for node in calls if called(node) == "MLAAttentionSpec"]
    if len(made) != 1:
        raise LearningError(f"{path} {promote.name} does not make one MLAAttentionSpec of a sliding window")
    passed = {name: value for name, value in _passed(path, promote, made[0]) if _copies(path, promote, name, value)}
    fields = {name for name in passed if name in given or name == "cache_dtype_str"}
    told = [passed[name] for name in sorted(fields - {"cache_dtype_str"})] or [made[0]]
    return fields, [(path, node) for node in told]


def _passed(path: str, promote: ast.FunctionDef, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """Keyword arguments of a call, those of tables that stand in the function included."""
    found: list[tuple[str, ast.expr]] = []
    for item in call.keywords:
        table = _settled(promote, item.value) if item.arg is None else None
        if item.arg is not None:
            found.append((item.arg, item.value))
        elif isinstance(table, ast.Dict) and all(isinstance(key, ast.Constant) for key in table.keys):
            found += [
                (str(getattr(key, "value", "")), value) for key, value in zip(table.keys, table.values, strict=True)
            ]
        else:
            raise LearningError(f"{path} {promote.name}: what a promoted sliding window is given is not known")
    return found


def _settled(promote: ast.FunctionDef, value: ast.expr) -> ast.expr:
    """What a name stands for, where the function gives it once."""
    found = assignments(promote, value.id) if isinstance(value, ast.Name) else []
    return found[0].value if len(found) == 1 else value


def _copies(path: str, promote: ast.FunctionDef, name: str, value: ast.expr) -> bool:
    """Does the promoted spec say what the sliding window's says? Raises LearningError where that is not known."""
    if name not in ("kv_quant_mode", "state_content_bytes", "cache_dtype_str"):
        return True
    match _settled(promote, value):
        case ast.Attribute(attr=attr) if attr == name:
            return True
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=attr), *_]) if attr == name:
            return True
        case ast.Call(func=ast.Name(id="get_kv_quant_mode"), args=[ast.Attribute(attr="cache_dtype_str")]):
            return True
        case ast.Constant(value=None) | ast.Attribute(attr="NONE"):
            return False
        case ast.Attribute(value=ast.Name(id="KVQuantMode")):
            return True
    raise LearningError(f"{path} {promote.name}: what {name} of a promoted sliding window is")


_MODES: Final = {
    "none": "Only the cache dtype's name tells that the states are packed into 584 bytes: a runner that asks for the "
    "quantisation mode takes them for plain rows of 512.",
    "quant-mode": "The spec says that it is quantised, so runners that ask keep the packed shape.",
    "state-size": "The spec states the 584 bytes of a packed state itself.",
}

FINGERPRINTS: Final = (
    fingerprint(
        "main-spec-quant-mode",
        "Does the spec of the main cache say that its states are packed?",
        _MODES,
        lambda source: _spec_mode(source, "main"),
        good=("quant-mode", "state-size"),
        references=("vllm#47716",),
    ),
    fingerprint(
        "swa-spec-quant-mode",
        "Does the spec of the sliding-window cache say that its states are packed?",
        _MODES,
        lambda source: _spec_mode(source, "window"),
        good=("quant-mode", "state-size"),
        references=("vllm#47716",),
    ),
    fingerprint(
        "packed-view-width",
        "Are packed caches viewed with the 584 bytes a state that FlashMLA wants?",
        {
            "packed": "They are.",
            "plain-on-v1": "The V1 runner views a packed cache with 512 bytes a state, and FlashMLA refuses it.",
            "plain-on-v2": "The V2 runner views a packed cache with 512 bytes a state, and FlashMLA refuses it.",
            "plain": "Both runners view a packed cache with 512 bytes a state, and FlashMLA refuses it.",
        },
        _view_width,
        good=("packed",),
        rules=("KV010",),
        references=("vllm#47716", "vllm#47648"),
    ),
    fingerprint(
        "promoted-swa-width",
        "Does a sliding-window cache keep its 584 bytes a state when the hybrid KV-cache manager is off?",
        {
            "through-global-string": "It keeps them: the runners shape it by the cache dtype of the whole launch.",
            "lost": "The promoted spec loses what marks it as packed: with the hybrid KV-cache manager off it is "
            "viewed with 512 bytes a state, and the kernel refuses it.",
            "kept": "The promoted spec keeps what marks it as packed.",
        },
        _promoted,
        good=("through-global-string", "kept"),
        rules=("KV009",),
        references=("vllm#47716",),
    ),
    fingerprint(
        "plain-row-alignment",
        "To how many bytes are pages of plain rows (FlashInfer on SM10x) aligned?",
        {
            "no-plain-rows": "All V4 caches are packed; there are no plain rows.",
            "none": "Pages of plain rows are not aligned, those of the indexer are: packed block tensors do not fit "
            "them together.",
            "aligned-512": "All pages are aligned to 512 bytes.",
        },
        _alignment,
        good=("no-plain-rows", "aligned-512"),
        references=("vllm#47783",),
    ),
)
