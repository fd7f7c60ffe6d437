from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from dsv4check.engine.rule import Severity
from dsv4check.errors import InputError
from dsv4check.gate.baseline import (
    Baseline,
    BaselineEntry,
    apply_baseline,
    baseline_of,
    fingerprint,
    load_baseline,
    write_baseline,
)
from dsv4check.gate.ignores import own_finding
from dsv4check.gate.records import Region
from tests.gate.results import finding, launch, report

FULL = report(
    launch(finding("ME003", 3, token="b"), finding("KV001", 2), finding("KV001", 9)),
    launch(finding("KV001", 4, path="a/ü.sh", launch="line 4"), path="a/ü.sh", name="line 4"),
    launch(
        finding("KV002", severity=Severity.WARNING),
        finding("KV003", severity=Severity.NOTE),
        finding("KV004", ignored="r"),
    ),
    own=(own_finding("GT001", "m", "a.sh", Region(1, 1, 1, 1)),),
)


def test_a_fingerprint_is_short_stable_and_of_everything_but_lines() -> None:
    base = fingerprint("a.sh", "line 9", "KV001", "fp8", "key")
    assert re.fullmatch("[0-9a-f]{16}", base)
    assert base == fingerprint("a.sh", "line 12", "KV001", "fp8", "key")
    # Written down in files of others: it must never change.
    assert base == "3ce4cb3b0618bd15"
    others = [
        fingerprint("b.sh", "line 9", "KV001", "fp8", "key"),
        fingerprint("a.sh", "service x", "KV001", "fp8", "key"),
        fingerprint("a.sh", "line 9", "KV002", "fp8", "key"),
        fingerprint("a.sh", "line 9", "KV001", "fp16", "key"),
        fingerprint("a.sh", "line 9", "KV001", "fp8", "other"),
        fingerprint("a.sh", "line 9", "KV001fp8", "", "key"),
    ]
    assert len({base, *others}) == 7
    assert len(fingerprint("a\udcff.sh", "", "", "", "")) == 16


def test_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_baseline(path, FULL)
    data = path.read_bytes()
    assert data.endswith(b"}\n")
    content = json.loads(data)
    assert content["version"] == 1
    listed = [(item["path"], item["launch"], item["rule"], item["count"]) for item in content["findings"]]
    assert listed == [
        ("a.sh", "line", "KV001", 2),
        ("a.sh", "line", "KV002", 1),
        ("a.sh", "line", "ME003", 1),
        ("a/ü.sh", "line", "KV001", 1),
    ]
    assert all(list(item) == sorted(item) for item in content["findings"])
    assert "ü".encode() in data
    turned = report(*reversed(FULL.launches))
    write_baseline(path, turned)
    assert path.read_bytes() == data
    assert load_baseline(path) == baseline_of(FULL)
    assert os.listdir(tmp_path) == ["known.json"]


def test_lines_that_move_change_nothing(tmp_path: Path) -> None:
    first = report(launch(finding("KV001", 2, launch="line 2"), line=2, name="line 2"))
    moved = report(launch(finding("KV001", 7, launch="line 7"), line=7, name="line 7"))
    assert baseline_of(first) == baseline_of(moved)
    assert [item.baseline for item in apply_baseline(moved, baseline_of(first)).findings] == [True]


def test_all_that_is_listed_does_not_count() -> None:
    done = apply_baseline(FULL, baseline_of(FULL))
    assert [(item.rule, item.baseline) for item in done.findings] == [
        ("ME003", True),
        ("KV001", True),
        ("KV001", True),
        ("KV001", True),
        ("KV002", True),
        ("KV003", False),
        ("KV004", False),
        ("GT001", False),
    ]
    assert done.stale == ()
    assert baseline_of(done) == Baseline()


def test_no_more_than_are_listed() -> None:
    known = baseline_of(report(launch(finding("KV001", 2), finding("KV001", 9))))
    many = report(launch(finding("KV001", 1), finding("KV001", 5, ignored="r")), launch(*[finding("KV001", 7)] * 2))
    done = apply_baseline(many, known)
    assert [item.baseline for item in done.findings] == [True, False, True, False]
    assert done.stale == ()


def test_stale_entries() -> None:
    known = baseline_of(FULL)
    left = report(launch(finding("KV001", 2)))
    assert apply_baseline(left, known).stale == (
        "a.sh: line: KV001 (1 of 2)",
        "a.sh: line: KV002",
        "a.sh: line: ME003",
        "a/ü.sh: line: KV001",
    )
    assert apply_baseline(left, known, looked={"a/ü.sh"}).stale == ("a/ü.sh: line: KV001",)
    unchecked = report(launch(verdict=None), launch(path="a/ü.sh", verdict="pass"))
    assert apply_baseline(unchecked, known).stale == ("a/ü.sh: line: KV001",)
    assert apply_baseline(report(), known, looked=set()).stale == ()


def test_entries_listed_twice_add_up() -> None:
    item = finding("KV001")
    entry = BaselineEntry("a.sh", "line", "KV001", item.fingerprint, 1)
    done = apply_baseline(report(launch(item, item, item)), Baseline((entry, entry)))
    assert [one.baseline for one in done.findings] == [True, True, False]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    mask = os.umask(0o027)
    try:
        write_baseline(path, FULL)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    (tmp_path / "link.json").symlink_to("real.json")
    write_baseline(tmp_path / "link.json", report())
    assert (tmp_path / "link.json").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert load_baseline(path) == Baseline()


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "known.json"
    path.write_text("before")

    def refuse(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match=r"known.json: cannot be written \(No space left on device\)"):
        write_baseline(path, FULL)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["known.json"]
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\)"):
        write_baseline(tmp_path / "gone/known.json", FULL)


ENTRY = {"path": "a", "launch": "b", "rule": "KV001", "fingerprint": "0" * 16, "count": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: not JSON: Expecting value"),
        ('{\n"version": 1,\n}', "line 3: not JSON: Expecting property name"),
        ("[" * 100_000, "nested too deeply for a baseline"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
        ("[]", "no baseline: expected an object with version and findings"),
        ("{}", "no baseline: expected an object with version and findings"),
        ('{"version": 2}', "a baseline of version 2; this release reads version 1"),
        ('{"version": true, "findings": []}', "a baseline of version True; this release reads version 1"),
        ('{"version": 1}', "findings: expected a list"),
        ('{"version": 1, "findings": [3]}', "findings[1]: expected an object"),
        (json.dumps({"version": 1, "findings": [ENTRY, {**ENTRY, "path": 3}]}), "findings[2]: path: expected text"),
        (json.dumps({"version": 1, "findings": [{**ENTRY, "count": "1"}]}), "findings[1]: count: expected a whole"),
        (json.dumps({"version": 1, "findings": [{**ENTRY, "count": True}]}), "findings[1]: count: expected a whole"),
        (json.dumps({"version": 1, "findings": [{**ENTRY, "count": 0}]}), "findings[1]: count: expected at least 1"),
        (json.dumps({"version": 1, "findings": [{"path": "a"}]}), "findings[1]: launch: missing"),
    ],
)
def test_a_file_that_is_broken(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_baseline(path)
    assert str(error.value).startswith(f"{path}: {said}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder; expected a baseline"):
        load_baseline(tmp_path / "known.json")
    with pytest.raises(InputError, match="a folder; expected a file"):
        load_baseline(tmp_path)
