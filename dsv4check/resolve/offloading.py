"""vLLM's own CPU offload (``OffloadingConnector``, ``--kv-offloading-size``) on V4's mixed KV-cache groups.

V4's groups have blocks of 256, 64, 8 and 4 tokens. Facts from ``v1/kv_offload`` (``spec.py`` in 0.20,
``base.py`` to 0.25) and ``distributed/kv_transfer/kv_connector/v1/offloading/config.py`` (0.26 on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.resolve.offload_tiers import PLAIN, TIERING, size_problem, spec_name, spec_problem, tier_problems


def offload_problems(
    deployment: Deployment,
    section: Mapping[str, Any],
    extra: Mapping[str, Any],
    hybrid_disabled: bool,
    origin: Origin | None,
) -> list[Problem]:
    """What the offloading connector refuses when it is created.

    ``extra`` is its ``kv_connector_extra_config``. With the hybrid manager off there is one group, and the
    checks on group sizes do not apply.
    """
    rules = section["offload"]
    unknown = spec_problem(rules, extra, origin)
    if unknown is not None:
        return [unknown]
    mixed = deployment.model.family == "deepseek_v4" and not hybrid_disabled
    block = extra.get("block_size")
    chunk = extra.get("blocks_per_chunk") if rules["chunks"] else None
    problems: list[Problem] = []

    def refuse(code: str, exception: str, error: str, data: Mapping[str, Any]) -> None:
        problems.append(Problem(code, Stage.KV_CACHE_INIT, exception, error, data, origin))

    if block is not None and chunk is not None:
        error = "Specify only one of 'block_size' or 'blocks_per_chunk' in kv_connector_extra_config."
        refuse("offload-both-sizes", "ValueError", error, {"block": block, "chunk": chunk})
    elif chunk is not None and _integer(chunk) is not None and (_integer(chunk) or 0) <= 0:
        refuse("offload-chunk", "ValueError", "'blocks_per_chunk' must be greater than 0.", {"chunk": chunk})
    elif mixed and rules["hash_check"] == "cache":
        # The hash size is the block size of the main group here, which the smaller groups do not divide.
        size = deployment.flags.get("block_size") if deployment.flags.given("block_size") else 256
        group = 64 if isinstance(size, int) and size > 64 else 4
        error = f"gpu_block_size={group} not divisible by hash_block_size={size}."
        refuse("offload-hash-size", "AssertionError", error, {"block": size})
    elif mixed and block is not None:
        error = (
            "If 'block_size' is specified in kv_connector_extra_config, there must be at least one "
            "KV cache group, and all groups must have the same block size."
        )
        refuse("offload-block-size", "AssertionError", error, {"block": block})
    if not problems and not extra.get("cpu_bytes_to_use") and spec_name(extra) in (PLAIN, TIERING):
        error = "cpu_bytes_to_use must be specified in kv_connector_extra_config"
        refuse("offload-no-bytes", "Exception", error, {})
    words = size_problem(extra, origin)
    if words is not None:
        problems.append(words)
    return problems or tier_problems(deployment, rules, extra, origin)


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
