"""Which words of a command start the vLLM server, and which are its arguments."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.deployment import Token

ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_PYTHON: Final = re.compile(r"python\d*(\.\d+)?[dt]?(\.exe)?")
_MODULES: Final = {
    "vllm.entrypoints.openai.api_server": "api_server",
    "vllm.entrypoints.launchers.api_server.entry": "api_server",
    "vllm.entrypoints.cli.main": "cli",
    "vllm": "cli",
}
_WRAPPERS: Final = frozenset(
    (
        "exec",
        "nohup",
        "sudo",
        "env",
        "time",
        "command",
        "uv",
        "uvx",
        "numactl",
        "taskset",
        "nice",
        "ionice",
        "stdbuf",
        "timeout",
        "setsid",
        "chrt",
        "srun",
        "mpirun",
        "conda",
        "micromamba",
        "poetry",
        "pdm",
        "hatch",
        "rye",
        "dumb-init",
        "tini",
        "nsys",
        "ncu",
        "strace",
        "gdb",
        "xvfb-run",
        "unbuffer",
    )
)
_NOT_A_MODEL: Final = frozenset(
    (
        "set",
        "cd",
        "source",
        ".",
        "pip",
        "echo",
        "printf",
        "mkdir",
        "sleep",
        "ulimit",
        "true",
        "false",
        "module",
        "trap",
        "wait",
        "shopt",
        "unset",
        "alias",
        "return",
        "exit",
        "curl",
        "wget",
        "git",
        "apt",
        "apt-get",
        "nvidia-smi",
        "ray",
        "hf",
        "huggingface-cli",
        "for",
        "case",
        "esac",
        "[",
        "[[",
        "test",
        "rm",
        "cp",
        "mv",
        "ls",
        "cat",
        "docker",
        "podman",
        "kubectl",
        "helm",
        "vllm",
        "serve",
        "bash",
        "sh",
        "python",
        "python3",
    )
)


def assignment(text: str, plain: int | None = None) -> tuple[str, str, bool] | None:
    """``NAME=value`` or ``NAME+=value`` as (name, value, appends); None for other words.

    ``plain`` is how many characters the word starts with that stood outside quotes: a quoted ``"X=1"`` assigns
    nothing in a shell.
    """
    match = ASSIGNMENT.match(text)
    if match is None or (plain is not None and plain < match.end()):
        return None
    return match.group(1), text[match.end() :], bool(match.group(2))


def split_program(
    tokens: tuple[Token, ...], env: dict[str, str], plain: list[int] | None = None
) -> tuple[tuple[str, ...], tuple[Token, ...], str]:
    """Program, the words after it, and the entry point; assignments in front go into ``env``.

    ``plain`` holds, for words that were split here, how many characters each started with outside quotes.
    """
    texts = [token.text for token in tokens]
    start = 0
    if texts[:1] == ["--"] or (texts[:1] == ["env"] and not "".join(texts[1:2]).startswith("-")):
        start = min(1, len(texts) - 1)
    while start < len(texts) and (pair := assignment(texts[start], plain[start] if plain is not None else None)):
        env[pair[0]] = pair[1]
        start += 1
    if texts[start : start + 1] == ["serve"] and len(texts) > start + 1:
        # The arguments of a container whose entry point is `vllm`.
        return ("vllm", "serve"), tokens[start + 1 :], "serve"
    where = _find_server(texts, start)
    if where is None:
        return (), tokens[start:], "serve"
    stop, entrypoint = where
    program: list[str] = []
    assigns = False
    for text in texts[start:stop]:
        pair = assignment(text) if assigns else None
        # `sudo A=1` and `nohup env A=1` assign; `vllm==0.24.0` behind `uvx --from` does not.
        if pair is not None and not pair[1].startswith("="):
            env[pair[0]] = pair[1]
            continue
        assigns = assigns or text.rsplit("/", 1)[-1] in ("env", "sudo")
        program.append(text)
    return tuple(program), tokens[stop:], entrypoint


def place_of_environment(program: tuple[str, ...]) -> int:
    """Index of the program's word in front of which its assignments stand.

    ``sudo`` and ``env -i`` start the server without what was set before them.
    """
    if program[:1] == ("sudo",):
        return 1
    at = 0
    if program[:1] == ("env",):
        at = 1
        while at < len(program) and program[at].startswith("-"):
            at += 2 if program[at] in ("-u", "-C", "--unset", "--chdir") else 1
    return at


def _find_server(texts: list[str], start: int) -> tuple[int, str] | None:
    """Index behind the words that start the server, and which of its two entry points it is."""
    if start >= len(texts):
        return None
    first = texts[start].rsplit("/", 1)[-1]
    if first != "vllm" and not _PYTHON.fullmatch(first) and first not in _WRAPPERS:
        return None
    for index in range(start, len(texts)):
        name = texts[index].rsplit("/", 1)[-1]
        following = texts[index + 1 : index + 2]
        if name == "vllm" and texts[index - 1 : index] != ["-m"] and following == ["serve"]:
            return index + 2, "serve"
        if _PYTHON.fullmatch(name):
            at = index + 1
            while at < len(texts) and texts[at].startswith("-") and texts[at] != "-m":
                at += 2 if texts[at] in ("-W", "-X") else 1
            if texts[at : at + 1] == ["-m"] and (module := _MODULES.get("".join(texts[at + 1 : at + 2]))):
                if module == "api_server":
                    return at + 2, module
                if texts[at + 2 : at + 3] == ["serve"]:
                    return at + 3, "serve"
            if texts[at : at + 1] and texts[at].endswith("vllm") and texts[at + 1 : at + 2] == ["serve"]:
                return at + 2, "serve"
            return None
        if texts[index].startswith("--") and "=" not in texts[index] and index == start:
            return None
    return None


def looks_like_arguments(rest: tuple[Token, ...]) -> bool:
    """True for words that start with a flag, or with something that can be a model rather than a program."""
    if not rest:
        return True
    first = rest[0].text
    if first.startswith(("-", "\u2013", "\u2014")):
        return True
    if first in _NOT_A_MODEL or first in _WRAPPERS or _PYTHON.fullmatch(first):
        return False
    return "/" in first or len(rest) == 1 or rest[1].text.startswith("-")
