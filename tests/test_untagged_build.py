"""A launch on a build made without tags, such as the preview images of DeepSeek-V4 hold: judged as any release."""

from __future__ import annotations

from typing import Any

from dsv4check.releases.facts import known_releases
from dsv4check.report.json_format import report_to_dict
from dsv4check.report.model import Report
from tests.launches import run_launch

FLASH = "deepseek-ai/DeepSeek-V4-Flash"


def report(args: str, **more: Any) -> Report:
    launch = {"vllm": "0.1.dev15830+g8d599d76a", "gpu": "H200", "gpus": 8, "model": FLASH, "args": args}
    return run_launch(launch | more)


def errors(found: Report) -> set[str]:
    return {item.rule for item in found.errors}


def test_it_is_not_older_than_deepseek_v4() -> None:
    found = report("-tp 8 --kv-cache-dtype fp8")
    assert not errors(found)
    assert "MC001" not in " ".join(item.what for item in found.not_evaluated)
    assert found.deployment.vllm.version == "0.1.dev15830+g8d599d76a"
    assert any("cannot be told from its number" in note for note in found.notes)
    assert not any("does not know" in note for note in found.notes)


def test_what_every_release_refuses_is_an_error() -> None:
    assert errors(report("-tp 3 --kv-cache-dtype fp8")) == {"PA001"}


def test_what_only_some_releases_refuse_is_none() -> None:
    """`auto` is refused up to 0.29.0."""
    assert errors(run_launch({"vllm": "0.24.0", "gpu": "H200", "model": FLASH, "args": "-tp 8"})) == {"KV001"}
    assert not errors(report("-tp 8"))


def test_the_versions_of_a_rule_are_those_of_each_release() -> None:
    """Transformers 5.2 is too old for every release, and 5.7 for the newest ones."""
    for version, told in (("5.2.0", True), ("5.7.0", False)):
        found = report("-tp 8 --kv-cache-dtype fp8", packages={"transformers": version})
        assert ("MC038" in {item.rule for item in found.findings}) is told


def test_the_report_says_how_it_was_judged() -> None:
    document = report_to_dict(report("-tp 8 --kv-cache-dtype fp8"))
    assert document["deployment"]["vllm"]["kind"] == "development"
    assert document["deployment"]["vllm"]["brackets"] == list(known_releases()[::-1])
    assert "cannot be told from its number" in document["evidence"][0]["how"]


def test_an_older_release_is_still_refused() -> None:
    for version in ("0.19.1", "0.19.2rc1.dev5", "0.1.0"):
        assert errors(report("-tp 8 --kv-cache-dtype fp8", vllm=version)) == {"MC001"}
