"""The files that are looked at: those named, and those of folders whose name lets them hold a launch."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from dsv4check.gate import git_files
from dsv4check.gate.file_names import begins_as_script, can_hold_launch
from dsv4check.gate.globs import matches
from dsv4check.gate.reading import why_unreadable
from dsv4check.gate.records import FileProblem
from dsv4check.gate.shown_paths import printable, shown_path
from dsv4check.records import dataclass, field

SKIPPED_FOLDERS: Final = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", "site-packages"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
"""Folders of tools, not of people; a tracked one is looked at all the same. ``*.dist-info`` is another."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to look at."""

    path: Path
    shown: str
    """What reports call it: relative to the current folder with ``/``, absolute where it lies outside."""
    explicit: bool
    """True for a file that was named itself: it is read whatever its name says."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a walk found. Iterates over the files."""

    files: tuple[Candidate, ...]
    """By the name they are shown with; none twice."""
    problems: tuple[FileProblem, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.files)


def candidates(
    paths: Sequence[str],
    *,
    root: Path,
    exclude: Sequence[str] = (),
    excluded: Callable[[str], bool] = lambda _shown: False,
    respect_git: bool = True,
) -> Candidates:
    """The files to look at.

    ``root`` is the current folder. ``exclude`` are globs over shown paths, ``excluded`` says the same of a shown path
    (the configuration's globs start from another folder); both apply to what folders hold, never to a file that was
    named. Without ``respect_git`` ignored files are looked at, too.
    """
    walk = _Walk(root, lambda shown: excluded(shown) or any(matches(shown, glob) for glob in exclude), respect_git)
    folders = [path for path in paths if not walk.take_named(path)]
    for folder in folders:
        walk.take_folder(folder)
    walk.take_links()
    return Candidates(
        tuple(sorted(walk.files.values(), key=lambda item: item.shown)),
        tuple(sorted(walk.problems, key=lambda item: item.path)),
        tuple(walk.notes),
    )


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is being walked."""

    path: str
    real: str
    prefix: str
    """What stands before the path of a file in it: empty, or with ``/`` at the end."""
    top: str
    """Real path of the folder that was named."""


@dataclass(slots=True)
class _Walk:
    root: Path
    excluded: Callable[[str], bool]
    respect_git: bool
    files: dict[str, Candidate] = field(default_factory=dict)
    """By real path."""
    problems: list[FileProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    links: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, shown path and top folder of symbolic links: whether they add a file is known last."""
    walked: set[str] = field(default_factory=set)
    """Real paths of the folders that were begun."""

    def take_named(self, given: str) -> bool:
        """Take a path that was named, unless it is a folder: False."""
        path = os.path.join(self.root, given)
        try:
            if not given:
                raise FileNotFoundError(errno.ENOENT, "no such file")
            if stat.S_ISDIR(os.stat(path).st_mode):
                return False
        except OSError as error:
            self.problems.append(FileProblem(shown_path(path, self.root), 0, why_unreadable(error)))
            return True
        except ValueError:
            name = given.replace("\0", "\\0")
            self.problems.append(FileProblem(name, 0, "no such file or folder (a NUL character in its name)"))
            return True
        self.files.setdefault(os.path.realpath(path), Candidate(Path(path), shown_path(path, self.root), True))
        return True

    def take_folder(self, given: str) -> None:
        """Take what a named folder holds."""
        path = os.path.join(self.root, given)
        shown = shown_path(path, self.root)
        prefix = "" if shown == "." else shown.rstrip("/") + "/"
        real = os.path.realpath(path)
        if prefix and self.excluded(shown):
            self.notes.append(f"{shown}: this folder is excluded; nothing in it was looked at")
            return
        pending = [_Folder(path, real, prefix, real)]
        while pending:
            folder = pending.pop()
            if folder.real in self.walked:
                continue
            self.walked.add(folder.real)
            tree = _work_tree(folder) if self.respect_git else None
            nested = None if tree is None else self._by_git(folder, tree)
            pending.extend(self._by_hand(folder) if nested is None else nested)

    def _by_git(self, folder: _Folder, work_tree: str) -> list[_Folder] | None:
        """Take what git lists; the nested repositories come back. None where git has no say."""
        shown = folder.prefix.rstrip("/") or "."
        listing = git_files.list_files(folder.path, work_tree)
        if listing.failed:
            self.notes.append(f"{shown}: what .gitignore says was not heeded: {listing.failed}")
            return None
        empty = not (listing.tracked or listing.untracked or listing.unlisted)
        if empty and folder.real == folder.top and git_files.is_ignored(folder.path, work_tree):
            self.notes.append(f"{shown}: git ignores this folder; as it was named, all of it was looked at")
            return None
        for below, why in listing.unlisted:
            closed = shown_path(os.path.join(work_tree, below), self.root)
            if not self.excluded(closed):
                self.problems.append(FileProblem(closed, 0, f"a folder that cannot be read ({why})"))
        kept = [path for path in listing.untracked if not any(map(_is_skipped, path.split("/")[:-1]))]
        nested = []
        plain: dict[str, bool] = {"": True}
        for path in (*listing.tracked, *kept):
            relative = path.rstrip("/")
            above, _, name = relative.rpartition("/")
            if not _is_plain(folder.path, above, plain):
                continue
            full = os.path.join(folder.path, relative)
            try:
                mode = os.lstat(full).st_mode
            except OSError:
                # Tracked and deleted, or gone since.
                continue
            if stat.S_ISDIR(mode):
                nested.append(_below(folder, relative))
            else:
                self._take(full, name, mode, folder, relative)
        return nested

    def _by_hand(self, folder: _Folder) -> list[_Folder]:
        """Take what the folder and those below hold; the repositories in it come back."""
        nested = []
        pending = [""]
        ignores = False
        while pending:
            below = pending.pop()
            at = os.path.join(folder.path, below)
            try:
                with os.scandir(at) as entries:
                    found = list(entries)
            except OSError as error:
                shown = self._name(folder, below)
                self.problems.append(FileProblem(shown, 0, f"a folder that {why_unreadable(error)}"))
                continue
            if below and self.respect_git and any(entry.name == ".git" for entry in found):
                nested.append(_below(folder, below.rstrip("/")))
                continue
            for entry in found:
                relative = below + entry.name
                ignores = ignores or entry.name == ".gitignore"
                if entry.is_dir(follow_symlinks=False):
                    if not _is_skipped(entry.name) and not self.excluded(self._name(folder, relative)):
                        pending.append(relative + "/")
                elif entry.is_symlink():
                    self._take(entry.path, entry.name, stat.S_IFLNK, folder, relative)
                elif entry.is_file(follow_symlinks=False):
                    self._take(entry.path, entry.name, stat.S_IFREG, folder, relative)
        if ignores and self.respect_git and git_files.work_tree_of(folder.path) is None:
            shown = folder.prefix.rstrip("/") or "."
            self.notes.append(f"{shown}: what .gitignore says was not heeded: not inside a git work tree")
        return nested

    def _name(self, folder: _Folder, relative: str) -> str:
        """What reports call a path below a folder."""
        # The folder may lie above the current one.
        path = (folder.prefix + relative).removeprefix(f"{str(self.root).rstrip('/')}/")
        return printable(path.rstrip("/") or ".")

    def _take(self, path: str, name: str, mode: int, folder: _Folder, relative: str) -> None:
        """Take one file if its name, or its first two bytes, let it hold a launch."""
        above = os.path.basename(os.path.dirname(relative) or folder.real)
        by_name = can_hold_launch(name, above)
        if by_name is False:
            return
        shown = self._name(folder, relative)
        if self.excluded(shown):
            return
        if stat.S_ISLNK(mode):
            self.links.append((path, shown, folder.top))
        elif stat.S_ISREG(mode) and (by_name or begins_as_script(path)):
            real = os.path.join(folder.real, relative)
            if real not in self.files:
                self.files[real] = Candidate(Path(path), shown, False)

    def take_links(self) -> None:
        """Take the files behind symbolic links that lie in the folder and were not met otherwise."""
        outside = []
        for path, shown, top in sorted(self.links, key=lambda link: link[1]):
            by_name = can_hold_launch(os.path.basename(path), os.path.basename(os.path.dirname(path)))
            try:
                real = os.path.realpath(path, strict=True)
                mode = os.stat(real).st_mode
            except OSError as error:
                if error.errno == errno.ELOOP:
                    self.problems.append(FileProblem(shown, 0, why_unreadable(error)))
                elif by_name:
                    why = "a symbolic link to nothing that can be read"
                    self.problems.append(FileProblem(shown, 0, why, skipped=True))
                continue
            if not stat.S_ISREG(mode) or real in self.files:
                continue
            inside = real.startswith(top.rstrip("/") + "/")
            if inside and any(map(_is_skipped, real[len(top) :].split("/"))):
                continue
            if not inside:
                if by_name:
                    outside.append(shown)
            elif by_name or begins_as_script(real):
                self.files[real] = Candidate(Path(path), shown, False)
        if outside:
            others = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
            self.notes.append(f"{outside[0]}{others}: a symbolic link out of the folder was not followed")


def _is_skipped(name: str) -> bool:
    return name in SKIPPED_FOLDERS or name.endswith(".dist-info")


def _work_tree(folder: _Folder) -> str | None:
    """The work tree that git is asked about; a folder below without ``.git`` is a submodule that was not fetched."""
    tree = git_files.work_tree_of(folder.path)
    return tree if folder.real in (folder.top, tree) else None


def _below(folder: _Folder, relative: str) -> _Folder:
    path, real = os.path.join(folder.path, relative), os.path.join(folder.real, relative)
    return _Folder(path, real, f"{folder.prefix}{relative}/", folder.top)


def _is_plain(base: str, relative: str, known: dict[str, bool]) -> bool:
    """True when no folder on the way is a symbolic link: git's index may still hold what one took the place of."""
    if relative not in known:
        parts = relative.split("/")
        ways = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        known[relative] = not any(os.path.islink(os.path.join(base, way)) for way in ways)
    return known[relative]
