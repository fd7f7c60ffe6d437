"""The draft of a launch: method, weights and how checkpoint names become parameters.

What the config object refuses is in ``speculative_config``; here the resolved method meets the checkpoint.
Sources: ``models/deepseek_v4/*/mtp.py`` and ``dspark.py`` (names, completeness checks), the V2 runner's
speculators (fields they read first), ``config/speculative.py`` (quantisation of an explicit draft model).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism
from dsv4check.resolve.speculative_config import DraftModel, SpecConfig, resolve_speculative_config
from dsv4check.resolve.speculative_fields import origin
from dsv4check.resolve.speculative_limits import adaptive_problems, budget_problems, lora_problems, profile_problems

_NO_WEIGHTS = ("dummy",)
"""Load formats that never look at the checkpoint."""

_DSPARK_MODEL_LEVEL = "main_proj,main_norm,norm,hc_head_*,markov_head"
_DSPARK_V41_MODEL_LEVEL = "main_proj,main_norm,norm,markov_head"
_FP8_BLOCK = 128
"""Rows of a block of the checkpoints' FP8 quantisation (``weight_block_size``)."""

_DSPARK_STAGES = 3
"""DSpark stages when config.json does not say (``n_mtp_layers``)."""


def resolve_draft(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism
) -> tuple[Draft, tuple[Problem, ...]]:
    """Speculative decoding of the launch, and what the release refuses or misreads about it.

    ``Draft.method`` is None without speculative decoding and when the release refuses the config. Facts come
    from the release's ``spec_decode`` section.
    """
    section = facts.section("spec_decode")
    config = resolve_speculative_config(deployment, facts, parallel)
    if config is None:
        # A method the parser refused is still what was asked for.
        use = deployment.flags.use("spec_method")
        return Draft(method=None, requested_method=use.raw if use else None), ()
    problems = list(config.problems)
    if not config.refused:
        problems.extend(lora_problems(deployment, section, parallel, config))
        problems.extend(budget_problems(deployment, section, parallel, config))
        problems.extend(profile_problems(deployment, section, parallel, config))
        problems.extend(adaptive_problems(deployment, section, parallel, config))
        problems.extend(_model_problems(deployment, section, config))
        problems.extend(_weight_problems(deployment, section, parallel, config))
    draft = config.draft
    known = not config.refused
    return (
        Draft(
            method=config.method if known else None,
            requested_method=config.requested,
            num_speculative_tokens=config.tokens,
            source=_source(config, draft) if known else None,
            layers=_layers(deployment, config, draft) if known else 0,
            mapping=_mapping(config, draft) if known else None,
            hidden_state_layers=_hidden_state_layers(config.values) if config.method == "extract_hidden_states" else 0,
            config=config.values,
        ),
        tuple(problems),
    )


def _source(config: SpecConfig, draft: DraftModel | None) -> str | None:
    if config.method in ("ngram", "ngram_gpu", "suffix"):
        return "none (no draft model)"
    if draft is None:
        return None
    return "target checkpoint" if draft.is_target else draft.name


def _layers(deployment: Deployment, config: SpecConfig, draft: DraftModel | None) -> int:
    if draft is None:
        return 0
    if config.method == "mtp":
        # The MTP class counts its layers by the target's config, --hf-overrides included.
        source = deployment.model if draft.is_target else draft
        return source.integer("num_nextn_predict_layers") or 0
    if config.method == "dspark":
        stages = draft.integer("n_mtp_layers")
        if not stages and draft.family == "deepseek_v41":
            stages = draft.integer("num_nextn_predict_layers")
        return stages or _DSPARK_STAGES
    return 0


def _hidden_state_layers(values: Mapping[str, Any]) -> int:
    """``eagle_aux_hidden_state_layer_ids`` of the draft's config, which the user has to write out."""
    draft = values.get("draft_model_config")
    config = draft.get("hf_config") if isinstance(draft, Mapping) else None
    layers = config.get("eagle_aux_hidden_state_layer_ids") if isinstance(config, Mapping) else None
    return len(layers) if isinstance(layers, list | tuple) else 0


