"""The search: numbers of GPUs ascending, each layout from vLLM's defaults to its tightest tuning, every one checked.

A layout is first tried with its tightest tuning, which leaves the KV cache the most room: where even that holds too
little, the looser ones need no check. Among layouts that serve on as many GPUs, the order of preference is what an
operator would weigh: fewest warnings; --gpu-memory-utilization left alone; the largest prefill chunk, for it decides
how fast prompts are read; fewest flags; then the most requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dsv4check.api import check_request
from dsv4check.deployment import Command
from dsv4check.engine.rule import Rule
from dsv4check.errors import InputError
from dsv4check.planning.capacity import capacity_of, per_engine
from dsv4check.planning.layouts import Layout, gpu_counts, layouts
from dsv4check.planning.question import Question, Wanted, read_question
from dsv4check.planning.records import Plan, Shortfall, Trial
from dsv4check.planning.repairs import Additions, Repairs, extended, obstacles
from dsv4check.planning.shortage import lack_of, standing
from dsv4check.planning.tuning import Limits, Tuning, fewest, steps
from dsv4check.releases.facts import facts_of
from dsv4check.report.model import Report
from dsv4check.request import Request
from dsv4check.resolution import Parallelism
from dsv4check.resolve.parallelism import resolve_parallel
from dsv4check.resolve.speculative_limits import batch_limits

_MAX_REPAIRS: Final = 8
_MAX_ALTERNATIVES: Final = 3


def plan_deployment(request: Request, wanted: Wanted, rules: tuple[Rule, ...]) -> Plan:
    """The smallest deployment of a model that serves what is wanted.

    ``request``: the model with the flags that every candidate has, and the machine. Raises InputError.
    """
    return _Search(read_question(request, wanted), rules).plan()


class _Search:
    def __init__(self, question: Question, rules: tuple[Rule, ...]) -> None:
        self._question, self._rules = question, rules
        self._repairs = Repairs(rules, question.settled)
        self._facts = facts_of(question.deployment.vllm)
        self._parallel = resolve_parallel(question.deployment, self._facts)[0]
        self._reports: dict[Any, Report] = {}

    def plan(self) -> Plan:
        question = self._question
        shortfalls: list[Shortfall] = []
        for gpus in gpu_counts(question.per_node, question.wanted.max_nodes):
            trials = [self._best(layout) for layout in self._layouts(gpus)]
            served = sorted((trial for trial in trials if trial.serves), key=_preference)
            if served:
                return self._plan(served[0].report, served, shortfalls)
            shortfalls.append(Shortfall(gpus, max(trials, key=standing, default=None)))
        known = [shortfall.closest for shortfall in shortfalls if shortfall.closest is not None]
        if not known:
            given = "--tensor-parallel-size, --pipeline-parallel-size, --data-parallel-size, --enable-expert-parallel"
            raise InputError(f"no layout of a plan agrees with the flags behind the model; leave out {given}")
        return self._plan(known[-1].report, [], shortfalls)

    def _plan(self, base: Report, served: list[Trial], shortfalls: list[Shortfall]) -> Plan:
        return Plan(
            wanted=self._question.wanted,
            per_node=self._question.per_node,
            base=base,
            best=served[0] if served else None,
            alternatives=tuple(served[1 : 1 + _MAX_ALTERNATIVES]),
            shortfalls=tuple(shortfalls),
            checks=len(self._reports),
        )

    def _layouts(self, gpus: int) -> list[Layout]:
        """Those that agree with the flags that were given."""
        stated = self._question.deployment.flags.values
        found = layouts(gpus, self._question.per_node, linked_nodes=self._question.linked_nodes)
        return [item for item in found if all(stated.get(dest, size) == size for dest, size in item.sizes().items())]

    def _best(self, layout: Layout) -> Trial:
        """The first tuning that serves without a warning about memory, else the first that serves, else the closest."""
        limits = self._limits(layout)
        wanted = self._question.wanted
        requests = per_engine(wanted.concurrency, layout.data)
        ladder = steps(limits, requests, self._question.given, tokens_per_request=self._step_tokens())
        tightest = self._trial(layout, ladder[-1], limits, Additions())
        if not tightest.serves and not obstacles(tightest.report):
            # Room for the buffers of so many requests may be what it lacks: say how far it gets with fewer.
            fewer = fewest(ladder[-1], self._question.given, tokens_per_request=self._step_tokens())
            return max(tightest, self._trial(layout, fewer, limits, tightest.additions), key=standing)
        serving: Trial | None = tightest if tightest.serves else None
        for number, tuning in enumerate(ladder):
            trial = self._trial(layout, tuning, limits, tightest.additions)
            if trial.serves:
                if len(trial.warnings) <= (len(tightest.warnings) if tightest.serves else 0):
                    return trial
                if serving is None or serving is tightest:
                    serving = trial
            elif number == 0 and _same_obstacle(trial, tightest):
                return max(trial, tightest, key=standing)
        return serving or tightest

    def _limits(self, layout: Layout) -> Limits:
        deployment = self._question.deployment
        parallel = replace(self._parallel, data=layout.data, expert_parallel=layout.experts)
        tokens, seqs = batch_limits(deployment, self._facts.section("spec_decode"), parallel)
        if tokens is None or seqs is None:
            raise InputError(
                "vLLM's default batch size is not known here; give --max-num-batched-tokens, --max-num-seqs"
            )
        share = deployment.flags.get("gpu_memory_utilization")
        return Limits(tokens, seqs, float(share) if isinstance(share, (int, float)) else 1.0)

    def _step_tokens(self) -> int:
        tokens = self._question.deployment.flags.section("speculative_config").get("num_speculative_tokens")
        return 1 + tokens if isinstance(tokens, int) and tokens > 0 else 1

    def _trial(self, layout: Layout, tuning: Tuning, limits: Limits, additions: Additions) -> Trial:
        flags = (*self._own(layout.flags()), *tuning.flags())
        request = self._request(layout, flags)
        report = self._check(additions.applied(request))
        for _ in range(_MAX_REPAIRS):
            more = self._repairs.repair(additions.applied(request), report) if obstacles(report) else None
            if more is None:
                break
            additions += more
            report = self._check(additions.applied(request))
        followers = self._followers(layout, tuning, additions)
        commands = (report.deployment.command, *(request.command for request in followers))
        tokens, seqs = _batch(report, self._facts.section("spec_decode"), limits)
        trial = Trial(
            layout=layout,
            tuning=tuning,
            additions=additions,
            report=report,
            capacity=capacity_of(report.resolution.memory, layout.data),
            tokens=tokens,
            seqs=seqs,
            flags=len(flags) + sum(word.startswith("-") for word in additions.words) + len(additions.env),
            commands=commands,
        )
        lacks = lack_of(trial, self._question.wanted.concurrency)
        if not lacks and followers:
            refused = obstacles(self._check(followers[-1]))
            lacks = f"does not start on a further node: {refused[0].message}" if refused else ""
        return replace(trial, lacks=lacks)

    def _followers(self, layout: Layout, tuning: Tuning, additions: Additions) -> list[Request]:
        return [
            additions.applied(self._request(layout, (*self._own(layout.follower_flags(node)), *tuning.flags())))
            for node in range(1, layout.nodes)
        ]

    def _own(self, flags: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        """Those that were not given already."""
        return tuple(flag for flag in flags if flag[0][2:].replace("-", "_") not in self._question.given)

    def _request(self, layout: Layout, flags: tuple[tuple[str, ...], ...]) -> Request:
        base = self._question.request
        command: Command = extended(base.command, tuple(word for flag in flags for word in flag))
        return replace(base, command=command, hardware=replace(base.hardware, nodes=layout.nodes))

    def _check(self, request: Request) -> Report:
        command = request.command
        key = (request.hardware.nodes, *command.env.items(), *(token.text for token in command.tokens))
        if key not in self._reports:
            self._reports[key] = check_request(request, self._rules, fixes=False)
        return self._reports[key]


def _preference(trial: Trial) -> tuple[Any, ...]:
    held = trial.capacity.total if trial.capacity is not None else 0
    return (len(trial.warnings), trial.tuning.utilization is not None, -trial.tokens, trial.flags, -held)


def _same_obstacle(one: Trial, other: Trial) -> bool:
    """Whether the same error stands in the way of both, so that no tuning between them is without it."""
    rules = {item.rule for item in obstacles(one.report)}
    return not rules.isdisjoint(item.rule for item in obstacles(other.report))


def _batch(report: Report, section: Any, limits: Limits) -> tuple[int, int]:
    parallel: Parallelism | None = report.resolution.parallel
    tokens, seqs = (None, None) if parallel is None else batch_limits(report.deployment, section, parallel)
    return tokens or limits.tokens, seqs or limits.seqs
