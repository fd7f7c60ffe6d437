"""``dsv4check doctor`` as users run it, on installs that the tests write."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from dsv4check.cli.main import main
from tests.cli.program import run
from tests.host.fake_nvml import FakeNvml, gpu

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/doctor.schema.json").read_text(encoding="utf-8"))
FLASH = ["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8"]
MACHINE = ["--gpu", "H200", "--gpus", "8"]

Run = Callable[..., tuple[int, str, str]]


def install(folder: Path, version: str = "0.24.0", files: dict[str, str] | None = None) -> Path:
    """A package ``vllm`` with little in it, and its metadata."""
    package = folder / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('vllm was imported')\n", encoding="utf-8")
    text = f"__version__ = version = '{version}'\n__commit_id__ = commit_id = 'gabc1234ef'\n"
    (package / "_version.py").write_text(text, encoding="utf-8")
    for name, content in (files or {}).items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    distribution(folder, "vllm", version)
    return folder


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process, with the driver that a test gives it."""

    def run_inside(*words: str, nvml: object | None = None) -> tuple[int, str, str]:
        monkeypatch.setitem(sys.modules, "pynvml", nvml if nvml is not None else types.ModuleType("pynvml"))
        monkeypatch.setattr(sys, "argv", ["dsv4check", "doctor", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), said.out, said.err

    return run_inside


def test_a_launch_on_a_tree(tmp_path: Path) -> None:
    done = run("doctor", "--vllm-path", str(install(tmp_path)), *MACHINE, "--", *FLASH)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FAIL: the launch stops at model-init (")
    assert "  version   0.24.0 (" in done.stdout
    assert "error KV001 auto-on-packed-layout [model-init, proven]" in done.stdout
    assert "      vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8\n" in done.stdout
    assert "internal error" not in done.stdout


def test_without_a_launch_nothing_of_one_is_said(tmp_path: Path) -> None:
    done = run("doctor", "--vllm-path", str(install(tmp_path)), "--fail-on", "never")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Launch" not in done.stdout
    assert "Build" in done.stdout
    assert "internal error" not in done.stdout


@pytest.mark.parametrize("launch", [[], ["--", *FLASH]])
def test_json(tmp_path: Path, launch: list[str]) -> None:
    done = run("doctor", "--vllm-path", str(install(tmp_path)), *MACHINE, "--format", "json", *launch)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["build"]["version"] == "0.24.0"
    assert (document["launch"] is not None) == bool(launch)
    assert not [item for item in document["observations"] if item["id"].startswith("internal-")]


def test_markdown(tmp_path: Path) -> None:
    done = run("doctor", "--vllm-path", str(install(tmp_path)), *MACHINE, "--format", "markdown", "--", *FLASH)
    assert done.returncode == 1
    assert done.stdout.startswith("### FAIL: the launch stops at model-init (")
    assert "```sh\nvllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8\n```" in done.stdout


def test_without_vllm_it_says_so_and_looks_at_the_rest(inside: Run) -> None:
    code, out, err = inside("--fail-on", "never")
    assert (code, err) == (0, "")
    assert "no vLLM was looked at: " in out
    assert "Machine" in out
    assert "internal error" not in out


def test_a_python_without_vllm(inside: Run) -> None:
    code, out, err = inside("--python", sys.executable, "--fail-on", "never")
    assert (code, err) == (0, "")
    assert f"no vLLM was looked at: {sys.executable} has no vLLM" in out


def test_a_launch_without_vllm_is_judged_by_the_release(inside: Run) -> None:
    code, out, _err = inside("--vllm", "0.24.0", *MACHINE, "--", *FLASH)
    assert code == 1
    assert "Launch, judged by the rules of a release: no build was found" in out
    assert "error KV001" in out


def test_the_gpus_of_the_driver_are_those_of_the_launch(tmp_path: Path, inside: Run) -> None:
    nvml = FakeNvml([gpu("NVIDIA B200", (10, 0), 183359) for _ in range(4)])
    words = ("--vllm-path", str(install(tmp_path, "0.33.0")), "--format", "json")
    _code, out, _err = inside(*words, "--", *FLASH, nvml=nvml)
    document = json.loads(out)
    hardware = document["launch"]["deployment"]["hardware"]
    assert (hardware["gpu"], hardware["gpus_per_node"], hardware["source"]) == ("B200", 4, "nvml")
    assert [item["sm"] for item in document["machine"]["gpus"]] == ["10.0"] * 4
    assert "4 x NVIDIA B200, SM 10.0" in inside(*words[:2], nvml=nvml)[1]
    # Eight ranks do not fit four GPUs.
    assert document["verdict"] == "fail"


def test_packages_of_the_python_are_compared(tmp_path: Path, inside: Run) -> None:
    python = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python)], check=True)
    site = next((python / "lib").glob("python*/site-packages"))
    install(site)
    for name, version in (("torch", "2.9.0"), ("flashinfer-python", "0.6.8.post1")):
        distribution(site, name, version)
    code, out, _err = inside("--python", str(python), "--format", "json", "--", *FLASH)
    document = json.loads(out)
    assert document["build"]["version"] == "0.24.0"
    assert document["machine"]["packages"]["torch"] == "2.9.0"
    assert document["launch"]["deployment"]["packages"]["torch"] == "2.9.0"
    torch = next(item for item in document["observations"] if item["id"] == "package-torch")
    assert (torch["state"], torch["found"]) == ("error", "2.9.0")
    assert code == 1
    stated = inside("--python", str(python), "--package", "torch=2.11.0", "--format", "json", "--", *FLASH)[1]
    assert json.loads(stated)["launch"]["deployment"]["packages"]["torch"] == "2.11.0"


