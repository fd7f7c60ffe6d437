"""A text that a regular expression finds: the samples of signatures whose rule has no literal error."""

from __future__ import annotations

import random
import re
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

TRIES = 60
WORDS = ("value", "layers", "fp8", "attention", "config")
CATEGORIES: dict[Any, str] = {
    op.CATEGORY_DIGIT: "8",
    op.CATEGORY_WORD: "v",
    op.CATEGORY_SPACE: " ",
    op.CATEGORY_NOT_SPACE: "x",
    op.CATEGORY_NOT_DIGIT: "x",
    op.CATEGORY_NOT_WORD: "-",
}


def text_for(expression: str, seed: int = 0) -> str | None:
    """A short text in which ``re.search`` with MULTILINE finds the expression; None where no try gave one."""
    tree = _parser.parse(expression, re.MULTILINE)
    pattern = re.compile(expression, re.MULTILINE)
    for number in range(TRIES):
        choice = random.Random(f"{expression}|{seed}|{number}")
        text = "".join(parts(tree, choice, {}))
        if pattern.search(text):
            return text
    return None


def parts(tree: Any, choice: random.Random, groups: dict[int, str]) -> list[str]:
    written: list[str] = []
    for operation, argument in tree:
        written.append(one(operation, argument, choice, groups, "".join(written)))
    return written


def one(operation: Any, argument: Any, choice: random.Random, groups: dict[int, str], before: str) -> str:
    if operation is op.LITERAL:
        return chr(argument)
    if operation is op.NOT_LITERAL:
        return "x" if argument != ord("x") else "y"
    if operation is op.ANY:
        return choice.choice("xy ")
    if operation is op.IN:
        return member(argument, choice)
    if operation is op.BRANCH:
        return "".join(parts(choice.choice(argument[1]), choice, groups))
    if operation is op.SUBPATTERN:
        text = "".join(parts(argument[3], choice, groups))
        if argument[0] is not None:
            groups[argument[0]] = text
        return text
    if operation is op.GROUPREF:
        return groups.get(argument, "")
    if operation in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return repeated(argument, choice, groups)
    if operation is op.AT:
        return "\n" if argument in (op.AT_BEGINNING, op.AT_END) and needs_break(argument, before) else ""
    if operation is op.ATOMIC_GROUP:
        return "".join(parts(argument, choice, groups))
    return ""


def needs_break(place: Any, before: str) -> bool:
    return place is op.AT_BEGINNING and bool(before) and not before.endswith("\n")


def repeated(argument: Any, choice: random.Random, groups: dict[int, str]) -> str:
    low, high, tree = argument
    word = choice.choice(WORDS)
    if low == 1 and len(tree) == 1 and is_word(tree[0]):
        return word
    many = low
    if low == 0 and len(tree) == 1 and tree[0][0] in (op.ANY, op.IN):
        return choice.choice(("", "", " ")) if tree[0][0] is op.ANY or spaced(tree[0]) else ""
    if low == 0 and high == 1:
        many = choice.choice((0, 1))
    return "".join("".join(parts(tree, choice, groups)) for _ in range(many))


def is_word(item: Any) -> bool:
    operation, argument = item
    kinds = [entry[1] for entry in argument if entry[0] is op.CATEGORY] if operation is op.IN else []
    return op.CATEGORY_WORD in kinds or op.CATEGORY_NOT_SPACE in kinds


def spaced(item: Any) -> bool:
    """True for a class that a space belongs to."""
    return any(entry == (op.CATEGORY, op.CATEGORY_SPACE) for entry in item[1])


def member(items: Any, choice: random.Random) -> str:
    if items[0][0] is op.NEGATE:
        refused = re.compile("[" + "".join(excluded(item) for item in items[1:]) + "]")
        return next(character for character in "xa1 -.\n" if not refused.match(character))
    operation, argument = choice.choice(items)
    if operation is op.LITERAL:
        return chr(argument)
    if operation is op.RANGE:
        return chr(choice.randint(argument[0], argument[1]))
    return CATEGORIES[argument]


def excluded(item: Any) -> str:
    operation, argument = item
    if operation is op.LITERAL:
        return re.escape(chr(argument))
    if operation is op.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    return {op.CATEGORY_DIGIT: r"\d", op.CATEGORY_WORD: r"\w", op.CATEGORY_SPACE: r"\s"}.get(argument, r"\S")
