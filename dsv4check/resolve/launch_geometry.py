"""Where the ranks go: nodes, GPUs, data-parallel ranks and the load balancer in front of them.

Follows ``entrypoints/cli/serve.py`` (load-balancing modes, headless), ``EngineArgs.create_engine_config``
(ranks of a multi-node launch) and the device checks of ``ParallelConfig`` and ``v1/worker/gpu_worker.py``.
Only what the command itself settles is judged: with an unknown number of GPUs, Ray, or
``external_launcher`` the device counts are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.resolution import Parallelism

_INVALID = "Invalid data-parallel launch options: "


@dataclass(frozen=True, slots=True)
class _Launch:
    """The flags that place the ranks, as given (None: not given)."""

    nnodes: int
    node_rank: int
    headless: bool
    external: bool
    hybrid: bool
    rank: int | None
    start_rank: int | None
    local: int | None
    backend: str
    executor: str | None


def launch_problems(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """Problems of the launch's geometry. The first one that stops vLLM hides the later ones, as in vLLM."""
    launch = _read(deployment)
    refusal = _front_end(deployment, launch, section) or _nodes(deployment, launch, section, parallel)
    if refusal is None:
        refusal = _balancer(deployment, launch, section, parallel)
    if refusal is not None:
        return [refusal]
    local, rank = _placement(launch, section, parallel)
    refusal = (
        _sizes(deployment, launch, section, parallel, local, rank)
        or _headless_engines(deployment, launch)
        or _api_servers(deployment, launch, parallel, rank)
    )
    if refusal is not None:
        return [refusal]
    device = _devices(deployment, launch, parallel, local)
    return [device] if device is not None else []


def _read(deployment: Deployment) -> _Launch:
    flags = deployment.flags

    def integer(dest: str) -> int | None:
        value = flags.values.get(dest)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    executor = flags.values.get("distributed_executor_backend")
    return _Launch(
        nnodes=integer("nnodes") or 1,
        node_rank=integer("node_rank") or 0,
        headless=flags.get("headless") is True,
        external=flags.get("data_parallel_external_lb") is True,
        hybrid=flags.get("data_parallel_hybrid_lb") is True,
        rank=integer("data_parallel_rank"),
        start_rank=integer("data_parallel_start_rank"),
        local=integer("data_parallel_size_local"),
        backend=str(flags.get("data_parallel_backend", "mp")),
        executor=None if executor is None else str(executor),
    )


def _problem(
    deployment: Deployment, code: str, exception: str, error: str, data: Mapping[str, Any], *dests: str
) -> Problem:
    origin: Origin | None = None
    for dest in dests:
        use = deployment.flags.use(dest)
        if use is not None:
            origin = use.origin
            break
    return Problem(code, Stage.ENGINE_CONFIG, exception, error, data, origin)


def _front_end(deployment: Deployment, launch: _Launch, section: Mapping[str, Any]) -> Problem | None:
    """``vllm serve`` itself: one load-balancing mode, and no API servers in headless mode."""
    count = deployment.flags.values.get("api_server_count")
    if launch.headless and isinstance(count, int) and count > 0:
        error = (
            f"--api-server-count={count} cannot be used with --headless (no API servers are started in headless mode)."
        )
        return _problem(deployment, "headless-conflict", "ValueError", error, {}, "headless")
    external = launch.external or launch.rank is not None
    multi_port = deployment.flags.get("data_parallel_multi_port_external_lb") is True
    hybrid = launch.hybrid or (launch.start_rank is not None and not multi_port)
    if sum((external, hybrid, multi_port)) > 1:
        error = (
            "Cannot use more than one data parallel load balancing mode."
            if section["multi_port_lb"]
            else "Cannot use both external and hybrid data parallel load balancing modes."
        )
        dests = ("data_parallel_hybrid_lb", "data_parallel_start_rank", "data_parallel_external_lb")
        return _problem(deployment, "lb-modes-conflict", "ValueError", error, {}, *dests)
    if launch.headless and launch.hybrid:
        error = "data_parallel_hybrid_lb is not applicable in headless mode"
        return _problem(deployment, "headless-conflict", "AssertionError", error, {}, "headless")
    return None


def _headless_engines(deployment: Deployment, launch: _Launch) -> Problem | None:
    """``run_headless`` looks at the finished config: a node without API server needs an engine of its own."""
    if not launch.headless or launch.local is None or launch.local > 0:
        return None
    error = "data_parallel_size_local must be > 0 in headless mode"
    return _problem(deployment, "headless-without-engine", "ValueError", error, {}, "data_parallel_size_local")


