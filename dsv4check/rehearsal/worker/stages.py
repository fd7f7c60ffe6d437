"""The stages of one launch, in order. Runs in a process of its own, which ends afterwards."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..protocol import Launch, RehearsedStage, Status
from . import (
    construction,
    descriptions,
    device_init,
    extensions,
    flashmla,
    kv_cache,
    loading,
    plan_trials,
    ranks,
    sample,
    tokenizer,
    weights,
)
from .failures import Failure, HarnessLimit, read_failure
from .serve_command import Command, ParserExit
from .simulated_device import STATE

Send = Callable[..., None]
"""Sends one message of the protocol: ``send(kind, **content)``."""

_ALWAYS_STUBBED = (
    "compiled kernels: every operator is taken as present and none is called",
    "DeepGEMM: taken as available on every GPU",
    "NCCL, NVLink and the other ranks: process groups are stand-ins of the right size",
    "real memory: the cache is planned with what is left after the weights, nothing for activations and graphs",
    "values of weights, and what is done to them after loading",
    "the checkpoint's own tokenizer, chat template and HTTP server",
    "warm-up, kernel compilation and graph capture",
)


class StageFailed(Exception):
    """A stage has ended the launch; its result was sent."""


class Rehearsing:
    """One launch on its way through the stages."""

    def __init__(self, launch: Launch, folder: Path, send: Send, absent: frozenset[str]) -> None:
        self._launch = launch
        self._folder = folder
        self._send = send
        self._absent = absent
        self._config: Any = None
        self._folders: tuple[str, ...] = ()
        self._ranks: list[ranks.Rank] = []
        self._backends: dict[str, str] = {}
        self._specs: dict[str, Any] = {}
        self._caches: dict[str, Any] = {}

    def run(self) -> None:
        """All stages; every one sends its result. Never raises."""
        try:
            command = Command(self._launch.entrypoint, self._words())
            self._stage(RehearsedStage.ARGPARSE, lambda: self._parse(command))
            self._stage(RehearsedStage.ENGINE_CONFIG, lambda: self._configure(command))
            from vllm.config import set_current_vllm_config

            with set_current_vllm_config(self._config):
                with construction.meta_platform():
                    self._stage(RehearsedStage.MODEL_INIT, self._build)
                    self._stage(RehearsedStage.DRAFT_INIT, self._build_draft)
                    self._stage(RehearsedStage.WEIGHT_LOAD, self._load)
                self._stage(RehearsedStage.KV_CACHE_INIT, self._cache)
                self._stage(RehearsedStage.FLASHMLA, self._flashmla)
        except StageFailed:
            pass

    def not_simulated(self) -> list[str]:
        """What could hide a failure of this launch."""
        notes = list(_ALWAYS_STUBBED)
        notes += [f"{name} is not installed here: launches that use it are not judged" for name in sorted(self._absent)]
        if getattr(self._config, "kv_transfer_config", None) is not None:
            notes.append("the KV connector: it is not started and registers no cache")
        if extensions.CALLED:
            notes.append(f"operators that were called and refused: {', '.join(sorted(set(extensions.CALLED)))}")
        return notes

    def _stage(self, stage: RehearsedStage, work: Callable[[], dict[str, Any]]) -> None:
        self._send("started", stage=stage.value)
        # The default action of SIGALRM ends the process wherever it hangs; the process that forked it reports that.
        signal.setitimer(signal.ITIMER_REAL, self._launch.stage_timeout)
        began = time.monotonic()
        failure: Failure | None = None
        detail: dict[str, Any] = {}
        try:
            detail = work()
        except ParserExit as leaving:
            failure = Failure(True, "SystemExit", str(leaving), "")
        except FlashMlaRefusal as refusal:
            failure = Failure(True, "RuntimeError", str(refusal), "FlashMLA: csrc/api/sparse_decode.h")
            detail = refusal.detail
        except weights.LoadRefused as refusal:
            failure = read_failure(refusal.error, self._absent)
            detail = refusal.detail
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            failure = read_failure(error, self._absent)
            if not failure.verdict:
                traceback.print_exception(error)  # for whoever debugs the rehearsal: the parent keeps the tail
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        status = Status.OK if failure is None else Status.FAILED if failure.verdict else Status.UNAVAILABLE
        self._send(
            "result",
            stage=stage.value,
            status=status.value,
            seconds=round(time.monotonic() - began, 3),
            exception=failure.exception if failure and failure.verdict else "",
            message=failure.message if failure else "",
            where=failure.where if failure else "",
            detail=detail,
        )
        if failure is not None:
            raise StageFailed

    def _words(self) -> list[str]:
        """The command's words, with the folders of the models and files put in."""
        paths = {}
        for number, (name, content) in enumerate(self._launch.models):
            paths[f"{{model:{number}}}"] = str(write_model(self._folder / f"models{number}", name, content))
        self._folders = tuple(paths.values())
        for number, (name, text) in enumerate(self._launch.files):
            for marker, path in paths.items():
                text = text.replace(marker, path)
            target = self._folder / f"files{number}" / Path(name).name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            paths[f"{{file:{number}}}"] = str(target)
        words = []
        for word in self._launch.argv:
            for marker, path in paths.items():
                word = word.replace(marker, path)
            words.append(word)
        return words

    @staticmethod
    def _parse(command: Command) -> dict[str, Any]:
        command.parse()
        return {}

    def _configure(self, command: Command) -> dict[str, Any]:
        self._config = command.engine_config()
        return descriptions.describe_config(self._config)

    def _build(self) -> dict[str, Any]:
        device_init.check(self._config)
        if not ranks.uses_v2_runner(self._config):
            construction.check_v1_drafter(self._config)
        self._ranks = ranks.build(self._config)
        return ranks.describe(self._ranks)

    def _build_draft(self) -> dict[str, Any]:
        return ranks.build_draft(self._config, self._ranks)

    def _load(self) -> dict[str, Any]:
        loader, target = self._ranks[0].target.loader, self._ranks[0].target.model
        detail = self._load_by_name(loader)
        construction.check_lora(self._config, target)
        return detail

    def _load_by_name(self, loader: Any) -> dict[str, Any]:
        if not any(self._launch.weights):
            return {"applies": False, "why": "no checkpoint is known here"}
        if not weights.reads_checkpoint(loader):
            return {"applies": False, "why": f"{type(loader).__name__} does not read the checkpoint"}
        return loading.load_all(self._config, self._ranks, self._launch, self._folders)

    def _cache(self) -> dict[str, Any]:
        config = self._config
        v2_runner = ranks.uses_v2_runner(config)
        ranks.enter(config, self._ranks[0])
        chosen = kv_cache.block_size(config)
        for rank in self._ranks:
            ranks.enter(config, rank)
            rank.specs = kv_cache.specs_of(config, v2_runner)
            for name in rank.specs:
                if name in rank.layers:
                    self._backends[name] = rank.layers[name].get_attn_backend().get_name()
        specs = {name: spec for rank in self._ranks for name, spec in rank.specs.items()}
        summary = descriptions.spec_summary(specs, self._backends)
        trials = self._trials() if self._launch.plan_trials else {}
        memory = [kv_cache.memory_for_cache(config, construction.held_bytes(rank.target.model)) for rank in self._ranks]
        plans = kv_cache.plan(config, [dict(rank.specs) for rank in self._ranks], memory)
        # The engine core has put the smallest group's block size there; workers keep what they had.
        config.cache_config.block_size = chosen
        planned = min(plan.num_blocks for plan in plans)
        if self._launch.sample:
            for plan in plans:
                sample.shrink(plan)
        for rank, plan in zip(self._ranks, plans, strict=True):
            ranks.enter(config, rank)
            self._specs.update(descriptions.planned_specs(plan, rank.specs))
            self._caches.update(kv_cache.allocate(config, plan, v2_runner))
        return {
            "runner": "v2" if v2_runner else "v1",
            "block_size": chosen,
            "cache_dtype": config.cache_config.cache_dtype,
            "memory_bytes": min(memory),
            "num_blocks": planned,
            "groups": [descriptions.group_summary(group) for plan in plans for group in plan.kv_cache_groups],
            "specs": summary,
            "tensors": descriptions.tensor_summary(self._caches, self._specs),
            **trials,
            **({"sample": self._sample(plans)} if self._launch.sample else {}),
        }

    def _sample(self, plans: list[Any]) -> dict[str, Any]:
        groups = {
            name: number
            for plan in plans
            for number, group in enumerate(plan.kv_cache_groups)
            for name in group.layer_names
        }
        described = sample.describe(self._config, self._caches, self._specs, groups)
        return {"blocks": min(plan.num_blocks for plan in plans), **described}

    def _trials(self) -> dict[str, Any]:
        specs = [dict(rank.specs) for rank in self._ranks]
        trials = plan_trials.run(self._config, specs, self._launch.plan_trials)
        layers = plan_trials.describe_layers(specs)
        return {"basis": plan_trials.describe_basis(self._config), "layers": layers, "trials": trials}

    def _flashmla(self) -> dict[str, Any]:
        if STATE.capability[0] not in (9, 10):
            return {"applies": False, "why": f"FlashMLA has no kernels for SM {STATE.capability[0]}.x"}
        names = flashmla.packed_caches(self._specs, self._backends)
        if not names:
            return {"applies": False, "why": "no layer hands a packed cache to FlashMLA"}
        checked = [name for name in names if hasattr(self._caches.get(name), "dim")]
        if not checked:
            raise HarnessLimit("the packed layers hold no cache tensor after allocation")
        refused = {name: said for name in checked if (said := flashmla.violation(self._caches[name]))}
        if refused:
            name, said = next(iter(refused.items()))
            detail = {"layers": sorted(refused), "example": {"layer": name, **flashmla.describe(self._caches[name])}}
            raise FlashMlaRefusal(said, detail)
        return {"applies": True, "layers": len(checked), "state_bytes": flashmla.STATE_BYTES}


class FlashMlaRefusal(Exception):
    """A cache tensor breaks FlashMLA's contract."""

    def __init__(self, said: str, detail: dict[str, Any]) -> None:
        super().__init__(said)
        self.detail = detail


def write_model(folder: Path, name: str, config: Any) -> Path:
    """A model directory with config.json and a stand-in tokenizer. It keeps its name: vLLM looks at it in places."""
    parts = [re.sub(r"[^\w.\-]", "_", part) for part in Path(name).parts if part not in ("/", "..", ".")][-2:]
    target = folder.joinpath(*(parts or ["model"]))
    if target.suffix == ".json":
        target = target.with_suffix("")
    target.mkdir(parents=True, exist_ok=True)
    import json

    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer.write(target)
    return target


def set_environment(launch: Launch) -> None:
    """The launch's own variables, over those of the child."""
    os.environ.update(launch.env)
