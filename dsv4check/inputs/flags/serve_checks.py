"""Checks of the parsed flags before the engine is configured.

``validate_parsed_serve_args`` (entrypoints/*/cli_args.py). Which of its checks a release has follows from the
flags it has. Load-balancing modes and ``--headless`` are judged with the parallel sizes, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.deployment import Command
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.flag_table import FlagTable


def optimization_level(values: Mapping[str, Any], origin: Origin | None) -> tuple[int | None, Problem | None]:
    """The level that ``-O`` text stands for, or what ``VllmConfig`` says to it when it is none.

    The parser takes any text; the enumeration 0 - 3 is checked when the engine config is built.
    """
    text = values.get("optimization_level")
    if not isinstance(text, str):
        return None, None
    if (level := _LEVEL.fullmatch(text.strip())) is not None:
        return int(level[1]), None
    error = (
        "1 validation error for VllmConfig\noptimization_level\n  Input should be 0, 1, 2 or 3 "
        f"[type=enum, input_value={text!r}, input_type=str]"
    )
    data = {"flag": "--optimization-level", "value": text}
    return None, Problem("optimization-level", Stage.ENGINE_CONFIG, "ValidationError", error, data, origin)


_LEVEL: Final = re.compile(r"\+?0*([0-3])(?:\.0*)?")


def serve_problems(command: Command, values: Mapping[str, Any], table: FlagTable) -> list[Problem]:
    """What vLLM refuses about a set of flags that all parsed, in the order it looks; at most the first."""
    given = _Values(values, table)
    for exception, error, data in _checks(command, given):
        code = str(data.pop("code", "serve-args-conflict"))
        data["dest"] = str(data["flag"])[2:].replace("-", "_")
        data["reason"] = error.removeprefix("Error: ").rstrip(".")
        return [Problem(code, Stage.ARGPARSE, exception, error, data, Origin("flag", str(data["flag"])))]
    return []


class _Values:
    """A value as given, else the default; None for a flag the release does not have."""

    def __init__(self, values: Mapping[str, Any], table: FlagTable) -> None:
        self._values, self._defaults = values, table.defaults

    def __getattr__(self, dest: str) -> Any:
        return self._values.get(dest, self._defaults.get(dest))


_Check = tuple[str, str, dict[str, Any]]


def _checks(command: Command, given: _Values) -> Iterator[_Check]:
    yield from _chat_template(given)
    yield from _grpc_port(command, given)
    yield from _reasoning_efforts(given)
    if given.enable_auto_tool_choice and not given.tool_call_parser:
        yield (
            "TypeError",
            "Error: --enable-auto-tool-choice requires --tool-call-parser",
            {"code": "tool-choice-without-parser", "flag": "--enable-auto-tool-choice"},
        )
    if given.enable_log_outputs and not given.enable_log_requests:
        yield (
            "TypeError",
            "Error: --enable-log-outputs requires --enable-log-requests",
            {"code": "log-outputs-without-requests", "flag": "--enable-log-outputs"},
        )
    if (given.sse_keep_alive_interval or 0) < 0:
        yield (
            "ValueError",
            "Error: --sse-keep-alive-interval must be a non-negative integer (0 disables keep-alive comments).",
            {"flag": "--sse-keep-alive-interval"},
        )
    if given.enable_per_request_metrics and given.disable_log_stats:
        yield (
            "ValueError",
            "Error: --enable-per-request-metrics requires engine statistics logging; remove "
            "--disable-log-stats to enable per-request metrics.",
            {"flag": "--enable-per-request-metrics"},
        )
    if given.data_parallel_multi_port_external_lb:
        yield from _multi_port(given)
    if command.entrypoint == "serve" and not given.grpc:
        yield from _runtime_lora(command, given)


def _chat_template(given: _Values) -> Iterator[_Check]:
    """A template that looks like a path must be one; only what can be seen from here is judged."""
    template = given.chat_template
    if not isinstance(template, str) or any(char in template for char in "{}\n"):
        return
    path = Path(template)
    if path.is_absolute() and path.parent.is_dir() and not path.exists():
        yield (
            "ValueError",
            f"The supplied chat template string ({template}) appears path-like, but doesn't exist!",
            {"flag": "--chat-template", "value": template},
        )


def _grpc_port(command: Command, given: _Values) -> Iterator[_Check]:
    """``--grpc-port`` (0.32 and later) belongs to the Rust frontend of ``vllm serve``."""
    port, flag = given.grpc_port, "--grpc-port"
    if port is None:
        return
    rust = command.env.get("VLLM_USE_RUST_FRONTEND", "0").strip() not in ("", "0")
    count = given.api_server_count
    if given.grpc:
        yield "ValueError", "--grpc and --grpc-port are mutually exclusive.", {"flag": flag}
    elif not rust or command.entrypoint != "serve":
        yield "ValueError", "--grpc-port requires VLLM_USE_RUST_FRONTEND=1 vllm serve", {"flag": flag}
    elif given.headless or (isinstance(count, int) and count <= 0):
        error = "--grpc-port requires a Rust frontend; remove --headless and non-positive --api-server-count"
        yield "ValueError", error, {"flag": flag}
    elif given.data_parallel_multi_port_external_lb:
        error = "--grpc-port is incompatible with --data-parallel-multi-port-external-lb"
        yield "ValueError", error, {"flag": flag}
    elif not 0 <= port <= 65535:
        yield "ValueError", "--grpc-port must be between 0 and 65535", {"flag": flag}
    elif port and port == given.port and not given.uds:
        yield "ValueError", "--grpc-port must differ from --port when HTTP uses TCP", {"flag": flag}


_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""vllm/renderers: ReasoningEffort, in the one release that has --reasoning-effort-map."""


