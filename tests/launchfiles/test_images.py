"""What an image's name says."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.images import holds_a_release, is_vllm_image, release_of_image, split_image


@pytest.mark.parametrize(
    ("reference", "official", "release"),
    [
        ("vllm/vllm-openai:v0.24.0", True, "vllm/vllm-openai:v0.24.0"),
        ("r.example:5000/m/vllm-openai:v0.24.0@sha256:ab", True, "r.example:5000/m/vllm-openai:v0.24.0"),
        ("docker://vllm/vllm-openai:nightly", True, "vllm/vllm-openai:nightly"),
        ("vllm/vllm-openai:mine", True, None),
        ("vllm/vllm-openai", True, None),
        ("lmcache/vllm-openai:v0.3.1", False, None),
        ("me/vllm:0.24.0", False, None),
    ],
)
def test_releases(reference: str, official: bool, release: str | None) -> None:
    assert is_vllm_image(reference) is official
    assert release_of_image(reference) == release


def test_parts() -> None:
    assert split_image("r:5000/a/b") == ("r:5000/a/b", "")
    assert split_image("r:5000/a/b:t@sha256:x") == ("r:5000/a/b", "t")
    assert holds_a_release("lmcache/vllm-openai:v0.3.1")
    assert not holds_a_release("me/vllm:1")
