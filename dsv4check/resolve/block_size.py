"""The block size of the main KV cache, and what the release does with an unusual one.

CacheConfig starts at 16 and the worker raises it to 256 when the user gave none
(``platforms/interface.py:update_block_size_for_backend``). A given value is kept and meets the kernel
block size 256 of the main and indexer backends when the cache is set up. That EngineCore later stores
the smallest group's block size (4) in the config is normal and no error.
"""

from __future__ import annotations

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Runner

_LARGEST_RATIO = 128
"""Tokens one C128 state stands for: a smaller block holds none."""
_SET_STORAGE = (
    "setStorage: sizes [...], strides [...], storage offset ..., and itemsize 1 requiring a storage size of ... "
    "are out of bounds for storage of size ..."
)


def resolve_block_size(deployment: Deployment, facts: ReleaseFacts) -> int | None:
    """Tokens per block of the main cache; None when the flag's value is no positive integer."""
    section = facts.section("block_size")
    if not deployment.flags.given("block_size"):
        return int(section["unset"])
    value = deployment.flags.values["block_size"]
    if value is None:
        return int(section["unset"])
    return value if isinstance(value, int) and value > 0 else None


def block_size_problems(
    deployment: Deployment, facts: ReleaseFacts, block_size: int | None, runner: Runner
) -> tuple[Problem, ...]:
    """What goes wrong when the caches are set up with this block size."""
    section = facts.section("block_size")
    kernel = int(section["kernel_block"])
    if block_size is None or block_size == kernel or not deployment.flags.given("block_size"):
        return ()
    use = deployment.flags.use("block_size")
    data = {"block_size": block_size, "kernel_block": kernel, "pieces": block_size // kernel}
    origin = use.origin if use else None
    if block_size % kernel:
        if block_size < _LARGEST_RATIO and section.get("stateless") == "zero-division":
            error = "integer division or modulo by zero"
            return (Problem("block-size-stateless", Stage.KV_CACHE_INIT, "ZeroDivisionError", error, data, origin),)
        error = str(section["no_common_error"]).replace("{block_size}", str(block_size))
        return (Problem("no-common-block-size", Stage.KV_CACHE_INIT, "ValueError", error, data, origin),)
    outcome = section["multiples"].get(runner.name or "v2")
    if outcome == "set-storage":
        error = section.get("large_block_error") or _SET_STORAGE
        return (Problem("block-size-set-storage", Stage.KV_CACHE_INIT, "RuntimeError", error, data, origin),)
    if outcome == "no-split":
        error = str(section["no_split_error"]).replace("{block_size}", str(block_size))
        error = error.replace("{pieces}", str(block_size // kernel))
        return (Problem("block-size-not-split", Stage.KV_CACHE_INIT, "ValueError", error, data, origin),)
    return (Problem("block-size-unverified", Stage.KV_CACHE_INIT, data=data, origin=origin),)
