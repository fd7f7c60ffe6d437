"""What ``--fix`` applies and what it refuses, and that nothing wrong is ever written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.gate import fix as fix_module
from dsv4check.gate.fix import diff_of, fix_source
from dsv4check.launchfiles.records import DERIVED, Context, Extraction, FileWord, Launch, Server
from dsv4check.launchfiles.text import SourceText, Span
from tests.gate.fixing import MODEL, assert_fixed, before_and_after, checked, checker, fixed, rules_of
from tests.gate.test_fix_files import pod

REFUSED = {
    "a variable of two launches": (
        "run.sh",
        f"KV=bfloat16\nvllm serve {MODEL} --kv-cache-dtype $KV\nvllm serve {MODEL} --port 81 --kv-cache-dtype $KV\n",
        "$KV is used in more than one place",
    ),
    "an array of two launches": (
        "run.sh",
        f'A=(--kv-cache-dtype bfloat16)\nvllm serve {MODEL} "${{A[@]}}"\nvllm serve {MODEL} --port 81 "${{A[@]}}"\n',
        "shared with another launch",
    ),
    "a variable of another command": (
        "run.sh",
        f"KV=bfloat16\n./prepare --dtype ${{KV}}\nvllm serve {MODEL} --kv-cache-dtype=$KV\n",
        "$KV is used in more than one place",
    ),
    "a word of pieces": (
        "run.sh",
        f"N=16\nvllm serve {MODEL} --kv-cache-dtype bfloat$N\n",
        "put together from other places",
    ),
    "a word of quoted pieces": (
        "run.sh",
        f'N=16\nvllm serve {MODEL} --kv-cache-dtype="bfloat${{N}}"\n',
        "put together from other places",
    ),
    "an anchor of two containers": (
        "d.yaml",
        pod(
            "args: &args",
            f"- --model={MODEL}",
            "- --kv-cache-dtype=bfloat16",
            "",
        ).rstrip()
        + "\n      - name: other\n        image: vllm/vllm-openai:v0.24.0\n        args: *args\n",
        "shared with another launch",
    ),
    "a mapping": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM('{MODEL}', tensor_parallel_size=1)\n",
        "has to be made by hand",
    ),
    "a value put together in Python": (
        "run.py",
        f"from vllm import LLM\n\nN = 16\nllm = LLM('{MODEL}', kv_cache_dtype=f'bfloat{{N}}')\n",
        "is not a plain word of the file",
    ),
    "Kubernetes variables in pieces": (
        "d.yaml",
        pod("env:", "- {name: N, value: '16'}", f"args: ['--model={MODEL}', --kv-cache-dtype=bfloat$(N)]"),
        "is not a plain word of the file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    name, text, why = REFUSED[case]
    assert rules_of(text, name)
    outcome = fixed(text, name)
    assert outcome.source.text == text
    assert outcome.applied == []
    assert outcome.refused
    for line in outcome.refused:
        assert line.startswith(f"{name}:")
        assert "not applied, " in line
        assert why in line


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        # Only another release, an environment variable or another GPU removes these.
        (f"vllm serve {MODEL} --kv-cache-dtype fp8\n", {"vllm": "0.19.0"}),
        (f"VLLM_ATTENTION_BACKEND=FLASHMLA vllm serve {MODEL} --kv-cache-dtype fp8 -tp 8\n", {}),
        (f"vllm serve {MODEL} --kv-cache-dtype fp8 -tp 8\n", {"gpu": "V100"}),
    ],
)
def test_other_fixes_are_left_alone(text: str, facts: dict[str, Any]) -> None:
    assert rules_of(text, **facts)
    outcome = fixed(text, **facts)
    assert outcome.source.text == text
    assert outcome.applied == []


def test_a_file_without_findings_stays_as_it_is() -> None:
    outcome = fixed(f"vllm serve {MODEL} --kv-cache-dtype fp8 -tp 8\n")
    assert (outcome.applied, outcome.refused) == ([], [])


def test_only_wanted_findings_are_fixed() -> None:
    text = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16\n"
    outcome = fix_source(SourceText("run.sh", text), None, checker(), frozenset())
    assert (outcome.source.text, outcome.applied, outcome.refused) == (text, [], [])


def test_every_launch_of_a_file_is_fixed_by_itself() -> None:
    text, after = before_and_after(
        f"vllm serve {MODEL} -tp 8 --kv-cache-dtype ⟪bfloat16→fp8⟫\n"
        f"vllm serve {MODEL} -tp 8 --kv-cache-dtype fp8 --block-size ⟪128→256⟫ & wait\n"
        f"vllm serve {MODEL} -tp 8⟪→ --kv-cache-dtype fp8⟫ &\n"
    )
    outcome = fixed(text)
    assert outcome.source.text == after
    assert [line.split(": ")[0] for line in outcome.applied] == ["run.sh:1", "run.sh:2", "run.sh:3"]


def test_lines_that_go_do_not_hide_what_follows() -> None:
    text, after = before_and_after(
        f"vllm serve {MODEL} -tp 8 \\\n⟪  --attention-backend TRITON_MLA \\\n→⟫  --kv-cache-dtype fp8\n"
        f"vllm serve {MODEL} -tp 8 --kv-cache-dtype ⟪bfloat16→fp8⟫\n"
    )
    findings = [item for judged in checked(text).judged for item in judged.result.findings]
    wanted = {finding.fingerprint for finding in findings}
    outcome = fix_source(SourceText("run.sh", text), None, checker(), wanted)
    assert outcome.source.text == after
    assert len(outcome.applied) == 2


def test_a_byte_order_mark_stays() -> None:
    text, after = before_and_after(f"vllm serve {MODEL} -tp 8 --kv-cache-dtype ⟪bfloat16→fp8⟫ # ü\r\n")
    outcome = fixed(text, bom=True)
    assert outcome.source.encode() == b"\xef\xbb\xbf" + after.encode()


def test_nothing_is_kept_that_was_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16\n"
    for wrong in (
        text.replace("bfloat16", "float16"),
        text.replace("bfloat16", "fp8 --port 80"),
        text + text,
        "",
        text.replace("bfloat16", "'fp8"),
        text.replace("vllm serve", "sglang serve"),
    ):
        monkeypatch.setattr(fix_module, "rewritten", lambda *_args, text=wrong, **_more: text)
        outcome = fixed(text)
        assert outcome.source.text == text
        assert outcome.applied == []
        assert "would" in outcome.refused[0]


def test_a_count_that_the_hardware_shares_is_left_alone() -> None:
    text = (
        f"N=3\ndocker run --gpus $N vllm/vllm-openai:v0.24.0 --model {MODEL} --kv-cache-dtype fp8 "
        "--tensor-parallel-size $N\n"
    )
    assert rules_of(text, gpus=None)
    outcome = fixed(text, gpus=None)
    assert outcome.source.text == text
    assert outcome.refused


def test_the_diff_can_be_applied() -> None:
    text = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16"
    outcome = fixed(text, "a/run.sh")
    assert diff_of(SourceText("a/run.sh", text), outcome.source) == (
        "--- a/a/run.sh\n+++ b/a/run.sh\n@@ -1 +1 @@\n"
        f"-{text}\n\\ No newline at end of file\n+{outcome.source.text}\n\\ No newline at end of file\n"
    )


def test_the_diff_of_crlf_lines_keeps_them() -> None:
    text = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16\r\nwait\r\n"
    outcome = fixed(text)
    diff = diff_of(SourceText("run.sh", text), outcome.source)
    assert f"-{text.splitlines()[0]}\r\n" in diff
    assert " wait\r\n" in diff


def test_applied_and_refused_say_what_and_where() -> None:
    outcome = fixed(f"set -e\nvllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16\n")
    assert outcome.applied == ["run.sh:2: KV002: --kv-cache-dtype fp8"]


def test_a_variable_of_a_file_that_is_read_is_not_changed_here(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("KV=bfloat16\n")
    script = tmp_path / "run.sh"
    text = f"source env.sh\nvllm serve {MODEL} -tp 8 --kv-cache-dtype $KV\n"
    script.write_text(text)
    assert "KV002" in rules_of(text, path=script)
    outcome = fixed(text, path=script)
    assert outcome.source.text == text
    assert "not applied" in outcome.refused[0]


# -- a file of settings --------------------------------------------------------------------------------------


@pytest.fixture
def config_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is read as a ``--config`` file on its own."""

    def extract(context: Context) -> Extraction:
        words = [FileWord(text, Span(0, 0), DERIVED) for text in ("--config", "c.yaml")]
        server = Server(("vllm", "serve"), tuple(words), Span(0, 5))
        return Extraction("vllm-config", (Launch("vllm-config", "c.yaml", server, config_file="c.yaml"),))

    monkeypatch.setattr("dsv4check.gate.file_check.extract", extract)


