"""Launches in Python modules."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.python_calls import python_launches
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, flags, place, sample, texts, word, written

OFFLINE = "18-python-offline.py"
ENGINES = '''\
"""é"""
import os, vllm
from vllm import AsyncEngineArgs as Args
from vllm.engine.arg_utils import EngineArgs

K = dict(model="é/m", dtype="auto", swap_space=4)
def f(args):
    cfg = {"tensor_parallel_size": 2, "enable_prefix_caching": False, "quantization": None,
           "hf_overrides": {"a": [1, args.a]}, "cudagraph_capture_sizes": [1, 2]}
    x = "éé"; one = vllm.LLM(**cfg, max_num_seqs=args.n, enable_auto_tool_choice=True, max_model_len=8_192)
    two = vllm.LLM(**K, **args.more)
    os.environ["LATE"] = "1"
    three = vllm.AsyncLLMEngine.from_engine_args(Args("m/n", gpu_memory_utilization=0.90, seed=-1))
    engine_args = EngineArgs(model=f"{ORG}/x", compilation_config=CompilationConfig(mode=3))
    four = vllm.LLM(**vars(engine_args))
'''
PROCESSES = """\
import os, subprocess, sys, shlex
from subprocess import Popen
env = os.environ.copy()
env["COPY"] = "1"
def f(args):
    cmd = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", args.model, f"--port={args.port}"]
    cmd += ["-tp", str(2)]
    if args.eager:
        cmd.append("--enforce-eager")
    Popen(cmd, env={**os.environ, "Q": "1"})
    subprocess.run(f"X=1 vllm serve a/b -tp {args.tp} -dp 2", shell=True)
    os.system('''
      vllm serve c/d \\\\
        --port 8
    ''')
    subprocess.check_call(shlex.split("vllm serve e/f --seed 1"), env=env)
    os.execvp("vllm", ["vllm", "serve", "g/h", *EXTRA])
