"""Real trees of releases: each is found to be itself, a changed one is told apart, and nobody waits for long."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from dsv4check.data import load_data
from dsv4check.doctor import DoctorReport, DoctorRequest, examine
from dsv4check.doctor.answers import release_answers
from dsv4check.host.records import State
from dsv4check.releases.facts import known_releases
from tests.conftest import SLOWER

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"
needs_trees = pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")


def tree_of(release: str) -> Path:
    assert TREES is not None
    folder = Path(TREES) / release
    if not (folder / "vllm").is_dir():
        pytest.skip(f"no tree of {release}")
    return folder


def looked(folder: Path, **asked: object) -> DoctorReport:
    return examine(DoctorRequest(vllm_path=str(folder), gpu="H200", gpus=8, **asked), env={})  # type: ignore[arg-type]


@needs_trees
@pytest.mark.parametrize("release", ["0.20.0", "0.22.1", "0.24.0", "0.28.0", "0.33.0"])
def test_a_release_is_itself(release: str) -> None:
    start = time.process_time()
    report = looked(tree_of(release), command=FLASH)
    assert time.process_time() - start < 15 * SLOWER
    build = report.build
    assert (build.version, build.nearest, build.is_release) == (release, release, True)
    assert build.commit
    assert {item.as_release for item in report.fingerprints if item.value is not None} == {True}
    assert all(quote.line > 0 and quote.text for item in report.fingerprints for quote in item.quotes)
    assert not [item for item in report.with_state(State.UNKNOWN) if item.id.startswith("internal-")]
    assert report.report is not None
    auto = release_answers(release)["auto-kv-cache-dtype"]
    assert ("KV001" in {finding.rule for finding in report.report.findings}) == (auto == "refused")


@needs_trees
def test_a_build_with_a_fix_put_into_it_is_told_apart(tmp_path: Path) -> None:
    shutil.copytree(tree_of("0.24.0") / "vllm", tmp_path / "vllm", copy_function=os.symlink)
    attention = tmp_path / "vllm/models/deepseek_v4/attention.py"
    text = attention.read_text(encoding="utf-8")
    refusal = '        assert kv_cache_dtype.startswith("fp8"), ('
    assert refusal in text
    attention.unlink()
    fixed = f'        if kv_cache_dtype == "auto":\n            kv_cache_dtype = "fp8"\n{refusal}'
    attention.write_text(text.replace(refusal, fixed, 1), encoding="utf-8")
    report = looked(tmp_path, command=FLASH)
    assert (report.build.nearest, report.build.is_release) == ("0.24.0", False)
    assert [item.path for item in report.build.differs] == ["kv_cache.packed.auto"]
    (other,) = (item for item in report.fingerprints if item.as_release is False)
    assert (other.id, other.value, other.release_value, other.fault) == ("auto-kv-cache-dtype", "fp8", "refused", False)
    assert report.report is not None
    assert "KV001" not in {finding.rule for finding in report.report.findings}
    assert report.report.verdict == "pass"


@pytest.mark.parametrize("release", known_releases())
def test_the_answers_of_every_release_are_kept(release: str) -> None:
    from dsv4check.installation.fingerprint import fingerprints

    kept = load_data("releases/fingerprints")["fingerprints"]
    known = {item.id: item.values for item in fingerprints()}
    assert kept.keys() <= known.keys(), "run scripts/record_fingerprints.py"
    for name, values in kept.items():
        assert values.keys() <= known[name].keys(), "run scripts/record_fingerprints.py"
    answers = release_answers(release)
    # One or two questions have no answer in a release that lacks what they ask about.
    assert len(answers) >= len(known) - 5
