"""Names the API server looks up: tool parser, reasoning parser, tokenizer mode."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolve.flag_values import where


def parser_problems(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Names of tool parser, reasoning parser and tokenizer mode against the release's registries.

    The tool parser is checked by ``validate_api_server_args`` before the engine is configured; a tokenizer
    mode is looked up when the tokenizer is loaded, while the engine starts. Headless nodes run no API server.
    """
    flags = deployment.flags
    if flags.get("headless") is True:
        return []
    names = section["parsers"]
    problems: list[Problem] = []
    tool = flags.values.get("tool_call_parser")
    plugin = flags.given("tool_parser_plugin")
    known = names["tool"].split()
    if tool is not None and flags.get("enable_auto_tool_choice") is True and not plugin and tool not in known:
        error = f"invalid tool call parser: {tool} (chose from {{ {','.join(known)} }})"
        problems.append(
            Problem(
                "tool-parser-unknown",
                Stage.ARGPARSE,
                "KeyError",
                error,
                _name_data(deployment, "tool_call_parser", str(tool), known),
                where(deployment, "tool_call_parser"),
            )
        )
    problems += _reasoning_parser(deployment, section)
    mode = flags.values.get("tokenizer_mode")
    known = names["tokenizer"].split()
    if mode is not None and mode not in known and flags.get("skip_tokenizer_init") is not True:
        problems.append(
            Problem(
                "tokenizer-mode-unknown",
                Stage.MODEL_INIT,
                "ValueError",
                f"No tokenizer registered for tokenizer_mode={mode!r}.",
                _name_data(deployment, "tokenizer_mode", str(mode), known),
                where(deployment, "tokenizer_mode"),
            )
        )
    return problems


def _reasoning_parser(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """The API server looks at ``--structured-outputs-config`` alone; ``ReasoningConfig`` looks its own parser up.

    ``--reasoning-parser`` goes into that config, which asks the parser only for marks it was not given. Up to
    0.27 the empty name it starts with is looked up too.
    """
    flags = deployment.flags
    if flags.given("reasoning_parser_plugin"):
        return []
    known = section["parsers"]["reasoning"].split()
    name = flags.section("structured_outputs_config").get("reasoning_parser")
    if name and name not in known:
        error = f"invalid reasoning parser: {name} (chose from {{ {','.join(known)} }})"
        data = _name_data(deployment, "reasoning_parser", str(name), known)
        origin = where(deployment, "structured_outputs_config")
        return [Problem("reasoning-parser-unknown", Stage.ARGPARSE, "KeyError", error, data, origin)]
    config = flags.section("reasoning_config")
    given = flags.values.get("reasoning_parser")
    name = given or config.get("reasoning_parser", "")
    if not given and flags.values.get("reasoning_config") is None:
        return []
    if config.get("reasoning_start_str") and config.get("reasoning_end_str"):
        return []
    if name in known or (name == "" and not section["empty_reasoning_parser"]):
        return []
    error = f"Reasoning parser '{name}' not found. Available parsers: {', '.join(known)}"
    data = _name_data(deployment, "reasoning_parser", str(name), known)
    origin = where(deployment, "reasoning_parser" if given else "reasoning_config")
    return [Problem("reasoning-parser-unknown", Stage.ENGINE_CONFIG, "KeyError", error, data, origin)]


def _name_data(deployment: Deployment, dest: str, name: str, known: list[str]) -> dict[str, Any]:
    """The name, and the one to use instead: the family's own when it is registered, else the closest.

    A release older than the family has no name for it; another family's is then worth telling but no fix
    (``dest`` is empty).
    """
    own = deployment.model.family
    if own in known:
        return {"name": name, "dest": dest, "closest": own, "advice": f"{deployment.model.name} uses {own}."}
    close = get_close_matches(name, known, 1, 0.5)
    closest = close[0] if close else known[0]
    return {"name": name, "dest": "", "closest": closest, "advice": f"The closest name it has is {closest}."}
