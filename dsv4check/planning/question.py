"""What a plan is asked for, read and checked before any candidate is built."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dsv4check.deployment import Deployment
from dsv4check.errors import InputError
from dsv4check.inputs.gpu import find_gpu
from dsv4check.memory.gpu_memory import gpu_memory
from dsv4check.planning.layouts import NODE_FLAGS, PLACED
from dsv4check.planning.repairs import extended
from dsv4check.planning.tuning import TUNED
from dsv4check.records import dataclass
from dsv4check.releases.facts import facts_of
from dsv4check.request import build_deployment
from dsv4check.resolve.scheduler_limits import derived_length

if TYPE_CHECKING:
    from dsv4check.request import Request

DRAFTS: Final = ("none", "mtp", "dspark")
_BY_PLAN: Final = {"max_model_len": "--context says it"} | dict.fromkeys(NODE_FLAGS, "the plan places the ranks")
_SPECULATION: Final = ("speculative_config", "spec_method", "spec_model", "spec_tokens")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the deployment must serve."""

    context: int
    """Tokens of a request: prompt and answer together."""
    concurrency: int
    """Requests of that length at once."""
    max_nodes: int = 2
    draft: str = "none"
    """One of :data:`DRAFTS`; ``none`` adds no flag."""
    draft_tokens: int | None = None
    """Tokens that the draft proposes; None: as many as the checkpoint was made for."""


@dataclass(frozen=True, slots=True)
class Question:
    """The base of all candidates: the model, the flags that were stated, context and draft."""

    wanted: Wanted
    request: Request
    deployment: Deployment
    """Of that request: a launch on one GPU."""
    per_node: int
    """GPUs of a node."""
    linked_nodes: bool
    """NVLink joins the GPUs of several nodes."""

    @property
    def given(self) -> frozenset[str]:
        """Dests of the flags that every candidate has: no candidate and no fix changes them."""
        return frozenset(self.deployment.flags.values)

    @property
    def settled(self) -> frozenset[str]:
        """Dests that fixes leave alone: those given, those the plan decides, and the draft that was asked for."""
        return self.given | PLACED | NODE_FLAGS | TUNED | {"max_model_len", *_SPECULATION}


def read_question(request: Request, wanted: Wanted) -> Question:
    """Put the question together. ``request``: the model with the further flags, and the machine.

    Raises InputError where it makes no sense, or nothing can be planned with what is known.
    """
    for name, value in (("--concurrency", wanted.concurrency), ("--context", wanted.context)):
        if value < 1:
            raise InputError(f"{name} {value}: expected a positive number")
    if wanted.max_nodes < 1:
        raise InputError(f"--max-nodes {wanted.max_nodes}: expected a positive number")
    deployment = build_deployment(request)
    _refuse_flags(deployment, wanted)
    _refuse_unplannable(deployment)
    _refuse_length(deployment, wanted.context)
    words = ["--max-model-len", str(wanted.context), *_draft_words(deployment, wanted)]
    request = replace(request, command=extended(request.command, tuple(words)))
    deployment = build_deployment(request)
    spec = find_gpu(deployment.hardware.name or "")
    per_node = deployment.hardware.gpus_per_node
    if per_node is None:
        per_node = spec.per_node if spec is not None else 8
    if per_node < 1:
        raise InputError("no GPU of the machine is visible to the launch (CUDA_VISIBLE_DEVICES)")
    hardware = replace(request.hardware, gpus_per_node=per_node, nodes=1)
    linked = spec is not None and spec.nvlink == "rack"
    return Question(wanted, replace(request, hardware=hardware), deployment, per_node, linked)


def _refuse_flags(deployment: Deployment, wanted: Wanted) -> None:
    flags = deployment.flags
    for use in flags.uses:
        if use.dest in _BY_PLAN:
            raise InputError(f"{use.option}: leave it out, {_BY_PLAN[use.dest]}")
    if wanted.draft not in DRAFTS:
        raise InputError(f"--draft {wanted.draft}: expected one of {', '.join(DRAFTS)}")
    if wanted.draft != "none" and any(flags.given(dest) for dest in _SPECULATION):
        raise InputError(f"--draft {wanted.draft}: the flags behind the model configure a draft, too; say it once")
    kind = deployment.model.draft_kind
    if wanted.draft != "none" and kind not in (None, wanted.draft):
        held = "no draft" if kind == "none" else f"a draft for {kind}"
        raise InputError(f"--draft {wanted.draft}: the checkpoint of {deployment.model.name} holds {held}")
    if wanted.draft_tokens is not None and wanted.draft == "none":
        raise InputError("--draft-tokens needs --draft mtp or --draft dspark")
    if wanted.draft_tokens is not None and wanted.draft_tokens < 1:
        raise InputError(f"--draft-tokens {wanted.draft_tokens}: expected a positive number")


def _refuse_unplannable(deployment: Deployment) -> None:
    hardware = deployment.hardware
    if hardware.vendor is None:
        raise InputError("no GPU was named and none was found on this machine; give --gpu, e.g. --gpu H200")
    if hardware.vendor != "nvidia":
        raise InputError(f"--gpu {hardware.name}: only vLLM's CUDA path is modelled, and this GPU runs another")
    if gpu_memory(deployment) is None:
        raise InputError("the memory of this GPU is not known; give its catalogue name, or --gpu-memory-gib")
    if deployment.model.family != "deepseek_v4":
        raise InputError(
            f"{deployment.model.name}: the caches of DeepSeek-V4.1 are not modelled, nothing can be planned"
        )


def _refuse_length(deployment: Deployment, context: int) -> None:
    limit = derived_length(deployment, facts_of(deployment.vllm).section("engine_config"))
    if limit is not None and context > limit:
        raise InputError(
            f"--context {context}: {deployment.model.name} takes {int(limit)} tokens at most (config.json)"
        )


def _draft_words(deployment: Deployment, wanted: Wanted) -> tuple[str, ...]:
    if wanted.draft == "none":
        return ()
    config: dict[str, object] = {"method": wanted.draft}
    made_for = {"mtp": "num_nextn_predict_layers", "dspark": "dspark_block_size"}[wanted.draft]
    tokens = wanted.draft_tokens or deployment.model.integer(made_for)
    if tokens:
        config["num_speculative_tokens"] = tokens
    return ("--speculative-config", json.dumps(config, separators=(",", ":")))
