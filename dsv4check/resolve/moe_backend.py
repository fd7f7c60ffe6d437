"""Which kernel computes the routed experts, and every reason why a release finds none.

``--moe-backend`` (or ``--kernel-config moe_backend``) is a wish. MegaMoE and, in 0.29 to 0.31, FlashInfer's
MoE-EP kernels replace the whole expert layer and have conditions of their own (``resolve/mega_moe.py``).
Every other value goes to the selection function of the experts' format (``fused_moe/oracle/{mxfp4,nvfp4,
fp8}.py``), which maps the name to kernels and asks each whether it supports the GPU, the activation, the
parallel set-up and the quantisation. What those functions answered is kept as a table in the release facts,
area ``moe``: it was recorded by calling them for every name, format, parallel set-up and compute capability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Moe, Parallelism
from dsv4check.resolve.expert_format import ExpertFormat, expert_format
from dsv4check.resolve.expert_weights import cut_inside_blocks, schema_problem, weight_problems
from dsv4check.resolve.mega_moe import mega_problems

_LOG: Final = {
    "mxfp4": "Mxfp4 MoE backend '{kernel}'",
    "nvfp4": "NvFp4 MoE backend '{kernel}'",
    "fp8": "FP8 MoE backend {kernel}",
}
_BATCH_INVARIANT: Final = "VLLM_BATCH_INVARIANT"
"""Drops kernels that are not batch invariant; the table was recorded without it."""
_PASSTHROUGH: Final = "passthrough"
_DEFAULT_ALL2ALL: Final = "allgather_reducescatter"


@dataclass(frozen=True, slots=True)
class Request:
    """The MoE backend a launch asks for."""

    name: str
    """``auto`` when nothing was asked for; lower case with underscores, as vLLM normalises it."""
    origin: Origin | None


def resolve_moe(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism, runner: str | None = None
) -> tuple[Moe, tuple[Problem, ...]]:
    """The kernel for the routed experts and what stands in its way, in the order in which vLLM meets it.

    ``runner`` is the model runner's name: the two pass the draft's wish on in different releases.

    Without a GPU only what no GPU could change is reported; for other vendors than NVIDIA nothing is.
    A value of ``--moe-backend`` that the release does not have is the flag parser's to report.
    """
    section = facts.section("moe")
    request = requested_backend(deployment)
    experts = expert_format(deployment.model, section)
    hardware = deployment.hardware
    if not section or hardware.vendor not in (None, "nvidia"):
        return Moe(request.name, experts.name, None), ()
    taken = deployment.flags.values.get("quantization")
    if experts.native and taken in section.get("quantization_taken", ()):
        return Moe(request.name, None, None), (schema_problem(deployment),)
    problems = [
        *_all2all_problems(deployment, section, request, parallel),
        *weight_problems(deployment, facts, experts, parallel),
    ]
    mega = section.get("mega", {})
    if request.name in mega.get("names", ()) and (parallel.expert_parallel or mega.get("requires_ep")):
        found = mega_problems(deployment, section, request.name, experts, parallel, request.origin)
        backend = None if any(item.exception for item in found) else request.name.upper()
        return Moe(request.name, experts.name, backend), (*problems, *found)
    if cut_inside_blocks(deployment, experts, parallel):
        # Later releases refine the scales to smaller blocks, which only some kernels take: not in the table.
        return Moe(request.name, experts.name, None), tuple(problems)
    backend, selected = _select(deployment, section, request, experts, parallel)
    problems += selected
    problems += _draft_problems(deployment, section, experts, parallel, runner)
    return Moe(request.name, experts.name, backend), tuple(problems)


def requested_backend(deployment: Deployment) -> Request:
    """``--moe-backend``, which overwrites the key in ``--kernel-config``, else that key, else ``auto``."""
    flags = deployment.flags
    value: Any = None
    dest = "moe_backend"
    if flags.given("moe_backend"):
        value = flags.values["moe_backend"]
    # EngineArgs copies --moe-backend over the config object only when it is not "auto".
    if value in (None, "auto") and "moe_backend" in flags.section("kernel_config"):
        value, dest = flags.section("kernel_config")["moe_backend"], "kernel_config"
    use = flags.use(dest)
    name = value.lower().replace("-", "_") if isinstance(value, str) else "auto"
    return Request(name, use.origin if use is not None else None)


def _draft_problems(
    deployment: Deployment,
    section: Mapping[str, Any],
    experts: ExpertFormat,
    parallel: Parallelism,
    runner: str | None,
) -> list[Problem]:
    """``moe_backend`` of the speculative config: the draft's own wish, with the target's expert format.

    Only MTP's loaders pass it on: the V1 runner's in every release, the V2 runner's from the release on that the
    facts name; elsewhere the draft takes the target's backend.
    """
    spec = deployment.flags.section("speculative_config")
    name = spec.get("moe_backend")
    passed = runner == "v1" or (runner == "v2" and section.get("draft_moe_backend"))
    if not passed or not isinstance(name, str) or _spec_method(deployment) not in ("mtp", "deepseek_mtp"):
        return []
    use = deployment.flags.use("speculative_config")
    wish = Request(name.lower().replace("-", "_"), use.origin if use is not None else None)
    mega = section.get("mega", {})
    if wish.name == "auto":
        return []
    if wish.name in mega.get("names", ()):
        found = mega_problems(deployment, section, wish.name, experts, parallel, wish.origin)
        found = found if parallel.expert_parallel or mega.get("requires_ep") else ()
        code, words = "draft-mega-moe-refused", _parallel_words(deployment, parallel)
    else:
        _, found = _select(deployment, section, wish, experts, parallel)
        code, words = "draft-moe-backend-refused", ""
    return [
        Problem(code, Stage.WEIGHT_LOAD, item.exception, item.error, {"parallel": words, **item.data}, item.origin)
        for item in found
        if item.exception
    ][:1]


def _spec_method(deployment: Deployment) -> Any:
    return deployment.flags.section("speculative_config").get("method", deployment.flags.values.get("spec_method"))


def _select(
    deployment: Deployment,
    section: Mapping[str, Any],
    request: Request,
    experts: ExpertFormat,
    parallel: Parallelism,
) -> tuple[str | None, tuple[Problem, ...]]:
    """What the selection function of the format does with the request."""
    table = section.get("selection", {}).get(experts.name)
    if table is None:
        unknown = experts.name is None and experts.method is not None
        return None, (_format_unknown(experts),) if unknown else ()
    if request.name not in table["tp"] and request.name not in section.get("choices", ()):
        return None, ()
    if request.name == "auto" and any(name in deployment.env for name in table.get("env", ())):
        return None, ()
    if deployment.env.get(_BATCH_INVARIANT, "0") not in ("", "0"):
        return None, ()
    limit = deployment.model.get("swiglu_limit")
    if experts.name == "nvfp4" and limit is None:
        return None, ()  # recorded with the clamp that every published checkpoint sets
    outcome = _outcome(deployment, table, request.name, parallel)
    if outcome is None:
        return None, ()
    data = {
        "requested": request.name,
        "format": table["label"],
        "gpu": deployment.hardware.name or "this GPU",
        "sm": deployment.hardware.sm,
        "parallel": _parallel_words(deployment, parallel),
        "working": _working_words(deployment, table, parallel),
    }
    if outcome == "unmapped":
        error = (
            f"moe_backend='{request.name}' is not supported for {table['label']} MoE. Expected one of {table['names']}."
        )
        return None, (_problem("moe-backend-unmapped", "ValueError", error, data, request.origin),)
    kernel, _, reason = outcome.partition("!")
    kernel = kernel.strip()
    extra = _own_exchange_refusal(deployment, section, request.name)
    if not reason and extra:
        error = _refusal(experts, kernel, extra)
        data |= {"kernel": kernel, "reason": "flag", "why": extra}
        return None, (_problem("moe-backend-refused", "ValueError", error, data, request.origin),)
    if not reason:
        return kernel, _package_problems(deployment, section, experts, kernel, data, request.origin)
    if kernel:
        why = table["reasons"].get(reason, "")
        error = _refusal(experts, kernel, why)
        data |= {"kernel": kernel, "reason": reason, "why": why}
        return None, (_problem("moe-backend-refused", "ValueError", error, data, request.origin),)
    fixed = table["errors"][reason]
    error = fixed["text"].replace("{swiglu_limit}", str(limit)).replace("{requested}", request.name)
    code = {"none": "moe-no-backend", "clamp": "moe-backend-no-clamp"}.get(reason, "moe-backend-refused")
    data |= {"kernel": request.name, "reason": reason, "why": error}
    return None, (_problem(code, fixed["type"], error, data, request.origin),)


def _refusal(experts: ExpertFormat, kernel: str, why: str) -> str:
    subject = _LOG[experts.name or "mxfp4"].format(kernel=kernel)
    return f"{subject} does not support the deployment configuration since {why}."


def _own_exchange_refusal(deployment: Deployment, section: Mapping[str, Any], name: str) -> str:
    """Flags that a kernel with its own exchange refuses (``flashinfer_moe_ep_unsupported_reasons``)."""
    if name not in section.get("own_all2all", ()):
        return ""
    flags = deployment.flags
    refused = ["dual batch overlap"] if flags.get("enable_dbo") is True else []
    if name.endswith("deep_gemm") and flags.get("enable_eplb") is True:
        refused.append("EPLB")
    return f"kernel does not support {', '.join(refused)}" if refused else ""


def _outcome(deployment: Deployment, table: Mapping[str, Any], name: str, parallel: Parallelism) -> str | None:
    """Entry for a name: a kernel, ``KERNEL !reason``, ``!error`` or ``unmapped``; None when it is open."""
    if name not in table["tp"]:
        return "unmapped"
    for layer in _layers(deployment, table, parallel):
        if name in layer:
            return _at(layer[name], deployment.hardware.capability)
    return None


def _layers(deployment: Deployment, table: Mapping[str, Any], parallel: Parallelism) -> list[Mapping[str, Any]]:
    """The parts of the table that apply, the most specific first; each holds what differs from the next."""
    layers: list[Mapping[str, Any]] = []
    if deployment.flags.get("enable_lora") is True:
        if parallel.expert_parallel:
            layers.append(table.get("lora_ep", {}))
        layers.append(table.get("lora", {}))
    if parallel.expert_parallel:
        if parallel.data > 1:
            backend = deployment.flags.get("all2all_backend")
            layers += [part for names, part in table.get("all2all", {}).items() if backend in names.split()]
        if parallel.expert_parallel_size > 1:
            layers.append(table.get("ep", {}))
    layers.append(table["tp"])
    return layers


def _at(entry: str, capability: tuple[int, int] | None) -> str | None:
    """One outcome for every GPU, or ``7.0: outcome | 9.0: outcome``: each holds from that capability on."""
    if ": " not in entry:
        return entry
    found: str | None = None
    for part in entry.split(" | ") if capability is not None else ():
        start, _, outcome = part.partition(": ")
        major, _, minor = start.partition(".")
        if capability is not None and (int(major), int(minor)) <= capability:
            found = outcome
    return found


def _working_words(deployment: Deployment, table: Mapping[str, Any], parallel: Parallelism) -> str:
    """Names that this release resolves for this format, GPU and parallel set-up, as the messages list them."""
    if deployment.hardware.capability is None:
        return "(depends on the GPU)"
    found = {name: _outcome(deployment, table, name, parallel) for name in table["tp"] if name != "auto"}
    working = [name for name, outcome in found.items() if outcome is not None and "!" not in outcome]
    return ", ".join(working) or "none"


def _package_problems(
    deployment: Deployment,
    section: Mapping[str, Any],
    experts: ExpertFormat,
    kernel: str,
    data: Mapping[str, Any],
    origin: Origin | None,
) -> tuple[Problem, ...]:
    """Kernels that need an optional package, which vLLM's wheel does not pull in."""
    package = section.get("packages", {}).get(f"{experts.name}.{kernel}")
    if package is None or package in deployment.packages:
        return ()
    values = {**data, "kernel": kernel, "package": package}
    return (_problem("moe-backend-package", "", "", values, origin),)


