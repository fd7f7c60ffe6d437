from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from dsv4check.gate import git_files
from dsv4check.gate.records import FileProblem
from dsv4check.gate.walk import Candidates, candidates


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@e.example", "-c", "protocol.file.allow=always")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True)


def fill(folder: Path, *names: str, text: str = "x\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def shown(found: Candidates) -> list[str]:
    return [item.shown for item in found]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


@pytest.fixture
def repo(tree: Path) -> Path:
    git(tree, "init", "-q")
    return tree


def test_names_that_can_hold_a_launch(tree: Path) -> None:
    taken = (
        "a.yaml a.YML a.json a.sh a.bash a.zsh a.ksh a.slurm a.sbatch a.service a.container a.py a.tpl a.dockerfile "
        "x.Dockerfile Dockerfile Dockerfile.gpu Containerfile Containerfile.x compose.yaml compose.prod "
        "docker-compose Makefile justfile Procfile a.yaml.tmpl a.sh.j2 Dockerfile.j2 a.json.gotmpl "
        "v.service.d/10-x.conf v.container.d/x.conf"
    )
    left = (
        "a.md a.txt a.toml a.cfg a.env .env a.conf nginx.d/a.conf a.txt.j2 .tmpl Dockerfile.md compose.md "
        "composer.lock ComposeView.tsx Dockerfile.dockerignore LICENSE"
    )
    fill(tree, *taken.split(), *left.split())
    fill(tree, "run", "bin/start", ".hook", text="#!/bin/sh\n")
    fill(tree, "run.bin", text="#!/bin/sh\n")
    found = candidates(["."], root=tree)
    assert shown(found) == sorted([*taken.split(), "run", "bin/start", ".hook"])
    assert not found.problems
    assert not found.notes
    assert {item.explicit for item in found} == {False}
    assert all(item.path.is_file() for item in found)


def test_a_named_file_is_taken_whatever_it_is_called(repo: Path) -> None:
    fill(repo, "notes.txt", "ignored.yaml", "x/vendor/a.yaml")
    fill(repo, ".gitignore", text="ignored.yaml\n")
    os.mkfifo(repo / "pipe")
    named = ["notes.txt", "ignored.yaml", "x/vendor/a.yaml", "pipe"]
    found = candidates(named, root=repo, exclude=["*"])
    assert shown(found) == sorted(named)
    assert {item.explicit for item in found} == {True}


def test_a_file_named_and_met_is_taken_once_as_named(tree: Path) -> None:
    fill(tree, "a.yaml", "b/c.yaml")
    (tree / "link.yaml").symlink_to("a.yaml")
    found = candidates([".", "link.yaml", "b", "a.yaml", str(tree / "b/c.yaml"), "./b/../b/c.yaml"], root=tree)
    assert [(item.shown, item.explicit) for item in found] == [("b/c.yaml", True), ("link.yaml", True)]


def test_what_a_path_is_shown_as(tree: Path, tmp_path: Path) -> None:
    fill(tree, "a.yaml", "sub/b.yaml")
    fill(tmp_path, "out/c.yaml")
    given = ["./a.yaml", str(tree / "sub"), "../out", "sub/../../out/c.yaml"]
    assert shown(candidates(given, root=tree)) == [f"{tmp_path}/out/c.yaml", "a.yaml", "sub/b.yaml"]
    assert shown(candidates(["../a.yaml"], root=tree / "sub")) == [f"{tree}/a.yaml"]
    (tmp_path / "way").symlink_to(tree)
    assert shown(candidates([str(tree / "a.yaml"), "sub"], root=tmp_path / "way")) == ["a.yaml", "sub/b.yaml"]


def test_a_name_that_is_no_utf_8_is_shown_with_escapes(tree: Path) -> None:
    (tree / os.fsdecode(b"a\xff.yaml")).write_text("x")
    found = candidates(["."], root=tree)
    assert shown(found) == ["a\\xff.yaml"]
    assert found.files[0].path.read_text() == "x"


def test_paths_that_are_not_there(tree: Path) -> None:
    (tree / "loop.yaml").symlink_to("loop.yaml")
    (tree / "loop").symlink_to("loop")
    found = candidates(["gone.yaml", "loop", "", "gone/x", "a\0b"], root=tree)
    assert not found.files
    assert found.problems == (
        FileProblem(".", 0, "no such file or folder"),
        FileProblem("a\\0b", 0, "no such file or folder (a NUL character in its name)"),
        FileProblem("gone.yaml", 0, "no such file or folder"),
        FileProblem("gone/x", 0, "no such file or folder"),
        FileProblem("loop", 0, "a symbolic link that leads back to itself"),
    )
    walked = candidates(["."], root=tree)
    assert [(item.path, item.skipped) for item in walked.problems] == [("loop", False), ("loop.yaml", False)]


def test_a_folder_that_cannot_be_listed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tree, "a.yaml", "closed/b.yaml")
    real = os.scandir

    def scandir(path: str) -> object:
        if "closed" in path:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = candidates(["."], root=tree)
    assert shown(found) == ["a.yaml"]
    assert found.problems == (FileProblem("closed", 0, "a folder that cannot be read (permission denied)"),)


