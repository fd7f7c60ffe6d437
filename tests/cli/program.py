"""Runs the program as a user does."""

from __future__ import annotations

import subprocess
import sys


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsv4check", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
