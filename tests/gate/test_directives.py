from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.gate.directives import parse_directives, parse_facts, parse_ignores
from dsv4check.launchfiles.text import SourceText


def source(text: str) -> SourceText:
    return SourceText("a.sh", text)


def covered(text: str) -> list[int]:
    return [item.covers for item in parse_ignores(source(text))]


@pytest.mark.parametrize(
    ("comment", "rules", "reason"),
    [
        ("# dsv4check: ignore[KV001] fixed in our image", ("KV001",), "fixed in our image"),
        ("#dsv4check:ignore[KV001]reason", ("KV001",), "reason"),
        ("##  dsv4check:  ignore [ KV001 , ME003 ]  two", ("KV001", "ME003"), "two"),
        ("# dsv4check: ignore[KV001,KV001] once", ("KV001",), "once"),
        ("# dsv4check: ignore[auto-on-packed-layout]: by name", ("auto-on-packed-layout",), "by name"),
        ("# dsv4check: ignore[KV001] -- see #12 [wiki]", ("KV001",), "see #12 [wiki]"),
        ("# dsv4check: ignore[KV001] — später", ("KV001",), "später"),
        ("# TODO # dsv4check: ignore[KV001] r", ("KV001",), "r"),
        ("# dsv4check: ignore[KV001]", ("KV001",), ""),
        ("# dsv4check: ignore[KV001] : - ", ("KV001",), ""),
        ("# dsv4check: ignore[KV001] r \r", ("KV001",), "r"),
    ],
)
def test_an_ignore(comment: str, rules: tuple[str, ...], reason: str) -> None:
    found = parse_directives(source(f"{comment}\nvllm serve x\n"))
    (item,) = found.ignores
    assert (item.rules, item.reason, item.covers) == (rules, reason, 2)
    assert not found.bad
    assert not found.facts


def test_where_a_comment_stands() -> None:
    text = "x\n  vllm serve y # note # dsv4check: ignore[KV001] r  \r\n"
    (item,) = parse_ignores(source(text))
    region = item.region
    assert (region.line, region.column, region.end_line) == (2, 23, 2)
    assert region.token == "# dsv4check: ignore[KV001] r"
    assert text.split("\n")[1][region.column - 1 : region.end_column - 1] == region.token


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb # dsv4check: ignore[A] r\nc\n", [2]),
        ("# dsv4check: ignore[A] r\nb\n", [2]),
        ("a\n  # dsv4check: ignore[A] r\n\n  # other\n\n  b\n", [6]),
        ("# dsv4check: ignore[A] r\n# dsv4check: ignore[B] s\n# dsv4check: ignore[C] t\nb\n", [4, 4, 4]),
        ("a \\\n  # dsv4check: ignore[A] r\n  --x \\\n  --y # dsv4check: ignore[B] s\n", [3, 4]),
        ("a\n# dsv4check: ignore[A] r\n\n", [0]),
        ("a # dsv4check: ignore[A] r # dsv4check: ignore[B] s\n", [1, 1]),
        ("# dsv4check: ignore[A] r\r\n\r\nb\r\n", [3]),
        ("a # dsv4check: ignore[A] r", [1]),
    ],
)
def test_the_line_that_is_covered(text: str, lines: list[int]) -> None:
    assert covered(text) == lines


def test_two_in_one_line_have_a_reason_each() -> None:
    found = parse_ignores(source("a # dsv4check: ignore[A] r # dsv4check: ignore[B] s\n"))
    assert [(item.rules, item.reason) for item in found] == [(("A",), "r"), (("B",), "s")]


@pytest.mark.parametrize(
    ("body", "rule", "why"),
    [
        ("ignor KV001", "GT004", "'ignor' is not understood; expected ignore[RULE] reason, skip reason, or KEY=VALUE"),
        ("ignore KV001 r", "GT004", "'ignore' is not understood"),
        ("ignore", "GT004", "'ignore' is not understood"),
        ("ignore[KV001 r", "GT004", "'ignore[KV001' is not understood"),
        ("ignore[] r", "GT004", "a rule is missing between the brackets; expected ignore[KV001] reason"),
        ("ignore[KV001,] r", "GT004", "a rule is missing between the brackets"),
        ("ignore[KV 001] r", "GT004", "'KV 001' is no rule"),
        ("ignore[*] r", "GT004", "'*' is no rule"),
        ("", "GT004", "nothing follows"),
        ("skip", "GT001", "skip without a reason; expected skip REASON"),
        ("skip: -", "GT001", "skip without a reason"),
        ("skipped for now", "GT004", "'skipped' is not understood"),
        ("vlm=0.25", "GT004", "unknown fact 'vlm'; did you mean 'vllm'?"),
        ("colour=red", "GT004", "unknown fact 'colour'; known: vllm, gpu, gpus, nodes, gpu-memory-gib, model"),
        ("vllm=0.25 today", "GT004", "'today' is not understood"),
        ("vllm=", "GT004", "vllm: the value is empty"),
        ('gpu=" "', "GT004", "gpu: the value is empty"),
        ('gpu="H200', "GT004", "'gpu=\"H200' is not understood"),
        ("vllm=1 vllm=2", "GT004", "vllm is stated twice"),
        ("gpus=0", "GT004", "gpus: expected a number from 1, found '0'"),
        ("gpus=eight", "GT004", "gpus: expected a number from 1, found 'eight'"),
        ("nodes=1.5", "GT004", "nodes: expected a number from 1, found '1.5'"),
        ("gpu-memory-gib=0", "GT004", "gpu-memory-gib: expected a number of GiB, found '0'"),
        ("gpu-memory-gib=nan", "GT004", "gpu-memory-gib: expected a number of GiB, found 'nan'"),
    ],
)
def test_what_cannot_be_read(body: str, rule: str, why: str) -> None:
    found = parse_directives(source(f"x\ny # dsv4check: {body}\n"))
    (bad,) = found.bad
    assert (bad.rule, bad.region.line) == (rule, 2)
    assert bad.why.startswith(why)
    assert not found.ignores
    assert not found.facts


