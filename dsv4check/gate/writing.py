"""Files that are written whole, or stay as they were."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dsv4check.errors import InputError


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step, with the permissions it had. Raises InputError where that is not possible."""
    # Behind a symbolic link it is the file that is to change.
    target = os.path.realpath(path)
    part = ""
    try:
        handle, part = tempfile.mkstemp(prefix=".dsv4check-", dir=os.path.dirname(target))
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, _mode(target))
        os.replace(part, target)
        part = ""
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        if part:
            os.unlink(part)


def _mode(target: str) -> int:
    """Permissions of the file that is replaced, or those of a new one."""
    try:
        return os.stat(target).st_mode & 0o7777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
