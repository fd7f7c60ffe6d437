"""The parent's side of a probe's children: starts them, takes their answers, and outlives whatever they do.

A child that dies, hangs or speaks nonsense is a result of the check it was in. Standard library only, so that a
machine with PyTorch alone can run it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from dsv4check.child_output import ChildOutput
from dsv4check.probe.machine import child_variables
from dsv4check.probe.records import Attention, Check, CheckStatus, DeviceResult, Layouts, check_from
from dsv4check.records import dataclass, field

CHILD: Final = Path(__file__).parent / "child.py"
IMPORT_SECONDS: Final = 180.0
"""For one step that imports torch, vLLM or a kernel's library, cold caches included."""
CHECK_SECONDS: Final = 15.0
"""For all checks of a device together, imports left out."""
_MOST_LINE: Final = 1 << 20
_MOST_CHECKS: Final = 500


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """What one child is to do."""

    python: str
    layouts: Layouts
    attention: Attention
    folders: tuple[str, ...] = ()
    """Put first on the interpreter's path: an unpacked vLLM, a carried FlashMLA."""
    detects_format: bool = False
    """The release's FlashMLA tells a cache's format by the bytes of a state."""
    device: str = "auto"
    """``auto`` (the GPU where there is one) or ``cpu``."""
    seed: int = 0
    check_seconds: float = CHECK_SECONDS
    import_seconds: float = IMPORT_SECONDS
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables (``CUDA_VISIBLE_DEVICES`` of one of several GPUs)."""

    def message(self) -> bytes:
        """The line that the child reads."""
        content = {
            "layouts": self.layouts.to_dict(),
            "attention": self.attention.to_dict(),
            "detects_format": self.detects_format,
            "device": self.device,
            "seed": self.seed,
        }
        return json.dumps(content).encode() + b"\n"


def run_child(
    request: ChildRequest,
    *,
    label: str = "",
    child: Path | None = None,
    started: Callable[[Conversation], None] = lambda _: None,
) -> DeviceResult:
    """Run one child to its end. Never raises for anything the child does; ``started`` is given what can stop it."""
    with tempfile.TemporaryDirectory(prefix="dsv4check-probe-", ignore_cleanup_errors=True) as scratch:
        try:
            process = subprocess.Popen(
                [request.python, str(child or CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_variables(request.folders, scratch, request.variables),
                start_new_session=True,
            )
        except OSError as error:
            return DeviceResult(label, (), unavailable=f"{request.python} could not be started ({error})")
        conversation = Conversation(process, request)
        started(conversation)
        try:
            conversation.hold()
        finally:
            conversation.stop()
        return conversation.result(label)


def run_on_gpus(request: ChildRequest, devices: list[str], *, child: Path | None = None) -> tuple[DeviceResult, ...]:
    """One child for each device, all at the same time; ``devices`` are values of ``CUDA_VISIBLE_DEVICES``."""

    running: list[Conversation] = []
    over = threading.Event()

    def began(conversation: Conversation) -> None:
        running.append(conversation)
        if over.is_set():
            conversation.stop()

    def one(device: str) -> DeviceResult:
        variables = {**request.variables, "CUDA_VISIBLE_DEVICES": device}
        return run_child(_with(request, variables), label=f"GPU {device}", child=child, started=began)

    with ThreadPoolExecutor(max_workers=max(1, len(devices))) as pool:
        try:
            return tuple(pool.map(one, devices))
        except BaseException:
            # Ctrl-C reaches this thread alone: the others would wait for their children.
            over.set()
            for conversation in running:
                conversation.stop()
            raise


def _with(request: ChildRequest, variables: Mapping[str, str]) -> ChildRequest:
    fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
    return ChildRequest(**{**fields, "variables": variables})


class Conversation:
    """One child's answers, as far as they come."""

    def __init__(self, process: subprocess.Popen[bytes], request: ChildRequest) -> None:
        self._process = process
        self._request = request
        self._output = ChildOutput(process, _MOST_LINE)
        self._checks: list[Check] = []
        self._during = "start"
        self._imports = True
        self._seconds = self._import_seconds = 0.0
        self._unavailable = ""
        self._ended = False

    def hold(self) -> None:
        """Send the request and take answers until the child is done, gone or out of time."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            # It stays open: its end tells the child that this process is gone.
            self._process.stdin.write(self._request.message())
            self._process.stdin.flush()
        while not self._ended:
            left = max(0.0, self._request.check_seconds - self._seconds)
            limit = self._request.import_seconds if self._imports else left
            began = time.monotonic()
            try:
                line = self._output.line(limit)
            except TimeoutError:
                what = f"{limit:.0f} s" if self._imports else f"the {self._request.check_seconds:.0f} s for all checks"
                self._broken(f"the child did not answer within {what} and was ended")
                return
            self._spend(time.monotonic() - began)
            if line is None:
                self._broken(self._output.ending())
                return
            self._take(line)

    def _spend(self, seconds: float) -> None:
        if self._imports:
            self._import_seconds += seconds
        else:
            self._seconds += seconds

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["type"]
            if kind == "started":
                self._during, self._imports = str(message["name"]), bool(message["imports"])
            elif kind == "check":
                self._checks.append(check_from(message))
                self._imports = False
                if len(self._checks) > _MOST_CHECKS:
                    raise ValueError("too many answers")
            elif kind == "done":
                self._unavailable = str(message.get("unavailable") or "")
                self._ended = True
            else:
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._broken(f"the child wrote something that is no answer: {line[:80]!r}")

    def _broken(self, how: str) -> None:
        seconds = 0.0 if self._imports else round(self._seconds, 3)
        self._checks.append(Check(self._during, CheckStatus.CRASHED, f"{how} (during: {self._during})", seconds))
        self._ended = True

    def stop(self) -> None:
        """End the child and everything it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._ended and self._checks and self._checks[-1].status is not CheckStatus.CRASHED:
                self._process.wait(timeout=5)
        self._output.end()

    def result(self, label: str) -> DeviceResult:
        """What the child said."""
        device = next((check.data for check in self._checks if check.name == "device"), {})
        name = label or ("GPU" if device.get("device") == "cuda" else "CPU")
        return DeviceResult(
            name,
            tuple(self._checks),
            seconds=round(self._seconds, 3),
            import_seconds=round(self._import_seconds, 3),
            unavailable=self._unavailable,
        )
