"""Flag tables: equal to the shipped ones (checked for two releases; `learn_release.py --check` does it for any), and
made of what a parser holds.
"""

from __future__ import annotations

import argparse
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from dsv4check.data import rules_dir
from dsv4check.learning.children import flags as child
from dsv4check.learning.flags import build_table, learn_flags
from dsv4check.learning.release import open_release
from dsv4check.learning.source import LearningError
from dsv4check.learning.write import flags_text
from dsv4check.releases.facts import known_releases
from tests.rehearsal.live import live_environment, needs_vllm

RELEASES = known_releases()


@needs_vllm
@pytest.mark.parametrize("version", [RELEASES[0], RELEASES[-1]])
def test_shipped(version: str) -> None:
    environment_of_release = live_environment(version)
    if environment_of_release is None:
        pytest.skip(f"vLLM {version} is not there (see tests/rehearsal/live.py)")
    shipped = (rules_dir() / "releases" / "flags" / f"{version}.json").read_text()
    assert flags_text(learn_flags(open_release(environment_of_release))) == shipped


def flag(name: str, **given: Any) -> dict[str, Any]:
    described = {"dest": name.strip("-").replace("-", "_"), "options": [name], "shown": [name], "nargs": None}
    described |= {"action": "_StoreAction", "negative": [], "kind": None, "choices": None, "const": None}
    return {**described, "default": None, **given}


def field(shape: Any, **given: Any) -> dict[str, Any]:
    return {"shape": shape, "bounds": {}, "metadata": [], "default": None, "required": False, **given}


def raw(*flags: dict[str, Any], **classes: Any) -> dict[str, Any]:
    return {"flags": list(flags), "classes": classes, "enums": {}, "kinds": [], "quant": None}


def config(fields: dict[str, Any], *validators: dict[str, Any], checks: Sequence[str] = ()) -> dict[str, Any]:
    return {"fields": fields, "validators": list(validators), "checks": list(checks)}


def validator(name: str, *fields: str, source: str = "def check(cls, value):\n    return value\n") -> dict[str, Any]:
    return {"name": name, "fields": list(fields), "mode": "before", "source": source}


def test_flags_without_their_usual_values() -> None:
    switch = flag("--eager", action="BooleanOptionalAction", nargs=0, default=False)
    switch["options"] = switch["shown"] = ["--eager", "--no-eager"]
    table = build_table(
        "9.9.9",
        raw(
            flag("model_tag", nargs="?"),
            flag("--size", kind="int", default=3, choices=[3, 4]),
            flag("--names", kind="opt:loads", nargs="?", const="x", default={}),
            switch,
        ),
    )
    assert table["flags"] == {
        "size": {"o": ["--size"], "k": "int", "c": [3, 4], "df": 3},
        "names": {"o": ["--names"], "n": "?", "k": "opt:loads", "cv": "x"},
        "eager": {"o": ["--eager", "--no-eager"], "a": "bool", "neg": ["--no-eager"], "df": False},
    }
    assert "quant" not in table


def test_validators_become_steps() -> None:
    attention = config(
        {"backend": field(["u", "enum:AttentionBackendEnum", "none"]), "flag": field("bool", default=True)},
        validator(
            "validate_backend_before", "backend", source='def check(v):\n    return None if v == "auto" else v\n'
        ),
        validator("_skip_none_validation", "flag"),
    )
    kernels = config({"moe_backend": field("str", required=True)}, validator("_normalize_moe_backend", "moe_backend"))
    order = config({"a": field(["l", "str"], bounds={"minlen": 1})}, validator("_to_list_str", "*"))
    quant = config({"weight": field("any", metadata=["GetPydanticSchema"])})
    answer = raw(AttentionConfig=attention, KernelConfig=kernels, Order=order, QuantSpec=quant, Other=None)
    answer["enums"] = {"AttentionBackendEnum": {"A": "path"}, "Mode": {"NONE": 0}}
    table = build_table("9.9.9", answer)
    assert table["configs"] == {
        "AttentionConfig": {
            "f": {
                "backend": {"t": ["u", "enum:AttentionBackendEnum", "none"], "b": "enum_auto"},
                "flag": {"t": "bool", "nn": 1, "df": True},
            }
        },
        "KernelConfig": {"f": {"moe_backend": {"t": "str", "b": "lower", "req": 1}}},
        "Order": {"f": {"a": {"t": ["l", "str"], "minlen": 1, "b": "split"}}},
        "QuantSpec": {"f": {"weight": {"t": "any", "b": "quant_key"}}},
    }
    assert table["enums"] == {"AttentionBackendEnum": {"A": None}, "Mode": {"NONE": 0}}


