"""ELF files and fatbin containers written by hand, as nvcc lays them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PTX, CUBIN, LTO = 1, 2, 8
SPECIFIC, FAMILY = 1 << 20, 1 << 21


def entry(target: str, payload: bytes = b"\x7fELF code", *, compressed: bool = False, kind: int | None = None) -> bytes:
    """One entry: ``sm_90a``, ``sm_100f``, ``compute_80``."""
    name, sm = target.split("_")
    flags = 0x11 | (SPECIFIC if sm.endswith("a") else 0) | (FAMILY if sm.endswith("f") else 0)
    if compressed:
        flags |= 0x8000
    if int(sm.rstrip("af")) >= 100 and name == "sm":
        flags |= 1 << 24
    body = payload + b"\0" * (-len(payload) % 8)
    number = (PTX if name == "compute" else CUBIN) if kind is None else kind
    head = struct.pack("<HHIQ", number, 0x101, 64, len(body))
    head += struct.pack("<IIHHIIIQQQ", 0, 0, 8, 1, int(sm.rstrip("af")), 0, 0, flags, 0, 0)
    assert len(head) == 64
    return head + body


def container(*targets: str, padding: int = 0) -> bytes:
    """A container of these targets, and padding behind it."""
    entries = b"".join(entry(target) for target in targets)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + b"\0" * padding


def elf(
    sections: Sequence[tuple[str, bytes]] = (), needed: Sequence[str] = (), *, machine: int = 62, flags: int = 0
) -> bytes:
    """A 64-bit little-endian shared library with these sections."""
    strings = b"\0"
    dynamic = b""
    for name in needed:
        dynamic += struct.pack("<qQ", 1, len(strings))
        strings += name.encode() + b"\0"
    parts = [("", 0, b"", 0), (".dynstr", 3, strings, 0)]
    if needed:
        parts.append((".dynamic", 6, dynamic + struct.pack("<qQ", 0, 0), 1))
    parts += [(name, 1, content, 0) for name, content in sections]
    names = b"".join(name.encode() + b"\0" for name, *_rest in parts) + b".shstrtab\0"
    parts.append((".shstrtab", 3, names, 0))
    body, rows, at = b"", b"", 0
    for name, kind, content, link in parts:
        offset = 64 + len(body)
        rows += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, offset, len(content), link, 0, 8, 0)
        at += len(name) + 1
        body += content + b"\0" * (-len(content) % 8)
    ident = b"\x7fELF\x02\x01\x01\0" + bytes(8)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(parts), len(parts) - 1
    )
    return head + body + rows


def library(*units: Sequence[str], needed: Sequence[str] = ("libcudart.so.13",), section: str = ".nv_fatbin") -> bytes:
    """A shared library with one container for each of ``units``."""
    code = b"".join(container(*targets) for targets in units)
    return elf([(section, code)] if units else [], needed)


def cubin(flags: int, abi: int = 8) -> bytes:
    """A cubin with these ELF flags."""
    made = bytearray(elf(machine=190, flags=flags))
    made[7], made[8] = 0x41, abi
    return bytes(made)
