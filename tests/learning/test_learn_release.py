"""``scripts/learn_release.py``: what is written, when nothing is, and what it says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import load_yaml, rules_dir
from dsv4check.learning import registry, release
from dsv4check.learning.release import Release, open_release, run_script, source_only
from dsv4check.learning.repository import Learned, Repository
from dsv4check.learning.source import LearningError
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable
from dsv4check.rehearsal.protocol import PROTOCOL
from scripts import learn_release as command

TABLE: dict[str, Any] = {
    "release": "0.2.0",
    "flags": {"size": {"o": ["--size"], "k": "int", "c": [1, 2]}, "cc": {"o": ["-cc"], "k": "dc:C"}},
    "configs": {"C": {"f": {"mode": {"t": ["u", ["lit", "x"], "none"]}, "inner": {"t": "dc:C"}}}},
    "enums": {"AttentionBackendEnum": {"A": None}},
    "kinds": [],
}
FACTS = {"spec_decode": {"fields": {"method": "str"}}, "moe": {"names": ["b", "a"], "deep": {"x": {"y": 1}}}}


def learned(version: str = "0.2.0", **changes: Any) -> Learned:
    return Learned(version, {**FACTS, **changes}, {**TABLE, "release": version})


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository that knows 0.1.0 and 0.2.0, which has one more speculative key."""
    made = Repository(tmp_path / "rules")
    (made.folder / "flags").mkdir(parents=True)
    made.write(learned("0.1.0"))
    made.write(learned("0.2.0", spec_decode={"fields": {"method": "str", "model": "str"}}))
    (made.folder / "development.yaml").write_text("builds: []\n")
    return made


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Release]:
    """A release whose sections are given, learned without any code of vLLM."""

    def make(version: str, sections: dict[str, Any], table: Any = TABLE) -> Release:
        package = tmp_path / version / "vllm"
        package.mkdir(parents=True)
        (package / "_version.py").write_text(f"__version__ = version = '{version}'\n")

        def learner(name: str) -> Callable[[Release], Any]:
            value = sections[name]
            if isinstance(value, Exception):
                raise value
            return lambda _release: value

        monkeypatch.setattr(command, "SECTIONS", tuple(sections))
        monkeypatch.setattr(command, "learner", learner)
        monkeypatch.setattr(command, "learn_flags", lambda _release: {**table, "release": version})
        return source_only(package)

    return make


def test_shipped_files_have_the_bytes_that_are_written() -> None:
    repository = Repository(rules_dir())
    for version in repository.versions:
        assert repository.outdated(repository.load(version)) == []


def test_written_twice_is_written_the_same(repository: Repository) -> None:
    other = Learned("0.2.0", dict(reversed(learned().sections.items())), learned().flags)
    assert repository.texts(learned()) == repository.texts(other)
    assert repository.write(learned()) != []
    assert repository.write(other) == []
    assert repository.load("0.2.0") == learned()


def test_history_names_what_only_some_releases_know(repository: Repository) -> None:
    history = json.loads((repository.folder / "flags" / "history.json").read_text())
    assert history["releases"] == ["0.1.0", "0.2.0"]
    assert history["ranges"] == {"speculative_config.model": [[1, 1]]}
    always = ["--size", "-cc", "attention-backend=A", "cc.inner", "cc.inner.mode", "cc.mode", "cc.mode=x"]
    assert {*always, "speculative_config.method", "cc.inner.inner.mode=x"} <= set(history["always"])
    repository.write(learned("0.1.5"))
    history = json.loads((repository.folder / "flags" / "history.json").read_text())
    assert history["releases"] == ["0.1.0", "0.1.5", "0.2.0"]
    assert history["ranges"] == {"speculative_config.model": [[2, 2]]}


