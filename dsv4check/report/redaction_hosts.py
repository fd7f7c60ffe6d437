"""Where host names, addresses, user names and ids stand in logs, and what only looks like one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

_LABEL: Final = r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}"

IPV4: Final = re.compile(r"(?<![A-Za-z0-9.+])(?:\d{1,3}\.){3}\d{1,3}(?![A-Za-z0-9]|\.\d)")
IPV6: Final = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])")
DOMAIN: Final = re.compile(
    r"(?<![\w.<-])(?:[A-Za-z0-9-]{1,63}\.){1,20}"
    r"(?:com|net|org|edu|gov|mil|cn|jp|kr|tw|hk|sg|de|fr|eu|uk|ch|ru|io|ai|dev|cloud|tech|xyz"
    r"|local|internal|corp|lan|intra|intranet|localdomain|svc|consul)(?![\w-]|\.\w|\()"
)
POD: Final = re.compile(
    r"(?<![\w.-])[a-z0-9](?:[a-z0-9-]{0,200}[a-z0-9])?-[bcdf-hj-np-tv-xz2456789]{8,10}-[bcdf-hj-np-tv-xz2456789]{5}(?![\w-])"
)
CACHE_OWNER: Final = re.compile(r"(torchinductor_)(?!root\b)(\w[\w.-]{0,63})")
CLOUD_HOST: Final = re.compile(r"(?<![\w.-])ip(?:-\d{1,3}){4}(?![\w-])")
EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,10}[A-Za-z]{2,24}(?![\w-])")
LOGIN: Final = re.compile(rf"(?<![\w.@/<>-])([^\W\d][\w.-]{{0,63}})@({_LABEL})(?![\w@])")

UUID: Final = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?![0-9A-Za-z])")
MAC: Final = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})(?![\w:-])")
SERIAL: Final = re.compile(
    r"(?P<before>\bserial(?:[ _]?(?:number|no))?[\"']?[ \t]*[:=#][ \t]*[\"']?)(?P<word>[\w-]{4,64})", re.IGNORECASE
)
CONTAINER: Final = re.compile(
    r"(?P<before>(?:docker|containerd|cri-o)://|container[_ -]?id[\"']?[ \t]*[:=][ \t]*[\"']?|/docker/(?:containers/)?)"
    r"(?P<word>[0-9a-f]{12,64})(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z:])(?P<whole>[0-9a-f]{64})(?![0-9A-Za-z])",
    re.IGNORECASE,
)

PUBLIC: Final = re.compile(
    r"(?:[\w-]+\.)*(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn|github\.com|githubusercontent\.com|github\.io"
    r"|vllm\.ai|pytorch\.org|pypi\.org|pythonhosted\.org|python\.org|nvidia\.com|deepseek\.com|readthedocs\.io"
    r"|docker\.io|docker\.com|ghcr\.io|quay\.io|nvcr\.io|gcr\.io|apache\.org|kubernetes\.io|k8s\.io|ray\.io|openai\.com"
    r"|x-k8s\.io|flashinfer\.ai|conda\.anaconda\.org|anaconda\.org|example\.com|example\.org|stackoverflow\.com)"
)

# Where a host is named: the last group is the host, a group before it the user.
_HOSTS: Final = (
    re.compile(rf"\[pod/({_LABEL})/"),
    re.compile(
        rf"(?<![\w.])(?:[A-Za-z_]*(?:host(?:_?name|_ip)?|node_?name|master_(?:addr|ip)|node_?list|pod_?(?:name|ip|uid)"
        rf"|head_?(?:ip|addr(?:ess)?)|dp_master_ip|parallel_(?:address|master_ip)))"
        rf"[\"']?[ \t]*[=:][ \t]*[\"']?({_LABEL})",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?<![\w-])(?:--?(?:host|master[-_]addr|data[-_]parallel[-_]address|dpa|node[-_]ip[-_]address|address)"
        rf"|-h)[ \t=]+[\"']?({_LABEL})"
    ),
    re.compile(rf"(?<![\w.-])({_LABEL}):\d+:\d+ \[\d+\] (?:NCCL|misc|transport|init|graph)"),
    re.compile(
        rf"^(?:[A-Z][a-z]{{2}} +\d+ [\d:]{{8}}|\d{{4}}-\d\d-\d\dT[\d:.+Zz-]+) ({_LABEL}) [\w@./-]+(?:\[\d+\])?:",
        re.MULTILINE,
    ),
    re.compile(rf"srun: error: ({_LABEL}):"),
    re.compile(rf"\*\*\* \w+ [\d.]+ ON ({_LABEL}) "),
    re.compile(rf"(?<![\w\])])\[({_LABEL})\]:\d{{2,5}}(?!\d)"),
    re.compile(rf"address(?:es)? of \(?({_LABEL}), ?\d+\)"),
    re.compile(rf"\b(?:connect(?:ed|ing)?|connection) to \[?({_LABEL})[\]:]"),
    re.compile(r"(?<![\w./-])((?=[a-z0-9-]*\d)[a-z]+(?:-[a-z0-9]+)+):\d{4,5}(?!\d)"),
)
_USERS: Final = (
    re.compile(
        r"(?:^|[/\\])(?:home|[Uu]sers)[/\\]{1,2}([^\s/\\'\"`,;:()\[\]{}<>|=*?$，。；：、（）]{1,64})", re.MULTILINE
    ),
    re.compile(r"(?<![\w/])~([A-Za-z_][\w.-]{0,63})/"),
    re.compile(r"torchinductor_([\w.-]{1,64})"),
    re.compile(
        r"(?<![\w-])(?:(?:USER|LOGNAME|USERNAME|SUDO_USER|NB_USER)[\"']?[ \t]*[=:]|user(?:name)?(?:=|[\"'][ \t]*:))"
        r"[ \t]*[\"']?([\w.-]{1,64})"
    ),
)

# Words that stand in vLLM's messages or in every second path. Behind a prompt or below /home they are masked all the
# same, but not wherever else they stand: messages have to stay readable.
_COMMON_WORDS: Final = """
root user users admin administrator ubuntu debian centos rocky fedora ec2-user azureuser opc nobody daemon app apps node
nodes head worker workers master main server client host hosts hostname localhost local default none null true false
unknown all any ray vllm dynamo jovyan runner ci build builder test tests dev prod staging data model models deepseek
deepseek-ai deepseek-v4 flash pro torch python cuda nvidia gpu gpus cpu rank ranks engine core api apiserver container
docker kubernetes pod pods service system systemd kernel cache config home work workspace tmp temp opt mnt path email
bucket uuid mac serial id info warning error errors debug critical traceback file line index block blocks size key keys
value values name names token tokens layer layers weight weights memory attention backend runtime socket process
processes device devices group groups world port address version release driver the and for with from this that not was
were are has have can could int str bool float list dict self args kwargs cls config.json shared public hf huggingface
hub snapshots raise return import class async await init start stop load ready
expert experts moe mla sparse prefill decode graph graphs eager draft spec request requests usage
instead must should when then only argument flag option given set unset via
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
_CODE: Final = re.compile(
    r"(?:self|args|kwargs|cls|config|cfg|os|sys|socket|threading|torch|envs|str|\w*_config)(?:\.\w+)*"
)
_VERSION_BEFORE: Final = re.compile(
    r"(?:version|driver|cuda|cudnn|nccl|cublas\w*|release|(?:nvidia|opencv|cupy|msgspec)[\w-]*|-cu\d+|[=<>~!]=|\bv)"
    r"[\"']?[^\w\n]{0,20}$",
    re.IGNORECASE,
)
_VERSION_AFTER: Final = re.compile(r"-(?:py|cp)\d|\.dist-info|\+|[ \t]+(?:pypi\w*|conda\w*|anaconda\w*|nvidia)\b")
_ENDPOINT: Final = re.compile(r":\d{2,5}(?!\d)|<\d+>")