@pytest.mark.parametrize(
    "text",
    ["dsv4check: ignor\n", "see dsv4check: x\n", "a#dsv4check: x\n", "# dsv4checks: x\n", "# Dsv4check: x\n", ""],
)
def test_what_is_no_directive(text: str) -> None:
    found = parse_directives(source(text))
    assert (found.ignores, found.facts, found.bad) == ((), (), ())


def test_facts_and_where_they_stand() -> None:
    text = "x\n# dsv4check: vllm=0.25.1 gpu=\"H200 SXM\" gpus=8 nodes=2 gpu-memory-gib=141.5 model='a/b' # pinned\ny\n"
    (item,) = parse_facts(source(text))
    assert {key: stated.value for key, stated in item.facts.items()} == {
        "vllm": "0.25.1",
        "gpu": "H200 SXM",
        "gpus": "8",
        "nodes": "2",
        "gpu-memory-gib": "141.5",
        "model": "a/b",
    }
    for stated in item.facts.values():
        assert text[stated.span.start : stated.span.stop] == stated.value
    assert (item.covers, item.whole_file, item.skip) == (3, False, "")


def test_skip() -> None:
    (item,) = parse_facts(source("x\n# dsv4check: skip: started by hand\ny\n"))
    assert (item.skip, item.facts, item.covers, item.whole_file) == ("started by hand", {}, 3, False)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("# dsv4check: gpus=8\nx\n", True),
        ("#!/bin/sh\n# about\n# dsv4check: gpus=8\n# more\n\nx\n", True),
        ("#!/bin/sh\n\n# dsv4check: gpus=8\nx\n", True),
        ("\n---\n# dsv4check: gpus=8\nx: 1\n", True),
        ("%YAML 1.2\n---\n# dsv4check: gpus=8\nx: 1\n", True),
        ("#!/bin/sh\n# about\n\n# dsv4check: gpus=8\nx\n", False),
        ("x # dsv4check: gpus=8\ny\n", False),
        ("x\n# dsv4check: gpus=8\ny\n", False),
        ("--- # dsv4check: gpus=8\nx: 1\n", False),
    ],
)
def test_the_first_block_of_comments_holds_for_the_file(text: str, whole: bool) -> None:
    (item,) = parse_facts(source(text))
    assert item.whole_file is whole


@pytest.mark.parametrize(
    "text",
    [
        "# dsv4check: ignore[A] r\n" * 60_000,
        "x\n" + "#\n" * 400_000 + "# dsv4check: gpus=8\n",
        "# dsv4check: " + "#" * 1_000_000,
        "# dsv4check: " + "gpus=1 " * 100_000,
        "# dsv4check: " + "a" * 1_000_000 + "\n# " + " " * 1_000_000,
        "# dsv4check: ignore[" + "A," * 300_000,
        "# dsv4check: x " * 50_000,
    ],
)
def test_nothing_is_slow(text: str) -> None:
    begun = time.process_time()
    parse_directives(source(text))
    assert time.process_time() - begun < 3


PIECES = st.sampled_from(
    [
        "# dsv4check:",
        "#",
        " ",
        "ignore[",
        "KV001",
        ",",
        "]",
        "skip",
        "vllm=",
        "gpus=8",
        '"',
        "'",
        "=",
        "\n",
        "\r\n",
        "x",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_never_fails_and_stays_within_the_file(text: str) -> None:
    found = parse_directives(source(text))
    count = text.count("\n") + 1
    assert parse_ignores(source(text)) == list(found.ignores)
    assert parse_facts(source(text)) == list(found.facts)
    for item in (*found.ignores, *found.facts, *found.bad):
        region = item.region
        line = text.split("\n")[region.line - 1]
        assert line[region.column - 1 : region.end_column - 1] == region.token
    for covering in (*found.ignores, *found.facts):
        assert covering.covers == 0 or covering.region.line <= covering.covers <= count
    for stated in (value for facts in found.facts for value in facts.facts.values()):
        assert text[stated.span.start : stated.span.stop] == stated.value


def test_in_python_only_comments_speak() -> None:
    text = 'TEXT = "# dsv4check: ignore[KV001] in a string"\nllm = LLM("m")  # dsv4check: ignore[KV001] a reason\n'
    assert [item.region.line for item in parse_ignores(SourceText("a.py", text))] == [2]
    # Text that is no Python is taken as it is.
    assert len(parse_ignores(SourceText("a.py", "if (\n# dsv4check: ignore[KV001] a reason\nx = 1"))) == 1
