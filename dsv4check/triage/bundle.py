"""The bundle for a bug report: configuration, flags, versions, decisions, findings and the log's error, redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from dsv4check.report.gate_words import clipped
from dsv4check.report.masking import MASK, masked_command
from dsv4check.report.redaction import KINDS, Redactor
from dsv4check.report.triage_json import triage_to_dict, words_of
from dsv4check.report.triage_words import causes
from dsv4check.triage.answer import TriageReport
from dsv4check.triage.records import ErrorEvent, LogLine

MOST_LINES: Final = 200
"""Lines of the log in a bundle, beside the errors themselves."""

_BEFORE: Final = 80
_LINE: Final = 600
_LOG: Final = 24_000
_EXCERPT: Final = 8_000
_CONFIG_VALUE: Final = 1_500

_CONFIG_KEYS: Final = frozenset(
    {
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "quantization_config",
        "expert_dtype",
    }
    | {"num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "rope_scaling", "rope_parameters"}
    | {"num_attention_heads", "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim"}
    | {"o_lora_rank", "o_groups", "sliding_window", "compress_ratios", "layer_types", "index_n_heads", "index_head_dim"}
    | {"index_topk", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"}
    | {"num_hash_layers", "scoring_func", "swiglu_limit", "hc_mult", "num_nextn_predict_layers", "tie_word_embeddings"}
)


def write_bundle(path: Path, answer: TriageReport, *, redactor: Redactor | None = None) -> dict[str, tuple[int, int]]:
    """Write the bundle as JSON (``.json``) or Markdown (any other ending), whole or not at all.

    Returns how many different things of each kind were masked, and in how many places.
    Raises InputError where the file cannot be written.
    """
    from dsv4check.gate.writing import replace_file

    data = bundle_to_dict(answer, redactor)
    if path.suffix.lower() == ".json":
        from dsv4check.report.gate_json import json_text

        text = json_text(data)
    else:
        from dsv4check.report.bundle_markdown import render

        text = render(data)
    replace_file(path, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))
    return {item["kind"]: (item["different"], item["places"]) for item in data["masked"]}


def bundle_to_dict(answer: TriageReport, redactor: Redactor | None = None) -> dict[str, Any]:
    """Everything the bundle says as plain data: the triage answer with config and log, nothing private in it.

    Args:
        answer: The answer.
        redactor: Masks; a new one by default.
    """
    redactor = Redactor() if redactor is None else redactor
    shown = _shown_sources(answer)
    # Names and secrets are learned from the answer as it is: masked values cannot teach them any more.
    for text in _raw_texts(answer):
        redactor.learn(text)
    for secret in _secrets(answer):
        redactor.learn_secret(secret)
    data = triage_to_dict(answer, redactor.count_secret)
    data = {**data, "config": _config(answer)}
    lines = tuple(_log(answer))
    data = _replaced(data, shown)
    redactor.learn_value(data)
    made: dict[str, Any] = redactor.value(data)
    texts = redactor.lines(_renamed(line.text, shown) for line in lines)
    made["log"] = [
        {
            "source": redactor.text(_renamed(line.source, shown)),
            "line": line.number,
            "level": line.level,
            "text": clipped(text, _LINE),
        }
        for line, text in zip(lines, texts, strict=True)
    ]
    _cut_excerpts(made)
    made["masked"] = _masked(redactor, made)
    return made


def _masked(redactor: Redactor, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    counts = dict(redactor.masked)
    places = _count(made, MASK)
    if places:
        # Secrets in flags and variables are masked before the redactor sees them.
        counts["secret"] = (max(counts.get("secret", (0, 0))[0], 1), places)
    return [
        {"kind": kind, "what": what, "different": counts[kind][0], "places": counts[kind][1]}
        for kind, what in KINDS.items()
        if kind in counts
    ]


def _count(value: Any, word: str) -> int:
    if isinstance(value, str):
        return value.count(word)
    if isinstance(value, Mapping):
        return sum(_count(item, word) for item in value.values())
    return sum(_count(item, word) for item in value) if isinstance(value, list) else 0


def _config(answer: TriageReport) -> dict[str, Any] | None:
    """The fields of config.json that decide something; names, ids of tokens and everything else stay out."""
    if answer.report is None:
        return None
    model = answer.report.deployment.model
    fields = {**model.raw, **model.text}
    return {key: _short(fields[key]) for key in sorted(_CONFIG_KEYS & set(fields))}


def _short(value: Any) -> Any:
    text = str(value)
    return value if len(text) <= _CONFIG_VALUE else clipped(text, _CONFIG_VALUE)


def _log(answer: TriageReport) -> Iterator[LogLine]:
    """The kept lines up to the error and those right behind it; all of them where they are few."""
    lines = answer.run.lines
    if len(lines) > MOST_LINES:
        last = _position(answer) + MOST_LINES - _BEFORE
        start = max(min(last, len(lines)) - MOST_LINES, 0)
        # The first lines have version and arguments.
        head = min(start, MOST_LINES // 4)
        lines = (*lines[:head], *lines[start + head : start + MOST_LINES])
    size = 0
    for line in lines:
        size += min(len(line.text), _LINE)
        if size > _LOG:
            return
        yield line


def _position(answer: TriageReport) -> int:
    """Index of the first kept line that stands behind the error."""
    error, lines = answer.error, answer.run.lines
    if error is None:
        return len(lines)
    for index, line in enumerate(lines):
        if line.source == error.line.source and line.number > error.line.number:
            return index
    return len(lines)


def _cut_excerpts(made: Mapping[str, Any]) -> None:
    """Shorten what errors quote: only after redaction, since half a secret is not recognised."""
    events = [made["error"], *made["later"]]
    while events:
        event = events.pop()
        if event is not None:
            event["excerpt"] = clipped(event["excerpt"], _EXCERPT)
            event["message"] = clipped(event["message"], _EXCERPT)
            events.append(event["caused_by"])


def _raw_texts(answer: TriageReport) -> Iterator[str]:
    stated = answer.stated
    yield "\n".join((*answer.reading.sources, *answer.notes, *answer.reading.notes))
    yield " ".join(stated.words)
    yield answer.command
    yield "\n".join(f"{name}={value}" for name, value in stated.env.items())
    yield "\n".join(f"{fact.name.removeprefix('env ')}={fact.value}" for fact in stated.facts)
    yield "\n".join(line.text for line in answer.run.lines)
    for event in _events(answer):
        yield "\n".join((event.message, *event.excerpt, *(f"{frame.path} {frame.code}" for frame in event.frames)))
    yield "\n".join(evidence.text for item in answer.candidates for evidence in item.evidence)
    if answer.report is not None:
        deployment = answer.report.deployment
        yield " ".join(token.text for token in deployment.command.tokens)
        yield "\n".join(f"{name}={value}" for name, value in deployment.env.items())


def _events(answer: TriageReport) -> Iterator[ErrorEvent]:
    for event in (*(() if answer.error is None else (answer.error,)), *answer.later):
        yield event
        yield from causes(event)


def _secrets(answer: TriageReport) -> Iterator[str]:
    """Words of the command that are secrets by their place."""
    commands = [words_of(answer.stated)]
    if answer.report is not None:
        commands.append(answer.report.deployment.command)
    for command in commands:
        for token, masked in zip(command.tokens, masked_command(command).tokens, strict=True):
            if masked.text != token.text:
                yield token.text.partition("=")[2] if masked.text.endswith(f"={MASK}") else token.text


def _shown_sources(answer: TriageReport) -> dict[str, str]:
    """File names instead of paths, told apart where two are the same."""
    shown: dict[str, str] = {}
    for source in answer.reading.sources:
        name = PureWindowsPath(source).name if "\\" in source else PurePosixPath(source).name
        name = name or source
        number = sum(other.split(" (")[0] == name for other in shown.values())
        shown[source] = f"{name} ({number + 1})" if number else name
    # Longer paths first: one may be the begin of another.
    return {source: shown[source] for source in sorted(shown, key=len, reverse=True) if shown[source] != source}


def _renamed(text: str, shown: Mapping[str, str]) -> str:
    for source, name in shown.items():
        text = text.replace(source, name)
    return text


def _replaced(value: Any, shown: Mapping[str, str]) -> Any:
    return _mapped(value, lambda text: _renamed(text, shown)) if shown else value


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else value
