"""Ways to spread a model over a number of GPUs that operators use: the candidates of a plan.

Within a node: tensor parallelism (TP) with and without expert parallelism (EP), data parallelism (DP) with EP, and
TP x DP with EP. Over nodes: TP inside a node with a pipeline (PP) across them, or DP with EP across them. TP across
nodes only where the GPUs of several nodes share NVLink, or a node has a single GPU and nothing else to offer.
DP without EP is left out: the experts are then cut over TP x DP all the same, with smaller slices for the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv4check.records import dataclass

HEAD_ADDRESS: Final = "HEAD_NODE_IP"
"""Stands for the address of the first node in commands for several."""

PLACED: Final = frozenset(
    {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"}
)
"""Dests of the flags that make a layout."""
NODE_FLAGS: Final = frozenset(
    {"nnodes", "node_rank", "master_addr", "headless", "data_parallel_size_local", "data_parallel_address"}
    | {"data_parallel_start_rank", "data_parallel_rank", "data_parallel_backend", "distributed_executor_backend"}
    | {"data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"}
)
"""Dests of the flags that say where the ranks of a layout go."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel groups, and the nodes they are spread over."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    """Expert parallelism."""
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.tensor * self.pipeline * self.data

    @property
    def label(self) -> str:
        """``TP 2 x DP 4 + EP``."""
        sizes = (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data))
        text = " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one GPU"
        text += " + EP" if self.experts else ""
        return f"{text} over {self.nodes} nodes" if self.nodes > 1 else text

    def sizes(self) -> dict[str, object]:
        """dest -> value of the flags in :data:`PLACED`, as the parser reads them; defaults included."""
        return {
            "tensor_parallel_size": self.tensor,
            "pipeline_parallel_size": self.pipeline,
            "data_parallel_size": self.data,
            "enable_expert_parallel": self.experts,
        }

    def flags(self) -> tuple[tuple[str, ...], ...]:
        """The flags of the first node's command, each with its value."""
        named = (
            ("--tensor-parallel-size", self.tensor),
            ("--pipeline-parallel-size", self.pipeline),
            ("--data-parallel-size", self.data),
        )
        flags: list[tuple[str, ...]] = [(name, str(size)) for name, size in named if size > 1]
        if self.experts:
            flags.append(("--enable-expert-parallel",))
        return (*flags, *self._node_flags())

    def follower_flags(self, node: int) -> tuple[tuple[str, ...], ...]:
        """The same for a further node (1 to nodes - 1): it has no API server of its own."""
        ranked = [("--node-rank", str(node)) if flag[0] == "--node-rank" else flag for flag in self.flags()]
        if self.data > 1:
            ranked.append(("--data-parallel-start-rank", str(node * self.data // self.nodes)))
        return (*ranked, ("--headless",))

    def _node_flags(self) -> tuple[tuple[str, ...], ...]:
        if self.nodes == 1:
            return ()
        if self.data > 1:
            local = str(self.data // self.nodes)
            return (("--data-parallel-size-local", local), ("--data-parallel-address", HEAD_ADDRESS))
        return (("--nnodes", str(self.nodes)), ("--node-rank", "0"), ("--master-addr", HEAD_ADDRESS))


def gpu_counts(per_node: int, max_nodes: int) -> list[int]:
    """Numbers of GPUs to try, ascending: powers of two within a node, a whole node, then whole nodes."""
    within = [1 << power for power in range(per_node.bit_length()) if 1 << power < per_node]
    return [*within, *(per_node * nodes for nodes in range(1, max_nodes + 1))]


def layouts(gpus: int, per_node: int, *, linked_nodes: bool = False) -> list[Layout]:
    """The candidates that use exactly ``gpus`` GPUs; ``linked_nodes``: NVLink joins the GPUs of several nodes.

    Where they take several nodes, ``gpus`` is a multiple of ``per_node``.
    """
    nodes = -(-gpus // per_node)
    return list(_within(gpus) if nodes == 1 else _across(gpus, per_node, nodes, linked_nodes or per_node == 1))


def _within(gpus: int) -> Iterator[Layout]:
    yield Layout(tensor=gpus)
    if gpus == 1:
        return
    yield Layout(tensor=gpus, experts=True)
    for tensor in _divisors(gpus):
        if tensor < gpus:
            yield Layout(tensor=tensor, data=gpus // tensor, experts=True)


def _across(gpus: int, per_node: int, nodes: int, linked: bool) -> Iterator[Layout]:
    for experts in (False, True) if per_node > 1 else (False,):
        yield Layout(tensor=per_node, pipeline=nodes, experts=experts, nodes=nodes)
    if linked:
        for experts in (False, True):
            yield Layout(tensor=gpus, experts=experts, nodes=nodes)
    for tensor in _divisors(per_node):
        yield Layout(tensor=tensor, data=gpus // tensor, experts=True, nodes=nodes)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
