"""Section ``kv_cache``: the cache dtypes a release takes, and the bytes, blocks and alignment of V4's caches.

The figures are worked out from the ``get_kv_cache_spec`` methods of the layers, once for packed states and once for
plain rows.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from ..attention_layers import LAYER, MODEL, ONE_CLASS, PACKED, assigned, constructor, layouts
from ..cache_specs import BASE_CLASS, COMPRESSOR, WINDOW, cache_specs, window_arguments
from ..classes import find_class, get_class, origin
from ..following import Following
from ..interpret import Reading
from ..release import Release
from ..source import LearningError, Source, names, raises
from ..values import Raised, Symbol

CACHE_CONFIG: Final = "config/cache.py"
VLLM_CONFIG: Final = "config/vllm.py"
ATTENTION_CONFIG: Final = "config/attention.py"
INDEXED: Final = (LAYER[0], MODEL, "model_executor/models/deepseek_v4.py")
"""Where a layer decides whether it gets an indexer."""
RESOLVER: Final = "_resolve_dsv4_kv_cache_dtype"
_HOLDERS: Final = ("cache_config", "self.cache_config", "vllm_config.cache_config")
_UNPACKED: Final = "bfloat16"
_PROBE: Final = "probe-dtype"
_INDEX_HEAD: Final = 128


def learn(release: Release) -> dict[str, Any]:
    """Cache dtypes, layouts, pages and the indexer's switch."""
    source = release.source
    choices = source.literal(CACHE_CONFIG, "CacheDType")
    plain = any(not packed for packed in layouts(source).values())
    specs = {layout: cache_specs(source, layout) for layout in ((PACKED, _UNPACKED) if plain else (PACKED,))}
    section = {
        "choices": choices,
        "open_string": takes_any_name(source),
        "packed": packed_dtypes(source) | _packed_figures(specs[PACKED]),
        "indexer": indexer_switch(source),
        "swa_block": _window_block(source),
        "state_blocks": _state_blocks(source),
        "float_must_match_model": float_must_match(source),
    }
    if plain:
        section["plain"] = _plain_figures(specs[_UNPACKED])
    refused = refused_nvfp4(source)
    return section if refused is None else section | {"nvfp4_refused": refused}


def takes_any_name(source: Source) -> bool:
    """From the annotation of ``CacheConfig.cache_dtype``: the parser offers choices, or takes any string."""
    node = source.get(CACHE_CONFIG, "CacheConfig.cache_dtype")
    kinds = names(node.annotation) if isinstance(node, ast.AnnAssign) else set()
    if "CacheDType" not in kinds:
        raise LearningError(f"{CACHE_CONFIG} CacheConfig.cache_dtype is no CacheDType")
    if "str" not in kinds:
        return False
    if not any("Invalid kv_cache_dtype" in text for _, text in raises(source.get(CACHE_CONFIG, "CacheConfig"))):
        raise LearningError(f"{CACHE_CONFIG} CacheConfig takes any cache_dtype without checking it")
    return True


def packed_dtypes(source: Source) -> dict[str, Any]:
    """What a class with packed states makes of ``auto`` and of a name that is not fp8."""
    path = source.first(*LAYER)
    if source.find(path, RESOLVER) is not None:
        where = RESOLVER

        def resolve(dtype: str) -> Any:
            function = source.get(path, RESOLVER)
            if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 3:
                raise LearningError(f"{path} {RESOLVER} takes other parameters than layout, dtype and cache config")
            asked = _handed(source, path, dtype)
            values = dict(zip((item.arg for item in function.args.args), (True, asked, None), strict=True))
            return Following(source, path, values).run(function)
    else:
        where = "__init__"
        owner = get_class(source, path, ONE_CLASS)
        checks = [
            node
            for node in constructor(owner).body
            if isinstance(node, ast.Assert) and "kv_cache_dtype" in names(node.test) and "startswith" in names(node)
        ]
        if not checks:
            raise LearningError(f"{path} {ONE_CLASS}.__init__ does not check kv_cache_dtype")

        def resolve(dtype: str) -> Any:
            return Following(source, path, {"kv_cache_dtype": dtype}).run(constructor(owner), checks)

    refused = resolve(_PROBE)
    if not isinstance(refused, Raised) or _PROBE not in refused.message:
        raise LearningError(f"{path} {where} does not refuse a cache dtype that is not fp8 by its name")
    auto, fp8 = resolve("auto"), resolve("fp8")
    if isinstance(fp8, Raised):
        raise LearningError(f"{path} {where} refuses fp8")
    return {
        "auto": "refused" if isinstance(auto, Raised) else "fp8",
        "exception": refused.exception,
        "error": refused.message.replace(_PROBE, "{dtype}"),
        "where": f"{path}:{where}",
    }


