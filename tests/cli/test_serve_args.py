"""The program as a user runs it: output, exit codes, bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
GOOD = ["--", "vllm", "serve", FLASH, "-tp", "8", "--kv-cache-dtype", "fp8"]
MACHINE = ["--gpu", "H200", "--gpus", "8", "--vllm", "0.24.0"]


def run(*args: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsv4check", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env=None if env is None else env,
        check=False,
    )


def test_pass_exits_0() -> None:
    done = run("serve-args", *MACHINE, *GOOD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASS")
    assert "584" in done.stdout
    assert done.stderr == ""


def test_findings_exit_1_and_the_printed_command_works() -> None:
    done = run("serve-args", *MACHINE, "--format", "json", "--", "vllm", "serve", FLASH, "-tp", "8")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["verdict"] == "fail"
    (finding,) = [item for item in report["findings"] if item["severity"] == "error"]
    assert (finding["rule"], finding["stage"]) == ("KV001", "model-init")
    assert "got auto" in finding["error"]
    assert finding["fixes"][0]["verified"] is True
    again = run("serve-args", *MACHINE, finding["fixes"][0]["command"])
    assert again.returncode == 0, again.stdout


def test_fail_on_never_and_warning() -> None:
    ignored = [*GOOD, "--attention-backend", "TRITON_MLA"]
    assert run("serve-args", *MACHINE, *ignored).returncode == 0
    assert run("serve-args", *MACHINE, "--fail-on", "warning", *ignored).returncode == 1
    assert run("serve-args", *MACHINE, "--fail-on", "never", "--", "vllm", "serve", FLASH).returncode == 0


def test_strict_counts_open_answers() -> None:
    assert run("serve-args", "--vllm", "0.24.0", *GOOD).returncode == 0
    done = run("serve-args", "--vllm", "0.24.0", "--strict", *GOOD)
    assert done.returncode == 1
    assert "Not evaluated" in done.stdout


def test_command_from_standard_input() -> None:
    text = f"# prod\nexport VLLM_LOGGING_LEVEL=INFO\nvllm serve {FLASH} \\\n  -tp 8 \\\n  --kv-cache-dtype fp8\n"
    assert run("serve-args", *MACHINE, "-", stdin=text).returncode == 0


def test_one_quoted_string() -> None:
    assert run("serve-args", *MACHINE, " ".join(GOOD[1:])).returncode == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["serve-args"], "no command given"),
        (["serve-args", "--gpu", "H2000", *GOOD], "H2000"),
        (["serve-args", "--vllm", "banana", *GOOD], "banana"),
        (["serve-args", *MACHINE, "--", "vllm", "serve", "/no/such/model", "-tp", "8"], "/no/such/model"),
        (["serve-args", *MACHINE, "--model-config", "/no/such/config.json", *GOOD], "/no/such/config.json"),
        (["serve-args", *MACHINE, "--env", "novalue", *GOOD], "novalue"),
        (["serve-args", *MACHINE, "--package", "nonsense", *GOOD], "nonsense"),
        (["serve-args", *MACHINE, "--batch", "/no/such/file"], "/no/such/file"),
        (["serve-args", *MACHINE, "--rules", "/no/such/dir", *GOOD], "/no/such/dir"),
        (["serve-args", *MACHINE, "--format", "xml", *GOOD], "xml"),
        (["explain", "KV999"], "KV999"),
        (["matrix", "--vllm", "banana"], "banana"),
    ],
)
def test_unusable_input_exits_2_with_one_message(args: list[str], says: str) -> None:
    done = run(*args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1, 2]", "object"),
        ('{"model_type": "deepseek_v4", ', "line 1"),
        ('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}', "llama"),
        ('{"model_type": "deepseek_v4", "num_hidden_layers": "43"}', "num_hidden_layers"),
        ("\x00\x01" * 2_600_000, "too large"),
    ],
    ids=["list", "truncated", "llama", "text-number", "5MB-garbage"],
)
def test_bad_config_exits_2_and_names_the_file(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    done = run("serve-args", *MACHINE, "--model-config", str(path), *GOOD)
    assert done.returncode == 2, done.stdout
    assert str(path) in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 600


def test_secrets_are_masked() -> None:
    words = ["HF_TOKEN=hf_abcdef", *GOOD[1:], "--api-key", "sk-123456"]
    for form in ("text", "json"):
        done = run("serve-args", "--gpu", "H200", "--gpus", "8", "--vllm", "0.24.0", "--format", form, "--", *words)
        assert "hf_abcdef" not in done.stdout + done.stderr
        assert "sk-123456" not in done.stdout + done.stderr
    failing = [word for word in words if word not in ("--kv-cache-dtype", "fp8")]
    done = run("serve-args", *MACHINE, "--", *failing)
    assert "sk-123456" not in done.stdout
    assert "hf_abcdef" not in done.stdout


def test_batch_answers_every_line_in_order(tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": "a", "model": FLASH, "args": ["-tp", "8"], "gpu": "H200", "gpus": 8, "vllm": "0.24.0"}),
        "not json",
        json.dumps({"id": 3, "model": FLASH, "args": ["-tp", "8"], "gpu": "H200", "gpus": 8, "vllm": "0.30.0"}),
        json.dumps({"id": "d", "model": FLASH, "args": ["-tp", "8"], "gpu": "nope", "vllm": "0.30.0"}),
        json.dumps({"id": "e", "model": FLASH, "args": "-tp 8"}),
        json.dumps(
            {
                "id": "f",
                "model": FLASH,
                "args": ["-tp", "3", "--kv-cache-dtype", "fp8"],
                "gpu": "H200",
                "vllm": "0.28.0",
                "config_overrides": {"num_attention_heads": 96, "o_groups": 12},
            }
        ),
    ]
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run("serve-args", "--batch", str(path))
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    assert [reply["id"] for reply in replies] == ["a", None, 3, "d", "e", "f"]
    assert [reply["verdict"] for reply in replies[:5]] == ["fail", None, "pass", None, None]
    assert "line 2" in replies[1]["input_error"]
    assert "nope" in replies[3]["input_error"]
    assert not any(finding["stage"] == "engine-config" for finding in replies[5]["findings"])


def test_empty_batch_is_unusable(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n", encoding="utf-8")
    assert run("serve-args", "--batch", str(path)).returncode == 2


def test_light_imports() -> None:
    code = (
        "import sys; sys.argv = ['dsv4check', 'serve-args', '--gpu', 'H200', '--vllm', '0.24.0', '--', "
        "'vllm', 'serve', 'deepseek-ai/DeepSeek-V4-Flash', '-tp', '8', '--kv-cache-dtype', 'fp8']\n"
        "from dsv4check.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'vllm', 'huggingface_hub', 'transformers', 'pynvml', 'rich.console'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_rules_explain_releases_matrix() -> None:
    assert "KV001" in run("rules").stdout
    assert json.loads(run("rules", "--format", "json").stdout)[0]["id"]
    assert "auto" in run("explain", "kv001").stdout
    machine = run("explain", "HO001").stdout
    assert "logs alone" in machine
    assert "What to do on the machine\n  - Update the NVIDIA driver" in machine
    assert "Fixes tried" not in machine
    assert json.loads(run("explain", "KV001", "--format", "json").stdout)["name"] == "auto-on-packed-layout"
    listed = json.loads(run("releases", "--format", "json").stdout)
    assert {"0.20.0", "0.24.0", "0.33.0"} <= {item["release"] for item in listed}
    cells = json.loads(run("matrix", "--vllm", "0.24.0", "--format", "json").stdout)["cells"]
    (cell,) = [
        item for item in cells if (item["sm_major"], item["backend"], item["kv_cache_dtype"]) == (9, "(unset)", "auto")
    ]
    assert cell["fails"]["stage"] == "model-init"
    assert "| fp8 |" in run("matrix", "--vllm", "0.24.0", "--format", "markdown").stdout
    assert "SM 12.x" in run("matrix", "--vllm", "0.24.0").stdout
