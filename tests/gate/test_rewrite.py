from __future__ import annotations

import pytest

from dsv4check.deployment import Token
from dsv4check.gate.rewrite import NotPlainError, rewritten, spelled_like
from dsv4check.launchfiles.records import DERIVED, ITEM, SHELL, VALUE, FileWord
from dsv4check.launchfiles.text import Span
from dsv4check.problems import Origin


def word(text: str, at: str, slot: str = SHELL, value: str | None = None) -> FileWord:
    """The word that ``at`` spells in a text, without places of its characters."""
    start = text.index(at)
    return FileWord(at if value is None else value, Span(start, start + len(at)), slot)


def tokens(*texts: str) -> list[Token]:
    return [Token(text, Origin("flag", text)) for text in texts]


def rewrite(text: str, words: list[FileWord], after: list[str | int], **more: object) -> str:
    """``after``: a number stands for the word of that index as it is."""
    before = tokens(*(item.text for item in words))
    new = [before[item] if isinstance(item, int) else tokens(item)[0] for item in after]
    return rewritten(text, words, before, new, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "old", "new", "expected"),
    [
        ("a", "a", "b", "b"),
        ('"a"', "a", "b c", "'b c'"),
        ("'a'", "a", "$X", '"$X"'),
        ("--x=a", "--x=a", "--x=b c", "--x='b c'"),
        ("--x=a", "--x=a", "--x=", "--x="),
        ("a", "a", "it's", "'it'\"'\"'s'"),
        ("a", "a", "", "''"),
    ],
)
def test_a_word_of_shell_text(raw: str, old: str, new: str, expected: str) -> None:
    text = f"vllm serve m {raw} # {raw}"
    words = [word(text, "m "), word(text, raw, value=old)]
    assert rewrite(text, words, [0, new]) == f"vllm serve m {expected} # {raw}"


@pytest.mark.parametrize(("quoting", "expected"), [('"', "'{\\\"a\\\":1}'"), ("'", "'\\''{\"a\":1}'\\''")])
def test_a_word_inside_quotes(quoting: str, expected: str) -> None:
    text = f"bash -c {quoting}vllm serve m -x{quoting}"
    words = [word(text, "m -x")]
    assert rewrite(text, words, [0, '{"a":1}'], quoting=quoting) == text[:-1] + f" {expected}{quoting}"


@pytest.mark.parametrize(
    ("raw", "value", "bare", "expected"),
    [
        ('"8"', "4", False, '"4"'),
        ("'8'", "4", False, "'4'"),
        ("'8'", "it's", False, "'it''s'"),
        ("x", "fp8", False, "fp8"),
        ("x", "8", False, '"8"'),
        ("8", "4", True, "4"),
        ("x", "true", False, '"true"'),
        ("x", "No", False, '"No"'),
        ("x", "1e3", False, '"1e3"'),
        ("x", "0x1F", False, '"0x1F"'),
        ("x", "0o17", False, '"0o17"'),
        ("x", "1_000", False, '"1_000"'),
        ("x", "1:30", False, '"1:30"'),
        ("x", "2024-01-31", False, '"2024-01-31"'),
        ("x", "-", False, '"-"'),
        ("x", "a:", False, '"a:"'),
        ("x", "--a=b", False, "--a=b"),
        ("x", "a b", False, '"a b"'),
        ("x", "", False, '""'),
        ("x", '{"a": 1}', False, "'{\"a\": 1}'"),
        ('"x"', '{"a": "ü"}', False, '"{\\"a\\": \\"ü\\"}"'),
    ],
)
def test_quotes_of_an_item(raw: str, value: str, bare: bool, expected: str) -> None:
    assert spelled_like(raw, value, bare=bare) == expected


@pytest.mark.parametrize(
    "value", ["8", "1.5", "on", "NULL", "~", "1e3", "1_0", "0b1", "12:30:45", "2001-12-14", ".5", "a", "-x"]
)
def test_an_item_without_quotes_is_read_as_text(value: str) -> None:
    import yaml

    assert yaml.safe_load(f"- {spelled_like('x', value)}") == [value]


def test_nothing_in_front() -> None:
    text = "m"
    with pytest.raises(NotPlainError, match="nothing stands in front"):
        rewrite(text, [word(text, "m")], ["x", 0])


@pytest.mark.parametrize("slot", [VALUE, DERIVED])
def test_flags_of_a_mapping_are_not_added_to(slot: str) -> None:
    text = "a: m"
    with pytest.raises(NotPlainError, match="by hand"):
        rewrite(text, [word(text, "m", slot)], [0, "--x"])


def test_a_key_goes_with_its_value() -> None:
    text = "{model: m, backend: x, enforce: true}"
    keys = [
        word(text, "backend", VALUE, "--backend"),
        word(text, "x", VALUE),
        word(text, "enforce", VALUE, "--enforce"),
    ]
    words = [word(text, "m,"), *keys]
    assert rewrite(text, words, [0, 3]) == "{model: m, enforce: true}"
    assert rewrite(text, words, [0, 1, 2]) == "{model: m, backend: x}"


def test_a_key_whose_value_stands_elsewhere_stays() -> None:
    text = "x = 8; f(m, size=x)"
    words = [word(text, "m"), word(text, "size", VALUE, "--size"), word(text, "8", VALUE)]
    with pytest.raises(NotPlainError, match="side by side"):
        rewrite(text, words, [0])


def test_derived_words_are_not_taken_away() -> None:
    text = "model: m, enforce: true"
    with pytest.raises(NotPlainError, match="stand in a mapping"):
        rewrite(text, [word(text, "m,"), word(text, "enforce", DERIVED, "--enforce")], [0])


def test_a_derived_word_is_not_changed() -> None:
    text = "tp: $(A)$(B)"
    with pytest.raises(NotPlainError, match="not a plain word"):
        rewrite(text, [word(text, "$(A)$(B)", DERIVED, "8")], ["4"])


def test_the_only_item_of_a_list_stays() -> None:
    text = 'args: ["--x"]'
    words = [FileWord("m", Span(0, 4), ITEM), word(text, '"--x"', ITEM, "--x")]
    with pytest.raises(NotPlainError, match="stands alone"):
        rewrite(text, words, [0])


def test_words_that_lie_in_one_another_are_not_changed() -> None:
    text = "vllm serve abc"
    words = [word(text, "abc"), word(text, "b")]
    with pytest.raises(NotPlainError, match="in one another"):
        rewrite(text, words, ["x", "y"])


def test_without_a_change_the_text_stays() -> None:
    text = "vllm serve m -x"
    assert rewrite(text, [word(text, "m "), word(text, "-x")], [0, 1]) == text
