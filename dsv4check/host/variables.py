"""Environment variables: vLLM's own that this release or build does not know or cannot read, and others that matter.

The values are judged as for a launch's own environment (``resolve/environment.py``); here they are those of the
machine, and the names are those of the tree where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv4check.deployment import Command, Deployment, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.learning.source import LearningError, Source
from dsv4check.problems import Origin, Problem
from dsv4check.releases.facts import ReleaseFacts, known_releases, load_facts
from dsv4check.resolve.environment import environment_problems

from .other_variables import look_at_others, variable_observation
from .records import Observation, State
from .variable_table import VariableTable, read_elsewhere, read_table

_PREFIX: Final = "VLLM_"
_UNKNOWN: Final = frozenset({"env-unknown", "env-misnamed", "env-attention-backend", "env-unknown-fatal"})


def look_at_variables(
    env: Mapping[str, str],
    facts: ReleaseFacts | None,
    source: Source | None = None,
    *,
    deployment: Deployment | None = None,
    root: Path = Path("/"),
) -> list[Observation]:
    """What the variables of ``env`` (the machine's and the launch's) mean for this release or build.

    ``facts``: of the release that the build is or is nearest to; None when nobody knows. ``source``: the tree, whose
    own names then count. ``deployment``: the launch, whose flags decide some cases. No secret value is ever shown.
    """
    own = sorted(name for name in env if name.startswith(_PREFIX))
    table, why = _table(source)
    others = look_at_others(env, source.package if source is not None else None, root)
    if table is None and (facts is None or not facts.section("env")):
        return [*([_nothing_known(own, why)] if own else []), *others]
    found = list(_own(env, own, facts, table, source, deployment))
    if not found:
        found = [_all_known(own, facts, table)]
    said = {observation.id for observation in found}
    return [*found, *(observation for observation in others if observation.id not in said)]


def _table(source: Source | None) -> tuple[VariableTable | None, str]:
    if source is None:
        return None, ""
    try:
        return read_table(source), ""
    except LearningError as error:
        return None, str(error)


def _own(
    env: Mapping[str, str],
    own: Sequence[str],
    facts: ReleaseFacts | None,
    table: VariableTable | None,
    source: Source | None,
    deployment: Deployment | None,
) -> Iterator[Observation]:
    """Everything that is to be said of the ``VLLM_*`` variables."""
    known = _with_table(facts, table)
    problems = environment_problems(_question(env, own, known, deployment), known)
    unknown = [str(problem.data["name"]) for problem in problems if problem.code in _UNKNOWN]
    elsewhere = read_elsewhere(source.package, unknown) if source is not None and table is not None else {}
    build = _build(facts, table)
    for problem in problems:
        name = str(problem.data.get("name") or (problem.origin.text if problem.origin is not None else ""))
        if name not in env:
            # Said with a flag: that is the check of the launch.
            continue
        if problem.code in _UNKNOWN:
            yield _unknown(problem, name, env[name], build, table, elsewhere.get(name, ""), facts)
        else:
            yield _refused(problem, name, env[name], build, table)
    if table is not None:
        for name in own:
            if name in table.deprecated:
                yield _deprecated(name, env[name], build, table)


def _with_table(facts: ReleaseFacts | None, table: VariableTable | None) -> ReleaseFacts:
    """The facts, with the names of the tree where there is one."""
    empty: Mapping[str, object] = {"choices": {}, "int": "", "float": "", "known": "", "early": ""}
    section = dict(facts.section("env") if facts is not None else {}) or dict(empty)
    if table is not None:
        section["known"] = " ".join(name.removeprefix(_PREFIX) for name in table.lines if name.startswith(_PREFIX))
    data = dict(facts.data) if facts is not None else {}
    return ReleaseFacts(facts.version if facts is not None else "", {**data, "env": section})


def _question(
    env: Mapping[str, str], own: Sequence[str], facts: ReleaseFacts, deployment: Deployment | None
) -> Deployment:
    """The launch with this environment; one without flags when there is no launch."""
    vllm = {name: env[name] for name in own}
    if deployment is not None:
        return replace(deployment, env={**deployment.env, **vllm})
    return Deployment(
        command=Command((), ()),
        flags=ServeFlags(None),
        env=vllm,
        hardware=Hardware(),
        vllm=VllmBuild(facts.version, "release", facts.version, Origin("default")),
        model=Model("", "deepseek_v4", "original", "", {}, {}),
    )


def _unknown(
    problem: Problem,
    name: str,
    value: str,
    build: str,
    table: VariableTable | None,
    elsewhere: str,
    facts: ReleaseFacts | None,
) -> Observation:
    fatal = problem.code == "env-unknown-fatal"
    if fatal:
        state, why = State.ERROR, f"{build} does not know it, and --fail-on-environ-validation makes that an error."
    elif elsewhere:
        state, why = State.NOTE, f"{build} warns that it does not know it, but {elsewhere} reads it."
    elif table is not None and table.dynamic is not None:
        state = State.UNKNOWN
        why = f"envs.py adds names at run time (line {table.dynamic}): whether it is known cannot be said."
    else:
        ignored = "ignores it with a warning" if table is None else "warns; nothing in its Python code reads it"
        state, why = State.WARNING, f"{build} does not know it and {ignored}."
    releases = _releases_with(name, facts.version if facts is not None else "")
    if releases:
        why += f" {releases} knew it."
    instead = str(problem.data.get("instead") or "")
    advice = f"Use {instead}." if instead else "Remove it."
    if elsewhere and not fatal:
        advice = ""
    return variable_observation(
        name, value, why, state, advice, "envs.py of the tree" if table else f"facts of {build}"
    )


def _refused(problem: Problem, name: str, value: str, build: str, table: VariableTable | None) -> Observation:
    expected = str(problem.data.get("expected") or problem.data.get("usable") or "")
    match problem.code:
        case "env-port-uri":
            why = "Kubernetes put it there for a service named vllm, and vLLM reads it as its own port number."
            advice = "Rename the service, or set enableServiceLinks: false."
        case "kv-layout-unusable":
            why = f"DeepSeek-V4's cache groups take only the layout {expected}."
            advice = f"Remove it, or set {expected}."
        case "retention-interval":
            why = f"The interval must be a multiple of the scheduler's block size, {problem.data.get('block')}."
            advice = f"Set {problem.data.get('fitting')}."
        case _:
            why = (
                f"{build} cannot read the value (expected: {expected or 'another one'}): a ValueError ends the launch."
            )
            advice = "Correct or remove it."
    where = f"envs.py:{table.lines[name]}" if table is not None and name in table.lines else f"facts of {build}"
    return variable_observation(name, value, why, State.ERROR, advice, where, expected)


def _deprecated(name: str, value: str, build: str, table: VariableTable) -> Observation:
    why = f"{build} still has the name, and its reader says that it is deprecated."
    return variable_observation(name, value, why, State.NOTE, "Read the message there.", f"envs.py:{table.lines[name]}")


def _all_known(own: Sequence[str], facts: ReleaseFacts | None, table: VariableTable | None) -> Observation:
    names = ", ".join(own) if own else "none is set"
    return Observation(
        id="variables-vllm",
        area="environment",
        state=State.OK,
        what="VLLM_ variables",
        found=names,
        why=f"{_build(facts, table)} knows all of them." if own else "",
        source="environment",
        data={"names": list(own)},
    )


def _nothing_known(own: Sequence[str], error: str) -> Observation:
    because = f"({error})" if error else "(no release is named and there is no vLLM tree)"
    return Observation(
        id="variables-vllm",
        area="environment",
        state=State.UNKNOWN,
        what="VLLM_ variables",
        found=", ".join(own),
        why=f"Which variables this vLLM knows cannot be said {because}.",
        source="environment",
        data={"names": list(own)},
    )


def _build(facts: ReleaseFacts | None, table: VariableTable | None) -> str:
    if table is not None:
        return "This build"
    return f"vLLM {facts.version}" if facts is not None else "This vLLM"


def _releases_with(name: str, but: str) -> str:
    """The releases that know a variable, as a range; empty when none of the others does."""
    short = name.removeprefix(_PREFIX)
    having = [
        version
        for version in known_releases()
        if version != but and short in str(load_facts(version).section("env").get("known", "")).split()
    ]
    if not having:
        return ""
    return f"vLLM {having[0]}" if len(having) == 1 else f"vLLM {having[0]} to {having[-1]}"
