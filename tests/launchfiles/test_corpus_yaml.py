"""Shapes of YAML as it is found in public repositories, typed anew in their smallest form."""

from __future__ import annotations

from tests.launchfiles.manifests import Manifest, texts


def test_comments_in_front_of_a_document_do_not_multiply() -> None:
    # Each line can be cut in two ways; 60 of them would take longer than anybody waits.
    comment = "#   --flag  # why ##\n" * 60
    manifest = Manifest(f"{comment}services:\n  a:\n    image: vllm/vllm-openai:v0.25.0\n    command: [org/m, -tp, '2']\n")
    assert texts(manifest.only) == ["org/m", "-tp", "2"]
