"""`dsv4check gate` as a user runs it: files, formats, exit codes, fixes, and input that nobody should feed it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from dsv4check.cli.main import make_app

ROOT = Path(__file__).parents[2]
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
MANIFEST = """\
apiVersion: v1
kind: Pod
spec: {containers: [{image: "vllm/vllm-openai:v0.24.0", args: [deepseek-ai/DeepSeek-V4-Flash]}]}
"""
GOOD = f"#!/bin/sh\n# dsv4check: vllm=0.24.0 gpu=H200 gpus=8\nvllm serve {FLASH} -tp 8 --kv-cache-dtype fp8\n"
BAD = GOOD.replace("fp8", "bfloat16")


def gate(folder: Path, *args: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "dsv4check", "gate", *args],
        input=data,
        capture_output=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def report(folder: Path, *args: str, stdin: str | bytes = "") -> tuple[int, dict[str, Any]]:
    done = gate(folder, *args, "--format", "json", stdin=stdin)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_good_and_bad(tmp_path: Path) -> None:
    write(tmp_path, good_sh=GOOD)
    done = gate(tmp_path, ".")
    assert (done.returncode, done.stderr) == (0, "")
    assert "good.sh:3: pass" in done.stdout
    write(tmp_path, bad_sh=BAD)
    done = gate(tmp_path, ".")
    assert done.returncode == 1
    column = BAD.splitlines()[2].index("--kv-cache-dtype") + 1
    assert f"bad.sh:3:{column}: error KV003" in done.stdout
    assert "fix: --kv-cache-dtype fp8" in done.stdout
    assert "2 files, 2 launches: 1 pass, 1 fail" in done.stdout


@pytest.mark.parametrize(("threshold", "code"), [("error", 1), ("warning", 1), ("note", 1), ("never", 0)])
def test_the_threshold(tmp_path: Path, threshold: str, code: int) -> None:
    write(tmp_path, bad_sh=BAD)
    assert gate(tmp_path, ".", "--fail-on", threshold).returncode == code


def test_open_answers_count_with_strict(tmp_path: Path) -> None:
    write(tmp_path, run_sh=f"vllm serve {FLASH} -tp 8 --kv-cache-dtype fp8\n")
    assert gate(tmp_path, ".", "--vllm", "0.24.0").returncode == 0
    assert gate(tmp_path, ".", "--vllm", "0.24.0", "--strict").returncode == 1
    assert gate(tmp_path, ".", "--vllm", "0.24.0", "--strict", "--gpu", "H200", "--gpus", "8").returncode == 0


def test_an_unknown_image_is_not_checked_and_said(tmp_path: Path) -> None:
    write(tmp_path, run_sh=f"docker run registry.example/acme/serve:prod vllm serve {FLASH} -tp 8\n")
    code, found = report(tmp_path, ".")
    assert code == 0
    assert found["launches"][0]["verdict"] is None
    assert "registry.example/acme/serve:prod" in found["launches"][0]["not_checked"]
    assert gate(tmp_path, ".", "--strict").returncode == 1
    assert report(tmp_path, ".", "--vllm", "0.24.0")[1]["launches"][0]["verdict"] == "fail"


def test_no_launch_is_no_silent_success(tmp_path: Path) -> None:
    write(tmp_path, a_yaml="a: 1\n")
    done = gate(tmp_path, ".")
    assert done.returncode == 2
    assert "no launch of vLLM in 1 files" in done.stderr
    assert gate(tmp_path, ".", "--allow-none").returncode == 0
    named = gate(tmp_path, "a.yaml")
    assert named.returncode == 2
    assert "a.yaml: no launch in it" in named.stdout
    assert gate(tmp_path, "a.yaml", "--allow-none").returncode == 0
    missing = gate(tmp_path, "nowhere.yaml")
    assert missing.returncode == 2
    assert "nowhere.yaml" in missing.stdout + missing.stderr
    assert gate(tmp_path).returncode == 2


def test_other_models_and_servers_are_counted_not_judged(tmp_path: Path) -> None:
    write(
        tmp_path,
        a_sh="vllm serve meta-llama/Llama-3.1-8B --kv-cache-dtype nonsense\n",
        b_sh=f"python3 -m sglang.launch_server --model-path {FLASH} --tp 8\n",
    )
    code, found = report(tmp_path, ".")
    assert code == 0
    assert [item["other_model"] for item in found["launches"]] == [True, True]
    assert found["summary"]["other_models"] == 2


def test_standard_input(tmp_path: Path) -> None:
    done = gate(tmp_path, "-", "--stdin-filename", "deploy/run.sh", stdin=BAD)
    assert done.returncode == 1
    assert "deploy/run.sh:3:" in done.stdout
    assert gate(tmp_path, "-", "--stdin-filename", "x.yaml", stdin=MANIFEST).returncode == 1
    # Without a name the text itself says what it is.
    assert gate(tmp_path, "-", stdin=MANIFEST).returncode == 1
    assert gate(tmp_path, "-", stdin="").returncode == 2


def test_several_formats_in_one_run(tmp_path: Path) -> None:
    write(tmp_path, bad_sh=BAD)
    wanted = {
        "json": "r.json",
        "sarif": "r.sarif",
        "junit": "r.xml",
        "github": "r.txt",
        "markdown": "r.md",
        "text": "t",
    }
    outputs = [word for name, path in wanted.items() for word in ("--output", f"{name}={path}")]
    done = gate(tmp_path, ".", *outputs)
    assert done.returncode == 1
    assert "KV003" in done.stdout
    for path in wanted.values():
        assert "KV003" in (tmp_path / path).read_text(encoding="utf-8"), path
    schema = json.loads((ROOT / "docs/gate.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")), schema)
    sarif_schema = json.loads((ROOT / "tests/report/sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads((tmp_path / "r.sarif").read_text(encoding="utf-8")), sarif_schema)
    assert ET.parse(tmp_path / "r.xml").getroot().get("failures") == "1"
    bad = gate(tmp_path, ".", "--output", "xml=r.xml")
    assert bad.returncode == 2
    assert "expected FORMAT=FILE" in bad.stderr
    assert gate(tmp_path, ".", "--output", "json=no/such/r.json").returncode == 2


def test_the_exit_code_is_the_same_in_every_format(tmp_path: Path) -> None:
    write(tmp_path, bad_sh=BAD)
    for name in ("text", "json", "sarif", "junit", "github", "markdown"):
        assert gate(tmp_path, ".", "--format", name).returncode == 1, name


def test_fix_changes_the_word_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, bad_sh=BAD)
    os.chmod(tmp_path / "bad.sh", 0o755)
    shown = gate(tmp_path, ".", "--diff")
    assert shown.returncode == 1
    assert (tmp_path / "bad.sh").read_text(encoding="utf-8") == BAD
    assert [line[:1] for line in shown.stdout.splitlines()[3:]].count("+") == 1
    done = gate(tmp_path, ".", "--fix")
    assert done.returncode == 0, done.stdout
    assert "fixed bad.sh:3: KV003: --kv-cache-dtype fp8" in done.stderr
    assert (tmp_path / "bad.sh").read_text(encoding="utf-8") == GOOD
    assert stat.S_IMODE((tmp_path / "bad.sh").stat().st_mode) == 0o755
    assert gate(tmp_path, ".", "--diff").stdout == ""


def test_ignores_need_a_reason(tmp_path: Path) -> None:
    write(tmp_path, bad_sh=BAD.replace("bfloat16", "bfloat16  # dsv4check: ignore[KV003] our fork stores it"))
    code, found = report(tmp_path, ".")
    assert code == 0
    assert found["launches"][0]["findings"][0]["ignored"] == "our fork stores it"
    write(tmp_path, bad_sh=BAD.replace("bfloat16", "bfloat16  # dsv4check: ignore[KV003]"))
    code, found = report(tmp_path, ".")
    assert code == 1
    assert [item["rule"] for item in found["own"]] == ["GT001"]
    write(tmp_path, bad_sh=GOOD.replace("fp8", "fp8  # dsv4check: ignore[KV003] nothing there"))
    code, found = report(tmp_path, ".", "--fail-on", "warning")
    assert code == 1
    assert [item["rule"] for item in found["own"]] == ["GT003"]


def test_a_baseline_lets_an_old_tree_in(tmp_path: Path) -> None:
    write(tmp_path, bad_sh=BAD)
    assert gate(tmp_path, ".", "--baseline", "known.json").returncode == 2
    assert gate(tmp_path, ".", "--baseline", "known.json", "--update-baseline").returncode == 0
    first = (tmp_path / "known.json").read_bytes()
    assert gate(tmp_path, ".", "--baseline", "known.json").returncode == 0
    # Lines that move change nothing, a new finding counts.
    write(tmp_path, bad_sh=BAD.replace("#!/bin/sh\n", "#!/bin/sh\n# moved\n"))
    assert gate(tmp_path, ".", "--baseline", "known.json").returncode == 0
    gate(tmp_path, ".", "--baseline", "known.json", "--update-baseline")
    assert (tmp_path / "known.json").read_bytes() == first
    write(tmp_path, new_sh=BAD)
    assert gate(tmp_path, ".", "--baseline", "known.json").returncode == 1
    write(tmp_path, new_sh=GOOD, bad_sh=GOOD)
    done = gate(tmp_path, ".", "--baseline", "known.json")
    assert done.returncode == 0
    assert "found no more" in done.stdout
    assert gate(tmp_path, ".", "--update-baseline").returncode == 2


def test_the_configuration_fills_what_files_leave_open(tmp_path: Path) -> None:
    write(tmp_path, prod__run_sh=f"vllm serve {FLASH} -tp 8 --kv-cache-dtype bfloat16\n")
    write(tmp_path, old__run_sh=f"vllm serve {FLASH} -tp 8\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dsv4check]\ngpu = "H200"\ngpus = 8\nvllm = "0.33.0"\n'
        '[[tool.dsv4check.launch]]\npath = "old/**"\nvllm = "0.24.0"\n'
        '[[tool.dsv4check.ignore]]\npath = "prod/**"\nrules = ["KV003"]\nreason = "goes away in May"\n',
        encoding="utf-8",
    )
    code, found = report(tmp_path, ".")
    launches = {item["path"]: item for item in found["launches"]}
    assert launches["old/run.sh"]["facts"]["vllm"] == {"value": "0.24.0", "source": "config", "line": 0}
    assert launches["prod/run.sh"]["facts"]["gpu"]["value"] == "H200"
    assert code == 1
    assert [item["rule"] for item in launches["old/run.sh"]["findings"] if item["active"]] == ["KV001"]
    ignored = [item for item in launches["prod/run.sh"]["findings"] if item["severity"] == "error"]
    assert [item["ignored"] for item in ignored] == ["goes away in May"]
    # An option wins over the configuration, --isolated leaves it out.
    assert report(tmp_path, "old", "--vllm", "0.33.0")[0] == 0
    assert report(tmp_path, "old", "--isolated")[1]["launches"][0]["facts"]["vllm"]["source"] == "assumed"
    (tmp_path / "pyproject.toml").write_text('[tool.dsv4check]\ngpuu = "H200"\n', encoding="utf-8")
    done = gate(tmp_path, ".")
    assert done.returncode == 2
    assert "gpuu" in done.stderr
    assert "gpu" in done.stderr


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    write(tmp_path, good_sh=GOOD)
    for words in (["--gpu", "H2000"], ["--vllm", "nonsense"], ["--env", "1=2"], ["--rules", "nowhere"]):
        done = gate(tmp_path, ".", *words)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_git_ignores_count(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    write(tmp_path, good_sh=GOOD, build__bad_sh=BAD)
    (tmp_path / ".gitignore").write_text("build/\n", encoding="utf-8")
    assert gate(tmp_path, ".").returncode == 0
    assert gate(tmp_path, ".", "--no-git-ignore").returncode == 1
    assert gate(tmp_path, ".", "--no-git-ignore", "--exclude", "build/**").returncode == 0


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    secret = "sk-very-secret-0123456789"
    write(
        tmp_path,
        bad_sh=BAD.replace("vllm serve", f"HF_TOKEN={secret} vllm serve").replace(" -tp", f" --api-key {secret} -tp"),
    )
    for name in ("text", "json", "sarif", "junit", "github", "markdown"):
        done = gate(tmp_path, ".", "--format", name, "--verbose")
        assert done.returncode == 1
        assert secret not in done.stdout + done.stderr, name


# -- hostile input -------------------------------------------------------------------------------------------


def one_line_about(done: subprocess.CompletedProcess[str], name: str) -> str:
    lines = [line for line in done.stdout.splitlines() if name in line and ": pass" not in line]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]


def test_a_yaml_bomb(tmp_path: Path) -> None:
    levels = ["a0: &a0 [vllm, vllm, vllm, vllm, vllm, vllm, vllm, vllm, vllm]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    write(tmp_path, bomb_yaml="\n".join(levels) + "\n", good_sh=GOOD)
    start = time.monotonic()
    done = gate(tmp_path, ".")
    assert time.monotonic() - start < 20
    assert done.returncode == 2
    assert "aliases" in one_line_about(done, "bomb.yaml")
    assert "good.sh:3: pass" in done.stdout


def test_a_yaml_file_that_contains_itself_and_deep_nesting(tmp_path: Path) -> None:
    write(tmp_path, self_yaml="vllm: &a [*a]\n", deep_json='{"vllm": ' + "[" * 60000 + "]" * 60000 + "}", good_sh=GOOD)
    done = gate(tmp_path, ".")
    assert done.returncode == 2
    one_line_about(done, "self.yaml")
    one_line_about(done, "deep.json")


def test_large_binary_and_badly_encoded_files(tmp_path: Path) -> None:
    with open(tmp_path / "large.yaml", "wb") as stream:
        stream.write(b"image: vllm/vllm-openai:v0.24.0\n")
        stream.truncate(100 * 1024 * 1024)
    with open(tmp_path / "unrelated.json", "wb") as stream:
        stream.truncate(100 * 1024 * 1024)
    (tmp_path / "binary.sh").write_bytes(b"vllm serve\0\1\2")
    (tmp_path / "latin.sh").write_bytes("# für vllm serve\n".encode("latin-1"))
    (tmp_path / "wide.yaml").write_bytes("image: vllm/vllm-openai\n".encode("utf-16"))
    (tmp_path / "data.json").write_bytes(b"\xff\xfe\x00 nothing of interest")
    write(tmp_path, good_sh=GOOD)
    done = gate(tmp_path, ".")
    assert done.returncode == 2
    assert "larger than 8 MiB (100 MiB)" in one_line_about(done, "large.yaml")
    assert "binary" in one_line_about(done, "binary.sh")
    assert "not UTF-8" in one_line_about(done, "latin.sh")
    assert "UTF-16" in one_line_about(done, "wide.yaml")
    # Nothing in these has to do with vLLM.
    assert "unrelated.json" not in done.stdout
    assert "data.json" not in done.stdout
    assert "good.sh:3: pass" in done.stdout


def test_links_pipes_and_folders(tmp_path: Path) -> None:
    write(tmp_path, good_sh=GOOD)
    os.symlink("loop.yaml", tmp_path / "loop.yaml")
    os.symlink(tmp_path, tmp_path / "again")
    os.symlink("good.sh", tmp_path / "link.sh")
    os.mkfifo(tmp_path / "pipe.sh")
    done = gate(tmp_path, ".")
    assert done.returncode in (0, 2)
    assert done.stdout.count("good.sh:3: pass") + done.stdout.count("link.sh:3: pass") == 1
    named = gate(tmp_path, "loop.yaml", "pipe.sh", "good.sh")
    assert named.returncode == 2
    assert "symbolic link" in one_line_about(named, "loop.yaml")
    assert "named pipe" in one_line_about(named, "pipe.sh")
    assert "good.sh:3: pass" in named.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_unreadable_files(tmp_path: Path) -> None:
    write(tmp_path, good_sh=GOOD, closed_sh=GOOD)
    os.chmod(tmp_path / "closed.sh", 0)
    done = gate(tmp_path, ".")
    assert done.returncode == 2
    assert "cannot be read" in one_line_about(done, "closed.sh")


def test_broken_yaml_loses_only_itself(tmp_path: Path) -> None:
    write(tmp_path, all_yaml=f"{MANIFEST}---\nvllm: [1, 2\n---\n{MANIFEST}")
    code, found = report(tmp_path, ".")
    assert code == 2
    assert len(found["launches"]) == 2
    assert [item["line"] for item in found["problems"]] != [0]


def test_templates_are_named_and_do_not_fail_the_run(tmp_path: Path) -> None:
    text = "{{- if .Values.on }}\nimage: vllm/vllm-openai:{{ .Values.tag }}\nargs: [{{ .Values.args }}]\n{{- end }}\n"
    write(tmp_path, chart__templates__d_yaml=text, good_sh=GOOD)
    done = gate(tmp_path, ".")
    assert done.returncode == 0, done.stdout
    assert "a template" in one_line_about(done, "chart/templates/d.yaml")


def test_processes_give_the_same_report(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"run{number:02}.sh").write_text(BAD if number % 3 else GOOD, encoding="utf-8")
    one, many = report(tmp_path, ".", "--jobs", "1")[1], report(tmp_path, ".", "--jobs", "3")[1]
    for found in (one, many):
        found.pop("seconds")
    assert one == many
    assert len(one["launches"]) == 60


def test_a_config_file_that_is_a_bomb(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    write(tmp_path, c_yaml="\n".join(levels) + "\n", run_sh=f"vllm serve {FLASH} --config c.yaml\n", good_sh=GOOD)
    _code, found = report(tmp_path, "run.sh", "good.sh")
    launches = {item["path"]: item for item in found["launches"]}
    assert "more than" in launches["run.sh"]["not_checked"]
    assert launches["good.sh"]["verdict"] == "pass"


def test_a_fault_of_the_gate_loses_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4check.gate.file_check import FileChecker

    write(tmp_path, bad_sh=BAD, good_sh=GOOD)
    monkeypatch.chdir(tmp_path)
    original = FileChecker.check_file

    def broken(self: FileChecker, path: Path, shown: str, *, explicit: bool) -> Any:
        if shown == "bad.sh":
            raise TypeError("a fault")
        return original(self, path, shown, explicit=explicit)

    monkeypatch.setattr(FileChecker, "check_file", broken)
    done = CliRunner().invoke(make_app(["gate"]), ["gate", ".", "--jobs", "1"])
    assert done.exit_code == 3
    assert "bad.sh: internal error (TypeError: a fault); please report it" in done.output
    assert "good.sh:3: pass" in done.output