@pytest.mark.parametrize(
    "marked",
    [
        f"model: {MODEL}\ntensor-parallel-size: 8\nkv-cache-dtype: ⟪bfloat16→fp8⟫ # why\nport: 80\n",
        f"model: {MODEL}\r\ntensor_parallel_size: 8\r\nkv_cache_dtype: ⟪'bfloat16'→'fp8'⟫\r\n",
        f"model: {MODEL}\nkv-cache-dtype: fp8\nblock-size: ⟪128→256⟫",
        f"model: {MODEL}\ntensor-parallel-size: 8\n⟪→kv-cache-dtype: fp8\n⟫",
    ],
)
@pytest.mark.usefixtures("config_launch")
def test_a_config_file(marked: str) -> None:
    assert_fixed(marked, "c.yaml")


@pytest.mark.usefixtures("config_launch")
def test_a_nested_value_of_a_config_file_is_refused() -> None:
    nested = "speculative-config:\n  method: mtp\n  num_speculative_tokens: 1\n  foo: 2\n"
    text = f"model: {MODEL}\nkv-cache-dtype: fp8\n{nested}"
    assert rules_of(text, "c.yaml")
    outcome = fixed(text, "c.yaml")
    assert (outcome.source.text, outcome.applied) == (text, [])
    assert "the value of speculative-config is not a plain one" in outcome.refused[0]


