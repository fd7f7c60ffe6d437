"""V4.1's engram tables: hash heads spread over the tensor-parallel ranks.

Source: ``models/deepseek_v41/common/engram.py:ParallelEngramEmbedding`` (0.30 and later).
"""

from __future__ import annotations

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolution import Parallelism
from dsv4check.resolve.flag_values import where


def engram_problems(deployment: Deployment, parallel: Parallelism) -> list[Problem]:
    """Every rank must get a hash head: there are ``n_heads`` of them for each n-gram size from 2 on.

    With data parallelism the tables may also be spread over the replicas, which depends on the node layout and is
    not judged here.
    """
    model = deployment.model
    heads, longest = model.integer("engram_n_heads"), model.integer("engram_max_ngram_size")
    if model.family != "deepseek_v41" or not heads or not longest or parallel.data > 1:
        return []
    total, shards = (longest - 1) * heads, parallel.tensor
    share = -(-total // shards)
    if (shards - 1) * share < total:
        return []
    fitting = next(size for size in range(shards - 1, 0, -1) if (size - 1) * -(-total // size) < total)
    error = f"Engram sharding leaves ranks without hash heads: {total} heads over {shards} shards"
    data = {"heads": total, "tp": shards, "fitting": fitting}
    origin = where(deployment, "tensor_parallel_size")
    return [Problem("engram-shards", Stage.MODEL_INIT, "AssertionError", error, data, origin)]
