from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv4check.deployment import Command, Deployment, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.host.records import State
from dsv4check.host.variable_table import read_table
from dsv4check.host.variables import look_at_variables
from dsv4check.learning.source import LearningError, Source
from dsv4check.problems import Origin
from dsv4check.releases.facts import known_releases, load_facts

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
TABLE = """
import os
environment_variables = {
    "VLLM_HOST_IP": lambda: os.getenv("VLLM_HOST_IP", ""),
    "VLLM_PORT": get_port,
    "VLLM_OWN_PATCH": lambda: os.getenv("VLLM_OWN_PATCH"),
    "CUDA_HOME": lambda: None,
}
"""


def tree(folder: Path, text: str = TABLE, **files: str) -> Source:
    package = folder / "vllm"
    package.mkdir(parents=True)
    (package / "envs.py").write_text(text)
    (package / "__init__.py").write_text("")
    for name, content in files.items():
        (package / f"{name}.py").write_text(content)
    return Source(package)


def look(env, version: str | None = "0.33.0", source=None, **more):
    facts = load_facts(version) if version else None
    more.setdefault("root", Path("/nothing/here"))
    found = look_at_variables(env, facts, source, **more)
    assert len({item.id for item in found}) == len(found)
    return {item.id.removeprefix("variable-"): item for item in found}


def test_known_variables_are_one_line():
    found = look({"VLLM_USE_DEEP_GEMM": "1", "VLLM_HOST_IP": "10.0.0.1", "HOME": "/root"})
    assert list(found) == ["variables-vllm"]
    item = found["variables-vllm"]
    assert (item.state, item.data["names"]) == (State.OK, ["VLLM_HOST_IP", "VLLM_USE_DEEP_GEMM"])
    assert "10.0.0.1" not in str(item)
    assert look({})["variables-vllm"].found == "none is set"


@pytest.mark.parametrize(
    ("name", "version", "advice", "knew"),
    [
        ("VLLM_USE_DEEPGEMM", "0.33.0", "Use VLLM_USE_DEEP_GEMM.", ""),
        ("VLLM_DISABLE_DEEP_GEMM", "0.33.0", "Use VLLM_USE_DEEP_GEMM.", ""),
        ("VLLM_ATTENTION_BACKEND", "0.20.0", "Use --attention-backend.", ""),
        ("VLLM_ATTENTION_BACKEND", "0.33.0", "Use --attention-backend.", ""),
        ("VLLM_USE_FLASHINFER_MOE_FP8", "0.28.0", "Use --moe-backend.", "vLLM 0.20.0 to 0.23.0 knew it."),
        ("VLLM_WHOLLY_MADE_UP_NAME", "0.33.0", "Remove it.", ""),
    ],
)
def test_variables_that_the_release_does_not_know(name, version, advice, knew):
    item = look({name: "1"}, version)[name.lower().replace("_", "-")]
    assert (item.state, item.advice) == (State.WARNING, advice)
    assert item.why == f"vLLM {version} does not know it and ignores it with a warning. {knew}".strip()


def test_a_variable_of_a_later_release():
    late = set(load_facts("0.33.0").section("env")["known"].split())
    name = sorted(late - set(load_facts("0.20.0").section("env")["known"].split()))[0]
    item = look({f"VLLM_{name}": "1"}, "0.20.0")[f"vllm-{name.lower().replace('_', '-')}"]
    assert item.state is State.WARNING
    assert "0.33.0 knew it" in item.why


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"VLLM_USE_DEEP_GEMM": "true"}, "an integer"),
        ({"VLLM_PORT": "tcp://10.96.0.12:8000"}, "Kubernetes"),
        ({"VLLM_WORKER_MULTIPROC_METHOD": "thread"}, "spawn"),
        ({"VLLM_KV_CACHE_LAYOUT": "HND"}, "BLHNC"),
    ],
)
def test_values_that_are_refused(env, words):
    (item,) = look(env).values()
    assert item.state is State.ERROR
    assert words in item.why + item.wanted
    assert item.advice


