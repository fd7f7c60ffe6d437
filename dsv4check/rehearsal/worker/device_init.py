"""The worker takes its GPU: vLLM's ``Worker.init_device`` up to the point where it would open process groups."""

from __future__ import annotations

import copy
import importlib
from typing import Any

from .failures import HarnessLimit


class _Reached(BaseException):
    """The worker has its device."""


def check(config: Any) -> None:
    """Let the last worker of this node take its GPU. Raises what vLLM raises: too few GPUs, a dtype it lacks.

    Ray assigns GPUs itself; its workers are not checked.
    """
    parallel = config.parallel_config
    executor = parallel.distributed_executor_backend
    if executor not in ("mp", "uni") or getattr(parallel, "data_parallel_backend", "") == "ray":
        return
    module: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
    if not hasattr(module, "init_worker_distributed_environment"):
        raise HarnessLimit("vllm.v1.worker.gpu_worker has no init_worker_distributed_environment any more")

    def reached(*_args: Any, **_kwargs: Any) -> None:
        raise _Reached

    class RehearsedWorker(module.Worker):  # type: ignore[misc]
        """vLLM's worker without its constructor."""

        stand_in = True

    worker = object.__new__(RehearsedWorker)
    for part in ("model", "cache", "load", "scheduler", "device"):
        setattr(worker, f"{part}_config", getattr(config, f"{part}_config", None))
    worker.vllm_config = config
    # The engine's manager numbers the data-parallel engines of a node; the last one needs the most GPUs.
    worker.parallel_config = copy.copy(parallel)
    worker.parallel_config.data_parallel_rank_local = max(getattr(parallel, "data_parallel_size_local", 1), 1) - 1
    worker.local_rank = worker.rank = parallel.local_world_size - 1
    worker.distributed_init_method = ""
    worker.use_v2_model_runner = False
    original = module.init_worker_distributed_environment
    module.init_worker_distributed_environment = reached
    try:
        worker.init_device()
    except _Reached:
        return
    finally:
        module.init_worker_distributed_environment = original
    raise HarnessLimit("the worker took its device without opening process groups")
