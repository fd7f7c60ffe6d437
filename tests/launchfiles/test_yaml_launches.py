from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.launchfiles.manifests import SAMPLES, Manifest, check_places, env, texts

NAMES = sorted(path.name for path in SAMPLES.iterdir() if path.suffix in (".yaml", ".yml", ".json"))
CONTENTS = {name: (SAMPLES / name).read_text(encoding="utf-8") for name in NAMES}


def test_a_run_block_with_variables_of_the_file() -> None:
    manifest = Manifest("envs:\n  MODEL: org/model\nrun: |\n  vllm serve $MODEL \\\n    -tp $N\n")
    assert manifest.format == "yaml"
    assert texts(manifest.only) == ["org/model", "-tp", "$N"]
    assert manifest.only.name == "line 4"
    assert env(manifest.only) == {"MODEL": "org/model"}
    assert manifest.at(manifest.word("org/model")) == (2, 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "jobs:\n  a:\n    steps:\n    - name: vllm serve x/y\n      run: vllm serve a/b -tp 2 &\n",
            ["a/b", "-tp", "2"],
        ),
        ("test:\n  script:\n  - export M=a/b\n  - vllm serve $M -tp 2\n", ["a/b", "-tp", "2"]),
        ("- hosts: all\n  tasks:\n  - shell: docker run vllm/vllm-openai:v0.33.0 --model a/b\n", ["--model", "a/b"]),
        ("containerDefinitions:\n- image: vllm/vllm-openai:v0.33.0\n  command: [a/b, -tp, '2']\n", ["a/b", "-tp", "2"]),
        ("apiVersion: x.io/v1\nkind: Odd\nspec: {cmd: [vllm, serve, a/b]}\n", ["a/b"]),
        ("runcmd:\n- [sh, -c, 'vllm serve a/b']\n", ["a/b"]),
        ('{"cmd": "python -m vllm.entrypoints.openai.api_server --model a/b"}', ["--model", "a/b"]),
    ],
)
def test_servers_in_files_of_any_kind(text: str, words: list[str]) -> None:
    manifest = Manifest(text)
    assert manifest.only.format == "yaml"
    assert texts(manifest.only) == words


@pytest.mark.parametrize(
    "text",
    [
        "description: vllm serve a/b --x\n",
        "notes:\n- vllm serve is what starts it\n",
        "a: |\n  # vllm serve a/b -tp 2\n",
        "key: value\n",
        "",
        "just text about vllm serve",
        "guide: |\n  Don't forget it:\n  ```\n  vllm serve a/b -tp 2\n  ```\n",
        "about: It's vllm serve that starts\n",
    ],
)
def test_prose_starts_nothing(text: str) -> None:
    manifest = Manifest(text)
    assert (manifest.format, manifest.launches, manifest.problems) == ("", [], [])


def test_what_a_workflow_fills_in_is_open() -> None:
    manifest = Manifest(
        "steps:\n- run: vllm serve ${{ inputs.model }} --a='{{ .B }}' --c={{ .D | quote }}-$E \"{{.F}}\" --g\n"
    )
    words = manifest.only.server.words
    assert [word.text for word in words] == [
        "${{ inputs.model }}", "--a={{ .B }}", "--c={{ .D | quote }}-$E", "{{.F}}", "--g",
    ]  # fmt: skip
    assert [bool(word.open) for word in words] == [True, True, True, True, False]
    assert [manifest.text[at] for at in words[2].offsets] == list(words[2].text)
    assert all(item in word.text for word in words for item in word.open)


def test_text_that_is_aliased_is_found_once() -> None:
    assert len(Manifest("a: &a vllm serve a/b\nb: *a\n").launches) == 1


def test_a_template_is_left_out() -> None:
    manifest = Manifest("{{- if .Values.on }}\nspec: {}\n{{- end }}\n")
    assert [problem.skipped for problem in manifest.context.problems] == [True]


NOISE = st.text(st.sampled_from("ab:- \t\n\r'\"{}[]&*!|>#%@,?é\x00$()\\~<0"), max_size=5)


@st.composite
def garbled(draw: Callable[..., object]) -> str:
    """A sample file with lines lost, repeated, moved or garbled, or cut off."""
    lines = CONTENTS[draw(st.sampled_from(NAMES))].splitlines(keepends=True)  # type: ignore[index]
    for _ in range(draw(st.integers(1, 4))):  # type: ignore[call-overload]
        at: int = draw(st.integers(0, len(lines) - 1))  # type: ignore[assignment]
        kind = draw(st.sampled_from(["lose", "repeat", "insert", "cut", "indent", "end"]))
        if kind == "lose" and len(lines) > 1:
            del lines[at]
        elif kind == "repeat":
            lines.insert(at, lines[at])
        elif kind == "insert":
            column: int = draw(st.integers(0, len(lines[at])))  # type: ignore[assignment]
            lines[at] = lines[at][:column] + str(draw(NOISE)) + lines[at][column:]
        elif kind == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]  # type: ignore[misc]
        elif kind == "indent":
            lines[at] = " " * draw(st.integers(1, 9)) + lines[at].lstrip(" ")  # type: ignore[operator]
        elif kind == "end":
            lines = lines[: at + 1]
    return "".join(lines)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(garbled())
def test_garbled_files_are_read_or_refused(text: str) -> None:
    manifest = Manifest(text)
    check_places(manifest)
    assert all(problem.line >= 1 and problem.why for problem in manifest.context.problems)


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_windows_line_ends_change_no_word(name: str, data: st.DataObject) -> None:
    text = CONTENTS[name]
    manifest, other = Manifest(text), Manifest(text.replace("\n", "\r\n"))
    assert [texts(launch) for launch in other.launches] == [texts(launch) for launch in manifest.launches]
    if manifest.launches:
        index = data.draw(st.integers(0, len(manifest.launches[0].server.words) - 1))
        ours, theirs = (item.launches[0].server.words[index] for item in (manifest, other))
        assert manifest.at(ours) == other.at(theirs)


def test_hostile_files_take_no_longer_than_large_ones(figures: Callable[[str], None]) -> None:
    head = "services:\n  a:\n    image: x\n    command: "
    texts_ = {
        "braces": head + '"' + "${A:-" * 20_000 + '"\n',
        "colons": head + 'x\n    volumes: ["' + ":" * 50_000 + '"]\n',
        "templates": 'a: "' + "{{" * 100_000 + '"\n',
        "indicator": head + "|9\n" + (" " * 60 + "x\n") * 5_000,
        "parentheses": "kind: Pod\nspec:\n  containers:\n  - image: x\n    args: ['" + "$(" * 50_000 + "']\n",
    }
    for name, text in texts_.items():
        started = time.perf_counter()
        Manifest(text)
        seconds = time.perf_counter() - started
        assert seconds < 10, name
        figures(f"{name}: {seconds:.2f} s")


def test_a_deployment_is_read_in_two_milliseconds(figures: Callable[[str], None]) -> None:
    text = CONTENTS["01-k8s-deployment-flash0731-h200-tp4.yaml"]
    Manifest(text)
    times = []
    for _ in range(30):
        started = time.perf_counter()
        Manifest(text)
        times.append(time.perf_counter() - started)
    figures(f"Deployment of {len(text.splitlines())} lines: {min(times) * 1000:.2f} ms")
    assert min(times) < 0.002