def test_symbolic_links_of_a_tree(tree: Path, tmp_path: Path) -> None:
    fill(tree, "real/a.yaml", "real/hidden.txt", ".git-not/x.yaml", ".venv/v.yaml")
    fill(tmp_path, "out/b.yaml")
    (tree / "again.yaml").symlink_to("real/a.yaml")
    (tree / "first.yaml").symlink_to("real/hidden.txt")
    (tree / "second.yaml").symlink_to("real/hidden.txt")
    (tree / "out.yaml").symlink_to("../out/b.yaml")
    (tree / "folder").symlink_to("real")
    (tree / "folder.yaml").symlink_to("../out")
    (tree / "up").symlink_to("..")
    (tree / "nowhere.yaml").symlink_to("gone.yaml")
    (tree / "venv.yaml").symlink_to(".venv/v.yaml")
    (tree / "device.yaml").symlink_to("/dev/zero")
    found = candidates(["."], root=tree)
    assert shown(found) == [".git-not/x.yaml", "first.yaml", "real/a.yaml"]
    assert found.notes == ("out.yaml: a symbolic link out of the folder was not followed",)
    assert found.problems == (
        FileProblem("nowhere.yaml", 0, "a symbolic link to nothing that can be read", skipped=True),
    )
    assert shown(candidates(["folder"], root=tree)) == ["folder/a.yaml"]


def test_special_files_of_a_tree_are_left_out(tree: Path) -> None:
    fill(tree, "a.yaml")
    os.mkfifo(tree / "b.yaml")
    os.mkfifo(tree / "script")
    assert shown(candidates(["."], root=tree)) == ["a.yaml"]


def test_exclude(tree: Path) -> None:
    fill(tree, "a.yaml", "vendor/b.yaml", "x/vendor/c.yaml", "x/d.yaml", "x/e.sh")
    assert shown(candidates(["."], root=tree, exclude=["vendor/", "*.sh"])) == ["a.yaml", "x/d.yaml"]
    assert shown(candidates(["."], root=tree, exclude=["x/*"])) == ["a.yaml", "vendor/b.yaml"]
    found = candidates(["."], root=tree, excluded=lambda path: path.startswith("x/"))
    assert shown(found) == ["a.yaml", "vendor/b.yaml"]
    found = candidates(["vendor"], root=tree, exclude=["vendor"])
    assert not found.files
    assert found.notes == ("vendor: this folder is excluded; nothing in it was looked at",)


def test_without_git_folders_of_tools_are_skipped_and_gitignore_is_mentioned(tree: Path) -> None:
    skipped = [".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", "x/site-packages"]
    skipped += [".mypy_cache", ".ruff_cache", ".pytest_cache", "x/pkg-1.0.dist-info"]
    fill(tree, "a.yaml", *(f"x/{name}/b.yaml" for name in skipped))
    assert candidates(["."], root=tree).notes == ()
    fill(tree, "x/.gitignore", text="a.yaml\n")
    found = candidates(["."], root=tree)
    assert shown(found) == ["a.yaml"]
    assert found.notes == (".: what .gitignore says was not heeded: not inside a git work tree",)


def test_what_git_ignores_is_skipped(repo: Path) -> None:
    fill(
        repo, "a.yaml", "build/b.yaml", "build/kept.yaml", "x/c.yaml", "x/d.yaml", "venv/e.yaml", "node_modules/f.yaml"
    )
    fill(repo, ".gitignore", text="build/\n")
    fill(repo, "x/.gitignore", text="d.yaml\n")
    git(repo, "add", "-f", "build/kept.yaml", "node_modules/f.yaml")
    found = candidates(["."], root=repo)
    assert shown(found) == ["a.yaml", "build/kept.yaml", "node_modules/f.yaml", "x/c.yaml"]
    assert found.notes == ()
    assert shown(candidates(["x"], root=repo)) == ["x/c.yaml"]
    assert shown(candidates([str(repo)], root=repo / "x")) == [
        *(f"{repo}/{name}" for name in shown(found)[:3]),
        "c.yaml",
    ]
    everything = shown(candidates(["."], root=repo, respect_git=False))
    assert everything == ["a.yaml", "build/b.yaml", "build/kept.yaml", "x/c.yaml", "x/d.yaml"]


