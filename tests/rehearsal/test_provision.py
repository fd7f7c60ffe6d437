"""Building environments to rehearse in, with a pip that fetches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

from dsv4check.errors import InputError
from dsv4check.rehearsal import cache, packages, wheel
from dsv4check.rehearsal import provision as module
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable
from dsv4check.rehearsal.pip import local_folders
from dsv4check.rehearsal.provision import provision, provisioned
from dsv4check.rehearsal.torch_build import choose_torch
from dsv4check.releases.timeline import newest_release
from tests.rehearsal.fake_pip import VLLM, FakePip, vllm_wheel

Build = Callable[..., Environment]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSV4CHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "warm_up", lambda environment, report: None)
    return tmp_path / "cache" / "rehearsal"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def build(root: Path, said: list[str]) -> Build:
    def run(pip: FakePip, version: str = "0.29.0", offline: bool = False, answer: bool = True) -> Environment:
        def confirm(question: str) -> bool:
            said.append(question)
            return answer

        return provision(version, offline=offline, confirm=confirm, report=said.append, run=pip)

    return run


def steps(pip: FakePip) -> list[str]:
    """What pip was asked for, in short."""
    found = []
    for words in pip.calls:
        named = [word for word in words[1:] if not word.startswith("-") and "/" not in word]
        found.append(f"{words[0]} {named[0] if named else ''}".strip())
    return found


ALL = ["download vllm==0.29.0", "download flashinfer-python==0.6.18", "index versions"]
ALL += ["download torch==2.13.0+cpu", "download click", "install"]


def test_a_whole_build_and_a_second_one_that_finds_it(build: Build, root: Path, said: list[str]) -> None:
    pip = FakePip()
    found = build(pip)
    assert found.vllm == "0.29.0"
    assert found.python.startswith(str(root / "venvs"))
    assert [Path(folder).name for folder in found.folders] == ["tree", "flashinfer"]
    assert found.notes == ("built by --provision",)
    assert steps(pip) == ALL
    assert str(root) in said[0]
    assert "MB to fetch" in said[0]
    assert any("vllm-0.29.0-cp38-abi3" in line and "MB)" in line for line in said)
    assert not list(root.rglob("*.whl")), "wheels are not kept"
    assert not list(root.rglob("*.part"))
    before = len(said)
    assert build(pip) == found
    assert (len(said), steps(pip)) == (before, ALL), "no question, no report, no pip"


def test_what_is_asked_of_pip(build: Build) -> None:
    pip = FakePip()
    build(pip)
    wanted = pip.calls[4][pip.calls[4].index("--dest") + 2 :]
    assert " ".join(wanted) == (
        "click mistral_common>=1.11 numpy nvidia-cutlass-dsl==4.6.2 pydantic>=2 tilelang==0.1.12 torch==2.13.0+cpu "
        "transformers<6,>=5.10 triton~=3.7.0"
    )
    assert "--only-binary=:all:" in pip.calls[4]
    assert not any("--no-index" in call for call in pip.calls[:5])
    assert "--no-deps" in pip.calls[0]
    assert "--no-deps" not in pip.calls[4]


@pytest.mark.parametrize(
    ("fail", "left"),
    [
        ("vllm==", ALL),
        ("flashinfer", ALL[1:]),
        ("index", None),
        ("click", ALL[2:]),
        ("install", ["index versions", "download torch==2.13.0+cpu", "download click", "install"]),
    ],
)
def test_an_interrupted_build_goes_on(fail: str, left: list[str] | None, build: Build, root: Path) -> None:
    pip = FakePip()
    pip.fail = fail
    if fail == "index":
        with pytest.raises(RehearsalUnavailable, match="pip offers no torch"):
            build(pip)
        return
    with pytest.raises(RehearsalUnavailable, match=f"No matching distribution found for {fail}"):
        build(pip)
    assert provisioned("0.29.0") is None
    assert packages.suitable(root, ()) is None
    pip.fail = ""
    pip.calls.clear()
    assert build(pip).vllm == "0.29.0"
    assert steps(pip) == left


def test_killed_while_packages_are_installed(build: Build, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(home: Path) -> None:
        raise KeyboardInterrupt

    pip = FakePip()
    with monkeypatch.context() as patch:
        patch.setattr(packages, "_check", stop)
        with pytest.raises(KeyboardInterrupt):
            build(pip)
    assert provisioned("0.29.0") is None
    home = next(path for path in (root / "venvs").iterdir() if (path / "bin").is_dir())
    (home / "half").touch()
    pip.calls.clear()
    build(pip)
    assert steps(pip) == ["index versions", "install"], "the wheels were there already"
    assert not (home / "half").exists(), "the half virtual environment was not used"


def test_a_damaged_wheel_is_fetched_again(build: Build, root: Path) -> None:
    wheels = root / "0.29.0" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / "vllm-0.29.0-cp38-abi3-x.whl").write_bytes(b"PK no")
    with pytest.raises(RehearsalUnavailable, match="damaged"):
        build(FakePip())
    assert build(FakePip()).vllm == "0.29.0"


def test_releases_share_packages(build: Build, root: Path) -> None:
    build(FakePip())
    metadata = VLLM.replace("tilelang==0.1.12", "tilelang==0.1.9") + "Requires-Dist: gguf>=0.17\n"
    pip = FakePip(metadata)
    found = build(pip, "0.28.0")
    assert len(list(root.glob("venvs/*/venv.json"))) == 1
    assert [Path(folder).name.partition("-")[0] for folder in found.folders] == ["tree", "flashinfer", "packages"]
    assert (Path(found.folders[2]) / "gguf").is_dir()
    assert steps(pip)[3:] == ["install gguf>=0.17", "download gguf==0.19.0", "install"]
    assert build(FakePip()).folders != found.folders, "the first release is as it was"


def test_releases_that_contradict_do_not_share(build: Build, root: Path) -> None:
    build(FakePip())
    build(FakePip(VLLM.replace("transformers<6,>=5.10", "transformers<5")), "0.28.0")
    assert len(list(root.glob("venvs/*/venv.json"))) == 2


def test_declined(build: Build, root: Path) -> None:
    pip = FakePip()
    with pytest.raises(RehearsalUnavailable, match=r"vLLM 0\.29\.0 was declined"):
        build(pip, answer=False)
    assert not pip.calls
    assert not root.exists()


def test_offline_never_leaves_the_machine(build: Build) -> None:
    pip = FakePip()
    pip.fail = "vllm=="
    with pytest.raises(RehearsalUnavailable, match=r"No matching distribution found for vllm==; --offline takes only"):
        build(pip, offline=True)
    assert all("--no-index" in call for call in pip.calls if call[0] != "config")
    assert pip.variables["PIP_FIND_LINKS"] == "/wheels file:///more"
    assert pip.variables["PIP_CONFIG_FILE"] == os.devnull
    pip.fail = ""
    assert build(pip, offline=True).vllm == "0.29.0"
    assert build(FakePip(), offline=True).vllm == "0.29.0"


def test_find_links_of_pip_config() -> None:
    lines = ["global.find-links='\\n/a\\nhttps://x/y'", "install.find-links='/a file:///b'", "global.timeout='3'", "x"]
    assert local_folders(lines) == ["/a", "file:///b"]


def test_disk_space(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: SimpleNamespace(free=100_000_000))
    pip = FakePip()
    with pytest.raises(RehearsalUnavailable, match=r"about \d+ MB are needed, 100 MB are free"):
        build(pip)
    assert not pip.calls


def test_no_room_while_unpacking(build: Build, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel, "unpack", full)
    with pytest.raises(RehearsalUnavailable, match="No space left on device"):
        build(FakePip())
    assert not (root / "0.29.0" / "tree").exists()


def test_two_builds_take_turns(build: Build, root: Path, said: list[str]) -> None:
    pips = [FakePip(), FakePip()]
    with cache.locked(root / "lock", said.append):
        threads = [threading.Thread(target=build, args=(pip,)) for pip in pips]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while sum("waiting" in line for line in said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not pips[0].calls + pips[1].calls
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(len(pip.calls) for pip in pips) == [0, len(ALL)]


def test_text_that_is_no_release(build: Build) -> None:
    with pytest.raises(InputError, match="'nightly' is no release"):
        build(FakePip(), "nightly")


def test_a_torch_that_does_not_load(build: Build, root: Path) -> None:
    class Broken(FakePip):
        def __call__(self, words, variables, line):  # type: ignore[no-untyped-def]
            code = super().__call__(words, variables, line)
            for module_file in root.glob("venvs/*/lib/python*/site-packages/torch/__init__.py"):
                module_file.write_text("raise ImportError('libx.so: cannot open')\n", encoding="utf-8")
            return code

    with pytest.raises(RehearsalUnavailable, match=r"does not load: ImportError: libx\.so"):
        build(Broken())
    assert provisioned("0.29.0") is None


def test_an_environment_that_was_damaged_is_not_used(build: Build, root: Path) -> None:
    found = build(FakePip())
    Path(found.python).unlink()
    assert provisioned("0.29.0") is None
    (root / "0.29.0" / "manifest.json").write_text("{", encoding="utf-8")
    assert provisioned("0.29.0") is None


@pytest.mark.usefixtures("root")
def test_a_large_pytorch_is_asked_about(said: list[str]) -> None:
    answers = iter([True, False])

    def confirm(question: str) -> bool:
        said.append(question)
        return next(answers)

    with pytest.raises(RehearsalUnavailable, match="the CUDA build was declined"):
        provision("0.29.0", offline=False, confirm=confirm, report=said.append, run=FakePip(torch="2.13.0"))
    assert "pip offers no CPU build of PyTorch here" in said[-1]


def test_unpacking_keeps_text(tmp_path: Path) -> None:
    wheel.unpack(vllm_wheel(tmp_path), tmp_path / "tree")
    names = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    info = "vllm-0.29.0.dist-info"
    assert names == {
        "vllm/__init__.py",
        "vllm/_version.py",
        "vllm/engine/__init__.py",
        "vllm/configs/h200.json",
        "vllm/template.jinja",
        "vllm/py.typed",
        f"{info}/METADATA",
        f"{info}/RECORD",
    }


@pytest.mark.parametrize(
    ("pinned", "offered", "platform", "chosen", "note"),
    [
        ("2.13.0", "2.13.0+cpu 2.13.0 2.14.0", "linux", "torch==2.13.0+cpu triton~=3.7.0", ""),
        ("2.14.0", "2.13.0+cpu 2.10.0+cpu 2.14.0", "linux", "torch==2.13.0+cpu triton~=3.7.0", "pins PyTorch 2.14.0"),
        ("2.11.0", "2.13.0+cpu 2.12.1+cpu", "linux", "torch==2.12.1+cpu triton~=3.7.0", "is 2.12.1"),
        ("2.11.0", "2.12.0+cpu 2.10.0+cpu", "linux", "torch==2.12.0+cpu triton~=3.7.0", "is 2.12.0"),
        ("2.11.0", "2.11.0 2.12.0", "darwin", "torch==2.11.0 triton~=3.6.0", ""),
        ("3.1.0", "3.1.0+cpu", "linux", "torch==3.1.0+cpu triton", ""),
        (None, "2.11.0+cpu 2.13.0+cpu", "linux", "torch==2.13.0+cpu triton~=3.7.0", ""),
        ("2.11.0", "2.11.0 2.12.0+cu130", "linux", "torch==2.11.0", "no CPU build"),
    ],
)
def test_choice_of_pytorch(pinned: str | None, offered: str, platform: str, chosen: str, note: str) -> None:
    build = choose_torch(pinned, [Version(word) for word in offered.split()], platform)
    assert " ".join(build.requirements) == chosen
    assert note in build.note
    assert bool(note) == bool(build.note)


def test_no_pytorch_at_all() -> None:
    with pytest.raises(RehearsalUnavailable, match="no torch"):
        choose_torch("2.13.0", [])


def test_where_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DSV4CHECK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "dsv4check" / "rehearsal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == Path.home() / ".cache" / "dsv4check" / "rehearsal"
    assert cache.release_folder(tmp_path, "../../etc").parent == tmp_path


def test_a_manifest_is_plain_json(build: Build, root: Path) -> None:
    build(FakePip())
    manifest = json.loads((root / "0.29.0" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["folders"] == ["tree", "flashinfer"]
    assert (root / "venvs" / manifest["venv"] / "venv.json").is_file()


@pytest.mark.skipif(os.environ.get("DSV4CHECK_PROVISION") != "1", reason="fetches gigabytes: DSV4CHECK_PROVISION=1")
def test_the_newest_release_for_real(tmp_path: Path) -> None:
    """Into DSV4CHECK_CACHE where that is set, so that later runs find it."""
    variables = {"DSV4CHECK_CACHE": str(tmp_path), **os.environ}
    launch = ["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8", "--kv-cache-dtype", "fp8"]
    options = ["--provision", "--yes", "--vllm", newest_release(), "--gpu", "H200", "--gpus", "8", "--format", "json"]
    words = [sys.executable, "-m", "dsv4check.cli.main", "rehearse", *options, "--", *launch]
    for _again in range(2):
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["verdict"] == "pass"
    assert not done.stderr, "found, not built again"
