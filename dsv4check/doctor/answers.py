"""What was read of a build, put into the report's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsv4check.doctor.public import public_variables
from dsv4check.doctor.records import BuildAnswer, FactDifference, FingerprintAnswer, Machine, Unread
from dsv4check.host.records import Observation

if TYPE_CHECKING:
    from dsv4check.host.gpus import GpuSeen
    from dsv4check.host.interpreter import InterpreterFacts
    from dsv4check.installation.build_facts import BuildFacts
    from dsv4check.installation.fingerprint import Answer, Fingerprint
    from dsv4check.installation.tree import VllmTree


def build_answer(tree: VllmTree | None, why: str, facts: BuildFacts | None) -> BuildAnswer:
    """Which vLLM it is.

    Args:
        tree: The tree; None where none was found.
        why: Why none was found.
        facts: What its own code says; None where that could not be read at all.
    """
    if tree is None:
        return BuildAnswer(found=False, why=why)
    return BuildAnswer(
        found=True,
        package=str(tree.package),
        found_by=tree.found_by,
        python=tree.python,
        version=tree.version,
        version_from=tree.version_from,
        commit=tree.commit,
        commit_from=tree.commit_from,
        nearest=facts.nearest if facts is not None and facts.learned else None,
        learned=() if facts is None else tuple(facts.learned),
        differs=()
        if facts is None
        else tuple(FactDifference(item.path, item.build, item.release) for item in facts.differs),
        unread=() if facts is None else tuple(Unread(part, reason) for part, reason in facts.unread.items()),
    )


def fingerprint_answers(
    asked: Sequence[tuple[Fingerprint, Answer]], release: str | None
) -> tuple[FingerprintAnswer, ...]:
    """Every question with its answer beside that of a release.

    Args:
        asked: The questions and what the tree answers.
        release: The release that is compared with.
    """
    values = release_answers(release) if release is not None and asked else {}
    return tuple(
        FingerprintAnswer(
            id=question.id,
            question=question.question,
            value=answer.value,
            says=answer.says,
            quotes=answer.quotes,
            why=answer.why,
            fault=None if answer.value is None or not question.good else answer.value not in question.good,
            release=release,
            release_value=values.get(question.id),
            rules=tuple(question.rules),
            references=tuple(question.references),
        )
        for question, answer in asked
    )


def release_answers(release: str) -> dict[str, str | None]:
    """What a release answers, by the fingerprint's id; empty where that is not kept."""
    from dsv4check.data import load_data
    from dsv4check.errors import InputError

    try:
        kept = load_data("releases/fingerprints")
    except InputError:
        return {}
    return {
        name: value
        for name, values in kept["fingerprints"].items()
        for value, releases in values.items()
        if release in releases
    }


def machine_answer(gpus: Sequence[GpuSeen], interpreter: InterpreterFacts | None, env: Mapping[str, str]) -> Machine:
    """What machines are compared by.

    Args:
        gpus: As the driver shows them.
        interpreter: The Python that serves; None where none was asked.
        env: The environment of the server.
    """
    found = {} if interpreter is None else {name: interpreter.installed(name) for name in interpreter.distributions}
    return Machine(
        gpus=tuple(
            {
                "name": gpu.name,
                "sm": None if gpu.capability is None else f"{gpu.capability[0]}.{gpu.capability[1]}",
                "memory_mib": gpu.memory_mib,
            }
            for gpu in gpus
        ),
        python=None if interpreter is None else interpreter.version,
        packages={name: version for name, version in sorted(found.items()) if version is not None},
        variables=public_variables({name: value for name, value in env.items() if name.startswith("VLLM_")}),
    )


def anonymous(item: Observation) -> Observation:
    """The observation without what names this very board or host: a report may be shown to strangers."""
    data = {key: value for key, value in item.data.items() if key != "uuid"}
    name, value = data.get("name"), data.get("value")
    found = item.found
    if item.area == "environment" and isinstance(name, str) and isinstance(value, str):
        data["value"] = public_variables({name: value})[name]
        found = found.replace(value, data["value"]) if value else found
    return item if data == item.data else replace(item, found=found, data=data)
