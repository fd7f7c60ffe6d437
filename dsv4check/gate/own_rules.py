"""Rules of the gate itself: about comments and settings that say what is to be ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsv4check.engine.rule import Severity
from dsv4check.records import dataclass


@dataclass(frozen=True, slots=True)
class OwnRule:
    """A rule that is about the gate's own comments, not about a launch. It cannot be ignored."""

    id: str
    name: str
    severity: Severity
    summary: str
    help: str


IGNORE_WITHOUT_REASON: Final = "GT001"
IGNORE_UNKNOWN_RULE: Final = "GT002"
IGNORE_UNUSED: Final = "GT003"
DIRECTIVE_NOT_UNDERSTOOD: Final = "GT004"
DIRECTIVE_UNUSED: Final = "GT005"

PREFIX: Final = "GT"
"""What the ids of these rules begin with."""

OWN_RULES: Final[Mapping[str, OwnRule]] = {
    rule.id: rule
    for rule in (
        OwnRule(
            IGNORE_WITHOUT_REASON,
            "ignore-without-reason",
            Severity.ERROR,
            "A comment that ignores a rule, or skips a launch, gives no reason; it has no effect.",
            "Write the reason behind it: `# dsv4check: ignore[KV001] fixed in our image` or "
            "`# dsv4check: skip started by hand only`.",
        ),
        OwnRule(
            IGNORE_UNKNOWN_RULE,
            "ignore-unknown-rule",
            Severity.WARNING,
            "An ignore names a rule that does not exist.",
            "Rules are named by id or name as `dsv4check explain` lists them. The gate's own rules (GT...) cannot "
            "be ignored: correct or remove the comment instead.",
        ),
        OwnRule(
            IGNORE_UNUSED,
            "ignore-unused",
            Severity.WARNING,
            "An ignore covers no finding.",
            "Remove it, or put it where the finding is: behind a line it covers the findings of that line, on a line "
            "of its own those of the next line that is neither blank nor a comment, and where that line begins a "
            "launch (the command, the container) all findings of the launch.",
        ),
        OwnRule(
            DIRECTIVE_NOT_UNDERSTOOD,
            "directive-not-understood",
            Severity.ERROR,
            "A comment begins with `dsv4check:` and what follows cannot be read; it has no effect.",
            "Known are `ignore[RULE, RULE] reason`, `skip reason` and facts: `vllm=0.25.1 gpu=H200 gpus=8 nodes=2 "
            "gpu-memory-gib=141 model=NAME model-config=PATH`, with quotes around values that hold blanks.",
        ),
        OwnRule(
            DIRECTIVE_UNUSED,
            "directive-unused",
            Severity.WARNING,
            "A comment states facts, or skips a launch, on a line where no launch begins; it has no effect.",
            "Put it on or above the line where the launch begins (the command, the container), or into the comment "
            "at the top of the file, where it holds for every launch of the file.",
        ),
    )
}
