"""Environment variables: names the release does not know, values it cannot read, and layouts V4 cannot use.

``envs.validate_environ`` compares every ``VLLM_*`` name with the release's table and warns (or stops, with
``--fail-on-environ-validation``). Values are parsed when a variable is first read: a few while the engine config is
made (``env.early`` in the facts), the others when the workers start; at the latest every worker reads all of them
after loading the weights (``envs.enable_envs_cache``), so a bad value never survives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolve.flag_values import reads_as_int

_PREFIX = "VLLM_"
_REPLACED: Mapping[str, str] = {
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_USE_V1": "nothing (V1 is the only engine)",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "--moe-backend",
    "VLLM_MXFP4_USE_MARLIN": "--moe-backend marlin",
    "VLLM_NVFP4_GEMM_BACKEND": "--linear-backend",
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    "VLLM_TORCH_PROFILER_DIR": "--profiler-config",
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "--prefix-cache-retention-interval",
}

_JUDGED_APART = frozenset({"USE_V2_MODEL_RUNNER"})
"""``resolve/runner.py`` reads the value itself and says what is wrong with it."""

_INVERTED: Mapping[str, str] = {
    "VLLM_DISABLE_DEEP_GEMM": "USE_DEEP_GEMM",
    "VLLM_DISABLE_FLASHINFER_SAMPLER": "USE_FLASHINFER_SAMPLER",
    "VLLM_DISABLE_BREAKABLE_CUDAGRAPH": "USE_BREAKABLE_CUDAGRAPH",
}
"""Switches people write as "disable X"; vLLM has them as "use X"."""


def environment_problems(deployment: Deployment, facts: ReleaseFacts) -> list[Problem]:
    """Problems of the server's environment, in the order of the variables."""
    section = facts.section("env")
    problems: list[Problem] = []
    if section:
        names = [name for name in deployment.env if name.startswith(_PREFIX)]
        problems += _unknown(deployment, facts.version, section, names)
        for name in names:
            problem = _value(section, name[len(_PREFIX) :], deployment.env[name], _read_at(deployment, section, name))
            if problem is not None:
                problems.append(problem)
    problems += _layout(deployment, facts.section("engine_config"))
    problems += _retention(deployment, facts.section("engine_config"))
    return problems


@lru_cache(maxsize=64)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _unknown(deployment: Deployment, release: str, section: Mapping[str, Any], names: Iterable[str]) -> list[Problem]:
    known = _words(section["known"])
    strict = deployment.flags.get("fail_on_environ_validation") is True
    problems: list[Problem] = []
    for name in names:
        if name[len(_PREFIX) :] in known:
            continue
        value = deployment.env[name]
        meant, meant_value = _meant(name, value, known)
        instead = _replacement(deployment, name) or meant
        hint = f"; use {instead}" if instead else ""
        data = {"name": name, "value": value, "backend": value, "instead": instead, "hint": hint}
        data |= {"meant": meant, "meant_value": meant_value}
        error = f"Unknown vLLM environment variable detected: {name}"
        exception = "ValueError" if strict else ""
        if strict:
            code = "env-unknown-fatal"
        elif name == "VLLM_ATTENTION_BACKEND":
            code = "env-attention-backend"
        elif meant and name not in _REPLACED:
            code = "env-misnamed"
        else:
            code = "env-unknown"
        problems.append(Problem(code, Stage.ENGINE_CONFIG, exception, error, data, Origin("env", name)))
    return problems


def _replacement(deployment: Deployment, name: str) -> str:
    """What took the variable's place; empty when that is a flag this release does not have (yet)."""
    instead = _REPLACED.get(name, "")
    flags = deployment.flags.defaults
    if not instead.startswith("--") or not flags:
        return instead
    return instead if instead.split()[0][2:].replace("-", "_") in flags else ""


@lru_cache(maxsize=512)
def _meant(name: str, value: str, known: frozenset[str]) -> tuple[str, str]:
    """The variable that was probably meant and the value it needs; empty when nothing is close."""
    switch = _INVERTED.get(name)
    if switch is not None and switch in known:
        on = value.strip().lower() in ("1", "true", "yes", "on")
        return _PREFIX + switch, "0" if on else "1"
    close = get_close_matches(name[len(_PREFIX) :], sorted(known), 1, 0.8)
    return (_PREFIX + close[0], value) if close else ("", "")


