"""Flags and variables that a report names in its own words: the weakest text about a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import FlagSpec, FlagTable
from dsv4check.triage.argument_words import compact
from dsv4check.triage.collect_env import counts
from dsv4check.triage.prose_lines import prose_lines
from dsv4check.triage.records import LogLine, LogReading
from dsv4check.triage.version_banner import place

_PIECES: Final = ("--", "-tp", "-dp", "-pp", "tp", "dp", "pp", "ep", "mtp", " ray", "vllm_", "nccl_", "expert parallel")
_FLAG: Final = re.compile(r"(?<![\w/-])(?P<name>--?[A-Za-z][A-Za-z0-9_.-]{1,80})(?P<equals>=)?")
_VALUE: Final = re.compile(
    r"\s*(?P<value>'[^'\n]{1,1000}'|\"[^\"\n]{1,400}\"|\{[^\n]{0,1000}?\}(?!\})|[\w./:+-]{1,200})"
)
_SHORT: Final = ("-tp", "-dp", "-pp", "-ep", "-tpn", "-dcp")
_SIZE: Final = re.compile(
    r"(?<![\w/.-])(?P<name>TP|DP|PP|DCP|MTP)(?P<sign>\s?=\s?|\s|)(?P<size>[1-9]\d{0,2})(?![\w.\]])", re.IGNORECASE
)
_EXPERT: Final = re.compile(
    r"(?<![\w/.-])EP(?=[ ,+/;)，]|$)|(?<![\w/.-])EP\s?=?\s?\d{1,3}(?![\w.\]])|\bep(?=\+)|\bexpert parallel"
)
_RAY: Final = re.compile(r"\b(?:over|via|using|through) Ray\b|\bRay (?:cluster|backend|executor)\b", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"(?<![\w/.-])(?P<name>[A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{2,60})=(?P<value>[\w./:,+-]{1,100})")
_SIZES: Final = {
    "tp": "--tensor-parallel-size",
    "dp": "--data-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dcp": "--decode-context-parallel-size",
}
_WITHOUT: Final = re.compile(
    r"(?:\b(?:no|not|without|adding|add|try|trying|unless|instead of|needs?|set|setting)|不加|没有)\s{1,3}`?\Z", re.I
)
_DROPPED: Final = re.compile(
    r"(?:\b(?:delet|remov|dropp|disabl)(?:e|ed|ing)|去掉|删除)\s{1,3}(?:the )?`?\Z", re.IGNORECASE
)
_ADVICE: Final = re.compile(
    r"(?<!not )(?<!n't )(?<!never )\b(?:works?|worked|working|work-?around|"
    r"fix(?:e[sd])?|avoids?|helps?|solved?|recommend|should|could|suggest|ok|either|both)\b",
    re.IGNORECASE,
)
"""A line about what would be better: what it names did not run."""
_ERROR: Final = re.compile(r"^\s*(?:[\w.]*(?:Error|Exception|Warning)\b|assert |raise |#|\$ |Traceback)")
_SENTENCE_END: Final = re.compile(r"[.;!?]\s|[。；！？]")
_NEXT_WORDS: Final = frozenset(
    (
        *("is", "are", "was", "were", "does", "do", "did", "and", "or", "to", "with", "flag", "option", "parameter"),
        *("argument", "in", "on", "at", "for", "from", "the", "a", "it", "set", "has", "had", "which", "that"),
        *("value", "not", "when", "if", "by", "as", "makes", "causes", "still", "because", "but", "then", "so", "can"),
        *("will"),
    )
)
_NEAR: Final = 60
"""Characters in front of a flag that say whether it was set."""
_MOST_FLAGS: Final = 60


@dataclass(frozen=True, slots=True)
class ProseFlags:
    """What was found; of something that is said twice with two values nothing is kept."""

    words: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    line: LogLine | None = None
    model: str | None = None


def read_prose_flags(reading: LogReading, table: FlagTable) -> ProseFlags:
    """Flags in sentences, by the flag table of the release that ran."""
    values: dict[str, list[str | None]] = {}
    env: dict[str, list[str]] = {}
    first: int | None = None
    for start, text in prose_lines(reading.head, _PIECES, strict=True):
        if _ERROR.match(text) or "sglang" in text.lower() or len(values) > _MOST_FLAGS:
            continue
        for sentence in _SENTENCE_END.split(text):
            advice = _ADVICE.search(sentence) is not None
            found = [*_flags(sentence, table, advice), *(() if advice else _sizes(sentence, table))]
            for name, value in found:
                first = start if first is None else first
                said = values.setdefault(name, [])
                if value not in said:
                    said.append(value)
            for name, value in () if advice else _variables(sentence):
                env.setdefault(name, []).append(value)
    words: list[str] = []
    for name, said in values.items():
        if len(said) == 1 and name != "--model":
            words += [name] if said[0] is None else [name, said[0]]
    models = values.get("--model", [])
    return ProseFlags(
        tuple(words),
        {name: items[0] for name, items in env.items() if len(set(items)) == 1},
        place(reading, first) if first is not None else None,
        models[0] if len(models) == 1 else None,
    )


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for match in _VARIABLE.finditer(text):
        value = match["value"].rstrip(".,:")
        if counts(match["name"], value, "prose") and not _WITHOUT.search(
            text[max(0, match.start() - _NEAR) : match.start()]
        ):
            yield match["name"], value


def _flags(text: str, table: FlagTable, advice: bool) -> Iterator[tuple[str, str | None]]:
    for match in _FLAG.finditer(text):
        name = match["name"].rstrip(".-")
        if name.startswith("--"):
            spelled = "--" + name[2:].partition(".")[0].replace("_", "-")
        elif name in _SHORT:
            spelled = name
        else:
            continue
        spec = table.by_option.get(spelled)
        before = text[max(0, match.start() - _NEAR) : match.start()]
        dropped = _DROPPED.search(before) is not None
        if spec is None or _WITHOUT.search(before) or (advice and not dropped):
            continue
        if not spec.takes_value:
            yield (spelled if spelled in spec.negative else spec.flag), None
            continue
        value = _VALUE.match(text, match.end())
        if value is None or (value["value"].startswith("-") and not match["equals"]):
            continue
        said = value["value"].strip("'\"").rstrip(".,;:")
        if not _fits(said, spec):
            continue
        inner = "." in name[2:]
        yield (f"{spec.flag}.{name[2:].partition('.')[2]}" if inner else spec.flag), said


def _fits(value: str, spec: FlagSpec) -> bool:
    """False for the next word of the sentence."""
    if value.lower() in _NEXT_WORDS or (spec.choices and value not in map(str, spec.choices)):
        return False
    if spec.kind.endswith(("int", "float")):
        return value[:1].isdigit() or value == "auto"
    return not spec.is_json or _is_object(value)


def _is_object(value: str) -> bool:
    """True for JSON that the sentence holds all of."""
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def _sizes(text: str, table: FlagTable) -> Iterator[tuple[str, str | None]]:
    for match in _SIZE.finditer(text):
        name, size = match["name"].lower(), match["size"]
        before = text[max(0, match.start() - _NEAR) : match.start()]
        if match["sign"].isspace() and match["name"] != match["name"].lower() and name != "tp":
            continue
        if _WITHOUT.search(before) or before.endswith(("--", "-")):
            continue
        if name == "mtp":
            if match["sign"].strip():
                yield "--speculative-config", compact({"method": "mtp", "num_speculative_tokens": int(size)})
        elif int(size) > 1 and _SIZES[name] in table.by_option:
            yield _SIZES[name], size
    if _RAY.search(text) is not None:
        yield "--distributed-executor-backend", "ray"
    expert = _EXPERT.search(text)
    if expert is not None and not _WITHOUT.search(text[max(0, expert.start() - _NEAR) : expert.start()]):
        yield "--enable-expert-parallel", None
