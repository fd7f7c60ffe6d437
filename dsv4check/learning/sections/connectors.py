"""Section ``connectors``: the KV connectors a release registers, what they support, and what is refused with them."""

from __future__ import annotations

import ast
from typing import Any, Final

from ..classes import Defined, find_class, lineage, member, origin
from ..connector_config import (
    FACTORY,
    any_disables_hybrid,
    expandable_segments,
    hidden_states_chunked,
    hisparse,
    lmcache_connector,
    multi_checks_children,
    nixl_dcp,
    offload_before_hybrid,
)
from ..factories import registered
from ..interpret import Reading
from ..offload_tiers import tiers
from ..release import Release
from ..source import LearningError, Source, names, strings

HYBRID: Final = "SupportsHMA"
"""The base class of connectors that work with the hybrid KV-cache manager."""
NIXL_WORKER: Final = (
    "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
    "distributed/kv_transfer/kv_connector/v1/nixl/worker.py",
)
OFFLOAD: Final = (
    "distributed/kv_transfer/kv_connector/v1/offloading/config.py",
    "v1/kv_offload/base.py",
    "v1/kv_offload/spec.py",
)
"""Where the offloading connector works out its block sizes, newest first."""
OFFLOAD_FACTORY: Final = "v1/kv_offload/factory.py"
_RESOLVED: Final = "resolve_kv_cache_block_sizes"


def learn(release: Release) -> dict[str, Any]:
    """Connectors, by name, and the checks around them."""
    source = release.source
    registered = connectors(source)
    classes = {name: _connector_class(source, *where) for name, where in registered.items()}
    return {
        "names": sorted(registered),
        "hybrid": sorted(name for name, found in classes.items() if found is not None and _hybrid(source, found)),
        "external": sorted(name for name, found in classes.items() if found is None),
        "no_sleep": sorted(name for name, found in classes.items() if found is not None and _no_sleep(source, found)),
        "any_disables_hybrid": any_disables_hybrid(source),
        "multi_checks_children": multi_checks_children(source),
        "expandable_segments": expandable_segments(source),
        "hidden_states_chunked": hidden_states_chunked(source),
        "hisparse": hisparse(source, "HiSparseConnector" in registered),
        "nixl_dcp": nixl_dcp(source),
        "nixl_single_process": _nixl_single_process(source),
        "offload": {
            "before_hybrid_check": offload_before_hybrid(source),
            "chunks": "blocks_per_chunk" in strings(source.tree(_offload_file(source))),
            "hash_check": _hash_check(source),
            "lmcache": lmcache_connector(source),
            "tiers": tiers(source),
            "tiering": "TieringOffloadingSpec" in strings(source.tree(OFFLOAD_FACTORY)),
        },
    }


def connectors(source: Source) -> dict[str, tuple[str, str]]:
    """File and class of every registered connector (``KVConnectorFactory.register_connector`` calls)."""
    return registered(source, FACTORY, "KVConnectorFactory.register_connector", "connector")


def _connector_class(source: Source, module: str, name: str) -> Defined | None:
    """The connector's class; None where a package from outside may bring it (``X = resolver()``)."""
    path = next((item for item in (f"{module}.py", f"{module}/__init__.py") if source.has(item)), None)
    if path is None:
        raise LearningError(f"{module} is registered in {FACTORY} but not there")
    for _ in range(3):
        found = find_class(source, path, name)
        if found is not None:
            return found
        standing = source.find(path, name)
        value = getattr(standing, "value", None)
        if isinstance(value, ast.Name):  # another name of a class
            name = value.id
        elif isinstance(value, ast.Call):
            return None
        else:
            path = origin(source, path, name) or path
    raise LearningError(f"{path} has no class {name}")


def _hybrid(source: Source, connector: Defined) -> bool:
    return any(
        item.name == HYBRID or any(ast.unparse(base) == HYBRID for base in item.node.bases)
        for item in lineage(source, connector)
    )


def _no_sleep(source: Source, connector: Defined) -> bool:
    """``supports_sleep_mode`` is plainly False. What depends on the connector's own config is left to the resolver."""
    found = member(source, connector, "supports_sleep_mode")
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return False
    body = [node for node in found[1].body if not isinstance(node, ast.Expr)]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    return Reading(source, found[0].path, {}, connector).run(found[1]) is False


def _nixl_single_process(source: Source) -> bool:
    """NIXL's worker takes its block size from the config, which the engine in the same process has changed.

    Without a process of its own, the worker shares the config in which the engine has set the smallest group's size.
    """
    path = source.first(*NIXL_WORKER)
    size = "vllm_config.cache_config.block_size"
    workers = [
        node
        for node in source.tree(path).body
        if isinstance(node, ast.ClassDef) and {"select_common_block_size", "block_size"} <= names(node)
    ]
    made = [item for node in workers for item in node.body if getattr(item, "name", "") == "__init__"]
    sizes = {
        ast.unparse(item.value): item.value
        for function in made
        for item in ast.walk(function)
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value and _target(item) == "self.block_size"
    }
    if sizes and set(sizes) <= {size, f"cast(int, {size})"}:
        return True
    if sizes and all(isinstance(item, ast.IfExp) and size not in ast.unparse(item.body) for item in sizes.values()):
        return False
    raise LearningError(f"{path}: the block_size of NIXL's worker is {' or '.join(sizes) or 'not set'}")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _offload_file(source: Source) -> str:
    for path in OFFLOAD:
        if source.has(path) and ("hash_block_size" in source.text(path) or _RESOLVED in source.text(path)):
            return path
    raise LearningError(f"none of {', '.join(OFFLOAD)} works out the size of a hash block")


def _hash_check(source: Source) -> str:
    """What the offloading connector measures its blocks by: the scheduler's hash blocks, or the main block size."""
    path = _offload_file(source)
    if _RESOLVED in names(source.tree(path)):
        return "resolved"
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.Assign) and _target(node) == "self.hash_block_size":
            if "vllm_config.cache_config.block_size" in ast.unparse(node.value):
                return "cache"
            break
    raise LearningError(f"{path}: hash_block_size comes from somewhere else")
