"""Random launches for comparing the rules with rehearsals: seeded, over flags, environment, models, GPUs and releases.

Two kinds are mixed: deployments as people write them, with each choice drawn from what the release offers (and, more
rarely, from what it does not), and single flags of the release's own parser with values good and bad. The generator
knows spellings and ranges only; it asks neither the rules nor their facts what would work.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from dsv4check.releases.flag_table import FlagSpec, load_flag_table

GPUS: Final = {
    "7.5": ("T4",),
    "8.0": ("A100-80GB",),
    "8.6": ("A10",),
    "8.9": ("L40S",),
    "9.0": ("H200", "H100", "H20"),
    "10.0": ("B200",),
    "10.3": ("B300",),
    "11.0": ("Thor",),
    "12.0": ("RTX PRO 6000",),
    "12.1": ("GB10",),
}
"""Compute capability -> names of GPUs that have it."""
FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
_MODELS: Final = {
    FLASH: 34,
    f"{FLASH}-0731": 22,
    PRO: 10,
    f"{PRO}-0813": 8,
    f"{FLASH}-DSpark": 6,
    "nvidia/DeepSeek-V4-Flash-NVFP4": 8,
    f"{FLASH}-Base": 4,
    f"{FLASH}-Vision-Exp": 3,
    "deepseek-ai/DeepSeek-V4.1-Flash": 5,
}
_ONE_FLAG: Final = 0.25
"""Share of launches that are a plain deployment with a few flags of the parser."""
_DRAFTED: Final = 0.35
"""Share of deployments that have a speculative config."""
_SKIPPED: Final = frozenset({"help", "config", "model", "model_tag", "tokenizer", "hf_config_path"})
"""Flags that name files, or end the program."""


def samples(seed: int, release: str, sms: tuple[str, ...], count: int) -> Iterator[dict[str, Any]]:
    """``count`` launches of a release as batch lines; the GPUs take turns. The same arguments give the same lines."""
    source = random.Random(f"{seed} {release}")
    flags = {spec.flag: spec for spec in load_flag_table(release).by_dest.values() if spec.dest not in _SKIPPED}
    for number in range(count):
        yield {
            "id": f"{release}/{seed}/{number}",
            "vllm": release,
            **_Launch(source, flags).line(sms[number % len(sms)]),
        }


class _Launch:
    """One launch being put together."""

    def __init__(self, source: random.Random, flags: dict[str, FlagSpec]) -> None:
        self._random = source
        self._flags = flags
        self._args: list[str] = []
        self._env: dict[str, str] = {}
        self._boldness = source.choice((0.15, 0.3, 1.0))
        """Scales how often a choice is made at all: launches with everything in them rarely get far."""

    def line(self, sm: str) -> dict[str, Any]:
        """The launch as a batch line."""
        model = self._weighted(_MODELS)
        if self._random.random() < _ONE_FLAG:
            self._add("--tensor-parallel-size", 8)
            self._add("--kv-cache-dtype", "fp8")
            for _ in range(self._random.choice((1, 1, 2, 3))):
                self._any_flag()
        else:
            self._deployment(model)
        gpu = self._random.choice(GPUS[sm])
        gpus = self._weighted({8: 90, 4: 6, 16: 3, 1: 1})
        return {"model": model, "args": self._args, "env": self._env, "gpu": gpu, "gpus": gpus}

    def _deployment(self, model: str) -> None:
        for part in (self._parallel, self._cache, self._scheduling, self._experts, self._kernels, self._environment):
            part()
        if self._random.random() < _DRAFTED:
            self._speculative(model)
        if self._chance(0.12):
            self._connector()
        if self._chance(0.15):
            self._any_flag()

    def _parallel(self) -> None:
        self._add("--tensor-parallel-size", self._weighted({8: 66, 4: 14, 2: 5, 1: 5, 16: 6, 32: 2, 3: 1, 64: 1}))
        if self._chance(0.12):
            self._add("--pipeline-parallel-size", self._pick((2, 2, 2, 4, 8)))
        if self._chance(0.18):
            self._add("--data-parallel-size", self._pick((2, 2, 4, 8, 16)))
        if self._chance(0.35):
            self._add("--enable-expert-parallel")
        if self._chance(0.1):
            self._add("--nnodes", 2)
            self._add("--node-rank", self._pick((0, 1)))
            self._add("--master-addr", "10.0.0.1")
        if self._chance(0.06):
            self._add("--decode-context-parallel-size", self._pick((2, 4, 8)))
        if self._chance(0.08):
            self._add("--enable-eplb")
            if self._chance(0.5):
                self._add("--eplb-config", json.dumps({"num_redundant_experts": self._pick((0, 8, 16, 32, 5))}))
        if self._chance(0.05):
            self._add("--enable-dbo")

    def _cache(self) -> None:
        choices = self._choices("--kv-cache-dtype")
        self._add("--kv-cache-dtype", self._weighted({"fp8": 78, "auto": 6, "bfloat16": 4, self._pick(choices): 12}))
        if self._chance(0.3):
            self._add("--block-size", self._pick((256, 256, 64, 128, 512, 1024, 16, 32, 8, 384, 192, 100, 1)))
        if self._chance(0.12):
            self._add(self._pick(("--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager")))
        if self._chance(0.15):
            self._add(self._pick(("--enable-prefix-caching", "--no-enable-prefix-caching")))
        if self._chance(0.3):
            self._add("--gpu-memory-utilization", self._pick((0.9, 0.95, 0.85, 0.5, 0.98, 1.0)))
        if self._chance(0.04):
            self._add("--kv-cache-memory-bytes", self._pick(("4G", "20G", 10**9)))

    def _scheduling(self) -> None:
        if self._chance(0.5):
            self._add("--max-model-len", self._pick((8192, 65536, 131072, 1048576, "128k", "auto", -1, 2097152)))
        if self._chance(0.3):
            self._add("--max-num-seqs", self._pick((1, 8, 64, 128, 256, 1024, 4096)))
        if self._chance(0.3):
            self._add("--max-num-batched-tokens", self._pick((256, 2048, 8192, 16384, 32768, 131072)))
        if self._chance(0.15):
            self._add(self._pick(("--enable-chunked-prefill", "--no-enable-chunked-prefill")))
        if self._chance(0.15):
            self._add(self._pick(("--async-scheduling", "--no-async-scheduling")))
        if self._chance(0.15):
            self._add("--enforce-eager")
        if self._chance(0.2):
            modes = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
            self._add("--compilation-config", json.dumps({"cudagraph_mode": self._pick(modes)}))
        if self._chance(0.1):
            self._add("--enable-lora")

    def _experts(self) -> None:
        if self._chance(0.3):
            self._add("--moe-backend", self._pick(self._choices("--moe-backend")))
        if self._chance(0.12):
            self._add("--all2all-backend", self._pick(self._choices("--all2all-backend")))
        if self._chance(0.08):
            self._add("--quantization", self._pick(("deepseek_v4_fp8", "fp8", "mxfp4", "modelopt", "humming", "awq")))
        if self._chance(0.05):
            self._add("--dtype", self._pick(self._choices("--dtype")))

    def _kernels(self) -> None:
        if self._chance(0.3):
            self._add("--attention-backend", self._pick(_BACKENDS))
        if self._chance(0.1):
            key = self._pick(("use_fp4_indexer_cache", "indexer_kv_dtype"))
            value = True if key == "use_fp4_indexer_cache" else self._pick(("fp8", "mxfp4", "auto", "bfloat16"))
            self._add("--attention-config", json.dumps({key: value}))

    def _environment(self) -> None:
        if self._chance(0.12):
            self._env["VLLM_USE_V2_MODEL_RUNNER"] = self._pick(("0", "1"))
        if self._chance(0.05):
            self._env["VLLM_USE_DEEP_GEMM"] = self._pick(("0", "1"))
        if self._chance(0.04):
            self._env["VLLM_KV_CACHE_LAYOUT"] = self._pick(("NHD", "HND"))
        if self._chance(0.03):
            self._env["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
        if self._chance(0.03):
            self._env["VLLM_ATTENTION_BACKEND"] = self._pick(_BACKENDS)

    def _speculative(self, model: str) -> None:
        usual = "dspark" if any(word in model for word in ("0731", "0813", "DSpark", "4.1", "Vision")) else "mtp"
        others = ("mtp", "dspark", "ngram", "deepseek_mtp", "eagle", "eagle3", "suffix", "draft_model", "dflash")
        config: dict[str, Any] = {"method": self._pick(others) if self._chance(0.3) else usual}
        if not self._chance(0.1):
            config["num_speculative_tokens"] = self._weighted({1: 30, 2: 12, 3: 15, 5: 33, 7: 5, 8: 3, 0: 2})
        extra: dict[str, tuple[Any, ...]] = {
            "draft_tensor_parallel_size": (1, 8),
            "draft_sample_method": ("greedy", "probabilistic"),
            "rejection_sample_method": ("standard", "synthetic", "block"),
            "model": (model, f"{FLASH}-DSpark", FLASH),
            "max_model_len": (8192,),
            "moe_backend": ("auto", "triton", "deep_gemm_mega_moe"),
            "attention_backend": ("FLASHMLA_SPARSE", "FLASH_ATTN"),
            "kv_cache_dtype": ("fp8", "auto", "bfloat16"),
            "disable_padded_drafter_batch": (True,),
            "use_local_argmax_reduction": (True,),
            "quantization": ("fp8", "deepseek_v4_fp8"),
        }
        for key, values in extra.items():
            if self._chance(0.06):
                config[key] = self._pick(values)
        self._add("--speculative-config", json.dumps(config))

    def _connector(self) -> None:
        names = ("NixlConnector", "OffloadingConnector", "LMCacheConnectorV1", "MooncakeConnector", "MultiConnector")
        name = self._pick((*names, "SharedStorageConnector", "ExampleConnector", "P2pNcclConnector"))
        role = self._pick(("kv_both", "kv_producer", "kv_consumer"))
        self._add("--kv-transfer-config", json.dumps({"kv_connector": name, "kv_role": role}))

    def _any_flag(self) -> None:
        flag = self._pick(sorted(self._flags))
        spec = self._flags[flag]
        if not spec.takes_value:
            self._args.append(self._pick(spec.options))
            return
        value = self._value(spec)
        self._args += [self._pick(spec.options), value] if self._chance(0.7) else [f"{flag}={value}"]

    def _value(self, spec: FlagSpec) -> str:
        if spec.choices:
            return str(self._pick((*spec.choices, *spec.choices, "nonsense")))
        if spec.is_json:
            return str(self._pick(("{}", '{"nonsense": 1}', "null", "[1]", "{broken")))
        if "int" in spec.kind:
            return str(self._pick((0, 1, 2, 4, 8, 64, -1, 4096, "1k", "x", "1.5")))
        if "float" in spec.kind:
            return str(self._pick((0.0, 0.5, 0.9, 1.0, 1.5, -1.0, "x")))
        return str(self._pick(("auto", "nonsense", "a,b", "10.0.0.1")))

    def _choices(self, flag: str) -> tuple[str, ...]:
        spec = self._flags.get(flag)
        known = tuple(str(choice) for choice in (spec.choices or ())) if spec is not None else ()
        return (*known, "nonsense") if len(known) > 1 and self._chance(0.1) else known or ("auto",)

    def _add(self, flag: str, value: Any = None) -> None:
        self._args.append(flag)
        if value is not None:
            self._args.append(str(value))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share * self._boldness

    def _pick(self, items: Any) -> Any:
        return self._random.choice(items)

    def _weighted(self, items: dict[Any, int]) -> Any:
        return self._random.choices(list(items), list(items.values()))[0]


_BACKENDS: Final = (
    "FLASHMLA_SPARSE",
    "FLASHMLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "FLASHMLA",
    "FLASH_ATTN",
    "TRITON_MLA",
    "FLASHINFER",
    "FLASH_ATTN_MLA",
    "CUTLASS_MLA",
    "nonsense",
)
