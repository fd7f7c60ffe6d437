"""Batch mode: one launch per JSON line in, one report per line out, in the same order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsv4check.api import check_request
from dsv4check.cli.exit_codes import FINDINGS, OK, UNUSABLE
from dsv4check.cli.output import FailOn, exit_code
from dsv4check.deployment import Command, Token
from dsv4check.engine.rule import Rule, load_rules
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint_files import stated_checkpoint
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.packages import parse_packages
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.problems import Origin
from dsv4check.report.model import SCHEMA_VERSION
from dsv4check.request import Request

if TYPE_CHECKING:
    from dsv4check.checkpoint.tensors import Checkpoint

_MAX_LINE: Final = 1 << 20
_KEYS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "id": (str, int),
    "model": str,
    "args": list,
    "env": dict,
    "gpu": str,
    "gpus": int,
    "nodes": int,
    "gpu_memory_gib": (int, float),
    "vllm": str,
    "packages": dict,
    "config_overrides": dict,
    "config_like": str,
    "checkpoint": str,
}


def run_batch(source: str, *, rules: Path | None, fail_on: FailOn, strict: bool, online: bool) -> int:
    """Check every line of ``source`` (a path, or ``-``) and print one JSON report a line.

    Returns the exit code: 2 when a line could not be used (it is still answered, with ``verdict`` null and
    ``input_error``), else 1 when a report reaches ``fail_on``, else 0. No line at all is unusable input.
    """
    loaded = load_rules(rules)
    worst, answered = OK, 0
    for number, line in batch_lines(source):
        answered += 1
        reply, code = check_line(line, f"{source}, line {number}", loaded, fail_on, strict, online)
        worst = max(worst, code)
        print(json.dumps(reply, ensure_ascii=False), flush=False)
    if not answered:
        raise InputError(f"{source}: no launch in it; expected one JSON object a line")
    sys.stdout.flush()
    return worst


def check_line(
    line: str, place: str, rules: tuple[Rule, ...], fail_on: FailOn, strict: bool, online: bool
) -> tuple[dict[str, Any], int]:
    """The reply to one line, and what it would exit with on its own."""
    identity: Any = None
    try:
        record = parse_line(line, place)
        identity = record.get("id")
        report = check_request(request_from_record(record, place, online), rules)
    except InputError as error:
        return refusal(identity, error), UNUSABLE
    code = exit_code(report, fail_on, strict)
    return {"id": identity, **report.to_dict()}, FINDINGS if code else OK


def refusal(identity: Any, error: InputError) -> dict[str, Any]:
    """The reply to a line that could not be used."""
    return {"id": identity, "schema_version": SCHEMA_VERSION, "verdict": None, "input_error": str(error)}


def batch_lines(source: str) -> Iterator[tuple[int, str]]:
    """(line number, line) of every line that is not blank; ``source`` is a path or ``-``. Raises InputError."""
    try:
        if source == "-":
            yield from _nonblank(sys.stdin)
        else:
            with open(source, encoding="utf-8", errors="replace") as stream:
                yield from _nonblank(stream)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from None


def _nonblank(stream: Any) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            yield number, line


def parse_line(line: str, place: str) -> dict[str, Any]:
    """The object of one line. Raises InputError, which names ``place``."""
    if len(line) > _MAX_LINE:
        raise InputError(f"{place}: longer than {_MAX_LINE} characters")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}: expected an object with id, model and args, found {type(record).__name__}")
    return record


def request_from_record(record: Mapping[str, Any], place: str, online: bool) -> Request:
    """The launch that a line asks about. Raises InputError for unknown keys and wrong types."""
    _check_keys(record, place)
    return _request(record, place, online)


def _check_keys(record: Mapping[str, Any], place: str) -> None:
    for key, kinds in _KEYS.items():
        value = record.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            kind = kinds.__name__ if isinstance(kinds, type) else kinds[0].__name__
            raise InputError(f"{place}: {key} must be {kind}, found {type(value).__name__}")
    unknown = sorted(set(record) - set(_KEYS))
    if unknown:
        raise InputError(f"{place}: unknown key {unknown[0]!r}; known keys: {', '.join(_KEYS)}")


def _request(record: Mapping[str, Any], place: str, online: bool) -> Request:
    words = [record["model"]] if record.get("model") else []
    for word in record.get("args") or []:
        if isinstance(word, bool) or not isinstance(word, (str, int, float)):
            raise InputError(f"{place}: args must be a list of words, found {type(word).__name__} in it")
        words.append(str(word))
    tokens = tuple(Token(word, Origin("flag", word)) for word in words)
    env = {str(name): str(value) for name, value in (record.get("env") or {}).items()}
    packages = {str(name): str(value) for name, value in (record.get("packages") or {}).items()}
    return Request(
        command=Command(program=("vllm", "serve"), tokens=tokens),
        vllm=resolve_vllm(record.get("vllm")),
        hardware=resolve_gpu(
            record.get("gpu"),
            gpus=record.get("gpus"),
            nodes=record.get("nodes"),
            memory_gib=record.get("gpu_memory_gib"),
        ),
        env=env,
        packages=parse_packages(packages),
        config_overrides=record.get("config_overrides"),
        config_like=record.get("config_like"),
        online=online,
        checkpoint=_checkpoint(record.get("checkpoint"), place),
    )


def _checkpoint(path: str | None, place: str) -> Checkpoint | None:
    try:
        return None if path is None else stated_checkpoint(path)
    except InputError as error:
        raise InputError(f"{place}: checkpoint: {error}") from None