def _reasoning_efforts(given: _Values) -> Iterator[_Check]:
    efforts = given.reasoning_effort_map
    flag = "--reasoning-effort-map"
    if efforts is None:
        return
    if not isinstance(efforts, dict) or not all(isinstance(value, str) for value in efforts.values()):
        error = f"Error: {flag} must be a JSON object mapping reasoning efforts to strings."
        yield "ValueError", error, {"flag": flag}
    elif unknown := sorted(set(efforts) - set(_EFFORTS)):
        error = f"Error: {flag} has unknown efforts {unknown}; keys must be one of {list(_EFFORTS)}."
        yield "ValueError", error, {"flag": flag}


def _multi_port(given: _Values) -> Iterator[_Check]:
    flag = "--data-parallel-multi-port-external-lb"
    local, size = given.data_parallel_size_local, given.data_parallel_size or 1
    failures = (
        (given.grpc, f"Error: {flag} does not support --grpc"),
        (given.uds is not None, f"Error: {flag} does not support --uds"),
        (
            bool(given.ssl_keyfile) != bool(given.ssl_certfile),
            "Error: --ssl-keyfile and --ssl-certfile must be provided together",
        ),
        (
            given.api_server_count not in (None, 1),
            f"Error: {flag} currently requires --api-server-count=1",
        ),
        (
            given.data_parallel_rank is not None,
            f"Error: {flag} manages child --data-parallel-rank values internally",
        ),
        (
            given.data_parallel_external_lb or given.data_parallel_hybrid_lb,
            f"Error: {flag} cannot be combined with --data-parallel-external-lb or --data-parallel-hybrid-lb",
        ),
        (size < 2, f"Error: {flag} requires --data-parallel-size > 1"),
        (local is None or local < 2, f"Error: {flag} requires --data-parallel-size-local >= 2"),
    )
    for failed, error in failures:
        if failed:
            yield "ValueError", error, {"flag": flag}
            return
    if local > size:
        yield (
            "ValueError",
            "Error: --data-parallel-size-local cannot exceed --data-parallel-size",
            {"flag": flag},
        )
    elif size % local:
        error = "Error: --data-parallel-size must be divisible by --data-parallel-size-local"
        yield "ValueError", error, {"flag": flag}


def _runtime_lora(command: Command, given: _Values) -> Iterator[_Check]:
    count = given.api_server_count
    allowed = command.env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").lower() in ("1", "true")
    if isinstance(count, int) and count > 1 and allowed:
        error = "VLLM_ALLOW_RUNTIME_LORA_UPDATING cannot be used with api_server_count > 1"
        yield "ValueError", error, {"flag": "--api-server-count"}
