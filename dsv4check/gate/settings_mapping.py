"""Changes of a vLLM ``--config`` file: a flag that a fix adds to the command becomes a key of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4check.deployment import Token
from dsv4check.gate.rewrite import NotPlainError, spelled_like


def with_settings(text: str, before: Sequence[Token], after: Sequence[Token]) -> str:
    """``text`` with the flags that ``after`` adds to ``before`` as keys. Raises NotPlainError where that cannot be."""
    known = {id(token) for token in before}
    added = [token.text for token in after if id(token) not in known and token not in before]
    if len(after) - len(added) != len(before):
        raise NotPlainError("the change takes words away that stand elsewhere")
    at = 0
    while at < len(added):
        flag = added[at]
        if not flag.startswith("--"):
            raise NotPlainError(f"{flag!r} is no flag of the file")
        value = added[at + 1] if at + 1 < len(added) and not added[at + 1].startswith("--") else None
        text = _with_key(text, flag.removeprefix("--"), value)
        at += 1 if value is None else 2
    return text


def _with_key(text: str, key: str, value: str | None) -> str:
    pattern = "[-_]".join(map(re.escape, key.split("-")))
    match = re.search(
        rf"^(?P<key>{pattern})[ \t]*:[ \t]+(?P<value>[^\s#][^\r\n]*?)?[ \t]*(?:#[^\r\n]*)?\r?$", text, re.M
    )
    if match is not None:
        raw = match["value"] or ""
        if raw[:1] in "|>&*{[":
            raise NotPlainError(f"the value of {match['key']} is not a plain one")
        new = "true" if value is None else spelled_like(raw, value, bare=True)
        return text[: match.start("value")] + new + text[match.end("value") :]
    end = "\r\n" if "\r\n" in text else "\n"
    glue = "" if not text or text.endswith("\n") else end
    return f"{text}{glue}{key}: {'true' if value is None else spelled_like('', value, bare=True)}{end}"
