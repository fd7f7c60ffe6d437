"""The machine's GPUs as PyTorch sees them, and the environment that a child of the probe gets.

Standard library only, so that a machine with PyTorch alone can run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Final

_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
_KEPT_PREFIXES: Final = ("NVIDIA_", "FLASHINFER_", "CUDA_VISIBLE_", "CUDA_DEVICE_")
"""The numbers of CUDA_VISIBLE_DEVICES mean nothing without CUDA_DEVICE_ORDER."""
_SECONDS: Final = 180.0
"""For the import of PyTorch, cold caches included."""

_ASK: Final = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [[torch.cuda.get_device_name(i), "%d.%d" % torch.cuda.get_device_capability(i)] for i in range(count)]
print(json.dumps(names))
"""


def gpus_seen(python: str) -> list[tuple[str, str]]:
    """Name and compute capability of each GPU that PyTorch sees; empty without PyTorch or a GPU."""
    with tempfile.TemporaryDirectory(prefix="dsv4check-probe-", ignore_cleanup_errors=True) as scratch:
        try:
            done = subprocess.run(
                [python, "-c", _ASK],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                env=child_variables((), scratch, {}),
                check=False,
            )
            return [(str(name), str(sm)) for name, sm in json.loads(done.stdout.strip().splitlines()[-1])]
        except (OSError, ValueError, TypeError, IndexError, subprocess.TimeoutExpired):
            return []


def visible_gpus(python: str) -> list[str]:
    """The GPUs that PyTorch sees, as values of ``CUDA_VISIBLE_DEVICES``."""
    count = len(gpus_seen(python))
    stated = [item.strip() for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item.strip()]
    return (stated or [str(number) for number in range(count)])[:count]


def child_variables(folders: tuple[str, ...], scratch: str, more: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment: no tokens, no network, caches in a folder that goes when it ends."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(folders),
        # PyTorch may be installed for this user alone, which the interpreter looks up below the home.
        "PYTHONUSERBASE": os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": scratch,
        # PyTorch's compiler leaves its folder there.
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": os.path.join(scratch, "cache"),
        "XDG_CONFIG_HOME": os.path.join(scratch, "config"),
        "VLLM_CACHE_ROOT": os.path.join(scratch, "cache", "vllm"),
        "VLLM_CONFIG_ROOT": os.path.join(scratch, "config", "vllm"),
        "TRITON_CACHE_DIR": os.path.join(scratch, "cache", "triton"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }
