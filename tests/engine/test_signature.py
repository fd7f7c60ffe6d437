from __future__ import annotations

from typing import Any

import pytest

from dsv4check.engine.signature import Signature, check_signature, compiled, signature_from_record

PLACES = ("vllm/v1/engine/core.py:run_engine_core", "vllm/models/deepseek_v4/attention.py:forward")


@pytest.mark.parametrize(
    ("item", "signature"),
    [
        ("got auto", Signature("got auto")),
        ({"text": "got auto"}, Signature("got auto")),
        ({"frame": r"mhc\.py:"}, Signature("", r"mhc\.py:")),
        ({"text": "invalid", "frame": r"mhc\.py:"}, Signature("invalid", r"mhc\.py:")),
        ({"text": None, "frame": "x"}, Signature("", "x")),
    ],
)
def test_from_a_rule_file(item: Any, signature: Signature) -> None:
    assert signature_from_record(item) == signature


@pytest.mark.parametrize("item", ["", {}, {"text": ""}, {"text": "", "frame": ""}, {"says": "x"}, 7, None, ["x"]])
def test_what_is_none(item: Any) -> None:
    with pytest.raises(ValueError, match="signature"):
        signature_from_record(item)


@pytest.mark.parametrize("signature", [Signature("(open"), Signature("fine", "[a")])
def test_a_broken_expression_is_quoted(signature: Signature) -> None:
    with pytest.raises(ValueError, match=r"\(open|\[a"):
        check_signature(signature)


def test_a_good_expression_passes() -> None:
    check_signature(Signature(r"got \w+", r"core\.py:"))


@pytest.mark.parametrize(
    ("signature", "alone", "with_frames"),
    [
        (Signature("got auto"), True, True),
        (Signature("^ValueError: got"), True, True),
        (Signature("^caused by"), True, True),
        (Signature("got fp8"), False, False),
        (Signature("got auto", r"deepseek_v4/attention\.py:forward$"), False, True),
        (Signature("got auto", r"mhc\.py:"), False, False),
        (Signature("got fp8", r"attention\.py:"), False, False),
        (Signature("", r"attention\.py:forward"), False, True),
        (Signature("", r"mhc\.py:"), False, False),
    ],
)
def test_text_and_frame(signature: Signature, alone: bool, with_frames: bool) -> None:
    said = "ValueError: got auto\ncaused by nothing"
    assert signature.matches_text(said) is alone
    assert signature.matches(said) is alone
    assert signature.matches(said, PLACES) is with_frames


def test_what_cannot_match_is_not_compiled() -> None:
    compiled.cache_clear()
    assert not Signature(r"never said \d+").matches("ValueError: got auto")
    assert compiled.cache_info().currsize == 0
    assert Signature(r"got \w+").matches("ValueError: got auto")
    assert compiled.cache_info().currsize == 1
