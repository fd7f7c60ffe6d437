"""Whether the scheduler runs ahead of the GPU, and how many batches are then in flight.

Source: ``VllmConfig.__post_init__`` (the default) and ``VllmConfig.max_concurrent_batches``.
"""

from __future__ import annotations

from dsv4check.deployment import Deployment
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism, Runner

_EXECUTORS = (None, "mp", "uni", "external_launcher")


def async_scheduling(deployment: Deployment, facts: ReleaseFacts, draft: Draft, runner: str | None = None) -> bool:
    """On when asked for, and when nothing is said unless the draft or the executor cannot have it."""
    flags = deployment.flags
    asked = flags.get("async_scheduling")
    if asked is not None:
        return asked is True
    if flags.get("distributed_executor_backend") not in _EXECUTORS or flags.get("data_parallel_backend") == "ray":
        return False
    section = facts.section("runner")["async"]
    refused = draft.method in section["refused_methods"] or draft.config.get("disable_padded_drafter_batch") is True
    return not (refused and (runner is None or runner in section["runners"]))


def batches_in_flight(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, runner: Runner, parallel: Parallelism
) -> int | None:
    """Batches that are scheduled and not yet finished; None when the runner is not known and would decide."""
    stages = parallel.pipeline
    if not async_scheduling(deployment, facts, draft, runner.name):
        return stages
    if runner.name == "v2":
        return stages + 1
    if stages > 1:
        return stages if runner.name == "v1" else None
    return 2
