from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from dsv4check.errors import InputError
from dsv4check.gate.settings import ConfiguredIgnore, Facts, Settings, load_settings
from dsv4check.gate.settings_schema import config_json_schema

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/config.schema.json").read_text(encoding="utf-8"))

FULL = """
vllm = "0.25.1"
gpu = "H200"
gpus = 8
nodes = 2
gpu-memory-gib = 141
model = "deepseek-ai/DeepSeek-V4-Flash"
model-config = "models/config.json"
packages = { flashinfer-python = "0.5.2", deep-gemm = "2.1" }
env = { A = "x", B = 3, C = true, D = false }
fail-on = "warning"
strict = true
exclude = ["vendor/", "*.bak.yaml"]
baseline = "known.json"
rules = "our-rules"

[[launch]]
path = "staging/**"
gpu = "B200"
env = { A = "y", E = "z" }

[[launch]]
path = ["staging/old.yaml", "**/legacy/*.sh"]
vllm = "0.24.0"
packages = { deep-gemm = "1.0" }
skip = "retired"

[[ignore]]
path = "staging/**"
rules = ["KV001", "some-name"]
reason = "known"

  [[ ignore ]]
path = ["a.sh", "b.sh"]
rules = ["ME003"]
reason = "see the wiki"
launch = "container vllm"
"""