def _handed(source: Source, path: str, dtype: str) -> str:
    """The cache dtype that the layer hands to the resolver: the launch's own, or what it makes of it before."""
    owner = find_class(source, path, BASE_CLASS)
    init = None if owner is None else owner.member("__init__")
    if not isinstance(init, ast.FunctionDef):
        return dtype
    calls = [
        node for node in ast.walk(init) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(RESOLVER)
    ]
    if len(calls) != 1:
        return dtype
    given = [*calls[0].args, *(item.value for item in calls[0].keywords if item.arg == "kv_cache_dtype")]
    argument = given[1] if len(calls[0].args) > 1 else given[-1]
    wanted = {ast.unparse(item) for item in ast.walk(argument) if isinstance(item, ast.Name)} - {"self"}
    body = [
        item
        for item in init.body
        if item.lineno < calls[0].lineno and (_stores(item, "cache_dtype") or wanted & _named(item))
    ]
    known = {f"{holder}.cache_dtype": dtype for holder in _HOLDERS} | {"cache_config": Symbol("cache_config")}
    reading = Following(source, path, known, owner)
    outcome = reading.run(init, body)
    value = reading.value(argument)
    if outcome is None and isinstance(value, str):
        return value
    if outcome is None and isinstance(value, Symbol) and value.text.endswith("cache_dtype"):
        return dtype
    raise LearningError(f"{path} {BASE_CLASS}: what cache dtype {ast.unparse(argument)!r} stands for")


def _named(node: ast.stmt) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}


def _stores(node: ast.stmt, name: str) -> bool:
    return any(
        isinstance(item, ast.Attribute) and item.attr == name and isinstance(item.ctx, ast.Store)
        for item in ast.walk(node)
    )


def _packed_figures(specs: Mapping[str, Mapping[str, int | None]]) -> dict[str, int]:
    alignments = {spec["alignment"] for spec in specs.values()}
    sizes = {specs["main"]["bytes"], specs["window"]["bytes"]}
    alignment, size = alignments.pop(), sizes.pop()
    if alignments or sizes or alignment is None or size is None:
        raise LearningError("packed caches do not share one alignment and one size of a state any more")
    return {"bytes_per_state": size, "alignment": alignment}


def _plain_figures(specs: Mapping[str, Mapping[str, int | None]]) -> dict[str, int | None]:
    alignments = {spec["alignment"] for kind, spec in specs.items() if kind != "indexer"}
    alignment = alignments.pop()
    if alignments or any(spec["bytes"] is not None for spec in specs.values()):
        raise LearningError("plain caches do not share one alignment, or have a fixed size of a state")
    return {"alignment": alignment, "indexer_alignment": specs["indexer"]["alignment"]}


def _window_block(source: Source) -> int:
    block = window_arguments(source).get("self.block_size")
    if block is None:
        raise LearningError(f"{WINDOW} DeepseekV4SWACache has no block_size of its own")
    return int(block)


def _state_blocks(source: Source) -> dict[str, int]:
    """Rows per block of the compressor states; the indexer's compressor is of the kind with ratio 4."""
    path = source.first(*COMPRESSOR)
    owner = get_class(source, path, "CompressorStateCache")

    def rows(ratio: int) -> int:
        found = Reading(source, path, {"compress_ratio": ratio}, owner).settle(constructor(owner), "self.block_size")
        if not isinstance(found, int):
            raise LearningError(f"{path} CompressorStateCache has no block size for ratio {ratio}")
        return found

    indexed = _indexed_ratio(source)
    return {"c4": rows(4), "c128": rows(128), "indexer": rows(indexed)}


def _indexed_ratio(source: Source) -> int:
    """The compression ratio of the layers that get an indexer (``if self.compress_ratio == 4``)."""
    for path in (path for path in INDEXED if source.has(path)):
        for node in ast.walk(source.tree(path)):
            made = isinstance(node, ast.If) and any(
                ast.unparse(item).startswith("self.indexer = ") for item in node.body
            )
            test = node.test if isinstance(node, ast.If) and made else None
            if isinstance(test, ast.Compare) and ast.unparse(test.left) == "self.compress_ratio":
                value = test.comparators[0]
                if isinstance(test.ops[0], ast.Eq) and isinstance(value, ast.Constant) and isinstance(value.value, int):
                    return value.value
    raise LearningError("no attention layer makes its indexer for one compress_ratio")


def indexer_switch(source: Source) -> dict[str, Any]:
    """The switch for MXFP4 indexer keys, an old name that is folded into it, and whether the keys shrink with it."""
    path = source.first(*LAYER)
    function = constructor(get_class(source, path, "DeepseekV4Indexer"))
    values = [assigned(node, "self.use_fp4_kv") for node in ast.walk(function)]
    switch = next((value for value in values if value is not None), None)
    if switch is None:
        raise LearningError(f"{path} DeepseekV4Indexer.__init__ sets no use_fp4_kv")
    fields = _fields(source)
    option = _option(source, path, switch, fields)

    def width(fp4: bool) -> Any:
        known = {"self.use_fp4_kv": fp4, "self.head_dim": _INDEX_HEAD, "self.quant_block_size": _INDEX_HEAD}
        return Reading(source, path, known).settle(function, "k_cache_head_dim")

    widths = width(True), width(False)
    if not all(isinstance(item, int) for item in widths):
        raise LearningError(f"{path} DeepseekV4Indexer.__init__ gives no k_cache_head_dim")
    return {"option": option, "alias": _alias(source, option, fields), "mxfp4_states_shrink": widths[0] < widths[1]}


