"""pip as a subprocess: it knows the user's indexes, proxies and certificates, so everything is fetched with it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from dsv4check.rehearsal.environment import RehearsalUnavailable

Runner = Callable[[Sequence[str], Mapping[str, str], Callable[[str], None]], int]
"""Runs a command in an environment, hands every line of its output on, returns its exit code."""

_FETCHED = re.compile(r"^\s*(?:Downloading|Using cached|Processing) (?P<file>\S+)(?: \((?P<size>[\d.]+ \w+)\))?")
_SETTINGS: Final = {
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_NO_COLOR": "1",
    # What a user has set for installs of their own must not lead ours elsewhere.
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
}
_UNSET: Final = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_QUIET", "PIP_LOG", "PYTHONPATH")
_ELSEWHERE: Final = ("manylinux_2_35", "manylinux_2_31", "manylinux_2_28", "manylinux2014")


def run_command(words: Sequence[str], variables: Mapping[str, str], line: Callable[[str], None]) -> int:
    """The usual :data:`Runner`."""
    with subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(variables),
        close_fds=False,  # the lock file goes along (see cache.locked)
    ) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                line(text.rstrip())
        except BaseException:
            process.kill()
            raise
    return process.returncode


class Pip:
    """Fetches and installs wheels; never builds anything from source."""

    def __init__(self, root: Path, *, offline: bool, report: Callable[[str], None], run: Runner = run_command) -> None:
        self._root = root
        self._offline = offline
        self._report = report
        self._run = run
        self._variables: dict[str, str] | None = None
        self._words: list[str] | None = None

    def versions(self, name: str) -> list[Version]:
        """Released versions of ``name`` that pip would take for this Python; none when it knows of none."""
        output: list[str] = []
        self._call(["index", "versions", name, *self._source()], output)
        listed = next((text for text in output if text.startswith("Available versions:")), "")
        found = []
        for word in listed.partition(":")[2].split(","):
            try:
                found.append(Version(word.strip()))
            except InvalidVersion:
                continue
        return [version for version in found if not version.is_prerelease]

    def download(
        self, wanted: Sequence[str], folder: Path, what: str, *, alone: bool = False, text_only: bool = False
    ) -> None:
        """Put wheels into ``folder``; those that are there already are not fetched again.

        ``alone`` leaves out what they require; ``text_only`` takes a Linux wheel on any platform.
        """
        folder.mkdir(parents=True, exist_ok=True)
        words = ["download", "--only-binary=:all:", "--dest", str(folder), *self._source()]
        if alone:
            words.append("--no-deps")
        if text_only and sys.platform != "linux":
            # vLLM publishes wheels for Linux alone. They are only read as text here, never loaded.
            words += [word for name in _ELSEWHERE for word in ("--platform", f"{name}_x86_64")]
        self._must([*words, *wanted], f"{what} could not be fetched")

    def install(self, python: Path, wheels: Path, *, target: Path | None = None) -> None:
        """Install all wheels of a folder, as they are."""
        files = sorted(str(path) for path in wheels.glob("*.whl"))
        words = ["--python", str(python), "install", "--no-index", "--no-deps", "--no-compile"]
        if target is not None:
            words += ["--target", str(target)]
        self._must([*words, *files], "the packages could not be installed", quiet=True)

    def missing(self, python: Path, wanted: Sequence[str]) -> list[str]:
        """What would have to be installed beside the packages of ``python``, as ``name==version``."""
        report = self._root / "missing.json"
        words = ["--python", str(python), "install", "--dry-run", "--only-binary=:all:", "--report", str(report)]
        self._must([*words, *self._source(), *wanted], "the packages could not be resolved", quiet=True)
        try:
            items = json.loads(report.read_text(encoding="utf-8"))["install"]
            return [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in items]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RehearsalUnavailable(f"pip's report cannot be read ({error})") from None
        finally:
            report.unlink(missing_ok=True)

    def _source(self) -> list[str]:
        return ["--no-index"] if self._offline else []

    def _must(self, words: Sequence[str], failure: str, *, quiet: bool = False) -> None:
        output: list[str] = []
        code = self._call(words, output, quiet)
        if code:
            said = [text.strip() for text in output if text.strip()]
            errors = [text for text in said if text.startswith("ERROR:")] or said or [f"pip exited with {code}"]
            hint = "; --offline takes only what is cached or in a local find-links folder" if self._offline else ""
            raise RehearsalUnavailable(f"{failure}: {errors[-1].removeprefix('ERROR: ')[:400]}{hint}")

    def _call(self, words: Sequence[str], output: list[str], quiet: bool = False) -> int:
        def take(text: str) -> None:
            output.append(text)
            del output[:-500]
            fetched = _FETCHED.match(text)
            if fetched and not quiet:
                size = f" ({fetched['size']})" if fetched["size"] else ""
                self._report(f"  {fetched['file'].rpartition('/')[2]}{size}")

        return self._run([*self._pip(), *words], self._environment(), take)

    def _pip(self) -> list[str]:
        """pip of this Python; where it has none, one in a small virtual environment of its own."""
        if self._words is None:
            if importlib.util.find_spec("pip") is not None:
                self._words = [sys.executable, "-m", "pip"]
            else:
                home = self._root / "pip"
                if not (home / "bin" / "pip").exists():
                    try:
                        venv.EnvBuilder(with_pip=True, clear=True).create(home)
                    except (subprocess.CalledProcessError, OSError):
                        raise RehearsalUnavailable(
                            f"{sys.executable} has neither pip nor ensurepip (Debian: package python3-venv)"
                        ) from None
                self._words = [str(home / "bin" / "python"), "-m", "pip"]
        return self._words

    def _environment(self) -> dict[str, str]:
        if self._variables is None:
            variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
            variables.update(_SETTINGS)
            if self._offline:
                # pip reads find-links pages over the network even with --no-index: only local folders stay.
                output: list[str] = []
                self._run([*self._pip(), "config", "list"], variables, output.append)
                variables["PIP_FIND_LINKS"] = " ".join(local_folders(output))
                variables["PIP_CONFIG_FILE"] = os.devnull
            self._variables = variables
        return self._variables


def local_folders(config: Sequence[str]) -> list[str]:
    """The local ones among the find-links of ``pip config list``."""
    found: list[str] = []
    for line in config:
        key, equals, value = line.partition("=")
        if not equals or not key.endswith(".find-links"):
            continue
        try:
            text = str(ast.literal_eval(value))
        except (SyntaxError, ValueError):
            continue
        found += [word for word in text.split() if "://" not in word or word.startswith("file://")]
    return list(dict.fromkeys(found))
