"""JSON flags whose value the parser takes and a config class refuses."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.api import check
from dsv4check.resolve.json_values import mismatch

FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8"


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ({}, "dict[str, Any]", None),
        ([1], "dict[str, Any]", ("", "dictionary")),
        (None, "dict[str, Any]", ("", "dictionary")),
        (None, "dict[str, Any] | None", None),
        ({"image": 1, "video": {"count": "2"}}, "dict[str, int | dict[str, int]] | None", None),
        ({"image": "many"}, "dict[str, int | dict[str, int]] | None", (".image", "integer")),
        ({"video": 1}, "dict[str, dict[str, Any]]", (".video", "dictionary")),
        ("cpu", "str | dict[str, str]", None),
        ({"cuda:0": 1}, "str | dict[str, str]", ("", "string")),
        ({"x": [0.5, "1", 2]}, "dict[str, list[float]]", None),
        ({"x": [0.5, "y"]}, "dict[str, list[float]]", (".x", "number")),
        ({"x": 1}, "dict[str, list[float]]", (".x", "list")),
        ("x", "dict | SupportsHash", ("", "dictionary")),
    ],
)
def test_values_against_annotations(value: Any, annotation: str, expected: tuple[str, str] | None) -> None:
    assert mismatch(value, annotation) == expected


@pytest.mark.parametrize(
    ("vllm", "flags", "rules"),
    [
        ("0.33.0", "--watermark-config '{\"key\": 1}'", []),
        ("0.33.0", "--watermark-config '{\"secret\": 1}'", ["EN026"]),
        ("0.33.0", "--diffusion-config [1]", ["EN026"]),
        ("0.20.2", "--additional-config '{\"a\": 1}'", []),
        ("0.20.2", "--additional-config null", ["EN026"]),
        ("0.20.2", "--model-loader-extra-config '{\"enable_weights_track\": true}'", ["EN027"]),
        ("0.24.0", "--model-loader-extra-config '{\"enable_weights_track\": true}'", []),
        ("0.24.0", '--model-loader-extra-config \'{"num_threads": "8"}\'', ["WT025"]),
        ("0.23.0", '--model-loader-extra-config \'{"num_threads": "8"}\'', []),
        ("0.33.0", '--default-mm-loras \'{"image": "/a"}\'', ["EN020"]),
    ],
)
def test_launches(vllm: str, flags: str, rules: list[str]) -> None:
    report = check(f"{FLASH} {flags}", gpu="H200", gpus=8, vllm=vllm, fixes=False)
    assert [finding.rule for finding in report.errors] == rules
