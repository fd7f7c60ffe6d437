from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dsv4check.errors import InputError
from dsv4check.installation.locate import find_tree
from dsv4check.installation.tree import VllmTree

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def package(folder: Path, **files: str) -> Path:
    made = folder / "vllm"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for name, text in files.items():
        (made / f"{name}.py").write_text(text)
    return made


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(path: Path | str) -> VllmTree:
    tree = find_tree(str(path), None)
    assert isinstance(tree, VllmTree)
    return tree


def test_the_package_its_folder_and_a_checkout_of_the_same_name(tmp_path: Path) -> None:
    made = package(tmp_path / "vllm")
    for given in (made, made.parent, f"{tmp_path}{os.pathsep}{made.parent}"):
        assert found(given).package == made.resolve()
    assert found(made).found_by == "--vllm-path"
    assert found(made).source.package == made.resolve()


@pytest.mark.parametrize("name", ["nowhere", "file", "empty", "vllm"])
def test_a_wrong_path_is_an_input_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "vllm").mkdir()
    with pytest.raises(InputError, match=f"--vllm-path .*{name}: (no such folder|expected the package vllm)"):
        find_tree(str(tmp_path / name), None)


def test_version_and_commit_of_a_build(tmp_path: Path) -> None:
    text = "version: str\n\n__version__ = version = '0.24.1'\n__commit_id__ = commit_id = 'gabcdef012'\n"
    tree = found(package(tmp_path, _version=text))
    assert (tree.version, tree.version_from) == ("0.24.1", "vllm/_version.py:3")
    assert (tree.commit, tree.commit_from) == ("abcdef012", "vllm/_version.py:4")


@pytest.mark.parametrize(
    ("version", "commit"),
    [
        ("0.23.1rc1.dev788+gfa4321de3", "fa4321de3"),
        ("0.23.1rc1.dev788+gfa4321de3.d20260101", "fa4321de3"),
        ("0.23.1rc1.dev788+cu129.gfa4321de3", "fa4321de3"),
        ("0.23.0+cu129", None),
        ("0.23.0+gpu", None),
    ],
)
def test_a_commit_in_the_version(version: str, commit: str | None, tmp_path: Path) -> None:
    tree = found(package(tmp_path, _version=f'version = "{version}"\n__commit_id__ = commit_id = None\n'))
    assert (tree.version, tree.commit) == (version, commit)


def test_metadata_beside_the_package(tmp_path: Path) -> None:
    made = package(tmp_path)
    about = tmp_path / "vllm-0.25.0.dist-info"
    write(about / "METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.0\n")
    write(about / "direct_url.json", json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}))
    tree = found(made)
    assert (tree.version, tree.version_from) == ("0.25.0", "vllm-0.25.0.dist-info/METADATA")
    assert (tree.commit, tree.commit_from) == (COMMIT, "vllm-0.25.0.dist-info/direct_url.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"vcs_info": {"commit_id": 3}}', '{"dir_info": {"editable": true}}'])
def test_odd_metadata_says_nothing(text: str, tmp_path: Path) -> None:
    made = package(tmp_path)
    write(tmp_path / "vllm-1.dist-info" / "direct_url.json", text)
    tree = found(made)
    assert (tree.version, tree.version_from, tree.commit, tree.commit_from) == (None, "", None, "")


def test_a_file_with_the_commit(tmp_path: Path) -> None:
    tree = found(package(tmp_path, commit_id=f'__commit__ = "{COMMIT}"\n'))
    assert (tree.commit, tree.commit_from) == (COMMIT, "vllm/commit_id.py:1")


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({"HEAD": COMMIT}, COMMIT),
        ({"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"}, COMMIT),
        ({"HEAD": "ref: refs/heads/a-b/c\n", "packed-refs": f"# pack-refs\n{COMMIT} refs/heads/a-b/c\n"}, COMMIT),
        ({"HEAD": "ref: refs/heads/other\n", "packed-refs": f"{COMMIT} refs/heads/main\n"}, None),
        ({"HEAD": "ref: refs/../secret\n", "secret": COMMIT}, None),
        ({"HEAD": "ref: /etc/passwd\n"}, None),
        ({"HEAD": ""}, None),
        ({}, None),
    ],
)
def test_the_commit_of_a_checkout(files: dict[str, str], commit: str | None, tmp_path: Path) -> None:
    made = package(tmp_path)
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        write(tmp_path / ".git" / name, text)
    tree = found(made)
    assert (tree.commit, tree.commit_from) == (commit, ".git/HEAD" if commit else "")


def test_the_commit_of_a_worktree(tmp_path: Path) -> None:
    made = package(tmp_path / "tree")
    write(tmp_path / "tree" / ".git", "gitdir: ../main/.git/worktrees/tree\n")
    write(tmp_path / "main" / ".git" / "worktrees" / "tree" / "HEAD", "ref: refs/heads/topic\n")
    write(tmp_path / "main" / ".git" / "worktrees" / "tree" / "commondir", "../..\n")
    write(tmp_path / "main" / ".git" / "packed-refs", f"{COMMIT} refs/heads/topic\n")
    assert found(made).commit == COMMIT


def test_an_interpreter_is_asked_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(tmp_path / "site", _version="__version__ = version = '0.30.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    tree = find_tree(None, sys.executable)
    assert isinstance(tree, VllmTree)
    assert (tree.package, tree.version) == (made.resolve(), "0.30.0")
    assert (tree.python, tree.found_by) == (sys.executable, f"--python {sys.executable}")


def test_an_interpreter_does_not_take_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert find_tree(None, sys.executable) == f"{sys.executable} has no vLLM installed"


def test_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = find_tree(None, None)
    assert isinstance(missing, str)
    assert "--vllm-path" in missing
    made = package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tree = find_tree(None, None)
    assert isinstance(tree, VllmTree)
    assert (tree.package, tree.found_by) == (made.resolve(), "this Python")
    assert "vllm" not in sys.modules


def test_this_interpreter_does_not_take_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(tmp_path)
    monkeypatch.chdir(tmp_path)
    for front in (str(tmp_path), ""):
        monkeypatch.setattr(sys, "path", [front, *sys.path])
        assert isinstance(find_tree(None, None), str)
        assert sys.path[0] == front
        sys.path.remove(front)
    # Put there on purpose (PYTHONPATH, an editable installation), it counts.
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path)])
    tree = find_tree(None, None)
    assert isinstance(tree, VllmTree)
    assert tree.package == made.resolve()


def test_a_folder_without_code_is_no_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(find_tree(None, None), str)


def test_something_that_is_no_python(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho nothing\n")
    script.chmod(0o755)
    assert find_tree(None, str(script)) == f"{script} does not run as a Python interpreter"
    with pytest.raises(InputError, match="--python"):
        find_tree(None, str(tmp_path / "nowhere"))
