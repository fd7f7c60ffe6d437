"""What a look at a machine may say to strangers: the home folder is ``~``, secrets and addresses are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from dsv4check.report.masking import MASK, masked_env
from dsv4check.report.redaction_hosts import CLOUD_HOST, DOMAIN, IPV4, PUBLIC, is_address
from dsv4check.report.secret_text import masked_secrets

HOST: Final = "<host>"
_TELLING: Final = 4
"""Shorter values (``0``, ``on``) are no secrets, and stand in every text."""
_HOST_NAME: Final = re.compile(r"(?:^|_)(?:HOST|HOSTNAME|IP|ADDR|ADDRESS|MASTER|NODE)(?:_|$)")
_URL_HOST: Final = re.compile(r"(?<=://)(?:[^\s/@]{1,400}@)?([^\s/:@?#]{1,253})")


def public_data(value: Any, home: str | None = None) -> Any:
    """Plain data with the home folder as ``~`` in every text, keys included.

    Args:
        value: Mappings, lists, texts and numbers.
        home: The folder; the user's own by default.
    """
    folder = _home() if home is None else home
    if isinstance(value, str):
        return without_home(value, folder)
    if isinstance(value, Mapping):
        return {without_home(str(key), folder): public_data(item, folder) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [public_data(item, folder) for item in value]
    return value


def without_home(text: str, home: str | None = None) -> str:
    """The text with ``~`` for the user's home folder."""
    folder = _home() if home is None else home
    if not folder or folder not in text:
        return text
    return re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?![\w.-])", "~", text)


def public_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables to be shown: no secret, no address of a host, no home folder."""
    return {name: _public_value(name, value) for name, value in sorted(masked_env(env).items())}


def hidden_values(env: Mapping[str, str]) -> dict[str, str]:
    """Value -> what is shown in its place, of the variables that are not shown as they are."""
    shown = public_variables(env)
    found = {value: shown[name] for name, value in env.items() if len(value) >= _TELLING and shown[name] != value}
    return {value: found[value] for value in sorted(found, key=len, reverse=True)}


def with_hidden(value: Any, hidden: Mapping[str, str]) -> Any:
    """Records and plain data with every text that holds one of these values as it may be shown."""
    if isinstance(value, str) and type(value) is str:
        for raw, shown in hidden.items():
            value = value.replace(raw, shown)
        return value
    if isinstance(value, Mapping):
        return {key: with_hidden(item, hidden) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(with_hidden(item, hidden) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        mapped = {item.name: with_hidden(getattr(value, item.name), hidden) for item in fields(value) if item.init}
        return replace(value, **mapped)
    return value


def _public_value(name: str, value: str) -> str:
    if value == MASK or not value:
        return value
    if _HOST_NAME.search(name):
        return HOST
    text = masked_secrets(value, lambda _secret: None)
    text = _URL_HOST.sub(lambda match: match[0] if PUBLIC.fullmatch(match[1].lower()) else HOST, text)
    text = IPV4.sub(lambda match: HOST if is_address(match) else match[0], text)
    text = CLOUD_HOST.sub(HOST, text)
    text = DOMAIN.sub(lambda match: match[0] if PUBLIC.fullmatch(match[0].lower()) else HOST, text)
    return without_home(text)


def _home() -> str:
    try:
        home = str(Path.home())
    except (OSError, RuntimeError):
        # No user of this number: a container that was given one.
        return ""
    # "/" or "/root" of a container: the first would turn every path into nonsense.
    return "" if home == "/" else home.rstrip("/")
