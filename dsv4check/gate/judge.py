"""One launch of a file: put together with what is known around it, checked, and the findings placed in the file."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from dsv4check.deployment import Command, ServeFlags, Token
from dsv4check.engine.rule import Rule, Severity
from dsv4check.errors import InputError
from dsv4check.gate.facts import FactFinder, is_unset
from dsv4check.gate.model_choice import ModelChoice, choose_model
from dsv4check.gate.open_answers import depends_on_flags, depends_on_values, may_be_settled, unset_variables
from dsv4check.gate.places import Places, masked_words, origin_of
from dsv4check.gate.records import GateFinding, LaunchResult
from dsv4check.gate.settings import Facts
from dsv4check.gate.unknowns import Unknowns, unknowns_of
from dsv4check.gate.variants import Answer, Variants
from dsv4check.inputs.command import format_command
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.inputs.model_config import OtherModelError
from dsv4check.inputs.packages import parse_packages
from dsv4check.inputs.vllm_yaml import NotAtHandError
from dsv4check.launchfiles.dynamo import engine_server
from dsv4check.launchfiles.records import Context, FileWord, Launch, Server, Stated
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import load_flag_table
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding
from dsv4check.request import Request

_MOST_ANSWERS: Final = 2000
_CONFIG_NOT_READ: Final = "FL014"
"""The rule about a --config file that is not at hand: here an open question, not a finding."""


@dataclass(slots=True)
class Judged:
    """A launch's result, and what ``--fix`` needs to change its words."""

    result: LaunchResult
    words: tuple[FileWord, ...] = ()
    """The words that were checked."""
    tokens: tuple[Token, ...] = ()
    """The same words as the checker had them; a fix's corrected command holds those that it does not change."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Checks launches with the same rules and options."""

    rules: tuple[Rule, ...]
    options: Facts = field(default_factory=Facts)
    fixes: bool = True
    answers: dict[Hashable, Answer] = field(default_factory=dict)
    """Those of commands that were met before: a tree has many copies of few."""

    def judge(
        self, launch: Launch, context: Context, configured: Facts, comment: Mapping[str, Stated], skip: str = ""
    ) -> Judged:
        """Check one launch.

        ``configured`` is what the configuration file says for this path, ``comment`` what comments in the file state,
        ``skip`` the reason a comment gives for leaving the launch out.
        """
        return _Case(self, launch, context, configured, comment).judged(skip or configured.skip)