def _all2all_problems(
    deployment: Deployment, section: Mapping[str, Any], request: Request, parallel: Parallelism
) -> list[Problem]:
    """Pairs of all2all and MoE backend that KernelConfig or the expert layer refuses."""
    flags = deployment.flags
    value = flags.values.get("all2all_backend")
    use = flags.use("all2all_backend")
    origin = use.origin if use is not None else request.origin
    data = {"all2all": value, "requested": request.name, "sm": deployment.hardware.sm}
    own = section.get("own_all2all", ())
    if own and request.name in own and value not in (None, _DEFAULT_ALL2ALL, _PASSTHROUGH):
        error = (
            f"moe_backend='{request.name}' dispatches and combines itself and cannot be paired with "
            f"all2all_backend='{value}'; leave --all2all-backend unset."
        )
        return [Problem("moe-ep-all2all", Stage.ENGINE_CONFIG, "ValidationError", error, data, origin)]
    exchanges = parallel.expert_parallel and parallel.data > 1
    fused = request.name not in section["mega"]["names"]
    if exchanges and fused and isinstance(value, str) and value in section.get("aiter_all2all", ()):
        error = "Mori needs to be used with aiter fused_moe for now."
        return [_problem("all2all-needs-aiter", "AssertionError", error, data, origin)]
    return []


def _format_unknown(experts: ExpertFormat) -> Problem:
    data = {"method": experts.method}
    return Problem("expert-format-unknown", Stage.MODEL_INIT, data=data)


def _parallel_words(deployment: Deployment, parallel: Parallelism) -> str:
    words = f"TP{parallel.tensor}"
    if parallel.data > 1:
        words += f" DP{parallel.data}"
    if not parallel.expert_parallel:
        return f"{words} without expert parallelism"
    words += f" with expert parallelism over {parallel.expert_parallel_size} ranks"
    backend = deployment.flags.get("all2all_backend")
    return f"{words} and all2all {backend}" if parallel.data > 1 and backend else words


def _problem(code: str, exception: str, error: str, data: Mapping[str, Any], origin: Origin | None) -> Problem:
    return Problem(code, Stage.MODEL_INIT, exception, error, dict(data), origin)
