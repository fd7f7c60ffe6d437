"""Model runner V1 or V2, and what the chosen one refuses.

Source: ``config/vllm.py`` of each release: ``use_v2_model_runner``, the two lists
``_get_v2_model_runner_unsupported_features`` and ``_get_v1_model_runner_unsupported_features`` and their
validators; ``envs.py`` for the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism, Runner
from dsv4check.resolve.speculative_limits import capture_size_problems, graph_mode

ENV = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the feature tests look at."""

    deployment: Deployment
    draft: Draft
    parallel: Parallelism

    def flag(self, dest: str) -> Any:
        return self.deployment.flags.get(dest)

    def spec(self, key: str) -> Any:
        return self.draft.config.get(key)


def resolve_runner(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, parallel: Parallelism
) -> tuple[Runner, tuple[Problem, ...]]:
    """The runner of the launch and the refusals that follow from it.

    ``Runner.name`` is None when the variable's value cannot be read. Facts come from the ``runner`` section.
    """
    section = facts.section("runner")
    launch = _Launch(deployment, draft, parallel)
    raw = deployment.env.get(ENV)
    setting: bool | None = None
    if raw is not None:
        try:
            setting = bool(int(raw))
        except ValueError:
            error = f"invalid literal for int() with base 10: {raw!r}"
            problem = _problem("runner-bad-env", Stage.ENGINE_CONFIG, "ValueError", error, {"value": raw}, launch)
            return Runner(None, f"{ENV}={raw!r} is no number"), (problem,)
    if section.get("env") == "flag":
        setting = bool(setting)  # up to 0.21 unset meant 0
    v2_missing = v2_unsupported(section, launch)
    v1_missing = v1_unsupported(section, launch)
    name, why, forced = _choose(section, launch, setting, v2_missing, v1_missing)
    problems: list[Problem] = list(_async_refusals(section, launch, name))
    if name == "v2" and v2_missing:
        error = str(section.get("v2_error", "")) + ", ".join(v2_missing)
        data = {"features": ", ".join(v2_missing), "why": why, "forced": forced, "env": raw}
        problems.append(_problem("runner-v2-unsupported", Stage.ENGINE_CONFIG, "ValidationError", error, data, launch))
    if name == "v1":
        problems.extend(_v1_refusals(section, launch, v1_missing, why, raw))
    if name == "v1" or section.get("capture_check") == "any_runner":
        problems.extend(capture_size_problems(deployment, draft.num_speculative_tokens if draft.method else None))
    if (
        name == "v1"
        and setting is None
        and section.get("default") == "v2"
        and v2_missing
        and "dspark" not in (draft.method or "")
    ):
        data = {"features": ", ".join(v2_missing)}
        problems.append(_problem("runner-fell-back-to-v1", Stage.ENGINE_CONFIG, "", "", data, launch))
    return Runner(name, why), tuple(problems)


def _choose(
    section: Mapping[str, Any],
    launch: _Launch,
    setting: bool | None,
    v2_missing: list[str],
    v1_missing: list[str],
) -> tuple[str, str, str]:
    """(runner, reason, what forced it: ``env``, ``config`` or empty)."""
    forced_by = section.get("forced_by") or ()
    if "hisparse" in forced_by and launch.deployment.flags.section("attention_config").get("hisparse_config"):
        return "v2", "HiSparse needs the V2 runner", "config"
    if "watermark" in forced_by and launch.flag("watermark_config"):
        return "v2", "watermarking needs the V2 runner", "config"
    if setting is not None and (section.get("env") != "flag" or setting or launch.deployment.env.get(ENV)):
        return ("v2" if setting else "v1"), f"{ENV}={launch.deployment.env.get(ENV)}", "env"
    if "prefill_context_parallel" in forced_by and launch.parallel.prefill_context > 1:
        return "v2", "prefill context parallelism exists only in the V2 runner", "config"
    if "dspark" in forced_by and launch.draft.method == "dspark":
        return "v2", "DSpark exists only in the V2 runner", "config"
    if section.get("default") == "v1":
        return "v1", "default for DeepSeek-V4 in this release", ""
    if _rocm_default(section, launch) and not (section.get("rocm_v1_yields") and v1_missing):
        return "v1", "default for DeepSeek-V4 on ROCm in this release", ""
    if v2_missing:
        return "v1", f"the V2 runner does not support {', '.join(v2_missing)}", ""
    return "v2", "default for DeepSeek-V4 in this release", ""


