#!/usr/bin/env python3
"""Learn what a vLLM release does from its own code, and write rules/releases/ and rules/compiled/.

    scripts/learn_release.py 0.34.0                     fetch the release and learn everything
    scripts/learn_release.py 0.34.0 --tree DIR --python VENV
    scripts/learn_release.py 0.33.0 --check             write nothing, compare with the repository

Exit codes: 0 written, or nothing differs; 1 something could not be learned, or differs with --check; 2 wrong
arguments; 3 there is nothing that could run vLLM.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4check.data import rules_dir
from dsv4check.errors import InputError
from dsv4check.learning.changes import describe
from dsv4check.learning.flags import learn_flags
from dsv4check.learning.registry import SECTIONS, learner
from dsv4check.learning.release import Release, open_release
from dsv4check.learning.repository import Learned, Repository
from dsv4check.learning.source import LearningError
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable, find_environment
from dsv4check.releases.facts import known_releases
from scripts import compile_data

FLAGS: Final = "flags"
"""Stands beside the sections in ``--only``: the flag table."""

Report = Callable[[str], None]


def main(argv: Sequence[str] | None = None, repository: Repository | None = None) -> int:
    """Learn, then write or compare; the exit code."""
    options = _arguments(argv)
    repository = repository or Repository(rules_dir())
    try:
        environment = find(options)
        release = open_release(environment)
        if release.source.version != options.version:
            raise InputError(f"{environment.package} is vLLM {release.source.version}, not {options.version}")
    except InputError as error:
        return _refuse(str(error), 2)
    except RehearsalUnavailable as error:
        return _refuse(str(error), 3)
    except LearningError as error:
        return _refuse(str(error), 1)
    print(environment.description)
    return learn_release(release, repository, only=options.only, check=options.check)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="the release, as 0.33.0")
    parser.add_argument("--tree", help="unpacked vLLM wheel, then packages of that release (as --vllm-path)")
    parser.add_argument("--python", help="interpreter or virtual environment with CPU torch and vLLM's dependencies")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the files differ")
    parser.add_argument("--only", nargs="+", metavar="SECTION", choices=(*SECTIONS, FLAGS), help="learn only these")
    parser.add_argument("--offline", action="store_true", help="without --tree: use only what was fetched before")
    parser.add_argument("--yes", action="store_true", help="without --tree: fetch without asking")
    return parser.parse_args(argv)


def find(options: argparse.Namespace) -> Environment:
    """The environment that the arguments name, or one that is provisioned for the release."""
    if options.tree or options.python:
        return find_environment(options.python, options.tree)
    # Imported here: fetching is needed only without --tree.
    from dsv4check.rehearsal.provision import provision

    confirm = (lambda _text: True) if options.yes else _ask
    return provision(options.version, offline=options.offline, confirm=confirm, report=_say)


def _ask(text: str) -> bool:
    try:
        return input(f"{text} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _refuse(text: str, code: int) -> int:
    _say(f"learn_release: {text}")
    return code


def learn_release(
    release: Release,
    repository: Repository,
    *,
    only: Sequence[str] | None = None,
    check: bool = False,
    compile_rules: Callable[[], None] | None = None,
) -> int:
    """Learn the sections of a release and write or compare them. The exit code of the command."""
    version = release.source.version
    known = version in repository.versions
    if only and not known:
        return _refuse(f"{version} is new: all sections are needed, not only {', '.join(only)}", 2)
    present = repository.load(version) if known else None
    learned, failures = learn_all(release, only or (*SECTIONS, FLAGS), present if only else None)
    if failures:
        for name, reason in failures.items():
            _say(f"{name}: {reason}")
        _say(f"{version} was not written: {len(failures)} of its parts could not be learned")
        return 1
    if check:
        return _compare(repository, present, learned)
    for path in repository.write(learned):
        print(f"written: {path.relative_to(repository.folder.parent)}")
    (compile_rules or _compile)()
    for line in summary(repository, learned):
        print(line)
    return 0


def learn_all(release: Release, names: Sequence[str], present: Learned | None) -> tuple[Learned, dict[str, str]]:
    """Every part by name, on top of ``present``; and the parts that failed, with the reason."""
    sections = dict(present.sections) if present else {}
    flags = present.flags if present else {}
    failures: dict[str, str] = {}
    for name in names:
        _say(f"learning {name}")
        try:
            if name == FLAGS:
                flags = learn_flags(release)
            else:
                sections[name] = learner(name)(release)
        except LearningError as error:
            failures[name] = str(error)
        except Exception as error:
            traceback.print_exc()
            failures[name] = f"{type(error).__name__}: {error} (a mistake in the module that learns it)"
    return Learned(release.source.version, sections, flags), failures


def _compare(repository: Repository, present: Learned | None, learned: Learned) -> int:
    if present is None:
        _say(f"the repository has no facts for {learned.version}")
        return 1
    for line in describe(present, learned):
        print(line)
    outdated = repository.outdated(learned)
    for path in outdated:
        print(f"differs: {path.relative_to(repository.folder.parent)}")
    if not outdated:
        print(f"{learned.version}: the files are what the release says")
    return 1 if outdated else 0


def summary(repository: Repository, learned: Learned) -> list[str]:
    """What changed against the release before, in words."""
    twins = repository.twins(learned)
    lines = [f"{name} and {learned.version}: the same facts" for name in twins]
    before = repository.previous(learned.version)
    if before is None or before in twins:
        return lines
    changes = describe(repository.load(before), learned)
    return [*lines, f"{learned.version} against {before}: {len(changes)} changes", *(f"  {line}" for line in changes)]


def _compile() -> None:
    known_releases.cache_clear()
    compile_data.main()


if __name__ == "__main__":
    sys.exit(main())
