"""Regions of a file for what the checker says about a value's origin."""

from __future__ import annotations

from dsv4check.gate.places import Places, masked_words, origin_of, region_of
from dsv4check.gate.records import Region
from dsv4check.launchfiles.records import SHELL, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.text import SourceText, Span
from dsv4check.problems import Origin
from tests.gate.fixing import MODEL, checked, result

TEXT = "set -e\nA='x' vllm serve m \\\n  --api-key secret \\\n  --größe 'ä b' # c\n"
SOURCE = SourceText("run.sh", TEXT)


def span(text: str) -> Span:
    start = TEXT.index(text)
    return Span(start, start + len(text))


WORDS = (
    FileWord("m", span("m \\"), SHELL),
    FileWord("--api-key", span("--api-key"), SHELL),
    FileWord("secret", span("secret"), SHELL),
    FileWord("--größe", span("--größe"), SHELL),
    FileWord("ä b", span("'ä b'"), SHELL),
)
SERVER = Server(
    ("vllm", "serve"), WORDS, span("vllm"), env={"A": Stated("x", span("'x'")), "B": Stated("", Span(3, 3))}
)
PLACES = Places(SOURCE, Launch("shell", "line 2", SERVER), {2: "***"})
START = Region(2, 7, 2, 11, "")


def test_the_start_of_the_launch() -> None:
    assert PLACES.start == START
    assert PLACES.region(None) == START


def test_a_word_with_its_quotes_in_characters() -> None:
    assert PLACES.region(origin_of(WORDS[4], 4)) == Region(4, 11, 4, 16, "ä b")
    assert PLACES.region(origin_of(WORDS[3], 3)) == Region(4, 3, 4, 10, "--größe")


def test_a_secret_is_masked() -> None:
    assert PLACES.region(origin_of(WORDS[2], 2)) == Region(3, 13, 3, 19, "***")


def test_a_variable() -> None:
    assert PLACES.region(Origin("env", "A")) == Region(2, 3, 2, 6, "A")


def test_what_has_no_place_belongs_to_the_launch() -> None:
    for origin in (
        Origin("env", "B"),
        Origin("env", "C"),
        Origin("file", "--x", 1, 1),
        Origin("word", "--x"),
        Origin("word", "--x", 99),
        Origin("flag", "--x"),
        Origin("default", "0.24.0"),
        Origin("yaml", "c.yaml", 2, 1),
        Origin("option", "--vllm"),
    ):
        assert PLACES.region(origin) == START, origin


def test_a_key_of_a_config_file() -> None:
    source = SourceText("c.yaml", "model: m\r\n  block-size: 128  \n")
    launch = Launch("vllm-config", "c.yaml", Server((), (), Span(0, 5)), config_file="c.yaml")
    places = Places(source, launch, {})
    assert places.region(Origin("yaml", "c.yaml", 2, 3)) == Region(2, 3, 2, 18, "block-size")
    assert places.region(Origin("yaml", "c.yaml", 1, 1)) == Region(1, 1, 1, 9, "model")


def test_a_range_of_several_lines() -> None:
    whole = Span(0, len(TEXT))
    assert region_of(SOURCE, whole) == Region(1, 1, 1, 7, "")
    assert region_of(SOURCE, whole, "word") == Region(1, 1, 5, 1, "word")
    assert region_of(SourceText("x", "abc"), Span(0, 3)) == Region(1, 1, 1, 4, "")


def test_masked_words() -> None:
    assert masked_words(("a", "b", "c"), ("a", "***", "c")) == {1: "***"}


def test_findings_stand_at_their_words() -> None:
    text = f"# ü\nvllm serve {MODEL} -tp 8 \\\n  --kv-cache-dtype 'bfloat16'\n"
    region = result(text).findings[0].region
    line = text.split("\n")[region.line - 1]
    assert line[region.column - 1 : region.end_column - 1] in ("--kv-cache-dtype", "'bfloat16'")
    for judged in checked(text).judged:
        for finding in judged.result.findings:
            assert finding.region.line <= finding.region.end_line <= 4
