"""What ``VllmConfig`` does with a KV connector: the hybrid manager, offloading flags and refusals."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from .interpret import Reading
from .source import LearningError, Source, names, raises, strings
from .values import Raised

CONFIG: Final = "config/vllm.py"
FACTORY: Final = "distributed/kv_transfer/kv_connector/factory.py"
OFFLOAD_FLAG: Final = "_post_init_kv_transfer_config"
"""Turns ``--kv-offloading-size`` into a connector."""
SEGMENTS: Final = "expandable_segments:True"
HISPARSE_LAYOUT: Final = "v1/hisparse/layout.py"
_HISPARSE_ALWAYS: Final = (
    "HiSparse does not support pipeline parallelism.",
    "HiSparse does not support decode context parallelism.",
    "HiSparse requires the hybrid KV cache manager",
)


def _method(source: Source, name: str) -> ast.FunctionDef | None:
    found = source.find(CONFIG, f"VllmConfig.{name}")
    return found if isinstance(found, ast.FunctionDef) else None


def _post_init(source: Source) -> ast.FunctionDef:
    found = _method(source, "__post_init__")
    if found is None:
        raise LearningError(f"{CONFIG} VllmConfig has no __post_init__")
    return found


def _hybrid_block(source: Source) -> ast.If:
    """The part of ``__post_init__`` that settles the hybrid manager when the user did not."""
    for node in ast.walk(_post_init(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("disable_hybrid_kv_cache_manager is None"):
            for item in node.body:
                if isinstance(item, ast.If) and "kv_transfer_config" in names(item.test):
                    return item
    raise LearningError(
        f"{CONFIG} VllmConfig.__post_init__ does not settle the hybrid KV-cache manager by the connector"
    )


def any_disables_hybrid(source: Source) -> bool:
    """Every connector switches the hybrid manager off: the class is not asked."""
    block = _hybrid_block(source)
    asked = {"supports_hma", "supports_hma_config"} & names(block)
    if not asked and "need_disable_hybrid_kv_cache_manager" not in names(block):
        raise LearningError(f"{CONFIG}: what a connector does to the hybrid KV-cache manager cannot be told")
    return not asked


def multi_checks_children(source: Source) -> str:
    """Where a MultiConnector's children are first looked at: in the config, or when it is created."""
    parts = [_hybrid_block(source), source.find(FACTORY, "KVConnectorFactory.supports_hma_config")]
    asked = any(part is not None and "MultiConnector" in strings(part) for part in parts)
    return "config" if asked else "create"