def test_messages_become_checks() -> None:
    source = """
        def check(self):
            if self.role is None:
                raise ValueError(f"Unsupported kv_role: {self.role}. Supported are x")
            assert self.fine, (
                "log_balancedness_interval must be greater than 0."
            )
    """
    table = build_table("9.9.9", raw(A=config({}, checks=[source]), B=config({}, checks=["def check(self): ..."])))
    assert table["configs"] == {"A": {"f": {}, "after": ["eplb_log_interval", "kv_role"]}, "B": {"f": {}}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raw(flag("--a", action="_CountAction")), "--a: the parser's action _CountAction is not known"),
        (raw(flag("--a", kind="opt:parse_size")), "--a: the parser's converter opt:parse_size is not known"),
        (raw(flag("--a"), flag("--a")), "two flags of the parser store to a"),
        (raw(A=config({}, validator("validate_new", "x"))), r"A.validate_new: no step stands .* \['x'\]"),
        (raw(A=config({}, checks=['def f(self):\n    raise ValueError("a new rule")'])), "A: no check .* 'a new rule'"),
        (raw(A=config({"x": field("int", metadata=["MultipleOf"])})), "A.x: the annotation MultipleOf is not known"),
    ],
)
def test_what_has_no_counterpart(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(LearningError, match=message):
        build_table("9.9.9", answer)


# -- the child, on a parser of our own ---------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = object()
    SAME = 1  # noqa: PIE796


@dataclass
class Inner:
    size: int = 1


@pytest.mark.parametrize(
    ("annotation", "shape"),
    [
        (int, "int"),
        (Any, "any"),
        (Optional[int], ["u", "int", "none"]),  # noqa: UP045
        (int | str | None, ["u", "int", "str", "none"]),
        (Annotated[str, "x"], "str"),
        (Literal["a", 2], ["lit", "a", 2]),
        (Sequence[str], ["l", "str"]),
        (set[int], ["s", "int"]),
        (tuple[int, ...], ["t", "int", "..."]),
        (Mapping[str, float], ["d", "str", "float"]),
        (dict, ["d", "any", "any"]),
        (list, ["l", "any"]),
        (Colour, "enum:Colour"),
        (Inner | None, ["u", "dc:Inner", "none"]),
        (type[int], "any"),
        (Path, "Path"),
    ],
)
def test_shapes(annotation: Any, shape: Any) -> None:
    classes: dict[str, Any] = {}
    enums: dict[str, Any] = {}
    assert child._shape(annotation, classes, enums) == shape
    assert classes == ({"Inner": Inner} if "Inner" in json.dumps(shape) else {})
    assert enums == ({"Colour": {"RED": 1, "BLUE": None, "SAME": 1}} if shape == "enum:Colour" else {})


def optional_type(return_type: Any) -> Any:
    def convert(text: str) -> Any:
        return return_type(text)

    return convert


def parse_dataclass(text: str, cls: Any = Inner) -> Any:
    return cls(text)


def test_a_parser_as_data() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", "-s", type=optional_type(int), default={2, 1}, choices=(1, 2))
    parser.add_argument("--inner", type=parse_dataclass, default=Colour.RED)
    parser.add_argument("--ids", type=lambda text: [int(x) if x.isdigit() else x for x in text.split(",")])
    parser.add_argument("--lower", type=lambda text: text.lower(), default=Inner())
    parser.add_argument("--odd", type=lambda text: text.strip(), default=argparse.SUPPRESS)
    classes: dict[str, Any] = {}
    found = {item["dest"]: item for item in (child._action(action, parser, classes) for action in parser._actions)}
    assert [found[name]["kind"] for name in ("size", "inner", "ids", "lower", "odd")] == [
        "opt:int",
        "dc:Inner",
        "device_ids",
        "lower",
        "lambda of strip",
    ]
    assert found["size"]["options"] == ["--size", "-s"]
    assert found["size"]["default"] == ["1", "2"]
    assert found["size"]["choices"] == [1, 2]
    assert (found["inner"]["default"], found["lower"]["default"], found["odd"]["default"]) == ("RED", None, None)
    assert classes == {"Inner": Inner}