"""


def test_offline_engine():
    context = context_of(sample(OFFLINE), OFFLINE)
    (launch,) = python_launches(context)
    assert (launch.format, launch.name, launch.server.entrypoint) == ("python", "line 7", "engine")
    found = flags(launch)
    assert json.loads(str(found.pop("--compilation-config"))) == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "custom_ops": ["all"],
    }
    assert json.loads(str(found.pop("--speculative-config"))) == {"method": "mtp", "num_speculative_tokens": 2}
    assert found == {
        "--model": "deepseek-ai/DeepSeek-V4-Flash",
        "--trust-remote-code": True,
        "--tokenizer-mode": "deepseek_v4",
        "--tensor-parallel-size": "4",
        "--enable-expert-parallel": True,
        "--moe-backend": "deep_gemm_mega_moe",
        "--max-model-len": "4096",
        "--kv-cache-dtype": "fp8",
        "--block-size": "256",
    }
    assert env(launch) == {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert place(context, launch, "--kv-cache-dtype") == (15, 5)
    assert place(context, launch, "fp8") == (15, 20)
    assert written(context, word(launch, "fp8")) == '"fp8"'
    assert word(launch, "fp8").slot == "value"
    assert written(context, word(launch, "--kv-cache-dtype")) == "kv_cache_dtype"
    assert place(context, launch, "4") == (6, 31)
    assert any("default '4'" in note for note in launch.server.notes)


def test_engines_with_unpacked_settings():
    context = context_of(ENGINES)
    one, two, three, four = python_launches(context)
    assert texts(one) == [
        *("--tensor-parallel-size", "2", "--no-enable-prefix-caching"),
        *("--hf-overrides", '{"a": [1, "args.a"]}', "--cudagraph-capture-sizes", "1", "2"),
        *("--max-num-seqs", "args.n", "--max-model-len", "8_192"),
    ]
    assert word(one, "args.n").open == ("args.n",)
    assert word(one, '{"a": [1, "args.a"]}').open == ("args.a",)
    assert place(context, one, "args.n") == (10, 50)
    assert written(context, word(one, "args.n")) == "args.n"
    assert one.server.notes == ("enable_auto_tool_choice is an argument of the server, not of the engine: left out",)
    assert texts(two) == ["--model", "é/m", "--dtype", "auto"]
    assert any("swap_space" in note for note in two.server.notes)
    assert any("**args.more" in note for note in two.server.notes)
    assert place(context, two, "auto") == (6, 29)
    assert texts(three) == ["--model", "m/n", "--gpu-memory-utilization", "0.90", "--seed", "-1"]
    assert [item.slot for item in three.server.words[:2]] == ["derived", "value"]
    assert (env(two), env(three)) == ({}, {"LATE": "1"})
    assert texts(four) == ["--model", "{ORG}/x", "--compilation-config", '{"mode": 3}']
    assert word(four, "{ORG}/x").open == ("{ORG}",)


def test_servers_as_processes():
    context = context_of(PROCESSES)
    listed, text, system, split, execvp = python_launches(context)
    assert listed.server.entrypoint == "api_server"
    assert texts(listed) == ["--model", "args.model", "--port={args.port}", "-tp", "2"]
    assert word(listed, "--port={args.port}").open == ("{args.port}",)
    assert env(listed) == {"Q": "1"}
    assert any("line 9" in note for note in listed.server.notes)
    assert texts(text) == ["a/b", "-tp", "{args.tp}", "-dp", "2"]
    assert word(text, "{args.tp}").open == ("{args.tp}",)
    assert env(text) == {"X": "1"}
    assert place(context, text, "-dp") == (11, 55)
    assert texts(system) == ["c/d", "--port", "8"]
    assert place(context, system, "8") == (14, 16)
    assert (texts(split), env(split)) == (["e/f", "--seed", "1"], {"COPY": "1"})
    assert texts(execvp) == ["g/h", "*EXTRA"]
    assert word(execvp, "*EXTRA").open == ("*EXTRA",)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("from vllm import LLM\nprint 'x'\n", 2, "print"),
        ("from vllm import LLM\n{% if x %}\n", 2, "not Python 3"),
        ("from vllm import LLM\n" + "(" * 5000, 2, "nested"),
        ("from vllm import LLM\n" + "-" * 50000 + "1", 0, "nested"),
        ("from vllm import LLM\0", 0, "null"),
    ],
)
def test_what_is_no_python(text: str, line: int, why: str):
    context = context_of(text)
    assert python_launches(context) == []
    (problem,) = context.problems
    assert problem.line == line
    assert why in problem.why


def test_names_that_stand_for_too_much():
    lines = [f"a{index + 1} = [a{index}, a{index}]" for index in range(40)]
    context = context_of("\n".join(["from vllm import LLM", "a0 = ['x']", *lines, "LLM('m', hf_overrides=a40)"]))
    (launch,) = python_launches(context)
    assert launch.server.words[0].text == "--model"


@pytest.mark.parametrize("text", ["LLM('m')", "from other import LLM\nLLM('vllm')", "import vllm\nvllm.LLM\n"])
def test_other_modules(text: str):
    assert python_launches(context_of(text)) == []


@given(st.sampled_from((sample(OFFLINE), ENGINES, PROCESSES)).flatmap(mutated))
@settings(max_examples=150, deadline=None)
def test_garbled_modules_are_read_without_an_error(text: str):
    context = context_of(text)
    check_places(context, python_launches(context))


@pytest.mark.parametrize("how", ['" ".join(cmd)', "shlex.join(cmd)"])
def test_a_list_that_is_joined_for_a_shell(how: str):
    text = (
        "import shlex, subprocess\n"
        'MODEL = "a/b"\n'
        "def serve():\n"
        '    cmd = ["vllm", "serve", MODEL, "--port", str(8000)]\n'
        '    cmd += ["--seed", "1"]\n'
        f"    subprocess.Popen({how}, shell=True)\n"
    )
    (launch,) = python_launches(context_of(text))
    assert texts(launch) == ["a/b", "--port", "8000", "--seed", "1"]
