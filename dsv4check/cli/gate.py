"""``dsv4check gate``: find and check every launch in a tree of files."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsv4check.cli.exit_codes import FINDINGS, INTERNAL, OK, UNUSABLE
from dsv4check.cli.launch_options import Env, Gpu, GpuMemory, Gpus, ModelConfig, Nodes, Packages, Rules, assignments
from dsv4check.cli.output import FailOn
from dsv4check.cli.progress import progress_bar
from dsv4check.errors import InputError
from dsv4check.report.gate_formats import GateFormat

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.gate.records import GateReport
    from dsv4check.gate.settings import Facts

_MOST_JOBS: Final = 16


def gate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATHS...", help="Files and folders to look at, or - for standard input."),
    ] = None,
    stdin_filename: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the text on standard input is called; its ending counts.")
    ] = None,
    vllm: Annotated[str | None, typer.Option(help="vLLM release of launches whose file does not state it.")] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    gpu_memory_gib: GpuMemory = None,
    model: Annotated[
        str | None, typer.Option(help="Published id of a model whose path in the command says nothing.")
    ] = None,
    model_config: ModelConfig = None,
    package: Packages = None,
    env: Env = None,
    rules: Rules = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file [default: .dsv4check.toml or pyproject.toml around].")
    ] = None,
    isolated: Annotated[bool, typer.Option("--isolated", help="Read no configuration file.")] = False,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Files not to look at; repeatable.")] = None,
    ignored_too: Annotated[bool, typer.Option("--no-git-ignore", help="Look at files that git ignores, too.")] = False,
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Findings listed there do not count.")] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the findings of now into the baseline.")
    ] = False,
    output: Annotated[GateFormat, typer.Option("--format", help="Format on standard output.")] = GateFormat.TEXT,
    to_file: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="FORMAT=FILE", help="Write a format to a file as well; repeatable."),
    ] = None,
    fail_on: Annotated[FailOn | None, typer.Option(help="Lowest severity that exits with 1 [default: error].")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit with 1 for launches not checked and answers left open.")
    ] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Change flags in the files where a fix was verified.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what --fix would change instead of a report.")] = False,
    no_fixes: Annotated[bool, typer.Option("--no-fixes", help="Search for no fixes (faster).")] = False,
    allow_none: Annotated[
        bool, typer.Option("--allow-none", help="Exit with 0 when there is no launch to check.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes to work with [default: the number of CPUs].")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say everything that is known.")] = False,
) -> None:
    """Check every DeepSeek-V4 launch in shell scripts, manifests, units, configurations and code."""
    started = time.perf_counter()
    if not paths:
        raise InputError("no path given: expected `dsv4check gate PATHS...` (files, folders, or - for standard input)")
    written = _targets(to_file or [])
    from dsv4check.engine.rule import load_rules
    from dsv4check.gate.file_check import FileChecker
    from dsv4check.gate.judge import Judge
    from dsv4check.gate.reading import MAX_BYTES
    from dsv4check.gate.session import Session
    from dsv4check.gate.settings import Facts, load_settings

    root = Path.cwd()
    settings = load_settings(root, config, isolated)
    loaded = load_rules(rules if rules is not None else settings.rules)
    options = Facts(
        vllm=vllm,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        gpu_memory_gib=gpu_memory_gib,
        model=model,
        model_config=None if model_config is None else Path(model_config),
        packages=_packages(package),
        env=assignments(env or []),
    )
    _refuse_wrong_facts(options)
    checker = FileChecker(
        Judge(loaded, options, fixes=not no_fixes or fix or diff),
        settings,
        root,
        {rule.id: rule.name for rule in loaded},
    )
    threshold = fail_on if fail_on is not None else FailOn(settings.fail_on or FailOn.ERROR)
    text = None
    if "-" in paths:
        # One byte more than is read tells a text that is too large.
        text = (stdin_filename or "standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
    session = Session(
        checker,
        [path for path in paths if path != "-"],
        text=text,
        exclude=exclude or (),
        respect_git=not ignored_too,
        jobs=jobs or _default_jobs(),
    )
    report = session.check(allow_none=allow_none, bar=lambda total: progress_bar(total, "files"))
    if fix or diff:
        changes = session.fix(report, threshold.rank, write=fix)
        for line in changes.said:
            print(line, file=sys.stderr)
        if diff:
            print(changes.diff, end="")
        if fix:
            report = session.check(allow_none=allow_none)
    report = _with_baseline(report, baseline or settings.baseline, update_baseline, session.looked)
    report = replace(report, seconds=time.perf_counter() - started)
    _write(report, output, written, loaded, threshold, verbose=verbose, quiet=diff)
    raise typer.Exit(_exit_code(report, threshold, strict or settings.strict, allow_none))


def _packages(items: list[str] | None) -> dict[str, str]:
    from dsv4check.inputs.packages import parse_packages

    return dict(parse_packages(items or ()))


def _refuse_wrong_facts(options: Facts) -> None:
    """A misspelled release or GPU on the command line is an error, not a launch that stays open."""
    from dsv4check.inputs.gpu import resolve_gpu
    from dsv4check.inputs.vllm_version import resolve_vllm

    if options.vllm is not None:
        resolve_vllm(options.vllm)
    if options.gpu is not None:
        resolve_gpu(options.gpu, gpus=options.gpus, nodes=options.nodes, memory_gib=options.gpu_memory_gib)


def _targets(items: list[str]) -> list[tuple[GateFormat, Path]]:
    targets = []
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or name not in [*GateFormat] or not path:
            raise InputError(f"--output {item!r}: expected FORMAT=FILE with one of {', '.join(GateFormat)}")
        targets.append((GateFormat(name), Path(path)))
    return targets


def _default_jobs() -> int:
    try:
        return min(len(os.sched_getaffinity(0)), _MOST_JOBS)
    except AttributeError:
        return min(os.cpu_count() or 1, _MOST_JOBS)


def _with_baseline(report: GateReport, path: Path | None, update: bool, looked: frozenset[str]) -> GateReport:
    if path is None:
        if update:
            raise InputError("--update-baseline needs --baseline FILE")
        return report
    from dsv4check.gate.baseline import apply_baseline, load_baseline, write_baseline

    if update:
        write_baseline(path, report)
        print(f"wrote {path}", file=sys.stderr)
    return apply_baseline(report, load_baseline(path), looked=looked)


def _write(
    report: GateReport,
    output: GateFormat,
    written: list[tuple[GateFormat, Path]],
    rules: tuple[Rule, ...],
    threshold: FailOn,
    *,
    verbose: bool,
    quiet: bool,
) -> None:
    from dsv4check.gate.own_rules import OWN_RULES
    from dsv4check.report.gate_formats import render

    own = {rule.id: (rule.summary, rule.help) for rule in OWN_RULES.values()}

    def text(format: GateFormat) -> str:
        return render(report, format, rules=rules, fail_rank=threshold.rank, verbose=verbose, own=own)

    for format, path in written:
        try:
            path.write_text(text(format), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    if quiet:
        return
    if output is GateFormat.TEXT:
        from dsv4check.cli.output import print_blocks
        from dsv4check.report.gate_text import gate_blocks

        print_blocks(gate_blocks(report, verbose=verbose))
        return
    print(text(output), end="")


def _exit_code(report: GateReport, threshold: FailOn, strict: bool, allow_none: bool) -> int:
    """3: a fault of the gate; 2: something could not be read, or there is no launch; 1: findings; 0: neither."""
    from dsv4check.gate.run import INTERNAL_ERROR

    if any(problem.why.startswith(INTERNAL_ERROR) for problem in report.problems):
        return INTERNAL
    if any(not problem.skipped for problem in report.problems):
        return UNUSABLE
    if not report.launches and not allow_none:
        print(f"dsv4check: no launch of vLLM in {report.files} files that were looked at", file=sys.stderr)
        return UNUSABLE
    if any(item.active and item.severity.rank >= threshold.rank for item in report.findings):
        return FINDINGS
    if strict and any(
        (launch.not_checked and not launch.other_model) or launch.not_evaluated for launch in report.launches
    ):
        return FINDINGS
    return OK
