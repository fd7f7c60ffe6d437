"""Single checks of the speculative config, each raising what vLLM would refuse.

They follow ``config/speculative.py`` of the releases: the ngram, suffix and option checks of
``__post_init__`` and those of ``_verify_args``. Which release makes which check is in the
``spec_decode`` facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.resolution import Parallelism

_SUFFIX_RANGES = (
    ("suffix_decoding_max_tree_depth", 1, None),
    ("suffix_decoding_max_cached_requests", 0, None),
    ("suffix_decoding_max_spec_factor", 0, None),
    ("suffix_decoding_min_token_prob", 0, 1),
)


class RefusedError(Exception):
    """The first thing the speculative config object refuses; never leaves ``resolve/``.

    ``key`` is the config key a finding points at, ``data`` the values for the rule's message and fixes.
    """

    def __init__(self, code: str, error: str, exception: str = "ValidationError", key: str = "", **data: Any):
        super().__init__(error)
        self.code = code
        self.error = error
        self.exception = exception
        self.key = key
        self.data = data


_REPOSITORY = re.compile(r"[\w.\-]+(/[\w.\-]+)?")
"""What huggingface_hub takes for a repository's id."""


def check_model_name(model: str) -> None:
    """A draft model that is neither a path nor an id the hub could have."""
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or "\\" in model or _REPOSITORY.fullmatch(model):
        return
    error = f"Invalid repository ID or local directory specified: '{model}'."
    raise RefusedError("spec-model-name", error, key="model", model=model)


def check_ngram(values: Mapping[str, Any]) -> None:
    """``prompt_lookup_min`` and ``prompt_lookup_max``, each defaulting to the other."""
    low, high = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
    low, high = low if low is not None else high, high if high is not None else low
    if low is not None and high is not None and low > high:
        error = f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}"
        raise RefusedError("spec-ngram-window", error, key="prompt_lookup_min", low=low, high=high)


def check_suffix(values: Mapping[str, Any], packages: Mapping[str, str]) -> None:
    """Method ``suffix`` needs a package that vLLM does not bring, and bounded parameters."""
    if "arctic-inference" not in packages:
        error = "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
        raise RefusedError("spec-suffix-needs-package", error, "ImportError")
    for key, least, most in _SUFFIX_RANGES:
        value = values.get(key)
        if value is not None and (value < least or (most is not None and value > most)):
            wanted = f"must be >= {least}" if most is None else f"must be in [{least}, {most}]"
            raise RefusedError("spec-suffix-value", f"{key}={value} {wanted}", key=key, option=key)


def check_draft_topk(
    values: Mapping[str, Any], section: Mapping[str, Any], method: str | None, family: str | None
) -> None:
    """``dspark_draft_topk`` (0.28 and later) belongs to Qwen3 drafts."""
    models = section.get("draft_topk")
    if models is None or values.get("dspark_draft_topk") is None:
        return
    error = None
    if method != "dspark":
        error = "dspark_draft_topk is only supported by DSpark"
    elif family is not None:
        error = f"dspark_draft_topk is only supported by {models}"
    if error is not None:
        raise RefusedError("spec-draft-topk", error, key="dspark_draft_topk")


def check_draft_tensor_parallel(values: Mapping[str, Any], tensor: int) -> None:
    """The draft runs on one rank or on all of the target's."""
    size = values.get("draft_tensor_parallel_size")
    if size is not None and size not in (1, tensor):
        error = (
            f"speculative_draft_tensor_parallel_size={size} cannot be other value than 1 or target model "
            "tensor_parallel_size"
        )
        raise RefusedError(
            "spec-draft-tensor-parallel", error, key="draft_tensor_parallel_size", size=size, tensor=tensor
        )


