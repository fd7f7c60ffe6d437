"""The probe's child: one process for one device, so that a crash of a kernel is a result and not the end.

Run as a file by any interpreter that has PyTorch. It reads one request from stdin and writes a JSON object a line:
``started`` before and ``check`` after every check, ``done`` at the end. What is missing then is where it broke.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_FOLDER = Path(__file__).resolve().parent
_PACKAGE = "dsv4check_probe"


def _load_package() -> None:
    """Make the probe's files importable as ``dsv4check_probe``, and nothing else of the parent's packages."""
    if _PACKAGE in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    # Running a file puts its folder first on the path: its modules must not shadow anybody's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != str(_FOLDER)]


class Outcome(Exception):  # noqa: N818 - a way out of a check, not an error
    """How a check ended, where it is not simply well."""

    def __init__(self, status: str, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.data = data or {}


Work = Callable[[], "tuple[str, dict[str, Any]] | None"]
"""A check: returns its message and figures; raises Outcome, or anything else, which then is its failure."""


class Reporter:
    """Runs checks one by one and says what came of each."""

    def __init__(self, channel: BinaryIO) -> None:
        self._channel = channel
        self.lost = ""
        """Why nothing can run on the device any more; empty while it can."""

    def send(self, kind: str, **content: Any) -> None:
        """One message to the parent."""
        self._channel.write(json.dumps({"type": kind, **content}, default=str).encode() + b"\n")
        self._channel.flush()

    def check(self, name: str, work: Work, *, imports: bool = False) -> bool:
        """Run one check; True when it went well. ``imports``: its time is that of importing modules."""
        if self.lost:
            return self._answer(name, "skipped", self.lost, 0.0, {})
        self.send("started", name=name, imports=imports)
        began = time.monotonic()
        status, message, data = "ok", "", dict[str, Any]()
        try:
            message, data = work() or ("", {})
        except Outcome as outcome:
            status, message, data = outcome.status, str(outcome), outcome.data
        except Exception as error:
            status, message = self._failure(error)
        return self._answer(name, status, message, time.monotonic() - began, data)

    def skip(self, name: str, why: str) -> None:
        """Say that a check was not done."""
        self._answer(name, "skipped", why, 0.0, {})

    def _answer(self, name: str, status: str, message: str, seconds: float, data: dict[str, Any]) -> bool:
        record = {"name": name, "status": status, "message": message, "seconds": round(seconds, 3), "data": data}
        self.send("check", **record)
        return status in ("ok", "refused-as-expected")

    def _failure(self, error: Exception) -> tuple[str, str]:
        if out_of_memory(error):
            return "skipped", f"not enough free memory: {one_line(error)}"
        traceback.print_exc()
        text = one_line(error)
        if "CUDA error" in text:
            # After an illegal access every further call of this process answers the same.
            self.lost = "the CUDA context was lost in an earlier check"
        return "failed", f"{type(error).__name__}: {text}"


def out_of_memory(error: BaseException) -> bool:
    """Whether this says that something could not be had, and nothing about a cache or a kernel."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    # Not from PyTorch's allocator: a context, a module or a handle did not fit beside what is running.
    return any(said in str(error) for said in ("CUDA error: out of memory", "_STATUS_ALLOC_FAILED"))


def one_line(error: object) -> str:
    """What an exception says, fit for a table."""
    return " ".join(str(error).split())[:600]


def run(request: dict[str, Any], channel: BinaryIO) -> None:
    """All checks of a request."""
    reporter = Reporter(channel)
    found: dict[str, Any] = {}
    if not reporter.check("PyTorch", lambda: _import_torch(found), imports=True):
        reporter.send("done", unavailable=found.get("missing", ""))
        return
    wanted = request.get("device", "auto")
    if not reporter.check("device", lambda: _device(found, wanted, request["attention"]), imports=True):
        reporter.send("done")
        return
    steps = importlib.import_module(f"{_PACKAGE}.steps")
    try:
        steps.run_all(request, found["device"], reporter, Outcome)
    finally:
        if found["device"] == "cuda":
            with contextlib.suppress(Exception):
                found["torch"].cuda.empty_cache()
    reporter.send("done")


def _import_torch(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        found["missing"] = f"{sys.executable} has no working PyTorch ({one_line(error)})"
        raise Outcome("skipped", found["missing"]) from None
    torch.set_num_threads(1)
    found["torch"] = torch
    version, cuda = str(torch.__version__), torch.version.cuda
    build = f"for CUDA {cuda}" if cuda else "without CUDA"
    return f"PyTorch {version}, built {build}", {"torch": version, "cuda": cuda, "python": sys.version.split()[0]}


def _device(found: dict[str, Any], wanted: str, attention: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The GPU, or the CPU where there is none. Creates the CUDA context: that takes its time, like an import."""
    torch = found["torch"]
    if wanted == "cpu" or not torch.cuda.is_available():
        found["device"] = "cpu"
        why = "asked for" if wanted == "cpu" else "PyTorch sees no CUDA GPU"
        return f"CPU ({why})", {"device": "cpu", "why": why}
    found["device"] = "cuda"
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    capability = [properties.major, properties.minor]
    data = {"device": "cuda", "name": properties.name, "capability": capability, "free_bytes": free, "bytes": total}
    # A running server's memory is its own: what is asked for beyond this is refused here.
    torch.cuda.set_per_process_memory_fraction(min(1.0, _MOST_BYTES / total), 0)
    message = f"{properties.name} (SM {capability[0]}.{capability[1]}), {free >> 20:,} of {total >> 20:,} MiB free"
    stated = attention.get("capability")
    if stated and list(stated) != capability:
        asked = f"the launch is for SM {stated[0]}.{stated[1]}: its caches and kernels may not be those of this GPU"
        raise Outcome("failed", f"{message}; {asked}", data)
    _warm_up(torch)
    return message, data


def _warm_up(torch: Any) -> None:
    """Have the libraries loaded that the reference needs: on a cold disk that is no matter of a few seconds."""
    square = torch.ones(64, 64, dtype=torch.float64, device="cuda")
    (square @ square).to(torch.float32).to(torch.float8_e4m3fn).float().sum().item()


_MOST_BYTES = 512 << 20
"""What PyTorch may take of the GPU. The caches are at most 64 MiB; the rest is for the kernels' workspaces."""


def main() -> int:
    """Read the request, answer it."""
    # Whatever libraries print goes to stderr; the protocol has the real stdout for itself.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _load_package()
    try:
        request = json.loads(sys.stdin.buffer.readline())
    except ValueError as error:
        print(f"no request: {error}", file=sys.stderr)
        _forget_home()
        return 2
    watcher = _watch_parent()
    run(request, channel)
    with contextlib.suppress(OSError):
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)
    return 0


def _watch_parent() -> int:
    """A process that ends this one, and removes its home, when the parent is gone: one that is killed cannot do it.

    The parent holds the other end of stdin for as long as it lives. A thread would not do: this process may hang in a
    kernel. It is started before libraries are loaded that do not bear a fork.
    """
    child = os.getpid()
    if watcher := os.fork():
        return watcher
    # Were these open here, the parent would not see that the child has ended.
    os.closerange(1, 64)
    with contextlib.suppress(OSError):
        while os.read(0, 1 << 16):
            pass
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    _forget_home()
    os._exit(0)


def _forget_home() -> None:
    home = os.environ.get("HOME", "")
    if os.path.basename(home).startswith(_SCRATCH):
        shutil.rmtree(home, ignore_errors=True)


_SCRATCH = "dsv4check-probe-"
"""How the parent names the folders that it makes for children."""


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # exit handlers of libraries may wait for a device
