"""The words for what changed from one release to the next."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.learning.changes import describe
from dsv4check.learning.repository import Learned


def sections(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return describe(Learned("1.0.0", old), Learned("1.1.0", new))


def flags(old: dict[str, Any], new: dict[str, Any], part: str = "flags") -> list[str]:
    return describe(Learned("1.0.0", {}, {part: old}), Learned("1.1.0", {}, {part: new}))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            {"kv_cache": {"choices": ["auto", "fp8_inc"]}},
            {"kv_cache": {"choices": ["auto", "nvfp4_ds_mla"]}},
            ["kv_cache.choices: new nvfp4_ds_mla; gone fp8_inc"],
        ),
        (
            {"runner": {"env": "flag", "gone": 1}},
            {"runner": {"env": "tristate", "fresh": [1]}},
            ["runner.env: flag -> tristate", "runner.fresh: new, [1]", "runner.gone: gone, was 1"],
        ),
        ({"a": {"x": [1, 2]}}, {"a": {"x": [2, 1]}}, ["a.x: another order or number of the same values"]),
        ({"a": {"x": {"y": None}}}, {"a": {"x": {"y": {"z": 1}}}}, ['a.x.y: null -> {"z": 1}']),
        ({"a": {}}, {"b": {}}, ["a: section gone", "b: new section"]),
        ({"a": {"x": "same"}}, {"a": {"x": "same"}}, []),
        ({"a": {"x": "alpha beta"}}, {"a": {"x": "alpha delta gamma"}}, ["a.x: new delta, gamma; gone beta"]),
        ({"a": {"x": "not in order"}}, {"a": {"x": "any order"}}, ["a.x: not in order -> any order"]),
        ({"a": {"x": ""}}, {"a": {"x": "y" * 200}}, ["a.x:  -> " + "y" * 160 + " ..."]),
        (
            {"env": {"known": "A B", "int": "A", "choices": {"B": {"exact": True, "values": ["x"]}}}},
            {"env": {"known": "B C", "int": "C", "choices": {"B": {"exact": True, "values": ["x", "y"]}}}},
            [
                "VLLM_C: new variable",
                "VLLM_A: variable gone",
                "env.choices.B.values: new y",
                "env.int: new C; gone A",
            ],
        ),
        (
            {"pins": {"packages": {"torch": "==2.13", "flashinfer-python": "==0.7.0"}, "requires_python": ">=3.10"}},
            {"pins": {"packages": {"torch": "==2.13", "flashinfer-python": "==0.7.2"}, "extras": {"b12x": "==1"}}},
            [
                "pins: flashinfer-python ==0.7.0 -> ==0.7.2",
                "pins: b12x not pinned -> ==1",
                "pins.requires_python: gone, was >=3.10",
            ],
        ),
    ],
)
def test_sections(old: dict[str, Any], new: dict[str, Any], words: list[str]) -> None:
    assert sections(old, new) == words


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({}, {"foo": {"o": ["--foo"], "k": "int", "df": 3}}, ["flag --foo: new, type int, default 3"]),
        ({}, {"f": {"o": ["-f", "--foo"], "c": ["a", "b"]}}, ['flag --foo: new, choices ["a", "b"], no default']),
        ({}, {"f": {"o": ["--f"], "a": "bool", "df": False}}, ["flag --f: new, a switch, default false"]),
        ({"foo": {"o": ["--foo"]}}, {}, ["flag --foo: gone"]),
        (
            {"foo": {"o": ["--foo"], "df": 1, "c": [1, 2]}},
            {"foo": {"o": ["--foo", "--old-foo"], "s": ["--foo"], "neg": ["--old-foo"], "c": [1, 3]}},
            [
                "flag --foo: choices: new 3; gone 2",
                "flag --foo: default 1 -> none",
                "flag --foo: spellings: new --old-foo",
            ],
        ),
    ],
)
def test_flags(old: dict[str, Any], new: dict[str, Any], words: list[str]) -> None:
    assert flags(old, new) == words


def test_config_classes() -> None:
    old = {"Gone": {"f": {}}, "A": {"f": {"x": {"t": "int", "df": 1}, "y": {"t": "bool"}}}}
    new = {"New": {"f": {"k": {"t": "str"}}}, "A": {"f": {"x": {"t": "int", "df": 2, "b": "lower"}, "z": {"t": "str"}}}}
    new["A"]["after"] = ["kv_role"]  # type: ignore[assignment]
    assert flags(old, new, "configs") == [
        "config key A.x: step before the type check none -> lower",
        "config key A.x: default 1 -> 2",
        "config key A.z: new, str, default none",
        "config key A.y: gone",
        "config class A: checks: new kv_role",
        "config class Gone: gone",
        "config class New: new, keys k",
    ]


def test_enumerations() -> None:
    old = {"Backend": {"A": None, "B": None}, "Mode": {"X": 0}}
    new = {"Backend": {"A": None, "C": None}, "Mode": {"X": 1}}
    assert flags(old, new, "enums") == ["enums.Backend: new C; gone B", "enums.Mode.X: 0 -> 1"]
