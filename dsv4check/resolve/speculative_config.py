"""What ``SpeculativeConfig`` makes of the merged keys: the method, the draft model, the number of tokens.

Source: ``config/speculative.py`` of each release, ``__post_init__`` then ``_verify_args``. vLLM stops at the
first refusal, so there is at most one problem of that kind; what it only rewrites is reported beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.inputs.checkpoint import bundled_config, find_published
from dsv4check.problems import Problem, Stage
from dsv4check.records import dataclass, field
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve import speculative_checks as checks
from dsv4check.resolve.scheduler_limits import derived_length
from dsv4check.resolve.speculative_fields import MergedConfig, merge, origin

PUBLISHED: Mapping[str, tuple[str, str | None]] = {
    "deepseek-v4-flash": ("deepseek_v4", "mtp"),
    "deepseek-v4-flash-base": ("deepseek_v4", "mtp"),
    "deepseek-v4-flash-fp8": ("deepseek_v4", "mtp"),
    "deepseek-v4-flash-nvfp4": ("deepseek_v4", "mtp"),
    "deepseek-v4-flash-nvfp4-fp8": ("deepseek_v4", "none"),
    "deepseek-v4-pro": ("deepseek_v4", "mtp"),
    "deepseek-v4-pro-base": ("deepseek_v4", "mtp"),
    "deepseek-v4-pro-fp8": ("deepseek_v4", "mtp"),
    "deepseek-v4-pro-nvfp4": ("deepseek_v4", "mtp"),
    "deepseek-v4-flash-0731": ("deepseek_v4", "dspark"),
    "deepseek-v4-flash-dspark": ("deepseek_v4", "dspark"),
    "deepseek-v4-flash-vision-exp": ("deepseek_v4", "dspark"),
    "deepseek-v4-pro-0813": ("deepseek_v4", "dspark"),
    "deepseek-v4-pro-dspark": ("deepseek_v4", "dspark"),
    "deepseek-v4.1-flash": ("deepseek_v41", "dspark"),
    "deepseek-v4.1-flash-1017": ("deepseek_v41", "dspark"),
}
"""Published checkpoints by the last part of their name: family, and what their ``mtp.*`` tensors hold."""

_DRAFT_FREE = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
_UNKNOWN = object()
_TOKENS = "num_speculative_tokens"
_LENGTH_KEYS = frozenset({"max_position_embeddings", "rope_scaling", "rope_parameters"})
_SUFFIX_DEPTH = 24
"""Default of ``suffix_decoding_max_tree_depth``, in every release."""


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


def _published_text(name: str) -> Mapping[str, Any] | None:
    """The config section of a published checkpoint; None for others, and where our config is only assumed."""
    entry = find_published(name)
    if entry is None or entry.trust == "assumed":
        return None
    config = bundled_config(entry.id)
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


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


def resolve_speculative_config(deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism) -> SpecConfig | None:
    """The speculative config of the launch; None without one, and when the parser already refused it."""
    section = facts.section("spec_decode")
    merged = merge(deployment, section, facts.version)
    if merged is None:
        return None
    requested = merged.values.get("method")
    config = SpecConfig(merged.values, requested if isinstance(requested, str) else None)
    config.problems.extend(merged.problems)
    if merged.problems:
        config.refused = True
        return config
    try:
        _Builder(deployment, facts, parallel, merged, config).build()
    except checks.RefusedError as refused:
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
        facts: ReleaseFacts,
        parallel: Parallelism,
        merged: MergedConfig,
        config: SpecConfig,
    ):
        self.deployment = deployment
        self.facts = facts
        self.section = facts.section("spec_decode")
        self.parallel = parallel
        self.values = merged.values
        self.config = config

    def build(self) -> None:
        config, values = self.config, self.values
        config.tokens = values.get("num_speculative_tokens")
        config.parallel_drafting = bool(values.get("parallel_drafting"))
        config.method = self._initial_method()
        model = self._draft_model_name()
        if config.method in ("ngram", "ngram_gpu"):
            checks.check_ngram(values)
        elif config.method == "suffix":
            checks.check_suffix(values, self.deployment.packages)
            if config.tokens is None:
                config.tokens = values.get("suffix_decoding_max_tree_depth", _SUFFIX_DEPTH)
        elif config.method not in ("custom_class", "extract_hidden_states") and model is not None:
            self._build_draft(model)
        checks.check_options(values, self.section, config.method)
        self._verify()

    def _initial_method(self) -> str | None:
        method, model = self.values.get("method"), self.values.get("model")
        style = self.section.get("class_path")
        if isinstance(model, str) and _looks_like_class(model, style) and (style == "any_dot" or method is None):
            if method not in (None, "custom_class"):
                # Before 0.26 a dot in the name was enough, whatever method was asked for.
                self._note("spec-model-taken-for-class", Stage.MODEL_INIT, "model", model=model)
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
        error = "num_speculative_tokens was provided but without speculative model."
        if method == "custom_class":
            error = (
                "method='custom_class' requires 'model' to contain the custom proposer module path "
                "(e.g., 'my_module.MyProposer')."
            )
        raise checks.RefusedError("spec-needs-draft-model", error)

    def _build_draft(self, model: str) -> None:
        config, values = self.config, self.values
        checks.check_model_name(model)
        draft = config.draft = self._describe(model)
        limit = derived_length(self.deployment, self.facts.section("engine_config"))
        if draft.is_target and draft.family == "deepseek_v4":
            # Overrides of the target's config do not reach the draft's.
            own = None if draft.hidden & _LENGTH_KEYS else limit
            quantized = self.deployment.model.raw.get("quantization_config")
            method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
            checks.check_draft_length(values, self.section, self.deployment, own)
            checks.check_draft_quantization(values, method)
        config.method = self._detected_method(draft)
        if config.method in ("eagle", "eagle3", "dflash") and draft.family is not None:
            _refuse_eagle(draft, config.method)
        if config.method in ("dflash", "dspark"):
            config.parallel_drafting = True
        self._settle_tokens(draft)
        checks.check_draft_topk(values, self.section, config.method, draft.family)
        checks.check_draft_tensor_parallel(values, self.parallel.tensor)
        checks.check_max_model_len(values, self.deployment, limit)

    def _describe(self, model: str) -> DraftModel:
        target = self.deployment.model
        overrides = self.deployment.flags.section("hf_overrides")
        inner = overrides.get("text_config")
        hidden = frozenset(map(str, overrides)) | frozenset(map(str, inner if isinstance(inner, Mapping) else ()))
        if model.lower() == target.name.lower() or model == target.known_id:
            return DraftModel(model, True, target.family, target.draft_kind, target.text, hidden)
        own = self.deployment.draft
        if own is not None and own.name == model:
            return DraftModel(model, False, own.family, own.draft_kind, own.text)
        family, kind = PUBLISHED.get(model.rstrip("/").rsplit("/", 1)[-1].lower(), (None, None))
        return DraftModel(model, False, family, kind, _published_text(model))

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
            raise checks.RefusedError(
                "spec-mtp-on-v41",
                "DeepSeek V4.1 has no classic-MTP draft: its checkpoints ship DSpark stages under mtp.* "
                "(main_proj/markov_head/confidence_head) and carry no e_proj/h_proj/enorm/hnorm/hc_head "
                "weights. Use speculative method 'dspark' instead of 'mtp'.",
            )
        if self.config.tokens is None:
            self.config.method = "mtp"
            raise checks.RefusedError(
                "spec-tokens-missing",
                "'>' not supported between instances of 'NoneType' and 'int'",
                "TypeError",
                key="model",
                model=draft.name,
            )
        return "mtp"

    def _settle_tokens(self, draft: DraftModel) -> None:
        """Default and divisibility of num_speculative_tokens; vLLM calls the draft layers ``n_predict``."""
        config = self.config
        rules: Mapping[str, Any] = self.section.get("dspark") or {}
        if config.method == "dspark" and rules.get("n_predict") is None:
            if config.tokens is None:
                config.tokens = draft.integer("block_size") or draft.integer("dspark_block_size")
            self._need_tokens(draft, ("block_size", "dspark_block_size"))
            return
        if config.method not in ("mtp", "dspark"):
            return
        n_predict = draft.integer("num_nextn_predict_layers")
        if config.method == "dspark" and draft.family == "deepseek_v41" and rules["n_predict"] == "layers_or_v41_block":
            n_predict = draft.integer("dspark_block_size") or n_predict
        if config.tokens is None:
            config.tokens = n_predict
        elif n_predict is not None and config.tokens > n_predict:
            _check_divisible(config.tokens, n_predict)
        self._need_tokens(draft, ("num_nextn_predict_layers",))
        if config.method == "dspark" and rules.get("needs_block"):
            self._check_block(draft)

    def _check_block(self, draft: DraftModel) -> None:
        block, tokens = draft.integer("dspark_block_size"), self.config.tokens
        if block is not None and tokens is not None and tokens < block:
            error = (
                f"DSpark requires num_speculative_tokens >= dspark_block_size ({block}); got {tokens}. "
                f"Smaller values produce incorrect output. Use num_speculative_tokens={block} or larger "
                "(e.g. 7)."
            )
            raise checks.RefusedError("spec-tokens-below-block", error, key=_TOKENS, block=block)

    def _need_tokens(self, draft: DraftModel, keys: tuple[str, ...]) -> None:
        if self.config.tokens is None and all(draft.lacks(key) for key in keys):
            raise checks.RefusedError(
                "spec-tokens-missing",
                "A speculative model was provided, but `num_speculative_tokens` was not provided",
                key="model",
                model=draft.name,
            )

    def _verify(self) -> None:
        values, config, draft = self.values, self.config, self.config.draft
        checks.check_tensor_parallel_key(values)
        if config.tokens is None and (draft is None or (draft.text is not None and not draft.hidden)):
            error = (
                "num_speculative_tokens must be provided with speculative model unless the draft model "
                "config contains an n_predict parameter."
            )
            raise checks.RefusedError("spec-tokens-missing", error, model=self.deployment.model.name)
        family = draft.family if draft is not None else None
        checks.check_lm_head(values, config.method)
        checks.check_synthetic(values, config.tokens)
        checks.check_pipeline(self.section, self.parallel, family)
        checks.check_aux_models(self.section, config.method, self.deployment.model.family)
        checks.check_vocabulary(values, config.method)
        checks.check_fly(values, config.method, config.tokens)

    def _note(self, code: str, stage: Stage, key: str, **data: Any) -> None:
        self.config.problems.append(Problem(code, stage, "", "", data, origin(self.deployment.flags, key)))


def _refuse_eagle(draft: DraftModel, method: str) -> None:
    arch = "DeepSeekV4MTPModel" if draft.family == "deepseek_v4" else "DeepseekV41ForCausalLM"
    prefix = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}[method]
    error = f"Model architectures ['{prefix}{arch}'] are not supported for now."
    raise checks.RefusedError("spec-draft-is-no-eagle", error, key="model", draft=draft.name)


def _check_divisible(tokens: int, n_predict: int) -> None:
    if n_predict == 0:
        raise checks.RefusedError("spec-no-draft-layers", "integer modulo by zero", "ZeroDivisionError", _TOKENS)
    if tokens % n_predict:
        raise checks.RefusedError(
            "spec-tokens-not-divisible",
            f"num_speculative_tokens:{tokens} must be divisible by n_predict={n_predict}",
            key=_TOKENS,
            n_predict=n_predict,
            rounded=tokens // n_predict * n_predict,
            next=-(-tokens // n_predict) * n_predict,
        )


def _looks_like_class(model: str, style: str | None) -> bool:
    """Whether the release takes a draft model name for the path of a proposer class."""
    if style in (None, "none") or "/" in model or model.startswith(("http://", "https://", "file://")):
        return False
    if style == "any_dot":
        return "." in model
    parts = model.split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)
