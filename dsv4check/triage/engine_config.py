"""``Initializing a V1 LLM engine (v...) with config: ...``: the engine's configuration, resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsv4check.records import dataclass, field
from dsv4check.triage.argument_words import compact
from dsv4check.triage.records import LogLine, LogReading, Run
from dsv4check.triage.reprs import MAX_TEXT, Member, Record, read_fields

_MARK: Final = re.compile(r"V1 LLM engine \(v[^)\s]{1,100}\) with config: ")
_SIZES: Final = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
}
_RESOLVED_METHODS: Final = frozenset({"deepseek_v4_fp8", "fp8", "deepseek_v4_mxfp4", "mxfp4", "modelopt_fp4"})
"""Quantisations that the checkpoint's config.json states, not a flag."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the line states."""

    values: dict[str, Any] = field(default_factory=dict)
    line: LogLine | None = None
    cut: bool = False

    @property
    def model(self) -> str | None:
        """The model that is served."""
        value = self.values.get("model")
        return value if isinstance(value, str) and value else None

    def number(self, name: str) -> int | None:
        """A positive integer of the line."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None

    def inner(self, name: str) -> Mapping[str, Any]:
        """The fields of a config inside the line."""
        value = self.values.get(name)
        if isinstance(value, Record):
            return value.fields
        return value if isinstance(value, dict) else {}

    @property
    def gpus(self) -> int | None:
        """GPUs of one replica of the engine, all nodes together."""
        sizes = [self.number(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
        tensor, pipeline = sizes
        return None if tensor is None or pipeline is None else tensor * pipeline


def read_engine_config(reading: LogReading, run: Run) -> EngineConfig | None:
    """The engine's configuration of a start; None where the log does not state it."""
    for line in run.lines:
        match = _MARK.search(line.text) if "V1 LLM engine (" in line.text else None
        if match is None:
            continue
        values, cut = read_fields(line.text[match.end() : match.end() + MAX_TEXT])
        return EngineConfig(values, line, cut)
    if run.first is None and (match := _MARK.search(reading.head)) is not None:
        values, cut = read_fields(reading.head[match.end() : match.end() + MAX_TEXT].replace("\n", ""))
        return EngineConfig(values, None, cut)
    return None


def engine_words(config: EngineConfig, longest: int | None) -> list[str]:
    """Flags that give the engine this configuration, as far as the line tells.

    ``longest`` is the model's own limit, which needs no flag; None where it is not known.
    """
    return [*_words(config, longest)]


def _words(config: EngineConfig, longest: int | None) -> Iterator[str]:
    values = config.values
    for name, flag in _SIZES.items():
        size = config.number(name)
        if size is not None and size > 1:
            yield from (flag, str(size))
    dtype = values.get("kv_cache_dtype")
    if isinstance(dtype, str) and dtype not in ("auto", ""):
        # vLLM writes its own layout's name over what was asked for.
        yield from ("--kv-cache-dtype", "fp8" if dtype.startswith("fp8_ds_mla") else dtype)
    length = config.number("max_seq_len")
    if length is not None and longest is not None and length != longest:
        yield from ("--max-model-len", str(length))
    yield from _switches(values)
    yield from _texts(config)
    speculation = config.inner("speculative_config")
    if speculation:
        yield from ("--speculative-config", compact(_speculation(speculation, config.model)))


def _switches(values: Mapping[str, Any]) -> Iterator[str]:
    for name, usual, flag in (
        ("enforce_eager", False, "--enforce-eager"),
        ("trust_remote_code", False, "--trust-remote-code"),
        ("enable_prefix_caching", True, "--no-enable-prefix-caching"),
        ("enable_chunked_prefill", True, "--no-enable-chunked-prefill"),
    ):
        value = values.get(name)
        if isinstance(value, bool) and value != usual:
            yield flag


def _texts(config: EngineConfig) -> Iterator[str]:
    usual = {
        "tokenizer_mode": ("auto",),
        "load_format": ("auto",),
        "quantization": (*_RESOLVED_METHODS, "None"),
        "served_model_name": (config.model,),
    }
    for name, without in usual.items():
        value = config.values.get(name)
        if isinstance(value, str) and value and value not in without and not value.startswith("-"):
            yield from (f"--{name.replace('_', '-')}", value)
    parser = config.inner("structured_outputs_config").get("reasoning_parser")
    if isinstance(parser, str) and parser:
        yield from ("--reasoning-parser", parser)
    backend = config.inner("kernel_config").get("moe_backend")
    if isinstance(backend, str) and backend not in ("auto", ""):
        yield from ("--moe-backend", backend)


def _speculation(fields: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {}
    method, draft, count = (fields.get(name) for name in ("method", "model", "num_spec_tokens"))
    if isinstance(method, Member):
        method = method.value
    if isinstance(method, str):
        said["method"] = method
    if isinstance(draft, str) and draft != model:
        said["model"] = draft
    if isinstance(count, int):
        said["num_speculative_tokens"] = count
    return said


def resolved_values(engine: EngineConfig | None) -> Iterator[tuple[str, str]]:
    """What the line says about decisions: names and values."""
    if engine is None:
        return
    for name in ("quantization", "kv_cache_dtype", "dtype", "enforce_eager"):
        value = engine.values.get(name)
        if isinstance(value, str | bool):
            yield name, str(value)
    device = engine.values.get("device_config")
    if isinstance(device, str):
        yield "device", device
    mode = engine.inner("compilation_config").get("cudagraph_mode")
    if isinstance(mode, Member):
        yield "cudagraph_mode", mode.name
    speculation = engine.values.get("speculative_config")
    if isinstance(speculation, Record):
        method = speculation.fields.get("method")
        yield "speculative_method", str(method.value if isinstance(method, Member) else method)
