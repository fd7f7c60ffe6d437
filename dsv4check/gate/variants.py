"""A launch checked with every value that is tried for what its file does not state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from dsv4check.api import check_request
from dsv4check.deployment import Command, Token
from dsv4check.engine.rule import Rule, Severity
from dsv4check.errors import InputError
from dsv4check.inputs.command import format_command
from dsv4check.launchfiles.records import FileWord
from dsv4check.records import dataclass
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding, Fix, Report
from dsv4check.request import Request
from dsv4check.resolution import NotEvaluated

Variant = Sequence[FileWord | None]
"""The command's words with a value in place of every unknown one; None leaves the word out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the checker says of a command."""

    findings: tuple[Finding, ...]
    """Those of the first variant."""
    common: frozenset[str]
    """The rules that fire on every variant."""
    not_evaluated: tuple[NotEvaluated, ...]
    notes: tuple[str, ...]


class Variants:
    """The variants of one command; ``command`` has the file's own words, ``request`` puts a launch together."""

    def __init__(
        self,
        command: Command,
        variants: Sequence[Variant],
        request: Callable[[Command], Request],
        rules: tuple[Rule, ...],
    ) -> None:
        self._command = command
        self._variants = variants
        self._request = request
        self._rules = rules

    def answer(self, *, fixes: bool) -> Answer:
        """Check all variants; one that makes no launch is passed over. Raises InputError when none does."""
        single = len(self._variants) == 1
        # With several variants fixes are only looked for once it is known what they have in common.
        first, *others = list(self._reports(fixes=fixes and single))
        fired = [{finding.rule for finding in report.findings} for report in others]
        common = {item.rule for item in first.findings if all(item.rule in rules for rules in fired)}
        if common and fixes and not single:
            first = next(iter(self._reports(fixes=True)))
        if not self._settled:
            first = replace(first, findings=tuple(self._with_own_words(item) for item in first.findings))
        return Answer(first.findings, frozenset(common), first.not_evaluated, first.notes)

    @property
    def _settled(self) -> bool:
        """True where the only variant is the file's own command."""
        words = [None if word is None else word.text for word in self._variants[0]]
        return len(self._variants) == 1 and words == [token.text for token in self._command.tokens]

    def _reports(self, *, fixes: bool) -> Iterator[Report]:
        refused: InputError | None = None
        answered = False
        for variant in self._variants:
            try:
                report = check_request(
                    self._request(self._with(self._command.tokens, variant)), self._rules, fixes=fixes, brief=True
                )
            except InputError as error:
                refused = error
                continue
            answered = True
            yield report
            if not report.findings:
                return
        if not answered:
            raise refused or InputError("no value that was tried makes a launch")

    def _with(self, tokens: Sequence[Token], variant: Variant) -> Command:
        """The command with a variant's values in its unknown words; ``tokens`` may have been edited since."""
        values = dict(zip(self._command.tokens, variant, strict=True))
        made = []
        for token in tokens:
            word = values.get(token)
            if word is not None and word.text != token.text:
                made.append(replace(token, text=word.text))
            elif word is not None or token not in values:
                made.append(token)
        if tuple(made) == self._command.tokens:
            return self._command
        return replace(self._command, tokens=tuple(made))

    def _with_own_words(self, finding: Finding) -> Finding:
        """The finding with fixes of the file's own command instead of the variant's, checked on all variants."""
        return replace(finding, fixes=tuple(self._own(fix, finding) for fix in finding.fixes))

    def _own(self, fix: Fix, finding: Finding) -> Fix:
        if fix.edited is None:
            return fix
        tokens = restored(fix.edited.tokens, self._variants[0], self._command.tokens)
        edited = replace(fix.edited, tokens=tokens)
        command = format_command(masked_command(edited))
        verified = fix.verified and all(self._helps(edited, variant, finding) for variant in self._variants)
        note = fix.note or ("" if verified else "found with the first of the values that were tried")
        return replace(fix, command=command, edited=edited, verified=verified, note=note)

    def _helps(self, edited: Command, variant: Variant, finding: Finding) -> bool:
        try:
            request = self._request(replace(self._with(edited.tokens, variant), env=edited.env))
            report = check_request(request, self._rules, fixes=False)
        except InputError:
            return False
        return not any(item.severity is Severity.ERROR or item.rule == finding.rule for item in report.findings)


def restored(edited: Sequence[Token], variant: Variant, tokens: Sequence[Token]) -> tuple[Token, ...]:
    """A variant's edited tokens with the file's own tokens for those that were not edited.

    Words that the variant leaves out come back where they stood; flags that were added stand in front of those at the
    end, as what comes last wins.
    """
    kept = [index for index, word in enumerate(variant) if word is not None]
    before = [
        token if word is None or token.text == word.text else replace(token, text=word.text)
        for token, word in zip(tokens, variant, strict=True)
    ]
    result: list[Token] = []
    done = 0

    def back(until: int) -> None:
        nonlocal done
        result.extend(tokens[index] for index in range(done, until) if variant[index] is None)
        done = max(done, until)

    matcher = SequenceMatcher(None, [before[index] for index in kept], list(edited), autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            for index in kept[i1:i2]:
                back(index)
                result.append(tokens[index])
                done = index + 1
            continue
        if i2 > i1:
            back(kept[i1])
        result.extend(edited[j1:j2])
        if i2 > i1:
            back(kept[i2 - 1] + 1)
    back(len(tokens))
    return tuple(result)
