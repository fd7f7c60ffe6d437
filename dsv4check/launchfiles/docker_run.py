"""``docker run``, ``podman run``, ``nerdctl run``: the container's command, environment, mounts and GPUs.

Options as the Docker CLI documents them: all take a value except the ones listed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.env_files import env_of_file
from dsv4check.launchfiles.images import is_vllm_image
from dsv4check.launchfiles.records import Context, FileWord, Server, Stated
from dsv4check.records import dataclass, field

# fmt: off
_WITHOUT_VALUE: Final = frozenset((
    "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable", "--publish-all",
    "--sig-proxy", "--disable-content-trust", "--quiet", "--tty", "--interactive", "--detach", "--replace", "--help",
    "-d", "-i", "-t", "-P", "-q", "--rmi", "--no-hosts", "--env-host", "--tls-verify",
))
# fmt: on
_OF_EXEC: Final = frozenset(
    (
        "-u",
        "--user",
        "-w",
        "--workdir",
        "--env-file",
        "--detach-keys",
        "-f",
        "--file",
        "-p",
        "--project-name",
        "--profile",
        "--project-directory",
        "--name",
        "--entrypoint",
        "-v",
        "--volume",
        "-l",
        "--label",
        "--index",
        "--publish",
        "--ansi",
        "--progress",
        "--parallel",
        "--cap-add",
        "--cap-drop",
    )
)
"""Options of ``exec`` and ``compose`` that take a value."""
_IMAGE: Final = re.compile(r"[\w.-]+(?::\d+)?(?:/[\w.-]+)*(?:/[\w.-]+|:[\w.${}-]+)(?:@sha256:\w+)?")
_BUNDLE: Final = re.compile(r"-[ditPq]+(?P<last>[a-zA-Z])(?P<rest>.*)", re.DOTALL)
_DEVICE: Final = re.compile(r"nvidia\.com/gpu=(\w+)")
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
        return behind_compose(words[at:], context, depth)
    if words[at].text not in ("run", "create"):
        return []
    run = _Run()
    at += 1
    at = _behind_unknown(words, at)
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "--":
        at = _behind_unknown(words, _option(words, at, run, env, context))
    if at < len(words) and words[at].text == "--":
        at += 1
    if at >= len(words):
        return []
    image, args = words[at], words[at + 1 :]
    command: Sequence[FileWord] = () if run.entrypoint is None else (run.entrypoint,)
    if run.entrypoint is not None and not run.entrypoint.text:
        # An empty one clears the image's: the words are the command.
        command, args = args, ()
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


def _behind_unknown(words: Sequence[FileWord], at: int) -> int:
    """Index behind words of which nobody knows what they are (``$DOCKER_OPTS``) in front of options or an image."""
    while at + 1 < len(words) and words[at].text in words[at].open:
        following = words[at + 1].text
        if not (following.startswith("-") or is_vllm_image(following) or _IMAGE.fullmatch(following)):
            break
        if following.startswith("-") and "image" in words[at].text.lower():
            break
        at += 1
    return at


def behind_compose(words: Sequence[FileWord], context: Context, depth: int) -> list[Server]:
    """``exec NAME vllm serve ...``, ``compose run SERVICE vllm serve ...``: what runs in a container that is there."""
    from dsv4check.launchfiles.argv import servers_of_argv

    env: dict[str, Stated] = {}
    at, name = 1, words[0].text
    while at < len(words) and (words[at].text.startswith("-") or name.endswith("compose")):
        text = words[at].text
        if not text.startswith("-"):
            if text not in ("run", "exec"):
                return []
            name = text
            at += 1
        elif text in ("-e", "--env") and at + 1 < len(words):
            key, equals, value = words[at + 1].text.partition("=")
            if equals:
                env[key] = Stated(value, words[at + 1].span)
            at += 2
        else:
            takes = text in _OF_EXEC and "=" not in text
            at += 2 if takes else 1
    return servers_of_argv(words[at + 1 :], env, context, depth=depth + 1)


def _option(words: Sequence[FileWord], at: int, run: _Run, env: Mapping[str, Stated], context: Context) -> int:
    """Read one option; returns the index behind it and its value."""
    word = words[at]
    name, equals, _value = word.text.partition("=")
    if name in _WITHOUT_VALUE or _SHORT_FLAGS.fullmatch(word.text):
        return at + 1
    if name.startswith("--") and equals:
        _apply(name, _part(word, len(name) + 1), run, env, context)
        return at + 1
    if (bundle := _BUNDLE.fullmatch(word.text)) is not None:
        # -itv /host:/there
        if bundle["rest"]:
            _apply("-" + bundle["last"], _part(word, bundle.start("rest")), run, env, context)
        elif at + 1 < len(words):
            _apply("-" + bundle["last"], words[at + 1], run, env, context)
        return at + 1 if bundle["rest"] else at + 2
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
        case "--device" if (device := _DEVICE.fullmatch(value.text)) is not None:
            # One each: `all`, or one that is counted with those before it.
            earlier = run.gpus.value.removeprefix("device=") if run.gpus is not None else ""
            if device[1] == "all":
                run.gpus = Stated("all", value.span)
            elif earlier != "all":
                run.gpus = Stated("device=" + ",".join(filter(None, (earlier, device[1]))), value.span)
        case "--entrypoint":
            run.entrypoint = value
        case _:
            return
