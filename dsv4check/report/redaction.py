"""Texts made fit for a public bug report: no secrets, hosts, users, private paths or ids; errors stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dsv4check.report.marked_lines import sub_in_lines
from dsv4check.report.masking import MASK
from dsv4check.report.redaction_hosts import (
    CACHE_OWNER,
    CLOUD_HOST,
    CONTAINER,
    DOMAIN,
    EMAIL,
    IPV4,
    IPV6,
    LOGIN,
    MAC,
    POD,
    PUBLIC,
    SERIAL,
    UUID,
    found_hosts,
    found_users,
    is_address,
    is_code,
    is_common,
    is_login,
    is_module,
    is_v6,
)
from dsv4check.report.redaction_names import KnownNames
from dsv4check.report.redaction_paths import POSIX, QUOTED, WINDOWS, quoted_path, shortened, windows_shortened
from dsv4check.report.secret_text import Found, is_secret_name, masked_named, masked_secrets

KINDS: Final = {
    "secret": "secrets (tokens, keys, passwords)",
    "host": "host names and addresses",
    "user": "user names",
    "email": "e-mail addresses",
    "path": "folders",
    "bucket": "storage buckets",
    "pod": "pods",
    "uuid": "UUIDs",
    "mac": "MAC addresses",
    "serial": "serial numbers",
    "id": "container ids",
}
"""What is masked, by the word in its placeholder."""

_PLACEHOLDER: Final = rf"<(?:user|(?:{'|'.join(KINDS)})-\d+)>"
_URL: Final = re.compile(
    r"(?P<scheme>(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{0,20})://(?:(?P<login>[^\s/@'\"<>]{1,400})@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s/'\"<>,;:()\[\]{}|\\?*`，。]*)(?P<port>:\d+)?(?P<rest>[/?][^\s'\"<>()\]}|,;`]*)?"
)
# The folder of a prompt says nothing that a report needs, its last part included.
_PROMPT: Final = re.compile(r"(<user>@<host-\d+>[: ])(~?/[^\s$#\]]+)(?=\]?[$#])")
_SIGNED: Final = re.compile(r"\?.*(?:sig|token|key|expires|credential|policy|auth|\*)", re.IGNORECASE)
_STORES: Final = frozenset(
    ["s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs", "oss", "cos", "obs", "tos", "hdfs"]
)
_KEPT_SCHEMES: Final = frozenset(["hf", "docker", "containerd", "cri-o"])
_NO_HOST: Final = _STORES | _KEPT_SCHEMES | {"file"}


class Redactor:
    """Masks texts, and knows what it masked: the same host gets the same placeholder in all of them.

    A host or a user is often recognised in one place only (a prompt, a path). ``learn`` from all texts first, then
    its name is masked in every other place as well.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        self._places: Counter[str] = Counter()
        self._names = KnownNames(_PLACEHOLDER)
        # The same texts come several times: to be learned, and to be masked.
        self._secretless: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._learned: set[str] = set()

    @property
    def masked(self) -> dict[str, tuple[int, int]]:
        """How many different things of each kind were masked, and in how many places."""
        return {
            kind: (len(self._numbers[kind]), self._places[kind])
            for kind in KINDS
            if self._places[kind] and self._numbers[kind]
        }

    def learn(self, text: str) -> None:
        """Note the hosts and users that a text names."""
        # A login in a URL is a secret, and no user.
        text = self._without_secrets(text, self.learn_secret)
        # Hosts and users are named within a line.
        fresh = [line for line in dict.fromkeys(text.split("\n")) if line not in self._learned]
        if not fresh:
            return
        self._learned.update(fresh)
        text = "\n".join(fresh)
        hosts = [match[2] for match in LOGIN.finditer(text) if is_login(match)]
        hosts += [match["host"] for match in _URL.finditer(text) if match["scheme"].lower() not in _NO_HOST]
        for host, particular in found_hosts("\n".join([text, *(f"host={host}" for host in hosts)])):
            if particular:
                self._names.note(host, "host")
        for user in found_users(text):
            self._names.note(user, "user")

    def learn_secret(self, secret: str) -> None:
        """Note a secret that was recognised by its place, so that it is masked wherever it is quoted."""
        # Where it is quoted again without its name only its words can tell; a short one is a word of its own.
        if 6 <= len(secret) <= 400 and "\n" not in secret and not is_common(secret) and not secret.isdigit():
            self._names.note(secret, "secret")

    def learn_value(self, value: Any) -> None:
        """The same for plain data: names of keys tell hosts and users, too."""
        for text in _texts(value):
            self.learn(text)

    def text(self, text: str, *, versions: bool = False) -> str:
        """The text with everything masked; the number of its lines stays.

        Args:
            text: Any text.
            versions: Four numbers with points are a version here, never an address.
        """
        self.learn(text)
        text = self._without_secrets(text, self.count_secret)
        text = UUID.sub(lambda match: self._number("uuid", match[0]), text)
        text = MAC.sub(lambda match: self._number("mac", match[0]), text)
        text = SERIAL.sub(lambda match: match["before"] + self._number("serial", match["word"]), text)
        text = CONTAINER.sub(self._container, text)
        text = sub_in_lines(_URL, self._url, text, ("://",))
        text = sub_in_lines(EMAIL, self._email, text, ("@",))
        text = sub_in_lines(LOGIN, self._login, text, ("@",))
        text = _PROMPT.sub(lambda match: match[1] + self._folder(match[2]), text)
        text = WINDOWS.sub(lambda match: windows_shortened(match[0], self._folder), text)
        text = QUOTED.sub(self._quoted, text)
        text = POSIX.sub(lambda match: self._path(match[0]), text)
        text = CACHE_OWNER.sub(lambda match: match[1] + self._user(match[2]), text)
        if not versions:
            text = IPV4.sub(lambda match: self._number("host", match[0]) if is_address(match) else match[0], text)
        text = IPV6.sub(lambda match: self._number("host", match[0]) if is_v6(match[0]) else match[0], text)
        text = CLOUD_HOST.sub(lambda match: self._number("host", match[0]), text)
        text = DOMAIN.sub(self._domain, text)
        text = POD.sub(lambda match: self._number("pod", match[0]), text)
        return self._names.replaced(text, self._known)

    def lines(self, lines: Iterable[str]) -> list[str]:
        """Lines that stand below each other: a key that runs over several of them is found."""
        flat = [" ".join(line.splitlines()) for line in lines]
        return self.text("\n".join(flat)).split("\n") if flat else []

    def value(self, value: Any, name: str = "") -> Any:
        """Plain data with all its texts masked, keys included.

        Args:
            value: Mappings, lists, texts and numbers.
            name: The key it stands under: a value of ``HF_TOKEN`` is a secret whatever it looks like.
        """
        if isinstance(value, str):
            return self._named(name, value)
        if isinstance(value, Mapping):
            label = _label(value)
            return {
                self.text(str(key)): self._named(label, item)
                if label and key == "value" and isinstance(item, str)
                else self.value(item, name if name.startswith("package") else str(key))
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            if len(value) > 1 and all(isinstance(item, str) and not is_secret_name(name, item) for item in value):
                return self.lines(value)
            return [self.value(item, name) for item in value]
        return value

    def _without_secrets(self, text: str, found: Found) -> str:
        known = self._secretless.get(text)
        if known is None:
            secrets: list[str] = []
            known = self._secretless[text] = (masked_secrets(text, secrets.append), tuple(secrets))
        for secret in known[1]:
            found(secret)
        return known[0]

    def _named(self, name: str, value: str) -> str:
        kind, _, last = name.rpartition(" ")
        versions = (kind or last).startswith(("package", "version", "nvidia"))
        return self.text(masked_named(last, value, self.count_secret), versions=versions)

    def _number(self, kind: str, word: str) -> str:
        self._places[kind] += 1
        numbers = self._numbers[kind]
        return f"<{kind}-{numbers.setdefault(word.lower(), len(numbers) + 1)}>"

    def _user(self, name: str) -> str:
        self._places["user"] += 1
        self._numbers["user"].setdefault(name.lower(), 0)
        return "<user>"

    def count_secret(self, secret: str) -> None:
        """Count a secret that somebody else has masked."""
        self._places["secret"] += 1
        self._numbers["secret"].setdefault(secret, 0)

    def _folder(self, folder: str) -> str:
        return self._number("path", folder)

    def _path(self, path: str) -> str:
        return shortened(path, self._folder, self._user)

    def _quoted(self, match: re.Match[str]) -> str:
        quote = match["quote"]
        return f"{quote}{self._path(match['path'])}{quote}" if quoted_path(match) else match[0]

    def _email(self, match: re.Match[str]) -> str:
        return match[0] if match[0].startswith("git@") else self._number("email", match[0])

    def _container(self, match: re.Match[str]) -> str:
        if match["whole"]:
            return self._number("id", match["whole"])
        return match["before"] + self._number("id", match["word"])

    def _login(self, match: re.Match[str]) -> str:
        if not is_login(match):
            return match[0]
        host = match[2].rstrip(".-")
        return f"{self._user(match[1])}@{self._number('host', host)}{match[2][len(host) :]}"

    def _url(self, match: re.Match[str]) -> str:
        scheme, host, rest = match["scheme"].lower(), match["host"], match["rest"] or ""
        if scheme in _KEPT_SCHEMES or not (host or rest):
            return match[0]
        path, query, _ = rest.partition("?")
        query = "?***" if query else ""
        login = f"{match['login']}@" if match["login"] else ""
        if scheme in _STORES:
            bucket = self._number("bucket", host) if host else ""
            return f"{match['scheme']}://{login}{bucket}{match['port'] or ''}{self._below(path)}{query}"
        if scheme.endswith("file") or not host:
            return f"{match['scheme']}://{host}{self._path(path) if path else ''}{query}"
        bare = host.strip("[]")
        if PUBLIC.fullmatch(bare.lower()):
            shown = rest if _SIGNED.search(rest) is None else path + query
            return f"{match['scheme']}://{login}{host}{match['port'] or ''}{shown}"
        local = bare.lower() in ("localhost", "*") or bare.startswith(("127.", "0.0.0.0", "%")) or bare in ("::1", "::")
        shown = host if local else self._number("host", bare)
        return f"{match['scheme']}://{login}{shown}{match['port'] or ''}{self._below(path)}{query}"

    def _below(self, path: str) -> str:
        """The path of a URL: with a slash in front, so that it stays one."""
        short = self._path(path) if path.strip("/") else path
        return short if not short or short.startswith("/") else f"/{short}"

    def _domain(self, match: re.Match[str]) -> str:
        word: str = match[0]
        if PUBLIC.fullmatch(word.lower()) or is_code(word) or is_module(match):
            return word
        return self._number("host", word)

    def _known(self, word: str, kind: str) -> str:
        if kind == "secret":
            self.count_secret(word)
            return MASK
        return self._user(word) if kind == "user" else self._number("host", word)


def _texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        # A sentence behind a key is no value of it.
        yield f"{name}={value}" if name and " " not in value else value
    elif isinstance(value, Mapping):
        label = _label(value).rpartition(" ")[2]
        for key, item in value.items():
            yield from _texts(item, label if label and key == "value" else str(key))
    elif isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            yield " ".join(value)
        for item in value:
            yield from _texts(item, name)


def _label(value: Mapping[Any, Any]) -> str:
    """What a fact (a mapping with ``name`` and ``value``) is about."""
    name = value.get("name")
    return name.strip() if isinstance(name, str) else ""
