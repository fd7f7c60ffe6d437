"""Launches whose cache planning is recorded, and the trials that each is planned with again and again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import Version

from dsv4check.inputs.checkpoint import bundled_config
from dsv4check.inputs.gpu import find_gpu
from dsv4check.rehearsal.protocol import Launch, SimulatedDevice

MEMORY_MIB: Final = 288_000
"""Of every simulated GPU: enough for one short request of each launch on one GPU, so that planning is reached."""
LENGTH: Final = 4096
"""``--max-model-len`` of the launch itself; the trials set their own."""
_TIMEOUT: Final = 300.0


@dataclass(frozen=True)
class Planned:
    """One launch that is planned."""

    model: str
    words: tuple[str, ...]
    gpu: str = "H200"
    gpus: int = 8
    env: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()
    """Of config.json."""
    since: str = "0.20.0"

    @property
    def draft_tokens(self) -> int:
        """Drafts of a step; 0 without speculative decoding."""
        if "--speculative-config" not in self.words:
            return 0
        config = json.loads(self.words[self.words.index("--speculative-config") + 1])
        return int(config["num_speculative_tokens"])

    @property
    def argv(self) -> tuple[str, ...]:
        """The words after the model."""
        return (*self.words, "--max-model-len", str(LENGTH))


_FLASH: Final = "deepseek-ai/DeepSeek-V4-Flash"
_PRO: Final = "deepseek-ai/DeepSeek-V4-Pro"
_FP8: Final = ("--kv-cache-dtype", "fp8")
_OFF: Final = "--disable-hybrid-kv-cache-manager"
_V1: Final = ("VLLM_USE_V2_MODEL_RUNNER", "0")
_V2: Final = ("VLLM_USE_V2_MODEL_RUNNER", "1")
_BLOCK_FIRST: Final = ("VLLM_KV_CACHE_LAYOUT", "BLHNC")
"""The layout that the indexer of C4 layers asks for; without C4 layers nobody does."""
_FLASHINFER: Final = ("--attention-backend", "FLASHINFER_MLA_SPARSE_DSV4")


def _parallel(tensor: int, pipeline: int = 1, data: int = 1) -> tuple[str, ...]:
    words: tuple[str, ...] = ("--tensor-parallel-size", str(tensor))
    words += ("--pipeline-parallel-size", str(pipeline)) if pipeline > 1 else ()
    return words + (("--data-parallel-size", str(data)) if data > 1 else ())


def _draft(method: str, tokens: int) -> tuple[str, ...]:
    return ("--speculative-config", json.dumps({"method": method, "num_speculative_tokens": tokens}))


def _hidden_states(layers: int) -> tuple[str, ...]:
    """Intermediate hidden states of so many layers kept in a cache of their own (method ``extract_hidden_states``)."""
    config = {"eagle_aux_hidden_state_layer_ids": list(range(1, layers + 1))}
    chosen = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": config},
    }
    connector = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": "/tmp/hidden_states"},
    }
    return ("--speculative-config", json.dumps(chosen), "--kv-transfer-config", json.dumps(connector))


def _config(**changes: Any) -> tuple[str, ...]:
    return ("--hf-overrides", json.dumps(changes))


_NO_C4: Final = (("compress_ratios", [0] + [128] * 43),)
_ODD: Final = _config(num_hidden_layers=17, compress_ratios=[0, 0, *[4, 4, 128] * 5, 0])
_FEW_C4: Final = (("num_hidden_layers", 26), ("compress_ratios", [0, *[4, 128, 128, 128, 128] * 5, 0]))
_MODULES: Final = (("num_nextn_predict_layers", 2), ("compress_ratios", [0, 0, *[4, 128] * 20, 4, 0, 0]))
_TWO_MTP: Final = _config(**dict(_MODULES))

LAUNCHES: Final[dict[str, Planned]] = {
    "flash": Planned(_FLASH, (*_parallel(4), *_FP8)),
    "flash-tp1-small-steps": Planned(
        _FLASH, (*_FP8, "--max-num-batched-tokens", "2048", "--max-num-seqs", "32"), gpus=1
    ),
    "flash-mtp-1": Planned(_FLASH, (*_parallel(8), *_FP8, *_draft("mtp", 1))),
    "flash-mtp-2": Planned(_FLASH, (*_parallel(2), *_FP8, *_draft("mtp", 2))),
    "flash-mtp-3-sync": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 3), "--no-async-scheduling")),
    "flash-two-mtp-layers": Planned(_FLASH, (*_parallel(4), *_FP8, *_TWO_MTP, *_draft("mtp", 4))),
    "flash-two-mtp-modules": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 4)), changes=_MODULES),
    "flash-two-mtp-modules-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8, *_draft("mtp", 2)), changes=_MODULES),
    "flash-dp-ep": Planned(_FLASH, (*_parallel(1, data=8), "--enable-expert-parallel", *_FP8)),
    "flash-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8)),
    "flash-pp2-mtp": Planned(_FLASH, (*_parallel(2, 2), *_FP8, *_draft("mtp", 1))),
    "flash-pp4": Planned(_FLASH, (*_parallel(2, 4), *_FP8)),
    "flash-pp4-uneven": Planned(
        _FLASH, (*_parallel(1, 4), *_FP8), env=(("VLLM_PP_LAYER_PARTITION", "3,17,21,2"),), gpus=4
    ),
    "flash-pp2-sync": Planned(_FLASH, (*_parallel(4, 2), *_FP8, "--no-async-scheduling")),
    "flash-dcp2": Planned(_FLASH, (*_parallel(4), "--decode-context-parallel-size", "2", *_FP8)),
    "flash-runner-v1": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 1)), env=(_V1,)),
    "flash-runner-v1-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8), env=(_V1,)),
    "flash-runner-v2": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 1)), env=(_V2,)),
    "flash-runner-v2-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8), env=(_V2,)),
    "flash-block-128": Planned(_FLASH, (*_parallel(4), *_FP8, "--block-size", "128")),
    "flash-block-512": Planned(_FLASH, (*_parallel(4), *_FP8, "--block-size", "512")),
    "flash-hybrid-off": Planned(_FLASH, (*_parallel(4), *_FP8, _OFF)),
    "flash-hybrid-off-mtp": Planned(_FLASH, (*_parallel(4), *_FP8, _OFF, *_draft("mtp", 1))),
    "flash-hybrid-off-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8, _OFF)),
    "flash-no-c4": Planned(_FLASH, (*_parallel(4), *_FP8), changes=_NO_C4),
    "flash-no-c4-mtp": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 1)), changes=_NO_C4),
    "flash-no-c4-block-first": Planned(
        _FLASH, (*_parallel(4), *_FP8), env=(_BLOCK_FIRST,), changes=_NO_C4, since="0.29.0"
    ),
    "flash-few-c4": Planned(_FLASH, (*_parallel(4), *_FP8), changes=_FEW_C4),
    "flash-odd": Planned(_FLASH, (*_parallel(4), *_FP8, *_ODD)),
    "flash-odd-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8, *_ODD)),
    "flash-hidden-states": Planned(
        _FLASH, (*_parallel(4), *_FP8, *_hidden_states(2), "--no-enable-chunked-prefill"), since="0.22.0"
    ),
    "flash-0731": Planned(f"{_FLASH}-0731", (*_parallel(4), *_FP8)),
    "flash-0731-dspark": Planned(f"{_FLASH}-0731", (*_parallel(4), *_FP8, *_draft("dspark", 5)), since="0.25.0"),
    "flash-dspark": Planned(f"{_FLASH}-DSpark", (*_parallel(8), *_FP8, *_draft("dspark", 5)), since="0.25.0"),
    "flash-base": Planned(f"{_FLASH}-Base", (*_parallel(8), *_FP8)),
    "pro": Planned(_PRO, (*_parallel(8), *_FP8)),
    "pro-tp16": Planned(_PRO, (*_parallel(16), *_FP8), gpus=16),
    "pro-pp2": Planned(_PRO, (*_parallel(4, 2), *_FP8, *_draft("mtp", 1))),
    "pro-0813": Planned(f"{_PRO}-0813", (*_parallel(8), *_FP8, *_draft("dspark", 5)), since="0.25.0"),
    "vision-exp": Planned(f"{_FLASH}-Vision-Exp", (*_parallel(8), *_FP8), since="0.25.0"),
    "pro-b200": Planned(_PRO, (*_parallel(8), *_FP8), "B200"),
    "flash-nvfp4": Planned("nvidia/DeepSeek-V4-Flash-NVFP4", (*_parallel(4), *_FP8, *_draft("mtp", 1)), "B200"),
    "flash-mxfp4-indexer": Planned(
        _FLASH, (*_parallel(4), *_FP8, "--attention-config.indexer_kv_dtype", "mxfp4"), "B200"
    ),
    "flash-fp4-indexer": Planned(
        _FLASH, (*_parallel(4), *_FP8, "--attention-config.use_fp4_indexer_cache", "true"), "B200"
    ),
    "flash-plain-bf16": Planned(_FLASH, (*_parallel(4), "--kv-cache-dtype", "bfloat16", *_FLASHINFER), "B200"),
    "flash-plain-fp8": Planned(_FLASH, (*_parallel(4), *_FP8, *_FLASHINFER), "B200"),
    "flash-plain-fp8-mtp": Planned(_FLASH, (*_parallel(4), *_FP8, *_FLASHINFER, *_draft("mtp", 1)), "B200"),
    "flash-plain-fp8-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8, *_FLASHINFER), "B200"),
    "flash-plain-hybrid-off": Planned(
        _FLASH, (*_parallel(4), "--kv-cache-dtype", "bfloat16", *_FLASHINFER, _OFF), "B200"
    ),
    "flash-rtx": Planned(_FLASH, (*_parallel(4), *_FP8), "RTX PRO 6000"),
    "flash-rtx-mtp": Planned(_FLASH, (*_parallel(4), *_FP8, *_draft("mtp", 2)), "RTX PRO 6000"),
    "flash-rtx-pp2": Planned(_FLASH, (*_parallel(2, 2), *_FP8), "RTX PRO 6000"),
}
"""One GPU after the other: a child of the rehearsal serves one compute capability."""

_GIB: Final = 1 << 30


def _trial(
    gib: int, more: int, step: int, length: int, batched: int, override: int | None = None, limit: int = 1 << 20
) -> dict[str, Any]:
    found: dict[str, Any] = {"memory": gib * _GIB + more, "max_model_len": length, "max_num_batched_tokens": batched}
    found |= {"step": step} if step else {}
    found |= {"limit": limit} if length == -1 else {}
    return found | ({} if override is None else {"num_gpu_blocks_override": override})


TRIALS: Final[tuple[dict[str, Any], ...]] = (
    _trial(2, 0, 0, 1000, 256),
    _trial(2, 777, 0, 4097, 2048),
    _trial(2, 0, 0, -1, 2048),
    _trial(3, 1, 100_000_007, 32768, 512),
    _trial(3, -1, 0, -1, 8192, limit=163_840),
    _trial(4, 0, 0, 1_048_576, 2048),
    _trial(6, 12_345, -90_000_001, 131_072, 8192),
    _trial(6, 0, 0, -1, 16384),
    _trial(9, 0, 0, 1_048_576, 256),
    _trial(9, 54_321, 0, 200_000, 16384),
    _trial(13, 0, 1_000_000_001, -1, 32768),
    _trial(16, 7, 0, 32768, 32768),
    _trial(16, 0, -500_000_003, 65_536, 16384),
    _trial(20, 0, 0, 65_536, 8192, 100),
    _trial(20, 0, 0, 65_536, 8192, 5000),
    _trial(20, 0, 0, 1024, 256, 40_000),
    _trial(20, 0, 0, -1, 2048, 700),
    _trial(24, 1, 0, 393_216, 4096),
    _trial(33, 0, 0, -1, 1024, limit=300_001),
    _trial(33, 99, 2_000_000_011, 1_048_576, 8192),
    _trial(50, 0, 0, 500_000, 32768),
    _trial(61, 12_345, 0, 1_048_576, 16384),
    _trial(61, 0, -3_000_000_019, 99_999, 2048),
    _trial(80, 0, 0, -1, 32768),
    _trial(100, 0, 0, 1_048_576, 32768),
    _trial(100, 3, 0, 4096, 1000),
)
"""``memory`` is that of the first pipeline stage; each further one has ``step`` bytes more than the one before."""


def memory_of(trial: dict[str, Any], stages: int) -> list[int]:
    """Bytes for the cache on a GPU of each stage."""
    return [trial["memory"] + stage * trial.get("step", 0) for stage in range(stages)]


def launches_of(release: str) -> dict[str, Planned]:
    """The launches whose model the release knows."""
    return {name: one for name, one in LAUNCHES.items() if Version(one.since) <= Version(release)}


def stages_of(planned: Planned) -> int:
    """Pipeline stages."""
    words = planned.words
    return int(words[words.index("--pipeline-parallel-size") + 1]) if "--pipeline-parallel-size" in words else 1


def launch_of(planned: Planned, trials: tuple[dict[str, Any], ...] = TRIALS) -> Launch:
    """What the rehearsal is asked."""
    gpu = find_gpu(planned.gpu)
    assert gpu is not None
    assert gpu.capability is not None
    stages = stages_of(planned)
    return Launch(
        entrypoint="serve",
        argv=("{model:0}", *planned.argv),
        device=SimulatedDevice("{}.{}".format(*gpu.capability), count=planned.gpus, memory_mib=MEMORY_MIB),
        env=dict(planned.env),
        models=((planned.model, {**bundled_config(planned.model), **dict(planned.changes)}),),
        weights=(None,),
        plan_trials=tuple({**trial, "memory": memory_of(trial, stages)} for trial in trials),
        stage_timeout=_TIMEOUT,
    )
