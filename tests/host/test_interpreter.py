from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from dsv4check.host.interpreter import InterpreterFacts, ask_interpreter, torch_build

TORCH_CUDA = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.14.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'abc123'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
"""


def dist(folder: Path, name: str, version: str, *requires: str, written: str | None = None) -> Path:
    info = folder / f"{(written or name).replace('-', '_')}-{version or '0'}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", *([f"Version: {version}"] if version else [])]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {item}" for item in requires), ""]))
    return info


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def asked(names: list[str], python: str | None = None) -> InterpreterFacts:
    facts = ask_interpreter(python, names)
    assert isinstance(facts, InterpreterFacts), facts
    return facts


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_this_python() -> None:
    facts = asked(["pytest", "no-such-package"])
    assert facts.version == ".".join(str(part) for part in sys.version_info[:3])
    assert facts.prefix == sys.prefix
    assert facts.installed("pytest") == pytest.__version__
    assert facts.installed("no-such-package") is None
    assert "no-such-package" not in facts.distributions


def test_packages_are_read_and_not_imported(site: Path) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (site / "torch" / "version.py").write_text(TORCH_CUDA)
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    dist(site, "torch", "2.14.0+cu130", 'triton==3.9.0; platform_system == "Linux"')
    dist(site, "flashinfer-python", "0.7.2.post1")
    facts = asked(["torch", "flashinfer-python"])
    assert facts.installed("torch") == "2.14.0+cu130"
    assert facts.installed("flashinfer-python") == "0.7.2.post1"
    assert facts.distributions["torch"][0].requires == ('triton==3.9.0; platform_system == "Linux"',)
    assert facts.distributions["torch"][0].location == str(site / "torch-2.14.0+cu130.dist-info")
    assert facts.modules["vllm"] == str(site / "vllm")
    assert facts.torch is not None
    assert (facts.torch.version, facts.torch.cuda, facts.torch.git) == ("2.14.0+cu130", "13.0", "abc123")
    assert facts.torch.kind == "cuda"
    assert not (site / "vllm" / "__pycache__").exists()


def test_a_package_twice(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    dist(site, "deep-gemm", "2.5.0")
    dist(other, "deep-gemm", "2.4.0")
    (tmp_path / "again").symlink_to(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (site, other, tmp_path / "again"))))
    found = asked(["deep-gemm"]).distributions["deep-gemm"]
    assert [item.version for item in found] == ["2.5.0", "2.4.0"]


def test_a_leftover_without_a_version(site: Path) -> None:
    dist(site, "tilelang", "")
    facts = asked(["tilelang"])
    assert facts.distributions["tilelang"][0].version == ""
    assert facts.installed("tilelang") is None


def test_metadata_that_cannot_be_read(site: Path) -> None:
    info = dist(site, "tilelang", "0.1.12")
    (info / "METADATA").write_bytes(b"\xff\xfe\x00 no metadata \xff")
    assert asked(["tilelang", "pytest"]).installed("pytest") == pytest.__version__


def test_the_working_folder_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    assert "deep_gemm" not in asked([]).modules


def test_a_virtual_environment_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    assert asked(["pytest"], str(tmp_path / "venv")).version


def test_noise_around_the_answer_is_passed_over(tmp_path: Path) -> None:
    noisy = program(tmp_path / "noisy", f'#!/bin/sh\necho warning >&2\n{sys.executable} "$@"\necho bye\n')
    assert asked(["pytest"], noisy).installed("pytest") == pytest.__version__


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python-at-all", "", "a\0b"])
def test_no_such_python(python: str) -> None:
    said = ask_interpreter(python, [])
    assert isinstance(said, str)
    assert "no such Python" in said


def test_a_folder_without_a_python(tmp_path: Path) -> None:
    assert "no such Python" in str(ask_interpreter(str(tmp_path), []))


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\0\1\2")
    said = ask_interpreter(str(path), [])
    assert isinstance(said, str)
    assert "cannot be started" in said
    path.chmod(0o755)
    said = ask_interpreter(str(path), [])
    assert isinstance(said, str)
    assert "cannot be started" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo hello; exit 0", "gave no answer that a Python gives; it said: hello"),
        ("exit 3", "ended with status 3"),
        ("echo 'dsv4check-facts:{\"version\": 1}'", "gave no answer"),
        ("echo 'dsv4check-facts:[[[['", "gave no answer"),
        ("echo 'dsv4check-facts:'$(printf '[%.0s' $(seq 1 200000))", "gave no answer"),
        ("printf '\\033[31mred\\n'", "it said: ?[31mred"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_garbage_instead_of_an_answer(tmp_path: Path, text: str, expected: str) -> None:
    said = ask_interpreter(program(tmp_path / "python", f"#!/bin/bash\n{text}\n"), [])
    assert isinstance(said, str)
    assert expected in said
    assert "\n" not in said
    assert len(said) < 600


def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    python = program(tmp_path / "python", f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    start = time.monotonic()
    said = ask_interpreter(python, [], timeout_s=0.5)
    assert time.monotonic() - start < 10
    assert said == f"{python}: did not answer within 0.5 s"
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("its child still runs")


def test_one_that_leaves_its_output_open(tmp_path: Path) -> None:
    python = program(tmp_path / "python", "#!/bin/sh\nsleep 60 &\nexit 0\n")
    assert "did not answer" in str(ask_interpreter(python, [], timeout_s=0.5))


def test_one_that_never_stops_writing(tmp_path: Path) -> None:
    python = program(tmp_path / "python", "#!/bin/sh\nyes\n")
    assert "wrote more than any answer is long" in str(ask_interpreter(python, [], timeout_s=20))


@pytest.mark.parametrize(
    ("text", "kind", "cuda"),
    [
        (TORCH_CUDA, "cuda", "13.0"),
        (TORCH_CUDA.replace("'13.0'", "None"), "cpu", None),
        (TORCH_CUDA.replace("'13.0'", "None").replace("hip: Optional[str] = None", "hip = '7.0'"), "rocm", None),
        ("__version__ = '2.0'\ncuda = '12.9'\n", "cuda", "12.9"),
        ("cuda = 12.9\n", "cpu", None),
    ],
)
def test_builds_of_torch(tmp_path: Path, text: str, kind: str, cuda: str | None) -> None:
    (tmp_path / "version.py").write_text(text)
    build = torch_build(tmp_path)
    assert build is not None
    assert (build.kind, build.cuda) == (kind, cuda)


@pytest.mark.parametrize("content", [b"def (:\n", b"\0", b"(" * 60000, b"-" * 60000 + b"1"])
def test_a_version_file_that_is_no_python(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "version.py").write_bytes(content)
    assert torch_build(tmp_path) is None
    assert torch_build(tmp_path / "nowhere") is None