def test_a_new_release(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = []
    moe = {"names": ["a", "c"], "deep": {"x": {"y": 2}}}
    new = fake("0.3.0", {"moe": moe, "spec_decode": {"fields": {"method": "str", "model": "str"}}})
    code = command.learn_release(new, repository, compile_rules=lambda: compiled.append(1))
    assert (code, compiled) == (0, [1])
    assert repository.versions == ("0.1.0", "0.2.0", "0.3.0")
    assert load_yaml((repository.folder / "0.3.0.yaml").read_text())["moe"] == moe
    said = capsys.readouterr().out.splitlines()
    assert "written: releases/flags/history.json" in said
    assert said[-3:] == [
        "0.3.0 against 0.2.0: 2 changes",
        "  moe.deep.x.y: 1 -> 2",
        "  moe.names: new c; gone b",
    ]


def test_a_patch_release_with_the_same_facts(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    new = fake("0.2.1", dict(repository.load("0.2.0").sections))
    assert command.learn_release(new, repository, compile_rules=lambda: None) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0.2.0 and 0.2.1: the same facts"


def test_a_section_that_fails_stops_the_writing(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"attention": LearningError("registry.py has no Enum"), "moe": ValueError("odd"), "runner": {}}
    new = fake("0.3.0", sections)
    assert command.learn_release(new, repository) == 1
    said = capsys.readouterr()
    assert "attention: registry.py has no Enum" in said.err
    assert "moe: ValueError: odd (a mistake in the module that learns it)" in said.err
    assert "0.3.0 was not written: 2 of its parts could not be learned" in said.err
    assert repository.versions == ("0.1.0", "0.2.0")
    assert not (repository.folder / "0.3.0.yaml").exists()


def test_check_says_what_differs_and_writes_nothing(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (repository.folder / "0.1.0.yaml").read_text()
    changed = fake("0.1.0", {**FACTS, "moe": {"names": ["b"], "deep": {"x": {"y": 1}}}})
    assert command.learn_release(changed, repository, check=True) == 1
    assert capsys.readouterr().out.splitlines() == ["moe.names: gone a", "differs: releases/0.1.0.yaml"]
    assert (repository.folder / "0.1.0.yaml").read_text() == before


def test_check_of_the_same_and_of_an_unknown_release(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.learn_release(fake("0.1.0", FACTS), repository, check=True) == 0
    assert capsys.readouterr().out == "0.1.0: the files are what the release says\n"
    assert command.learn_release(fake("0.9.0", FACTS), repository, check=True) == 1
    assert "no facts for 0.9.0" in capsys.readouterr().err


def test_check_notices_other_bytes(repository: Repository, fake: Callable[..., Release]) -> None:
    path = repository.folder / "0.1.0.yaml"
    path.write_text("# by hand\n" + path.read_text())
    assert command.learn_release(fake("0.1.0", FACTS), repository, check=True) == 1


def test_only_some_sections(
    repository: Repository, fake: Callable[..., Release], capsys: pytest.CaptureFixture[str]
) -> None:
    new = fake("0.1.0", {"moe": {"names": ["z"]}, "spec_decode": LearningError("not asked for")})
    assert command.learn_release(new, repository, only=["moe"], compile_rules=lambda: None) == 0
    assert repository.load("0.1.0") == learned("0.1.0", moe={"names": ["z"]})
    assert command.learn_release(fake("0.9.0", {"moe": {}}), repository, only=["moe"]) == 2
    assert "0.9.0 is new: all sections are needed" in capsys.readouterr().err


def test_every_section_of_the_files_has_its_module() -> None:
    repository = Repository(rules_dir())
    for version in repository.versions:
        assert set(repository.load(version).sections) == set(registry.SECTIONS)
    for section in registry.SECTIONS:
        assert callable(registry.learner(section))


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_tree_must_be_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["0.3.0", "--tree", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_another_release_in_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_version.py").write_text("__version__ = version = '0.4.0'\n")
    found = Environment(sys.executable, (), "0.4.0", str(tmp_path))
    monkeypatch.setattr(command, "find_environment", lambda *_: found)
    assert command.main(["0.3.0", "--tree", "x"]) == 2
    assert "is vLLM 0.4.0, not 0.3.0" in capsys.readouterr().err


def test_nothing_to_run_with(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unavailable(*_: Any) -> Environment:
        raise RehearsalUnavailable("no torch")

    monkeypatch.setattr(command, "find_environment", unavailable)
    assert command.main(["0.3.0", "--python", "x"]) == 3
    assert capsys.readouterr().err == "learn_release: no torch\n"


def test_without_a_tree_the_release_is_provisioned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Provision:
        @staticmethod
        def provision(version: str, *, offline: bool, confirm: Callable[[str], bool], report: Any) -> str:
            asked.append((version, offline, confirm("fetch?"), callable(report)))
            return "found"

    monkeypatch.setattr("builtins.input", lambda _text: "n")
    monkeypatch.setitem(sys.modules, "dsv4check.rehearsal.provision", Provision)
    for words in (["0.3.0", "--yes"], ["0.3.0", "--offline"]):
        assert command.find(command._arguments(words)) == "found"
    assert asked == [("0.3.0", False, True, True), ("0.3.0", True, False, True)]


# -- running a release's code ---------------------------------------------------------------------------------------


WORKER = """
import json, os, sys, time
words = sys.argv[sys.argv.index("--") + 1 :]
def say(**message):
    print(json.dumps({"protocol": PROTOCOL, **message}), flush=True)
kind = words[0]
if kind == "broken":
    say(type="broken", reason="vLLM could not be imported: no torch")
    sys.exit(1)
say(type="ready", vllm="0.1.0")
if kind == "answer":
    say(type="answer", value={"words": words[1:], "argv": sys.argv[1:3], "home": os.environ["HOME"]})
elif kind == "raise":
    raise ValueError("odd")
elif kind == "noise":
    print("hello")
elif kind == "hang":
    time.sleep(60)
elif kind == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    worker = tmp_path / "worker.py"
    worker.write_text(f"PROTOCOL = {PROTOCOL}\n{WORKER}")
    monkeypatch.setattr(release, "WORKER", worker)
    environment = Environment(sys.executable, (), "0.1.0", str(tmp_path))

    def call(*words: str, seconds: float = 60) -> Any:
        return run_script(environment, tmp_path / "child.py", words, "10.0", seconds)

    return call


def test_an_answer(run: Callable[..., Any]) -> None:
    answer = run("answer", "a", "-b")
    assert answer["words"] == ["a", "-b"]
    assert answer["argv"] == ["--sm", "10.0"]
    assert not Path(answer["home"]).exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("broken", "child.py: vLLM could not be imported: no torch"),
        ("raise", r"child.py gave no answer \(exit code 1\): ValueError: odd"),
        ("noise", "child.py: the child wrote not a message"),
        ("nothing", r"child.py gave no answer \(exit code 0\): it said nothing"),
        ("killed", r"child.py gave no answer \(killed by SIGKILL\)"),
    ],
)
def test_no_answer(run: Callable[..., Any], kind: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        run(kind)


def test_a_script_that_hangs(run: Callable[..., Any]) -> None:
    with pytest.raises(LearningError, match=r"took longer than 1 s on SM 10.0"):
        run("hang", seconds=0.7)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    opened = open_release(Environment(str(tmp_path / "python"), (), "0.1.0", str(tmp_path)))
    with pytest.raises(LearningError, match="could not be started"):
        opened.run(tmp_path / "child.py")


def test_text_alone_runs_nothing(tmp_path: Path) -> None:
    with pytest.raises(LearningError, match="needs an environment"):
        source_only(tmp_path).run(tmp_path / "child.py")
