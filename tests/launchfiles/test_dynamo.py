"""Dynamo's own flags, and those its operator adds."""

from __future__ import annotations

from dsv4check.launchfiles.dynamo import engine_server
from dsv4check.launchfiles.records import FileWord, Launch, Server, Stated
from dsv4check.launchfiles.text import Span

PLACE = Span(0, 1)
PROGRAM = ("python3", "-m", "dynamo.vllm")


def words(text: str, *, nodes: str = "", program: tuple[str, ...] = PROGRAM) -> tuple[list[str], list[str]]:
    server = Server(program, tuple(FileWord(word, PLACE) for word in text.split()), PLACE, "engine")
    launch = Launch("kubernetes", "x", server, nodes=Stated(nodes, PLACE) if nodes else None)
    found = engine_server(launch)
    return [word.text for word in found.words], list(found.notes)


def test_flags_of_dynamo_are_set_aside_with_their_values() -> None:
    text = "--model M --dyn-tool-call-parser deepseek_v4 --is-decode-worker --connector none nixl --kv_cache_dtype fp8"
    kept, notes = words(text)
    assert kept == ["--model", "M", "--kv_cache_dtype", "fp8"]
    assert notes[0].endswith(": --dyn-tool-call-parser, --is-decode-worker, --connector")


def test_flags_of_vllm_stay_whatever_release_has_them() -> None:
    text = "--model M --no-enable-prefix-caching --compilation-config.mode=0 -tp 8 --trust-remote-code"
    assert words(text) == (text.split(), [])


def test_several_nodes_are_joined_by_the_operator() -> None:
    kept, notes = words("--model M -tp 16", nodes="2")
    assert kept[-4:] == ["--nnodes", "2", "--node-rank", "0"]
    assert "operator" in notes[0]
    for own in ("--nnodes 2", "-dp 16", "--distributed-executor-backend ray"):
        assert words(f"--model M {own}", nodes="2")[0] == f"--model M {own}".split()
    assert words("--model M", nodes="1") == (["--model", "M"], [])


def test_other_engines_stay_as_they_are() -> None:
    assert words("--model M --what x", program=()) == (["--model", "M", "--what", "x"], [])