class _Case:
    """One launch while it is checked."""

    def __init__(
        self, judge: Judge, launch: Launch, context: Context, configured: Facts, comment: Mapping[str, Stated]
    ) -> None:
        self._judge = judge
        self._launch = launch
        self._context = context
        self._configured = configured
        self._server = engine_server(launch)
        self._known = FactFinder(context.source, judge.options, configured).known(launch, comment)
        self._comment = comment
        self._notes = [*self._server.notes, *self._known.notes]
        self._tokens = tuple(Token(word.text, origin_of(word, index)) for index, word in enumerate(self._server.words))
        program = self._server.program if self._server.entrypoint in ("serve", "api_server") else ()
        self._entrypoint = "serve" if self._server.entrypoint == "serve" else "api_server"
        # A variable whose value is not known would be judged by the letters of its placeholder.
        stated = {name: item.value for name, item in self._server.env.items()}
        self._unset = {name: value for name, value in stated.items() if is_unset(value)}
        env = {name: value for name, value in stated.items() if name not in self._unset}
        self._command = Command(program, self._tokens, env, self._entrypoint)
        self._reading: tuple[Command, str, ServeFlags] | None = None
        self._shown = masked_command(self._command)
        masked = masked_words(tuple(t.text for t in self._tokens), tuple(t.text for t in self._shown.tokens))
        self._places = Places(context.source, replace(launch, server=self._server), masked)

    def judged(self, skip: str) -> Judged:
        """The answer."""
        if self._server.other:
            return self._unchecked(None, f"{self._server.other}: not vLLM", other=True)
        release = self._known.vllm.release if self._known.vllm is not None else None
        table = load_flag_table(release or _newest())
        try:
            flags = parse_flags(self._command, table, read_file=self._read_file)
        except InputError as error:
            # A --config file that no one can read: nested without end, or far too large.
            return self._unchecked(None, str(error))
        self._reading = (self._command, table.release, flags)
        model = choose_model(self._launch, flags, self._stated_model(), self._configured, self._open_model(flags))
        if model.other:
            return self._unchecked(model.name, model.other, other=True)
        if skip:
            return self._unchecked(model.name, f"left out: {skip}")
        if _is_ascend(self._command):
            return self._unchecked(model.name, "it runs on vLLM-Ascend, whose plugin decides in vLLM's place")
        if model.unknown:
            return self._unchecked(
                model.name, f"{model.unknown}; state `model` or `model-config` for this file in the configuration"
            )
        if self._known.vllm is None:
            return self._unchecked(
                model.name,
                f"which vLLM the image {self._known.unknown_image} holds is not known; state `vllm` for this file in"
                " the configuration, or in a comment `# dsv4check: vllm=...`",
            )
        if model.note:
            self._notes.append(model.note)
        gpus = self._known.hardware.total_gpus
        unknowns = unknowns_of(self._server.words, flags, table, gpus)
        try:
            return self._checked(model, flags, unknowns)
        except OtherModelError as error:
            return self._unchecked(model.name, str(error), other=True)
        except InputError as error:
            return self._unchecked(model.name, str(error))

    def _stated_model(self) -> Facts:
        """The options, with the model, or the config, that a comment states."""
        options = self._judge.options
        model, config = self._comment.get("model"), self._comment.get("model_config")
        if model is not None:
            options = replace(options, model=model.value)
        if config is not None:
            beside = Path(self._context.source.path).parent / config.value
            options = replace(options, model_config=beside)
        return options

    def _open_model(self, flags: ServeFlags) -> bool:
        return any(word.open and word.text in (flags.model, f"--model={flags.model}") for word in self._server.words)

    def _unchecked(self, model: str | None, why: str, *, other: bool = False) -> Judged:
        return Judged(self._result(model, None, not_checked=why, other_model=other), self._server.words, self._tokens)

    def _result(self, model: str | None, verdict: str | None, **more: object) -> LaunchResult:
        shown = dict(self._known.shown)
        return LaunchResult(
            path=self._context.source.path,
            name=self._launch.name,
            format=self._launch.format,
            region=self._places.start,
            command=format_command(self._shown),
            model=model,
            facts=shown,
            verdict=verdict,
            notes=tuple(dict.fromkeys(self._notes)),
            args=tuple(token.text for token in self._shown.tokens),
            env=dict(self._shown.env),
            **more,  # type: ignore[arg-type]
        )

    def _checked(self, model: ModelChoice, flags: ServeFlags, unknowns: Unknowns) -> Judged:
        return self._merged(model, flags, unknowns, self._answer(model, unknowns))

    def _answer(self, model: ModelChoice, unknowns: Unknowns) -> Answer:
        """What the checker says of the command; of one that was met before, what it said then."""
        variants = Variants(
            self._command, unknowns.variants, lambda command: self._request(command, model), self._judge.rules
        )
        key = self._key(model)
        if key is None:
            return variants.answer(fixes=self._judge.fixes)
        answers = self._judge.answers
        if key not in answers:
            if len(answers) >= _MOST_ANSWERS:
                answers.clear()
            answers[key] = variants.answer(fixes=self._judge.fixes)
        return answers[key]

    def _key(self, model: ModelChoice) -> Hashable:
        """Everything an answer depends on; None where it depends on another file."""
        words = self._server.words
        if any(word.text.startswith("--conf") for word in words):
            return None
        request = self._request(self._command, model)
        return (
            self._command.program,
            self._entrypoint,
            tuple((word.text, word.open) for word in words),
            tuple(sorted(self._command.env.items())),
            tuple(sorted(request.env.items())),
            tuple(sorted(request.packages.items())),
            (request.vllm.version, request.vllm.kind, request.vllm.release, request.vllm.note),
            request.hardware,
            (model.name, model.config_like, model.model_config),
        )

    def _request(self, command: Command, model: ModelChoice) -> Request:
        configured, options = self._configured, self._judge.options
        env = {**configured.env, **options.env}
        vllm = self._known.vllm
        assert vllm is not None
        return Request(
            command=command,
            vllm=vllm,
            hardware=self._known.hardware,
            # What the file sets wins: the configuration speaks of what surrounds it.
            env={name: value for name, value in env.items() if name not in command.env},
            packages=parse_packages({**configured.packages, **options.packages}),
            model_name=model.name,
            model_config=model.model_config,
            config_like=model.config_like,
            read_file=self._read_file,
            reading=self._reading,
        )

    def _read_file(self, path: str) -> str:
        """The content of a ``--config`` file. Raises NotAtHandError where it is not here."""
        if path == self._launch.config_file:
            return self._context.source.text
        content = self._context.neighbour(path)
        if content is None:
            raise NotAtHandError(path)
        return content

    def _merged(self, model: ModelChoice, flags: ServeFlags, unknowns: Unknowns, answer: Answer) -> Judged:
        """What all variants have in common, placed in the file."""
        common = [item for item in answer.findings if item.rule in answer.common]
        open_questions = [*answer.not_evaluated]
        parted = [item for item in answer.findings if item not in common and item.severity is not Severity.NOTE]
        if parted:
            open_questions.append(depends_on_values(parted, "; ".join(unknowns.tried)))
        further = [*unknowns.further]
        if any(item.rule == _CONFIG_NOT_READ for item in common):
            further += [str(item.data["path"]) for item in flags.problems if item.code == "yaml-not-read"]
            common = [item for item in common if item.rule != _CONFIG_NOT_READ]
        if self._unset:
            open_questions.append(unset_variables(self._unset))
        if further:
            kept = [item for item in common if not may_be_settled(item, flags, self._places)]
            lost = [item for item in common if item not in kept and item.severity is not Severity.NOTE]
            open_questions.append(depends_on_flags(lost, further))
            common = kept
        findings = tuple(map(self._placed, common))
        worst = max((item.severity.rank for item in findings), default=0)
        verdict = {2: "fail", 1: "warn", 0: "pass"}[worst]
        if unknowns.tried:
            tried = "; ".join(unknowns.tried)
            self._notes.append(f"not stated here, only what holds for every value tried is said: {tried}")
        self._notes += answer.notes
        self._notes += _engine_note(self._server)
        result = self._result(model.name, verdict, findings=findings, not_evaluated=tuple(open_questions))
        return Judged(result, self._server.words, self._tokens)

    def _placed(self, finding: Finding) -> GateFinding:
        return GateFinding(
            rule=finding.rule,
            name=finding.name,
            severity=finding.severity,
            certainty=finding.certainty,
            stage=finding.stage,
            message=finding.message,
            error=finding.error,
            path=self._context.source.path,
            region=self._places.region(finding.location),
            launch=self._launch.name,
            fixes=finding.fixes,
            no_fix=finding.no_fix,
            fixed_in=finding.fixed_in,
            references=finding.references,
        )


def _newest() -> str:
    from dsv4check.releases.timeline import newest_release

    return newest_release()


def _is_ascend(command: Command) -> bool:
    """True for a launch on Huawei's NPUs, by its variables or its quantisation."""
    if any(name.startswith(("VLLM_ASCEND_", "ASCEND_", "HCCL_")) for name in command.env):
        return True
    texts = [token.text for token in command.tokens]
    return "--quantization=ascend" in texts or ("--quantization", "ascend") in pairwise(texts)


def _engine_note(server: Server) -> list[str]:
    if server.entrypoint != "engine":
        return []
    return ["read as `vllm serve`: without such flags vLLM's own defaults for batches differ in an offline engine"]
