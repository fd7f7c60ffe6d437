"""Deployments for the tests of parallelism, engine config and connectors, built without the input readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Command, Deployment, FlagUse, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.problems import Origin, Problem
from dsv4check.releases.facts import load_facts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.connectors import check_connectors
from dsv4check.resolve.engine_config import check_engine_config
from dsv4check.resolve.parallelism import resolve_parallel

FLASH: Mapping[str, Any] = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "index_head_dim": 128,
    "vocab_size": 129280,
    "expert_dtype": "fp4",
    "max_position_embeddings": 1048576,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
}
PRO: Mapping[str, Any] = {
    **FLASH,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "moe_intermediate_size": 3072,
    "n_routed_experts": 384,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
}
MEMORY_MIB = {"H100": 81559, "H200": 143771, "B200": 183359, "B300": 275040, "A100": 81920, "RTX-5090": 32607}
RELEASES = (
    *("0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1"),
    *("0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)


def deployment(
    vllm: str,
    flags: Mapping[str, Any],
    *,
    gpu: str | None = "H200",
    gpus: int | None = 8,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    config: Mapping[str, Any] = FLASH,
) -> Deployment:
    """A launch with these parsed flags; the compress ratios alternate as in the published checkpoints."""
    uses = tuple(FlagUse(dest, f"--{dest}", f"--{dest}", None, (0, 0), Origin("flag", f"--{dest}")) for dest in flags)
    layers = config["num_hidden_layers"]
    ratios = tuple(0 if index < 2 else (4 if index % 2 == 0 else 128) for index in range(layers))
    hardware = Hardware(gpus_per_node=gpus, nodes=nodes)
    if gpu is not None:
        major = 10 if gpu.startswith("B") else 9
        hardware = Hardware("nvidia", gpu, (major, 0), MEMORY_MIB[gpu], gpus_per_node=gpus, nodes=nodes)
    return Deployment(
        command=Command((), ()),
        flags=ServeFlags("m", dict(flags), uses),
        env=dict(env or {}),
        hardware=hardware,
        vllm=VllmBuild(vllm, "release", vllm, Origin("option")),
        model=Model("m", "deepseek_v4", "original", "m", config, config, ratios),
    )


def parallel_of(launch: Deployment) -> tuple[Parallelism, dict[str, Problem]]:
    parallel, problems = resolve_parallel(launch, load_facts(launch.vllm.release))
    return parallel, {problem.code: problem for problem in problems}


def engine_of(launch: Deployment) -> dict[str, Problem]:
    facts = load_facts(launch.vllm.release)
    parallel, _ = resolve_parallel(launch, facts)
    return {problem.code: problem for problem in check_engine_config(launch, facts, parallel)}


def connectors_of(launch: Deployment) -> tuple[dict[str, Problem], Mapping[str, Any]]:
    facts = load_facts(launch.vllm.release)
    parallel, _ = resolve_parallel(launch, facts)
    problems, values = check_connectors(launch, facts, parallel)
    return {problem.code: problem for problem in problems}, values
