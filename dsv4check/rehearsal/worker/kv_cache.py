"""KV cache: specs, the engine core's own planning, and a real allocation reshaped by the release's model runner.

The planned cache is allocated in its full size on the CPU, as address space that nobody writes to, so the plan is
used as it is and costs no memory.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import mmap
from collections.abc import Iterator
from typing import Any

from .failures import HarnessLimit
from .simulated_device import STATE, Inert

_LARGE = 64 << 20
"""Bytes from which an allocation is taken as cache and gets address space only."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python names the flag from 3.13 on; the number is Linux's."""


class Planned(BaseException):
    """The engine core has handed its plan to the workers."""

    def __init__(self, configs: list[Any]) -> None:
        super().__init__("planned")
        self.configs = configs


class _Workers:
    """The workers of the engine: they answer the calls the engine core makes while it plans, a list item each."""

    stand_in = True

    def __init__(self, config: Any, specs: list[dict[str, Any]], memory: list[int]) -> None:
        base = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
        self.vllm_config = config
        self._base = base
        self._specs = specs
        self._memory = memory

    def call(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Run one of the workers' methods; one answer per worker."""
        match method:
            case "get_kv_cache_spec":
                return self._specs
            case "determine_available_memory":
                return self._memory
            case "update_max_model_len":
                return [None] * len(self._specs)
            case "initialize_from_config":
                raise Planned(list(args[0]))
            case "get_supported_kv_cache_layouts" | "set_kv_cache_layout":
                return [getattr(self._base, method)(self, *args) for _ in self._specs]
        raise HarnessLimit(f"the engine core asks its workers for {method!r}, which is not simulated")


def block_size(config: Any) -> int:
    """Let the platform choose the block size, as every executor does after the model is built."""
    from vllm.platforms import current_platform

    if hasattr(current_platform, "update_block_size_for_backend"):
        current_platform.update_block_size_for_backend(config)
    return int(config.cache_config.block_size)


def specs_of(config: Any, v2_runner: bool) -> dict[str, Any]:
    """Layer name -> KVCacheSpec, by the model runner's own function."""
    if v2_runner:
        specs = importlib.import_module("vllm.v1.worker.gpu.attn_utils").get_kv_cache_spec(config)
    else:
        specs = _v1_runner(config).get_kv_cache_spec()
    if not specs:
        raise HarnessLimit("no layer has a KV-cache spec")
    return dict(specs)


def memory_for_cache(config: Any, weights: int) -> int:
    """Bytes left for the cache at best: what may be used, less this rank's weights, nothing for activations."""
    cache = config.cache_config
    fixed = getattr(cache, "kv_cache_memory_bytes", None)
    if fixed:
        return int(fixed)
    offload = getattr(config, "offload_config", None)
    offloads = getattr(cache, "cpu_offload_gb", 0) or any(
        getattr(getattr(offload, part, None), key, 0)
        for part, key in (("uva", "cpu_offload_gb"), ("prefetch", "offload_group_size"))
    )
    return int(STATE.memory * cache.gpu_memory_utilization) - (0 if offloads else weights)


def plan(config: Any, specs: list[dict[str, Any]], memory: list[int]) -> list[Any]:
    """The KVCacheConfigs that ``EngineCore._initialize_kv_caches`` works out: one per worker, as are the arguments."""
    core = importlib.import_module("vllm.v1.engine.core").EngineCore
    executor_class = importlib.import_module("vllm.v1.executor.abstract").Executor
    workers = _Workers(config, specs, memory)

    class RehearsedExecutor(executor_class):  # type: ignore[misc, valid-type]
        """vLLM's executor with workers that answer in this process."""

        stand_in = True
        _init_executor = check_health = lambda *_args, **_kwargs: None

        def collective_rpc(
            self, method: str, timeout: Any = None, args: tuple[Any, ...] = (), kwargs: Any = None, **_more: Any
        ) -> list[Any]:
            return workers.call(method, args)

    RehearsedExecutor.__abstractmethods__ = frozenset()
    executor = object.__new__(RehearsedExecutor)
    executor.vllm_config = config

    class RehearsedCore(core):  # type: ignore[misc, valid-type]
        """The engine core without its constructor."""

        stand_in = True

    engine = object.__new__(RehearsedCore)
    engine.vllm_config = config
    engine.model_executor = executor
    engine.available_gpu_memory_for_kv_cache = memory[0]
    engine.collective_rpc = executor.collective_rpc
    try:
        engine._initialize_kv_caches(config)
    except Planned as planned:
        return planned.configs
    raise HarnessLimit("the engine core ended its planning without a plan for the workers")


def allocate(config: Any, kv_cache_config: Any, v2_runner: bool) -> dict[str, Any]:
    """Layer name -> cache tensor as the layer holds it after the runner has bound it."""
    with _address_space_only():
        caches = _allocate_v2(config, kv_cache_config) if v2_runner else _allocate_v1(config, kv_cache_config)
    context = config.compilation_config.static_forward_context
    bound: dict[str, Any] = {}
    for name, cache in caches.items():
        held = getattr(context.get(name), "kv_cache", None)
        if isinstance(held, (list, tuple)) and held:
            held = held[0]
        bound[name] = held if hasattr(held, "stride") else cache
    return bound


def _allocate_v1(config: Any, kv_cache_config: Any) -> dict[str, Any]:
    runner = _v1_runner(config)
    runner.kv_cache_config = kv_cache_config
    runner.initialize_attn_backend(kv_cache_config)
    worker_utils = importlib.import_module("vllm.v1.worker.utils")
    kernel_blocks = worker_utils.prepare_kernel_block_sizes(kv_cache_config, runner.attn_groups)
    runner._kernel_block_sizes = kernel_blocks
    runner.initialize_metadata_builders(kv_cache_config, kernel_blocks)
    return dict(runner.initialize_kv_cache_tensors(kv_cache_config, kernel_blocks))


def _allocate_v2(config: Any, kv_cache_config: Any) -> dict[str, Any]:
    import torch

    utils = importlib.import_module("vllm.v1.worker.gpu.attn_utils")
    known: dict[str, Any] = {
        "kv_cache_config": kv_cache_config,
        "vllm_config": config,
        "device": torch.device("cpu"),
        "cache_dtype": config.cache_config.cache_dtype,
        "runner_kv_caches": [],
        "forward_context": config.compilation_config.static_forward_context,
    }
    support = None
    for part in _call(utils.init_attn_backend, known):
        if isinstance(part, dict):
            known["attn_backends"] = part
        elif hasattr(part, "min_cg_support"):
            support = part
        elif isinstance(part, list) and part and isinstance(part[0], int):
            known["kernel_block_sizes"] = part
        elif isinstance(part, list):
            known["attn_groups"] = part
    if support is None:
        raise HarnessLimit("init_attn_backend no longer returns the backends' graph support")
    _resolve_cudagraphs(config, kv_cache_config, support)
    _check_context_parallel(config)
    groups = known.get("attn_groups", [])
    if _flat_groups(utils.init_kv_cache):
        known["attn_groups"] = [group for part in groups for group in part]
    return dict(_call(utils.init_kv_cache, known))


def _flat_groups(function: Any) -> bool:
    """From 0.32 on ``init_kv_cache`` takes the attention groups as one iterable, before as one list per cache group."""
    parameter = inspect.signature(function).parameters.get("attn_groups")
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


def _call(function: Any, known: dict[str, Any]) -> Any:
    """Call a function of vLLM with those of ``known`` that it takes; one it needs and we lack is our limit."""
    parameters = inspect.signature(function).parameters
    unknown = [
        name for name, item in parameters.items() if item.default is inspect.Parameter.empty and name not in known
    ]
    if unknown:
        raise HarnessLimit(f"{function.__name__} now needs {', '.join(unknown)}")
    return function(**{name: known[name] for name in parameters if name in known})


def _decode_query_length(config: Any) -> int:
    speculative = config.speculative_config
    return 1 + (speculative.num_speculative_tokens or 0 if speculative is not None else 0)


def _resolve_cudagraphs(config: Any, kv_cache_config: Any, support: Any) -> None:
    resolve = config.compilation_config.resolve_cudagraph_mode_and_sizes
    known = {
        "min_cg_support": support.min_cg_support,
        "min_cg_attn_backend": support.min_cg_attn_backend,
        "uniform_decode_query_len": _decode_query_length(config),
        "use_v2_model_runner": True,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "kv_cache_config": kv_cache_config,
        "max_num_reqs": config.scheduler_config.max_num_seqs,
    }
    _call(resolve, known)


def _check_context_parallel(config: Any) -> None:
    check = getattr(importlib.import_module("vllm.v1.worker.cp_utils"), "check_attention_cp_compatibility", None)
    if check is not None:
        check(config)


def _v1_runner(config: Any) -> Any:
    """A V1 model runner without its constructor, holding what the KV-cache methods read."""
    import torch

    runner_class = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner

    class RehearsedRunner(runner_class):  # type: ignore[misc, valid-type]
        """vLLM's runner; an attribute that is missing here is the rehearsal's limit."""

        stand_in = True

    runner = object.__new__(RehearsedRunner)
    parts = ("model", "cache", "compilation", "lora", "load", "parallel", "scheduler", "observability", "attention")
    for part in parts:
        setattr(runner, f"{part}_config", getattr(config, f"{part}_config", None))
    runner.vllm_config = config
    # The drafter is not set up here, so its own metadata builders are left out.
    runner.speculative_config = None
    runner.drafter = None
    runner.device = torch.device("cpu")
    runner.dtype = config.model_config.dtype
    runner.max_model_len = config.model_config.max_model_len
    runner.max_num_reqs = config.scheduler_config.max_num_seqs
    runner.max_num_tokens = config.scheduler_config.max_num_batched_tokens
    runner.uniform_decode_query_len = _decode_query_length(config)
    runner.cudagraph_dispatcher = Inert()
    runner.kv_caches = []
    runner.attn_groups = []
    runner.shared_kv_cache_layers = {}
    runner.runner_only_attn_layers = set()
    runner.kv_sharing_fast_prefill_eligible_layers = set()
    runner.cross_layers_kv_cache = None
    runner.cross_layers_attn_backend = None
    runner.reorder_batch_threshold = None
    runner.use_async_scheduling = bool(getattr(config.scheduler_config, "async_scheduling", False))
    return runner


@contextlib.contextmanager
def _address_space_only() -> Iterator[None]:
    """Large tensors made by ``torch.zeros`` and ``torch.empty`` get memory that is not there until it is used.

    It reads as zero. ``empty`` counts too: 0.20 makes one of the cache's shape only to ask for its strides.
    """
    import torch

    originals = {"zeros": torch.zeros, "empty": torch.empty}

    def replacement(original: Any) -> Any:
        def make(*size: Any, dtype: Any = None, device: Any = None, **more: Any) -> Any:
            first = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
            shape = tuple(int(number) for number in first)
            kind = dtype or torch.get_default_dtype()
            size_in_bytes = math.prod(shape) * kind.itemsize
            if size_in_bytes < _LARGE or torch.device(device or "cpu").type != "cpu":
                return original(*size, dtype=dtype, device=device, **more)
            try:
                area = mmap.mmap(-1, size_in_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE)
            except (OSError, ValueError, OverflowError) as error:
                raise HarnessLimit(f"{size_in_bytes} bytes of address space were refused ({error})") from None
            return torch.frombuffer(area, dtype=kind).reshape(shape)

        return make

    for name, original in originals.items():
        setattr(torch, name, replacement(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
