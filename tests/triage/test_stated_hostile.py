from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.triage.milestones import stage_reached
from dsv4check.triage.stated import read_stated
from tests.triage.readings import log_reading, log_run

_TEXTS = {
    "nested arguments": "non-default args: " + "{'a': " * 100_000,
    "many arguments": "non-default args: {" + "'a': 1, " * 100_000,
    "endless string": "non-default args: {'a': '" + "x" * 500_000,
    "summary": "Initializing a V1 LLM engine (v0.33.0) with config: model='" + "a, b=" * 100_000,
    "open quotes": "vllm serve '" + "\n--a '" * 20_000,
    "many commands": "vllm serve a/b --x\n" * 10_000,
    "open fences": "```\nvllm serve a/b --x 1\n" * 5000,
    "backslashes": "\\\n" * 100_000 + "vllm serve a/b --c",
    "aliases": "services:\n" + "  a: &a [*a]\n" * 10_000 + "vllm",
    "deep YAML": "image: vllm/vllm-openai\n" + "- " * 50_000,
    "substitutions": "vllm serve a/b --x=$(" + "$(" * 50_000,
    "prompt": "root@" + "a" * 200_000 + "# vllm serve x/y",
    "assignments": "AAA=1 " * 50_000 + "vllm serve a/b",
    "variables": "GPU Topology\n" + "VLLM_A=1\n" * 30_000,
    "names": "DeepSeek-V4-Flash-" * 20_000,
    "images": "vllm/vllm-openai:v0.24.0 " * 20_000,
    "GPUs": "8x" * 100_000 + ("H20 " * 400 + "\n") * 50,
    "blocks": "█ version " * 50_000,
    "tagged names": "vllm:a" * 60_000,
    "sizes": ("TP=8 " * 390 + "\n") * 200,
    "counts": ("8 x H100 4 4090 " * 120 + "\n") * 200,
    "flags in sentences": ("--kv-cache-dtype {" * 100 + "\n") * 200,
    "printed lists": "['vllm', 'serve', " * 20_000,
    "blanks": " " * 500_000,
}


@pytest.mark.parametrize("name", _TEXTS)
def test_hostile_texts_are_survived_in_time(name: str) -> None:
    text = _TEXTS[name]
    for lines, head in (((), text), ((text,), ""), (tuple(text.split("\n")[:5000]), text)):
        begin = time.process_time()
        run = log_run(lines)
        read_stated(log_reading(run, head), run)
        stage_reached(run, None)
        assert time.process_time() - begin < 6


@given(
    st.lists(
        st.sampled_from(
            [
                "non-default args: {",
                "'model': 'a'",
                "V1 LLM engine (v0.33.0) with config: ",
                "model='x', ",
                "```\n",
                "vllm serve ",
                "--a",
                " \\\n",
                "'",
                '"',
                "$(",
                "\n",
                "GPU 0: ",
                "8x H200",
                "[pip3] a==1",
                "VLLM_A=1\n",
                "{",
            ]
        )
        | st.text(max_size=8),
        max_size=20,
    )
)
def test_any_mixture_is_survived(pieces: list[str]) -> None:
    text = "".join(pieces)
    run = log_run(text)
    read_stated(log_reading(run), run)
    stage_reached(run, None)