def found_hosts(text: str) -> Iterator[tuple[str, bool]]:
    """Hosts that the text names in a place where only a host stands, and whether to look for them everywhere."""
    for pattern in _HOSTS:
        for match in pattern.finditer(text):
            host = match[1].rstrip(".-")
            if _is_host(host) and text[match.end(1) : match.end(1) + 1] not in ("(", "_"):
                yield host, _particular(host)


def found_users(text: str) -> Iterator[str]:
    """User names in paths and assignments that are to be looked for everywhere."""
    for pattern in _USERS:
        for match in pattern.finditer(text):
            name = match[1].rstrip(".-")
            if _particular(name):
                yield name
    for match in LOGIN.finditer(text):
        if is_login(match) and _particular(match[1]):
            yield match[1]


def is_login(match: re.Match[str]) -> bool:
    """True for ``alice@gpu7``; False for ``image@sha256``, ``model@main``, ``vllm@0.24.0`` and ``git@github.com``."""
    host = match[2].rstrip(".-").lower()
    if host in {"sha256", "main", "master", "latest", "nightly", "dev"} or PUBLIC.fullmatch(host):
        return False
    return re.fullmatch(r"v?\d+(?:\.\w+)*", host) is None or IPV4.fullmatch(host) is not None


def is_address(match: re.Match[str]) -> bool:
    """True for an IPv4 address of somebody; False for a version of four parts and for addresses that say nothing."""
    text, word = match.string, match[0]
    parts = [int(part) for part in word.split(".")]
    if max(parts) > 255 or parts[0] in (0, 127) or word == "255.255.255.255":
        return False
    if _ENDPOINT.match(text, match.end()):
        return True
    if _VERSION_AFTER.match(text, match.end()):
        return False
    return _VERSION_BEFORE.search(text, max(match.start() - 60, 0), match.start()) is None


def is_v6(word: str) -> bool:
    """True for an IPv6 address of somebody."""
    try:
        address = ipaddress.IPv6Address(word)
    except ValueError:
        return False
    # ``0::2`` is a slice in a quoted line of Python.
    return not (address.is_loopback or address.is_unspecified) and re.search("[0-9A-Fa-f]{3}", word) is not None


def _is_host(host: str) -> bool:
    lower = host.lower()
    if lower in _COMMON or len(host) < 2 or PUBLIC.fullmatch(lower) or is_code(host):
        return False
    # Addresses are told by their own form; a number is a rank or a port.
    return re.fullmatch(r"[\d.]+", host) is None and not lower.endswith((".py", ".cpp", ".cu", ".hpp", ".so"))


def _particular(name: str) -> bool:
    if name.lower() in _COMMON or name.isdigit():
        return False
    return len(name) >= 3 or (len(name) == 2 and not name.isascii())


def is_module(match: re.Match[str]) -> bool:
    """True for ``import plotly.io`` and for the end of ``2.9.0.dev``."""
    labels = match[0].split(".")
    before = match.string[max(match.start() - 8, 0) : match.start()]
    return labels[-2].isdigit() or re.search(r"\b(?:import|from) $", before) is not None


def is_code(word: str) -> bool:
    """True for an attribute in a quoted line of Python: ``args.host``, ``threading.local``."""
    return _CODE.fullmatch(word) is not None


def is_common(name: str) -> bool:
    """True for a name that says nothing about anybody."""
    return name.lower() in _COMMON