def _read_at(deployment: Deployment, section: Mapping[str, Any], name: str) -> Stage:
    """The stage at which a variable is first read."""
    short = name[len(_PREFIX) :]
    ranks = deployment.flags.get("data_parallel_size")
    # With several data-parallel ranks ParallelConfig itself looks for free ports.
    ports = short == "PORT" and isinstance(ranks, int) and ranks > 1
    early = ports or short in _words(section.get("early", ""))
    return Stage.ENGINE_CONFIG if early else Stage.MODEL_INIT


def _value(section: Mapping[str, Any], short: str, value: str, stage: Stage) -> Problem | None:
    """A value that the variable's reader cannot take."""
    name = _PREFIX + short
    origin = Origin("env", name)
    if short in _JUDGED_APART:
        return None
    if short == "PORT":
        return _port(value, origin, stage)
    choices = section["choices"].get(short)
    if choices is not None:
        allowed = choices["values"]
        fits = value in allowed if choices["exact"] else value.lower() in [v.lower() for v in allowed]
        if fits:
            return None
        error = f"Invalid value '{value}' for {name}. Valid options: {allowed}."
        data = {"name": name, "value": value, "expected": "one of " + ", ".join(allowed)}
        return Problem("env-bad-value", stage, "ValueError", error, data, origin)
    if short in _words(section["int"]):
        return None if reads_as_int(value) else _bad_number(name, value, "int", origin, stage)
    if short in _words(section["float"]) and not _is_float(value):
        return _bad_number(name, value, "float", origin, stage)
    return None


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _bad_number(name: str, value: str, kind: str, origin: Origin, stage: Stage) -> Problem:
    if kind == "int":
        error = f"invalid literal for int() with base 10: '{value}'"
        expected = "an integer (0 or 1 for a switch)"
    else:
        error = f"could not convert string to float: '{value}'"
        expected = "a number"
    data = {"name": name, "value": value, "expected": expected}
    return Problem("env-bad-value", stage, "ValueError", error, data, origin)


def _port(value: str, origin: Origin, stage: Stage) -> Problem | None:
    """Kubernetes sets ``VLLM_PORT=tcp://...`` in every pod beside a service named ``vllm``."""
    if reads_as_int(value):
        return None
    uri = "://" in value
    text = "appears to be a URI." if uri else "must be a valid integer"
    error = f"VLLM_PORT '{value}' {text}"
    data = {"name": "VLLM_PORT", "value": value, "expected": "a port number"}
    code = "env-port-uri" if uri else "env-bad-value"
    return Problem(code, stage, "ValueError", error, data, origin)


def _layout(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """``VLLM_KV_CACHE_LAYOUT`` from 0.29 on: V4's groups only work in a block-outermost layout."""
    usable = section.get("kv_layouts")
    asked = deployment.env.get("VLLM_KV_CACHE_LAYOUT")
    known = ("LBNHC", "LBHNC", "LHBNC", "NHD", "HND", "BLHNC", "BLNHC", "BHLNC")
    if not usable or asked not in known or asked in usable or deployment.hardware.vendor not in (None, "nvidia"):
        return []
    error = f"VLLM_KV_CACHE_LAYOUT={asked} does not satisfy every supported set; valid layouts: {usable}."
    data = {"asked": asked, "usable": " or ".join(usable), "first": usable[0]}
    origin = Origin("env", "VLLM_KV_CACHE_LAYOUT")
    return [Problem("kv-layout-unusable", Stage.KV_CACHE_INIT, "ValueError", error, data, origin)]


def _retention(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """The prefix-cache retention interval must be a multiple of the scheduler's block size (V4: 256)."""
    kind = section.get("retention")
    flag = deployment.flags.values.get("prefix_cache_retention_interval")
    text = deployment.env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
    name, origin = "prefix_cache_retention_interval", None
    interval: int | None = flag if isinstance(flag, int) and kind in ("flag", "both") else None
    if interval is not None:
        use = deployment.flags.use("prefix_cache_retention_interval")
        origin = use.origin if use is not None else None
    elif kind in ("env", "both") and text is not None and reads_as_int(text):
        interval = int(text)
        origin = Origin("env", "VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
        if kind == "env":
            name = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    block = deployment.flags.get("block_size") if deployment.flags.given("block_size") else 256
    if interval is None or interval < 0 or not isinstance(block, int) or block % 64 or interval % block == 0:
        return []
    if deployment.flags.get("enable_prefix_caching") is False or deployment.model.family != "deepseek_v4":
        return []
    error = f"{name} ({interval}) must be non-negative and a multiple of scheduler_block_size ({block})."
    data = {"interval": interval, "block": block, "fitting": -(-interval // block) * block}
    return [Problem("retention-interval", Stage.KV_CACHE_INIT, "ValueError", error, data, origin)]
