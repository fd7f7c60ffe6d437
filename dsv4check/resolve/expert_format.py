"""What the routed experts of a checkpoint are stored as, and what a release takes them for.

vLLM turns ``quant_method: fp8`` of a DeepSeek-V4 config into its own method ``deepseek_v4_fp8``
(``DeepseekV4FP8Config.override_quantization_method``), whatever ``--quantization`` says. That method asks
``expert_dtype`` (fp4 unless the config says otherwise) and ``quantization_config.moe_quant_algo``. Every
other ``quant_method`` goes to the quantization class of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from dsv4check.deployment import Model, ServeFlags
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_V4_METHODS: Final = frozenset({"fp8", "deepseek_v4_fp8"})
_NVFP4_METHODS: Final = frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed"})


@dataclass(frozen=True, slots=True)
class ExpertFormat:
    """How the routed experts are read."""

    name: str | None
    """``mxfp4``, ``fp8`` or ``nvfp4``: as this release reads them; None when it cannot be told."""
    stored: str | None
    """What the checkpoint holds by its config; differs from ``name`` where a release misreads it."""
    method: str | None
    """``quantization_config.quant_method``, lower case; None without a quantization_config."""
    native: bool
    """True when vLLM's own ``deepseek_v4_fp8`` method reads the checkpoint."""


def quantization(model: Model) -> Mapping[str, Any]:
    """``quantization_config`` of the model, from the outer config or the text section; empty when absent."""
    for section in (model.raw, model.text):
        value = section.get("quantization_config")
        if isinstance(value, Mapping):
            return value
    return _EMPTY


def weight_block(model: Model) -> tuple[int, int] | None:
    """``weight_block_size`` (rows, columns) of the FP8 linear layers; None for other quantisation."""
    value = quantization(model).get("weight_block_size")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    rows, columns = value
    if all(isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in (rows, columns)):
        return int(rows), int(columns)
    return None


def expert_format(model: Model, section: Mapping[str, Any]) -> ExpertFormat:
    """The format of the routed experts, and how this release (its ``moe`` facts) reads it."""
    quant = quantization(model)
    raw_method = quant.get("quant_method")
    method = raw_method.lower() if isinstance(raw_method, str) else None
    if method in _V4_METHODS:
        stored = _native_format(model, quant)
        name = stored
        if (stored == "fp8" and not section.get("expert_dtype_read", True)) or (
            stored == "nvfp4" and not section.get("nvfp4_read", True)
        ):
            name = "mxfp4"
        return ExpertFormat(name, stored, method, native=True)
    if method == "quark":
        stored = "mxfp4" if _is_quark_mxfp4(quant) else None
        claimed = stored is not None and bool(section.get("quark_claimed"))
        return ExpertFormat(stored if claimed else None, stored, method, native=claimed)
    if method == "compressed-tensors":
        stored = "nvfp4" if _compressed_nvfp4(quant) else None
        return ExpertFormat(stored, stored, method, native=False)
    if method in _NVFP4_METHODS:
        stored = "nvfp4" if _modelopt_nvfp4(quant) else None
        return ExpertFormat(stored, stored, method, native=False)
    return ExpertFormat(None, None, method, native=False)


def other_layers(flags: ServeFlags, facts: ReleaseFacts) -> str:
    """Why a launch builds other layers than the checkpoint's own method has; empty when it does not."""
    value = flags.values.get("quantization")
    if value in facts.section("moe").get("quantization_taken", ()):
        return f"--quantization {value} builds layers of its own"
    if flags.values.get("quantization_config") is not None:
        return "--quantization-config changes what layers are built"
    return ""


def ignores_experts(model: Model, layers: Sequence[str]) -> bool | None:
    """Whether ``quantization_config.ignore`` lists the routed experts of layers (``layers.0``); None for some of them.

    Source: ``models/deepseek_v41/quant_config.py:_is_nvfp4_expert_layer`` (from 0.32 on; before, the list did not count
    and the facts say the same for ignored and other experts).
    """
    # Only NVFP4 asks.
    from fnmatch import fnmatchcase

    listed = quantization(model).get("ignore")
    patterns = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
    found = {any(fnmatchcase(f"{layer}.ffn.experts", pattern) for pattern in patterns) for layer in layers}
    return None if len(found) > 1 else found == {True}


def _native_format(model: Model, quant: Mapping[str, Any]) -> str | None:
    """``expert_dtype`` and ``moe_quant_algo`` as ``DeepseekV4FP8Config`` combines them."""
    dtype = model.text.get("expert_dtype", model.raw.get("expert_dtype"))
    if dtype is None:
        # V4.1 keeps the key inside quantization_config; V4 configs without it mean fp4.
        dtype = quant.get("expert_dtype") if model.family == "deepseek_v41" else None
    if dtype is None or dtype == "fp4":
        algorithm = quant.get("moe_quant_algo")
        return "nvfp4" if isinstance(algorithm, str) and algorithm.upper() == "NVFP4" else "mxfp4"
    return "fp8" if dtype == "fp8" else None


def _is_quark_mxfp4(quant: Mapping[str, Any]) -> bool:
    scheme = quant.get("global_quant_config")
    weight = scheme.get("weight") if isinstance(scheme, Mapping) else None
    if not isinstance(weight, Mapping):
        return False
    return (weight.get("dtype"), weight.get("qscheme"), weight.get("group_size")) == ("fp4", "per_group", 32)


def _compressed_nvfp4(quant: Mapping[str, Any]) -> bool:
    """A group for the experts with 4-bit float weights and activations in blocks of 16."""
    groups = quant.get("config_groups")
    if not isinstance(groups, Mapping):
        return False
    for group in groups.values():
        if not isinstance(group, Mapping):
            continue
        targets = group.get("targets")
        listed = targets if isinstance(targets, Sequence) and not isinstance(targets, str) else ()
        named = any(isinstance(target, str) and "experts" in target for target in listed)
        if named and _is_nvfp4(group.get("weights")) and _is_nvfp4(group.get("input_activations")):
            return True
    return False


def _is_nvfp4(scheme: Any) -> bool:
    if not isinstance(scheme, Mapping):
        return False
    return (scheme.get("num_bits"), scheme.get("type"), scheme.get("group_size")) == (4, "float", 16)


def _modelopt_nvfp4(quant: Mapping[str, Any]) -> bool:
    """ModelOpt exports name one algorithm for all layers, or one for each layer of a mixed export."""
    algorithm = quant.get("quant_algo")
    if isinstance(algorithm, str) and algorithm.upper() == "NVFP4":
        return True
    layers = quant.get("quantized_layers")
    if not isinstance(layers, Mapping):
        return False
    experts = [item for name, item in layers.items() if str(name).endswith(".experts")]
    return bool(experts) and all(isinstance(item, Mapping) and item.get("quant_algo") == "NVFP4" for item in experts)
