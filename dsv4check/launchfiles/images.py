"""Container images: which of them hold a vLLM release, and what they start.

The images of the vLLM project run ``vllm serve`` as their entry point (docker/Dockerfile of the releases 0.20.0 and
later) and carry the release in their tag. The tags of other images count something else: Dynamo's runtime, llm-d's and
NVIDIA's images have version numbers of their own, and a private build may hold anything.
"""

from __future__ import annotations

import re
from typing import Final

_OFFICIAL: Final = re.compile(r"(?:^|/)vllm-openai(?:-[a-z0-9]+)*$")
_RELEASE_TAG: Final = re.compile(r"^v?\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*(?:[-_+].*)?$")
_MOVING_TAG: Final = re.compile(r"^(?:latest|nightly)(?:-(?:cu\d+|x86_64|aarch64|arm64|amd64|ubuntu\d+))*$")
_OTHERS: Final = ("lmcache/", "llm-d/", "ai-dynamo/")
"""Owners of images that are called like vLLM's and count their own versions."""
_BUILT_ON_RELEASES: Final = ("lmcache/vllm-openai", "ai-dynamo/vllm-runtime", "rayproject/ray-llm")


def split_image(reference: str) -> tuple[str, str]:
    """Repository and tag of an image reference; the digest is left out, the tag empty without one."""
    bare = reference.strip().removeprefix("docker://").partition("@")[0]
    head, slash, last = bare.rpartition("/")
    name, _colon, tag = last.partition(":")
    return head + slash + name, tag


def is_vllm_image(reference: str) -> bool:
    """True for an image of the vLLM project, or a mirror of one (``registry.example/mirror/vllm-openai:v0.24.0``)."""
    repository, _tag = split_image(reference)
    return bool(_OFFICIAL.search(repository)) and not any(owner in f"{repository}/" for owner in _OTHERS)


def release_of_image(reference: str) -> str | None:
    """The reference, where vLLM's version can be told from its tag; None for others."""
    _repository, tag = split_image(reference)
    if is_vllm_image(reference) and (_RELEASE_TAG.match(tag) or _MOVING_TAG.match(tag)):
        return reference.strip().removeprefix("docker://").partition("@")[0]
    return None


def holds_a_release(reference: str) -> bool:
    """True for an image that is known to hold some unchanged release of vLLM, whichever it is.

    Other tags of the project's own images (``nightly-dev-...-426e59f``, ``dsv4-megamoe-...``) are builds of some
    commit, with code that no release has.
    """
    repository, tag = split_image(reference)
    if any(part in f"{repository}/" for part in _BUILT_ON_RELEASES):
        return True
    return is_vllm_image(reference) and (not tag or "$" in tag or "{" in tag)


def starts_vllm(reference: str) -> bool:
    """True where ``vllm serve`` is known to be the image's entry point."""
    return is_vllm_image(reference)
