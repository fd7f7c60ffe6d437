"""A child that misbehaves in the way its own file name says. Stands in for the real worker in tests.

Speaks the protocol by hand: what is tested is what the parent makes of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = Path(__file__).stem
STAGES = ["argparse", "engine-config", "model-init", "draft-init", "weight-load", "kv-cache-init", "flashmla-contract"]


def say(kind: str, **content: object) -> None:
    print(json.dumps({"protocol": 2, "type": kind, **content}), flush=True)


def result(identity: int, stage: str, status: str = "ok", **more: object) -> None:
    say("started", id=identity, stage=stage)
    base = {"seconds": 0.01, "exception": "", "message": "", "where": "", "detail": {}}
    say("result", id=identity, stage=stage, status=status, **{**base, **more})


def all_stages(identity: int) -> None:
    for stage in STAGES:
        result(identity, stage)
    say("done", id=identity, not_simulated=["kernels"])


match MODE:
    case "silent_start":
        time.sleep(60)
    case "dies_at_start":
        print("ModuleNotFoundError: No module named 'torch'", file=sys.stderr)
        sys.exit(1)
    case "broken_start":
        say("broken", reason="vLLM could not be imported: no module named frob")
        sys.exit(1)
    case "other_protocol":
        print(json.dumps({"protocol": 99, "type": "ready"}), flush=True)
        time.sleep(60)
    case "garbage_start":
        print("WARNING: hello from a library", flush=True)
        time.sleep(60)

say("ready", vllm="0.29.0")
for line in sys.stdin:
    message = json.loads(line)
    identity = message["id"]
    match MODE:
        case "well":
            all_stages(identity)
        case "well_but_noisy":
            for _ in range(400):
                print("log " * 2000, file=sys.stderr)
            all_stages(identity)
        case "fails":
            result(identity, "argparse")
            result(
                identity,
                "engine-config",
                "failed",
                exception="ValueError",
                message="no",
                where="config/vllm.py:1:f",
            )
            say("done", id=identity, not_simulated=[])
        case "dies":
            result(identity, "argparse")
            print("Segmentation fault in extension", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "dies_once":
            marker = Path(__file__).with_suffix(".marker")
            if not marker.exists():
                marker.touch()
                os._exit(7)
            all_stages(identity)
        case "hangs":
            result(identity, "argparse")
            say("started", id=identity, stage="engine-config")
            time.sleep(60)
        case "hangs_with_children":
            child = subprocess.Popen(["sleep", "60"])
            Path(__file__).with_suffix(".pid").write_text(str(child.pid))
            time.sleep(60)
        case "floods_without_end":
            result(identity, "argparse")
            while True:
                sys.stdout.write("x" * (1 << 20))
        case "floods_lines":
            while True:
                print("{}" * 1000)
        case "floods_stderr":
            while True:
                sys.stderr.write("x" * (1 << 20))
        case "garbage":
            print("Traceback (most recent call last):", flush=True)
            time.sleep(60)
        case "wrong_id":
            all_stages(identity + 1)
        case "unknown_stage":
            result(identity, "coffee")
            time.sleep(60)
        case "endless_results":
            while True:
                result(identity, "argparse")
        case "broken":
            result(identity, "argparse")
            say("broken", id=identity, reason="init_kv_cache now needs frob")
        case "closes_output":
            os.close(1)
            time.sleep(60)
