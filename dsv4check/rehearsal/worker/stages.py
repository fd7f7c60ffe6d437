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
from . import construction, extensions, flashmla, groups, kv_cache
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
    "weights: none are loaded or processed (names and shapes of the checkpoint are not compared)",
    "tokenizer, chat template and HTTP server",
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
        self._model: Any = None
        self._weights = 0

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
                self._stage(RehearsedStage.KV_CACHE_INIT, self._cache)
                self._stage(RehearsedStage.FLASHMLA, self._flashmla)
        except StageFailed:
            pass

    def not_simulated(self) -> list[str]:
        """What could hide a failure of this launch."""
        notes = list(_ALWAYS_STUBBED)
        notes += [f"{name} is not installed here: launches that use it are not judged" for name in sorted(self._absent)]
        parallel = getattr(self._config, "parallel_config", None)
        if parallel is not None and parallel.pipeline_parallel_size > 1:
            notes.append("pipeline parallelism: only one stage is built, and the cache is planned for it alone")
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
        groups.install(self._config)
        return describe_config(self._config)

    def _build(self) -> dict[str, Any]:
        self._model = construction.build_target(self._config)
        described = construction.describe_target(self._model)
        self._weights = described["parameter_bytes"]
        construction.check_lora(self._config, self._model)
        return described

    def _build_draft(self) -> dict[str, Any]:
        return construction.build_draft(self._config, self._model, uses_v2_runner(self._config))

    def _cache(self) -> dict[str, Any]:
        config = self._config
        v2_runner = uses_v2_runner(config)
        chosen = kv_cache.block_size(config)
        specs = kv_cache.specs_of(config, v2_runner)
        layers = config.compilation_config.static_forward_context
        self._backends = {name: layers[name].get_attn_backend().get_name() for name in specs if name in layers}
        summary = spec_summary(specs, self._backends)
        memory = kv_cache.memory_for_cache(config, self._weights)
        planned = kv_cache.plan(config, dict(specs), memory)
        # The engine core has put the smallest group's block size there; workers keep what they had.
        config.cache_config.block_size = chosen
        self._specs = planned_specs(planned, specs)
        self._caches = kv_cache.allocate(config, planned, v2_runner)
        return {
            "runner": "v2" if v2_runner else "v1",
            "block_size": chosen,
            "cache_dtype": config.cache_config.cache_dtype,
            "memory_bytes": memory,
            "num_blocks": planned.num_blocks,
            "groups": [
                {
                    "layers": len(group.layer_names),
                    "spec": type(group.kv_cache_spec).__name__,
                    "block_size": group.kv_cache_spec.block_size,
                }
                for group in planned.kv_cache_groups
            ],
            "specs": summary,
            "tensors": tensor_summary(self._caches, self._specs),
        }

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


def uses_v2_runner(config: Any) -> bool:
    """Which model runner the release selects; 0.20 reads the variable where it creates the runner."""
    if hasattr(type(config), "use_v2_model_runner"):
        return bool(config.use_v2_model_runner)
    import vllm.envs as envs

    return bool(getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False))


def describe_config(config: Any) -> dict[str, Any]:
    """The decisions of the engine config that people ask about."""
    parallel, scheduler, cache, model = (
        config.parallel_config,
        config.scheduler_config,
        config.cache_config,
        config.model_config,
    )
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    speculative = config.speculative_config
    return {
        "cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "attention_backend": getattr(backend, "name", None),
        "runner": "v2" if uses_v2_runner(config) else "v1",
        "max_model_len": model.max_model_len,
        "quantization": model.quantization,
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
        "expert_parallel": parallel.enable_expert_parallel,
        "executor": str(parallel.distributed_executor_backend),
        "hybrid_manager_disabled": scheduler.disable_hybrid_kv_cache_manager,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "speculative": None
        if speculative is None
        else {"method": speculative.method, "tokens": speculative.num_speculative_tokens},
    }


def planned_specs(planned: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """Layer name -> the spec the plan gives it: a promoted sliding window is no longer what the layer said."""
    final = dict(specs)
    for group in planned.kv_cache_groups:
        per_layer = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        for name in group.layer_names:
            final[name] = per_layer[name] if per_layer else group.kv_cache_spec
    return final


_SPEC_FIELDS = ("block_size", "head_size", "cache_dtype_str", "alignment", "compress_ratio", "tokens_per_state")


def spec_summary(specs: dict[str, Any], backends: dict[str, str]) -> list[dict[str, Any]]:
    """Each different spec once, with the number of layers that have it."""
    counts: dict[tuple[tuple[str, str], ...], int] = {}
    records: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for name, spec in specs.items():
        record = {
            "spec": type(spec).__name__,
            "backend": backends.get(name, ""),
            "page_bytes": spec.page_size_bytes,
            "dtype": str(getattr(spec, "dtype", "")).removeprefix("torch."),
            **{key: getattr(spec, key) for key in _SPEC_FIELDS if getattr(spec, key, None) is not None},
        }
        key = tuple((field, str(value)) for field, value in record.items())
        records[key] = record
        counts[key] = counts.get(key, 0) + 1
    return [{**record, "layers": counts[key]} for key, record in records.items()]


def tensor_summary(caches: dict[str, Any], specs: dict[str, Any]) -> list[dict[str, Any]]:
    """Each different cache tensor once: shape without the number of blocks, strides, dtype, and an example layer."""
    seen: dict[str, dict[str, Any]] = {}
    for name, cache in caches.items():
        if not hasattr(cache, "stride"):
            continue
        record = flashmla.describe(cache)
        key = f"{type(specs.get(name)).__name__} {record}"
        entry = seen.setdefault(key, {"layer": name, **record, "layers": 0})
        entry["layers"] += 1
    return list(seen.values())


def write_model(folder: Path, name: str, config: Any) -> Path:
    """A model directory with nothing but config.json. It keeps the model's name: vLLM looks at it in places."""
    parts = [re.sub(r"[^\w.\-]", "_", part) for part in Path(name).parts if part not in ("/", "..", ".")][-2:]
    target = folder.joinpath(*(parts or ["model"]))
    if target.suffix == ".json":
        target = target.with_suffix("")
    target.mkdir(parents=True, exist_ok=True)
    import json

    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def set_environment(launch: Launch) -> None:
    """The launch's own variables, over those of the child."""
    os.environ.update(launch.env)
