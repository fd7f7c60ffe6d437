from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.errors import InputError
from dsv4check.inputs.packages import normalise_name, parse_packages, pinned_versions
from dsv4check.releases.facts import load_facts


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flashinfer-python=0.6.14", ("flashinfer-python", "0.6.14")),
        ("FlashInfer_Python==0.6.15.post1", ("flashinfer-python", "0.6.15.post1")),
        (" torch = 2.11.0+cu129 ", ("torch", "2.11.0+cu129")),
        ("nvidia.cutlass__dsl===4.6.0", ("nvidia-cutlass-dsl", "4.6.0")),
    ],
)
def test_forms_of_a_stated_package(text: str, expected: tuple[str, str]) -> None:
    assert parse_packages([text]) == dict([expected])


@pytest.mark.parametrize("text", ["torch", "=1.0", "torch=", "torch>=2", "torch=abc", "a b=1", "", "torch=1;rm"])
def test_junk_is_refused_with_the_text_and_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_packages([text])
    assert repr(text) in str(caught.value)
    assert "expected" in str(caught.value)


def test_the_last_statement_of_a_package_counts() -> None:
    assert parse_packages(["torch=1.0", "Torch==2.0"]) == {"torch": "2.0"}


def test_an_object_keeps_free_text() -> None:
    assert parse_packages({"deep_gemm": "no sm120 headers", "torch": "==2.11.0"}) == {
        "deep-gemm": "no sm120 headers",
        "torch": "2.11.0",
    }


def test_a_bare_text_is_no_list() -> None:
    with pytest.raises(InputError, match="list"):
        parse_packages("torch=1.0")


def test_pins_of_a_release() -> None:
    pins = pinned_versions(load_facts("0.24.0"))
    assert pins["flashinfer-python"] == "0.6.12"
    assert "transformers" not in pins, "a range is no version"
    assert pinned_versions(load_facts("0.33.0"))["torch"] == "2.14.0"


@pytest.mark.parametrize("stated", [["torch=0." + "9" * 5000], {"torch": "9" * 5000}])
def test_absurd_numbers_are_refused(stated: dict[str, str] | list[str]) -> None:
    with pytest.raises(InputError, match="package torch: a number of a hundred digits"):
        parse_packages(stated)


@given(st.text(max_size=60))
def test_any_text_gives_a_package_or_an_input_error(text: str) -> None:
    try:
        found = parse_packages([text])
    except InputError as error:
        one_line(error)
    else:
        assert all(name == normalise_name(name) and version for name, version in found.items())
