from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.errors import InputError
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.facts import known_releases
from dsv4check.releases.timeline import newest_release


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "version", "release"),
    [
        ("0.24.0", "0.24.0", "0.24.0"),
        ("v0.24.0", "0.24.0", "0.24.0"),
        ("0.24", "0.24.0", "0.24.0"),
        ("vllm==0.25.1", "0.25.1", "0.25.1"),
        ("vllm/vllm-openai:v0.24.0", "0.24.0", "0.24.0"),
        ("registry.example:5000/team/vllm-openai:v0.25.1-cu129", "0.25.1", "0.25.1"),
        ("vllm/vllm-openai:v0.24.0@sha256:abc", "0.24.0", "0.24.0"),
        ("0.24.0+cu129", "0.24.0+cu129", "0.24.0"),
        ("0.24.0.post1", "0.24.0.post1", "0.24.0"),
        ("0.24.0rc2", "0.24.0rc2", "0.24.0"),
        ("0.24.9", "0.24.9", "0.24.0"),
        ("v0.24.0-cu129", "0.24.0", "0.24.0"),
        ("0.24.0-cu129-ubuntu2404", "0.24.0", "0.24.0"),
    ],
)
def test_releases(text: str, version: str, release: str) -> None:
    build = resolve_vllm(text, lambda: None)
    assert (build.kind, build.version, build.release) == ("release", version, release)
    assert build.brackets == ()
    assert build.origin.kind == "option"


@pytest.mark.parametrize("text", ["0.24.0", "v0.24.0", "0.24.0+cu129"])
def test_no_note_when_nothing_was_chosen(text: str) -> None:
    assert resolve_vllm(text, lambda: None).note == ""


@pytest.mark.parametrize("text", ["0.24", "0.24.9", "0.24.0.post1", "0.24.0rc1", "99.1.0", "latest", "nightly"])
def test_a_choice_is_said(text: str) -> None:
    assert resolve_vllm(text, lambda: None).note


@pytest.mark.parametrize("text", ["latest", "vllm/vllm-openai:latest"])
def test_latest(text: str) -> None:
    assert resolve_vllm(text, lambda: None).release == newest_release()


def test_nightly_image_keeps_its_commit() -> None:
    build = resolve_vllm("vllm/vllm-openai:nightly-0123456789abcdef", lambda: None)
    assert (build.kind, build.commit, build.release) == ("development", "0123456789abcdef", newest_release())


@pytest.mark.parametrize("text", ["nightly-cu129", "nightly-aarch64", "vllm/vllm-openai:cu130-nightly", "main"])
def test_moving_names_without_a_commit(text: str) -> None:
    build = resolve_vllm(text, lambda: None)
    assert (build.kind, build.commit, build.release) == ("development", None, newest_release())


def test_development_build() -> None:
    build = resolve_vllm("0.23.1rc1.dev788+gfa4321de3", lambda: None)
    assert build.kind == "development"
    assert (build.dev_base, build.dev_number, build.commit) == ("0.23.1rc1", 788, "fa4321de3")
    assert build.brackets == ("0.24.0", "0.25.0")
    assert build.release in build.brackets
    assert "development build" in build.note


def test_build_right_after_a_release_is_that_release() -> None:
    build = resolve_vllm("0.20.1.dev0", lambda: None)
    assert (build.kind, build.release, build.brackets) == ("development", "0.20.0", ("0.20.0",))


@pytest.mark.parametrize("text", ["0.1.dev15830+g8d599d76a", "v0.1.dev15830", "0.1.dev1+g8d599d76a.d20260424"])
def test_the_number_of_a_build_without_tags_tells_no_release(text: str) -> None:
    build = resolve_vllm(text, lambda: None)
    assert (build.kind, build.version, build.release) == ("development", text.removeprefix("v"), newest_release())
    assert build.brackets == known_releases()[::-1]
    assert build.may_be_any
    assert build.dev_base is None
    assert "cannot be told from its number" in build.note
    assert "does not know" not in build.note
    assert build.commit == ("8d599d76a" if "+g" in text else None)


def test_an_installed_build_without_tags() -> None:
    assert resolve_vllm(None, lambda: "0.1.dev7+gabcdef0").may_be_any


@pytest.mark.parametrize("text", ["0.24.0", "nightly", "0.23.1rc1.dev788", "0.19.1", "0.1.0", "0.1.0.post1"])
def test_other_builds_are_near_some_release(text: str) -> None:
    assert not resolve_vllm(text, lambda: None).may_be_any


def test_older_than_support_keeps_its_version() -> None:
    build = resolve_vllm("0.19.1", lambda: None)
    assert (build.version, build.release) == ("0.19.1", "0.20.0")
    assert "does not know DeepSeek-V4" in build.note


def test_installed_version_is_used_without_text() -> None:
    build = resolve_vllm(None, lambda: "0.28.0+cu130")
    assert (build.version, build.release, build.origin.kind) == ("0.28.0+cu130", "0.28.0", "default")


@pytest.mark.parametrize("installed", [None, "unknown"])
def test_newest_without_anything(installed: str | None) -> None:
    build = resolve_vllm(None, lambda: installed)
    assert build.release == newest_release()
    assert "no vLLM version was given" in build.note


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "1",
        "vllm/vllm-openai:deepseekv4-cu130",
        "0.24.0; rm",
        "v",
        "0.24.0 0.25.0",
        "0.24.0-",
        "0.24.0-dev5",
        "nvcr.io/nvidia/vllm:25.09-py3",
    ],
)
def test_junk(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        resolve_vllm(text, lambda: None)


def test_absurdly_long_text() -> None:
    with pytest.raises(InputError, match="5002 characters are too long"):
        resolve_vllm("0." + "9" * 5000, lambda: None)


@given(
    st.one_of(
        st.text(max_size=40),
        st.from_regex(r"v?\d{1,3}\.\d{1,3}(\.\d{1,3})?(rc\d)?(\.dev\d{1,4})?", fullmatch=True),
    )
)
def test_any_text_gives_a_build_or_an_input_error(text: str) -> None:
    try:
        build = resolve_vllm(text, lambda: None)
    except InputError as error:
        one_line(error)
    else:
        assert build.release in known_releases()
        assert set(build.brackets) <= set(known_releases())
