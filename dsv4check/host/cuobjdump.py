"""The second opinion on a file whose GPU code this package cannot read: NVIDIA's ``cuobjdump``.

It is not asked first. It takes seconds for a large extension, and it prints ``sm_100`` for a family target
``sm_100f``, so that what it says of GPUs within a family is less than what the file says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .elf import CannotBeRead, needed_libraries
from .fatbin import DeviceCode, Target

_LINE: Final = re.compile(r"(?:ELF|PTX) file\s+\d+: .*\.sm_(\d{2,3})([af]?)\.(cubin|ptx)\s*")
_NONE: Final = "does not contain device code"
_SECONDS: Final = 20.0


def find_cuobjdump(env: Mapping[str, str]) -> str | None:
    """The program on the PATH, or that of the CUDA toolkit; None when there is none."""
    on_path = shutil.which("cuobjdump", path=env.get("PATH", os.defpath))
    if on_path is not None:
        return on_path
    homes = [env.get("CUDA_HOME", ""), env.get("CUDA_PATH", ""), "/usr/local/cuda"]
    folders = os.pathsep.join(f"{home}/bin" for home in homes if home)
    return shutil.which("cuobjdump", path=folders)


def read_with_cuobjdump(tool: str, path: Path, seconds: float = _SECONDS) -> DeviceCode | None:
    """What ``cuobjdump --list-elf --list-ptx`` says of a file; None when it fails or takes too long."""
    try:
        done = subprocess.run(
            [tool, "--list-elf", "--list-ptx", str(path)],
            capture_output=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = done.stdout.decode("utf-8", "replace")
    units: Counter[frozenset[Target]] = Counter()
    for line in said.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            units[frozenset({Target(int(match[1]), match[2], match[3] == "ptx")})] += 1
    if not units and _NONE not in said + done.stderr.decode("utf-8", "replace"):
        return None
    try:
        needed = needed_libraries(path)
    except CannotBeRead:
        needed = ()
    return DeviceCode(units, needed)
