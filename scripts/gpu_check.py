#!/usr/bin/env python3
"""Run the probe on a machine with a GPU that has PyTorch, and vLLM or a folder packed beforehand.

``pack`` runs where vLLM's wheel can be had: it works out the caches of a launch and takes FlashMLA out of the wheel.
``run`` needs nothing but PyTorch and that folder; where vLLM is installed it runs the whole ``dsv4check probe``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
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
_SECONDS: Final = 270
"""For a whole probe. gpu_check.sh ends everything after 290."""
_CHECK_SECONDS: Final = 60.0
"""More than a probe's 15: a machine that has just started reads its libraries from a cold disk."""

_IMPORT_SECONDS: Final = 120.0
"""For each step that loads libraries."""


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - the GPU machine may have an older python3
        print(f"gpu_check: needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = options.add_subparsers(required=True)
    pack = commands.add_parser("pack", help="prepare a folder to take along")
    pack.add_argument("folder", type=Path)
    pack.add_argument("--vllm", default="0.26.0", help="release; its PyTorch must be that of the GPU machine")
    pack.add_argument("--wheel", type=Path, help="the release's wheel [default: fetched with pip]")
    pack.add_argument("--gpu", default="H200")
    pack.add_argument("--python", help="interpreter to run vLLM's own allocation with")
    pack.add_argument("--vllm-path", help="unpacked vLLM for that")
    pack.set_defaults(work=_pack)
    run = commands.add_parser("run", help="probe the GPU of this machine")
    run.add_argument("--carry", type=Path, help="the packed folder")
    run.add_argument("--out", type=Path, default=Path("gpu-check"))
    run.set_defaults(work=_run)
    # By hand: argparse gives up on what follows -- once options have come after the folder.
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = options.parse_args(words[:end])
    arguments.launch = words[end + 1 :] or list(LAUNCH)
    return int(arguments.work(arguments))


def _pack(arguments: argparse.Namespace) -> int:
    from dsv4check.errors import InputError
    from dsv4check.probe.node import ProbeRequest, prepare

    launch = {"command": arguments.launch, "source": "command line", "gpu": arguments.gpu, "gpus": 8}
    if not arguments.vllm_path:
        launch["vllm"] = arguments.vllm
    try:
        prepared = prepare(ProbeRequest(launch, python=arguments.python, vllm_path=arguments.vllm_path))
    except InputError as error:
        raise SystemExit(f"gpu_check: {error}") from None
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
            if subprocess.run([*command, "--dest", fetched, f"vllm=={version}"], check=False).returncode:
                raise SystemExit(f"gpu_check: pip did not fetch vLLM {version}; name its wheel with --wheel FILE")
            wheel = next(Path(fetched).glob("vllm-*.whl"))
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.startswith(_TAKEN)]
                if not any(name.endswith(".so") for name in names):
                    raise SystemExit(f"gpu_check: {wheel.name} has no {_TAKEN[0]}*.so")
                archive.extractall(folder, names)
        except (OSError, zipfile.BadZipFile) as error:
            raise SystemExit(f"gpu_check: {wheel} cannot be read: {error}") from None
    for package in _PACKAGES:
        (folder / package / "__init__.py").write_text("", encoding="utf-8")


def _run(arguments: argparse.Namespace) -> int:
    # timeout's signal: leaving in order ends the child and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu_check: ended before the probe gave an answer"))
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # The answer is printed anyhow, and it is what the machine was asked for.
        print(f"gpu_check: no files will be written: {error}", file=sys.stderr)
    whole = all(importlib.util.find_spec(name) is not None for name in _NEEDED)
    answer = _whole() if whole else _carried(arguments.carry)
    text = "\n".join(_lines(answer)) + "\n"
    print(text, end="", flush=True)
    if arguments.out.is_dir():
        try:
            (arguments.out / "probe.txt").write_text(text, encoding="utf-8")
            (arguments.out / "probe.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"gpu_check: the answer could not be written: {error}", file=sys.stderr)
    return 0 if answer["verdict"] == "pass" else 1


def _whole() -> dict[str, Any]:
    """The probe itself, with the vLLM that is installed."""
    options = ["--format", "json", "--gpus", "8", "--timeout", str(_CHECK_SECONDS)]
    command = [sys.executable, "-m", "dsv4check", "probe", *options, "--", *LAUNCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"gpu_check: the probe gave no answer within {_SECONDS} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"gpu_check: the probe gave no answer: {done.stderr.strip()[-500:]}") from None
    return answer


def _carried(folder: Path | None) -> dict[str, Any]:
    """The packed request, in a child of this interpreter that finds the packed FlashMLA."""
    from dsv4check.probe.parent import ChildRequest, run_child
    from dsv4check.probe.records import Attention, layouts_from

    packed = _packed(folder)
    stated: Mapping[str, Any] = packed["attention"]
    attention = Attention(
        stated["class"],
        stated["padded_heads"],
        stated["local_heads"],
        stated["topk"],
        None if stated["capability"] is None else (stated["capability"][0], stated["capability"][1]),
    )
    # PyTorch may be where this interpreter found it by PYTHONPATH.
    places = [str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    result = run_child(
        ChildRequest(
            python=sys.executable,
            layouts=layouts_from(packed["layouts"]),
            attention=attention,
            folders=(str(packed["folder"]), *places),
            detects_format=packed["detects_format"],
            check_seconds=_CHECK_SECONDS,
            import_seconds=_IMPORT_SECONDS,
        )
    )
    return {
        "verdict": result.verdict.value,
        "kernel_ran": result.kernel_ran,
        "unavailable": result.unavailable or None,
        **{name: packed[name] for name in ("static", "caches", "notes", "layouts", "launch")},
        "devices": [result.to_dict()],
    }


def _packed(folder: Path | None) -> dict[str, Any]:
    """What ``pack`` has written, and the folder it lies in."""
    if folder is None:
        raise SystemExit(
            "gpu_check: no vLLM is installed here, so a packed folder is needed: "
            "scripts/gpu_check.sh --pack DIR where vLLM's wheel can be had, then GPU_CHECK_CARRY=DIR here"
        )
    try:
        packed: dict[str, Any] = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        missing = [name for name in ("static", "caches", "layouts", "attention") if name not in packed]
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"gpu_check: {folder} is no folder made by --pack: {error}") from None
    if missing:
        raise SystemExit(f"gpu_check: {folder}/request.json is not of this version: no {', '.join(missing)} in it")
    return {**packed, "folder": folder.resolve()}


def _lines(answer: Mapping[str, Any]) -> list[str]:
    ran = "the kernel ran" if answer["kernel_ran"] else "THE KERNEL WAS NOT RUN"
    lines = [f"{answer['verdict']}: {ran}", answer["static"]["subject"], f"caches: {answer['caches']['message']}"]
    lines += [f"note: {note}" for note in answer.get("notes") or ()]
    if answer.get("unavailable"):
        lines.append(f"no answer: {answer['unavailable']}")
    for device in answer["devices"]:
        lines.append(f"{device['device']}: {device['seconds']} s of checks, {device['import_seconds']} s of imports")
        lines += [f"  {check['status']:20} {check['name']}: {check['message']}" for check in device["checks"]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