def offload_before_hybrid(source: Source) -> bool:
    """``--kv-offloading-size`` has become a connector before the hybrid manager is settled."""
    calls = [
        node.lineno
        for node in ast.walk(_post_init(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{OFFLOAD_FLAG}"
    ]
    if len(calls) != 1:
        raise LearningError(f"{CONFIG} VllmConfig.__post_init__ does not call {OFFLOAD_FLAG} once")
    return calls[0] < _hybrid_block(source).lineno


def _offload(source: Source, known: Mapping[str, Any]) -> tuple[Any, Reading]:
    function = _method(source, OFFLOAD_FLAG)
    if function is None:
        raise LearningError(f"{CONFIG} VllmConfig has no {OFFLOAD_FLAG}")
    reading = Reading(source, CONFIG, known)
    return reading.run(function), reading


def lmcache_connector(source: Source) -> str:
    """The connector that ``--kv-offloading-backend lmcache`` stands for."""
    known = {
        "self.cache_config.kv_offloading_size": 1,
        "self.cache_config.kv_offloading_backend": "lmcache",
        "self.kv_transfer_config": SimpleNamespace(kv_connector=None),
    }
    name = _offload(source, known)[1].known.get("self.kv_transfer_config.kv_connector")
    if not isinstance(name, str):
        raise LearningError(f"{CONFIG} {OFFLOAD_FLAG} sets no connector for lmcache")
    return name


def hidden_states_chunked(source: Source) -> bool:
    """ExampleHiddenStatesConnector is refused together with chunked prefill."""
    known = {
        "self.cache_config.kv_offloading_size": None,
        "self.kv_transfer_config": SimpleNamespace(kv_connector="ExampleHiddenStatesConnector"),
        "self.scheduler_config.enable_chunked_prefill": True,
    }
    outcome = _offload(source, known)[0]
    return isinstance(outcome, Raised)


def expandable_segments(source: Source) -> str | None:
    """Which option lifts the refusal of expandable segments beside a connector; None when they are not refused."""
    refusing = [
        node
        for node in getattr(source.get(CONFIG, "VllmConfig"), "body", [])
        if isinstance(node, ast.FunctionDef) and SEGMENTS in strings(node)
    ]
    if not refusing:
        return None
    if len(refusing) != 1:
        raise LearningError(f"{CONFIG} VllmConfig looks at {SEGMENTS} in several places")

    def refused(**options: bool) -> bool:
        model = SimpleNamespace(**({"enable_sleep_mode": False, "enable_cumem_allocator": False} | options))
        known = {
            "self.kv_transfer_config": SimpleNamespace(kv_connector="SomeConnector"),
            "self.model_config": model,
            "os.environ.get('PYTORCH_CUDA_ALLOC_CONF', '')": SEGMENTS,
        }
        return isinstance(Reading(source, CONFIG, known).run(refusing[0]), Raised)

    if not refused():
        raise LearningError(f"{CONFIG} {refusing[0].name} does not refuse {SEGMENTS}")
    if not refused(enable_cumem_allocator=True):
        return "cumem"
    if not refused(enable_sleep_mode=True):
        return "sleep"
    raise LearningError(f"{CONFIG} {refusing[0].name}: no known option lifts the refusal of {SEGMENTS}")


def nixl_dcp(source: Source) -> str | None:
    """What the decode context-parallel size must be, when it is not 1, with NIXL: the tensor-parallel size (``tp``) or
    the larger of it and the prefill context-parallel size (``transfer``).
    """
    for node in ast.walk(_post_init(source)):
        nixl = isinstance(node, ast.If) and "NixlConnector" in strings(node.test)
        if not isinstance(node, ast.If) or not nixl or "decode_context_parallel_size" not in names(node):
            continue

        def refused(body: list[ast.stmt] = node.body, **given: int) -> bool:
            sizes = {"prefill_context_parallel_size": 1, "tensor_parallel_size": 2} | given
            known = {f"self.parallel_config.{name}": size for name, size in sizes.items()}
            reading = Reading(source, CONFIG, known | {"self.model_config": None})
            return isinstance(reading.run(_post_init(source), body), Raised)

        if [refused(decode_context_parallel_size=size) for size in (1, 2, 3)] != [False, False, True]:
            raise LearningError(f"{CONFIG}: NIXL ties the decode context-parallel size to something unknown")
        larger = refused(decode_context_parallel_size=4, prefill_context_parallel_size=4)
        return "tp" if larger else "transfer"
    if any("decode_context_parallel_size" in text and "must be 1 or" in text for text in _texts(source)):
        raise LearningError(f"{CONFIG} VllmConfig checks the decode context-parallel size of NIXL in another way")
    return None


def _texts(source: Source) -> list[str]:
    return [text for _, text in raises(source.get(CONFIG, "VllmConfig"))]


def hisparse(source: Source, registered: bool) -> dict[str, bool] | None:
    """Which of HiSparse's changing preconditions are checked, V4's absence too; None without HiSparse."""
    if not registered:
        return None
    texts = _texts(source)
    for start in _HISPARSE_ALWAYS:
        if not any(text.startswith(start) for text in texts):
            raise LearningError(f"{CONFIG} VllmConfig does not say {start!r} any more")
    layout = raises(source.tree(HISPARSE_LAYOUT)) if source.has(HISPARSE_LAYOUT) else []
    return {
        "refuses_v4": any(text.startswith("HiSparse does not support DeepSeek V4") for _, text in layout),
        "full_graph": any(text.startswith("HiSparse does not support cudagraph_mode=FULL") for text in texts),
        "reserve_isl": any(text.startswith("HiSparse requires --scheduler-reserve-full-isl") for text in texts),
    }
