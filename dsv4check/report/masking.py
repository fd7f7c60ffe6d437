"""Secrets stay out of every output: values of token-like variables and flags are replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Command

MASK: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(?:^|_)KEY(?![A-Z])", re.IGNORECASE
)
_TEXT_TOKENS: Final = re.compile(
    r"TOKENIZER|FASTOKENS|(?:MAX|MIN|NUM)_(?:\w+_)?TOKENS|TOKENS?_(?:PER|THRESHOLD)(?![A-Z])", re.IGNORECASE
)
"""Parts of names that speak of a model's text: ``TOKENIZERS_PARALLELISM``, ``VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE``."""
_SECRET_FLAGS: Final = ("--api-key", "--hf-token", "--ssl-keyfile-password")


_SECRET_DEST: Final = re.compile(
    r"^token$|(?:^|_)(?:(?:hf|auth|api|access|bearer|session|security)_token|secret|passw(?:or)?d|passphrase"
    r"|credentials?|(?:api|access|private|secret)_key)$",
    re.IGNORECASE,
)
"""Names of settings; ``max_num_batched_tokens`` and ``bos_token`` are no secrets."""


def masked_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flags by name, at any depth, with the values of secret ones replaced."""
    return {name: _masked_setting(name, value) for name, value in values.items()}


def _masked_setting(name: str, value: Any) -> Any:
    if _SECRET_DEST.search(name.replace("-", "_")) and value not in (None, True, False, ""):
        return MASK
    if isinstance(value, Mapping):
        return {key: _masked_setting(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked_setting("", item) for item in value]
    return value


def is_secret_variable(name: str) -> bool:
    """True when an environment variable of that name holds a secret."""
    return _SECRET_NAME.search(_TEXT_TOKENS.sub("", name)) is not None


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with secret values replaced."""
    return {name: MASK if is_secret_variable(name) else value for name, value in env.items()}


def masked_command(command: Command) -> Command:
    """The command with secret flag values and variables replaced."""
    tokens = list(command.tokens)
    secret_follows = False
    for index, token in enumerate(tokens):
        name, equals, _value = token.text.partition("=")
        flag = name.replace("_", "-")
        if secret_follows and not token.text.startswith("--"):
            tokens[index] = replace(token, text=MASK)
            continue
        secret_follows = flag in _SECRET_FLAGS and not equals
        if flag in _SECRET_FLAGS and equals:
            tokens[index] = replace(token, text=f"{name}={MASK}")
        elif "{" in token.text:
            tokens[index] = replace(token, text=_IN_JSON.sub(_masked_member, token.text))
    return replace(command, tokens=tuple(tokens), env=masked_env(command.env))


_IN_JSON: Final = re.compile(r'(?P<head>"(?P<name>[^"\\]{1,80})"\s{0,9}:\s{0,9}")(?P<value>(?:[^"\\]|\\.)*)"')
"""A member of a JSON value whose own value is a text."""


def _masked_member(match: re.Match[str]) -> str:
    secret = _SECRET_DEST.search(match["name"].replace("-", "_")) and match["value"]
    return f'{match["head"]}{MASK}"' if secret else match[0]
