"""A triage answer as text: the order in which it is said, and what it never says."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4check.problems import Stage
from dsv4check.report.triage_formats import TriageFormat, render
from dsv4check.report.triage_parts import packed
from dsv4check.report.triage_text import triage_blocks
from dsv4check.report.triage_words import headline
from dsv4check.triage.answer import Candidate, Evidence, Outcome, Standing, Sureness, TriageReport
from dsv4check.triage.records import ErrorEvent, Fact, Milestone
from tests.launches import all_rules
from tests.report.triage import (
    ANSWERS,
    SAID,
    answer,
    certain,
    chinese,
    command,
    event,
    finding,
    line,
    no_error,
    report,
    rule,
    several,
    stated,
    undecided,
    unknown,
)

SNAPSHOTS = Path(__file__).parent / "snapshots"
SECRET = "hf_AbCdEfGhIjKlMnOpQrSt1234"


def in_order(said: str, *parts: str) -> None:
    at = 0
    for part in parts:
        found = said.find(part, at)
        assert found >= 0, f"{part!r} is missing, or stands too early:\n{said}"
        at = found + len(part)


@pytest.mark.parametrize("output", TriageFormat)
@pytest.mark.parametrize("name", ANSWERS)
def test_snapshot(name: str, output: TriageFormat) -> None:
    said = render(ANSWERS[name](), output).encode("utf-8")
    file = SNAPSHOTS / f"triage-{name}.{output}"
    if os.environ.get("DSV4CHECK_UPDATE") == "1":
        file.write_bytes(said)
    assert said == file.read_bytes(), f"{file.name} differs (tests/report/README.md says how it is written anew)"


@pytest.mark.parametrize("output", TriageFormat)
@pytest.mark.parametrize("name", ANSWERS)
def test_every_format_ends_with_one_line_end_and_has_no_control_characters(name: str, output: TriageFormat) -> None:
    said = render(ANSWERS[name](), output)
    assert said.endswith("\n")
    assert not said.endswith("\n\n")
    assert [char for char in said if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160] == []


def test_a_person_in_a_hurry_reads_from_the_top() -> None:
    in_order(
        render(certain(), TriageFormat.TEXT),
        "FAILED at model-init: KV001 auto-on-packed-layout (certain)\n",
        "\nCause\n",
        "(line 118; 8 processes, first Worker_TP0)",
        f"ValueError: {SAID}",
        "\nWhat to change\n",
        "1. --kv-cache-dtype fp8 [checked: no error is left]",
        "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8\n",
        "first release without it: vLLM 0.30.0",
        "\nEvidence\n",
        "\nWhat the log states\n",
        "0.24.0 (version banner, line 3)",
        "stage reached  model-init: ",
        "\nOther errors in the log\n",
    )


def test_causes_with_the_same_text_are_told_apart() -> None:
    said = render(undecided(), TriageFormat.TEXT)
    in_order(
        said,
        "2 causes possible, not decided between PK001 and PK002",
        "First of the possible causes",
        "caused by",
        "KeyError: 'sm_120'",
        "not checked: the log states too little",
        "for: ",
        "against: the log names no GPU",
        "Other causes with the same text",
        "PK001 is vLLM 0.24 alone",
        "2. PK002",
        "To be surer",
        "note: Two logs were read as one start.",
    )
    # Each of the causes wants the version; it is asked for once.
    assert said.count("The vLLM version: the log has no banner.") == 1


def test_an_unknown_error_is_said_to_be_unknown() -> None:
    said = render(unknown(), TriageFormat.TEXT)
    in_order(
        said,
        "NOT KNOWN: failed at weight-load",
        "No rule knows this error",
        "unexpected shape in [2, 7]",
        "more lines]",
        "traceback, innermost last",
        "vllm/models/deepseek_v4/attention.py:212 in _resolve_dsv4_kv_cache_dtype",
        "Nearest rules (they do not explain it)",
        "KV001",
        "44 of 46 shards loaded",
        "For a bug report",
        "--bundle FILE",
    )
    assert "\nCause\n" not in said


def test_findings_of_the_checker_are_said_where_nothing_explains_the_error() -> None:
    made = report("-tp 8 --kv-cache-dtype auto --enable-sequence-parallelism")
    assert made.findings
    for outcome in (Outcome.UNKNOWN, Outcome.NO_ERROR):
        said = render(
            answer(outcome=outcome, report=made, error=event() if outcome is Outcome.UNKNOWN else None),
            TriageFormat.TEXT,
        )
        for item in made.findings:
            assert f"{item.severity.value} {item.rule} {item.name}" in said or f"note: {item.rule}" in said
        assert "1. --kv-cache-dtype fp8" in said
        assert said.count("vllm serve deepseek-ai") == 1


def test_a_log_without_an_error() -> None:
    said = render(no_error(), TriageFormat.TEXT)
    assert said.startswith("NO ERROR in the log; it ends at runtime: server is up\n")
    assert "FAILED" not in said
    in_order(said, "No error was found", "The stated launch was checked", "What the log states", "as a command:")


def test_a_hazard_in_a_log_without_an_error_is_no_failure() -> None:
    made = answer(outcome=Outcome.EXPLAINED, error=None, candidates=(Candidate(rule("CG001"), Sureness.LIKELY, ()),))
    assert headline(made).startswith("NO ERROR in the log")
    assert "CG001" in headline(made)


def long_command() -> TriageReport:
    """A certain cause with six candidates, of which the launch speaks against five."""
    made = report("-tp 8 --max-model-len 131072 --max-num-seqs 64 --served-model-name model --trust-remote-code")
    found = finding(made, "KV001")
    reason = (Evidence("the log has its text"), Evidence("it is about another GPU than the log shows", supports=False))
    others = [
        Candidate(item, Sureness.POSSIBLE, reason, standing=Standing.REFUTED)
        for item in all_rules()[:6]
        if item.id != "KV001"
    ]
    return answer(
        candidates=(replace(certain().candidates[0], finding=found, message=found.message), *others[:5]),
        report=made,
        command=command(made),
    )


def test_an_ordinary_answer_fits_on_a_screen() -> None:
    said = render(long_command(), TriageFormat.TEXT)
    assert said.count("\n") <= 45
    assert said.count("vllm serve") == 1
    assert max(map(len, said.splitlines())) <= 110


def test_causes_that_the_launch_speaks_against_take_a_line_each() -> None:
    said = render(long_command(), TriageFormat.TEXT)
    others = [item.rule for item in long_command().candidates[1:]]
    lines = [line for line in said.splitlines() if line.startswith("  not ")]
    assert lines == [f"  not {it.id} {it.name}: it is about another GPU than the log shows" for it in others[:3]]
    assert f"  nor {others[3].id} and {others[4].id}\n" in said
    assert headline(long_command()).endswith("(certain)")


def test_a_refuted_cause_is_not_one_of_the_possible_ones() -> None:
    made = undecided()
    reason = (Evidence("it is about another GPU than the log shows", supports=False),)
    refuted = Candidate(rule("PK003"), Sureness.POSSIBLE, reason, standing=Standing.REFUTED)
    assert "between PK001 and PK002" in headline(replace(made, candidates=(*made.candidates, refuted)))


def test_what_several_causes_need_is_asked_for_once() -> None:
    made = undecided()
    candidates = tuple(
        replace(item, needed=(f"the rest of the launch: whether {item.rule.id} holds",)) for item in made.candidates
    )
    said = render(replace(made, candidates=candidates), TriageFormat.TEXT)
    assert "- the rest of the launch: whether PK001 or PK002 holds\n" in said


def test_a_start_whose_stage_is_not_shown() -> None:
    milestone = Milestone(Stage.ARGPARSE, "the log does not show how far the start got")
    said = render(replace(certain(), milestone=milestone), TriageFormat.TEXT)
    assert said.startswith("FAILED: KV001")
    assert "argparse" not in said


def test_a_command_is_packed_into_few_lines() -> None:
    flags = [f"--flag-{number} value" for number in range(12)]
    made = packed(" \\\n  ".join(["vllm serve model", *flags]))
    assert shlex.split(made.replace("\\\n", " ")) == ["vllm", "serve", "model", *" ".join(flags).split()]
    assert made.count("\n") < 5
    quoted = "vllm serve model \\\n  --chat-template 'a \nb'"
    assert packed(quoted) == quoted


def test_hazards_without_known_flags_say_so() -> None:
    made = report("-tp 8")
    said = render(answer(outcome=Outcome.NO_ERROR, error=None, report=made, stated=stated(words=())), TriageFormat.TEXT)
    assert "the flags are not known" in said


def test_several_starts_and_files() -> None:
    said = render(several(), TriageFormat.TEXT)
    assert "vllm.log, standard input (81,000 lines); start 3 of 3; states: vLLM 0.24.0, 2 nodes of 8 x GPU" in said
    assert "more, less likely" in said


def test_chinese_paths_stay_readable() -> None:
    said = render(chinese(), TriageFormat.TEXT)
    assert "/home/张伟/日志/启动 1.log (30 lines)" in said
    assert "(line 12; " in said
    assert "/data/模型/DeepSeek-V4-Flash" in said


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_text_keeps_to_the_width(width: int) -> None:
    words = set(render(certain(), TriageFormat.TEXT).split())
    for row in render(certain(), TriageFormat.TEXT, width=width).splitlines():
        # Commands and lines of the log are not wrapped.
        if not row.startswith(("      vllm serve", "    ValueError")):
            assert len(row) <= width or len(row.split()) == 1, row
        assert set(row.split()) <= words | {"1.", "2."}


def test_a_chain_of_causes_without_end_is_cut() -> None:
    error: ErrorEvent | None = None
    for number in range(400):
        error = event(message=f"number {number}", caused_by=error)
    said = render(answer(error=error, outcome=Outcome.UNKNOWN), TriageFormat.TEXT)
    assert said.count("caused by (") == 20
    assert "number 399" in said


@pytest.mark.parametrize("output", TriageFormat)
def test_secrets_are_masked_wherever_they_stand(output: TriageFormat) -> None:
    said = f"cannot log in with {SECRET} at https://me:pa55word@hub.example.com/x"
    made = answer(
        error=event(message=said, line=line(5, said), excerpt=(f"export MY_API_KEY={SECRET[3:]}x", said)),
        candidates=(Candidate(rule("KV001"), Sureness.LIKELY, (Evidence(said, line=line(5, said)),), message=said),),
        later=(event(message=said),),
        stated=stated(
            facts=(
                Fact("env HF_TOKEN", "short", "command"),
                Fact("flags", "--api-key short --hf-token=short", "command", line(5, said)),
            ),
            words=("--api-key", "short", "second", "--port", "80"),
            env={"HF_TOKEN": "short"},
        ),
        command="vllm serve x --api-key ***",
        missing=(said,),
        apart=said,
        notes=(said,),
    )
    for text in (render(made, output), render(replace(made, outcome=Outcome.UNKNOWN), output)):
        assert SECRET[3:] not in text
        assert "pa55word" not in text
        assert "short" not in text
        assert "second" not in text
        assert "cannot log in with " in text.replace("\\", "")


def test_half_a_secret_at_the_end_of_a_long_line_is_masked_too() -> None:
    said = "x" * 290 + " " + SECRET
    assert "hf_" not in render(answer(error=event(message=said), outcome=Outcome.UNKNOWN), TriageFormat.TEXT)


def test_control_characters_never_reach_a_terminal() -> None:
    said = "\x1b[31mred\x00\x07"
    made = answer(error=event(message=said, excerpt=(said,)), outcome=Outcome.UNKNOWN, notes=(said,), apart=said)
    for output in TriageFormat:
        assert "\x1b" not in render(made, output)


def test_every_role_is_known_to_the_terminal() -> None:
    from rich.console import Console

    from dsv4check.report.rich_format import print_blocks

    for name in ANSWERS:
        console = Console(width=100, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        print_blocks(triage_blocks(ANSWERS[name]()), console)
        assert headline(ANSWERS[name]()) in console.export_text()
