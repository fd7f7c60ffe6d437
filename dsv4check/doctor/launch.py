"""The launch, judged by the build that was found and the machine that was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from dsv4check.deployment import Hardware, VllmBuild
from dsv4check.doctor.public import hidden_values, with_hidden
from dsv4check.doctor.records import DoctorRequest
from dsv4check.errors import InputError
from dsv4check.report.model import Report

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.host.gpus import GpuSeen
    from dsv4check.installation.build_facts import BuildFacts
    from dsv4check.installation.tree import VllmTree
    from dsv4check.request import Request

_ALSO: Final = ("CUDA_VISIBLE_DEVICES",)
"""Variables of this process beside ``VLLM_*`` that decide what a launch gets."""


def read_launch(asked: DoctorRequest) -> Request | None:
    """The launch as it was typed; None without one. Raises InputError when it cannot be used."""
    if asked.command is None:
        _refuse_unusable(asked)
        return None
    from dsv4check.api import read_request
    from dsv4check.request import build_deployment

    request = read_request(
        asked.command,
        source=asked.source,
        gpu=asked.gpu,
        gpus=asked.gpus,
        nodes=asked.nodes,
        gpu_memory_gib=asked.gpu_memory_gib,
        vllm=asked.vllm,
        model_config=asked.model_config,
        checkpoint=asked.checkpoint,
        env=asked.env,
        packages=asked.packages,
        online=asked.online,
    )
    # A model that cannot be read is said at once, not after the build was.
    build_deployment(request)
    return request


def _refuse_unusable(asked: DoctorRequest) -> None:
    """The options that are read with a launch are wrong without one, too. Raises InputError."""
    from dsv4check.inputs.gpu import resolve_gpu
    from dsv4check.inputs.packages import parse_packages
    from dsv4check.inputs.vllm_version import resolve_vllm

    parse_packages(asked.packages)
    resolve_vllm(asked.vllm)
    if asked.gpu is not None:
        resolve_gpu(asked.gpu)


def server_environment(process: Mapping[str, str], launch: Request | None) -> dict[str, str]:
    """What a server started here would see: this process's variables, over which the launch's win."""
    env = {name: value for name, value in process.items() if name.startswith("VLLM_") or name in _ALSO}
    if launch is not None:
        env |= {**launch.command.env, **launch.env}
    return env


def check_launch(
    launch: Request,
    asked: DoctorRequest,
    rules: tuple[Rule, ...],
    *,
    tree: VllmTree | None,
    facts: BuildFacts | None,
    gpus: Sequence[GpuSeen],
    packages: Mapping[str, str],
    process: Mapping[str, str],
) -> Report:
    """The launch's report. What is stated wins over what was seen here. Raises InputError for unusable input.

    Args:
        launch: The launch as it was typed.
        asked: The options it came with.
        rules: The rules to apply.
        tree: The vLLM that was found.
        facts: What its own code says; None where that could not be read.
        gpus: The GPUs that the driver shows.
        packages: Installed versions beside vLLM.
        process: This process's environment.
    """
    from dsv4check.api import check_request

    request = replace(
        launch,
        vllm=_build(launch, asked, tree, facts),
        env=_unstated(process, launch, asked) | dict(launch.env),
        packages={**packages, **launch.packages},
        hardware=hardware_of(gpus, launch, asked),
    )
    report = check_request(request, rules)
    # The launch stands as it was typed; what this machine adds to it is nobody's to see.
    hidden = hidden_values(_unstated(process, launch, asked))
    if hidden:
        report = replace(report, findings=with_hidden(report.findings, hidden))
    own = request.vllm.own
    if own is None:
        return report
    # The build has a section of its own: nothing is said twice.
    said = own.notes(report.deployment.vllm)
    return replace(report, notes=tuple(note for note in report.notes if note not in said))


def hardware_of(gpus: Sequence[GpuSeen], launch: Request | None, asked: DoctorRequest) -> Hardware:
    """The hardware of the launch: the GPUs that were named, else those that were seen (of mixed ones the first)."""
    from dsv4check.host.gpus import hardware_seen
    from dsv4check.inputs.gpu import resolve_gpu

    if asked.gpu is not None or not gpus:
        named = resolve_gpu(asked.gpu) if launch is None and asked.gpu is not None else None
        return named or (Hardware() if launch is None else launch.hardware)
    seen = hardware_seen(gpus)
    memory = seen.memory_mib if asked.gpu_memory_gib is None else round(asked.gpu_memory_gib * 1024)
    per_node = seen.gpus_per_node if asked.gpus is None else asked.gpus
    return replace(seen, memory_mib=memory, gpus_per_node=per_node, nodes=asked.nodes or 1)


def utilization_of(launch: Request | None) -> float | None:
    """The share of a GPU's memory that the launch asks for; None where it does not say."""
    if launch is None:
        return None
    from dsv4check.inputs.flags.parser import parse_flags
    from dsv4check.releases.flag_table import load_flag_table

    flags = parse_flags(launch.command, load_flag_table(launch.vllm.release), read_file=launch.read_file)
    share = flags.values.get("gpu_memory_utilization")
    return share if isinstance(share, float) and 0 < share <= 1 else None


def wanted_packages(launch: Request | None) -> tuple[str, ...]:
    """Packages that the launch names beyond what every launch needs."""
    if launch is None:
        return ()
    # "--flag=value" and "--flag value" become the same words.
    words = [part for token in launch.command.tokens for part in token.text.replace("_", "-").split("=", 1)]
    return ("ray",) if ("--distributed-executor-backend", "ray") in pairwise(words) else ()


def _build(launch: Request, asked: DoctorRequest, tree: VllmTree | None, facts: BuildFacts | None) -> VllmBuild:
    if tree is None:
        return launch.vllm
    if facts is not None:
        from dsv4check.installation.build_facts import build_of_tree

        return build_of_tree(tree, asked.vllm)
    from dsv4check.inputs.vllm_version import resolve_vllm

    if asked.vllm is not None or tree.version is None:
        return launch.vllm
    try:
        return resolve_vllm(tree.version)
    except InputError:
        # What a fork calls itself is nobody's input.
        return launch.vllm


def _unstated(process: Mapping[str, str], launch: Request, asked: DoctorRequest) -> dict[str, str]:
    """Variables of this process that the launch does not set itself: those of a request win over its command."""
    env = server_environment(process, None)
    if asked.gpu is not None:
        # Named GPUs are not those of this process.
        env = {name: value for name, value in env.items() if name not in _ALSO}
    return {name: value for name, value in env.items() if name not in launch.command.env}