def check_max_model_len(values: Mapping[str, Any], deployment: Deployment, limit: float | None) -> None:
    """``max_model_len`` of the draft against a stated ``--max-model-len``; ``limit`` is the target's own length."""
    length, target = values.get("max_model_len"), deployment.flags.get("max_model_len")
    if not isinstance(target, int) or isinstance(target, bool) or target <= 0:
        target = limit
    if length is None or target is None or length <= target:
        return
    error = f"speculative_max_model_len={length} cannot be larger than target_max_model_len={int(target)}"
    raise RefusedError("spec-max-model-len", error, key="max_model_len", length=length, target=int(target))


def check_draft_length(
    values: Mapping[str, Any], section: Mapping[str, Any], deployment: Deployment, limit: float | None
) -> None:
    """``max_model_len`` of the draft against the positions its config.json allows.

    From 0.21 on the draft's ModelConfig is given the length and refuses it itself.
    """
    length = values.get("max_model_len")
    if length is None or limit is None or length <= limit:
        return
    error = f"speculative_max_model_len={length} cannot be larger than draft_max_model_len={int(limit)}"
    if section.get("draft_len_to_model_config"):
        if deployment.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true"):
            return
        error = (
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={limit} or model_max_length=None in model's config.json)."
        )
    raise RefusedError("spec-max-model-len", error, key="max_model_len", length=length, target=int(limit))


_SAME_METHOD = ("fp8", "deepseek_v4_fp8", "humming")
"""Quantisation names that the draft of a deepseek_v4_fp8 checkpoint takes."""


def check_draft_quantization(values: Mapping[str, Any], method: str | None) -> None:
    """``quantization`` of the draft; ``method`` is the quant_method of the draft's config.json.

    The target's flag is silently overruled on V4, but not the draft's: the override looks for model type
    deepseek_v4, and the draft's config has another one by then.
    """
    asked = values.get("quantization")
    if method != "fp8" or not isinstance(asked, str) or asked in _SAME_METHOD:
        return
    error = (
        "Quantization method specified in the model config (fp8) does not match the quantization method specified "
        f"in the `quantization` argument ({asked})."
    )
    raise RefusedError("spec-draft-quantization", error, key="quantization", asked=asked)


def check_options(values: Mapping[str, Any], section: Mapping[str, Any], method: str | None) -> None:
    """Options that belong to one method: MTP index sharing, adaptive verification."""
    option = "index_share_for_mtp_iteration"
    if values.get(option) is not None and method != "mtp":
        error = "index_share_for_mtp_iteration is only supported with method='mtp'"
        raise RefusedError("spec-option-needs-method", error, key=option, option=option)
    adaptive = section.get("adaptive")
    if not adaptive or not values.get("enable_adaptive_verification") or method == "dspark":
        return
    key = "enable_adaptive_verification"
    if adaptive["methods"] != "any":
        raise RefusedError("spec-adaptive-method", "Adaptive verification only supported with DSpark", key=key)
    if values.get("use_local_argmax_reduction"):
        error = (
            "Adaptive verification estimates per-position acceptance from the draft logits, which "
            "use_local_argmax_reduction never materializes. Disable one of them."
        )
        raise RefusedError("spec-adaptive-argmax", error, key=key)


def check_tensor_parallel_key(values: Mapping[str, Any]) -> None:
    """``tensor_parallel_size`` exists as a field only to be refused."""
    size = values.get("tensor_parallel_size")
    if size is not None:
        error = (
            "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass "
            "'draft_tensor_parallel_size' instead."
        )
        raise RefusedError("spec-tensor-parallel-key", error, key="tensor_parallel_size", size=size)


def check_lm_head(values: Mapping[str, Any], method: str | None) -> None:
    """``draft_lm_head_quantization`` (0.33) needs a draft that shares the target's head."""
    option = "draft_lm_head_quantization"
    if values.get(option) and method not in ("eagle", "eagle3", "mtp"):
        error = f"draft_lm_head_quantization is not supported for method '{method}'."
        raise RefusedError("spec-option-needs-method", error, key=option, option=option)


