"""Finding a vLLM to rehearse with, and saying what is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dsv4check.errors import InputError
from dsv4check.rehearsal.environment import RehearsalUnavailable, child_variables, find_environment
from tests.rehearsal.fake_tree import NEEDED, beside, tree


def test_an_unpacked_tree_with_all_it_needs(tmp_path: Path) -> None:
    packages = beside(tmp_path / "packages", *NEEDED)
    found = find_environment(None, f"{tree(tmp_path / 'tree')}{os.pathsep}{packages}")
    assert (found.vllm, found.python) == ("0.29.0", sys.executable)
    assert found.package == str(tmp_path / "tree" / "vllm")


def test_the_package_folder_itself_is_taken_too(tmp_path: Path) -> None:
    packages = beside(tmp_path / "packages", *NEEDED)
    found = find_environment(None, f"{tree(tmp_path / 'tree') / 'vllm'}{os.pathsep}{packages}")
    assert found.folders[0] == str(tmp_path / "tree")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = tree(tmp_path / "tree")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RehearsalUnavailable, match="lacks torch, transformers, pydantic, numpy, triton"):
        find_environment(str(tmp_path / "python"), str(folder))
    with pytest.raises(RehearsalUnavailable, match="has no vllm"):
        find_environment(str(tmp_path / "python"), None)


def test_an_interpreter_that_does_not_speak(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho no\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RehearsalUnavailable, match="does not run"):
        find_environment(str(tmp_path / "python"), None)


@pytest.mark.parametrize(
    ("python", "path", "said"),
    [("/no/python", None, "--python /no/python"), (None, "/no/tree", "no such folder"), (None, ".", "package vllm")],
)
def test_wrong_paths_are_unusable_input(python: str | None, path: str | None, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        find_environment(python, str(tmp_path) if path == "." else path)


def test_the_child_gets_no_tokens_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://x")
    packages = beside(tmp_path / "packages", *NEEDED)
    found = find_environment(None, f"{tree(tmp_path / 'tree')}{os.pathsep}{packages}")
    variables = child_variables(found, tmp_path)
    assert "hf_secret" not in variables.values()
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert all(str(tmp_path) in variables[name] for name in ("HOME", "VLLM_CACHE_ROOT", "HF_HOME", "TRITON_CACHE_DIR"))
