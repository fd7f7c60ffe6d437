"""Answers of triage made by hand, with real rules and real reports of the checker."""

from __future__ import annotations

from functools import cache
from typing import Any

from dsv4check.engine.rule import Rule
from dsv4check.inputs.command import format_command
from dsv4check.problems import Stage
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding, Report
from dsv4check.triage.answer import Candidate, Evidence, Outcome, Sureness, TriageReport
from dsv4check.triage.records import ErrorEvent, Fact, Frame, LogLine, LogReading, Milestone, Run, Stated
from tests.launches import all_rules, run_launch

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
LOG = "vllm.log"
SAID = "DeepseekV4 only supports fp8 kv-cache format for now, got auto"


def rule(id: str) -> Rule:
    return next(item for item in all_rules() if item.id == id)


@cache
def report(args: str = "-tp 8", vllm: str = "0.24.0", gpu: str = "H200", gpus: int = 8) -> Report:
    return run_launch({"vllm": vllm, "gpu": gpu, "gpus": gpus, "model": FLASH, "args": args}, fixes=True)


def finding(made: Report, id: str) -> Finding:
    return next(item for item in made.findings if item.rule == id)


def command(made: Report) -> str:
    return format_command(masked_command(made.deployment.command))


def line(number: int, text: str, **changes: Any) -> LogLine:
    return LogLine(**({"source": LOG, "number": number, "text": text, "process": "EngineCore_DP0"} | changes))


def event(**changes: Any) -> ErrorEvent:
    made: dict[str, Any] = {
        "kind": "ValueError",
        "message": SAID,
        "line": line(118, f"ValueError: {SAID}", level="ERROR", module="core.py:1110"),
        "frames": (
            Frame("vllm/v1/engine/core.py", 1104, "run_engine_core", "engine_core = EngineCoreProc(*args, **kwargs)"),
            Frame("vllm/models/deepseek_v4/attention.py", 212, "_resolve_dsv4_kv_cache_dtype", "raise ValueError("),
        ),
        "processes": tuple(f"Worker_TP{rank}" for rank in range(8)),
        "times": 8,
        "excerpt": (
            "(Worker_TP0 pid=412) ERROR 05-01 10:02:11 [core.py:1110] Traceback (most recent call last):",
            f"(Worker_TP0 pid=412) ERROR 05-01 10:02:11 [core.py:1110] ValueError: {SAID}",
        ),
    }
    return ErrorEvent(**(made | changes))


def stated(**changes: Any) -> Stated:
    banner = line(3, "vLLM API server version 0.24.0", process="APIServer", level="INFO", module="utils.py:299")
    args = line(4, f"non-default args: {{'model': '{FLASH}', 'tensor_parallel_size': 8}}", process="APIServer")
    made: dict[str, Any] = {
        "facts": (
            Fact("vllm", "0.24.0", "version banner", banner),
            Fact("model", FLASH, "non-default args", args),
            Fact("flags", "--tensor-parallel-size 8", "non-default args", args),
            Fact("gpu", "H200", "collect_env"),
            Fact("env HF_TOKEN", "hidden-away", "command"),
            Fact("architecture", "DeepseekV4ForCausalLM", "log line", line(9, "Resolved architecture")),
            Fact("package torch", "2.9.1", "collect_env"),
            Fact("package flashinfer-python", "0.6.1", "collect_env"),
        ),
        "vllm": "0.24.0",
        "model": FLASH,
        "words": ("--tensor-parallel-size", "8"),
        "gpu": "H200",
        "gpus": 8,
        "packages": {"torch": "2.9.1", "flashinfer-python": "0.6.1", "nvidia-cublas": "13.0.1.0"},
        "observed": {"architecture": "DeepseekV4ForCausalLM"},
    }
    return Stated(**(made | changes))


def answer(**changes: Any) -> TriageReport:
    error = changes.get("error", event())
    lines = (
        line(3, "vLLM API server version 0.24.0", level="INFO"),
        line(9, "Resolved architecture: DeepseekV4ForCausalLM", level="INFO"),
        line(118, f"ValueError: {SAID}", level="ERROR"),
    )
    run = Run(lines[0], lines, () if error is None else (error,))
    made: dict[str, Any] = {
        "outcome": Outcome.EXPLAINED,
        "reading": LogReading((LOG,), 41_000, 318, (run,), ""),
        "run": run,
        "run_number": 1,
        "stated": stated(),
        "milestone": Milestone(Stage.MODEL_INIT, "workers started, model not yet built", lines[1]),
        "error": error,
    }
    return TriageReport(**(made | changes))