def check_synthetic(values: Mapping[str, Any], tokens: int | None) -> None:
    """Arguments of synthetic rejection sampling: one of two, in range, and only with that method."""
    rates, length = values.get("synthetic_acceptance_rates"), values.get("synthetic_acceptance_length")
    if values.get("rejection_sample_method") != "synthetic":
        if rates is None and length is None:
            return
        error = (
            "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with "
            "rejection_sample_method='synthetic'."
        )
    elif (rates is None) == (length is None):
        error = (
            "rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or "
            "synthetic_acceptance_length."
        )
    else:
        error = _synthetic_range(rates, length, tokens)
    if error:
        raise RefusedError("spec-synthetic-rates", error, key="synthetic_acceptance_rates")


def _synthetic_range(rates: list[float] | None, length: float | None, tokens: int | None) -> str:
    if tokens is None:
        return ""
    if rates is not None:
        if len(rates) != tokens:
            return f"synthetic_acceptance_rates must have length {tokens}, got {rates}."
        if not all(0.0 <= rate <= 1.0 for rate in rates):
            return f"synthetic_acceptance_rates entries must be in [0, 1], got {rates}."
        if any(after > before for before, after in pairwise(rates)):
            return f"synthetic_acceptance_rates must be non-increasing, got {rates}."
    if length is not None and not 1.0 <= length <= tokens + 1:
        return f"synthetic_acceptance_length must be in [1, {tokens + 1}], got {length}."
    return ""


def check_pipeline(section: Mapping[str, Any], parallel: Parallelism, family: str | None) -> None:
    """Up to 0.29 the draft is verified with the target's pipeline size."""
    if section.get("draft_pipeline") == "refused" and parallel.pipeline > 1 and family is not None:
        error = (
            "Pipeline parallelism is not supported for this model. Supported models implement the "
            "`SupportsPP` interface."
        )
        raise RefusedError("spec-draft-pipeline", error, "NotImplementedError", pipeline=parallel.pipeline)


def check_aux_models(section: Mapping[str, Any], method: str | None, family: str) -> None:
    """Up to 0.21 methods that need intermediate hidden states list the models they work for."""
    supported = section.get("aux_hidden_models")
    if supported and method in ("eagle3", "extract_hidden_states", "dflash"):
        error = (
            f"{method} is only supported for {list(supported)} models. "
            f"Got self.target_model_config.hf_text_config.model_type='{family}'"
        )
        raise RefusedError("spec-method-not-for-v4", error)


def check_vocabulary(values: Mapping[str, Any], method: str | None) -> None:
    """``use_heterogeneous_vocab`` (0.25 and later) is for independent draft models, sampled greedily."""
    option = "use_heterogeneous_vocab"
    if not values.get(option):
        return
    error = None
    if method != "draft_model":
        error = "use_heterogeneous_vocab only works with method='draft_model'"
    elif values.get("draft_sample_method", "greedy") != "greedy":
        error = (
            "use_heterogeneous_vocab currently only supports greedy draft sampling. Set "
            "draft_sample_method='greedy' (the default) or omit it."
        )
    if error is not None:
        raise RefusedError("spec-option-needs-method", error, key=option, option=option)


def check_fly(values: Mapping[str, Any], method: str | None, tokens: int | None) -> None:
    """FLy verification (0.33) looks ahead, so it needs two tokens and a smaller window."""
    if values.get("rejection_sample_method") != "fly" or tokens is None:
        return
    window = values.get("fly_window_size")
    error = None
    if method == "extract_hidden_states":
        error = (
            "FLy is not compatible with method='extract_hidden_states', which does not perform speculative decoding."
        )
    elif tokens < 2:
        error = "FLy requires num_speculative_tokens to be at least 2."
    elif window is not None and window >= tokens:
        error = "FLy requires fly_window_size to be smaller than num_speculative_tokens."
    if error is not None:
        raise RefusedError("spec-fly", error, key="rejection_sample_method")
