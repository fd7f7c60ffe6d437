"""Reports of the gate, made by hand."""

from __future__ import annotations

from typing import Any

from dsv4check.engine.rule import Certainty, Severity
from dsv4check.gate.records import Fact, FileProblem, GateFinding, GateReport, LaunchResult, Region
from dsv4check.problems import Stage
from dsv4check.report.model import Edit, Fix
from dsv4check.resolution import NotEvaluated

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
NASTY = (
    "100% |x| `y` ``z`` <script>alert(1)</script> [a](b) @someone #1 "
    "\x1b[31mred\x00 \ufffe é 漢 \U0001f600\nnext ::error::x"
)
"""What files and names may hold: markup of every format, control characters, ends of lines."""
NASTY_PATH = "deploy of|two/a b#1 100%,x:é`<b>.sh"
OWN = {"GT001": ("An ignore without a reason.", "Write why the rule does not matter here: # dsv4check: ignore[ID] why")}


def region(line: int, column: int, token: str = "", **changes: int) -> Region:
    end = {"end_line": line, "end_column": column + max(len(token), 1)} | changes
    return Region(line, column, token=token, **end)


def fix(text: str = "--kv-cache-dtype fp8", **changes: Any) -> Fix:
    made: dict[str, Any] = {
        "edits": (Edit("set_flag", "kv_cache_dtype", "fp8", text),),
        "command": f"vllm serve {FLASH} -tp 4 {text}",
        "verified": True,
    }
    return Fix(**(made | changes))


def finding(**changes: Any) -> GateFinding:
    made: dict[str, Any] = {
        "rule": "KV001",
        "name": "auto-on-packed-layout",
        "severity": Severity.ERROR,
        "certainty": Certainty.PROVEN,
        "stage": Stage.MODEL_INIT,
        "message": "--kv-cache-dtype is `auto`, which vLLM 0.24.0 maps to nothing for packed fp8_ds_mla states.",
        "error": "DeepseekV4 only supports fp8 kv-cache format for now, got auto",
        "path": "deploy/flash.sh",
        "region": region(3, 12, "vllm"),
        "launch": "line 3",
        "fingerprint": "0123456789abcdef",
    }
    return GateFinding(**(made | changes))


def launch(**changes: Any) -> LaunchResult:
    made: dict[str, Any] = {
        "path": "deploy/flash.sh",
        "name": "line 3",
        "format": "shell",
        "region": region(3, 12, "vllm"),
        "command": f"vllm serve {FLASH} -tp 4",
        "model": FLASH,
        "facts": {
            "vllm": Fact("0.24.0", "file", 2),
            "gpu": Fact("H200", "option"),
            "gpus": Fact("4", "config"),
        },
        "verdict": "pass",
    }
    return LaunchResult(**(made | changes))


