"""Logs that vLLM would print for a launch and a failure, in the forms in which they reach a person.

error = error_of("KV001", launch)
text = write_log(launch, error, "docker", seed=3)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from dsv4check.problems import Stage
from tests.triage.log_errors import error_of, sample_for
from tests.triage.log_failure import fail
from tests.triage.log_forms import FORMS, in_form, text_in_form
from tests.triage.log_launch import MOST_RANKS, Launch, checked
from tests.triage.log_records import LogError
from tests.triage.log_startup import API, STEPS, start
from tests.triage.log_table import LogFrame
from tests.triage.log_writer import Writer, traceback

METRICS = "SpecDecoding metrics"
REQUEST_STACK = (
    LogFrame(
        "vllm/entrypoints/openai/chat_completion/serving.py",
        348,
        "create_chat_completion",
        "result = await self.render_chat_request(request)",
    ),
)
__all__ = ["FORMS", "LogError", "error_of", "sample_for", "write_log", "write_start", "write_text"]


def write_log(
    launch: Mapping[str, Any], error: LogError | None, form: str, seed: int = 0, ranks: int = MOST_RANKS
) -> str:
    """The log of this launch, with the failure (or the warning) where it belongs; None: a start that works."""
    return in_form(written(checked(launch, ranks), error), error, form, random.Random(f"{form}|{seed}"))


def write_start(launch: Mapping[str, Any], until: Stage) -> str:
    """A log that ends before the stage has failed or gone on: what is left of a start that hangs."""
    writer = Writer(checked(launch))
    start(writer, until)
    return in_form(writer, None, "plain", random.Random(0))


def write_text(text: str, launch: Mapping[str, Any], form: str) -> str:
    """A log that a rule quotes, in a form of ``TEXT_FORMS`` or as a bug report of this launch."""
    return text_in_form(text, checked(launch), form)


def written(launch: Launch, error: LogError | None) -> Writer:
    writer = Writer(launch)
    if error is None:
        start(writer, Stage.ACCURACY)
    elif error.fatal:
        start(writer, error.stage)
        fail(writer, error)
    else:
        with_warning(writer, error)
    return writer


def with_warning(writer: Writer, error: LogError) -> None:
    """A start that works, with the line where the stage logs it."""
    place = min(error.stage.order, Stage.RUNTIME.order)
    said = False
    for stage, lines in STEPS:
        if not said and stage.order > place:
            say(writer, error)
            said = True
        lines(writer)
    if not said:
        say(writer, error)


def say(writer: Writer, error: LogError) -> None:
    if any(error.said in entry.text for entry in writer.entries):
        return
    if error.survived:
        text = traceback((*REQUEST_STACK, *error.frames), error.said)
        writer.log(API, "", f"Error in preprocessing prompt inputs\n{text}", "ERROR", "serving.py:348")
        return
    if error.said.startswith(METRICS):
        # What the draft is worth from the first report on: a healthy one beside it would contradict it.
        writer.entries = [entry for entry in writer.entries if not entry.text.startswith(METRICS)]
        writer.log(API, "draft_metrics", error.said, error.level)
        return
    process = API if error.stage.order <= Stage.ENGINE_CONFIG.order else writer.launch.runners[0]
    writer.log(process, "", error.said, error.level, "deepseek_v4.py:214")
