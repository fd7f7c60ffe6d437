"""What becomes of ``--kv-cache-dtype``: who rewrites it, who refuses it, and what is stored.

Order of the stations in vLLM: the parser's choice list (a free string from 0.33, checked by CacheConfig),
``resolve_kv_cache_dtype_string`` (only for ``auto`` on ModelOpt checkpoints), the NVFP4-with-MLA validator,
the float-equals-model-dtype validator (0.33), then the attention layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention

_MODELOPT = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_FLOATS = {"float16", "bfloat16"}


@dataclass(frozen=True, slots=True)
class KvDtype:
    """The outcome for the target's layers."""

    requested: str
    resolved: str | None
    torch_dtype: str | None
    rewrites: tuple[str, ...]
    problems: tuple[Problem, ...]


def resolve_kv_dtype(deployment: Deployment, facts: ReleaseFacts, attention: Attention) -> KvDtype:
    """Follow the dtype through the release's stations. ``attention.layout`` None leaves the result open."""
    section = facts.section("kv_cache")
    requested = str(deployment.flags.get("kv_cache_dtype", "auto"))
    use = deployment.flags.use("kv_cache_dtype")
    origin = use.origin if use else None
    rewrites: list[str] = []
    early = _config_problem(deployment, section, requested, origin)
    if early is not None:
        return KvDtype(requested, None, None, (), (early,))
    current = requested
    if current == "auto":
        current = _modelopt_dtype(deployment.model.raw.get("quantization_config")) or "auto"
        if current != "auto":
            rewrites.append(f"auto -> {current} (the checkpoint's ModelOpt KV-cache scheme)")
            early = _config_problem(deployment, section, current, origin)
            if early is not None:
                return KvDtype(requested, None, None, tuple(rewrites), (early,))
    if attention.layout == "fp8_ds_mla":
        return _packed(section, requested, current, rewrites, origin)
    if attention.layout == "plain":
        return _plain(section, requested, current, rewrites, origin)
    return KvDtype(requested, None, None, tuple(rewrites), ())


def refusal(deployment: Deployment, facts: ReleaseFacts, dtype: str, layout: str | None) -> tuple[str, str] | None:
    """(exception, error) with which a layer of this layout refuses a cache dtype; None when it takes it.

    For a dtype that arrives after the engine config was made, as the draft's own does.
    """
    section = facts.section("kv_cache")
    found = _config_problem(deployment, section, dtype, None)
    if found is None and layout == "fp8_ds_mla":
        found = next((item for item in _packed(section, dtype, dtype, [], None).problems if item.exception), None)
    return None if found is None else (found.exception, found.error)


def _packed(
    section: Mapping[str, Any], requested: str, current: str, rewrites: list[str], origin: Origin | None
) -> KvDtype:
    """The packed layout takes only names that start with fp8 and stores all of them as fp8_ds_mla."""
    packed = section["packed"]
    if current == "auto" and packed["auto"] == "fp8":
        rewrites.append("auto -> fp8 (attention layer)")
        current = "fp8"
    if not current.startswith("fp8"):
        problem = Problem(
            "kv-auto-rejected" if current == "auto" else "kv-dtype-rejected",
            Stage.MODEL_INIT,
            packed["exception"],
            packed["error"].replace("{dtype}", current),
            {"dtype": current},
            origin,
        )
        return KvDtype(requested, None, None, tuple(rewrites), (problem,))
    problems = []
    if current in ("fp8_e5m2", "fp8_inc", "fp8_per_token_head"):
        problems.append(_stored_otherwise(current, "fp8_ds_mla (E4M3 with UE8M0 scales)", origin))
    if current != "fp8_ds_mla":
        rewrites.append(f"{current} -> fp8_ds_mla (attention layer, written back to the cache config)")
    return KvDtype(requested, "fp8_ds_mla", "uint8", tuple(rewrites), tuple(problems))


