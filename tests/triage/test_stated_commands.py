from __future__ import annotations

from collections.abc import Callable

from dsv4check.inputs.command import format_command
from dsv4check.triage.records import LogLine, Run
from dsv4check.triage.stated import read_stated
from tests.launches import launch_request
from tests.test_cases import CASES, _launch
from tests.triage.readings import log_reading, report_of

_REPORT = """It stops like this, I don't know why:
```bash
{}
```
on my machine.
"""


def _without_blanks(words: list[str]) -> list[str]:
    return ["".join(word.split()) for word in words]


def test_the_command_of_every_case_is_found_in_a_report(figures: Callable[[str], None]) -> None:
    differ = []
    for case in CASES:
        command = launch_request(_launch(case)).command
        stated = read_stated(*report_of(_REPORT.format(format_command(command))))
        found = [*([stated.model] if stated.model else []), *stated.words]
        if _without_blanks(found) != _without_blanks([token.text for token in command.tokens]):
            differ.append(case["id"])
    figures(f"commands found in a report: {len(CASES) - len(differ)} of {len(CASES)}")
    assert not differ


def test_a_banner_that_only_opens_the_start_is_read() -> None:
    run = Run(LogLine("-", 1, "vLLM API server version 0.20.0"), (), ())
    assert read_stated(log_reading(run, ""), run).vllm == "0.20.0"
