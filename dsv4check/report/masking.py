"""Secrets stay out of every output: values of token-like variables and flags are replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dsv4check.deployment import Command

MASK: Final = "***"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY", re.IGNORECASE)
_SECRET_FLAGS: Final = ("--api-key", "--hf-token", "--ssl-keyfile-password")


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with secret values replaced."""
    return {name: MASK if _SECRET_NAME.search(name) else value for name, value in env.items()}


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
    return replace(command, tokens=tuple(tokens), env=masked_env(command.env))
