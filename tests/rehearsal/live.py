"""Where tests find releases that can be rehearsed: unpacked trees, or what ``dsv4check rehearse --provision`` built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv4check.rehearsal.environment import Environment, find_environment

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
PROVISIONED = os.environ.get("DSV4CHECK_LIVE") == "1"

needs_vllm = pytest.mark.skipif(
    not (TREES and PYTHON) and not PROVISIONED,
    reason="needs DSV4CHECK_VLLM_TREES and DSV4CHECK_VLLM_PYTHON, or DSV4CHECK_LIVE=1 (see tests/rehearsal/live.py)",
)


def live_environment(release: str) -> Environment | None:
    """The environment to rehearse a release in.

    ``DSV4CHECK_VLLM_TREES`` is a folder with unpacked releases (``0.29.0/vllm``, and beside it ``flashinfer`` where
    that release's is wanted), ``DSV4CHECK_VLLM_PYTHON`` an interpreter with CPU PyTorch and vLLM's pure-Python
    dependencies. With ``DSV4CHECK_LIVE=1`` releases that were provisioned are taken from the cache.
    """
    if TREES and PYTHON:
        tree = Path(TREES) / release
        return find_environment(PYTHON, str(tree)) if (tree / "vllm").is_dir() else None
    from dsv4check.rehearsal.provision import provisioned

    return provisioned(release) if PROVISIONED else None
