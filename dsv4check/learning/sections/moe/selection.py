"""The table of expert kernels, made from the answers of the child ``moe_selection.py``.

An entry says what holds for a choice from a compute capability on: a kernel, ``KERNEL !reason``, ``!error`` or
``unmapped``. Tables of other layouts hold what differs from the tensor-parallel one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...source import LearningError, Source, ancestors
from .environment import variables
from .facts import MODELS

_SUBJECTS: Final = {
    "mxfp4": r"Mxfp4 MoE backend '(\w+)'",
    "nvfp4": r"NvFp4 MoE backend '(\w+)'",
    "fp8": r"FP8 MoE backend (\w+)",
}
_REFUSED: Final = " does not support the deployment configuration"
_UNMAPPED: Final = re.compile(r"moe_backend='[^']*' is not supported for (\w+) MoE\. Expected one of (\[.*\])\.")
_REASONS: Final = (
    ("current device", "device"),
    ("MoEActivation", "activation"),
    ("quantization scheme", "scheme"),
    ("parallel config", "parallel"),
    ("activation format", "format"),
    ("LoRA", "lora"),
    ("amd-quark", "quark"),
    ("gemm type", "gemm"),
    ("hash", "hash"),
    ("routing", "routing"),
)
"""Short names for the reasons of kernels, by words in them; the first that fits counts."""
_ONE_RULE: Final = ("tp without hash layers", "dp", "tp of one")
"""Layouts that have no table of their own: they must choose as tensor parallelism does."""

Answers = Mapping[str, Mapping[str, str]]
"""{choice: {capability: outcome}}"""


def _sweeps(answer: Mapping[str, Any]) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    return ((item["format"], item["layout"], item) for item in answer["sweeps"])


def _exchange(layout: str) -> str | None:
    """The all-to-all backend of a layout."""
    return layout.removeprefix("dp ep ") if layout.startswith("dp ep ") else None


def aiter_exchanges(answer: Mapping[str, Any]) -> list[str]:
    """All-to-all backends that V4's expert layer refuses without AMD's kernels."""
    found = set()
    for _form, layout, item in _sweeps(answer):
        if item.get("stage") == "layer":
            kind, text = answer["errors"][item["error"]]
            exchange = _exchange(layout)
            if exchange is None or (kind, text) != (
                "AssertionError",
                "Mori needs to be used with aiter fused_moe for now.",
            ):
                raise LearningError(f"V4's expert layer cannot be built with {layout}: {kind}: {text[:300]}")
            found.add(exchange)
    return sorted(found)


def quantization_flags(answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """Values of ``--quantization`` that a quantised V4 checkpoint refuses, and those that take it over."""
    refused, taken = [], []
    for value, outcome in answer["quantization"].items():
        if isinstance(outcome, str):
            if outcome != "deepseek_v4_fp8":
                taken.append(value)
            continue
        kind, text = answer["errors"][outcome]
        if "Setting `quantization_config` for online quantization when" not in text:
            raise LearningError(f"--quantization {value}: an unknown refusal: {kind}: {text[:300]}")
        refused.append(value)
    return {"quantization_refused": refused, "quantization_taken": taken}


class _Format:
    """Outcomes of one format, with the vocabulary that its table needs."""

    def __init__(self, form: str, errors: list[list[str]]) -> None:
        self._form = form
        self._errors = errors
        self._known: dict[int, str] = {}
        self.label: str | None = None
        self.names: list[str] = []
        self.reasons: dict[str, str] = {}
        self.errors: dict[str, dict[str, str]] = {}

    def outcomes(self, answers: Mapping[str, Mapping[str, str | int]]) -> Answers:
        """Answers with errors put into words. Goes through them capability by capability, as they were asked."""
        found: dict[str, dict[str, str]] = {choice: {} for choice in answers}
        for capability in next(iter(answers.values())):
            for choice, by in answers.items():
                found[choice][capability] = self._outcome(by[capability])
        return found

    def _outcome(self, answer: str | int) -> str:
        if isinstance(answer, str):
            return answer
        if answer not in self._known:
            self._known[answer] = self._word(*self._errors[answer])
        return self._known[answer]

    def _word(self, kind: str, text: str) -> str:
        unmapped = _UNMAPPED.match(text)
        if unmapped is not None:
            self.label, self.names = unmapped[1], re.findall(r"'([^']+)'", unmapped[2])
            return "unmapped"
        refused = re.fullmatch(f"{_SUBJECTS[self._form]}{_REFUSED} since (.*?)\\.?", text, re.DOTALL)
        if refused is not None:
            return f"{refused[1]} !{self._reason(refused[2])}"
        code = self._fixed(kind, text)
        text = re.sub(r"swiglu_limit=[\d.]+", "swiglu_limit={swiglu_limit}", text)
        text = re.sub(r"moe_backend='\w+'", "moe_backend='{requested}'", text)
        self.errors[code] = {"type": kind, "text": text}
        return f"!{code}"

    def _reason(self, text: str) -> str:
        text = re.sub(r"FusedMoEParallelConfig\(.*\)$", "FusedMoEParallelConfig(...)", text, flags=re.DOTALL)
        for code, known in self.reasons.items():
            if known == text:
                return code
        base = next((code for words, code in _REASONS if words in text), "other")
        code, number = base, 2
        while code in self.reasons:
            code, number = f"{base}{number}", number + 1
        self.reasons[code] = text
        return code

    def _fixed(self, kind: str, text: str) -> str:
        """Refusals that come before any kernel is asked, or after all were."""
        if text.startswith("Model sets swiglu_limit"):
            return "clamp"
        if "disabled for this configuration" in text:
            return "cutlass_disabled"
        if kind == "NotImplementedError" and text.startswith("No "):
            return "none"
        raise LearningError(f"an unknown refusal of {self._form} experts: {kind}: {text[:300]}")


def selection(source: Source, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of all formats that the child was asked about."""
    lora = "SupportsLoRA" in ancestors(source, source.first(*MODELS), "DeepseekV4ForCausalLM")
    return {form: _table(source, answer, form, lora) for form in dict.fromkeys(form for form, _, _ in _sweeps(answer))}


