"""FlashInfer's sparse MLA: the call against FlashInfer's own checks of every version, and against vLLM's own calls."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.probe import flashinfer

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
FLASHINFER = os.environ.get("DSV4CHECK_FLASHINFER_TREES")
"""A folder with unpacked FlashInfer packages by version (``0.7.2.post1/flashinfer``)."""
CHILD = Path(__file__).with_name("flashinfer_child.py")
ROOT = Path(__file__).parents[2]

needs_flashinfer = pytest.mark.skipif(
    not (FLASHINFER and PYTHON), reason="needs DSV4CHECK_FLASHINFER_TREES and DSV4CHECK_VLLM_PYTHON"
)
needs_trees = pytest.mark.skipif(not TREES, reason="needs DSV4CHECK_VLLM_TREES")

VERSIONS = sorted(path.name for path in Path(FLASHINFER).iterdir()) if FLASHINFER else ["none"]
RELEASES = sorted(path.name for path in Path(TREES).iterdir() if (path / "vllm").is_dir()) if TREES else ["none"]


@cache
def outcomes(version: str) -> list[dict[str, Any]]:
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(PYTHON), str(CHILD), str(Path(str(FLASHINFER)) / version)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return said


def parameters(version: str) -> list[str]:
    """Of FlashInfer's function; empty where it has none."""
    tree = ast.parse((Path(str(FLASHINFER)) / version / "flashinfer/mla/_core.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == flashinfer.NAME:
            return [item.arg for item in [*node.args.args, *node.args.kwonlyargs]]
    return []


@needs_flashinfer
@pytest.mark.parametrize("version", VERSIONS)
def test_flashinfers_own_checks_take_the_call_and_its_meaning_is_the_references(version: str) -> None:
    said = outcomes(version)
    assert [(item["sm"], item["extra"]) for item in said[:-1]] == [
        (sm, extra) for sm in (10, 10, 12) for extra in ("", "main_c4", "main_c128")
    ]
    takes = parameters(version)
    for item in said[:-1]:
        if not takes:
            assert item["why"].endswith(f"has no {flashinfer.NAME}")
        elif item["sm"] == 12 and "swa_topk_lens" not in takes:
            assert "takes no swa_topk_lens" in item["why"]
        else:
            assert item["status"] == "ran", item["message"]
            # The stand-ins compute in float64 from the call's own arguments: only the output is rounded.
            assert item["error"] < 0.003, item
            assert item["size"] > 1
    if takes:
        assert said[-1]["status"] == "refused"
        assert "cannot exceed sparse_indices capacity" in said[-1]["message"]


def vllm_calls(release: str) -> list[set[str]]:
    """Keywords of each call that a release makes."""
    path = Path(str(TREES)) / release / "vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py"
    if not path.is_file():
        return []
    # ``**out_kwargs`` is the output, or the output of an epilogue that is not probed.
    return [
        {item.arg or "out" for item in node.keywords}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"flashinfer_{flashinfer.NAME}"
    ]


def pinned(release: str) -> str:
    (metadata,) = (Path(str(TREES)) / release).glob("vllm-*.dist-info/METADATA")
    found = re.search(r"^Requires-Dist: flashinfer-python==(\S+)", metadata.read_text(), re.MULTILINE)
    assert found
    return found[1]


@needs_trees
@needs_flashinfer
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_passes_the_same_arguments(release: str) -> None:
    calls = vllm_calls(release)
    if not calls:
        pytest.skip("no FlashInfer class for DeepSeek-V4 in this release")
    said = [item for item in outcomes(pinned(release))[:-1] if item["extra"] == "main_c4"]
    for item in said:
        wanted = [call for call in calls if ("swa_topk_lens" in call) == (item["sm"] == 12)]
        if "why" in item:
            # The release's own call would end in a TypeError with the FlashInfer it pins.
            assert item["sm"] == 12
            assert all(not call <= set(parameters(pinned(release))) for call in wanted)
        else:
            assert wanted or item["sm"] == 12, "a release before its class for SM 12.x"
            assert all(call == set(item["passed"]) for call in wanted), (wanted, item["passed"])


def test_parameters_by_keyword_are_found() -> None:
    def function(query: Any, /, swa: Any, *rest: Any, out: Any = None, **more: Any) -> None: ...

    assert flashinfer.accepted(function) == ["swa", "out"]


def test_without_flashinfer_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "flashinfer", None)
    monkeypatch.setitem(__import__("sys").modules, "flashinfer.decode", None)
    said = flashinfer.plan(flashinfer.Inputs(*[None] * 5), 64, (10, 0))
    assert isinstance(said, str)
    assert said.startswith("FlashInfer cannot be imported")
