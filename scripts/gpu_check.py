#!/usr/bin/env python3
"""Run the probe on a machine with a GPU that has PyTorch, and vLLM or a folder packed beforehand.

``pack`` runs where vLLM's wheel can be had: it works out the caches of a launch and takes FlashMLA out of the wheel.
``run`` needs nothing but PyTorch and that folder; where vLLM is installed it runs the whole ``dsv4check probe``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LAUNCH: Final = ("vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8", "--kv-cache-dtype", "fp8")
_TAKEN: Final = ("vllm/_flashmla_C", "vllm/third_party/flashmla/")
"""Beginnings of the names of what is taken out of a wheel."""
_PACKAGES: Final = ("vllm", "vllm/third_party", "vllm/third_party/flashmla")
_NEEDED: Final = ("vllm", "pydantic", "typer", "yaml", "packaging")
"""What a whole probe imports; without them the packed folder is used."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = options.add_subparsers(required=True)
    pack = commands.add_parser("pack", help="prepare a folder to take along")
    pack.add_argument("folder", type=Path)
    pack.add_argument("--vllm", default="0.26.0", help="release; its PyTorch must be that of the GPU machine")
    pack.add_argument("--wheel", type=Path, help="the release's wheel [default: fetched with pip]")
    pack.add_argument("--gpu", default="H200")
    pack.add_argument("--python", help="interpreter to run vLLM's own allocation with")
    pack.add_argument("--vllm-path", help="unpacked vLLM for that")
    pack.add_argument("launch", nargs="*", default=list(LAUNCH))
    pack.set_defaults(work=_pack)
    run = commands.add_parser("run", help="probe the GPU of this machine")
    run.add_argument("--carry", type=Path, help="the packed folder")
    run.add_argument("--out", type=Path, default=Path("gpu-check"))
    run.set_defaults(work=_run)
    arguments = options.parse_args()
    return int(arguments.work(arguments))


def _pack(arguments: argparse.Namespace) -> int:
    from dsv4check.probe.node import ProbeRequest, prepare

    launch = {"command": arguments.launch, "source": "command line", "gpu": arguments.gpu, "gpus": 8}
    if not arguments.vllm_path:
        launch["vllm"] = arguments.vllm
    prepared = prepare(ProbeRequest(launch, python=arguments.python, vllm_path=arguments.vllm_path))
    if prepared.child is None:
        print(f"gpu_check: {prepared.origin.message}; {'; '.join(prepared.notes)}", file=sys.stderr)
        return 1
    child = prepared.child
    content = {
        "static": prepared.static,
        "caches": prepared.origin.to_dict(),
        "notes": list(prepared.notes),
        "layouts": child.layouts.to_dict(),
        "attention": child.attention.to_dict(),
        "detects_format": child.detects_format,
        "launch": arguments.launch,
    }
    arguments.folder.mkdir(parents=True, exist_ok=True)
    _extract(arguments.wheel, arguments.vllm, arguments.folder)
    (arguments.folder / "request.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.folder}: {sum(file.stat().st_size for file in arguments.folder.rglob('*')) >> 10:,} KiB")
    return 0


def _extract(wheel: Path | None, version: str, folder: Path) -> None:
    """FlashMLA's library and its Python interface, under the names they import each other by."""
    with tempfile.TemporaryDirectory() as fetched:
        if wheel is None:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", fetched, f"vllm=={version}"], check=True)
            wheel = next(Path(fetched).glob("vllm-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(_TAKEN)]
            if not any(name.endswith(".so") for name in names):
                raise SystemExit(f"gpu_check: {wheel.name} has no {_TAKEN[0]}*.so")
            for name in names:
                archive.extract(name, folder)
    for package in _PACKAGES:
        (folder / package / "__init__.py").write_text("", encoding="utf-8")


def _run(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    whole = all(importlib.util.find_spec(name) is not None for name in _NEEDED)
    answer = _whole() if whole else _carried(arguments.carry)
    text = "\n".join(_lines(answer)) + "\n"
    (arguments.out / "probe.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "probe.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0 if answer["verdict"] == "pass" else 1


def _whole() -> dict[str, Any]:
    """The probe itself, with the vLLM that is installed."""
    command = [sys.executable, "-m", "dsv4check", "probe", "--format", "json", "--gpus", "8", "--", *LAUNCH]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"gpu_check: the probe gave no answer: {done.stderr.strip()[-500:]}") from None
    return answer


def _carried(folder: Path | None) -> dict[str, Any]:
    """The packed request, in a child of this interpreter that finds the packed FlashMLA."""
    from dsv4check.probe.parent import ChildRequest, run_child
    from dsv4check.probe.records import Attention, layouts_from

    if folder is None or not (folder / "request.json").is_file():
        raise SystemExit(
            "gpu_check: no vLLM is installed here, so a packed folder is needed: "
            "scripts/gpu_check.sh --pack DIR where vLLM's wheel can be had, then GPU_CHECK_CARRY=DIR here"
        )
    packed = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    stated: Mapping[str, Any] = packed["attention"]
    attention = Attention(
        stated["class"],
        stated["padded_heads"],
        stated["local_heads"],
        stated["topk"],
        None if stated["capability"] is None else (stated["capability"][0], stated["capability"][1]),
    )
    result = run_child(
        ChildRequest(
            python=sys.executable,
            layouts=layouts_from(packed["layouts"]),
            attention=attention,
            folders=(str(folder.resolve()),),
            detects_format=packed["detects_format"],
        )
    )
    return {
        "verdict": result.verdict.value,
        "kernel_ran": result.kernel_ran,
        "unavailable": result.unavailable or None,
        **{name: packed[name] for name in ("static", "caches", "notes", "layouts", "launch")},
        "devices": [result.to_dict()],
    }


def _lines(answer: Mapping[str, Any]) -> list[str]:
    ran = "the kernel ran" if answer["kernel_ran"] else "THE KERNEL WAS NOT RUN"
    lines = [f"{answer['verdict']}: {ran}", answer["static"]["subject"], f"caches: {answer['caches']['message']}"]
    for device in answer["devices"]:
        lines.append(f"{device['device']}: {device['seconds']} s of checks, {device['import_seconds']} s of imports")
        lines += [f"  {check['status']:20} {check['name']}: {check['message']}" for check in device["checks"]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
