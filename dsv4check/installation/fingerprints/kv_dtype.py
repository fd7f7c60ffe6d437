"""Cache dtypes: what a tree makes of ``--kv-cache-dtype``, and what it refuses."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.attention_layers import (
    LAYER,
    ONE_CLASS,
    backend_class,
    constructor,
    layer_classes,
    layouts,
    only_backend,
)
from dsv4check.learning.classes import get_class, member
from dsv4check.learning.following import Following
from dsv4check.learning.sections.kv_cache import (
    ATTENTION_CONFIG,
    CACHE_CONFIG,
    RESOLVER,
    VLLM_CONFIG,
    float_must_match,
    indexer_switch,
    packed_dtypes,
    refused_nvfp4,
    takes_any_name,
)
from dsv4check.learning.source import LearningError, Source, names

from .kit import Decision, Place, assignments, class_of, fingerprint, function, having, refusing


def _resolving(source: Source) -> tuple[str, ast.FunctionDef]:
    """The code that resolves the cache dtype of a layer with packed states."""
    path = source.first(*LAYER)
    if source.find(path, RESOLVER) is not None:
        return path, function(source, path, RESOLVER)
    return path, constructor(get_class(source, path, ONE_CLASS))


def _refusals(source: Source) -> list[Place]:
    path, node = _resolving(source)
    found = [item for item in refusing(node, "only supports fp8") if "kv_cache_dtype" in names(item)]
    # In other words, or in another function: what it refuses was worked out, the lines are the nearest there are.
    other = [item for item in ast.walk(node) if isinstance(item, (ast.Raise, ast.Assert))]
    return [(path, item) for item in found or other or [node]]


def _auto(source: Source) -> Decision:
    value = packed_dtypes(source)["auto"]
    path, node = _resolving(source)
    asked = [(path, item) for item in having(node, "auto") if item.value == "auto"]
    if value == "fp8" and asked:
        given = [(path, item) for item in assignments(node, "kv_cache_dtype") if having(item, "fp8")]
        return value, [*asked, *given[:1]]
    return value, _refusals(source)


def _wording(source: Source) -> Decision:
    exception = packed_dtypes(source)["exception"]
    value = {"AssertionError": "assertion", "ValueError": "value-error"}.get(exception)
    if value is None:
        raise LearningError(f"{_resolving(source)[0]}: a cache dtype is refused with {exception}")
    return value, _refusals(source)


def _lists(source: Source) -> Decision:
    """A backend of packed states alone must not list unpacked dtypes, one of plain rows alone not the packed one."""
    uses: dict[str, set[bool]] = {}
    listed: dict[str, Place] = {}
    stored: dict[str, tuple[str, ...]] = {}
    packed = layouts(source)
    for name, layer in layer_classes(source).items():
        backend = only_backend(source, layer) if name == ONE_CLASS else backend_class(source, layer)
        found = member(source, backend, "supported_kv_cache_dtypes")
        value = getattr(found[1], "value", None) if found else None
        names_ = Following(source, found[0].path, {}, found[0]).value(value) if found and value else None
        if (
            found is None
            or value is None
            or not isinstance(names_, (tuple, list))
            or not all(isinstance(item, str) for item in names_)
        ):
            raise LearningError(f"{backend.path} {backend.name} lists no supported_kv_cache_dtypes")
        uses.setdefault(backend.name, set()).add(packed[name])
        listed[backend.name], stored[backend.name] = (found[0].path, value), tuple(names_)
    wrong: list[tuple[str, Place]] = []
    for name, (path, value) in listed.items():
        lines = {item.value: item for item in ast.walk(value) if isinstance(item, ast.Constant)}
        for dtype in stored[name]:
            if uses[name] == {True} and dtype in ("bfloat16", "float16"):
                wrong.append(("bfloat16-listed", (path, lines.get(dtype, value))))
            if uses[name] == {False} and dtype == "fp8_ds_mla":
                wrong.append(("packed-listed", (path, lines.get(dtype, value))))
    if wrong:
        value = min(kind for kind, _ in wrong)
        return value, [place for kind, place in wrong if kind == value]
    return "as-stored", list(listed.values())


def _nvfp4_refused(source: Source) -> Decision:
    found = refused_nvfp4(source)
    if found is None:
        return "accepted", [(CACHE_CONFIG, source.get(CACHE_CONFIG, "CacheDType"))]
    node = function(source, VLLM_CONFIG, "VllmConfig.validate_nvfp4_kv_cache_with_mla")
    return found["names"], [(VLLM_CONFIG, item) for item in (*having(node, "nvfp4"), node)]


def _open(source: Source) -> Decision:
    node = source.get(CACHE_CONFIG, "CacheConfig.cache_dtype")
    return ("open" if takes_any_name(source) else "choices"), [(CACHE_CONFIG, node)]


def _float(source: Source) -> Decision:
    if not float_must_match(source):
        return "unchecked", [(VLLM_CONFIG, function(source, VLLM_CONFIG, "VllmConfig.__post_init__"))]
    refused = refusing(class_of(source, VLLM_CONFIG, "VllmConfig"), "is incompatible with dtype=")
    return "checked", [(VLLM_CONFIG, item) for item in refused]


def _indexer_lines(source: Source, target: str) -> list[Place]:
    path = source.first(*LAYER)
    made = constructor(get_class(source, path, "DeepseekV4Indexer"))
    return [(path, item) for item in assignments(made, target)]


def _indexer_size(source: Source) -> Decision:
    value = "half" if indexer_switch(source)["mxfp4_states_shrink"] else "full"
    return value, _indexer_lines(source, "k_cache_head_dim")


def _indexer_switch(source: Source) -> Decision:
    found = indexer_switch(source)
    lines = _indexer_lines(source, "self.use_fp4_kv")
    if found["option"] == "use_fp4_indexer_cache":
        return "use-fp4-indexer-cache", lines
    if found["option"] != "indexer_kv_dtype":
        raise LearningError(f"{lines[0][0]}: the indexer's switch is {found['option']}")
    field = [(ATTENTION_CONFIG, source.get(ATTENTION_CONFIG, "AttentionConfig.indexer_kv_dtype"))]
    return ("indexer-kv-dtype-or-old-name" if found["alias"] else "indexer-kv-dtype"), [*lines, *field]


FINGERPRINTS: Final = (
    fingerprint(
        "auto-kv-cache-dtype",
        "What does `--kv-cache-dtype auto` become on the packed fp8_ds_mla layout?",
        {
            "refused": "A launch without --kv-cache-dtype fp8 ends while the model is built.",
            "fp8": "`auto` becomes fp8.",
        },
        _auto,
        good=("fp8",),
        rules=("KV001",),
        references=("vllm#45091",),
    ),
    fingerprint(
        "kv-cache-dtype-refusal",
        "How does the packed layout refuse a cache dtype that is not fp8?",
        {
            "assertion": "With an AssertionError, which `python -O` leaves out.",
            "value-error": "With a ValueError that says what to set.",
        },
        _wording,
        good=("value-error",),
        references=("vllm#45091",),
    ),
    fingerprint(
        "supported-kv-cache-dtypes",
        "Do V4's backends list the cache dtypes that their layout stores?",
        {
            "bfloat16-listed": "The packed backend lists bfloat16, which its layers refuse.",
            "packed-listed": "The backend of plain rows lists fp8_ds_mla, which it does not store.",
            "as-stored": "The lists name what is stored.",
        },
        _lists,
        good=("as-stored",),
        references=("vllm#44892",),
    ),
    fingerprint(
        "nvfp4-with-mla",
        "Which nvfp4 cache dtypes does the config refuse for MLA models?",
        {
            "accepted": "None: the packed layer refuses nvfp4 itself, later.",
            "exact": "The name nvfp4 alone.",
            "prefix": "Every name that starts with nvfp4.",
            "prefix-but-ds-mla": "Every name that starts with nvfp4 but those that end with ds_mla.",
        },
        _nvfp4_refused,
        good=("exact", "prefix", "prefix-but-ds-mla"),
    ),
    fingerprint(
        "kv-cache-dtype-names",
        "Does the command line offer the cache dtypes as choices, or take any name?",
        {
            "choices": "An unknown name ends in an error of the command line.",
            "open": "Any name parses; the config refuses those it does not know.",
        },
        _open,
        good=("choices", "open"),
    ),
    fingerprint(
        "float-kv-cache-dtype",
        "Is an explicit float16 or bfloat16 cache compared with the model's dtype?",
        {
            "unchecked": "It is not compared.",
            "checked": "A launch with another float dtype than the model's is refused.",
        },
        _float,
        good=("unchecked", "checked"),
    ),
    fingerprint(
        "mxfp4-indexer-size",
        "Do MXFP4 keys make the indexer's cache smaller?",
        {
            "full": "MXFP4 keys take the 132 bytes of FP8 keys, half of them unused.",
            "half": "MXFP4 keys take 68 bytes a state.",
        },
        _indexer_size,
        good=("half",),
    ),
    fingerprint(
        "indexer-dtype-option",
        "Which option of --attention-config chooses the dtype of the indexer's keys?",
        {
            "use-fp4-indexer-cache": "use_fp4_indexer_cache; indexer_kv_dtype is not read for DeepSeek-V4.",
            "indexer-kv-dtype-or-old-name": "indexer_kv_dtype, or its old name use_fp4_indexer_cache.",
            "indexer-kv-dtype": "indexer_kv_dtype.",
        },
        _indexer_switch,
        good=("indexer-kv-dtype-or-old-name", "indexer-kv-dtype"),
        rules=("IX004",),
    ),
)
