"""Process groups of any size in one process: this rank's view of tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

from typing import Any

from .failures import HarnessLimit

_LARGEST = 4096
"""Ranks of the pretended world; larger than any launch."""


class StandInCommunicator:
    """A group's device communicator, without the faster ways between GPUs that a machine may or may not have."""

    stand_in = True

    ca_comm = None
    """Custom all-reduce."""


class StandInGroup:
    """A GroupCoordinator that knows its size and this process's place in it, and communicates with nobody."""

    stand_in = True

    def __init__(self, world_size: int, rank: int = 0) -> None:
        self.world_size = world_size
        self.rank = self.rank_in_group = self.local_rank = rank
        self.is_first_rank = rank == 0
        self.is_last_rank = rank == world_size - 1
        self.ranks = list(range(world_size))
        self.first_rank = 0
        self.last_rank = world_size - 1
        self.next_rank = (rank + 1) % world_size
        self.prev_rank = (rank - 1) % world_size
        self.device_group = self.cpu_group = None
        self.device_communicator = StandInCommunicator() if world_size > 1 else None
        self.use_device_communicator = False
        self.unique_name = "simulated"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def start_process_group() -> None:
    """torch.distributed is initialised with a backend that moves nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=_LARGEST)


def install(config: Any, stage: int = 0) -> dict[str, int]:
    """Set vLLM's groups for a launch; returns their sizes.

    ``stage`` is the rank among the pipeline stages; in every other group the rank is 0.
    """
    import vllm.distributed.parallel_state as state

    parallel = config.parallel_config
    tensor, pipeline, data = (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.data_parallel_size,
    )
    prefill = getattr(parallel, "prefill_context_parallel_size", 1) or 1
    decode = getattr(parallel, "decode_context_parallel_size", 1) or 1
    sizes = {
        "_WORLD": tensor,
        "_TP": tensor,
        "_PP": pipeline,
        "_DP": data,
        "_EP": tensor * data * prefill,
        "_EPLB": tensor * data * prefill,
        "_DCP": decode,
        "_PCP": prefill,
        "_INNER_DP_WORLD": 1,
    }
    for name, size in sizes.items():
        if name in ("_WORLD", "_TP", "_PP") and not hasattr(state, name):
            raise HarnessLimit(f"vllm.distributed.parallel_state has no {name} any more")
        setattr(state, name, StandInGroup(size, stage if name == "_PP" else 0))
    return {name.strip("_").lower(): size for name, size in sizes.items()}
