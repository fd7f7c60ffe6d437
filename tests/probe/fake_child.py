"""A child of the probe that behaves as its file's name says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODE = Path(__file__).stem


def say(kind: str, **content: Any) -> None:
    print(json.dumps({"type": kind, **content}), flush=True)


def check(name: str, status: str = "ok", message: str = "", /, **data: Any) -> None:
    say("started", name=name, imports=False)
    say("check", name=name, status=status, message=message, seconds=0.01, data=data)


REQUEST = json.loads(sys.stdin.readline())
say("started", name="PyTorch", imports=True)
if MODE == "no_torch":
    say("check", name="PyTorch", status="skipped", message="none", seconds=0, data={})
    say("done", unavailable="python has no working PyTorch (No module named 'torch')")
    sys.exit(0)
check("PyTorch", torch="2.13.0", cuda="13.0")
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
check("device", device="cuda", name=f"GPU of {visible}", capability=[9, 0])
check("bytes: swa")
match MODE:
    case "well":
        check("kernel: swa")
        check("512-byte view: the kernel", "refused-as-expected", "kv must have shape (...)")
        say("done")
    case "cpu":
        check("kernel: sparse decode", "skipped", "the kernel was not run: PyTorch sees no CUDA GPU")
        say("done")
    case "fails":
        check("kernel: swa", "failed", "the kernel's numbers are not the reference's")
        say("done")
    case "fails_on_one":
        check("kernel: swa", "failed" if visible == "1" else "ok")
        say("done")
    case "crashes":
        say("started", name="kernel: swa", imports=False)
        print("something in the extension", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    case "hangs":
        say("started", name="kernel: swa", imports=False)
        child = subprocess.Popen(["sleep", "600"])
        Path(__file__).with_suffix(".pid").write_text(str(child.pid))
        time.sleep(600)
    case "hangs_in_import":
        say("started", name="FlashMLA", imports=True)
        time.sleep(600)
    case "drips":
        # Each answer comes in time; all together take too long.
        for number in range(100):
            check(f"bytes: {number}")
            time.sleep(0.2)
    case "garbage":
        print("WARNING: hello from a library", flush=True)
        time.sleep(600)
    case "nonsense":
        say("check", name="kernel: swa", status="splendid", message="", seconds=0, data={})
        time.sleep(600)
    case "floods":
        while True:
            sys.stdout.write("x" * (1 << 20))
    case "endless":
        while True:
            check("kernel: swa")
    case "exits":
        print("Fatal: no", file=sys.stderr, flush=True)
        os._exit(7)
    case "closes_output":
        os.close(1)
        time.sleep(600)
    case "leaves":
        Path(os.environ["HOME"], "cache").mkdir()
        Path(os.environ["HOME"], "cache", "kernel").write_text("x")
        Path(__file__).with_suffix(".home").write_text(os.environ["HOME"])
        check("kernel: swa")
        say("done")
    case "environment":
        check("kernel: swa", seen=dict(os.environ))
        say("done")