def _plain(
    section: Mapping[str, Any], requested: str, current: str, rewrites: list[str], origin: Origin | None
) -> KvDtype:
    """Plain rows take any name: fp8* is stored as float8_e4m3fn, everything else as bfloat16."""
    problems = []
    if current == "fp8_ds_mla":
        problems.append(
            Problem(
                "packed-dtype-on-plain-rows",
                Stage.WARMUP,
                data={"dtype": current},
                origin=origin,
            )
        )
    elif current.startswith("fp8") and current not in ("fp8", "fp8_e4m3"):
        problems.append(_stored_otherwise(current, "float8_e4m3fn with scale 1.0", origin))
    elif not current.startswith("fp8") and current not in ("auto", "bfloat16"):
        problems.append(_stored_otherwise(current, "bfloat16", origin))
    torch_dtype = "float8_e4m3fn" if current.startswith("fp8") else "bfloat16"
    return KvDtype(requested, current, torch_dtype, tuple(rewrites), tuple(problems))


def _stored_otherwise(dtype: str, stored: str, origin: Origin | None) -> Problem:
    return Problem(
        "kv-dtype-stored-otherwise",
        Stage.MODEL_INIT,
        data={"dtype": dtype, "stored": stored},
        origin=origin,
    )


def _config_problem(
    deployment: Deployment, section: Mapping[str, Any], dtype: str, origin: Origin | None
) -> Problem | None:
    """What the engine config refuses before any layer is built."""
    if section["open_string"] and dtype not in section["choices"]:
        return Problem(
            "unknown-kv-cache-dtype",
            Stage.ENGINE_CONFIG,
            "ValidationError",
            f"Value error, Invalid kv_cache_dtype: {dtype!r}.",
            {"dtype": dtype, "choices": section["choices"]},
            origin,
        )
    refused = section.get("nvfp4_refused")
    if refused and _nvfp4_refused(refused["names"], dtype):
        return Problem(
            "nvfp4-kv-with-mla",
            Stage.ENGINE_CONFIG,
            "ValidationError",
            f"Value error, {refused['error']}",
            {"dtype": dtype},
            origin,
        )
    if section["float_must_match_model"] and dtype in _FLOATS:
        model_dtype = _model_dtype(deployment)
        if model_dtype is not None and model_dtype != dtype:
            return Problem(
                "kv-float-not-model-dtype",
                Stage.ENGINE_CONFIG,
                "ValidationError",
                f'Value error, kv_cache_dtype="{dtype}" is incompatible with dtype="{model_dtype}". '
                f"Please set `--kv-cache-dtype` to `auto` or `{model_dtype}`.",
                {"dtype": dtype, "model_dtype": model_dtype},
                origin,
            )
    return None


def _nvfp4_refused(names: str, dtype: str) -> bool:
    if names == "exact":
        return dtype == "nvfp4"
    return dtype.startswith("nvfp4") and not (names == "prefix-but-ds-mla" and dtype.endswith("_ds_mla"))


def _model_dtype(deployment: Deployment) -> str | None:
    """``--dtype``, or the checkpoint's for ``auto``; None when it cannot be told."""
    asked = str(deployment.flags.get("dtype", "auto"))
    if asked == "half":
        return "float16"
    if asked != "auto":
        return asked
    stated = deployment.model.get("torch_dtype") or deployment.model.get("dtype")
    stated = stated or deployment.model.raw.get("dtype")
    return stated if isinstance(stated, str) else None


def _modelopt_dtype(quantization: object) -> str | None:
    """The KV dtype a ModelOpt checkpoint asks for, as ``get_kv_cache_quant_algo_string`` reads it."""
    if not isinstance(quantization, Mapping):
        return None
    if not str(quantization.get("quant_method") or "").startswith("modelopt"):
        return None
    inner = quantization.get("quantization", quantization)
    sources = [source for source in (inner, quantization) if isinstance(source, Mapping)]
    scheme: object = None
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        scheme = scheme or next((source[key] for source in sources if source.get(key)), None)
    if isinstance(scheme, Mapping):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        if kind == "float" and bits == 8 and scheme.get("dynamic") is False:
            scheme = "fp8"
        elif kind == "float" and bits == 4:
            scheme = "nvfp4"
    return _MODELOPT.get(scheme.lower()) if isinstance(scheme, str) else None
