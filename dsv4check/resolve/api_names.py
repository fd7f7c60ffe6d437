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

    The first two are checked by ``validate_api_server_args`` before the engine is configured; a tokenizer
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
    reasoning = flags.values.get("reasoning_parser")
    dest = "reasoning_parser"
    if reasoning is None:
        reasoning = flags.section("structured_outputs_config").get("reasoning_parser")
        dest = "structured_outputs_config"
    known = names["reasoning"].split()
    if reasoning and not flags.given("reasoning_parser_plugin") and reasoning not in known:
        error = f"invalid reasoning parser: {reasoning} (chose from {{ {','.join(known)} }})"
        problems.append(
            Problem(
                "reasoning-parser-unknown",
                Stage.ARGPARSE,
                "KeyError",
                error,
                _name_data(deployment, "reasoning_parser", str(reasoning), known),
                where(deployment, dest),
            )
        )
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