# -- random manifests ----------------------------------------------------------------------------------------

QUOTES = st.sampled_from(["", '"', "'"])
FLAGS = {
    "--tensor-parallel-size": "8",
    "--max-model-len": "65536",
    "--port": "8000",
    "--gpu-memory-utilization": "0.9",
    "--served-model-name": "flash",
}
WRONG = {"--kv-cache-dtype": ("bfloat16", "fp8"), "--block-size": ("128", "256")}


@st.composite
def manifests(draw: st.DrawFn) -> tuple[str, str]:
    """A deployment with one wrong value, as it is and as it should be."""
    flag = draw(st.sampled_from(sorted(WRONG)))
    others = draw(st.lists(st.sampled_from(sorted(FLAGS)), unique=True))
    rest = {name: FLAGS[name] for name in others} | {"--model": MODEL}
    if flag != "--kv-cache-dtype":
        rest["--kv-cache-dtype"] = "fp8"
    names = draw(st.permutations([flag, *rest]))
    dash = " " * draw(st.integers(8, 12)) + "-" + " " * draw(st.integers(1, 3))
    lines = []
    for name in names:
        value = rest.get(name, "⟪{}→{}⟫".format(*WRONG.get(name, ("", ""))))
        quote = draw(QUOTES)
        comment = draw(st.sampled_from(["", " # why", "  # bfloat16 128 – 设", " #"]))
        if draw(st.booleans()):
            lines.append(f"{dash}{quote}{name}={value}{quote}{comment}")
            continue
        lines.append(f"{dash}{quote}{name}{quote}")
        inner = draw(QUOTES)
        if not inner and value[:1] in "0123456789⟪":
            inner = '"'
        lines.append(f"{dash}{inner}{value}{inner}{comment}")
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return before_and_after(pod("args:").replace("\n", end) + "".join(line + end for line in lines))


@given(manifests())
def test_random_manifests(texts: tuple[str, str]) -> None:
    before, after = texts
    outcome = fixed(before, "d.yaml")
    assert outcome.refused == []
    assert outcome.source.text == after


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, str]:
    """A script with one wrong value, or with one that is missing, as it is and as it should be."""
    flag = draw(st.sampled_from([*sorted(WRONG), ""]))
    others = draw(st.lists(st.sampled_from(sorted(FLAGS)), unique=True))
    rest = {name: FLAGS[name] for name in others}
    if flag == "--block-size":
        rest["--kv-cache-dtype"] = "fp8"
    names = draw(st.permutations([name for name in (flag, *rest) if name]))
    between = st.sampled_from([" ", "  ", " \\\n  ", "\t", " \\\n\t"])
    text = f"vllm serve {MODEL}"
    for name in names:
        value = rest.get(name, "⟪{}→{}⟫".format(*WRONG.get(name, ("", ""))))
        quote = draw(QUOTES)
        text += draw(between) + name + draw(st.sampled_from(["=", " ", " \\\n    "])) + quote + value + quote
    if not flag:
        text += "⟪→ --kv-cache-dtype fp8⟫"
    head = draw(st.sampled_from(["", "set -e\n", "# vllm --block-size 128\n", "export A='x y'\n"]))
    tail = draw(st.sampled_from(["", "\n", " # x\n", " 2>&1 | tee log\n", " &\nwait\n", "; echo bfloat16"]))
    return before_and_after(head + text + tail)


@given(scripts())
def test_random_scripts(texts: tuple[str, str]) -> None:
    before, after = texts
    outcome = fixed(before)
    assert outcome.refused == []
    assert outcome.source.text == after
    assert [item.text for item in checked(after).judged[0].words] == [
        item.text for item in checked(outcome.source.text).judged[0].words
    ]
