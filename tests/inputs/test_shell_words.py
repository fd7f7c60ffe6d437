"""Words of shell text compared with what bash makes of them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsv4check.inputs.shell_values import Value, Variables, Word
from dsv4check.inputs.shell_words import Lexer, ShellTextError

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is not installed")
PIECES = st.sampled_from(
    [
        *("a", "b c", " ", "'x y'", '"p q"', "\\ q", "\\'", '"it\'s"', "${A}", '"$A"', "${B:-d}", "'$A'", '"\\$A"'),
        *("${B:-'f g'}", "$'t\\tu'", "${A:+y}", '""', "''", '"$L"', "${L}", "\u00e9", '"\\\\"', "\\\n", "${L:-z}", "#"),
    ]
)


def lex(text: str) -> list[str]:
    variables = Variables({"A": Value("1"), "L": Value("m  n")})
    return [item.text for item in Lexer(text, "x", variables) if isinstance(item, Word)]


@needs_bash
@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=6))
def test_words_are_those_of_bash(pieces: list[str]) -> None:
    text = "".join(pieces) + "\nz"
    script = f"A=1; L='m  n'; unset B; printf '<%s>\\0' k {text[:-2]}"
    done = subprocess.run(
        [str(BASH), "-c", script], capture_output=True, check=False, timeout=20, env={"LC_ALL": "C.UTF-8"}
    )
    assume(done.returncode == 0)
    assert [f"<{word}>" for word in lex(f"k {text}")[:-1]] == done.stdout.decode().split("\0")[:-1]


@needs_bash
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(PIECES, st.sampled_from(["$(", ")", "`", '"', "'", "{", "}", "${", "((", "))", "\n", ";"])),
        max_size=9,
    )
)
def test_what_bash_accepts_is_read(pieces: list[str]) -> None:
    text = "echo " + "".join(pieces) + "\n"
    done = subprocess.run([str(BASH), "-n", "-c", text], capture_output=True, check=False, timeout=20)
    assume(done.returncode == 0 and not done.stderr)
    lex(text)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a\n'b", 2, "the single quote is never closed"),
        ('"a', 1, "the double quote is never closed"),
        ("$(a", 1, "the command substitution is never closed"),
    ],
)
def test_what_is_never_closed(text: str, line: int, reason: str) -> None:
    with pytest.raises(ShellTextError) as caught:
        lex(text)
    assert (caught.value.line, caught.value.reason) == (line, reason)


def test_words_say_where_they_are_written() -> None:
    text = "k 'a b' \\\n  \"c\"d"
    found = [text[item.start : item.stop] for item in Lexer(text, "x", Variables()) if isinstance(item, Word)]
    assert found == ["k", "'a b'", '"c"d']