def test_an_old_retention_interval():
    (item,) = look({"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "100"}, "0.25.0").values()
    assert (item.state, item.advice) == (State.ERROR, "Set 256.")


def test_the_tree_counts_more_than_the_release(tmp_path):
    source = tree(tmp_path)
    found = look({"VLLM_OWN_PATCH": "1", "VLLM_USE_DEEP_GEMM": "1"}, "0.33.0", source)
    assert list(found) == ["vllm-use-deep-gemm"]
    assert found["vllm-use-deep-gemm"].why.startswith("This build does not know it")
    assert found["vllm-use-deep-gemm"].source == "envs.py of the tree"
    assert look({"VLLM_OWN_PATCH": "1"}, "0.33.0")["vllm-own-patch"].state is State.WARNING
    port = look({"VLLM_PORT": "tcp://1.2.3.4:8000"}, "0.33.0", source)["vllm-port"]
    assert (port.state, port.source) == (State.ERROR, "envs.py:5")


def test_a_tree_without_a_release(tmp_path):
    found = look({"VLLM_OWN_PATCH": "1", "VLLM_NOT_THERE_AT_ALL": "1"}, None, tree(tmp_path))
    assert [item.state for item in found.values()] == [State.WARNING]


def test_neither_tree_nor_release():
    (item,) = look({"VLLM_HOST_IP": "1"}, None).values()
    assert item.state is State.UNKNOWN
    assert look({"HOME": "/root"}, None) == {}


def test_a_tree_without_a_table(tmp_path):
    for number, text in enumerate(("", "def broken(:", "\0", "environment_variables = make()\n")):
        source = tree(tmp_path / str(number), text)
        (item,) = look({"VLLM_HOST_IP": "1"}, None, source).values()
        assert item.state is State.UNKNOWN
        assert "envs.py" in item.why
        assert look({"VLLM_HOST_IP": "1"}, "0.33.0", source)["variables-vllm"].state is State.OK


def test_variables_read_outside_the_table(tmp_path):
    reads = 'import os\n\nlimit = os.environ.get(\n    "VLLM_QUIET_SWITCH"\n)\nos.environ["VLLM_ONLY_SET"] = "1"\n'
    source = tree(tmp_path, reader=reads)
    (tmp_path / "vllm/_C.abi3.so").write_bytes(b"\x7fELF" + b"x" * 5000 + b"\0VLLM_IN_CODE\0VLLM_IN_CODE_TOO\0")
    found = look({"VLLM_QUIET_SWITCH": "1", "VLLM_ONLY_SET": "1", "VLLM_IN_CODE": "1"}, None, source)
    assert found["vllm-quiet-switch"].state is State.NOTE
    assert "reader.py:4 reads it" in found["vllm-quiet-switch"].why
    assert found["vllm-only-set"].state is State.WARNING
    assert "_C.abi3.so reads it" in found["vllm-in-code"].why


GROWING = """
extra = {"VLLM_FROM_EXTRA": int}
environment_variables: dict = {"VLLM_FIRST": int, **extra, **{"VLLM_SPREAD": int}}
environment_variables.update({"VLLM_UPDATED": int}, VLLM_KEYWORD=int)
environment_variables |= {"VLLM_OR": int}
environment_variables["VLLM_SET"] = int
if True:
    environment_variables = environment_variables | dict(VLLM_DICT=int)
other = {"VLLM_NOT_IN_IT": int}
"""


def test_every_way_to_fill_the_table(tmp_path):
    table = read_table(tree(tmp_path, GROWING))
    assert set(table.lines) == {
        f"VLLM_{name}" for name in ("FIRST", "FROM_EXTRA", "SPREAD", "UPDATED", "KEYWORD", "OR", "SET", "DICT")
    }
    assert table.dynamic is None
    assert table.lines["VLLM_SET"] == 6


@pytest.mark.parametrize(
    "line",
    [
        "environment_variables.update(load_plugins())",
        "environment_variables[name] = int",
        "environment_variables |= PLUGINS",
        "for name in names:\n    environment_variables[name] = int",
    ],
)
def test_names_added_at_run_time(tmp_path, line):
    source = tree(tmp_path, TABLE + line + "\n")
    item = look({"VLLM_MAYBE": "1"}, "0.33.0", source)["vllm-maybe"]
    assert item.state is State.UNKNOWN
    assert "at run time" in item.why


def test_a_dict_that_names_itself_ends(tmp_path):
    with pytest.raises(LearningError):
        read_table(tree(tmp_path, "a = b\nb = a\nenvironment_variables = a\n"))


def test_a_deprecated_name(tmp_path):
    text = TABLE + 'environment_variables["VLLM_OLD"] = lambda: warn("VLLM_OLD is deprecated")\n'
    item = look({"VLLM_OLD": "1"}, "0.33.0", tree(tmp_path, text))["vllm-old"]
    assert (item.state, item.source) == (State.NOTE, "envs.py:9")


@pytest.mark.skipif(TREES is None, reason="needs DSV4CHECK_VLLM_TREES, a folder with unpacked releases")
@pytest.mark.parametrize("version", known_releases())
def test_the_text_of_every_release_agrees_with_its_facts(version):
    if not Path(str(TREES), version).is_dir():
        pytest.skip(f"no tree of {version}")
    table = read_table(Source(Path(str(TREES), version, "vllm")))
    names = {name.removeprefix("VLLM_") for name in table.lines if name.startswith("VLLM_")}
    assert names == set(load_facts(version).section("env")["known"].split())
    assert table.dynamic is None


def test_numbers_of_tokens_are_no_secret():
    assert look({"VLLM_MAX_TOKENS_OF_MINE": "8192"})["vllm-max-tokens-of-mine"].found == "8192"


@pytest.mark.parametrize("name", ["VLLM_API_KEY_2", "VLLM_MY_TOKEN", "VLLM_SECRET_THING", "VLLM_DB_PASSWORD"])
def test_no_secret_is_shown(name):
    assert look({name: "123456"})[name.lower().replace("_", "-")].found == "***"
    found = look({name: "s3cr3t-value", "LD_PRELOAD": "http://me:s3cr3t-value@host/x.so"})
    assert found[name.lower().replace("_", "-")].found == "***"
    assert "s3cr3t" not in str(list(found.values()))


def test_a_launch_that_stops_at_unknown_names():
    launch = Deployment(
        command=Command((), ()),
        flags=ServeFlags(None, {"fail_on_environ_validation": True}),
        env={},
        hardware=Hardware(),
        vllm=VllmBuild("0.33.0", "release", "0.33.0", Origin("default")),
        model=Model("", "deepseek_v4", "original", "", {}, {}),
    )
    item = look({"VLLM_MADE_UP_NAME": "1"}, deployment=launch)["vllm-made-up-name"]
    assert item.state is State.ERROR
    assert "--fail-on-environ-validation" in item.why


@pytest.mark.parametrize(
    ("value", "state", "words"),
    [
        ("0,1,2,3", State.NOTE, "4 GPUs"),
        ("GPU-0a1b", State.NOTE, "1 GPU,"),
        ("", State.ERROR, "hides every GPU"),
        ("-1", State.ERROR, "hides every GPU"),
        ("0,-1,1", State.NOTE, "1 GPU,"),
        ("0,0", State.ERROR, "twice"),
    ],
)
def test_visible_gpus(value, state, words):
    item = look({"CUDA_VISIBLE_DEVICES": value})["cuda-visible-devices"]
    assert item.state is state
    assert words in item.why


def test_switches_count_when_they_are_on():
    found = look({"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"})
    assert set(found) == {"variables-vllm", "nccl-p2p-disable", "cuda-launch-blocking"}


def test_allocator_runner_and_preload():
    env = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True",
        "LD_PRELOAD": "/x/libjemalloc.so",
    }
    found = look(env | {"VLLM_USE_V2_MODEL_RUNNER": "1"})
    assert all(found[name].state is State.NOTE for name in ("pytorch-cuda-alloc-conf", "ld-preload"))
    assert "second model runner" in found["vllm-use-v2-model-runner"].why
    assert set(look({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "LD_PRELOAD": " "})) == {"variables-vllm"}


def test_libraries_in_front_of_those_of_the_wheels(tmp_path):
    for name in ("libcublas.so.12", "libnccl.so.2", "libm.so.6"):
        (tmp_path / "opt/cuda").mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt/cuda" / name).write_bytes(b"")
    found = look({"LD_LIBRARY_PATH": "/none::/opt/cuda:relative"}, root=tmp_path)
    assert "/opt/cuda (libcublas.so.12, libnccl.so.2)" in found["ld-library-path"].why
    assert "ld-library-path" not in look({"LD_LIBRARY_PATH": "/none"}, root=tmp_path)


def test_another_vllm_on_the_python_path(tmp_path):
    source = tree(tmp_path / "opt/fork")
    other = look({"PYTHONPATH": "/opt/x:/opt/fork"}, root=tmp_path)["pythonpath"]
    assert other.state is State.WARNING
    assert "/opt/fork/vllm" in other.why
    assert "pythonpath" not in look({"PYTHONPATH": "/opt/fork"}, source=source, root=tmp_path)
    assert "pythonpath" not in look({"PYTHONPATH": "/opt/x"}, root=tmp_path)


def test_a_toolkit_that_is_not_there(tmp_path):
    assert look({"CUDA_HOME": "/usr/local/cuda"}, root=tmp_path)["cuda-home"].state is State.WARNING
    (tmp_path / "usr/local/cuda/bin").mkdir(parents=True)
    (tmp_path / "usr/local/cuda/bin/nvcc").write_bytes(b"")
    assert "cuda-home" not in look({"CUDA_HOME": "/usr/local/cuda"}, root=tmp_path)


@pytest.mark.parametrize("value", ["/a\0b", "/" + "x" * 5000, ":" * 5000, "\udcff"])
def test_odd_values_are_no_crash(tmp_path, value):
    names = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "VLLM_PORT", "VLLM_NEVER_HEARD_OF")
    found = look(dict.fromkeys(names, value), "0.33.0", tree(tmp_path), root=tmp_path)
    assert found["vllm-never-heard-of"].state is State.WARNING


def test_a_pipe_in_the_tree_is_not_waited_for(tmp_path):
    source = tree(tmp_path)
    os.mkfifo(tmp_path / "vllm/pipe.py")
    os.mkfifo(tmp_path / "vllm/_C.abi3.so")
    assert look({"VLLM_NEVER_HEARD_OF": "1"}, None, source)["vllm-never-heard-of"].state is State.WARNING
