"""What a look at a machine may say to strangers: the home folder is ``~``, secrets and addresses are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.report.masking import MASK, masked_env
from dsv4check.report.redaction_hosts import CLOUD_HOST, DOMAIN, IPV4, PUBLIC, is_address
from dsv4check.report.secret_text import masked_secrets

HOST: Final = "<host>"
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
