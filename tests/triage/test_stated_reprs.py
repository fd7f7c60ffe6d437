from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.triage.reprs import Member, Opaque, Record, read_fields, read_repr

_LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(_LITERALS)
def test_literals_come_back(value: object) -> None:
    reading = read_repr(repr(value))
    assert not reading.cut
    assert reading.value == value
    assert reading.stop == len(repr(value))


@given(_LITERALS, st.integers(0, 200))
def test_a_cut_literal_is_never_taken_for_a_whole_one(value: object, at: int) -> None:
    text = repr([value, value])
    cut = text[: min(at, len(text) - 1)]
    assert read_repr(cut).cut


@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    read_repr(text)
    read_fields(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<CUDAGraphMode.FULL: 2>", Member("CUDAGraphMode", "FULL", 2)),
        ("<A.B: 'x.y.Z'>", Member("A", "B", "x.y.Z")),
        ("torch.bfloat16", Opaque("torch.bfloat16")),
        ("<function f at 0x7f>", Opaque("<function f at 0x7f>")),
        ("PosixPath('/x')", "/x"),
        ("inf", float("inf")),
        ("K(a=1, b=L(c=[None]))", Record("K", {"a": 1, "b": Record("L", {"c": [None]})})),
        ("{'a', 'b'}", ["a", "b"]),
        ("(2, 1)", [2, 1]),
        ("'it\\'s'", "it's"),
    ],
)
def test_what_is_no_literal(text: str, value: object) -> None:
    reading = read_repr(text)
    assert (reading.value, reading.cut) == (value, False)


def test_a_summary_without_quotes_is_read() -> None:
    values, cut = read_fields(
        "model='m', speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=1), tokenizer_mode=auto, "
        "dtype=torch.bfloat16, max_seq_len=4096, served_model_name=/a, b, enforce_eager=False, cc={'a': 1"
    )
    assert cut
    assert values["dtype"] == "torch.bfloat16"
    assert values["max_seq_len"] == 4096
    assert values["served_model_name"] == "/a, b"
    assert values["enforce_eager"] is False
    assert values["cc"] == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "{'a': " * 10**5,
        "K(a=" * 10**5,
        "'" + "x" * 10**6,
        "<" * 10**6,
        "<A.B: " * 10**5,
        "1" * 10**6,
        "ab=1, " * 10**5,
        "{" + "'a': 1, " * 10**5,
        "'\\" * 10**5,
        "A." * 10**6,
    ],
    ids=lambda text: text[:8],
)
def test_hostile_texts_are_read_in_time(text: str) -> None:
    begin = time.process_time()
    read_repr(text)
    read_fields(text)
    assert time.process_time() - begin < 3
