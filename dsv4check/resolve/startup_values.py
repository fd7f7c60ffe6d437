"""Values that the parser takes as they are and that the config classes refuse: names, formats, empty objects.

Sources: ``EngineArgs.create_engine_config``, ``ModelConfig``, ``KVConnectorFactory``, ``Executor.get_class`` and
``VllmConfig._set_cudagraph_sizes`` of every release; where releases differ, the release's flag table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolve.flag_values import config_problem, integer, where

_EXECUTORS: Final = ("ray", "mp", "uni", "external_launcher")
_DP_BACKENDS: Final = ("mp", "ray")
_CONFIG_FORMATS: Final = ("auto", "hf", "mistral")


def value_problems(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Every problem of this kind, in the order in which vLLM meets them; ``section`` is ``engine_config``."""
    return [
        *_config_format(deployment),
        *_hf_overrides(deployment),
        *_model_classes(deployment),
        *_data_parallel_backend(deployment),
        *_executor(deployment),
        *_empty_capture(deployment),
        *_load_format(deployment, section),
    ]


def _config_format(deployment: Deployment) -> list[Problem]:
    """``--config-format``: free text for the parser, a registry in ``transformers_utils/config.py``."""
    name = deployment.flags.values.get("config_format")
    if not isinstance(name, str) or name in _CONFIG_FORMATS[:2]:
        return []
    origin = where(deployment, "config_format")
    error = f"Unknown config format `{name}`."
    if name == "mistral":
        error = (
            f"Failed to load mistral 'params.json' config for model {deployment.model.name}. Please check if the "
            "model is a mistral-format model and if the config file exists."
        )
    data = {"value": name, "known": ", ".join(_CONFIG_FORMATS), "suggestion": "auto"}
    return [config_problem("config-format-unusable", error, data, origin)]


def _hf_overrides(deployment: Deployment) -> list[Problem]:
    """``--hf-overrides`` takes any text; ``ModelConfig`` wants an object (or a callable, which text never is)."""
    value = deployment.flags.values.get("hf_overrides")
    use = deployment.flags.use("hf_overrides")
    if isinstance(value, Mapping) or use is None or not deployment.flags.given("hf_overrides"):
        return []
    error = (
        "2 validation errors for ModelConfig\nhf_overrides.dict[str,any]\n  Input should be a valid dictionary\n"
        "hf_overrides.callable\n  Input should be callable"
    )
    return [config_problem("hf-overrides-no-object", error, {"value": use.raw or ""}, use.origin)]


def _model_classes(deployment: Deployment) -> list[Problem]:
    """``--model-class-overrides`` (0.25 and later): architecture -> ``module:class``, registered at once."""
    dest = "model_class_overrides"
    value = deployment.flags.values.get(dest)
    origin = where(deployment, dest)
    if not deployment.flags.given(dest) or dest not in deployment.flags.values:
        return []
    if not isinstance(value, Mapping):
        error = "1 validation error for ModelConfig\nmodel_class_overrides\n  Input should be a valid dictionary"
        return [config_problem("model-class-overrides-unusable", error, {"entry": value, "target": value}, origin)]
    for name, target in value.items():
        data = {"entry": name, "target": target}
        if not isinstance(target, str):
            error = (
                f"1 validation error for ModelConfig\nmodel_class_overrides.{name}\n  Input should be a valid string"
            )
        elif len(target.split(":")) != 2:
            error = "Expected a string in the format `<module>:<class>`"
        else:
            continue
        return [config_problem("model-class-overrides-unusable", error, data, origin)]
    return []


def _data_parallel_backend(deployment: Deployment) -> list[Problem]:
    """``--data-parallel-backend``: free text for the parser, asserted when the config is made."""
    name = deployment.flags.values.get("data_parallel_backend")
    if name is None or name in _DP_BACKENDS or _placed_elsewhere(deployment):
        return []
    error = f"('data_parallel_backend can only be ray or mp, got %s', '{name}')"
    data = {"value": name, "suggestion": "ray" if str(name).lower() == "ray" else "mp"}
    origin = where(deployment, "data_parallel_backend")
    return [Problem("data-parallel-backend-unknown", Stage.ENGINE_CONFIG, "AssertionError", error, data, origin)]


def _placed_elsewhere(deployment: Deployment) -> bool:
    """True where an address is given, or found otherwise, before the backend's name is looked at."""
    return deployment.flags.values.get("data_parallel_address") is not None


def _executor(deployment: Deployment) -> list[Problem]:
    """``--distributed-executor-backend``: one of four names, else the qualified name of a class."""
    name = deployment.flags.values.get("distributed_executor_backend")
    if not isinstance(name, str) or name in _EXECUTORS or "." in name:
        # Whether a module can be imported is not known here.
        return []
    error = "not enough values to unpack (expected 2, got 1)"
    lower = name.lower()
    data = {"value": name, "known": ", ".join(_EXECUTORS), "suggestion": lower if lower in _EXECUTORS else "mp"}
    return [config_problem("executor-backend-unknown", error, data, where(deployment, "distributed_executor_backend"))]


def _empty_capture(deployment: Deployment) -> list[Problem]:
    """No size to capture although CUDA graphs are on (``_set_cudagraph_sizes``)."""
    flags = deployment.flags
    compilation = flags.section("compilation_config")
    mode = str(compilation.get("cudagraph_mode", "")).upper()
    if flags.get("enforce_eager") is True or mode == "NONE" or flags.get("optimization_level") == 0:
        return []
    sizes = flags.values.get("cudagraph_capture_sizes", compilation.get("cudagraph_capture_sizes"))
    limit = flags.values.get("max_cudagraph_capture_size", compilation.get("max_cudagraph_capture_size"))
    if isinstance(limit, int) and min(limit, integer(deployment, "max_num_batched_tokens") or limit) < 1:
        error = "Maximum cudagraph size should be greater than or equal to 1 when using cuda graph."
        dest, given = "max_cudagraph_capture_size", str(limit)
    elif isinstance(sizes, (list, tuple)) and not sizes:
        error = "cudagraph_capture_sizes should contain at least one element when using cuda graph."
        dest, given = "cudagraph_capture_sizes", "empty"
    else:
        return []
    data: dict[str, Any] = {"key": dest, "value": given}
    return [config_problem("capture-sizes-empty", error, data, where(deployment, dest, "compilation_config"))]


def _load_format(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """``--load-format``: free text, lower-cased, looked up when a worker makes its model loader."""
    name = deployment.flags.values.get("load_format")
    known = section["load_formats"].split()
    if not isinstance(name, str) or name.lower() in known:
        return []
    error = f"Load format `{name.lower()}` is not supported"
    data = {"value": name, "known": ", ".join(known)}
    origin = where(deployment, "load_format")
    return [Problem("load-format-unknown", Stage.MODEL_INIT, "ValueError", error, data, origin)]