def _mapping(config: SpecConfig, draft: DraftModel | None) -> str | None:
    """Checkpoint name -> parameter name of the draft's own tensors."""
    if draft is None or draft.family is None:
        return None
    if config.method == "dspark":
        level = _DSPARK_V41_MODEL_LEVEL if draft.family == "deepseek_v41" else _DSPARK_MODEL_LEVEL
        return f"mtp.{{i}}.* -> model.layers.{{i}}.*; mtp.{{i}}.{{{level}}} -> model.*"
    if config.method == "mtp":
        layers = draft.integer("num_hidden_layers")
        base = f"{layers}+i" if layers is not None else "num_hidden_layers+i"
        return f"mtp.{{i}}.* -> model.layers.{{{base}}}.* (decoder block under .mtp_block)"
    return None


def _model_problems(deployment: Deployment, section: Mapping[str, Any], config: SpecConfig) -> tuple[Problem, ...]:
    """What stops the draft model from being built."""
    draft = config.draft
    if config.method == "mtp" and draft is not None:
        return _mtp_fields(deployment, draft)
    if config.method != "dspark" or draft is None or draft.family is None:
        return ()
    vendors = (section.get("dspark") or {}).get("vendors") or ()
    vendor = deployment.hardware.vendor
    if vendor is not None and vendor in ("amd", "intel") and vendor not in vendors:
        return (
            _problem(
                deployment,
                "spec-dspark-platform",
                Stage.ENGINE_CONFIG,
                "ValidationError",
                "Model architectures ['DSparkDraftModel'] failed to be inspected. "
                "Please check the logs for more details.",
                {"vendor": vendor},
            ),
        )
    if draft.kind in ("mtp", "none") and draft.lacks("dspark_noise_token_id"):
        return (
            _problem(
                deployment,
                "weights-dspark-on-other-draft",
                Stage.WEIGHT_LOAD,
                "ValueError",
                "Model config must specify `dflash_config.mask_token_id`, `mask_token_id`, "
                "`dspark_noise_token_id`, `pard_token`, or `ptd_token_id` for parallel drafting.",
                {"kind": draft.kind, "draft": draft.name},
            ),
        )
    missing = [
        key for key in ("dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank") if draft.lacks(key)
    ]
    if not missing:
        return ()
    if missing[0] == "dspark_noise_token_id":
        exception = "ValueError"
        error = (
            "Model config must specify `dflash_config.mask_token_id`, `mask_token_id`, "
            "`dspark_noise_token_id`, `pard_token`, or `ptd_token_id` for parallel drafting."
        )
    else:
        exception = "AttributeError"
        name = "DeepseekV41Config" if draft.family == "deepseek_v41" else "DeepseekV4Config"
        error = f"'{name}' object has no attribute '{missing[0]}'"
    return (
        _problem(
            deployment,
            "spec-dspark-field-missing",
            Stage.MODEL_INIT,
            exception,
            error,
            {"missing": ", ".join(missing), "draft": draft.name},
        ),
    )


def _mtp_fields(deployment: Deployment, draft: DraftModel) -> tuple[Problem, ...]:
    """The MTP model reads its number of layers without a default (transformers' class of 0.33 has one)."""
    key = "num_nextn_predict_layers"
    if draft.family != "deepseek_v4" or not draft.is_target or not draft.lacks(key):
        return ()
    error = f"'DeepseekV4Config' object has no attribute '{key}'"
    data = {"missing": key, "draft": draft.name}
    return (_problem(deployment, "spec-mtp-field-missing", Stage.WEIGHT_LOAD, "AttributeError", error, data),)


