"""What a list of words starts: a server of its own, or one behind a shell, a wrapper or a container runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
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
    "torchrun", "accelerate", "parallel", "watch", "script", "runuser", "oc",
))
# fmt: on
"""Programs that start another one, which stands somewhere behind them."""
_MORE: Final = frozenset(("vllm", "docker-compose", "hatch", "rye", "gdb", "xvfb-run", "--"))
_TAKES_TEXT: Final = frozenset(
    ("ssh", "pdsh", "tmux", "screen", "su", "runuser", "eval", "script", "watch", "parallel", "flock")
)
"""Those that hand a word to a shell."""
_WITH_IMAGE: Final = frozenset(("srun", "apptainer", "singularity", "enroot"))
_MOST_WORDS: Final = 80
"""Words of a wrapper that are searched for the program behind it."""
_MOST_ATTEMPTS: Final = 2
"""Words of a wrapper that are tried as the program: one may be the name of a container, a host or a window."""
# fmt: off
_HARMLESS: Final = frozenset((
    "pkill", "pgrep", "kill", "killall", "grep", "egrep", "fgrep", "rg", "sed", "awk", "echo", "printf", "cat", "tail",
    "less", "curl", "wget", "ls", "cp", "mv", "rm", "mkdir", "touch", "chmod", "chown", "which",
    "whereis", "pip", "pip3", "ps", "systemctl", "journalctl", "git", "apt", "apt-get", "dnf", "yum", "find", "sleep",
    "logger", "scp", "rsync", "tar", "ln", "tee", "nvidia-smi", "true", "false", "man", "cd", "export", "python-config",
))
# fmt: on
"""Programs whose words are no command."""
_HELP: Final = frozenset(("--help", "-h", "--version", "-v"))
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
    name = program_name(words[0].text)
    if name in SHELLS:
        return _behind_shell(words, env, context, depth)
    if name in RUNTIMES:
        from dsv4check.launchfiles.docker_run import servers_of_docker

        return servers_of_docker(words, env, context, depth=depth)
    if name == "docker-compose":
        from dsv4check.launchfiles.docker_run import behind_compose

        return behind_compose(words, context, depth)
    other = _other_server(words)
    if other:
        return [Server((words[0].text,), tuple(words[1:]), words[0].span, "other", env, other=other)]
    server = _server(words, env)
    if server is not None:
        if _talks_of(words[: len(words) - len(server.words)]):
            return []
        return [_with_image(server, _image_of_wrapper(name, words)[0])]
    return _behind_wrapper(words, env, context, depth) if name in _LEADING else []


def may_start(program: str) -> bool:
    """Whether a program can start a server: itself, or by what stands behind it."""
    name = program_name(program)
    known = name in SHELLS or name in RUNTIMES or name in _LEADING or name in _OTHER_PROGRAMS or name in _MORE
    return known or _PYTHON.fullmatch(name) is not None


def program_name(text: str) -> str:
    """A program without the folder it lies in."""
    return text.rsplit("/", 1)[-1]


def _talks_of(program: Sequence[FileWord]) -> bool:
    """True for a wrapper around a program whose words are no command: ``sudo pkill -f vllm serve``."""
    texts = [word.text for word in program[:_MOST_WORDS]]
    return any(program_name(text) in _HARMLESS and not _is_option(before) for before, text in pairwise(texts))


def _is_option(text: str) -> bool:
    return text.startswith("-") and text != "--"


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
    if behind and (behind[0].text in _HELP or any(word.text.partition("=")[0] == "--help" for word in behind)):
        return None
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
        if not _PYTHON.fullmatch(program_name(word.text)):
            continue
        at = index + 1
        while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
            at += 2 if words[at].text in ("-W", "-X") else 1
        if at + 1 < len(words) and words[at].text == "-m":
            return words[at + 1].text, at + 2
        return None
    return None


def _other_server(words: Sequence[FileWord]) -> str:
    name = program_name(words[0].text)
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

    wrapper = program_name(words[0].text)
    image, image_at = _image_of_wrapper(wrapper, words)
    takes_text = wrapper in _TAKES_TEXT
    attempts = 0
    for index in range(1, min(len(words), _MOST_WORDS)):
        text = words[index].text
        name = program_name(text)
        if name in _HARMLESS and not _is_option(words[index - 1].text):
            return []
        takes_text = takes_text or name in _TAKES_TEXT
        found: list[Server] = []
        if attempts >= _MOST_ATTEMPTS:
            return []
        if name in SHELLS or name in RUNTIMES or name == "vllm" or _PYTHON.fullmatch(name) or name in _OTHER_PROGRAMS:
            attempts += 1
            found = servers_of_argv(words[index:], env, context, depth=depth + 1)
        elif takes_text and ("\n" in text or " " in text):
            found = servers_of_shell(words[index].located(), env, context, depth=depth + 1)
        if found:
            return [_with_image(server, image) for server in found]
    if image is not None and "run" in (word.text for word in words[1:image_at]):
        # `apptainer run docker://IMAGE ARGUMENTS`
        from dsv4check.launchfiles.container import servers_of_container

        args, place = words[image_at + 1 :], words[0].span
        return servers_of_container(context, image=image, command=(), args=args, env=env, place=place, depth=depth + 1)
    return []


def _image_of_wrapper(wrapper: str, words: Sequence[FileWord]) -> tuple[Stated | None, int]:
    """The image that a wrapper starts its command in, and the index of its word."""
    if wrapper not in _WITH_IMAGE:
        return None, 0
    for index, word in enumerate(words[:_MOST_WORDS]):
        text, start = word.text, 0
        if text == "--container-image" and wrapper == "srun" and index + 1 < len(words):
            word = words[index + 1]
            text = word.text
        elif text.startswith("--container-image=") and wrapper == "srun":
            start = len("--container-image=")
        elif not text.startswith("docker://"):
            continue
        value = text[start:].removeprefix("docker://")
        if value.endswith((".sqsh", ".sif")) or not value:
            # A file, of which nobody knows what it holds.
            return None, 0
        # Pyxis separates the registry with `#`.
        return Stated(value.replace("#", "/", 1), word.span), index
    return None, 0


def _with_image(server: Server, image: Stated | None) -> Server:
    return server if image is None or server.image is not None else replace(server, image=image)