def test_an_ignored_folder_that_is_named_is_looked_at(repo: Path) -> None:
    fill(repo, "build/b.yaml")
    fill(repo, ".gitignore", text="build/\n")
    found = candidates(["build"], root=repo)
    assert shown(found) == ["build/b.yaml"]
    assert found.notes == ("build: git ignores this folder; as it was named, all of it was looked at",)
    (repo / "empty").mkdir()
    assert candidates(["empty"], root=repo) == Candidates((), (), ())


def test_tracked_files_that_are_gone_are_left_out(repo: Path) -> None:
    fill(repo, "a.yaml", "b.yaml", "x/c.yaml")
    git(repo, "add", ".")
    (repo / "b.yaml").unlink()
    (repo / "x/c.yaml").unlink()
    (repo / "x").rmdir()
    found = candidates(["."], root=repo)
    assert (shown(found), found.problems, found.notes) == (["a.yaml"], (), ())


def test_a_tracked_folder_that_a_link_took_the_place_of(repo: Path, tmp_path: Path) -> None:
    fill(repo, "x/a.yaml", "b.yaml")
    git(repo, "add", ".")
    (repo / "x").rename(tmp_path / "away")
    (repo / "x").symlink_to("../away")
    assert shown(candidates(["."], root=repo)) == ["b.yaml"]


def test_nested_repositories_and_submodules_are_walked_on_their_own(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    fill(other, "s.yaml", "i.yaml")
    fill(other, ".gitignore", text="i.yaml\n")
    git(other, "add", "s.yaml", ".gitignore")
    git(other, "commit", "-qm", "x")
    git(repo, "submodule", "add", "-q", str(other), "sub.x")
    fill(repo / "sub.x", "i.yaml", "new.yaml")
    nested = repo / "deep/nested"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    fill(nested, "n.yaml", "j.yaml")
    fill(nested, ".gitignore", text="j.yaml\n")
    git(nested, "add", "n.yaml")
    git(nested, "commit", "-qm", "x")
    found = candidates(["."], root=repo)
    assert shown(found) == ["deep/nested/n.yaml", "sub.x/new.yaml", "sub.x/s.yaml"]
    assert found.notes == ()
    # A folder that holds work trees and is none itself.
    above = candidates(["."], root=tmp_path)
    assert shown(above) == ["other/s.yaml", *(f"tree/{name}" for name in shown(found))]


def test_a_submodule_that_was_not_fetched(repo: Path, tmp_path: Path) -> None:
    fill(repo, "a.yaml", "sub/b.yaml")
    (repo / "sub/b.yaml").unlink()
    git(repo, "update-index", "--add", "--cacheinfo", "160000," + "1" * 40 + ",sub")
    assert shown(candidates(["."], root=repo)) == ["a.yaml"]
    fill(repo, "sub/b.yaml")
    assert shown(candidates(["."], root=repo)) == ["a.yaml", "sub/b.yaml"]


def test_a_work_tree_of_its_own_is_known_by_its_git_file(repo: Path, tmp_path: Path) -> None:
    fill(repo, "a.yaml", ".gitignore", text="i.yaml\n")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "x")
    git(repo, "worktree", "add", "-q", str(tmp_path / "second"))
    fill(tmp_path / "second", "i.yaml")
    assert shown(candidates(["second"], root=tmp_path)) == ["second/a.yaml"]


def test_variables_of_a_git_hook_do_not_lead_astray(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo, "a.yaml")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert candidates(["."], root=repo).notes == ()
    assert shown(candidates(["."], root=repo)) == ["a.yaml"]