def _weight_problems(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, config: SpecConfig
) -> tuple[Problem, ...]:
    """What happens when the checkpoint's ``mtp.*`` tensors meet the draft model."""
    draft = config.draft
    if draft is None or draft.family is None or deployment.flags.get("load_format") in _NO_WEIGHTS:
        return ()
    if config.method not in ("mtp", "dspark"):
        return ()
    problems = list(_shared_padding(deployment, section, parallel, draft))
    if config.method == "mtp":
        problems.extend(_mtp_weights(deployment, draft))
        return tuple(problems)
    rules: Mapping[str, Any] = section.get("dspark") or {}
    quantized = deployment.model.raw.get("quantization_config") or deployment.model.get("quantization_config")
    if (
        rules.get("frozen_quantization")
        and config.values.get("model") is not None
        and isinstance(quantized, Mapping)
        and quantized.get("quant_method") == "fp8"
        and deployment.model.get("expert_dtype", "fp4") == "fp4"
    ):
        problems.append(
            _problem(
                deployment,
                "weights-draft-quantization-frozen",
                Stage.WEIGHT_LOAD,
                "KeyError",
                "'model.layers.0.ffn.experts.routed_experts.w13_weight_scale'",
                {"draft": draft.name},
                "model",
            )
        )
    if draft.kind == "none" and not draft.lacks("dspark_noise_token_id"):
        problems.append(
            _problem(
                deployment,
                "weights-dspark-missing",
                Stage.ACCURACY,
                "",
                "",
                {"draft": draft.name},
            )
        )
    return tuple(problems)


def _shared_padding(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, draft: DraftModel
) -> tuple[Problem, ...]:
    """0.24 to 0.26 pad the shared expert to whole FP8 blocks a rank, but only the target's loader does."""
    width = draft.integer("moe_intermediate_size")
    quantized = deployment.model.raw.get("quantization_config")
    if (
        section.get("draft_shared_padding") != "missing"
        or width is None
        or deployment.hardware.vendor not in (None, "nvidia")
        or not isinstance(quantized, Mapping)
        or quantized.get("weight_block_size") is None
        # Sequence-parallel MoE keeps the shared expert whole.
        or (parallel.expert_parallel and parallel.data > 1)
    ):
        return ()
    width *= draft.integer("n_shared_experts") or 1
    if width % (parallel.tensor * _FP8_BLOCK) == 0:
        return ()
    fitting = [ranks for ranks in range(1, parallel.tensor) if width % (ranks * _FP8_BLOCK) == 0]
    data = {
        "width": width,
        "tensor": parallel.tensor,
        "draft": draft.name,
        "padded": -(-width // (parallel.tensor * _FP8_BLOCK)) * _FP8_BLOCK,
        "fitting": max(fitting, default=1),
    }
    return (_problem(deployment, "weights-draft-shared-padding", Stage.WEIGHT_LOAD, "", "", data),)


def _mtp_weights(deployment: Deployment, draft: DraftModel) -> tuple[Problem, ...]:
    layers = draft.integer("num_hidden_layers")
    first = layers if layers is not None else "N"
    if draft.kind == "dspark":
        return (
            _problem(
                deployment,
                "weights-mtp-on-dspark",
                Stage.WEIGHT_LOAD,
                "KeyError",
                f"'model.layers.{first}.mtp_block.main_norm.weight'",
                {"draft": draft.name, "layer": first},
            ),
        )
    if draft.kind == "none":
        return (
            _problem(
                deployment,
                "weights-mtp-missing",
                Stage.WEIGHT_LOAD,
                "ValueError",
                f"MTP speculative decoding layer {first} weights missing from checkpoint. "
                "The checkpoint may have been quantized without including the MTP layers. "
                "Use a checkpoint that includes MTP layer weights, or disable speculative decoding.",
                {"draft": draft.name, "layer": first},
            ),
        )
    return _quark(deployment)


def _quark(deployment: Deployment) -> tuple[Problem, ...]:
    """Quark lists the draft's layers as ``model.mtp.{i}``, a prefix vLLM's MTP layers do not have."""
    config = deployment.model.raw.get("quantization_config")
    if not isinstance(config, Mapping) or config.get("quant_method") != "quark":
        return ()
    listed = config.get("layer_quant_config")
    names = [str(name) for name in listed] if isinstance(listed, Mapping) else []
    names = [name for name in names if name.startswith(("model.mtp.", "mtp."))]
    if not names:
        return ()
    return (
        _problem(
            deployment,
            "weights-quark-mtp-prefix",
            Stage.WEIGHT_LOAD,
            "",
            "",
            {"entry": names[0]},
        ),
    )


def _problem(
    deployment: Deployment,
    code: str,
    stage: Stage,
    exception: str,
    error: str,
    data: Mapping[str, Any],
    key: str = "method",
) -> Problem:
    return Problem(code, stage, exception, error, data, origin(deployment.flags, key))