def write(folder: Path, text: str, name: str = ".dsv4check.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def complaint(folder: Path, config: Path | None = None) -> str:
    with pytest.raises(InputError) as error:
        load_settings(folder, config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_key(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    found = load_settings(tmp_path)
    packages = {"flashinfer-python": "0.5.2", "deep-gemm": "2.1"}
    env = {"A": "x", "B": "3", "C": "1", "D": "0"}
    assert found.facts == Facts(
        vllm="0.25.1",
        gpu="H200",
        gpus=8,
        nodes=2,
        gpu_memory_gib=141,
        model="deepseek-ai/DeepSeek-V4-Flash",
        model_config=tmp_path / "models/config.json",
        packages=packages,
        env=env,
    )
    assert (found.folder, found.start, found.source) == (tmp_path, tmp_path, ".dsv4check.toml")
    assert (found.fail_on, found.strict, found.exclude) == ("warning", True, ("vendor/", "*.bak.yaml"))
    assert (found.baseline, found.rules) == (tmp_path / "known.json", tmp_path / "our-rules")
    assert found.ignores == (
        ConfiguredIgnore(("staging/**",), ("KV001", "some-name"), "known", "", 28),
        ConfiguredIgnore(("a.sh", "b.sh"), ("ME003",), "see the wiki", "container vllm", 33),
    )
    assert found.notes == ()
    assert found.facts_for("other.yaml") == found.facts
    staging = found.facts_for("staging/new.yaml")
    assert (staging.gpu, staging.vllm, staging.env) == ("B200", "0.25.1", {**env, "A": "y", "E": "z"})
    old = found.facts_for("staging/old.yaml")
    assert (old.gpu, old.vllm, old.skip) == ("B200", "0.24.0", "retired")
    assert old.packages == {**packages, "deep-gemm": "1.0"}
    assert found.facts_for("x/legacy/run.sh").gpu == "H200"


def test_later_tables_win(tmp_path: Path) -> None:
    write(tmp_path, '[[launch]]\npath = "*.sh"\ngpus = 1\n[[launch]]\npath = "a.sh"\ngpus = 2\n')
    found = load_settings(tmp_path)
    assert [found.facts_for(path).gpus for path in ("a.sh", "b.sh", "c.yaml")] == [2, 1, None]


def test_without_a_file_everything_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, "[project]\nname = 'x'\n[tool.ruff]\nline-length = 100\n", "pyproject.toml")
    assert load_settings(tmp_path) == Settings(tmp_path, tmp_path)
    assert load_settings(tmp_path).facts_for("a.sh") == Facts()
    assert not load_settings(tmp_path).excludes("a.sh")


def test_pydantic_is_not_loaded_without_a_file(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / ".git").mkdir()
    code = (
        "import sys, pathlib; from dsv4check.gate.settings import load_settings; "
        f"load_settings(pathlib.Path({str(tmp_path)!r})); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_nearest_file_up_to_the_repository_holds(tmp_path: Path) -> None:
    write(tmp_path, 'gpu = "outside"')
    repo = tmp_path / "repo"
    (repo / "a/b/c").mkdir(parents=True)
    assert load_settings(repo / "a/b").facts.gpu == "outside"
    (repo / ".git").write_text("gitdir: elsewhere")
    assert load_settings(repo / "a/b").source == ""
    write(repo, '[tool.dsv4check]\ngpu = "top"\nexclude = ["a/b/x/"]\n', "pyproject.toml")
    found = load_settings(repo / "a/b")
    assert (found.facts.gpu, found.folder, found.source) == ("top", repo, "../../pyproject.toml")
    assert found.relative("x/y.sh") == "a/b/x/y.sh"
    assert found.excludes("x/y.sh")
    assert not found.excludes("y.sh")
    assert found.relative(f"{repo}/z.sh") == "z.sh"
    assert found.relative(str(tmp_path / "z.sh")) == str(tmp_path / "z.sh")
    write(repo / "a", "[tool.other]\n", "pyproject.toml")
    assert load_settings(repo / "a/b").facts.gpu == "top"
    write(repo / "a/b", 'gpu = "near"')
    assert load_settings(repo / "a/b/c").facts.gpu == "near"


def test_of_two_files_in_a_folder_our_own_holds(tmp_path: Path) -> None:
    write(tmp_path, 'gpu = "own"')
    write(tmp_path, '[tool.dsv4check]\ngpu = "project"\n', "pyproject.toml")
    found = load_settings(tmp_path)
    assert found.facts.gpu == "own"
    assert found.notes == (".dsv4check.toml: this file was used; [tool.dsv4check] of pyproject.toml beside it was not",)
    write(tmp_path, "[tool.x]\n", "pyproject.toml")
    assert load_settings(tmp_path).notes == ()
    write(tmp_path, "broken", "pyproject.toml")
    assert load_settings(tmp_path).facts.gpu == "own"


def test_a_named_file_and_none(tmp_path: Path) -> None:
    write(tmp_path, 'gpu = "near"')
    named = write(tmp_path / "etc", 'gpu = "named"\n[[launch]]\npath = "*.sh"\ngpus = 3\n', "x.toml")
    found = load_settings(tmp_path, Path("etc/x.toml"))
    assert (found.facts.gpu, found.folder, found.source) == ("named", tmp_path / "etc", "etc/x.toml")
    assert found.facts_for("etc/a.sh").gpus == 3
    assert load_settings(tmp_path, named).facts.gpu == "named"
    assert load_settings(tmp_path, isolated=True) == Settings(tmp_path, tmp_path)
    project = write(tmp_path / "p", '[tool.dsv4check]\ngpu = "p"\n', "pyproject.toml")
    assert load_settings(tmp_path, project).facts.gpu == "p"
    with pytest.raises(InputError, match="only one of them"):
        load_settings(tmp_path, named, isolated=True)


def test_a_named_file_that_cannot_be_used(tmp_path: Path) -> None:
    assert complaint(tmp_path, Path("x.toml")) == "x.toml: no such file or folder; expected a configuration file"
    (tmp_path / "d").mkdir()
    assert complaint(tmp_path, Path("d")) == "d: a folder; expected a file; expected a configuration file"
    write(tmp_path, "[tool.x]\n", "pyproject.toml")
    assert complaint(tmp_path, Path("pyproject.toml")) == "pyproject.toml: no table [tool.dsv4check] in it"
    write(tmp_path, "tool = 3\n", "pyproject.toml")
    assert complaint(tmp_path, Path("pyproject.toml")) == "pyproject.toml: no table [tool.dsv4check] in it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.dsv4check]\nvlm = '1'\n", "pyproject.toml: unknown key 'vlm'; did you mean 'vllm'?"),
        ("[tool]\ndsv4check = 3\n", "pyproject.toml: tool.dsv4check: expected a table, found 3"),
        ("[tool.dsv4check]\n\nvllm = \n", "pyproject.toml: line 3: not TOML: Invalid value"),
        ("[tool.x\n", "pyproject.toml: line 1: not TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_a_project_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text, "pyproject.toml")
    assert complaint(tmp_path) == said


IGNORE = '[[ignore]]\npath = "x"\nrules = ["A"]\nreason = "r"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu = 1", "gpu: expected text (in quotes), found 1"),
        ("gpu = 1979-05-27", "gpu: expected text (in quotes), found a date"),
        ('vllm = ""', "vllm: expected text that is not empty, found ''"),
        ('vllm = " "', "vllm: expected text that is not blank, found ' '"),
        ("vllm = 0.25", "vllm: expected text (in quotes), found 0.25"),
        ('gpus = "8"', "gpus: expected a whole number, found '8'"),
        ("gpus = true", "gpus: expected a whole number, found true"),
        ("gpus = 0", "gpus: expected at least 1, found 0"),
        ("nodes = 1.5", "nodes: expected a whole number, found 1.5"),
        (f"nodes = {'9' * 4000}", "nodes: expected at most 1000000, found a huge number"),
        ('gpu-memory-gib = "x"', "gpu-memory-gib: expected a number, found 'x'"),
        ("gpu-memory-gib = inf", "gpu-memory-gib: expected a number, found inf"),
        ("gpu-memory-gib = nan", "gpu-memory-gib: expected a number, found nan"),
        ("gpu-memory-gib = -1", "gpu-memory-gib: expected more than 0, found -1"),
        ("strict = 1", "strict: expected true or false, found 1"),
        ('fail-on = "x"', "fail-on: expected one of 'error', 'warning', 'note' or 'never', found 'x'"),
        ('exclude = "a"', "exclude: expected a list, found 'a'"),
        ("exclude = [1]", "exclude[1]: expected text (in quotes), found 1"),
        ('exclude = ["!a"]', "exclude: '!a' is negated; globs only add files here, [!] takes one"),
        ("packages = {a = 1}", "packages.a: expected text (in quotes), found 1"),
        ("packages = 3", "packages: expected a table, found 3"),
        ("env = {A = 1.5}", "env.A: expected text, a whole number, true or false, found 1.5"),
        ('env = {"" = "x"}', "env: a name in it is empty"),
        ('vlm = "x"', "unknown key 'vlm'; did you mean 'vllm'?"),
        ("gpu_memory_gib = 1", "unknown key 'gpu_memory_gib'; did you mean 'gpu-memory-gib'?"),
        ("[tool.dsv4check]", "unknown key 'tool'; in this file the keys of [tool.dsv4check] stand at the top level"),
        ('[[launch]]\ngpu = "x"', "launch[1].path: missing"),
        ("[[launch]]\npath = 3", "launch[1].path: expected a glob or a list of globs, found 3"),
        ("[[launch]]\npath = []", "launch[1].path: expected at least one entry, found an empty list"),
        ('[[launch]]\npath = ["!x"]', "launch.path: '!x' is negated; globs only add files here, [!] takes one"),
        ('[[launch]]\npaths = "x"', "launch[1]: unknown key 'paths'; did you mean 'path'?"),
        ("launch = 3", "launch: expected a list, found 3"),
        ("launch = [3]", "launch[1]: expected a table, found 3"),
        (IGNORE.replace('["A"]', "[]"), "ignore[1].rules: expected at least one entry, found an empty list"),
        (IGNORE.replace('["A"]', '"A"'), "ignore[1].rules: expected a list, found 'A'"),
        (IGNORE + IGNORE.replace('"r"', '" "'), "ignore[2].reason: expected text that is not blank, found ' '"),
        (IGNORE.replace('reason = "r"', ""), "ignore[1].reason: missing"),
        ("a = 1\na = 2", "line 2: not TOML: Cannot overwrite a value"),
        ('gpu = "x', "line 1: not TOML: Unterminated string"),
        ("a = 1\n\na = '", 'line 3: not TOML: Expected "\'"'),
        ("x = " + "[" * 5000, "nested too deeply for a configuration file"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    assert complaint(tmp_path) == f".dsv4check.toml: {said}"


def test_unknown_keys_without_a_near_one_list_those_known(tmp_path: Path) -> None:
    write(tmp_path, "zzzz = 1")
    said = complaint(tmp_path)
    assert said.startswith(".dsv4check.toml: unknown key 'zzzz'; known keys: baseline, env, exclude, fail-on, gpu,")


def test_hostile_files(tmp_path: Path) -> None:
    path = write(tmp_path, "x = " + "9" * 5000)
    assert complaint(tmp_path).startswith(".dsv4check.toml: line 1: not TOML: ")
    path.write_bytes(b"gpu = '\xff'")
    assert "not UTF-8: byte 0xff at offset 7 (line 1)" in complaint(tmp_path)
    path.write_bytes(b"\xef\xbb\xbfgpu = 'x'\r\n")
    assert load_settings(tmp_path).facts.gpu == "x"
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    assert "larger than 1 MiB" in complaint(tmp_path)
    path.unlink()
    path.symlink_to(path.name)
    assert "leads back to itself" in complaint(tmp_path)


def test_lines_of_ignores_that_cannot_be_told(tmp_path: Path) -> None:
    write(tmp_path, 'gpu = "x"\nignore = [{path = "a", rules = ["A"], reason = "r"}]\n')
    assert [item.line for item in load_settings(tmp_path).ignores] == [1]
    write(tmp_path, '\n[tool]\n[[tool.dsv4check.ignore]]\npath="a"\nrules=["A"]\nreason="r"\n', "pyproject.toml")
    (tmp_path / ".dsv4check.toml").unlink()
    assert [item.line for item in load_settings(tmp_path).ignores] == [3]


def test_the_published_schema_is_current_and_agrees(tmp_path: Path) -> None:
    assert config_json_schema() == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert not list(validator.iter_errors(tomllib.loads(FULL)))
    for text in ("vlm = 'x'", "gpus = 0", "[[launch]]\ngpu = 'x'", IGNORE.replace('"r"', '" "'), "fail-on = 'x'"):
        assert list(validator.iter_errors(tomllib.loads(text))), text
