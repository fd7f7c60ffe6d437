"""The files of a git work tree that git does not ignore.

The repository may be hostile: its own configuration can name programs that git would start. Every such setting that
listing files could reach is overridden, the environment is made up here, and git may talk to nobody.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from dsv4check.records import dataclass

TIME_LIMIT: Final = 30.0
"""Seconds for one listing."""

_OVERRIDES: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.sshCommand": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
}
_SETTINGS: Final = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    # A list of protocols; without one of that name git reaches no remote at all.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PAGER": "cat",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
}
# The person's own configuration is theirs to decide: which owners of repositories git trusts, and what it ignores
# everywhere. Nothing else of the environment reaches git, above all not GIT_DIR or GIT_INDEX_FILE of a hook.
_KEPT: Final = ("HOME", "XDG_CONFIG_HOME")
_UNLISTED: Final = re.compile(r"could not open directory '(?P<path>[^\n]*)': (?P<why>[^\n]*)")


@dataclass(frozen=True, slots=True)
class GitListing:
    """What git says about a folder."""

    tracked: tuple[str, ...] = ()
    """Paths below the folder, submodules among them."""
    untracked: tuple[str, ...] = ()
    """Not tracked, and not ignored; a nested repository is named as a folder with a slash at the end."""
    unlisted: tuple[tuple[str, str], ...] = ()
    """Folders that git could not list, by their path from the work tree, each with the reason."""
    failed: str = ""
    """Why git could not say anything; empty when it could."""


def work_tree_of(folder: str) -> str | None:
    """The folder that holds ``.git``: this one, or the nearest above it."""
    at = os.path.realpath(folder)
    while not os.path.lexists(os.path.join(at, ".git")):
        above = os.path.dirname(at)
        if above == at:
            return None
        at = above
    return at


def list_files(folder: str, work_tree: str) -> GitListing:
    """Everything below a folder of a work tree that git tracks or does not ignore."""
    done = _git(folder, work_tree, ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard"))
    if isinstance(done, str):
        return GitListing(failed=done)
    tracked: list[str] = []
    untracked: list[str] = []
    for entry in done.stdout.split(b"\0"):
        path = os.fsdecode(entry[2:])
        # An index made by hand may hold anything.
        if not path or path.startswith("/") or ".." in path.split("/"):
            continue
        (untracked if entry.startswith(b"? ") else tracked).append(path)
    complaints = _UNLISTED.finditer(os.fsdecode(done.stderr))
    unlisted = dict.fromkeys((found["path"], found["why"].lower()) for found in complaints)
    return GitListing(tuple(tracked), tuple(untracked), tuple(unlisted))


def is_ignored(folder: str, work_tree: str) -> bool:
    """True for a folder that git ignores itself."""
    real = os.path.realpath(folder)
    if real == work_tree:
        return False
    above, name = os.path.split(real)
    # A name that begins with a colon would be an expression.
    return not isinstance(_git(above, work_tree, ("check-ignore", "-q", "--", f"./{name}")), str)


def _git(folder: str, work_tree: str, words: Sequence[str]) -> subprocess.CompletedProcess[bytes] | str:
    """What a git command printed, or why it failed."""
    # Only absolute entries: a relative one would be looked up in the very tree that is checked.
    path = os.pathsep.join(part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part))
    program = shutil.which("git", path=path)
    if program is None:
        return "git is not installed"
    # The repository's configuration could name another folder of the machine as its work tree.
    env = {"PATH": path, "GIT_WORK_TREE": work_tree, **_SETTINGS}
    env |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    options = [word for name, value in _OVERRIDES.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            [program, "--no-pager", *options, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"git did not answer within {TIME_LIMIT:g} seconds"
    except OSError as error:
        return f"git could not be run ({error.strerror})"
    if done.returncode:
        complaint = os.fsdecode(done.stderr).strip().split("\n")[0]
        return f"git says: {complaint}" if complaint else f"git ended with status {done.returncode}"
    return done
