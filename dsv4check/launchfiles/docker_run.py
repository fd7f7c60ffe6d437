"""``docker run``, ``podman run``, ``nerdctl run``: the container's command, environment, mounts and GPUs.

Options as the Docker CLI documents them: all take a value except the ones listed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.env_files import env_of_file
from dsv4check.launchfiles.records import Context, FileWord, Server, Stated
from dsv4check.records import dataclass, field

# fmt: off
_WITHOUT_VALUE: Final = frozenset((
    "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable", "--publish-all",
    "--sig-proxy", "--disable-content-trust", "--quiet", "--tty", "--interactive", "--detach", "--replace", "--help",
    "-d", "-i", "-t", "-P", "-q", "--rmi", "--no-hosts", "--env-host", "--tls-verify",
))
# fmt: on
_SHORT_FLAGS: Final = re.compile(r"-[ditPq]+")


@dataclass(slots=True)
class _Run:
    """What the options say."""

    env: dict[str, Stated] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    gpus: Stated | None = None
    entrypoint: FileWord | None = None


def servers_of_docker(
    words: Sequence[FileWord], env: Mapping[str, Stated], context: Context, *, depth: int = 0
) -> list[Server]:
    """The servers that ``docker run ...`` or ``docker exec ...`` starts; ``env`` is that of the docker client."""
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in ("--context", "-c", "--host", "-H", "--config", "--log-level") else 1
    if words[at : at + 1] and words[at].text == "container":
        at += 1
    if at >= len(words):
        return []
    if words[at].text in ("exec", "compose"):
        return _inside(words[at:], context, depth)
    if words[at].text not in ("run", "create"):
        return []
    run = _Run()
    at += 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "--":
        at = _option(words, at, run, env, context)
    if at < len(words) and words[at].text == "--":
        at += 1
    if at >= len(words):
        return []
    image, args = words[at], words[at + 1 :]
    command = () if run.entrypoint is None else (run.entrypoint,)
    return servers_of_container(
        context,
        image=Stated(image.text, image.span),
        command=command,
        args=args,
        env=run.env,
        mounts=run.mounts,
        gpus=run.gpus,
        place=words[0].span,
        depth=depth + 1,
    )


def _inside(words: Sequence[FileWord], context: Context, depth: int) -> list[Server]:
    """``docker exec NAME vllm serve ...``, ``docker compose run SERVICE vllm serve ...``."""
    from dsv4check.launchfiles.argv import servers_of_argv

    for index in range(1, len(words)):
        found = servers_of_argv(words[index:], {}, context, depth=depth + 1)
        if found:
            return found
    return []


def _option(words: Sequence[FileWord], at: int, run: _Run, env: Mapping[str, Stated], context: Context) -> int:
    """Read one option; returns the index behind it and its value."""
    word = words[at]
    name, equals, _value = word.text.partition("=")
    if name in _WITHOUT_VALUE or _SHORT_FLAGS.fullmatch(word.text):
        return at + 1
    if name.startswith("--") and equals:
        _apply(name, _part(word, len(name) + 1), run, env, context)
        return at + 1
    if not name.startswith("--") and len(word.text) > 2:
        # -eNAME=value, -v/host:/there, -itv ...
        _apply(word.text[:2], _part(word, 3 if word.text[2] == "=" else 2), run, env, context)
        return at + 1
    if at + 1 < len(words):
        _apply(name, words[at + 1], run, env, context)
    return at + 2


def _part(word: FileWord, start: int) -> FileWord:
    """The value inside a word."""
    offsets = word.offsets[start:]
    text = word.text[start:]
    return FileWord(text, word.span, word.slot, tuple(item for item in word.open if item in text), offsets)


def _apply(name: str, value: FileWord, run: _Run, env: Mapping[str, Stated], context: Context) -> None:
    match name:
        case "-e" | "--env":
            key, equals, text = value.text.partition("=")
            if equals:
                run.env[key] = Stated(text, value.span)
            elif key in env:
                # Passed on from the environment docker itself is started in.
                run.env[key] = env[key]
        case "--env-file":
            run.env.update(env_of_file(value.text, value.span, context))
        case "-v" | "--volume":
            parts = value.text.split(":")
            if len(parts) > 1:
                run.mounts[parts[1]] = parts[0]
        case "--mount":
            fields = dict(item.partition("=")[::2] for item in value.text.split(","))
            target = fields.get("target") or fields.get("dst") or fields.get("destination")
            if target:
                run.mounts[target] = fields.get("source") or fields.get("src") or ""
        case "--gpus":
            run.gpus = Stated(value.text.strip("'\""), value.span)
        case "--entrypoint":
            run.entrypoint = value
        case _:
            return
