"""The deployment as far as a log states it: what every kind of text says, and which of it counts.

What the run itself logged wins over what stands around it, and of two such texts the one that says more exactly what
ran: the version banner over a package list, the arguments vLLM printed over the command that a report shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.errors import InputError
from dsv4check.inputs.shell_quoting import quote
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.launchfiles.images import release_of_image
from dsv4check.report.masking import MASK, masked_env
from dsv4check.triage.argument_words import words_of
from dsv4check.triage.collect_env import package_facts, variable_facts
from dsv4check.triage.commands import ShownLaunch, shown_launches
from dsv4check.triage.decisions import OF_TARGET, decision_facts
from dsv4check.triage.default_args import read_default_args
from dsv4check.triage.engine_config import engine_words, read_engine_config, resolved_values
from dsv4check.triage.flag_words import flags_of, longest_context, number_after, table_of, tensor_parallel
from dsv4check.triage.hardware import Machine, machine_of
from dsv4check.triage.model_hint import published_like, shown_models
from dsv4check.triage.prose_flags import ProseFlags, read_prose_flags
from dsv4check.triage.records import Fact, LogLine, LogReading, Run, Stated
from dsv4check.triage.version_banner import banner_facts, text_versions

_NO_VERSION: Final = "which vLLM ran: the line with its version, or the image (--vllm)"
_NO_MODEL: Final = "which model was served: the `vllm serve` command or the line `non-default args` (--model)"
_NO_GPU: Final = "which GPUs it ran on: the output of nvidia-smi, or their name (--gpu)"
_NO_COUNT: Final = "how many GPUs each node has (--gpus)"
_NO_FLAGS: Final = "the flags: the command, or the line `non-default args`"
_CUT_FLAGS: Final = "the rest of the flags: the line `non-default args` ends inside its list"
_RESOLVED_ONLY: Final = (
    "the flags as they were typed: the engine's summary does not hold expert parallelism, memory utilisation or limits"
    " of batches"
)
_MOST_TEXT: Final = 400_000
"""Characters of the text around a log that are looked through: reports are far shorter."""
NOTE: Final = "note"
"""Name of the facts that are sentences about how the log was read."""


def read_stated(reading: LogReading, run: Run) -> Stated:
    """What a log states about the launch of one run. Never raises for what is in the log."""
    if len(reading.head) > _MOST_TEXT:
        reading = replace(reading, head=reading.head[:_MOST_TEXT])
    return _Stating(reading, run).stated()


class _Stating:
    def __init__(self, reading: LogReading, run: Run) -> None:
        self._reading = reading
        self._run = run
        self._facts: list[Fact] = []
        self._missing: list[str] = []
        self._speaker = _speaking(reading, run)
        self._arguments = read_default_args(reading, self._speaker)
        self._engine = read_engine_config(reading, self._speaker)
        self._launches = shown_launches(reading)
        self._prose = ProseFlags()
        self._flags_from = ""

    def stated(self) -> Stated:
        """Everything, weighed."""
        if self._speaker is not self._run:
            why = "this start does not state its version and arguments: those of another start in the log are used"
            self._note(why, "log line", self._speaker.first)
        version = self._version()
        if self._arguments is None and not self._launches:
            self._prose = read_prose_flags(self._reading, table_of(version))
        model = self._model()
        launch = self._launch(model)
        if version is None and launch is not None and launch.image and release_of_image(launch.image):
            version = launch.image
            self._add("vllm", version, "image", launch.line)
        words = self._words(version, model, launch)
        env = self._env(launch)
        packages = self._first_of("package ", package_facts(self._reading))
        machine = machine_of(self._reading, self._run, launch, self._sizes(words))
        self._facts += machine.facts
        observed = self._observed()
        if version is None:
            self._missing.insert(0, _NO_VERSION)
        self._missing += _open_hardware(machine)
        return Stated(
            facts=tuple(dict.fromkeys(self._facts)),
            vllm=version,
            model=model,
            words=tuple(words),
            env=env,
            gpu=machine.gpu,
            gpus=machine.gpus,
            gpu_memory_gib=machine.memory_gib,
            nodes=machine.nodes,
            packages=packages,
            observed=observed,
            missing=tuple(self._missing),
            flags_from=self._flags_from,
        )

    def _add(self, name: str, value: str, how: str, line: LogLine | None = None) -> None:
        self._facts.append(Fact(name, value, how, line))

    def _note(self, text: str, how: str, line: LogLine | None = None) -> None:
        self._add(NOTE, text, how, line)

    # -- version and model -----------------------------------------------------------------------------------

    def _version(self) -> str | None:
        own = [fact for fact in banner_facts(self._speaker) if fact.name == "vllm"]
        around = [*text_versions(self._reading)]
        builds = {fact.value for fact in around if fact.how == "prose" and "+g" in fact.value}
        if len(builds) == 1:
            around = [fact for fact in around if fact.how != "prose" or fact.value in builds]
        prose = {_same_version(fact.value) for fact in around if fact.how == "prose"}
        if len(prose) > 1:
            # "0.23.0 works, 0.24.0 does not": neither is what this log ran, for all that is known.
            around = [fact for fact in around if fact.how != "prose"]
        candidates = [*own, *around]
        if not candidates:
            return None
        chosen = candidates[0]
        said = _same_version(chosen.value)
        for fact in candidates:
            how = fact.how
            if _same_version(fact.value) != said:
                if fact.how == "prose":
                    continue
                how = f"{fact.how} (contradicts {chosen.value})"
            self._add("vllm", fact.value, how, fact.line)
        return chosen.value

    def _model(self) -> str | None:
        candidates: list[Fact] = []
        if self._arguments is not None and self._arguments.model:
            candidates.append(Fact("model", self._arguments.model, "non-default args", self._arguments.line))
        if self._engine is not None and self._engine.model:
            candidates.append(Fact("model", self._engine.model, "engine config", self._engine.line))
        candidates += [fact for fact in banner_facts(self._speaker) if fact.name == "model"]
        candidates += [
            Fact("model", launch.model, "command", launch.line)
            for launch in self._launches
            if launch.model and launch.known is not None
        ]
        if not candidates and self._prose.model is not None:
            candidates.append(Fact("model", self._prose.model, "prose", self._prose.line))
        if not candidates:
            named = [*shown_models(self._reading)]
            candidates += named if len({fact.value for fact in named}) == 1 else []
        if not candidates:
            self._missing.append(_NO_MODEL)
            return None
        chosen = candidates[0].value
        for fact in candidates:
            other = fact.value != chosen and published_like([fact.value]) is not published_like([chosen])
            how = f"{fact.how} (contradicts {chosen})" if other else fact.how
            self._add("model", fact.value, how, fact.line)
        return chosen

    # -- flags -----------------------------------------------------------------------------------------------

    def _launch(self, model: str | None) -> ShownLaunch | None:
        """The command in the report that this run comes from."""
        meant = published_like([model]) if model else None
        fitting = [item for item in self._launches if item.model == model or (meant and item.known is meant)]
        if self._engine is not None:
            sizes = self._engine.number("tensor_parallel_size")
            fitting = [item for item in fitting if tensor_parallel(item.words) in (None, sizes)] or (
                fitting if self._arguments is not None else []
            )
        if fitting:
            if len({item.words for item in fitting}) > 1 and self._arguments is None:
                self._note("several commands are shown: the first one was taken", "command", fitting[0].line)
            return fitting[0]
        return self._launches[0] if len(self._launches) == 1 and model is None else None

    def _words(self, version: str | None, model: str | None, launch: ShownLaunch | None) -> list[str]:
        arguments = self._arguments
        words: list[str] | None = None
        how, line = "command", launch.line if launch is not None else None
        if arguments is not None and not (arguments.cut and launch is not None):
            made = words_of(arguments.values, table_of(version))
            for note in made.notes:
                self._note(note, "non-default args", arguments.line)
            words, how, line = made.words, "non-default args", arguments.line
            if arguments.cut:
                self._missing.append(_CUT_FLAGS)
                self._note("the line ends inside its list of arguments", how, line)
        elif launch is not None:
            words = flags_of(launch)
            for note in launch.notes:
                self._note(note, "command", launch.line)
        elif self._engine is not None:
            words = engine_words(self._engine, longest_context(model))
            how, line = "engine config", self._engine.line
            self._missing.append(_RESOLVED_ONLY)
        if words is None:
            # Sentences name some of the flags: the others are still missing.
            self._missing.append(_NO_FLAGS)
            words, how, line = [*self._prose.words], "prose", self._prose.line
            if not words:
                return []
        self._flags_from = how
        self._add("flags", " ".join(map(quote, words)), how, line)
        return words

    # -- surroundings ----------------------------------------------------------------------------------------

    def _env(self, launch: ShownLaunch | None) -> dict[str, str]:
        env: dict[str, str] = {}
        unknown: list[Fact] = []
        for fact in variable_facts(self._reading, self._run):
            name = fact.name.removeprefix("env ")
            if fact.how == "log line":
                unknown.append(fact)
            elif fact.how == "command" or name not in env:
                env[name] = fact.value
                self._facts.append(fact)
        if launch is not None:
            for name, value in launch.env.items():
                if masked_env({name: value})[name] == MASK:
                    continue
                env[name] = value
                self._add(f"env {name}", value, "command", launch.line)
        for name, value in self._prose.env.items():
            if name not in env:
                env[name] = value
                self._add(f"env {name}", value, "prose", self._prose.line)
        for fact in unknown:
            if fact.name.removeprefix("env ") not in env:
                env[fact.name.removeprefix("env ")] = fact.value
            self._facts.append(fact)
        return env

    def _first_of(self, prefix: str, facts: Iterable[Fact]) -> dict[str, str]:
        found: dict[str, str] = {}
        for fact in facts:
            name = fact.name.removeprefix(prefix)
            if name not in found:
                found[name] = fact.value
                self._facts.append(fact)
            elif found[name] != fact.value:
                self._add(fact.name, fact.value, f"{fact.how} (contradicts {found[name]})", fact.line)
        return found

    def _observed(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in resolved_values(self._engine):
            found[name] = value
            self._add(name, value, "engine config", self._engine.line if self._engine is not None else None)
        for fact in decision_facts(self._run):
            if fact.name in OF_TARGET and fact.name in found:
                fact = replace(fact, name=f"draft_{fact.name}")
            found[fact.name] = fact.value
            self._facts.append(fact)
        return found

    def _sizes(self, words: list[str]) -> Mapping[str, int]:
        """Parallel sizes and nodes, as the arguments or the engine's summary state them."""
        found: dict[str, int] = {}
        values = self._arguments.values if self._arguments is not None else {}
        for name in (
            "nnodes",
            "data_parallel_size",
            "data_parallel_size_local",
            "tensor_parallel_size",
            "pipeline_parallel_size",
        ):
            value: Any = values.get(name)
            if value is None and self._engine is not None:
                value = self._engine.number(name)
            if value is None:
                value = number_after(words, f"--{name.replace('_', '-')}")
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 100_000:
                found[name] = value
        return found


def _speaking(reading: LogReading, run: Run) -> Run:
    """The start itself, or the nearest other one where it says nothing: a log that was cut or turned over."""
    if _speaks(reading, run):
        return run
    runs = list(reading.runs)
    at = next((index for index, item in enumerate(runs) if item is run), len(runs))
    others = [*runs[:at][::-1], *runs[at + 1 :]]
    return next((item for item in others if _speaks(reading, item)), run)


def _speaks(reading: LogReading, run: Run) -> bool:
    return (
        read_engine_config(reading, run) is not None
        or read_default_args(reading, run) is not None
        or next(banner_facts(run), None) is not None
    )


def _same_version(text: str) -> str:
    """A version text in one spelling: release and build, without ``v`` and image name."""
    try:
        return resolve_vllm(text).version
    except InputError:
        return text


def _open_hardware(machine: Machine) -> list[str]:
    found = []
    if machine.gpu is None:
        found.append(_NO_GPU)
    if machine.gpus is None:
        found.append(_NO_COUNT)
    return found
