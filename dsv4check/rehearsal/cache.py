"""The folder that provisioned environments live in: paths, records written in one step, sizes, the lock."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dsv4check.rehearsal.environment import RehearsalUnavailable

FORMAT: Final = 1
"""Of the records; one of another format is as good as none."""
_MB: Final = 1_000_000


def cache_root() -> Path:
    """The folder for everything that is built for rehearsals."""
    own = os.environ.get("DSV4CHECK_CACHE")
    if own:
        return Path(own).expanduser().absolute() / "rehearsal"
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared).expanduser().absolute() if shared else Path.home() / ".cache"
    return base / "dsv4check" / "rehearsal"


def release_folder(root: Path, version: str) -> Path:
    """Where the parts of one release are."""
    return root / re.sub(r"[^\w.+\-]", "_", version).lstrip(".")


def read_record(path: Path) -> dict[str, Any] | None:
    """A record, or None where there is none that can be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("format") == FORMAT else None


def write_record(path: Path, **content: Any) -> None:
    """Write a record in one step: it is there completely, or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"format": FORMAT, **content}, indent=1), encoding="utf-8")
    part.replace(path)


def megabytes(folder: Path) -> int:
    """What a folder holds."""
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                total += os.path.getsize(path)
    return round(total / _MB)


def check_disk(folder: Path, needed: int) -> None:
    """Raise RehearsalUnavailable unless ``needed`` MB are free where ``folder`` is or will be."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free // _MB
    if free < needed:
        raise RehearsalUnavailable(f"{folder}: about {needed} MB are needed, {free} MB are free on that disk")


@contextmanager
def locked(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file; waits while another process builds.

    pip inherits it: should this process be killed, nobody builds beside a pip that is still at work.
    """
    import fcntl  # not on every platform, and nothing else needs it

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run is building: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.set_inheritable(handle.fileno(), True)
        yield
