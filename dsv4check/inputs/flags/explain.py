"""What was probably meant by a name a release does not know, and which releases know it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsv4check.releases.flag_table import FlagSpec, FlagTable
from dsv4check.releases.history import NO_RELEASE, flag_history, release_data

"""A specifier that no release satisfies: an edit to it is never offered."""

RENAMED: Final[Mapping[str, str]] = {
    # How other servers, older releases and shorthand call the flags of vLLM.
    "--tp": "--tensor-parallel-size",
    "--tp-size": "--tensor-parallel-size",
    "--tensor-parallel": "--tensor-parallel-size",
    "--pp": "--pipeline-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--dp": "--data-parallel-size",
    "--dp-size": "--data-parallel-size",
    "--dcp": "--decode-context-parallel-size",
    "--dcp-size": "--decode-context-parallel-size",
    "--ep": "--enable-expert-parallel",
    "--enable-ep": "--enable-expert-parallel",
    "--expert-parallel": "--enable-expert-parallel",
    "--cc": "--compilation-config",
    "--ac": "--attention-config",
    "--context-length": "--max-model-len",
    "--max-context-len": "--max-model-len",
    "--max-context-length": "--max-model-len",
    "--max-seq-len": "--max-model-len",
    "--max-length": "--max-model-len",
    "--max-model-length": "--max-model-len",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--gpu-memory-util": "--gpu-memory-utilization",
    "--gpu-mem-util": "--gpu-memory-utilization",
    "--kv-cache-type": "--kv-cache-dtype",
    "--kv-dtype": "--kv-cache-dtype",
    "--cache-dtype": "--kv-cache-dtype",
    "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    "--cuda-graph-bs": "--cudagraph-capture-sizes",
    "--cuda-graph-max-bs": "--max-cudagraph-capture-size",
    "--max-running-requests": "--max-num-seqs",
    "--max-batch-size": "--max-num-seqs",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--max-prefill-tokens": "--max-num-batched-tokens",
    "--moe-runner-backend": "--moe-backend",
    "--moe-a2a-backend": "--all2all-backend",
    "--all-to-all-backend": "--all2all-backend",
    "--attn-backend": "--attention-backend",
    "--disable-cuda-graph": "--enforce-eager",
    "--disable-radix-cache": "--no-enable-prefix-caching",
    "--disable-log-requests": "--no-enable-log-requests",
    "--enable-prefix-cache": "--enable-prefix-caching",
    "--model-path": "--model",
    "--tokenizer-path": "--tokenizer",
    "--dist-init-addr": "--master-addr",
    "--tool-parser": "--tool-call-parser",
    "--auto-tool-choice": "--enable-auto-tool-choice",
    "--speculative-algorithm": "--spec-method",
    "--speculative-method": "--spec-method",
    "--speculative-model": "--spec-model",
    "--speculative-draft-model-path": "--spec-model",
    "--num-speculative-tokens": "--spec-tokens",
    "--speculative-num-draft-tokens": "--spec-tokens",
    "--hf-override": "--hf-overrides",
    "--long-prefill-threshold": "--long-prefill-token-threshold",
}

GONE: Final[Mapping[str, str]] = {
    # Flags of the V0 engine and of other servers that nothing replaces one to one.
    "--swap-space": "it went with the V0 engine; nothing replaces it",
    "--enable-reasoning": "--reasoning-parser alone switches reasoning on",
    "--num-scheduler-steps": "multi-step scheduling went with the V0 engine",
    "--multi-step-stream-outputs": "multi-step scheduling went with the V0 engine",
    "--use-v2-block-manager": "the V1 engine has one block manager",
    "--preemption-mode": "the V1 engine always recomputes",
    "--scheduler-delay-factor": "it went with the V0 engine",
    "--max-seq-len-to-capture": "it went with the V0 engine; see --max-cudagraph-capture-size",
    "--task": "generation is the default; pooling models take --runner pooling",
    "--device": "vLLM finds the device itself",
    "--worker-use-ray": "it is now --distributed-executor-backend ray",
    "--engine-use-ray": "it is now --distributed-executor-backend ray",
    "--disable-frontend-multiprocessing": "it went with the V0 engine",
    "--disable-async-output-proc": "it went with the V0 engine",
    "--rope-scaling": "it is now part of --hf-overrides",
    "--rope-theta": "it is now part of --hf-overrides",
    "--ep-size": "the expert-parallel size is TP x DP; --enable-expert-parallel switches it on",
    "--enable-dp-attention": "--data-parallel-size is vLLM's form of it",
    "--speculative-disable-mqa-scorer": "it went with the V0 engine",
    "--speculative-num-steps": "vLLM has num_speculative_tokens only",
    "--speculative-eagle-topk": "vLLM drafts chains only",
    "--enable-mtp": 'MTP is --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'',
    "--num-speculative-heads": "vLLM has num_speculative_tokens only",
    "--omni": "it needs the vllm-omni package",
    "--version": "it belongs to `vllm`, not to `vllm serve`",
}

CONFIG_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    # Words that are no flags but keys of a JSON-valued flag.
    "--spec-method": ("speculative_config", "method"),
    "--spec-model": ("speculative_config", "model"),
    "--spec-tokens": ("speculative_config", "num_speculative_tokens"),
    "--speculative-method": ("speculative_config", "method"),
    "--speculative-model": ("speculative_config", "model"),
    "--speculative-algorithm": ("speculative_config", "method"),
    "--num-speculative-tokens": ("speculative_config", "num_speculative_tokens"),
    "--draft-sample-method": ("speculative_config", "draft_sample_method"),
    "--rejection-sample-method": ("speculative_config", "rejection_sample_method"),
    "--cudagraph-mode": ("compilation_config", "cudagraph_mode"),
    "--cuda-graph-mode": ("compilation_config", "cudagraph_mode"),
    "--compilation-mode": ("compilation_config", "mode"),
    "--indexer-kv-dtype": ("attention_config", "indexer_kv_dtype"),
    "--use-fp4-indexer-cache": ("attention_config", "use_fp4_indexer_cache"),
    "--num-redundant-experts": ("eplb_config", "num_redundant_experts"),
    "--eplb-window-size": ("eplb_config", "window_size"),
    "--eplb-step-interval": ("eplb_config", "step_interval"),
    "--kv-connector": ("kv_transfer_config", "kv_connector"),
    "--kv-role": ("kv_transfer_config", "kv_role"),
    "--guided-decoding-backend": ("structured_outputs_config", "backend"),
    "--structured-outputs-backend": ("structured_outputs_config", "backend"),
}

KEY_RENAMED: Final[Mapping[tuple[str, str], tuple[str, Any]]] = {
    # (flag, key) -> key of the same meaning and its value; used where the release has it.
    ("attention_config", "use_fp4_indexer_cache"): ("indexer_kv_dtype", "mxfp4"),
    ("attention_config", "indexer_kv_dtype"): ("use_fp4_indexer_cache", True),
    ("attention_config", "attention_backend"): ("backend", None),
    ("compilation_config", "level"): ("mode", None),
    ("compilation_config", "compilation_level"): ("mode", None),
    ("compilation_config", "cuda_graph_mode"): ("cudagraph_mode", None),
    ("compilation_config", "cuda_graph_sizes"): ("cudagraph_capture_sizes", None),
    ("eplb_config", "num_redundant_expert"): ("num_redundant_experts", None),
    ("kv_transfer_config", "connector"): ("kv_connector", None),
    ("kv_transfer_config", "role"): ("kv_role", None),
    ("kv_transfer_config", "extra_config"): ("kv_connector_extra_config", None),
    ("kv_transfer_config", "kv_extra_config"): ("kv_connector_extra_config", None),
}

_INDEXER_VALUES: Final = {"true": "mxfp4", "1": "mxfp4", "mxfp4": True}
"""use_fp4_indexer_cache <-> indexer_kv_dtype; other values are the default of both."""


def closest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The most similar of ``known``, None when nothing is similar."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def replacement_flag(table: FlagTable, flag: str, *, has_value: bool) -> FlagSpecAndOption | None:
    """The flag of this release that says the same, with a value or without one as typed."""
    candidates = [_inverse(flag), RENAMED.get(flag)]
    if flag.startswith("-") and not flag.startswith("--") and len(flag) > 4:
        candidates.append("-" + flag)
    for option in candidates:
        spec = table.by_option.get(option) if option else None
        if spec is not None and option is not None and spec.takes_value == has_value:
            return spec, option
    if flag in GONE or flag_history().exists(flag):
        # A flag of its own that this release lacks is no typing mistake.
        return None
    names = [name for name, spec in table.by_option.items() if spec.takes_value == has_value and len(name) > 4]
    option = closest(flag, names, 0.8)
    return (table.by_option[option], option) if option is not None else None


FlagSpecAndOption = tuple[FlagSpec, str]


def config_key(table: FlagTable, flag: str) -> tuple[str, str] | None:
    """The JSON-valued flag and its key that an unknown flag is spelled like, if this release has them."""
    found = CONFIG_KEYS.get(flag)
    if found is None or found[0] not in table.by_dest:
        return None
    config = table.config_of(found[0])
    return found if config is None or found[1] in config.fields else None


def _inverse(flag: str) -> str | None:
    """``--disable-x`` for a release that only has ``--no-enable-x``, and the like."""
    for prefix, other in (
        ("--disable-", "--no-enable-"),
        ("--enable-", "--no-disable-"),
        ("--no-enable-", "--disable-"),
        ("--no-disable-", "--enable-"),
    ):
        if flag.startswith(prefix):
            return other + flag.removeprefix(prefix)
    return None


def key_data(table: FlagTable, dest: str, path: tuple[str, ...], value: Any, known: Iterable[str]) -> dict[str, Any]:
    """What to say about an unknown key of a JSON-valued flag.

    ``new_path`` and ``new_value`` name a key that says the same, where there is one.
    """
    known = list(known)
    key = path[-1]
    data: dict[str, Any] = {"key": key, "path": ".".join(path), "dest": dest, "hint": ""}
    data.update(release_data(f"{dest}.{'.'.join(path)}", table.release))
    renamed = KEY_RENAMED.get((dest, key)) if len(path) == 1 else None
    data["new_value"] = value
    if renamed is not None and renamed[0] in known:
        new_value = value if renamed[1] is None else _INDEXER_VALUES.get(str(value).lower())
        if new_value is not None:
            data["new_key"] = renamed[0]
            data["new_value"] = new_value
        data["hint"] = f"; {renamed[0]} took its place" if data.get("removed_in") else f"; see {renamed[0]}"
    elif data["vllm_spec"] == NO_RELEASE and (near := closest(key.replace("-", "_"), known, 0.6)) is not None:
        data["new_key"] = near
        data["closest"] = near
        data["hint"] = f"; the closest is {near}"
    if "new_key" in data:
        data["new_path"] = ".".join((*path[:-1], data["new_key"]))
    return data


def choice_data(table: FlagTable, spec: FlagSpec, value: Any) -> dict[str, Any]:
    """What to say about a value outside a flag's choices."""
    choices = [choice for choice in spec.choices or () if isinstance(choice, str) and choice != "None"]
    data: dict[str, Any] = {"value": value, "choices": ", ".join(choices), "hint": ""}
    data.update(release_data(f"{spec.options[0]}={value}", table.release))
    near = closest(str(value).lower().replace("-", "_"), choices, 0.6)
    if near is not None:
        data["closest"] = near
        if not data["when"]:
            data["hint"] = f"; the closest is {near}"
    if "auto" in choices:
        data["fallback"] = "auto"
    return data