def test_a_hostile_repository_starts_no_program(repo: Path, tmp_path: Path) -> None:
    fill(repo, "a.yaml")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "x")
    mark = tmp_path / "mark"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {mark}\n")
    script.chmod(0o755)
    hooks = repo / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("fsmonitor-watchman", "post-index-change", "query-watchman"):
        (hooks / name).write_bytes(script.read_bytes())
        (hooks / name).chmod(0o755)
    fill(repo, ".gitattributes", text="* filter=evil diff=evil\n")
    for name in ("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "filter.evil.clean"):
        git(repo, "config", name, str(script))
    git(repo, "config", "alias.ls-files", f"!{script}")
    mark.unlink(missing_ok=True)
    # The setting works, or this test shows nothing.
    subprocess.run(["git", "status"], cwd=repo, capture_output=True, check=False)
    assert mark.exists()
    mark.unlink()
    (repo / "a.yaml").write_text("y")
    found = candidates(["."], root=repo)
    assert (shown(found), found.notes) == (["a.yaml"], ())
    assert not mark.exists()


def test_a_repository_that_claims_another_work_tree(repo: Path, tmp_path: Path) -> None:
    fill(tmp_path, "away/secret.yaml")
    fill(repo, "a.yaml")
    git(repo, "config", "core.worktree", str(tmp_path / "away"))
    found = candidates(["."], root=repo)
    assert (shown(found), found.notes) == (["a.yaml"], ())


@pytest.mark.parametrize(
    ("breakage", "said"),
    [
        (FileNotFoundError(2, "No such file or directory"), "git could not be run (No such file or directory)"),
        (subprocess.TimeoutExpired("git", 30), "git did not answer within 30 seconds"),
        (subprocess.CompletedProcess([], 128, b"", b"fatal: detected dubious ownership\nhint"), "dubious ownership"),
        (subprocess.CompletedProcess([], 1, b"", b""), "git ended with status 1"),
    ],
)
def test_git_that_fails(
    repo: Path, monkeypatch: pytest.MonkeyPatch, breakage: Exception | subprocess.CompletedProcess[bytes], said: str
) -> None:
    fill(repo, "a.yaml", "venv/b.yaml", ".gitignore")

    def run(*_args: object, **_options: object) -> subprocess.CompletedProcess[bytes]:
        if isinstance(breakage, Exception):
            raise breakage
        return breakage

    monkeypatch.setattr(git_files.subprocess, "run", run)
    found = candidates(["."], root=repo)
    assert shown(found) == ["a.yaml"]
    assert len(found.notes) == 1
    assert said in found.notes[0]


def test_no_git_and_no_git_of_the_tree_itself(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(repo, "a.yaml")
    fill(repo, "git", text="#!/bin/sh\nexit 0\n")
    (repo / "git").chmod(0o755)
    monkeypatch.chdir(repo)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{repo / 'none'}")
    found = candidates(["."], root=repo)
    assert found.notes == (".: what .gitignore says was not heeded: git is not installed",)
    assert shown(found) == ["a.yaml", "git"]


def test_a_folder_that_git_cannot_list(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(repo, "a.yaml")
    done = subprocess.CompletedProcess(
        [], 0, b"? a.yaml\0", 2 * b"warning: could not open directory 'x/closed/': Permission denied\n"
    )
    monkeypatch.setattr(git_files.subprocess, "run", lambda *_args, **_options: done)
    found = candidates(["."], root=repo)
    assert shown(found) == ["a.yaml"]
    assert found.problems == (FileProblem("x/closed", 0, "a folder that cannot be read (permission denied)"),)
    assert not candidates(["."], root=repo, exclude=["closed"]).problems
    (repo / "x").mkdir()
    inside = candidates(["."], root=repo / "x")
    assert [item.path for item in inside.problems] == ["closed"]


def test_very_deep_folders(tree: Path) -> None:
    at = tree
    try:
        for _ in range(1200):
            at = at / "d"
            at.mkdir()
        fill(at, "a.yaml")
        assert len(shown(candidates(["."], root=tree))) == 1
        git(tree, "init", "-q")
        git(tree, "add", ".")
        assert len(shown(candidates(["."], root=tree))) == 1
    finally:
        # Deeper than the removal of temporary folders can follow.
        subprocess.run(["rm", "-rf", str(tree / "d")], check=True)


@pytest.mark.parametrize("with_git", [True, False])
def test_ten_thousand_files(tree: Path, with_git: bool) -> None:
    for folder in range(100):
        (tree / f"d{folder}").mkdir()
        for number in range(100):
            (tree / f"d{folder}/f{number}.yaml").touch()
    if with_git:
        git(tree, "init", "-q")
        git(tree, "add", ".")
    begun = time.process_time()
    found = candidates(["."], root=tree, exclude=["vendor/", "*.bak", "x/**/y"])
    taken = time.process_time() - begun
    assert len(found.files) == 10_000
    assert taken < 2, taken
