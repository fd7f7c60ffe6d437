"""Secrets in running text (log lines, messages, commands): known shapes of tokens, and values behind secret names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.report.marked_lines import sub_in_lines
from dsv4check.report.masking import MASK

Found = Callable[[str], None]
"""Told of every secret that was masked."""

_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
# A line of nothing else: what is left of a key whose begin is not there.
_KEY_LINE: Final = re.compile(r"^[A-Za-z0-9+/]{60,}={0,2}$", re.MULTILINE)
_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"hf_[A-Za-z0-9]{16,}|hf_oauth_[\w-]{16,}|api_org_[A-Za-z0-9]{16,}"
    r"|sk-(?!\*)[A-Za-z0-9_-]{6,}"
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Z0-9])"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl(?:pat|dt|rt|cbt)-[\w-]{16,}"
    r"|xox[abeposr]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|nvapi-[\w-]{16,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{16,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{20,}|dckr_(?:pat|oat)_[\w-]{16,}|dapi[0-9a-f]{32}"
    r"|LTAI[A-Za-z0-9]{12,}|AKID[A-Za-z0-9]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
    r")"
)
_BEARER: Final = re.compile(r"\b((?:bearer|basic)[ \t]+)(?!\*)([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_URL_LOGIN: Final = re.compile(r"(?<=://)([^\s/@'\"<>]{1,400})(?=@)")
_VALUE: Final = (
    r"(?P<value>\[[^\]\n]*\]|\([^)\n]*\)"
    r"|\"[^\"\n]*\"|'[^'\n]*'|\\\"[^\"\n]*\\\""
    r"|[^\s,;'\"&|(){}\[\]<>`]+)"
)
_SECRET: Final = (
    r"(?:pass(?:word|wd|phrase)|secret|token|credential"
    r"|(?:api|access|private|account|secret|encryption|signing)[_ -]?key"
    r"|authorization|cookie|signature)s?(?:[_-](?:id|value|base64))?"
)
_NAMED: Final = re.compile(
    rf"(?<![\w.-])(?P<name>[\w.-]*?{_SECRET})(?P<sign>\\?[\"']?[ \t]*(?:=>|[=:])[ \t]*){_VALUE}", re.IGNORECASE
)
# In every match of the expression above.
_NAMED_MARKS: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "key", "authorization"),
    *("cookie", "signature"),
)
_NAME: Final = re.compile(rf"[\w.-]*?{_SECRET}", re.IGNORECASE)
_FLAGGED: Final = re.compile(
    r"(?P<flag>(?<![\w-])--?(?:api[-_]key|hf[-_]token|[\w-]*(?:password|secret|auth[-_]token))"
    r"[ \t]+(?:\\[ \t]*\n[ \t]*)?)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s'\"`]+)",
    re.IGNORECASE,
)
_BEHIND: Final = re.compile(
    r"\b(?P<before>(?:key|token|secret|pat)s?[\"']?[ \t]*(?:[=:]|is\b|was\b|of\b)?[ \t]*[\"'`]?)"
    r"(?P<value>[A-Za-z0-9+/_=-]{20,})",
    re.IGNORECASE,
)
# Tokens of the model's text, and counts of them, are no secrets.
_TEXT_TOKEN: Final = re.compile(
    r"(?:^|[\W_])(?:(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|think|tool|start|end|special|stop|next|per|output"
    r"|input|prompt|draft|reasoning|added|placeholder|max|min|num|first|last|batched|spec|speculative)[_-]?"
    r"tokens?|tokens|tokens?[_-]ids?)$",
    re.IGNORECASE,
)
_WEAK: Final = re.compile("(?:tokens?|signature)$", re.IGNORECASE)
_STRONG_TOKEN: Final = re.compile(
    r"^[A-Z0-9_]+_TOKENS?$|(?:auth|access|hf|hub|github|gitlab|git|api|bearer|session|refresh|id|security|bot|user"
    r"|modelscope|wandb|ngc|job|service|login|registry)[_-]?token$"
)
_NO_VALUE_WORDS: Final = """
none null true false str string list required missing optional int bool bearer basic is are was were to in on or and of
for the a an must not with has can may will should if as by at be from given set unset argument flag option
"""
_EMPTY: Final = frozenset({"none", "null", "true", "false"})
_NO_VALUE: Final = frozenset(_NO_VALUE_WORDS.split())


def masked_secrets(text: str, found: Found | None = None) -> str:
    """The text with every secret replaced by ``***``; what was masked before stays, and so does every line end."""
    told = found if found is not None else _ignore

    def whole(match: re.Match[str]) -> str:
        told(match[0])
        return "\n".join([MASK] * (match[0].count("\n") + 1))

    def behind(match: re.Match[str]) -> str:
        told(match[2])
        return match[1] + MASK

    if "PRIVATE KEY-----" in text:
        text = _KEY_BLOCK.sub(whole, text)
    text = _KEY_LINE.sub(lambda match: whole(match) if _mixed(match[0]) else match[0], text)
    text = _SHAPES.sub(whole, text)
    text = sub_in_lines(
        _URL_LOGIN, lambda match: match[0] if match[0] in (MASK, "git") else whole(match), text, ("://",)
    )
    text = sub_in_lines(
        _BEARER, lambda match: behind(match) if _credentials(match[2]) else match[0], text, ("bearer", "basic")
    )
    text = _FLAGGED.sub(lambda match: _flagged(match, told), text)
    text = sub_in_lines(_NAMED, lambda match: _named(match, told), text, _NAMED_MARKS)
    return sub_in_lines(
        _BEHIND,
        lambda match: behind(match) if _random(match["value"]) else match[0],
        text,
        ("key", "token", "secret", "pat"),
    )


def masked_values(value: Any, found: Found | None = None) -> Any:
    """Plain data with the secrets in its texts, and the values of keys with secret names, replaced."""
    if isinstance(value, str):
        return masked_secrets(value, found)
    if isinstance(value, Mapping):
        return {key: _under(str(key), item, found) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked_values(item, found) for item in value]
    return value


def masked_named(name: str, value: str, found: Found | None = None) -> str:
    """The value of something with a name: masked whole where the name is a secret's."""
    if is_secret_name(name, value):
        if value != MASK and found is not None:
            found(value)
        return MASK
    return masked_secrets(value, found)


