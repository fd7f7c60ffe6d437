from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.errors import InputError
from dsv4check.inputs.packages import (
    effective_packages,
    normalise_name,
    off_pin,
    parse_packages,
    pinned_versions,
)
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
    packages = effective_packages({}, load_facts("0.24.0"))
    assert packages["flashinfer-python"].version == "0.6.12"
    assert packages["flashinfer-python"].origin == "pin"
    assert packages["transformers"].version is None, "a range is no version"
    assert packages["transformers"].spec == ">=5.5.3"
    assert pinned_versions(load_facts("0.33.0"))["torch"] == "2.14.0"


def test_a_stated_version_wins_and_keeps_the_pin_for_comparison() -> None:
    packages = effective_packages({"flashinfer_python": "0.6.13", "vllm-ascend": "0.28.0"}, load_facts("0.26.0"))
    assert packages["flashinfer-python"].version == "0.6.13"
    assert packages["flashinfer-python"].spec == "==0.6.14"
    assert off_pin(packages["flashinfer-python"]) is True
    assert off_pin(packages["vllm-ascend"]) is None


def test_local_labels_and_ranges_satisfy_the_pin() -> None:
    packages = effective_packages({"torch": "2.11.0+cu129", "transformers": "5.8.0"}, load_facts("0.24.0"))
    assert off_pin(packages["torch"]) is False
    assert off_pin(packages["transformers"]) is False
    assert off_pin(effective_packages({"transformers": "5.21.0"}, load_facts("0.33.0"))["transformers"]) is True


@given(st.text(max_size=60))
def test_any_text_gives_a_package_or_an_input_error(text: str) -> None:
    try:
        found = parse_packages([text])
    except InputError as error:
        one_line(error)
    else:
        assert all(name == normalise_name(name) and version for name, version in found.items())
