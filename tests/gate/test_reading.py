from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dsv4check.gate import reading
from dsv4check.gate.reading import MAX_BYTES, read_source, source_from_bytes
from dsv4check.gate.records import FileProblem
from dsv4check.launchfiles.text import SourceText


def problem(path: Path) -> FileProblem:
    found = read_source(path, "shown.yaml")
    assert isinstance(found, FileProblem)
    assert found.path == "shown.yaml"
    assert "\n" not in found.why
    return found


def test_text_keeps_its_line_ends_and_loses_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    data = b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa4\rc\n"
    path.write_bytes(data)
    found = read_source(path, "deploy/a.yaml")
    assert isinstance(found, SourceText)
    assert (found.path, found.text, found.bom) == ("deploy/a.yaml", "a: 1\r\nb: ä\rc\n", True)
    assert found.encode() == data


def test_an_empty_file_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    found = read_source(path, "a")
    assert isinstance(found, SourceText)
    assert found.text == ""
    assert not found.bom


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * MAX_BYTES)
    assert isinstance(read_source(path, "a"), SourceText)
    path.write_bytes(b"x" * (MAX_BYTES + 1))
    assert "larger than 8 MiB" in problem(path).why


def test_a_huge_file_is_named_with_its_size_and_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)

    def refuse(*_args: object) -> int:
        raise AssertionError("opened")

    monkeypatch.setattr(os, "open", refuse)
    assert problem(path).why == "larger than 8 MiB (100 MiB); not read"


def test_a_file_that_states_no_size_is_read_up_to_the_limit() -> None:
    path = Path("/proc/self/environ" if os.environ.get("PATH") else "/proc/self/maps")
    if not path.exists():
        pytest.skip("no /proc")
    found = read_source(Path("/proc/self/maps"), "maps", limit=100)
    assert found == FileProblem("maps", 0, "larger than 100 bytes; not read")


def test_a_pipe_a_socket_a_device_and_a_folder_are_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        monkeypatch.setattr(os, "open", lambda *_args: pytest.fail("opened"))
        assert problem(tmp_path / "socket").why == "a socket; expected a file"
    assert problem(tmp_path / "pipe").why == "a named pipe; expected a file"
    assert problem(tmp_path).why == "a folder; expected a file"
    assert problem(Path("/dev/zero")).why == "a device; expected a file"


def test_a_pipe_that_took_the_files_place_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = tmp_path / "a"
    regular.write_text("x")
    looked_at = os.stat(regular)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "stat", lambda _path: looked_at)
    assert problem(pipe).why == "a named pipe; expected a file"


def test_what_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone")
    assert problem(tmp_path / "loop").why == "a symbolic link that leads back to itself"
    assert problem(tmp_path / "nowhere").why == "no such file or folder"
    assert problem(tmp_path / "gone").why == "no such file or folder"
    assert "cannot be read (file name too long)" in problem(tmp_path / ("x" * 300)).why
    assert "NUL" in problem(tmp_path / "a\0b").why


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    path.chmod(0)

    def refuse(*_args: object) -> int:
        raise PermissionError(13, "Permission denied")

    # The superuser reads it anyway.
    monkeypatch.setattr(reading.os, "open", refuse)
    assert problem(path).why == "cannot be read (permission denied)"


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b"a\nb\xffc", 2, "not UTF-8: byte 0xff at offset 3 (line 2)"),
        (b"\xef\xbb\xbf\xe4", 1, "not UTF-8: byte 0xe4 at offset 3 (line 1)"),
        ("a\n\nä".encode("latin-1"), 3, "not UTF-8: byte 0xe4 at offset 3 (line 3)"),
        (b"\xed\xa0\x80", 1, "not UTF-8: byte 0xed at offset 0 (line 1)"),
        (b"ab\x00c", 0, "a binary file (NUL byte at offset 2); expected text"),
        ("a: 1".encode("utf-16"), 0, "UTF-16 text (it begins with the byte order mark of UTF-16); expected UTF-8"),
        (b"\xfe\xff\x00a", 0, "UTF-16 text (it begins with the byte order mark of UTF-16); expected UTF-8"),
        ("a: 1".encode("utf-32"), 0, "UTF-32 text (it begins with the byte order mark of UTF-32); expected UTF-8"),
    ],
)
def test_what_is_no_text(data: bytes, line: int, why: str) -> None:
    assert source_from_bytes(data, "-") == FileProblem("-", line, why)
