"""Which build of PyTorch, and which Triton, a rehearsal's environment gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from dsv4check.rehearsal.environment import RehearsalUnavailable

_TRITON: Final = {"2.11": "3.6", "2.12": "3.7", "2.13": "3.7", "2.14": "3.8"}
"""Series of Triton by PyTorch series, from the metadata of PyTorch's CUDA builds; CPU builds name none."""


@dataclass(frozen=True)
class TorchBuild:
    """What to install."""

    requirements: tuple[str, ...]
    note: str
    """What differs from the release's own pin; empty when nothing does."""
    large: bool = False
    """Brings CUDA's libraries along: the only build there is."""


def choose_torch(pinned: str | None, offered: Sequence[Version], platform: str = sys.platform) -> TorchBuild:
    """The CPU build nearest to the release's pin among the versions that pip offers.

    Where there is no CPU build, the CUDA build with its libraries: PyTorch does not import without them.
    Raises RehearsalUnavailable when pip offers no PyTorch at all.
    """
    if not offered:
        raise RehearsalUnavailable("pip offers no torch for this Python and platform")
    wanted = Version(pinned) if pinned else max(offered)
    # Only Linux's plain wheels are for CUDA.
    plain = [version for version in offered if version.local is None]
    usable = [version for version in offered if version.local == "cpu"] if platform == "linux" else plain
    if not usable:
        if not plain:
            raise RehearsalUnavailable("pip offers no CPU build of torch for this Python and platform")
        version = _nearest(wanted, plain)
        note = f"PyTorch {version} is the CUDA build: pip offers no CPU build"
        return TorchBuild((f"torch=={version}",), _differs(note, pinned, version), large=True)
    version = _nearest(wanted, usable)
    series = _TRITON.get(f"{version.major}.{version.minor}")
    triton = f"triton~={series}.0" if series else "triton"
    return TorchBuild((f"torch=={version}", triton), _differs("", pinned, version))


def _nearest(wanted: Version, offered: Sequence[Version]) -> Version:
    def distance(version: Version) -> tuple[int, int, bool, int]:
        apart = abs(version.minor - wanted.minor)
        micro = abs(version.micro - wanted.micro) if not apart else -version.micro
        return abs(version.major - wanted.major), apart, version < wanted, micro

    return min(offered, key=distance)


def _differs(note: str, pinned: str | None, version: Version) -> str:
    if pinned is None or version.public == Version(pinned).public:
        return note
    said = f"the release pins PyTorch {pinned}, the nearest CPU build that pip offers is {version.public}"
    return f"{note}; {said}" if note else said
