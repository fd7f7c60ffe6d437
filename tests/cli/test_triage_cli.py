"""``dsv4check triage`` as a user runs it: logs, options, formats, exit codes, bad input."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.cli.main import main
from dsv4check.data import rules_dir
from dsv4check.report.triage_schema import triage_json_schema
from dsv4check.triage import diagnosis

Run = Callable[..., tuple[int, str, str]]

START = """\
(APIServer pid=1) INFO 11-30 10:00:00 [api_utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.24.0
(APIServer pid=1) INFO 11-30 10:00:00 [api_utils.py:233] non-default args: {'model_tag': \
'deepseek-ai/DeepSeek-V4-Flash', 'model': 'deepseek-ai/DeepSeek-V4-Flash', 'tensor_parallel_size': 8}
(EngineCore pid=207) INFO 11-30 10:00:01 [core.py:107] Initializing a V1 LLM engine (v0.24.0) with config: \
model='deepseek-ai/DeepSeek-V4-Flash'
"""
TRACEBACK = """\
(EngineCore pid=207) ERROR 11-30 10:00:09 [core.py:1110] Traceback (most recent call last):
(EngineCore pid=207) ERROR 11-30 10:00:09 [core.py:1110]   File "/usr/lib/python3.12/site-packages/vllm/{path}", \
line 212, in {function}
(EngineCore pid=207) ERROR 11-30 10:00:09 [core.py:1110]     raise ValueError(
(EngineCore pid=207) ERROR 11-30 10:00:09 [core.py:1110] {said}
"""
AUTO = START + TRACEBACK.format(
    path="models/deepseek_v4/attention.py",
    function="_resolve_dsv4_kv_cache_dtype",
    said="ValueError: DeepseekV4 only supports fp8 kv-cache format for now, got auto",
)
UNKNOWN = START + TRACEBACK.format(
    path="v1/engine/core.py", function="frobnicate", said="ValueError: the gizmo of plugh 77 is xyzzy"
)
FINE = START.replace("'tensor_parallel_size': 8", "'tensor_parallel_size': 8, 'kv_cache_dtype': 'fp8'") + (
    "(APIServer pid=1) INFO:     Application startup complete.\n"
)
RULE = """\
id: ZZ001
name: gizmo-is-xyzzy
summary: The gizmo is xyzzy.
severity: error
certainty: proven
stage: engine-config
found_in: log
message: The gizmo is xyzzy.
signatures:
  - {text: 'gizmo of \\w+ \\d+ is xyzzy', frame: 'v1/engine/core\\.py:frobnicate'}
advice:
  - Turn the gizmo.
verified:
  - {how: report, where: nowhere}
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process: exit code, standard output and standard error."""

    def call(*args: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsv4check", "triage", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path, AUTO)


def written(folder: Path, text: str, name: str = "vllm.log") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def answer(run: Run, *args: str | Path, stdin: bytes = b"") -> dict[str, Any]:
    _code, out, err = run(*args, "--format", "json", stdin=stdin)
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def stated(found: dict[str, Any], name: str) -> list[tuple[str, str]]:
    return [(fact["value"], fact["how"]) for fact in found["stated"]["facts"] if fact["name"] == name]


def one_line(code: int, out: str, err: str) -> str:
    assert code == 2, out + err
    assert out == ""
    assert err.startswith("dsv4check: ")
    assert err.count("\n") == 1, err
    return err


def test_a_log_with_a_known_error(run: Run, log: Path) -> None:
    code, out, err = run(log)
    assert (code, err) == (1, "")
    assert out.startswith("FAILED at model-init: KV001")
    assert "--kv-cache-dtype fp8" in out


def test_several_files_are_one_launch(run: Run, tmp_path: Path) -> None:
    begin = written(tmp_path, START, "1.log")
    end = written(tmp_path, AUTO.removeprefix(START), "2.log")
    assert answer(run, end)["stated"]["vllm"] is None
    found = answer(run, begin, end)
    assert found["stated"]["vllm"] == "0.24.0"
    assert found["candidates"][0]["rule"] == "KV001"
    assert found["reading"]["sources"] == [str(begin), str(end)]


def test_standard_input_and_gzip(run: Run, tmp_path: Path) -> None:
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress(AUTO.encode()))
    for args, stdin in (([packed], b""), (["-"], AUTO.encode()), (["-"], packed.read_bytes())):
        assert answer(run, *args, stdin=stdin)["candidates"][0]["rule"] == "KV001"


def test_what_is_no_log_is_one_line(run: Run, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.log", tmp_path / "vllm.bin"
    empty.write_bytes(b"")
    binary.write_bytes(b"\x7fELF" + bytes(range(256)) * 20 + b"\0" * 4000)
    for path, says in ((tmp_path, "is a folder"), (tmp_path / "no.log", "no such file"), (empty, "is empty")):
        assert says in one_line(*run(path))
    assert "binary" in one_line(*run(binary))
    assert "standard input: is empty" in one_line(*run("-"))
    assert "no log given" in one_line(*run())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_one_line(run: Run, log: Path) -> None:
    log.chmod(0)
    assert "cannot be read" in one_line(*run(log))


def test_a_file_that_cannot_be_opened_is_one_line(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert f"{log}: cannot be read: Permission denied" in one_line(*run(log))


@pytest.mark.parametrize(
    ("text", "outcome", "code"), [(AUTO, "explained", 1), (UNKNOWN, "unknown", 1), (FINE, "no-error", 0)]
)
def test_exit_codes_and_json(run: Run, tmp_path: Path, text: str, outcome: str, code: int) -> None:
    path = written(tmp_path, text)
    ended, out, err = run(path, "--format", "json", "--gpu", "H200")
    document = json.loads(out)
    jsonschema.validate(document, triage_json_schema())
    assert (document["outcome"], ended, err) == (outcome, code, "")
    assert run(path, "--gpu", "H200")[0] == code
    assert run(path, "--gpu", "H200", "--format", "markdown")[0] == code


def test_an_error_that_only_the_checker_sees_is_a_finding(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, FINE.replace("'tensor_parallel_size': 8", "'tensor_parallel_size': 3"))
    code, out, _err = run(path, "--gpu", "H200", "--format", "json")
    assert (json.loads(out)["outcome"], code) == ("no-error", 1)


def test_a_fault_of_the_program_exits_with_3(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise RuntimeError("secret\nplan")

    monkeypatch.delenv("DSV4CHECK_DEBUG", raising=False)
    monkeypatch.setattr(diagnosis, "read_logs", fail)
    code, out, err = run(log)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "internal error" in err


def test_markdown(run: Run, log: Path) -> None:
    code, out, _err = run(log, "--format", "markdown")
    assert code == 1
    assert "KV001" in out
    assert "```" in out


def test_the_bundle_is_written_beside_the_answer(run: Run, log: Path, tmp_path: Path) -> None:
    markdown, document = tmp_path / "bundle.md", tmp_path / "bundle.json"
    code, out, _err = run(log, "--bundle", markdown)
    assert code == 1
    assert out.startswith("FAILED")
    assert "KV001" in markdown.read_text(encoding="utf-8")
    assert run(log, "--bundle", document)[0] == 1
    assert "KV001" in json.dumps(json.loads(document.read_text(encoding="utf-8")))


def test_a_bundle_that_cannot_be_written_is_one_line(run: Run, log: Path, tmp_path: Path) -> None:
    assert "cannot be written" in one_line(*run(log, "--bundle", tmp_path / "no" / "bundle.md"))


OPTIONS = [
    ("--gpu", "H100", "gpu", "H100"),
    ("--gpus", "4", "gpus", "4"),
    ("--nodes", "2", "nodes", "2"),
    ("--gpu-memory-gib", "80", "gpu_memory_gib", "80.0"),
    ("--vllm", "0.25.1", "vllm", "0.25.1"),
    ("--model", "deepseek-ai/DeepSeek-V4-Pro", "model", "deepseek-ai/DeepSeek-V4-Pro"),
    ("--package", "flashinfer-python=0.6.14", "package flashinfer-python", "0.6.14"),
    ("--env", "VLLM_USE_DEEP_GEMM=0", "env VLLM_USE_DEEP_GEMM", "0"),
]
MACHINE = """\
GPU 0: NVIDIA H200
[pip3] flashinfer-python==0.6.1
VLLM_USE_DEEP_GEMM=1
"""


@pytest.mark.parametrize(("option", "value", "fact", "shown"), OPTIONS)
def test_an_option_wins_over_the_log(run: Run, tmp_path: Path, option: str, value: str, fact: str, shown: str) -> None:
    found = answer(run, written(tmp_path, MACHINE + AUTO), option, value)
    assert stated(found, fact) == [(shown, "option")]
    assert option not in " ".join(found["missing"])


def test_options_decide_what_is_checked(run: Run, log: Path) -> None:
    assert answer(run, log)["candidates"][0]["sureness"] == "certain"
    newer = answer(run, log, "--vllm", "0.30.0", "--gpu", "8xH200")
    assert newer["report"]["deployment"]["vllm"]["version"] == "0.30.0"
    assert newer["candidates"][0]["sureness"] == "possible"
    machine = answer(run, log, "--gpu", "4xB200", "--nodes", "2", "--gpu-memory-gib", "170")
    gpu = machine["report"]["deployment"]["hardware"]
    assert (gpu["gpu"], gpu["gpus_per_node"], gpu["nodes"]) == ("B200", 4, 2)
    assert "(--gpus)" not in " ".join(machine["missing"])
    packages = answer(run, log, "--package", "Flashinfer_Python==0.6.14")
    assert packages["stated"]["packages"]["flashinfer-python"] == "0.6.14"


def test_a_config_of_the_user_is_used(run: Run, tmp_path: Path) -> None:
    log = written(tmp_path, AUTO.replace("deepseek-ai/DeepSeek-V4-Flash", "/models/mine"))
    assert answer(run, log)["report"] is None
    config = rules_dir() / "models" / "deepseek-ai" / "DeepSeek-V4-Flash-0731" / "config.json"
    found = answer(run, log, "--model-config", config)
    assert found["report"] is not None
    assert "(--model)" not in " ".join(found["missing"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--gpu", "H2000"], "--gpu 'H2000'"),
        (["--gpu", "H200", "--gpu-memory-gib", "9999999"], "--gpu-memory-gib"),
        (["--gpus", "99999999"], "gpus"),
        (["--vllm", "banana"], "vLLM version 'banana'"),
        (["--model", "someone/else"], "--model"),
        (["--model-config", "/no/such/config.json"], "--model-config: /no/such/config.json"),
        (["--package", "nonsense"], "--package 'nonsense'"),
        (["--env", "novalue"], "--env 'novalue'"),
        (["--rules", "/no/such/folder"], "/no/such/folder"),
        (["--run", "7"], "--run 7"),
    ],
)
def test_wrong_values_are_one_line(run: Run, log: Path, args: list[str], says: str) -> None:
    assert says in one_line(*run(log, *args))


@pytest.mark.parametrize("args", [["--gpus", "0"], ["--nodes", "two"], ["--run", "0"], ["--format", "xml"], ["--what"]])
def test_values_of_another_type_are_usage_errors(run: Run, log: Path, args: list[str]) -> None:
    code, out, err = run(log, *args)
    assert (code, out) == (2, "")
    assert args[0] in err


def test_the_start_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    log = written(tmp_path, AUTO + UNKNOWN)
    assert answer(run, log)["outcome"] == "unknown"
    first = answer(run, log, "--run", "1")
    assert first["candidates"][0]["rule"] == "KV001"
    assert "2 starts" in " ".join(first["notes"])


def test_rules_of_ones_own(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    rule = written(folder, RULE, "ZZ001-gizmo-is-xyzzy.yaml")
    log = written(tmp_path, UNKNOWN)
    found = answer(run, log, "--rules", folder)
    assert (found["outcome"], found["candidates"][0]["rule"]) == ("explained", "ZZ001")
    assert "Turn the gizmo." in run(log, "--rules", folder)[1]
    rule.write_text(RULE.replace("frobnicate'", "elsewhere'"), encoding="utf-8")
    assert answer(run, log, "--rules", folder)["outcome"] == "unknown"
    rule.write_text(RULE.replace("gizmo of", "gizmo (of"), encoding="utf-8")
    said = one_line(*run(log, "--rules", folder))
    assert "ZZ001" in said
    assert "gizmo (of" in said


def test_secrets_of_a_log_are_never_printed(run: Run, tmp_path: Path) -> None:
    token, key, word = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm", "sk-1234567890abcdefghij", "Gheim4711xyz"
    secret = AUTO.replace("'tensor_parallel_size': 8", f"'tensor_parallel_size': 8, 'api_key': ['{key}']")
    secret = secret.replace("got auto", f"got auto with {token}")
    command = f"HF_TOKEN={token} vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --api-key {key}\n"
    log = written(tmp_path, command + f"HF_TOKEN={token}\nexport MY_PASSWORD={word}\n" + secret)
    bundles = [tmp_path / "bundle.md", tmp_path / "bundle.json"]
    said = ["".join(run(log, "--format", form)[1:]) for form in ("text", "json", "markdown")]
    for bundle in bundles:
        said += run(log, "--bundle", bundle)[1:]
        said.append(bundle.read_text(encoding="utf-8"))
    said += run(log, "--env", f"HF_TOKEN={token}", "--format", "json")[1:]
    assert any("KV001" in text for text in said)
    for text in said:
        assert token not in text
        assert key not in text
        assert word not in text


def test_nul_bytes_and_broken_characters(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_bytes(AUTO.encode().replace(b"raise ValueError(", b"raise \xff\xfe\x00 ValueError(") + b"\xe4\x00\x80\n")
    for form in ("text", "json", "markdown"):
        code, out, err = run(path, "--format", form)
        assert (code, err) == (1, "")
        assert "KV001" in out


def test_neither_network_nor_driver_is_asked(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=refuse))
    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("dsv4check.inputs.gpu._from_driver", refuse)
    monkeypatch.setattr("dsv4check.inputs.vllm_version.installed_vllm", refuse)
    for args in ([], ["--gpus", "4"], ["--gpu-memory-gib", "80"], ["--vllm", "0.25.0"]):
        code, _out, err = run(log, *args)
        assert (code, err) == (1, "")


def test_nothing_heavy_is_imported(log: Path) -> None:
    code = (
        f"import sys; sys.argv = ['dsv4check', 'triage', {str(log)!r}]\n"
        "from dsv4check.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'vllm', 'huggingface_hub', 'transformers', 'pynvml', 'rich.console', 'yaml'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FAILED")


def test_a_reader_that_leaves_is_no_error(log: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "dsv4check", "triage", str(log)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert done.returncode in (1, 2)
    assert done.stderr == ""


def test_help(run: Run) -> None:
    code, out, _err = run("--help")
    assert code == 0
    for word in ("LOG...", "--bundle", "--run", "--model-config", "--rules", "--format", "first real error"):
        assert word in out
