"""Launches in Dockerfiles."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.dockerfile import dockerfile_launches
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, place, texts, word, written

STAGES = """\
# syntax=docker/dockerfile:1
# escape=\\
ARG TAG=v0.33.0
ARG REGISTRY
FROM --platform=linux/amd64 vllm/vllm-openai:${TAG} AS Base
ENV VLLM_USE_V2_MODEL_RUNNER=1 HF_HOME="/data/hf cache" \\
    # between the lines
    PLAIN=a\\ b

ENV OLD form of it
ENTRYPOINT ["vllm", "serve"]
CMD ["ignored/model"]

FROM base
ARG TP=4
ENV TP=$TP
CMD ["deepseek-ai/DeepSeek-V4-Flash", "--tensor-parallel-size", "4", \\
     # the drafts
     "--speculative-config", "{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":2}"]
HEALTHCHECK CMD curl -f http://localhost:8000/health
"""
SHELL = """\
FROM python:3.12 AS build
RUN pip install vllm==0.32.0
ENV MODEL=deepseek-ai/DeepSeek-V4-Flash
CMD echo first
CMD exec vllm serve $MODEL \\
    --tensor-parallel-size ${TP:-8} --kv-cache-dtype fp8
"""
SCRIPT = """\
ARG V=0.31.0
FROM ubuntu:24.04
ARG V
RUN uv pip install "vllm==${V}"
COPY --chmod=755 <<-'EOF' /usr/local/bin/start.sh
\t#!/bin/bash
\texec vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8
\tEOF
ENTRYPOINT ["/bin/bash", "/usr/local/bin/start.sh"]
"""


def test_stages_arguments_and_json_form():
    context = context_of(STAGES, "Dockerfile")
    (launch,) = dockerfile_launches(context)
    assert (launch.format, launch.name, launch.server.program) == ("dockerfile", "stage 1", ("vllm", "serve"))
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size",
        "4",
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":2}',
    ]
    assert launch.image is not None
    assert launch.image.value == "vllm/vllm-openai:v0.33.0"
    assert env(launch) == {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "HF_HOME": "/data/hf cache",
        "PLAIN": "a b",
        "OLD": "form of it",
        "TP": "4",
    }
    assert place(context, launch, "--tensor-parallel-size") == (17, 39)
    drafts = word(launch, '{"method":"mtp","num_speculative_tokens":2}')
    assert context.source.place(drafts.span.start) == (19, 30)
    assert written(context, drafts) == r'"{\"method\":\"mtp\",\"num_speculative_tokens\":2}"'
    assert drafts.slot == "item"
    assert context.problems == []


def test_shell_form_uses_the_last_command_and_the_environment():
    context = context_of(SHELL)
    (launch,) = dockerfile_launches(context)
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size",
        "8",
        "--kv-cache-dtype",
        "fp8",
    ]
    assert launch.name == "stage build"
    assert launch.vllm is not None
    assert launch.vllm.value == "0.32.0"
    assert place(context, launch, "deepseek-ai/DeepSeek-V4-Flash") == (3, 11)
    assert place(context, launch, "fp8") == (6, 54)


def test_script_in_a_here_document():
    context = context_of(SCRIPT)
    (launch,) = dockerfile_launches(context)
    assert texts(launch) == ["deepseek-ai/DeepSeek-V4-Pro", "-tp", "8"]
    assert place(context, launch, "-tp") == (7, 46)
    assert launch.vllm is not None
    assert launch.vllm.value == "0.31.0"


def test_official_image_with_a_command_alone():
    (launch,) = dockerfile_launches(context_of('FROM vllm/vllm-openai:v0.33.0\nCMD ["--model", "m/n", "-tp", "2"]\n'))
    assert texts(launch) == ["--model", "m/n", "-tp", "2"]
    assert launch.server.entrypoint == "serve"


def test_what_is_not_known_stays():
    context = context_of("ARG TAG\nFROM my/vllm:${TAG}\nENTRYPOINT vllm serve ${MODEL} --port 80\n")
    (launch,) = dockerfile_launches(context)
    assert launch.image is not None
    assert launch.image.value == "my/vllm:${TAG}"
    assert launch.server.words[0].open == ("${MODEL}",)
    known = context_of(context.source.text, variables={"TAG": "v1", "MODEL": "a/b"})
    (launch,) = dockerfile_launches(known)
    assert launch.image is not None
    assert (launch.image.value, texts(launch)[0]) == ("my/vllm:v1", "a/b")


def test_default_in_the_reference():
    (launch,) = dockerfile_launches(context_of('FROM vllm/vllm-openai:${TAG:-v0.32.0}\nCMD ["m/n"]\n'))
    assert launch.image is not None
    assert launch.image.value == "vllm/vllm-openai:v0.32.0"


def test_json_form_is_no_shell():
    (launch,) = dockerfile_launches(context_of('FROM x\nCMD ["vllm", "serve", "$MODEL"]\n'))
    assert texts(launch) == ["$MODEL"]
    assert launch.server.words[0].open == ()
    assert any("$MODEL" in note for note in launch.server.notes)


def test_single_quotes_are_no_json():
    context = context_of("FROM x\nCMD ['vllm', 'serve', 'm']\n")
    assert dockerfile_launches(context) == []
    assert [problem.line for problem in context.problems] == [2]
    assert "JSON" in context.problems[0].why


def test_backtick_as_escape_character():
    (launch,) = dockerfile_launches(context_of("# escape=`\nFROM x\nCMD vllm serve m `\n  --port 1\n"))
    assert texts(launch) == ["m", "--port", "1"]


def test_new_entrypoint_forgets_the_inherited_command():
    text = 'FROM x AS a\nCMD ["old/model"]\nFROM a\nENTRYPOINT ["vllm", "serve", "new/model"]\n'
    (launch,) = dockerfile_launches(context_of(text))
    assert texts(launch) == ["new/model"]


def test_stages_of_their_own_each_give_a_launch():
    text = 'FROM x AS a\nCMD ["vllm", "serve", "a/b"]\nFROM y AS b\nCMD ["vllm", "serve", "c/d"]\n'
    launches = dockerfile_launches(context_of(text))
    assert [(launch.name, texts(launch)) for launch in launches] == [("stage a", ["a/b"]), ("stage b", ["c/d"])]


def test_runs_are_no_launches_unless_they_start_a_server():
    text = "FROM x\nRUN pip install vllm && echo vllm serve\nRUN vllm serve m -tp 2 & sleep 5\n"
    (launch,) = dockerfile_launches(context_of(text))
    assert texts(launch) == ["m", "-tp", "2"]


@given(st.sampled_from((STAGES, SHELL, SCRIPT)).flatmap(mutated))
@settings(max_examples=150, deadline=None)
def test_garbled_files_are_read_without_an_error(text: str):
    context = context_of(text)
    check_places(context, dockerfile_launches(context))
