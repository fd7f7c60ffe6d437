"""What ``SpeculativeConfig`` makes of the merged keys: the method, the draft model, the number of tokens.

Source: ``config/speculative.py`` of each release, ``__post_init__`` then ``_verify_args``. vLLM stops at the first
refusal, so there is at most one problem of that kind; what it only rewrites is reported beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.speculative_fields import MergedConfig, merge, origin

PUBLISHED: Mapping[str, tuple[str, str]] = {
    "deepseek-ai/deepseek-v4-flash": ("deepseek_v4", "mtp"),
    "deepseek-ai/deepseek-v4-pro": ("deepseek_v4", "mtp"),
    "deepseek-ai/deepseek-v4-flash-base": ("deepseek_v4", "mtp"),
    "deepseek-ai/deepseek-v4-pro-base": ("deepseek_v4", "mtp"),
    "nvidia/deepseek-v4-flash-nvfp4": ("deepseek_v4", "mtp"),
    "nvidia/deepseek-v4-pro-nvfp4": ("deepseek_v4", "mtp"),
    "deepseek-ai/deepseek-v4-flash-dspark": ("deepseek_v4", "dspark"),
    "deepseek-ai/deepseek-v4-pro-dspark": ("deepseek_v4", "dspark"),
    "deepseek-ai/deepseek-v4-flash-0731": ("deepseek_v4", "dspark"),
    "deepseek-ai/deepseek-v4-pro-0813": ("deepseek_v4", "dspark"),
    "deepseek-ai/deepseek-v4-flash-vision-exp": ("deepseek_v4", "dspark"),
    "deepseek-ai/deepseek-v4.1-flash": ("deepseek_v41", "dspark"),
    "deepseek-ai/deepseek-v4.1-flash-1017": ("deepseek_v41", "dspark"),
}
"""Published repositories that can be named as draft: family, and what their ``mtp.*`` tensors hold."""

_DRAFT_FREE = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class DraftModel:
    """The model the draft's config and weights come from."""

    name: str
    is_target: bool
    family: str | None
    """None when the draft model is not one we know."""
    kind: str | None
    """``mtp``, ``dspark``, ``none``, or None when not known."""
    text: Mapping[str, Any] | None
    """Its config section; None when not known."""
    hidden: frozenset[str] = frozenset()
    """Keys whose value in ``text`` comes from ``--hf-overrides``: vLLM does not apply a dict to the draft."""

    def get(self, key: str, default: Any = None) -> Any:
        """A config field; ``_UNKNOWN`` (see :meth:`known`) where the draft's own value cannot be seen."""
        if self.text is None or key in self.hidden:
            return _UNKNOWN
        return self.text.get(key, default)

    def integer(self, key: str) -> int | None:
        """A field as an integer; None when absent, of another type or not visible."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def lacks(self, key: str) -> bool:
        """True only when the config is known not to have the field."""
        value = self.get(key, None)
        return value is None


@dataclass(slots=True)
class SpecConfig:
    """The speculative config after vLLM's own rewriting."""

    values: Mapping[str, Any]
    requested: str | None
    method: str | None = None
    """None when the release refuses the config."""
    tokens: int | None = None
    draft: DraftModel | None = None
    parallel_drafting: bool = False
    refused: bool = False
    problems: list[Problem] = field(default_factory=list)


class _Refused(Exception):
    """First thing the config object refuses."""

    def __init__(self, code: str, error: str, exception: str = "ValidationError", key: str = "", **data: Any):
        super().__init__(error)
        self.code, self.error, self.exception, self.key, self.data = code, error, exception, key, data


def resolve_speculative_config(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism
) -> SpecConfig | None:
    """The speculative config of the launch; None without speculative decoding (or when the parser refused it)."""
    section = facts.section("spec_decode")
    merged = merge(deployment, section)
    if merged is None:
        return None
    requested = merged.values.get("method")
    config = SpecConfig(merged.values, requested if isinstance(requested, str) else None)
    config.problems.extend(merged.problems)
    if merged.problems:
        config.refused = True
        return config
    try:
        _Builder(deployment, section, parallel, merged, config).build()
    except _Refused as refused:
        config.refused = True
        config.problems.append(
            Problem(
                refused.code,
                Stage.ENGINE_CONFIG,
                refused.exception,
                refused.error,
                {"method": config.method or config.requested, "tokens": config.tokens, **refused.data},
                origin(deployment.flags, refused.key or "method"),
            )
        )
    return config