def is_secret_name(name: str, value: str, *, prose: bool = False) -> bool:
    """True when a value of that name is a secret: ``HF_TOKEN`` always, ``token`` where the value looks like one.

    Args:
        name: A key, a variable, a flag without its dashes.
        value: Its value.
        prose: The name stands in running text: what follows it may be a word of a sentence.
    """
    if _NAME.fullmatch(name) is None or _TEXT_TOKEN.search(name):
        return False
    bare = value.strip("\"'\\ ").lower()
    if not bare or bare in (_NO_VALUE if prose else _EMPTY) or bare.startswith(("$", "<", MASK)):
        return False
    return bool(_STRONG_TOKEN.search(name)) or not _WEAK.search(name) or _like_token(bare)


def _under(key: str, value: Any, found: Found | None) -> Any:
    if isinstance(value, str):
        return masked_named(key, value, found)
    if isinstance(value, (list, tuple)):
        return [_under(key, item, found) for item in value]
    return masked_values(value, found)


def _named(match: re.Match[str], told: Found) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    edge = re.match(r"\\?[\"'\[(]+", value)
    inner = value
    left = right = ""
    if edge is not None:
        left, closing = edge[0], re.search(r"\\?[\"'\])]+$", value)
        right = "" if closing is None else closing[0]
        inner = value[len(left) : len(value) - len(right)]
    if not is_secret_name(name, inner, prose=not left):
        return match[0]
    if inner == MASK:
        return match[0]
    told(inner)
    return f"{name}{sign}{left}{MASK}{right}"


def _flagged(match: re.Match[str], told: Found) -> str:
    value = match["value"]
    bare = value.strip("\"'")
    # Prose about the flag, a place holder of a usage text, or the next flag.
    if not bare or bare.lower() in _NO_VALUE or bare.startswith(("-", "$", "<", "[", "{", MASK)) or _usage(bare):
        return match[0]
    told(bare)
    return match["flag"] + MASK


def _usage(word: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Z_]*(?:_[A-Z]+)+\]?", word) is not None


def _like_token(value: str) -> bool:
    """Long enough and not a word, a number or a dotted name."""
    if value.startswith(MASK) or not re.fullmatch(r"[\w.~+/=-]{8,}", value):
        return False
    return (len(value) >= 24 or bool(re.search(r"\d", value))) and bool(re.search(r"[A-Za-z]", value))


def _credentials(value: str) -> bool:
    """The same behind ``Basic`` and ``Bearer``: no sentence goes on with capitals inside a word."""
    return _like_token(value) or re.search("[a-z][A-Z]", value) is not None


def _mixed(text: str) -> bool:
    return all(re.search(kind, text) for kind in ("[a-z]", "[A-Z]", "[0-9]"))


def _random(value: str) -> bool:
    """True for what no person named: letters of both cases and figures all over, or a long hexadecimal number."""
    if re.fullmatch(r"[0-9a-f]{32,}|[0-9A-F]{32,}", value):
        return True
    if not _mixed(value) or len(re.findall(r"[0-9]", value)) < 2:
        return False
    size = len(value)
    entropy = -sum(count / size * math.log2(count / size) for count in Counter(value).values())
    return entropy >= 3.5 and "--" not in value and value.count("_") * 8 < size


def _ignore(_secret: str) -> None:
    """Nobody counts."""