def _table(source: Source, answer: Mapping[str, Any], form: str, lora: bool) -> dict[str, Any]:
    words = _Format(form, answer["errors"])
    layouts: dict[str, Answers] = {}
    for kind, layout, item in _sweeps(answer):
        if kind != form:
            continue
        if "answers" in item:
            layouts[layout] = words.outcomes(item["answers"])
        elif item["stage"] == "config":
            _check_refusal(layout, answer["errors"][item["error"]][1])
    tensor, expert = layouts["tp"], layouts["ep"]
    for layout in _ONE_RULE:
        if _differing(layouts[layout], tensor):
            raise LearningError(f"the kernels of {form} experts differ between 'tp' and '{layout}': no table has that")
    table: dict[str, Any] = {
        "label": words.label,
        "names": words.names,
        "reasons": words.reasons,
        "errors": words.errors,
        "tp": {choice: _entry(by) for choice, by in tensor.items() if set(by.values()) != {"unmapped"}},
    }
    if words.label is None:
        raise LearningError(f"no MoE backend is refused by name for {form} experts: the list of names cannot be read")
    parts: dict[str, Any] = {
        "ep": _differing(expert, tensor),
        "all2all": _exchanges(layouts, expert),
        "env": variables(source, form),
    }
    if lora:
        parts["lora"] = _differing(layouts["lora"], tensor)
        base = {choice: _entry(by) for choice, by in tensor.items()} | parts["ep"] | parts["lora"]
        both = {choice: _entry(by) for choice, by in layouts["lora ep"].items()}
        parts["lora_ep"] = {choice: entry for choice, entry in both.items() if entry != base[choice]}
    return table | {name: part for name, part in parts.items() if part}


def _check_refusal(layout: str, text: str) -> None:
    """A layout may only be missing because the configuration refuses its all-to-all backend by name."""
    exchange = _exchange(layout)
    if exchange is None or not re.search(rf"\b{exchange}\b", text):
        raise LearningError(f"vLLM's configuration refuses the layout '{layout}': {text[:300]}")


def _differing(answers: Answers, base: Answers) -> dict[str, str]:
    return {choice: _entry(by) for choice, by in answers.items() if by != base[choice]}


def _exchanges(layouts: Mapping[str, Answers], expert: Answers) -> dict[str, dict[str, str]]:
    """What differs from expert parallelism without exchange; backends with the same differences share a table."""
    same: dict[str, list[str]] = {}
    for layout, answers in layouts.items():
        exchange = _exchange(layout)
        differing = _differing(answers, expert) if exchange is not None else {}
        if exchange is not None and differing:
            same.setdefault(json.dumps(differing, sort_keys=True), []).append(exchange)
    return {" ".join(sorted(exchanges)): json.loads(differing) for differing, exchanges in same.items()}


def _entry(by: Mapping[str, str]) -> str:
    """One outcome for every GPU, or the first capability of each: ``7.0: outcome | 9.0: outcome``."""
    parts: list[tuple[str, str]] = []
    for capability in sorted(by, key=lambda text: tuple(map(int, text.split(".")))):
        if not parts or parts[-1][1] != by[capability]:
            parts.append((capability, by[capability]))
    return parts[0][1] if len(parts) == 1 else " | ".join(f"{first}: {outcome}" for first, outcome in parts)
