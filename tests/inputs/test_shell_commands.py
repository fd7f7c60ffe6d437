"""What a script's variables hold where its branches meet."""

from __future__ import annotations

import pytest

from dsv4check.inputs.shell_commands import Script, simple_commands
from dsv4check.inputs.shell_words import Lexer


def last(text: str) -> list[str]:
    """The words of the last command."""
    script = Script()
    return [[word.text for word in item.words] for item in simple_commands(Lexer(text, "x", script.variables), script)][
        -1
    ]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ('if [ "$1" = x ]; then A=1; else A=1; fi', "1"),
        ('if [ "$1" = x ]; then A=1; else A=2; fi', "$A"),
        ("X=1; if [ $X = 2 ]; then A=1; elif [ $X -eq 1 ]; then A=2; else A=3; fi", "2"),
        ("A=0; if [[ -n $Q ]]; then A=1; fi", "$A"),
        ("A=0; if [[ -z 1 ]]; then A=1; fi", "0"),
        ("if test 3 -lt 4; then A=1; fi", "1"),
        ("X=b; case $X in a|b) A=1;; *) A=2;; esac", "1"),
        ("case $X in\na)\nA=1;;\n*)\nA=2\nesac", "$A"),
        ("case $X in a) A=1;; *) A=1;; esac", "1"),
        ('A=x; [ -z "$A" ] || A=y', "y"),
        ('A=x; [ -z "$A" ] && A=y', "x"),
        ('A=x; [ -z "$Q" ] && A=y', "$A"),
        ("A=x; false || true && A=z", "z"),
        ("A=1; (A=2)", "1"),
        ("A=1; { A=2; }", "2"),
        ("f() { A=1; local B=2; }; f", "1"),
        ("f() { A=1; }", "$A"),
        ("A=1; for A in 2 3; do :; done", "$A"),
        ("A=1; while read -r A; do :; done", "$A"),
        ("A=1; ((A++))", "$A"),
        ("A=1; printf -v A %s 2", "$A"),
        ("A=1; unset A", "$A"),
        ("A=1; A+=2", "12"),
        ("if ! foo; then A=1; fi", "$A"),
        ("if true; then if $Q; then A=1; fi; fi", "$A"),
    ],
)
def test_values_after_branches(before: str, value: str) -> None:
    assert last(f"{before}\necho $A") == ["echo", value]


def test_words_that_are_only_added_leave_the_others_known() -> None:
    text = 'A=(x)\nif [ -n "$Q" ]; then A+=(y); else A+=(z); fi\nA+=(w)\necho "${A[@]}"'
    assert last(text) == ["echo", "x", "${A[@]}", "w"]
    assert last('A=(x)\nif [ -n "$Q" ]; then A=(y); fi\necho "${A[@]}"') == ["echo", "${A[@]}"]
    assert last("if true; then A=(1); else A=(2); fi; echo ${A[@]} ${A[0]}") == ["echo", "1", "1"]
