from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.host.elf import CannotBeRead, needed_libraries, opened, read_elf
from dsv4check.host.fatbin import read_device_code
from tests.host.made_elf import elf, library

WHOLE = library(("sm_90a", "sm_100f"), ("compute_80",), needed=["libtorch.so", "libcudart.so.13"])


def read(path: Path, content: bytes):
    path.write_bytes(content)
    with opened(path) as data:
        return read_elf(data)


def test_sections_are_found_by_name(tmp_path):
    found = read(tmp_path / "x.so", elf([(".nv_fatbin", b"abc"), (".text", b"defgh")]))
    assert [(section.name, section.size) for section in found.find(".nv_fatbin", ".text")] == [
        (".nv_fatbin", 3),
        (".text", 5),
    ]
    assert found.find("__nv_relfatbin") == ()


def test_needed_libraries_in_their_order(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(elf(needed=["libtorch.so", "libcudart.so.13", "libc.so.6"]))
    assert needed_libraries(path) == ("libtorch.so", "libcudart.so.13", "libc.so.6")
    path.write_bytes(elf())
    assert needed_libraries(path) == ()


@pytest.mark.skipif(shutil.which("readelf") is None or sys.platform != "linux", reason="no readelf")
def test_needed_libraries_of_this_interpreter_agree_with_readelf():
    path = Path(sys.executable).resolve()
    said = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    wanted = [line.split("[")[1].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line]
    assert wanted
    assert list(needed_libraries(path)) == wanted


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends before its ELF header"),
        (b"\x7fELF", "ends before its ELF header"),
        (b"version https://git-lfs.github.com/spec/v1\n" * 3, "no ELF file"),
        (b"\x7fELF\x01\x01" + bytes(80), "no 64-bit little-endian"),
        (b"\x7fELF\x02\x02" + bytes(80), "no 64-bit little-endian"),
        (WHOLE[:-1], "ends before its section table"),
        (WHOLE[:200], "ends before its section table"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    with pytest.raises(CannotBeRead, match=message):
        read(tmp_path / "x.so", content)


def test_numbers_that_make_no_sense(tmp_path):
    def patched(at: int, form: str, value: int) -> bytes:
        made = bytearray(WHOLE)
        struct.pack_into(form, made, at, value)
        return bytes(made)

    for content in (patched(58, "<H", 40), patched(62, "<H", 60), patched(60, "<H", 0), patched(40, "<Q", 1 << 63)):
        with pytest.raises(CannotBeRead):
            read(tmp_path / "x.so", content)


def test_section_count_beyond_the_header_is_bounded(tmp_path):
    """With e_shnum 0 the count stands in a 64-bit field: a hostile one must not be allocated."""
    made = bytearray(WHOLE)
    table = struct.unpack_from("<Q", made, 40)[0]
    struct.pack_into("<H", made, 60, 0)
    struct.pack_into("<Q", made, table + 32, 1 << 40)
    with pytest.raises(CannotBeRead, match="section table makes no sense"):
        read(tmp_path / "x.so", bytes(made))


def test_section_count_in_the_first_section_is_used(tmp_path):
    made = bytearray(WHOLE)
    table, count = struct.unpack_from("<Q", made, 40)[0], struct.unpack_from("<H", made, 60)[0]
    struct.pack_into("<H", made, 60, 0)
    struct.pack_into("<Q", made, table + 32, count)
    assert len(read(tmp_path / "x.so", bytes(made)).sections) == count


def test_what_is_not_there_or_no_file(tmp_path):
    for path in (tmp_path / "missing.so", tmp_path):
        with pytest.raises(CannotBeRead):
            needed_libraries(path)


def readable(path: Path, content: bytes) -> bool:
    """False for CannotBeRead; every other exception is the test's failure."""
    path.write_bytes(content)
    try:
        read_device_code(path)
    except CannotBeRead:
        return False
    return True


@given(st.integers(0, len(WHOLE)))
def test_truncated_files(tmp_path_factory, length):
    path = tmp_path_factory.getbasetemp() / "truncated.so"
    assert readable(path, WHOLE[:length]) == (length == len(WHOLE))


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes(tmp_path_factory, content, headed):
    path = tmp_path_factory.getbasetemp() / "random.so"
    head = b"\x7fELF\x02\x01\x01\0" if headed else b""
    readable(path, head + content)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_bytes(tmp_path_factory, changes):
    made = bytearray(WHOLE)
    for at, value in changes:
        made[at] = value
    readable(tmp_path_factory.getbasetemp() / "damaged.so", bytes(made))
