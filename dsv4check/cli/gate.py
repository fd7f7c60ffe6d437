"""``dsv4check gate``: find and check every launch in a tree of files."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsv4check.cli.exit_codes import FINDINGS, OK, UNUSABLE
from dsv4check.cli.launch_options import Env, Gpu, GpuMemory, Gpus, ModelConfig, Nodes, Packages, Rules, assignments
from dsv4check.cli.output import FailOn
from dsv4check.cli.progress import progress_bar
from dsv4check.errors import InputError
from dsv4check.report.gate_formats import GateFormat

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.gate.file_check import FileChecker, FileResult
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
    run = _Run(checker, exclude or [], not ignored_too, jobs or _default_jobs())
    report = run.check(paths, stdin_filename, allow_none=allow_none)
    if fix or diff:
        changed = run.fix(report, _rank(threshold), write=fix)
        for line in changed.said:
            print(line, file=sys.stderr)
        if diff:
            print(changed.diff, end="")
        if fix:
            report = run.check(paths, stdin_filename, allow_none=allow_none)
    report = _with_baseline(report, baseline or settings.baseline, update_baseline, run.looked)
    report = replace(report, seconds=time.perf_counter() - started)
    _write(report, output, written, loaded, threshold, verbose=verbose, quiet=diff)
    raise typer.Exit(_exit_code(report, threshold, strict or settings.strict, allow_none))


class _Run:
    """The files of one call."""

    def __init__(self, checker: FileChecker, exclude: list[str], respect_git: bool, jobs: int) -> None:
        self._checker = checker
        self._exclude = exclude
        self._respect_git = respect_git
        self._jobs = jobs
        self._files: dict[str, Path] = {}

    def check(self, paths: list[str], stdin_filename: str | None, *, allow_none: bool) -> GateReport:
        from dsv4check.gate.records import FileProblem
        from dsv4check.gate.run import check_files, report_of
        from dsv4check.gate.walk import candidates

        named = [path for path in paths if path != "-"]
        found = candidates(
            named,
            root=self._checker.root,
            exclude=self._exclude,
            excluded=self._checker.settings.excludes,
            respect_git=self._respect_git,
        )
        self._files = {item.shown: item.path for item in found.files}
        with progress_bar(len(found.files), "files") as progress:
            results = check_files(found.files, self._checker, jobs=self._jobs, progress=progress)
        explicit = {item.shown for item in found.files if item.explicit}
        count = len(found.files)
        if "-" in paths:
            results.append(self._of_stdin(stdin_filename or "standard input"))
            explicit.add(results[-1].shown)
            count += 1
        for result in results:
            if result.shown in explicit and not result.launches and not result.problems and not allow_none:
                result.problems.append(FileProblem(result.shown, 0, "no launch in it"))
        around = [self._checker.settings.folder, *self._checker.settings.folder.parents]
        return report_of(
            results,
            self._checker,
            problems=found.problems,
            notes=found.notes,
            files=count,
            complete=any(Path(os.path.realpath(path)) in around for path in named),
        )

    @property
    def looked(self) -> frozenset[str]:
        """The files that were looked at, as reports call them."""
        return frozenset(self._files)

    def _of_stdin(self, name: str) -> FileResult:
        from dsv4check.gate.file_check import FileResult
        from dsv4check.gate.reading import MAX_BYTES, source_from_bytes
        from dsv4check.gate.records import FileProblem

        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return FileResult(name, problems=[FileProblem(name, 0, "larger than 8 MiB; not read")])
        source = source_from_bytes(data, name)
        if isinstance(source, FileProblem):
            return FileResult(name, problems=[source])
        return self._checker.check_text(source, None)

    def fix(self, report: GateReport, rank: int, *, write: bool) -> _Changed:
        from dsv4check.gate.fix import diff_of, fix_source
        from dsv4check.gate.reading import read_source
        from dsv4check.gate.records import FileProblem

        wanted = [
            finding
            for finding in report.findings
            if finding.active and finding.severity.rank >= rank and finding.fixes and finding.path in self._files
        ]
        fingerprints = {finding.fingerprint for finding in wanted}
        changed = _Changed()
        for shown in sorted({finding.path for finding in wanted}):
            path = self._files[shown]
            source = read_source(path, shown)
            if isinstance(source, FileProblem):
                continue
            outcome = fix_source(source, path, self._checker, fingerprints)
            changed.said += [f"fixed {line}" for line in outcome.applied] if write else []
            changed.said += outcome.refused
            if outcome.source is source:
                continue
            changed.diff += diff_of(source, outcome.source)
            if write:
                _replace_file(path, outcome.source.encode())
        return changed


class _Changed:
    """What ``--fix`` did, or would do."""

    def __init__(self) -> None:
        self.diff = ""
        self.said: list[str] = []


def _replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step, with the permissions it had. Raises InputError."""
    import tempfile

    target = Path(os.path.realpath(path))
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(name, target.stat().st_mode & 0o7777)
            os.replace(name, target)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


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


def _rank(threshold: FailOn) -> int:
    return {FailOn.ERROR: 2, FailOn.WARNING: 1, FailOn.NOTE: 0, FailOn.NEVER: 3}[threshold]


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
        return render(report, format, rules=rules, fail_rank=_rank(threshold), verbose=verbose, own=own)

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
    """2: something could not be read, or there is no launch; 1: findings; 0: neither."""
    if any(not problem.skipped for problem in report.problems):
        return UNUSABLE
    if not report.launches and not allow_none:
        print(f"dsv4check: no launch of vLLM in {report.files} files that were looked at", file=sys.stderr)
        return UNUSABLE
    if any(item.active and item.severity.rank >= _rank(threshold) for item in report.findings):
        return FINDINGS
    if strict and any(
        (launch.not_checked and not launch.other_model) or launch.not_evaluated for launch in report.launches
    ):
        return FINDINGS
    return OK
