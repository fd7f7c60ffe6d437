"""Checking a launch: the one way that the CLI, the batch mode and Python callers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4check.deployment import VllmBuild
from dsv4check.engine.evaluate import Checked, Match, match_rules
from dsv4check.engine.rule import Rule, Severity, load_rules
from dsv4check.inputs.checkpoint_files import stated_checkpoint
from dsv4check.inputs.command import read_command
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.packages import parse_packages, pinned_versions
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.facts import facts_of
from dsv4check.report.model import Finding, Report, Verdict
from dsv4check.request import Request, build_deployment
from dsv4check.resolution import NotEvaluated, Resolution
from dsv4check.resolve.resolver import resolve

if TYPE_CHECKING:
    from dsv4check.installation.tree import VllmTree


def check(
    command: str | Sequence[str],
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    gpu_memory_gib: float | None = None,
    vllm: str | None = None,
    model: str | None = None,
    model_config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | Sequence[str] | None = None,
    rules: str | Path | None = None,
    online: bool = False,
    fixes: bool = True,
    vllm_path: str | Path | None = None,
) -> Report:
    """Say what vLLM will do with a launch and whether it will work.

    Args:
        command: What would be typed, as one string or as words: ``vllm serve MODEL --flag ...``, with or
            without the program, or only the flags together with ``model``.
        gpu: Catalogue name (``H200``), nvidia-smi name or compute capability (``sm90``, ``9.0``). Without it
            NVML is asked, if ``nvidia-ml-py`` is installed; else the answers that need it stay open.
        gpus: GPUs per node.
        nodes: Number of nodes.
        gpu_memory_gib: Memory of one GPU where it differs from the catalogue's.
        vllm: Release or development build; without it the installed one, else the newest one known.
        model: Model id, directory or config.json, when it does not stand in the command.
        model_config: config.json (or its directory) to use instead of the model's own.
        checkpoint: Folder, index or safetensors file with the target's tensors; by default they are looked for where
            the model is.
        config_overrides: Merged into config.json; None values delete a key.
        env: Environment variables of the server; they win over assignments in the command.
        packages: Versions of packages beside vLLM, ``{"flashinfer-python": "0.6.14"}`` or ``["name=version"]``.
        rules: Folder with further rules.
        online: Allow fetching config.json from the Hugging Face hub.
        fixes: Search for fixes; without it findings carry none (faster).
        vllm_path: Folder with the package ``vllm`` (unpacked, installed or a checkout): the launch is judged by this
            tree's own code as far as its text tells, and its version is the one asked about where ``vllm`` is None.

    Raises:
        InputError: The input cannot be used; the message says what and where.
    """
    request = read_request(
        command,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        vllm=vllm,
        model=model,
        model_config=None if model_config is None else str(model_config),
        checkpoint=None if checkpoint is None else str(checkpoint),
        config_overrides=config_overrides,
        env=env,
        packages=packages or (),
        online=online,
        vllm_path=None if vllm_path is None else str(vllm_path),
    )
    return check_request(request, load_rules(Path(rules) if rules is not None else None), fixes=fixes)


def read_request(
    command: str | Sequence[str],
    *,
    source: str = "command line",
    gpu: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    gpu_memory_gib: float | None = None,
    vllm: str | None = None,
    model: str | None = None,
    model_config: str | None = None,
    checkpoint: str | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | Sequence[str] = (),
    online: bool = False,
    vllm_path: str | None = None,
    tree: VllmTree | None = None,
) -> Request:
    """Take the inputs apart; the arguments are those of :func:`check`, ``tree`` is one that was found before.

    Raises InputError.
    """
    return Request(
        command=read_command(command, source=source),
        vllm=_build(vllm, vllm_path, tree),
        hardware=resolve_gpu(gpu, gpus=gpus, nodes=nodes, memory_gib=gpu_memory_gib),
        env=dict(env or {}),
        packages=parse_packages(packages),
        model_name=model,
        model_config=model_config,
        config_overrides=config_overrides,
        online=online,
        checkpoint=None if checkpoint is None else stated_checkpoint(checkpoint),
    )


def _build(vllm: str | None, vllm_path: str | None, tree: VllmTree | None) -> VllmBuild:
    if vllm_path is None and tree is None:
        return resolve_vllm(vllm)
    # Imported here: most launches are judged by a version alone.
    from dsv4check.installation.build_facts import build_of_tree, tree_at

    return build_of_tree(tree or tree_at(str(vllm_path)), vllm)


def check_request(
    request: Request,
    rules: tuple[Rule, ...],
    *,
    fixes: bool = True,
    brief: bool = False,
    wanted: Callable[[Finding], bool] | None = None,
) -> Report:
    """Check a request with the given rules.

    ``brief``: one fix is enough for a finding, and notes need none. ``wanted``: says of a finding whether fixes are
    looked for (None: always). Raises InputError when the request cannot be put together.
    """
    start, resolution, open_questions = _evaluate(request, rules)
    findings = tuple(match.finding for match in start.matches)
    if fixes and any(match.rule.fixes or match.rule.no_fix for match in start.matches):
        # Imported only where something is to be fixed: most checks find nothing.
        from dsv4check.engine.fixes import FixSearch

        bounds = {"most": 1, "least": Severity.WARNING.rank} if brief else {}
        findings = FixSearch(start, lambda edited: _evaluate(edited, rules)[0], wanted=wanted, **bounds).complete()
    severities = {finding.severity for finding in findings}
    verdict = Verdict.PASS
    if Severity.ERROR in severities:
        verdict = Verdict.FAIL
    elif Severity.WARNING in severities:
        verdict = Verdict.WARN
    deployment = start.deployment
    notes = [*deployment.command.notes]
    if deployment.vllm.note:
        notes.append(deployment.vllm.note)
    if deployment.vllm.own is not None:
        notes += deployment.vllm.own.notes(deployment.vllm)
    return Report(
        verdict=verdict,
        deployment=deployment,
        resolution=resolution,
        findings=findings,
        not_evaluated=_merge([*resolution.not_evaluated, *open_questions]),
        notes=tuple(notes),
    )


def _evaluate(request: Request, rules: tuple[Rule, ...]) -> tuple[Checked, Resolution, list[NotEvaluated]]:
    """Resolve and match; for a development build, on every release its code may resemble."""
    checked, resolution, open_questions = _evaluate_release(request, rules)
    if request.vllm.may_be_any:
        common = _on_any_release(request, rules, checked)
        return common, resolution, [*open_questions, *_disagreements(common, [checked])]
    brackets = request.vllm.brackets if request.vllm.kind == "development" else ()
    others = [
        _evaluate_release(request.on_release(name), rules)[0] for name in brackets if name != request.vllm.release
    ]
    if not others:
        return checked, resolution, open_questions
    common = _common(checked, others)
    return common, resolution, [*open_questions, *_disagreements(common, [checked, *others])]


def _kept(newest: Checked, other: Checked) -> Checked:
    """The matches that another release has, too: the same rule, or another error about the same word."""
    rules = {match.rule.id for match in other.matches}
    places = {match.finding.location for match in other.errors if match.finding.location is not None}
    kept = tuple(
        match
        for match in newest.matches
        if match.rule.id in rules or (match.finding.severity is Severity.ERROR and match.finding.location in places)
    )
    return replace(newest, matches=kept)


def _on_any_release(request: Request, rules: tuple[Rule, ...], newest: Checked) -> Checked:
    """What holds on the newest release and on every other one; looked at until nothing is left."""
    common = newest
    for name in request.vllm.brackets:
        if not any(match.finding.severity is not Severity.NOTE for match in common.matches):
            break
        if name != request.vllm.release:
            common = _kept(common, _evaluate_release(request.on_release(name), rules)[0])
    return common


def _evaluate_release(request: Request, rules: tuple[Rule, ...]) -> tuple[Checked, Resolution, list[NotEvaluated]]:
    deployment = build_deployment(request)
    facts = facts_of(deployment.vllm)
    resolution = resolve(deployment, facts)
    matches, open_questions = match_rules(deployment, resolution, rules, pinned_versions(facts))
    return Checked(request, deployment, tuple(matches)), resolution, open_questions


def _common(primary: Checked, others: list[Checked]) -> Checked:
    """What holds on all releases that a development build lies between holds for the build."""
    fired = [{match.rule.id for match in other.matches} for other in others]
    kept = tuple(match for match in primary.matches if all(match.rule.id in ids for ids in fired))
    return replace(primary, matches=kept)


def _disagreements(common: Checked, around: list[Checked]) -> list[NotEvaluated]:
    """Findings that only some of the releases around a development build have."""
    everywhere = {match.rule.id for match in common.matches}
    by_rule: dict[str, tuple[Match, set[str]]] = {}
    for checked in around:
        for match in checked.matches:
            if match.rule.id not in everywhere and match.finding.severity is not Severity.NOTE:
                by_rule.setdefault(match.rule.id, (match, set()))[1].add(checked.deployment.vllm.release)
    build = common.deployment.vllm
    where, how = f" around {build.version}", "look at the installed build itself (`dsv4check doctor`)"
    if build.may_be_any:
        where = ""
    if build.kind == "unstated":
        how = "state the vLLM version"
    if build.own is not None:
        where = f" that {build.version} may have taken the parts from that its text does not tell"
        how = "rehearse the launch with the build itself (`dsv4check rehearse`)"
    return [
        NotEvaluated(
            f"{rule_id} {match.rule.name}",
            f"true of {', '.join(sorted(releases))} but not of every release{where}",
            how,
        )
        for rule_id, (match, releases) in sorted(by_rule.items())
    ]


def _merge(questions: list[NotEvaluated]) -> tuple[NotEvaluated, ...]:
    """Rules that are open for the same reason become one entry."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for question in questions:
        grouped.setdefault((question.why, question.how), []).append(question.what)
    return tuple(NotEvaluated("; ".join(dict.fromkeys(what)), why, how) for (why, how), what in grouped.items())
