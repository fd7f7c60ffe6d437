"""Fixes found with tried values, turned back into the words of the file."""

from __future__ import annotations

import pytest

from dsv4check.deployment import Token
from dsv4check.gate.variants import restored
from dsv4check.launchfiles.records import FileWord
from dsv4check.launchfiles.text import Span
from dsv4check.problems import Origin


def tokens(text: str) -> list[Token]:
    return [Token(word, Origin("file", word, 1, number)) for number, word in enumerate(text.split(), start=1)]


@pytest.mark.parametrize(
    ("own", "variant", "edited", "expected"),
    [
        # Nothing edited: the words of the file come back.
        ("M -tp $TP", "M -tp 4", "M -tp 4", "M -tp $TP"),
        ("M $A -tp 8", "M - -tp 8", "M -tp 8", "M $A -tp 8"),
        # A value changes, what is unknown stays.
        ("M -tp $TP --d bad", "M -tp 4 --d bad", "M -tp 4 --d =good", "M -tp $TP --d good"),
        # Added flags stand in front of flags that come from elsewhere.
        ("M -tp 8 $@", "M -tp 8 -", "M -tp 8 =--d =good", "M -tp 8 --d good $@"),
        # A flag goes; the unknown word behind it does not.
        ("M --x y $A -tp $T", "M --x y - -tp 2", "M -tp 2", "M $A -tp $T"),
        # The unknown value itself is replaced.
        ("M -tp $TP", "M -tp 16", "M -tp =8", "M -tp 8"),
        ("$A M $B", "- M -", "M =--d", "$A M --d $B"),
    ],
)
def test_restored(own: str, variant: str, edited: str, expected: str) -> None:
    file_tokens = tokens(own)
    words = [None if word == "-" else FileWord(word, Span(0, 1)) for word in variant.split()]
    # Words of the edited command that begin with "=" are new.
    by_text = {
        word.text: Token(word.text, token.origin)
        for word, token in zip(words, file_tokens, strict=True)
        if word is not None
    }
    changed = [
        Token(word[1:], Origin("flag", word[1:])) if word.startswith("=") else by_text[word] for word in edited.split()
    ]
    assert [token.text for token in restored(changed, words, file_tokens)] == expected.split()