def _rocm_default(section: Mapping[str, Any], launch: _Launch) -> bool:
    if launch.deployment.hardware.vendor != "amd":
        return False
    model = launch.deployment.model
    named = model.raw.get("architectures")
    architectures = list(named) if isinstance(named, list) else []
    vision = model.integer("vision_n_layers") or 0
    if vision > 0 and section.get("vision_architecture"):
        # vLLM renames the vision variant before it asks for the architecture.
        architectures = ["DeepseekV4ForConditionalGeneration"]
    return any(name in (section.get("rocm_v1_archs") or ()) for name in architectures)


def _v1_refusals(
    section: Mapping[str, Any], launch: _Launch, missing: list[str], why: str, raw: str | None
) -> list[Problem]:
    data = {"features": ", ".join(missing), "why": why, "env": raw}
    if missing:
        error = "Model Runner V1 does not support: " + ", ".join(missing)
        code = "runner-v1-dspark" if "dspark speculative decoding" in missing else "runner-v1-unsupported"
        return [_problem(code, Stage.ENGINE_CONFIG, "ValidationError", error, data, launch)]
    if section.get("v1_dspark") and launch.draft.method == "dspark":
        fields = section.get("v1_mask_token_fields") or ()
        if "dspark_noise_token_id" in fields:
            exception, error = "", ""  # it gets further, into a proposer that is not DSpark's
        else:
            exception = "ValueError"
            error = (
                "For parallel drafting, the draft model config must have `pard_token`, `ptd_token_id`, or "
                "`dflash_config.mask_token_id` specified in its config.json."
            )
        return [_problem("runner-v1-dspark", Stage.MODEL_INIT, exception, error, data, launch)]
    return []


def _async_refusals(section: Mapping[str, Any], launch: _Launch, runner: str) -> tuple[Problem, ...]:
    """What ``--async-scheduling`` excludes when it is asked for; left unset, vLLM quietly leaves it off."""
    rules = section.get("async") or {}
    if launch.flag("async_scheduling") is not True or runner not in (rules.get("runners") or ()):
        return ()
    method = launch.draft.method
    error = feature = None
    if method in (rules.get("refused_methods") or ()):
        error, feature = str(rules["method_error"]).format(method=method), f"method {method}"
    elif method is not None and launch.spec("disable_padded_drafter_batch") is True:
        error, feature = rules["padded_error"], "disable_padded_drafter_batch"
    elif rules.get("pipeline_error") and launch.parallel.pipeline > 1:
        error, feature = rules["pipeline_error"], "pipeline parallelism"
    if error is None:
        return ()
    use = launch.deployment.flags.use("async_scheduling")
    place = use.origin if use else None
    data = {"feature": feature, "runner": runner}
    return (Problem("runner-async-refused", Stage.ENGINE_CONFIG, "ValidationError", str(error), data, place),)


def v2_unsupported(section: Mapping[str, Any], launch: _Launch) -> list[str]:
    """Features of the launch that this release's V2 runner refuses, in vLLM's words."""
    found: list[str] = []
    for text, test in (section.get("v2_unsupported") or {}).items():
        if test == "logprobs_mode":
            mode = launch.flag("logprobs_mode")
            if mode in ("raw_logits", "processed_logits"):
                found.append(f"logprobs mode '{mode}'")
        elif test == "dbo_limits":
            found.extend(_dbo_limits(launch))
        elif _TESTS[test](launch):
            found.append(str(text))
    method = launch.draft.method
    if method is not None:
        accepted, refused = section.get("v2_methods"), section.get("v2_refused_methods")
        listed = "ngram/ngram_gpu speculative decoding" in found
        if (accepted is not None and method not in accepted and not listed) or (refused and method in refused):
            found.append(f"speculative method '{method}'")
    return found


def v1_unsupported(section: Mapping[str, Any], launch: _Launch) -> list[str]:
    """Features of the launch that this release's V1 runner refuses at config time, in vLLM's words."""
    return [text for text, test in (section.get("v1_unsupported") or {}).items() if _TESTS[test](launch)]