def _api_servers(deployment: Deployment, launch: _Launch, parallel: Parallelism, rank: int) -> Problem | None:
    """``run_multi_api_server`` serves all engines from the first one's node; other nodes must be headless."""
    flags = deployment.flags
    multi_port = flags.get("data_parallel_multi_port_external_lb") is True
    own_engines = launch.external or launch.hybrid or multi_port
    placed = own_engines or launch.rank is not None or launch.start_rank is not None
    servers = flags.values.get("api_server_count")
    if servers is None:
        servers = parallel.data
    if launch.headless or placed or deployment.command.entrypoint != "serve" or servers < 2 or rank < 1:
        return None
    data = {"node": launch.node_rank, "rank": rank, "servers": servers}
    return _problem(deployment, "later-node-not-headless", "AssertionError", "", data, "node_rank")


def _nodes(
    deployment: Deployment, launch: _Launch, section: Mapping[str, Any], parallel: Parallelism
) -> Problem | None:
    """``--nnodes``: the world must split evenly, the rank must exist."""
    nnodes = launch.nnodes
    if nnodes <= 1:
        return None
    exception = section["geometry"]
    reworded = exception == "ValueError"
    if launch.backend != "mp":
        error = (
            f"{_INVALID}`--nnodes {nnodes}` requires `--data-parallel-backend mp`; "
            f"got `--data-parallel-backend {launch.backend}`."
            if reworded
            else "nnodes > 1 is only supported with data_parallel_backend=mp"
        )
        return _problem(deployment, "nnodes-needs-mp", exception, error, {}, "data_parallel_backend", "nnodes")
    world = parallel.total if section["nnodes_counts_pcp"] else parallel.total // parallel.prefill_context
    data = {"nnodes": nnodes, "world": world, "node_rank": launch.node_rank, "last": nnodes - 1}
    if world % nnodes:
        error = (
            f"{_INVALID}`--nnodes {nnodes}` must evenly divide the total world size ({world})."
            if reworded
            else f"world_size={world} must be divisible by nnodes={nnodes}."
        )
        return _problem(deployment, "nnodes-not-divisible", exception, error, data, "nnodes")
    if not 0 <= launch.node_rank < nnodes:
        error = (
            f"{_INVALID}`--node-rank` must be between 0 and {nnodes - 1}; got `--node-rank {launch.node_rank}`."
            if reworded
            else f"node_rank={launch.node_rank} must be less than nnodes={nnodes}."
        )
        return _problem(deployment, "node-rank-out-of-range", exception, error, data, "node_rank")
    if launch.executor not in (None, "mp", "uni", "external_launcher"):
        error = "nnodes > 1 can only be set when distributed executor backend is mp, uni or external_launcher."
        dest = "distributed_executor_backend"
        return _problem(deployment, "nnodes-needs-mp", "ValidationError", error, data, dest, "nnodes")
    return None


def _balancer(
    deployment: Deployment, launch: _Launch, section: Mapping[str, Any], parallel: Parallelism
) -> Problem | None:
    """What the load-balancing modes need."""
    exception = section["geometry"]
    reworded = exception == "ValueError"
    inferred = launch.nnodes > 1 and parallel.data > 1
    if launch.external and launch.rank is None:
        ambiguous = inferred and launch.nnodes % parallel.data != 0
        if not section["external_lb_overrides_rank"] and ambiguous:
            error = (
                f"{_INVALID}`--node-rank` cannot unambiguously identify external data-parallel ranks when "
                "`--nnodes` is not divisible by `--data-parallel-size`."
            )
            return _problem(deployment, "external-lb-rank", exception, error, {}, "data_parallel_external_lb")
        if not inferred:
            error = (
                f"{_INVALID}`--data-parallel-external-lb` requires a data-parallel rank."
                if reworded
                else "data_parallel_rank or node_rank must be specified if data_parallel_external_lb is enable."
            )
            return _problem(deployment, "external-lb-rank", exception, error, {}, "data_parallel_external_lb")
    if launch.external or launch.rank is not None:
        if launch.local not in (None, 1):
            error = (
                f"{_INVALID}an external data-parallel rank requires `--data-parallel-size-local 1`; "
                f"got {launch.local}. Set it to 1 or omit it."
                if reworded
                else "data_parallel_size_local must be 1 or None when data_parallel_rank is set"
            )
            data = {"local": launch.local}
            return _problem(deployment, "external-lb-local-size", exception, error, data, "data_parallel_size_local")
        if parallel.data <= 1:
            error = "data_parallel_external_lb can only be set when data_parallel_size > 1"
            dests = ("data_parallel_external_lb", "data_parallel_rank")
            return _problem(deployment, "external-lb-without-dp", "ValidationError", error, {}, *dests)
        return None
    if launch.hybrid and launch.local is None and launch.nnodes <= 1:
        error = (
            f"{_INVALID}`--data-parallel-hybrid-lb` requires `--data-parallel-size-local`."
            if reworded
            else "data_parallel_size_local must be set to use data_parallel_hybrid_lb."
        )
        return _problem(deployment, "hybrid-lb-local-size", exception, error, {}, "data_parallel_hybrid_lb")
    fault = deployment.flags.get("enable_fault_tolerance") is True
    if fault:
        error = (
            "Fault tolerance requires external load balancer mode (--data-parallel-external-lb or "
            "--data-parallel-rank). Internal LB mode is not supported."
        )
        return _problem(deployment, "fault-tolerance-internal-lb", "ValueError", error, {}, "enable_fault_tolerance")
    return None