def _fields(source: Source) -> set[str]:
    node = source.get(ATTENTION_CONFIG, "AttentionConfig")
    return {
        item.target.id
        for item in getattr(node, "body", [])
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _option(source: Source, path: str, switch: ast.expr, fields: set[str]) -> str:
    """The field of AttentionConfig that the indexer's switch is read from, also through functions of the release."""
    pending: list[tuple[str, ast.AST]] = [(path, switch)]
    seen: set[str] = set()
    while pending:
        where, node = pending.pop()
        found = names(node) & fields
        if found:
            if len(found) > 1:
                raise LearningError(f"{where}: the indexer's switch depends on {', '.join(sorted(found))}")
            return found.pop()
        for name in sorted(names(node) - seen):
            seen.add(name)
            method = source.find(ATTENTION_CONFIG, f"AttentionConfig.{name}")
            if isinstance(method, ast.FunctionDef):
                pending.append((ATTENTION_CONFIG, method))
                continue
            function = _function(source, where, name)
            if function is not None:
                pending.append(function)
    raise LearningError(f"{path} DeepseekV4Indexer: no field of AttentionConfig decides {ast.unparse(switch)}")


def _function(source: Source, path: str, name: str) -> tuple[str, ast.AST] | None:
    for candidate in (path, origin(source, path, name)):
        if candidate is not None and isinstance(source.find(candidate, name), ast.FunctionDef):
            return candidate, source.get(candidate, name)
    return None


def _alias(source: Source, option: str, fields: set[str]) -> str | None:
    """A field that AttentionConfig turns into ``option = "mxfp4"`` while it is made."""
    function = source.find(ATTENTION_CONFIG, "AttentionConfig.__post_init__")
    for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
        if isinstance(node, ast.If) and any(assigned(item, f"self.{option}") is not None for item in node.body):
            found = sorted((names(node.test) & fields) - {option})
            if len(found) == 1:
                return found[0]
            raise LearningError(f"{ATTENTION_CONFIG} AttentionConfig.__post_init__ changes {option} in an unknown way")
    return None


def float_must_match(source: Source) -> bool:
    """VllmConfig refuses a float cache dtype that is not the model's (``_reject_mismatched_float_kv_cache``)."""
    node = source.get(VLLM_CONFIG, "VllmConfig")
    for item in getattr(node, "body", []):
        if not isinstance(item, ast.FunctionDef):
            continue
        texts = [text for _, text in raises(item)]
        worded = any("kv_cache_dtype=" in text and "is incompatible with dtype=" in text for text in texts)
        if worded != item.name.endswith("mismatched_float_kv_cache"):
            raise LearningError(f"{VLLM_CONFIG} {item.name}: the check of float cache dtypes looks different")
        if worded:
            known = {"self.cache_config.cache_dtype": "float16", "self.model_config": SimpleNamespace(dtype="bfloat16")}
            if item.name not in names(source.get(VLLM_CONFIG, "VllmConfig.__post_init__")):
                raise LearningError(f"{VLLM_CONFIG} VllmConfig.__post_init__ does not call {item.name}")
            return isinstance(Reading(source, VLLM_CONFIG, known).run(item), Raised)
    return False


def refused_nvfp4(source: Source) -> dict[str, str] | None:
    """Names that start with nvfp4 and that VllmConfig refuses for MLA models; None when it does not look."""
    function = source.find(VLLM_CONFIG, "VllmConfig.validate_nvfp4_kv_cache_with_mla")
    if function is None:
        if "nvfp4 KV cache is not supported with MLA" in source.text(VLLM_CONFIG):
            raise LearningError(f"{VLLM_CONFIG} has the check of nvfp4 with MLA in another function")
        return None
    if not isinstance(function, ast.FunctionDef):
        raise LearningError(f"{VLLM_CONFIG} validate_nvfp4_kv_cache_with_mla is no function")
    outcomes = []
    for dtype in ("nvfp4", f"nvfp4_{_PROBE}", f"nvfp4_{_PROBE}_ds_mla", "fp8"):
        known = {"self.cache_config.cache_dtype": dtype, "self.model_config": SimpleNamespace(use_mla=True)}
        outcomes.append(Reading(source, VLLM_CONFIG, known).run(function))
    ways: dict[tuple[bool, ...], str] = {
        (True, False, False, False): "exact",
        (True, True, True, False): "prefix",
        (True, True, False, False): "prefix-but-ds-mla",
    }
    way = ways.get(tuple(isinstance(outcome, Raised) for outcome in outcomes))
    if way is None:
        raise LearningError(f"{VLLM_CONFIG} validate_nvfp4_kv_cache_with_mla refuses names in an unknown way")
    return {"names": way, "error": outcomes[0].message}