def _dbo_limits(launch: _Launch) -> list[str]:
    """From 0.30 dual batch overlap works in the V2 runner, alone and only when V2 was asked for by name."""
    if not _TESTS["dbo"](launch):
        return []
    if launch.deployment.env.get(ENV) is None:
        return ["dual batch overlap"]
    found = []
    if launch.flag("enable_lora"):
        found.append("dual batch overlap with LoRA")
    if launch.draft.method is not None:
        found.append("dual batch overlap with speculative decoding")
    if launch.parallel.pipeline > 1:
        found.append("dual batch overlap with pipeline parallelism")
    if launch.parallel.decode_context > 1 or launch.parallel.prefill_context > 1:
        found.append("dual batch overlap with context parallelism")
    if graph_mode(launch.deployment) == "PIECEWISE":
        found.append("dual batch overlap with PIECEWISE CUDA graphs")
    return found


def _compile_mode(launch: _Launch) -> Any:
    return launch.deployment.flags.section("compilation_config").get("mode")


def _sequence_parallel(launch: _Launch) -> bool:
    """Asked for and kept: unless forced, vLLM switches it off for hidden sizes as small as those of V4."""
    passes = launch.deployment.flags.section("compilation_config").get("pass_config")
    if not isinstance(passes, Mapping) or launch.parallel.tensor == 1:
        return False
    asked = passes.get("enable_sp") is True or passes.get("fuse_gemm_comms") is True
    return asked and passes.get("sp_min_token_num") is not None


def _ubatching(launch: _Launch) -> bool:
    size = launch.flag("ubatch_size")
    return bool(launch.flag("enable_dbo")) or (isinstance(size, int) and size > 1)


_TESTS: Mapping[str, Callable[[_Launch], bool]] = {
    "pcp": lambda launch: launch.parallel.prefill_context > 1,
    "stock_compile": lambda launch: str(_compile_mode(launch)).upper() in ("1", "STOCK_TORCH_COMPILE"),
    "sequence_parallel": _sequence_parallel,
    "external_launcher_pp": lambda launch: (
        launch.flag("distributed_executor_backend") == "external_launcher" and launch.parallel.pipeline > 1
    ),
    "ngram": lambda launch: launch.draft.method in ("ngram", "ngram_gpu"),
    "dynamic_spec": lambda launch: launch.spec("num_speculative_tokens_per_batch_size") is not None,
    "parallel_drafting": lambda launch: (
        bool(launch.spec("parallel_drafting")) and launch.draft.method not in ("dflash", "dspark")
    ),
    "eagle3_pp": lambda launch: launch.draft.method == "eagle3" and launch.parallel.pipeline > 1,
    "reasoning": lambda launch: bool(launch.flag("reasoning_parser") or launch.flag("reasoning_config")),
    "dbo": _ubatching,
    "elastic_ep": lambda launch: bool(launch.flag("enable_elastic_ep")),
    "routed_experts": lambda launch: bool(launch.flag("enable_return_routed_experts")),
    "logits_processors": lambda launch: bool(launch.flag("logits_processors")),
    "prompt_embeds": lambda launch: bool(launch.flag("enable_prompt_embeds")),
    "kv_sharing": lambda launch: bool(launch.flag("kv_sharing_fast_prefill")),
    "ec_transfer": lambda launch: bool(launch.flag("ec_transfer_config")),
    "adaptive_lora": lambda launch: (
        bool(launch.spec("enable_adaptive_verification")) and bool(launch.flag("enable_lora"))
    ),
    "adaptive_eager": lambda launch: (
        bool(launch.spec("enable_adaptive_verification")) and graph_mode(launch.deployment) == "NONE"
    ),
    "adaptive_pp": lambda launch: bool(launch.spec("enable_adaptive_verification")) and launch.parallel.pipeline > 1,
    "hetero_vocab": lambda launch: bool(launch.spec("use_heterogeneous_vocab")),
    "pp_async": lambda launch: launch.parallel.pipeline > 1 and launch.flag("async_scheduling") is True,
    "dspark": lambda launch: launch.draft.method == "dspark",
    "adaptive": lambda launch: bool(launch.spec("enable_adaptive_verification")),
    "lm_head_quantization": lambda launch: bool(launch.spec("draft_lm_head_quantization")),
    "batch_sharded_sampling": lambda launch: bool(launch.flag("enable_batch_sharded_sampling")),
}


def _problem(code: str, stage: Stage, exception: str, error: str, data: Mapping[str, Any], launch: _Launch) -> Problem:
    place = Origin("env", ENV) if launch.deployment.env.get(ENV) is not None else None
    if place is None:
        for dest in ("speculative_config", "spec_method"):
            use = launch.deployment.flags.use(dest)
            if use is not None and launch.draft.method is not None:
                place = use.origin
                break
    return Problem(code, stage, exception, error, data, place)