def rich_report() -> GateReport:
    """Everything a report can hold, and text that breaks each format when it is not escaped."""
    compose, kube = "compose.yaml", "k8s/flash.yaml"
    failing = launch(
        verdict="fail",
        findings=(
            finding(
                fixes=(fix(note="packed states exist only in fp8"), fix("vLLM >=0.30.0")), references=("vllm#45091",)
            ),
            # The same place twice has the same fingerprint.
            finding(message="The same rule in another way.", error="", no_fix="which one was meant cannot be told"),
            finding(
                rule="CG001",
                name="full-graphs-read-out-of-bounds-on-hopper",
                certainty=Certainty.REPORTED,
                stage=Stage.CUDAGRAPH,
                region=region(4, 3, "--compilation-config", end_line=6, end_column=8),
                message="The DeepGEMM of vLLM 0.27.x reads out of bounds in Hopper's scheduler",
                error="CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`",
                fixed_in="0.28.0",
                fixes=(fix("--enforce-eager", verified=False, also=(Edit("drop_flag", "x", None, "remove --x"),)),),
                fingerprint="1123456789abcdef",
            ),
        ),
        not_evaluated=(NotEvaluated("memory", "the GPU is not known", "give --gpu"),),
        notes=("the words behind `|` were dropped",),
    )
    warned = launch(
        path=compose,
        name="service flash",
        format="compose",
        region=region(9, 5),
        verdict="warn",
        facts={"vllm": Fact("0.30.0", "assumed"), "gpu": Fact("B200", "assumed"), "nodes": Fact("2", "file", 4)},
        findings=(
            finding(
                rule="EV001",
                name="unknown-variable",
                severity=Severity.WARNING,
                stage=Stage.ENGINE_CONFIG,
                message="VLLM_MY_SWITCH is not a variable of vLLM 0.30.0: it is ignored with a warning.",
                error="",
                path=compose,
                region=region(14, 7, "VLLM_MY_SWITCH"),
                launch="service flash",
                fingerprint="2123456789abcdef",
            ),
            finding(
                path=compose,
                region=region(12, 7, "auto"),
                launch="service flash",
                ignored="a fork of ours takes it",
                fingerprint="3123456789abcdef",
            ),
            finding(path=compose, region=region(12, 7, "auto"), baseline=True, fingerprint="4123456789abcdef"),
        ),
    )
    nasty = launch(
        path=NASTY_PATH,
        name=NASTY,
        region=region(1, 1),
        model="a|b`c",
        verdict="fail",
        command=f"vllm serve '{NASTY}'",
        findings=(
            finding(
                rule="FL001",
                name="unknown-flag",
                severity=Severity.NOTE,
                stage=Stage.ARGPARSE,
                certainty=Certainty.DECLARED,
                message=NASTY,
                error=NASTY + "\r\n```\n</details>",
                path=NASTY_PATH,
                region=region(1, 7, NASTY),
                launch=NASTY,
                fixes=(fix(NASTY, command=f"vllm serve '{NASTY}' ````", note=NASTY),),
                fingerprint="5123456789abcdef",
            ),
        ),
    )
    return GateReport(
        launches=(
            warned,
            launch(path=compose, name="service flash", region=region(9, 5)),
            failing,
            launch(region=region(30, 1), name="line 30", findings=(finding(baseline=True, fingerprint="6123"),)),
            nasty,
            launch(path=kube, name="Deployment/llama container vllm", verdict=None, model="llama", other_model=True),
            launch(
                path=kube, name="Deployment/v4 container vllm", verdict=None, not_checked=f"no config.json: {NASTY}"
            ),
        ),
        problems=(
            FileProblem("charts/templates/x.yaml", 4, "a template to be rendered first", skipped=True),
            FileProblem("broken.yaml", 7, "mapping values are not allowed here"),
            FileProblem(NASTY_PATH, 0, NASTY),
        ),
        own=(
            finding(
                rule="GT001",
                name="ignore-without-reason",
                severity=Severity.WARNING,
                stage=None,
                message="This ignore says no reason.",
                error="",
                path=compose,
                region=region(11, 9, "# dsv4check: ignore[KV001]"),
                launch="",
                fingerprint="7123456789abcdef",
            ),
            finding(
                rule="GT009",
                name="unused-ignore",
                severity=Severity.NOTE,
                stage=None,
                message="This ignore covers nothing.",
                error="",
                path="old.sh",
                region=region(2, 1),
                launch="",
                fingerprint="8123456789abcdef",
            ),
        ),
        files=7,
        seconds=1.25,
        stale=("deploy/old.sh KV001 line 3", NASTY),
        notes=("GPU B200 was assumed", NASTY),
    )


def empty_report() -> GateReport:
    return GateReport(launches=())


def clean_report() -> GateReport:
    return GateReport(launches=(launch(facts={}), launch(path="z.sh", name="line 1")), files=2)


def surrogate_report() -> GateReport:
    """Names that are no UTF-8, as the file system hands them over, and halves of characters from escapes in YAML."""
    path, text = "caf\udce9.sh", "half \ud83d of one"
    return GateReport(
        launches=(
            launch(path=path, name=text, verdict="fail", findings=(finding(path=path, message=text, launch=text),)),
            launch(path="\ud83d.sh", verdict=None, not_checked=text),
        ),
        problems=(FileProblem(path, 1, text),),
        files=1,
    )


def large_report(number: int, size: int = 400, text: str = "|`<&@") -> GateReport:
    """Many findings and launches not checked, and much text in each."""
    text *= size // len(text)
    return GateReport(
        launches=(
            launch(
                verdict="fail",
                findings=tuple(
                    finding(message=f"{item} {text}", error=text, region=region(item + 1, 1), fixes=(fix(text),))
                    for item in range(number)
                ),
            ),
            *(launch(name=f"line {item}", verdict=None, not_checked=text) for item in range(number)),
        ),
        problems=tuple(FileProblem(f"{item}.yaml", item, text) for item in range(number)),
        files=number,
        notes=(text,) * number,
        stale=(text,) * number,
    )
