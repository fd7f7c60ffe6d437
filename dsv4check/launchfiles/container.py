"""What a container starts: its image's entry point, a command that replaces it, and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsv4check.deployment import Token
from dsv4check.inputs.server_program import looks_like_arguments
from dsv4check.launchfiles.argv import SHELLS, program_name, servers_of_argv
from dsv4check.launchfiles.images import starts_vllm
from dsv4check.launchfiles.records import Context, FileWord, Server, Stated
from dsv4check.launchfiles.text import Span
from dsv4check.problems import Origin


def servers_of_container(
    context: Context,
    *,
    image: Stated | None,
    command: Sequence[FileWord],
    args: Sequence[FileWord],
    env: Mapping[str, Stated],
    mounts: Mapping[str, str] | None = None,
    gpus: Stated | None = None,
    place: Span,
    depth: int = 0,
) -> list[Server]:
    """The servers of a container.

    ``command`` replaces the image's entry point (Kubernetes ``command``, ``--entrypoint``), ``args`` are its
    arguments (Kubernetes ``args``, a compose service's ``command``, the words behind the image). ``place`` is where
    the container stands. Arguments alone are read as those of ``vllm serve`` where the image is known to start
    it, or where its name speaks of vLLM and they look like such arguments.
    """
    words = (*command, *args)
    servers = servers_of_argv(words, env, context, depth=depth)
    if not servers and not command:
        implied = _implied(image, args, env, place)
        servers = [] if implied is None else [implied]
    elif servers and not command and image is not None and starts_vllm(image.value) and not _is_shell(args):
        note = (
            f"{image.value} already starts `vllm serve`: these words become its arguments, unless the entry point is"
            " replaced; they were read as the command"
        )
        servers = [replace(server, notes=(*server.notes, note)) for server in servers]
    return [
        replace(
            server,
            image=server.image or image,
            mounts={**(mounts or {}), **server.mounts},
            gpus=server.gpus or gpus,
        )
        for server in servers
    ]


def _is_shell(args: Sequence[FileWord]) -> bool:
    return bool(args) and program_name(args[0].text) in SHELLS


def _implied(image: Stated | None, args: Sequence[FileWord], env: Mapping[str, Stated], place: Span) -> Server | None:
    """``vllm serve`` as the image's own entry point."""
    if image is None or not args:
        return None
    notes: tuple[str, ...] = ()
    if not starts_vllm(image.value):
        tokens = tuple(word.text for word in args)
        if "vllm" not in image.value.lower() or not _speaks_vllm(tokens):
            return None
        notes = (f"{image.value} is taken to start `vllm serve`, as its arguments are those of it",)
    elif not looks_like_arguments(tuple(_token(word) for word in args)):
        return None
    start = args[0].span if args else place
    return Server(("vllm", "serve"), tuple(args), start, "serve", env, notes=notes)


def _token(word: FileWord) -> Token:
    return Token(word.text, Origin("file", word.text))


def _speaks_vllm(texts: tuple[str, ...]) -> bool:
    """True for words with a flag that only a server of models has."""
    names = {text.partition("=")[0].replace("_", "-") for text in texts if text.startswith("-")}
    known = {"--tensor-parallel-size", "-tp", "--max-model-len", "--kv-cache-dtype", "--gpu-memory-utilization"}
    return bool(names & (known | {"--served-model-name", "--model", "--data-parallel-size", "-dp", "--tokenizer-mode"}))
