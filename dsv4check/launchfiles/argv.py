"""What a list of words starts: a server of its own, or one behind a shell, a wrapper or a container runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from dsv4check.deployment import Token
from dsv4check.inputs.server_program import assignment, split_program
from dsv4check.launchfiles.records import Context, FileWord, Server, Stated
from dsv4check.launchfiles.text import Span
from dsv4check.problems import Origin

MAX_DEPTH: Final = 6
"""Shells inside shells that are followed."""
SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
RUNTIMES: Final = frozenset(("docker", "podman", "nerdctl"))
# fmt: off
_LEADING: Final = frozenset((
    "exec", "nohup", "sudo", "env", "time", "command", "numactl", "taskset", "nice", "ionice", "stdbuf", "timeout",
    "setsid", "chrt", "srun", "mpirun", "mpiexec", "conda", "micromamba", "poetry", "pdm", "uv", "uvx", "dumb-init",
    "tini", "nsys", "ncu", "strace", "unbuffer", "ssh", "pdsh", "tmux", "screen", "su", "eval", "kubectl", "ray",
    "apptainer", "singularity", "enroot", "catchsegv", "gosu", "su-exec", "doas", "flock", "systemd-run", "xargs",
    "torchrun", "accelerate", "parallel", "watch", "script", "runuser", "docker-compose", "oc",
))
# fmt: on
"""Programs that start another one, which stands somewhere behind them."""
_PYTHON: Final = re.compile(r"python\d*(\.\d+)?[dt]?(\.exe)?")
_OTHER_SERVERS: Final = {
    "sglang.launch_server": "sglang",
    "dynamo.sglang": "sglang",
    "dynamo.trtllm": "TensorRT-LLM",
    "tensorrt_llm.commands.serve": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
}
_OTHER_PROGRAMS: Final = {
    "sglang": "sglang",
    "trtllm-serve": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
    "text-generation-launcher": "TGI",
    "llama-server": "llama.cpp",
}
_SHELL_OPTION: Final = re.compile(r"[-+][A-Za-z]+")


def servers_of_argv(
    words: Sequence[FileWord], env: Mapping[str, Stated], context: Context, *, depth: int = 0
) -> list[Server]:
    """The servers that the words start when they are executed with ``env``; none for anything else."""
    if not words or depth > MAX_DEPTH:
        return []
    name = _base(words[0].text)
    if name in SHELLS:
        return _behind_shell(words, env, context, depth)
    if name in RUNTIMES:
        from dsv4check.launchfiles.docker_run import servers_of_docker

        return servers_of_docker(words, env, context, depth=depth)
    other = _other_server(words)
    if other:
        return [Server((words[0].text,), tuple(words[1:]), words[0].span, "other", env, other=other)]
    server = _server(words, env)
    if server is not None:
        return [server]
    return _behind_wrapper(words, env, context, depth) if name in _LEADING else []


def _base(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def _server(words: Sequence[FileWord], env: Mapping[str, Stated]) -> Server | None:
    """The server that these words are the command of."""
    module = _module(words)
    if module is not None and module[0] == "dynamo.vllm":
        at = module[1]
        return Server(tuple(word.text for word in words[:at]), tuple(words[at:]), words[0].span, "engine", env)
    assigned: dict[str, str] = {}
    tokens = tuple(Token(word.text, Origin("file", word.text)) for word in words)
    program, rest, entrypoint = split_program(tokens, assigned)
    if not program:
        return None
    behind = words[len(words) - len(rest) :]
    merged = dict(env)
    for word in words[: len(words) - len(rest)]:
        pair = assignment(word.text)
        if pair is not None and assigned.get(pair[0]) == pair[1]:
            merged[pair[0]] = Stated(pair[1], word.span)
    return Server(program, tuple(behind), _place(words), entrypoint, merged)


def _place(words: Sequence[FileWord]) -> Span:
    """The first word that is no assignment."""
    return next((word.span for word in words if assignment(word.text) is None), words[0].span)


def _module(words: Sequence[FileWord]) -> tuple[str, int] | None:
    """The module behind ``python -m``, and the index behind it."""
    for index, word in enumerate(words):
        if not _PYTHON.fullmatch(_base(word.text)):
            continue
        at = index + 1
        while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
            at += 2 if words[at].text in ("-W", "-X") else 1
        if at + 1 < len(words) and words[at].text == "-m":
            return words[at + 1].text, at + 2
        return None
    return None


def _other_server(words: Sequence[FileWord]) -> str:
    name = _base(words[0].text)
    if name in _OTHER_PROGRAMS:
        return _OTHER_PROGRAMS[name]
    module = _module(words) if _PYTHON.fullmatch(name) else None
    return "" if module is None else _OTHER_SERVERS.get(module[0], "")


def _behind_shell(words: Sequence[FileWord], env: Mapping[str, Stated], context: Context, depth: int) -> list[Server]:
    """``bash -lc SCRIPT``; a script's file is found by itself."""
    from dsv4check.launchfiles.shell import servers_of_shell

    command = False
    at = 1
    while at < len(words):
        text = words[at].text
        if not _SHELL_OPTION.fullmatch(text) and not text.startswith("--"):
            break
        command = command or (not text.startswith("--") and "c" in text)
        # `-o pipefail`, also at the end of a cluster: `-eo pipefail`.
        at += 2 if text.endswith("o") and not text.startswith("--") else 1
    if not command or at >= len(words):
        return []
    return servers_of_shell(words[at].located(), env, context, depth=depth + 1)


def _behind_wrapper(words: Sequence[FileWord], env: Mapping[str, Stated], context: Context, depth: int) -> list[Server]:
    """The command that a wrapper (``srun``, ``ssh``, ``timeout``) starts."""
    from dsv4check.launchfiles.shell import servers_of_shell

    image = next((word for word in words if word.text.startswith("docker://")), None)
    for index in range(1, len(words)):
        text = words[index].text
        name = _base(text)
        found: list[Server] = []
        if name in SHELLS or name in RUNTIMES or name == "vllm" or _PYTHON.fullmatch(name) or name in _OTHER_PROGRAMS:
            found = servers_of_argv(words[index:], env, context, depth=depth + 1)
        elif "\n" in text or " " in text:
            found = servers_of_shell(words[index].located(), env, context, depth=depth + 1)
        if found:
            return [_with_image(server, image) for server in found]
    return []


def _with_image(server: Server, image: FileWord | None) -> Server:
    if image is None or server.image is not None:
        return server
    return replace(server, image=Stated(image.text.removeprefix("docker://"), image.span))