class _Builder:
    """Walks the steps of ``__post_init__`` and ``_verify_args`` in vLLM's order."""

    def __init__(
        self,
        deployment: Deployment,
        section: Mapping[str, Any],
        parallel: Parallelism,
        merged: MergedConfig,
        config: SpecConfig,
    ):
        self.deployment = deployment
        self.section = section
        self.parallel = parallel
        self.values = merged.values
        self.config = config

    def build(self) -> None:
        config = self.config
        config.tokens = self.values.get("num_speculative_tokens")
        config.parallel_drafting = bool(self.values.get("parallel_drafting"))
        config.method = self._initial_method()
        model = self._draft_model_name()
        if config.method in ("ngram", "ngram_gpu"):
            self._check_ngram()
        elif config.method == "suffix":
            self._check_suffix()
        elif config.method not in ("custom_class", "extract_hidden_states") and model is not None:
            self._build_draft(model)
        self._after_draft()
        self._verify()

    def _initial_method(self) -> str | None:
        method, model = self.values.get("method"), self.values.get("model")
        style = self.section.get("class_path")
        if (
            isinstance(model, str)
            and _looks_like_class(model, style)
            and (style == "any_dot" or method is None)
        ):
            if method is not None:
                # Before 0.26 a dot in the name was enough, whatever method was asked for.
                self._note("spec-model-taken-for-class", Stage.MODEL_INIT, "", "model", model=model)
            return "custom_class"
        if method is None:
            return "ngram" if model in ("ngram", "[ngram]") else "draft_model"
        if method in (self.section.get("mtp_methods") or ()):
            return "mtp"
        return str(method)

    def _draft_model_name(self) -> str | None:
        """The draft model after vLLM filled it in; None when it stays unset."""
        model = self.values.get("model")
        if model is not None or self.config.tokens is None:
            return model
        method = self.config.method
        if method == "mtp" or (method == "dspark" and self.section.get("dspark")):
            return self.deployment.model.name
        if method in _DRAFT_FREE:
            return str(method)
        if method == "custom_class":
            raise _Refused(
                "spec-needs-draft-model",
                "method='custom_class' requires 'model' to contain the custom proposer module path "
                "(e.g., 'my_module.MyProposer').",
            )
        raise _Refused(
            "spec-needs-draft-model", "num_speculative_tokens was provided but without speculative model."
        )

    def _check_ngram(self) -> None:
        low, high = self.values.get("prompt_lookup_min"), self.values.get("prompt_lookup_max")
        low, high = low if low is not None else high, high if high is not None else low
        if low is not None and high is not None and low > high:
            raise _Refused(
                "spec-ngram-window",
                f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}",
                key="prompt_lookup_min",
                low=low,
                high=high,
            )

    def _check_suffix(self) -> None:
        if "arctic-inference" not in self.deployment.packages:
            raise _Refused(
                "spec-suffix-needs-package",
                "Arctic Inference is required for suffix decoding. "
                "Install via `pip install arctic-inference==0.1.1`.",
                "ImportError",
            )
        depth = self.values.get("suffix_decoding_max_tree_depth", 24)
        if self.config.tokens is None:
            self.config.tokens = depth
        for key, least, most in (
            ("suffix_decoding_max_tree_depth", 1, None),
            ("suffix_decoding_max_cached_requests", 0, None),
            ("suffix_decoding_max_spec_factor", 0, None),
            ("suffix_decoding_min_token_prob", 0, 1),
        ):
            value = self.values.get(key)
            if value is not None and (value < least or (most is not None and value > most)):
                wanted = f"must be >= {least}" if most is None else f"must be in [{least}, {most}]"
                raise _Refused("spec-suffix-value", f"{key}={value} {wanted}", key=key)

    def _build_draft(self, model: str) -> None:
        config = self.config
        draft = config.draft = self._describe(model)
        config.method = self._detected_method(draft)
        if config.method in ("eagle", "eagle3", "dflash") and draft.family is not None:
            self._refuse_eagle(draft, config.method)
        if config.method in ("dflash", "dspark"):
            config.parallel_drafting = True
        self._settle_tokens(draft)
        self._check_draft_topk()
        self._check_draft_parallel()
        self._check_max_model_len()

    def _describe(self, model: str) -> DraftModel:
        target = self.deployment.model
        overrides = frozenset(str(key) for key in self.deployment.flags.section("hf_overrides"))
        same = {target.name, target.known_id} if _is_published(target.known_id) else {target.name}
        if model in same or model.lower() in {str(name).lower() for name in same if name}:
            return DraftModel(model, True, target.family, target.draft_kind, target.text, overrides)
        family, kind = PUBLISHED.get(model.lower(), (None, None))
        return DraftModel(model, False, family, kind, None)

    def _detected_method(self, draft: DraftModel) -> str | None:
        asked = self.config.method
        if asked in (self.section.get("fixed_methods") or ()):
            return asked
        name = draft.name.lower()
        for needle, method in self.section.get("path_methods") or ():
            if needle in name:
                if asked != method:
                    self._note(
                        "spec-method-rewritten-by-path",
                        Stage.ENGINE_CONFIG,
                        "",
                        "method",
                        asked=self.config.requested or asked,
                        rewritten=method,
                        needle=needle,
                        path=draft.name,
                        kind=draft.kind,
                    )
                return str(method)
        if draft.family is None:
            # Another architecture: only its own config.json tells what vLLM would make of it.
            return asked
        if draft.family == "deepseek_v41" and self.section.get("v41_mtp_refused"):
            self.config.method = "mtp"
            raise _Refused(
                "spec-mtp-on-v41",
                "DeepSeek V4.1 has no classic-MTP draft: its checkpoints ship DSpark stages under mtp.* "
                "(main_proj/markov_head/confidence_head) and carry no e_proj/h_proj/enorm/hnorm/hc_head "
                "weights. Use speculative method 'dspark' instead of 'mtp'.",
            )
        if self.config.tokens is None:
            self.config.method = "mtp"
            raise _Refused(
                "spec-tokens-missing",
                "'>' not supported between instances of 'NoneType' and 'int'",
                "TypeError",
                key="model",
                model=draft.name,
            )
        return "mtp"

    def _refuse_eagle(self, draft: DraftModel, method: str) -> None:
        arch = "DeepSeekV4MTPModel" if draft.family == "deepseek_v4" else "DeepseekV41ForCausalLM"
        prefix = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}[method]
        raise _Refused(
            "spec-draft-is-no-eagle",
            f"Model architectures ['{prefix}{arch}'] are not supported for now.",
            key="model",
            draft=draft.name,
        )

    def _settle_tokens(self, draft: DraftModel) -> None:
        config = self.config
        rules: Mapping[str, Any] = self.section.get("dspark") or {}
        if config.method == "dspark":
            if rules.get("n_predict") is None:
                if config.tokens is None:
                    config.tokens = draft.integer("block_size") or draft.integer("dspark_block_size")
                    self._need_tokens(draft, ("block_size", "dspark_block_size"))
                return
            n_predict = draft.integer("num_nextn_predict_layers")
            if rules["n_predict"] == "layers_or_v41_block" and draft.family == "deepseek_v41":
                n_predict = draft.integer("dspark_block_size") or n_predict
        elif config.method == "mtp":
            n_predict = draft.integer("num_nextn_predict_layers")
        else:
            return
        if config.tokens is None:
            config.tokens = n_predict
        elif n_predict is not None and config.tokens > n_predict:
            if n_predict == 0:
                raise _Refused(
                    "spec-no-draft-layers",
                    "integer modulo by zero",
                    "ZeroDivisionError",
                    key="num_speculative_tokens",
                )
            if config.tokens % n_predict:
                raise _Refused(
                    "spec-tokens-not-divisible",
                    f"num_speculative_tokens:{config.tokens} must be divisible by n_predict={n_predict}",
                    key="num_speculative_tokens",
                    n_predict=n_predict,
                    rounded=config.tokens // n_predict * n_predict,
                    next=-(-config.tokens // n_predict) * n_predict,
                )
        self._need_tokens(draft, ("num_nextn_predict_layers",))
        block = draft.integer("dspark_block_size")
        if config.method == "dspark" and rules.get("needs_block") and block is not None:
            if config.tokens is not None and config.tokens < block:
                raise _Refused(
                    "spec-tokens-below-block",
                    f"DSpark requires num_speculative_tokens >= dspark_block_size ({block}); got {config.tokens}. "
                    f"Smaller values produce incorrect output. Use num_speculative_tokens={block} or larger "
                    "(e.g. 7).",
                    key="num_speculative_tokens",
                    block=block,
                    given="num_speculative_tokens" in self.values,
                )

    def _need_tokens(self, draft: DraftModel, keys: tuple[str, ...]) -> None:
        if self.config.tokens is None and all(draft.lacks(key) for key in keys):
            raise _Refused(
                "spec-tokens-missing",
                "A speculative model was provided, but `num_speculative_tokens` was not provided",
                key="model",
                model=draft.name,
            )

    def _check_draft_topk(self) -> None:
        models = self.section.get("draft_topk")
        topk = self.values.get("dspark_draft_topk")
        if models is None or topk is None:
            return
        method = self.config.method
        if method != "dspark":
            raise _Refused(
                "spec-draft-topk", "dspark_draft_topk is only supported by DSpark", key="dspark_draft_topk"
            )
        if self.config.draft is not None and self.config.draft.family is not None:
            raise _Refused(
                "spec-draft-topk",
                f"dspark_draft_topk is only supported by {models}",
                key="dspark_draft_topk",
            )

    def _check_draft_parallel(self) -> None:
        size = self.values.get("draft_tensor_parallel_size")
        tensor = self.parallel.tensor
        if size is not None and size not in (1, tensor):
            raise _Refused(
                "spec-draft-tensor-parallel",
                f"speculative_draft_tensor_parallel_size={size} cannot be other value than 1 or target model "
                "tensor_parallel_size",
                key="draft_tensor_parallel_size",
                size=size,
                tensor=tensor,
            )

    def _check_max_model_len(self) -> None:
        length = self.values.get("max_model_len")
        target = self.deployment.flags.get("max_model_len")
        if length is None or not isinstance(target, int) or isinstance(target, bool) or target <= 0:
            return
        if length > target:
            raise _Refused(
                "spec-max-model-len",
                f"speculative_max_model_len={length} cannot be larger than target_max_model_len={target}",
                key="max_model_len",
                length=length,
                target=target,
            )

    def _after_draft(self) -> None:
        values, method = self.values, self.config.method
        if values.get("index_share_for_mtp_iteration") is not None and method != "mtp":
            raise _Refused(
                "spec-option-needs-method",
                "index_share_for_mtp_iteration is only supported with method='mtp'",
                key="index_share_for_mtp_iteration",
                option="index_share_for_mtp_iteration",
            )
        adaptive = self.section.get("adaptive")
        if not adaptive or not values.get("enable_adaptive_verification") or method == "dspark":
            return
        if adaptive["methods"] != "any":
            raise _Refused(
                "spec-adaptive-method",
                "Adaptive verification only supported with DSpark",
                key="enable_adaptive_verification",
            )
        if values.get("use_local_argmax_reduction"):
            raise _Refused(
                "spec-adaptive-argmax",
                "Adaptive verification estimates per-position acceptance from the draft logits, which "
                "use_local_argmax_reduction never materializes. Disable one of them.",
                key="enable_adaptive_verification",
            )

    def _verify(self) -> None:
        values, config = self.values, self.config
        if values.get("tensor_parallel_size") is not None:
            raise _Refused(
                "spec-tensor-parallel-key",
                "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass "
                "'draft_tensor_parallel_size' instead.",
                key="tensor_parallel_size",
                size=values["tensor_parallel_size"],
            )
        unknown_draft = config.draft is not None and config.draft.text is None
        if config.tokens is None and not unknown_draft:
            raise _Refused(
                "spec-tokens-missing",
                "num_speculative_tokens must be provided with speculative model unless the draft model config "
                "contains an n_predict parameter.",
                model=self.deployment.model.name,
            )
        if values.get("draft_lm_head_quantization") and config.method not in ("eagle", "eagle3", "mtp"):
            raise _Refused(
                "spec-option-needs-method",
                f"draft_lm_head_quantization is not supported for method '{config.method}'.",
                key="draft_lm_head_quantization",
                option="draft_lm_head_quantization",
            )
        self._check_synthetic()
        self._check_pipeline()
        self._check_aux_models()
        self._check_vocabulary()
        self._check_fly()

    def _check_synthetic(self) -> None:
        rates, length = (
            self.values.get("synthetic_acceptance_rates"),
            self.values.get("synthetic_acceptance_length"),
        )
        tokens = self.config.tokens
        error = None
        if self.values.get("rejection_sample_method") != "synthetic":
            if rates is not None or length is not None:
                error = (
                    "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with "
                    "rejection_sample_method='synthetic'."
                )
        elif (rates is None) == (length is None):
            error = (
                "rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or "
                "synthetic_acceptance_length."
            )
        elif rates is not None and tokens is not None:
            if len(rates) != tokens:
                error = f"synthetic_acceptance_rates must have length {tokens}, got {rates}."
            elif not all(0.0 <= rate <= 1.0 for rate in rates):
                error = f"synthetic_acceptance_rates entries must be in [0, 1], got {rates}."
            elif any(after > before for before, after in zip(rates, rates[1:], strict=False)):
                error = f"synthetic_acceptance_rates must be non-increasing, got {rates}."
        elif length is not None and tokens is not None and not 1.0 <= length <= tokens + 1:
            error = f"synthetic_acceptance_length must be in [1, {tokens + 1}], got {length}."
        if error is not None:
            raise _Refused("spec-synthetic-rates", error, key="synthetic_acceptance_rates")

    def _check_pipeline(self) -> None:
        draft = self.config.draft
        if (
            self.section.get("draft_pipeline") == "refused"
            and self.parallel.pipeline > 1
            and draft is not None
            and draft.family is not None
        ):
            raise _Refused(
                "spec-draft-pipeline",
                "Pipeline parallelism is not supported for this model. Supported models implement the "
                "`SupportsPP` interface.",
                "NotImplementedError",
                pipeline=self.parallel.pipeline,
            )

    def _check_aux_models(self) -> None:
        supported = self.section.get("aux_hidden_models")
        if supported and self.config.method in ("eagle3", "extract_hidden_states", "dflash"):
            raise _Refused(
                "spec-method-not-for-v4",
                f"{self.config.method} is only supported for {list(supported)} models. "
                f"Got self.target_model_config.hf_text_config.model_type='{self.deployment.model.family}'",
            )

    def _check_vocabulary(self) -> None:
        values = self.values
        if not values.get("use_heterogeneous_vocab"):
            return
        error = None
        if self.config.method != "draft_model":
            error = "use_heterogeneous_vocab only works with method='draft_model'"
        elif values.get("draft_sample_method", "greedy") != "greedy":
            error = (
                "use_heterogeneous_vocab currently only supports greedy draft sampling. Set "
                "draft_sample_method='greedy' (the default) or omit it."
            )
        if error is not None:
            raise _Refused(
                "spec-option-needs-method",
                error,
                key="use_heterogeneous_vocab",
                option="use_heterogeneous_vocab",
            )

    def _check_fly(self) -> None:
        if self.values.get("rejection_sample_method") != "fly" or self.config.tokens is None:
            return
        window = self.values.get("fly_window_size")
        error = None
        if self.config.method == "extract_hidden_states":
            error = (
                "FLy is not compatible with method='extract_hidden_states', which does not perform "
                "speculative decoding."
            )
        elif self.config.tokens < 2:
            error = "FLy requires num_speculative_tokens to be at least 2."
        elif window is not None and window >= self.config.tokens:
            error = "FLy requires fly_window_size to be smaller than num_speculative_tokens."
        if error is not None:
            raise _Refused("spec-fly", error, key="rejection_sample_method")

    def _note(self, code: str, stage: Stage, error: str, key: str, **data: Any) -> None:
        self.config.problems.append(Problem(code, stage, "", error, data, origin(self.deployment.flags, key)))


def _looks_like_class(model: str, style: str | None) -> bool:
    """Whether the release takes a draft model name for the path of a proposer class."""
    if style in (None, "none") or "/" in model or model.startswith(("http://", "https://", "file://")):
        return False
    if style == "any_dot":
        return "." in model
    parts = model.split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)


def _is_published(known_id: str | None) -> bool:
    return known_id is not None and known_id.lower() in PUBLISHED