def test_a_broken_tree_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    files = {
        "envs.py": "def broken(:\n",
        "config/vllm.py": "\x00\x01",
        "models/deepseek_v4/attention.py": "class A: " + "(" * 500,
    }
    done = run("doctor", "--vllm-path", str(install(tmp_path, files=files)), *MACHINE, "--format", "json", "--", *FLASH)
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert all(item["why"] for item in document["build"]["unread"])
    assert all(item["value"] or item["why"] for item in document["fingerprints"])
    assert not [item for item in document["observations"] if item["id"].startswith("internal-")]


def test_strict_wants_everything_answered(tmp_path: Path) -> None:
    words = ["doctor", "--vllm-path", str(install(tmp_path)), "--fail-on", "never"]
    assert run(*words).returncode == 0
    # Nothing of such a tree can be read.
    assert run(*words, "--strict").returncode == 1


@pytest.mark.parametrize(("threshold", "code"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)])
def test_what_exits_with_1(tmp_path: Path, inside: Run, threshold: str, code: int) -> None:
    # MIG is a warning, and nothing here is an error.
    nvml = FakeNvml([gpu(mig=[1, 0])])
    words = ("--vllm-path", str(install(tmp_path)), "--fail-on", threshold)
    assert inside(*words, nvml=nvml)[0] == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vllm-path", "/nowhere"], "/nowhere"),
        (["--python", "/nowhere/python"], "/nowhere/python"),
        (["--", "vllm", "serve"], "no model"),
        (["--", "vllm", "serve", "nobody/nothing"], "no config.json"),
        (["--gpu", "H2000", "--", *FLASH], "unknown GPU"),
        (["--package", "torch", "--", *FLASH], "expected name=version"),
        (["--package", "torch"], "expected name=version"),
        (["--gpu", "H2000"], "unknown GPU"),
        (["--vllm", "newest"], "vLLM version"),
        (["--env", "X"], "expected NAME=VALUE"),
        ([*FLASH, "--vllm-path", "/x"], "stands behind the model"),
    ],
)
def test_unusable_input_exits_2(words: list[str], message: str) -> None:
    done = run("doctor", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 3


def test_secrets_stay_out(tmp_path: Path, inside: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hunter-two-22")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwx")
    words = ("--vllm-path", str(install(tmp_path)), *MACHINE, "--env", "VLLM_MY_TOKEN=hunter-two-23")
    for format in ("text", "json", "markdown"):
        out = inside(*words, "--format", format, "--", *FLASH, "--api-key", "hunter-two-24")[1]
        assert "hunter-two" not in out
        assert "hf_abc" not in out
