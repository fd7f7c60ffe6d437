"""Wheels a few files large, and a pip that serves them from a table and installs by making folders."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

VLLM = """Metadata-Version: 2.4
Name: vllm
Version: 0.29.0
Requires-Dist: torch==2.13.0
Requires-Dist: torchvision==0.28.0
Requires-Dist: transformers<6,>=5.10
Requires-Dist: pydantic>=2
Requires-Dist: numpy
Requires-Dist: tilelang==0.1.12
Requires-Dist: mistral_common[image]>=1.11
Requires-Dist: flashinfer-python==0.6.18
Requires-Dist: nvidia-cudnn-frontend>=1.13
Requires-Dist: nvidia-cutlass-dsl[cu13]==4.6.2
Requires-Dist: six>=1.16; python_version < "3"
Requires-Dist: pandas; extra == "bench"
"""
FLASHINFER = "Metadata-Version: 2.4\nName: flashinfer-python\nVersion: 0.6.18\nRequires-Dist: click\n"
VERSIONS = {
    "torch": "2.13.0+cpu",
    "triton": "3.7.1",
    "tilelang": "0.1.12",
    "transformers": "5.20.0",
    "pydantic": "2.14.0",
    "numpy": "2.3.5",
    "mistral_common": "1.13.1",
    "nvidia_cutlass_dsl": "4.6.2",
    "click": "8.5.1",
    "gguf": "0.19.0",
}


def write_wheel(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """A wheel with these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def vllm_wheel(folder: Path, version: str = "0.29.0", metadata: str = VLLM) -> Path:
    """vLLM's wheel, with something of each kind in it."""
    return write_wheel(
        folder / f"vllm-{version}-cp38-abi3-manylinux_2_28_x86_64.whl",
        {
            "vllm/__init__.py": "",
            "vllm/_version.py": f"__version__ = version = '{version}'\n",
            "vllm/engine/__init__.py": "",
            "vllm/configs/h200.json": "{}",
            "vllm/template.jinja": "x",
            "vllm/_C.abi3.so": b"\0" * 100,
            "vllm/libnvshmem.so.3.4": b"\0" * 100,
            "vllm/kernels/a.cubin": b"\0",
            "vllm/csrc/a.cuh": "x",
            "vllm/vllm-rs": b"\0" * (5 << 20),
            "vllm/py.typed": "",
            f"vllm-{version}.data/scripts/vllm": "x",
            f"vllm-{version}.dist-info/METADATA": metadata,
            f"vllm-{version}.dist-info/RECORD": "x",
        },
    )


class FakePip:
    """A Runner. ``fail`` names a step (a word of the command) that fails, ``calls`` what was asked for."""

    def __init__(self, metadata: str = VLLM, torch: str = "2.15.0, 2.13.0+cpu, 2.13.0, 2.11.0") -> None:
        self.metadata = metadata
        self.torch = torch
        self.fail = ""
        self.calls: list[list[str]] = []
        self.variables: Mapping[str, str] = {}

    def __call__(self, words: Sequence[str], variables: Mapping[str, str], line: Callable[[str], None]) -> int:
        words = list(words)[3:]  # the interpreter, -m, pip
        python = Path(words[1]) if words[0] == "--python" else None
        words = words[2:] if python else words
        self.calls.append(words)
        self.variables = variables
        if self.fail and any(self.fail in word for word in words):
            line(f"Collecting {self.fail}")
            line(f"ERROR: No matching distribution found for {self.fail}")
            return 1
        if words[:2] == ["config", "list"]:
            line("global.find-links='/wheels https://example.org/wheels'")
            line(":env:.find-links='file:///more'")
        elif words[0] == "index":
            line("WARNING: experimental")
            line(f"Available versions: {self.torch}")
        elif words[0] == "download":
            self._download(words, line)
        elif "--dry-run" in words:
            wanted = [word for word in words if word.startswith("gguf")]
            report = {"install": [{"metadata": {"name": name, "version": VERSIONS[name]}} for name in ["gguf"]]}
            assert wanted
            Path(words[words.index("--report") + 1]).write_text(json.dumps(report), encoding="utf-8")
        else:
            assert words[0] == "install"
            assert python is not None
            home = python.parent.parent
            target = Path(words[words.index("--target") + 1]) if "--target" in words else None
            if target is None:
                target = next(home.glob("lib/python*/site-packages"))
            for word in words:
                if word.endswith(".whl"):
                    with zipfile.ZipFile(word) as archive:
                        archive.extractall(target)
        return 0

    def _download(self, words: list[str], line: Callable[[str], None]) -> None:
        folder = Path(words[words.index("--dest") + 1])
        for word in words[words.index("--dest") + 2 :]:
            if word.startswith("-"):
                continue
            name = word.partition("[")[0].split("=")[0].split("<")[0].split(">")[0].split("~")[0].replace("-", "_")
            if name == "vllm":
                path = vllm_wheel(folder, word.partition("==")[2], self.metadata)
            elif name == "flashinfer_python":
                path = folder / "flashinfer_python-0.6.18-py3-none-any.whl"
                files = {"flashinfer/__init__.py": "", "flashinfer/data/a.cu": "x"}
                write_wheel(path, {**files, "flashinfer_python-0.6.18.dist-info/METADATA": FLASHINFER})
            else:
                path = folder / f"{name}-{VERSIONS[name]}-py3-none-any.whl"
                metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {VERSIONS[name]}\n"
                write_wheel(path, {f"{name}/__init__.py": "", f"{name}-{VERSIONS[name]}.dist-info/METADATA": metadata})
            line(f"  Downloading {path.name} ({max(path.stat().st_size // 1_000_000, 1)}.0 MB)")
