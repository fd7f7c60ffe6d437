"""Would a rule hold if what the log leaves open were as in one of the rule's own examples?

A log seldom states everything: a worker's log has no GPU, a paste no flags, and the environment is never printed. A
rule that cannot hold, whatever the open parts are, is no likely cause; one that holds for a common GPU is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.api import check_request
from dsv4check.deployment import Command, Hardware, Token
from dsv4check.engine.examples import example_request, firing_examples
from dsv4check.engine.rule import Rule
from dsv4check.errors import InputError
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.request import Request
from dsv4check.triage.known import KnownLaunch

_TRIED: Final = 4
"""Examples of one rule that are tried."""
_COMMON: Final[Mapping[int, float]] = {9: 2.0, 10: 2.0, 12: 1.5, 8: 0.5}
"""How often DeepSeek-V4 is run on GPUs of an SM generation, as a small weight."""


_OTHER_CONFIG: Final = 12.0
"""A config.json other than the published one is rare."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A launch that agrees with the log and on which the rule fires."""

    assumed: tuple[str, ...]
    """What was filled in, in words: ``the GPU is RTX-PRO-6000``. Empty: nothing."""
    weight: float
    """How plausible that is: lower the more was filled in."""


def fitting_hypothesis(rule: Rule, launch: KnownLaunch) -> Hypothesis | None:
    """The most plausible way in which the rule holds; None when it holds in none of its examples' ways."""
    found = []
    for example in firing_examples(rule.id)[:_TRIED]:
        filled = _filled(example, launch)
        if filled is None:
            continue
        request, hypothesis = filled
        try:
            report = check_request(request, (rule,), fixes=False)
        except InputError:
            continue
        if report.findings:
            found.append(hypothesis)
    return max(found, key=lambda item: item.weight, default=None)


def can_be_tried(rule: Rule) -> bool:
    """True for a rule with an example that is a launch."""
    return bool(firing_examples(rule.id))


def _filled(example: Mapping[str, Any], launch: KnownLaunch) -> tuple[Request, Hypothesis] | None:
    """The launch of the log, filled up from an example; None when the example cannot be read."""
    try:
        other = example_request(example)
    except InputError:
        return None
    assumed: list[str] = []
    weight = 0.0
    own = launch.request
    request = own if own is not None else other
    if launch.build is not None:
        request = replace(request, vllm=launch.build)
    else:
        request = replace(request, vllm=other.vllm)
        assumed.append(f"it runs vLLM {other.vllm.version}")
    if launch.hardware.vendor is not None:
        request = replace(request, hardware=launch.hardware)
    elif other.hardware.vendor is not None:
        request = replace(request, hardware=_merged(launch.hardware, other.hardware))
        assumed.append(f"the GPU is {other.hardware.name or 'SM' + str(other.hardware.sm)}")
        weight += _COMMON.get(other.hardware.sm_major or 0, 0.0)
    if own is None or not launch.flags_known:
        flags = " ".join(token.text for token in _flags(other.command))
        request = replace(request, command=_with_flags(request.command, other.command))
        assumed.append(f"it has flags like `{flags}`" if flags else "it has no flags that matter")
        weight -= 0.2 * len(_flags(other.command))
    if own is None:
        assumed.append(f"it serves {example.get('model')}")
    request = replace(
        request,
        env={name: value for name, value in other.env.items() if name not in request.command.env} | dict(request.env),
        packages={**other.packages, **launch.packages},
    )
    assumed += [f"{name}={value} is set" for name, value in other.env.items() if name not in request.command.env]
    assumed += [f"{name} is {value}" for name, value in other.packages.items() if name not in launch.packages]
    if own is not None and other.config_overrides:
        request = replace(request, config_overrides={**other.config_overrides, **(request.config_overrides or {})})
        assumed.append(f"config.json has another {', '.join(map(str, other.config_overrides))}")
        weight -= _OTHER_CONFIG
    return request, Hypothesis(tuple(assumed), weight - 3.0 * len(assumed))


def _merged(stated: Hardware, other: Hardware) -> Hardware:
    """The example's GPU, in the number that the log states."""
    return replace(
        other,
        gpus_per_node=stated.gpus_per_node or other.gpus_per_node,
        nodes=stated.nodes if stated.nodes > 1 else other.nodes,
        memory_mib=stated.memory_mib or other.memory_mib,
    )


def _flags(command: Command) -> tuple[Token, ...]:
    """The words behind the model, which examples write first."""
    return command.tokens[1:] if command.tokens and not command.tokens[0].text.startswith("-") else command.tokens


def _with_flags(command: Command, other: Command) -> Command:
    """The log's model with the example's flags."""
    model = command.tokens[:1] if command.tokens and not command.tokens[0].text.startswith("-") else ()
    if not model:
        return other
    return replace(command, tokens=(*model, *(Token(item.text, Origin("flag", item.text)) for item in _flags(other))))