def _placement(launch: _Launch, section: Mapping[str, Any], parallel: Parallelism) -> tuple[int | None, int]:
    """Data-parallel engines on this node (None: Ray places them) and the first one's rank."""
    within = parallel.world_size if section["nnodes_counts_pcp"] else parallel.tensor * parallel.pipeline
    inferred = 0
    local_from_nodes: int | None = None
    if launch.nnodes > 1:
        here = within * parallel.data // launch.nnodes
        inferred = launch.node_rank * here // within
        local_from_nodes = max(here // within, 1)
    if launch.external or launch.rank is not None:
        return 1, inferred if launch.rank is None else launch.rank
    if launch.backend == "ray":
        return None, launch.start_rank or 0
    local = launch.local if launch.local is not None else local_from_nodes
    return (parallel.data if local is None else local), launch.start_rank or inferred


def _sizes(
    deployment: Deployment,
    launch: _Launch,
    section: Mapping[str, Any],
    parallel: Parallelism,
    local: int | None,
    rank: int,
) -> Problem | None:
    """ParallelConfig on local size and rank."""
    if launch.local is not None and launch.local > parallel.data:
        error = f"data_parallel_size_local ({launch.local}) must be <= data_parallel_size ({parallel.data})"
        data = {"local": launch.local, "dp": parallel.data}
        return _problem(deployment, "dp-local-above-dp", "ValidationError", error, data, "data_parallel_size_local")
    if parallel.data > 1 and launch.executor != "external_launcher" and not 0 <= rank < parallel.data:
        error = f"data_parallel_rank ({rank}) must be in the range [0, {parallel.data})"
        data = {"rank": rank, "dp": parallel.data, "last": parallel.data - 1}
        dests = ("data_parallel_rank", "data_parallel_start_rank")
        return _problem(deployment, "dp-rank-out-of-range", "ValidationError", error, data, *dests)
    return None


def _devices(deployment: Deployment, launch: _Launch, parallel: Parallelism, local: int | None) -> Problem | None:
    """Ranks of this node against the GPUs vLLM can see there."""
    gpus = deployment.hardware.gpus_per_node
    vendor = deployment.hardware.vendor
    if gpus is None or vendor not in ("nvidia", "amd", None):
        return None
    world = parallel.world_size
    origin_flags = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    nodes_that_fit = -(-world // gpus) if gpus else 1
    # Ray only spreads ranks over GPUs that are there.
    enough = (deployment.hardware.total_gpus or gpus) >= parallel.total
    data = {
        "world": world,
        "gpus": gpus,
        "fitting_nodes": nodes_that_fit,
        "fitting_ranks": max(1, gpus // world),
        "tp": parallel.tensor,
        "dp": parallel.data,
        "ray_executor": "distributed_executor_backend" if enough else "",
        "ray_ranks": "data_parallel_backend" if enough else "",
    }
    undecided = launch.executor is None and parallel.total > 1
    # On ROCm the config does not count GPUs; the worker that finds none of its own stops then.
    if undecided and launch.nnodes <= 1 and gpus < world and vendor != "amd":
        error = (
            f"World size ({world}) is larger than the number of available GPUs ({gpus}) in this node. "
            "If this is intentional and you are using:\n"
            "- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately."
        )
        return _problem(deployment, "world-exceeds-gpus", "ValidationError", error, data, *origin_flags)
    if launch.executor not in (None, "mp", "uni") or launch.backend == "ray" or local is None:
        return None
    if launch.nnodes > 1:
        ranks = parallel.total // launch.nnodes
        if launch.external or launch.rank is not None:
            ranks = min(ranks, world)
    else:
        ranks = world * local
    if ranks <= gpus or (ranks == 1 and gpus):
        return None
    use = next((u for d in origin_flags if (u := deployment.flags.use(d)) is not None), None)
    origin = use.origin if use is not None else None
    data = {**data, "ranks": ranks, "local": local}
    total = deployment.hardware.total_gpus or gpus
    if gpus and launch.nnodes <= 1 and launch.local is None and world <= gpus and parallel.total <= total:
        # The GPUs of all nodes suffice: an orchestrator may add the flags that say which ranks start here.
        return Problem("dp-ranks-not-placed", Stage.MODEL_INIT, "", "", data, origin)
    error = f"DP adjusted local rank {gpus} is out of bounds"
    return Problem("ranks-exceed-gpus", Stage.MODEL_INIT, "AssertionError", error, data, origin)
