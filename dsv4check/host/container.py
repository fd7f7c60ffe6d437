"""Whether this process runs in a container, and what that container keeps from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .cgroups import Cgroup, read_text
from .records import Observation, State

_RUNTIMES: Final = (
    (re.compile(r"kubepods"), "Kubernetes"),
    (re.compile(r"docker"), "Docker"),
    (re.compile(r"libpod|podman"), "Podman"),
    (re.compile(r"lxc"), "LXC"),
    (re.compile(r"slurm"), "Slurm job"),
)
_SECCOMP: Final = {0: "off", 1: "strict", 2: "filter"}


def look_at_container(root: Path, cgroup: Cgroup) -> Observation:
    """The kind of container, and its seccomp filter."""
    kind, source = _kind(root, cgroup)
    seccomp = _seccomp(root)
    version = f"cgroup v{cgroup.version}" if cgroup.version is not None else "no cgroup files"
    parts = [kind or "no container recognised", version]
    if seccomp is not None:
        parts.append(f"seccomp {_SECCOMP.get(seccomp, seccomp)}")
    return Observation(
        id="limit-container",
        area="limits",
        state=State.OK,
        what="container",
        found=", ".join(parts),
        source=source,
        data={"container": kind, "cgroup_version": cgroup.version, "seccomp": seccomp},
    )


def _kind(root: Path, cgroup: Cgroup) -> tuple[str | None, str]:
    for runtime, name in _RUNTIMES:
        if runtime.search(cgroup.names):
            return name, "/proc/self/cgroup"
    if (root / "var/run/secrets/kubernetes.io").is_dir():
        return "Kubernetes", "/var/run/secrets/kubernetes.io"
    if (root / ".dockerenv").exists():
        return "Docker", "/.dockerenv"
    if (root / "run/.containerenv").exists():
        return "Podman", "/run/.containerenv"
    if (root / ".singularity.d").is_dir():
        return "Apptainer", "/.singularity.d"
    return None, "/proc/self/cgroup"


def _seccomp(root: Path) -> int | None:
    match = re.search(r"^Seccomp:\s*(\d)$", read_text(root / "proc/self/status") or "", re.MULTILINE)
    return int(match[1]) if match is not None else None