def certain() -> TriageReport:
    made = report()
    return answer(
        candidates=(
            Candidate(
                rule("KV001"),
                Sureness.CERTAIN,
                (
                    Evidence(f"the log says: {SAID}", line=line(118, SAID)),
                    Evidence("the checker finds it in the stated launch (vLLM 0.24.0, no --kv-cache-dtype)"),
                ),
                finding=finding(made, "KV001"),
                message=finding(made, "KV001").message,
                fixed_in="0.30.0",
            ),
        ),
        report=made,
        command=command(made),
        later=(event(kind="RuntimeError", message="cancelled", line=line(190, "RuntimeError: cancelled"), frames=()),),
    )


def undecided() -> TriageReport:
    """Two causes with the same text; the launch is not known."""
    said = "Assertion error (csrc/utils/layout.hpp:88): Unknown recipe"
    error = event(
        kind="RuntimeError",
        message=said,
        line=line(77, f"RuntimeError: {said}"),
        processes=("EngineCore_DP0",),
        times=1,
        caused_by=event(kind="KeyError", message="'sm_120'", line=line(70, "KeyError: 'sm_120'"), frames=(), times=1),
    )
    return answer(
        error=error,
        candidates=(
            Candidate(
                rule("PK001"),
                Sureness.POSSIBLE,
                (
                    Evidence("the text stands in the log", line=line(77, said)),
                    Evidence("the log names no GPU", supports=False),
                ),
                remedies=("vLLM >=0.26.0", "another GPU: H200 or B200"),
                fixed_in="0.25.0",
                needed=("The vLLM version: the log has no banner.",),
            ),
            Candidate(
                rule("PK002"),
                Sureness.POSSIBLE,
                (Evidence("the text stands in the log", line=line(77, said)),),
                remedies=("VLLM_USE_DEEP_GEMM=0",),
                needed=("The vLLM version: the log has no banner.", "The output of nvidia-smi."),
            ),
        ),
        stated=Stated(missing=("The vLLM version.",)),
        apart="PK001 is vLLM 0.24 alone, PK002 0.27 and later.",
        milestone=Milestone(Stage.WARMUP, "KV cache allocated, kernels not yet warm"),
        missing=("The output of nvidia-smi.",),
        notes=("Two logs were read as one start.",),
    )


def unknown() -> TriageReport:
    made = report("-tp 8 --kv-cache-dtype fp8")
    said = "unexpected shape in [2, 7] of the frobnicated table\nexpected 4\n" + "more\n" * 20
    return answer(
        outcome=Outcome.UNKNOWN,
        error=event(message=said, line=line(300, "ValueError: unexpected shape"), processes=(), times=1),
        nearest=(rule("KV001"), rule("PK001")),
        report=made,
        command=command(made),
        milestone=Milestone(Stage.WEIGHT_LOAD, "44 of 46 shards loaded", line(290, "Loading safetensors")),
    )


def no_error() -> TriageReport:
    made = report("-tp 8 --kv-cache-dtype fp8")
    return answer(
        outcome=Outcome.NO_ERROR,
        error=None,
        report=made,
        command=command(made),
        milestone=Milestone(Stage.RUNTIME, "server is up", line(312, "Application startup complete.")),
    )


def several() -> TriageReport:
    """Three starts in two files, one of them on standard input; the last one is answered."""
    made = certain()
    runs = (made.run, made.run, made.run)
    reading = LogReading((LOG, "-"), 9_000_000, 81_000, runs, "", ("vllm.log: 2 lines were longer than 64 KiB.",))
    candidates = (
        Candidate(rule("KV001"), Sureness.LIKELY, (), remedies=("--kv-cache-dtype fp8",)),
        *(Candidate(item, Sureness.POSSIBLE, ()) for item in all_rules()[:12] if item.id != "KV001"),
    )
    return answer(reading=reading, run_number=3, candidates=candidates, stated=Stated(vllm="0.24.0", nodes=2, gpus=8))


def chinese() -> TriageReport:
    """Paths, prose and names in Chinese, as many reports have them."""
    log = "/home/张伟/日志/启动 1.log"
    model = "/data/模型/DeepSeek-V4-Flash"
    said = f"Repo id must be in the form 'repo_name': '{model}'。请检查路径"
    at = line(12, f"HFValidationError: {said}", source=log)
    return answer(
        outcome=Outcome.UNKNOWN,
        error=event(
            kind="HFValidationError",
            message=said,
            line=at,
            excerpt=(f"(APIServer pid=1) {said}", "张伟@gpu-7:~$ vllm serve " + model),
        ),
        reading=LogReading((log,), 900, 30, (), ""),
        stated=Stated(model=model, facts=(Fact("model", model, "command", at),), missing=("The vLLM version.",)),
        milestone=Milestone(Stage.ENGINE_CONFIG, "arguments parsed", at),
    )


ANSWERS = {
    "certain": certain,
    "undecided": undecided,
    "unknown": unknown,
    "no-error": no_error,
    "several": several,
    "chinese": chinese,
}
