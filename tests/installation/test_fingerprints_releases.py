"""The readers on the unpacked releases: known facts, real quotes, and what fixes reverted or back-ported do.

``scripts/record_fingerprints.py`` writes what is recorded anew from unpacked releases.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4check.data import load_data
from dsv4check.installation.fingerprint import Answer, fingerprints, read_fingerprints
from dsv4check.learning.source import Source
from tests.learning.shipped import VERSIONS

RULES = Path(__file__).parents[2] / "rules" / "checks"
TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
SECONDS = 5.0

needs_trees = pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")


def key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


ORDERED = sorted(VERSIONS, key=key)


def package(version: str) -> Path:
    found = Path(TREES or "") / version / "vllm"
    if not found.is_dir():
        pytest.skip(f"vLLM {version} is not unpacked under DSV4CHECK_VLLM_TREES")
    return found


@functools.cache
def answers(version: str) -> dict[str, Answer]:
    return read_fingerprints(Source(package(version)))


def values(found: dict[str, Answer]) -> dict[str, str | None]:
    return {name: answer.value for name, answer in found.items()}


def since(table: dict[str, str], version: str) -> str:
    """The value of a release in a table by the first release that has it."""
    return table[max((item for item in table if key(item) <= key(version)), key=key)]


# Written from the facts about the KV cache, not from what the readers say.
KNOWN = {
    "v1-cache-dtype-string": {"0.20.0": "global", "0.25.0": "spec-if-quantised", "0.29.0": "spec-shape"},
    "v2-cache-dtype-string": {"0.20.0": "global", "0.25.0": "global-if-quantised", "0.29.0": "spec-shape"},
    "main-spec-quant-mode": {"0.20.0": "none", "0.25.0": "quant-mode", "0.28.0": "state-size"},
    "swa-spec-quant-mode": {"0.20.0": "none", "0.25.0": "quant-mode", "0.28.0": "state-size"},
    "packed-view-width": {"0.20.0": "packed"},
    "promoted-swa-width": {"0.20.0": "through-global-string", "0.25.0": "lost", "0.28.0": "kept"},
    "auto-kv-cache-dtype": {"0.20.0": "refused", "0.30.0": "fp8"},
    "kv-cache-dtype-refusal": {"0.20.0": "assertion", "0.30.0": "value-error"},
    "supported-kv-cache-dtypes": {"0.20.0": "bfloat16-listed", "0.24.0": "as-stored"},
    "v2-reshape-block-size": {
        "0.20.0": "storage-size",
        "0.22.0": "kernel-size",
        "0.23.0": "storage-size",
        "0.29.0": "spec-view",
    },
    "plain-row-alignment": {"0.20.0": "no-plain-rows", "0.23.0": "none", "0.25.0": "aligned-512"},
    "common-block-size": {"0.20.0": "checked", "0.32.0": "bypassed"},
    "float-kv-cache-dtype": {"0.20.0": "unchecked", "0.33.0": "checked"},
    "kv-cache-dtype-names": {"0.20.0": "choices", "0.33.0": "open"},
    "mxfp4-indexer-size": {"0.20.0": "full", "0.27.0": "half"},
    "default-runner": {"0.20.0": "v1", "0.28.0": "v2"},
    "v4-attention-default": {"0.20.0": "one-class", "0.23.0": "flashmla", "0.24.0": "own-class-on-sm12"},
    "v4-named-backends": {"0.20.0": "ignored", "0.23.0": "mapped", "0.24.0": "generic-refused"},
    "padded-query-heads": {
        "0.20.0": "flashmla-only",
        "0.23.0": "from-64",
        "0.24.0": "from-16-on-sm12",
        "0.27.0": "from-8",
    },
    "dspark-name-mapping": {"0.20.0": "no-dspark", "0.25.0": "stage"},
    "draft-kv-cache-dtype": {"0.20.0": "shared", "0.26.0": "own"},
}


@needs_trees
@pytest.mark.parametrize("version", ORDERED)
def test_every_question_has_an_answer_with_real_quotes(version: str) -> None:
    started = time.process_time()
    found = read_fingerprints(Source(package(version)))
    assert time.process_time() - started < SECONDS
    assert {name: answer.why for name, answer in found.items() if answer.value is None} == {}
    for name, answer in found.items():
        assert answer.quotes, name
        for quote in answer.quotes:
            assert quote.file.startswith("vllm/")
            line = (package(version).parent / quote.file).read_text().split("\n")[quote.line - 1]
            assert quote.text == line.strip()[:160] != "", name


@needs_trees
@pytest.mark.parametrize("version", ORDERED)
def test_the_answers_are_the_known_facts(version: str) -> None:
    found = values(answers(version))
    assert {name: found[name] for name in KNOWN} == {name: since(table, version) for name, table in KNOWN.items()}


@needs_trees
@pytest.mark.parametrize("version", ORDERED)
def test_the_answers_are_the_recorded_ones(version: str) -> None:
    found = {name: value for name, value in values(answers(version)).items() if value is not None}
    assert found == {name: since(steps, version) for name, steps in recorded().items()}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_recorded_is_the_known_facts(name: str) -> None:
    steps = recorded()[name]
    assert {version: since(steps, version) for version in ORDERED} == {
        version: since(KNOWN[name], version) for version in ORDERED
    }


@functools.cache
def recorded() -> dict[str, dict[str, str]]:
    """Question -> release -> answer, for every release that has one."""
    kept = load_data("releases/fingerprints")["fingerprints"]
    return {
        name: {release: value for value, releases in answers.items() for release in releases}
        for name, answers in kept.items()
    }


def test_what_is_recorded_is_known() -> None:
    assert list(recorded()) == [item.id for item in fingerprints()]
    for item in fingerprints():
        assert set(recorded()[item.id]) <= set(VERSIONS)
        assert set(recorded()[item.id].values()) <= set(item.values)


def rules() -> dict[str, dict[str, Any]]:
    loaded = [yaml.safe_load(path.read_text()) for path in RULES.rglob("*.yaml")]
    return {rule["id"]: rule for rule in loaded}


LATER = {"GA005": "0.24.0", "GA019": "0.27.0"}
"""Rules whose ``fixed_in`` waits for more than the line that is read: the release that has the line."""


@pytest.mark.parametrize("item", fingerprints(), ids=lambda item: item.id)
def test_rules_agree_on_the_release_that_is_fixed(item: Any) -> None:
    steps = recorded()[item.id]
    known = rules()
    for name in item.rules:
        fixed = LATER.get(name, known[name]["fixed_in"])
        after = [version for version in ORDERED if key(version) >= key(fixed)]
        before = [version for version in ORDERED if key(version) < key(fixed)]
        assert {since(steps, version) in item.good for version in after} == {True}, name
        if "development" not in known[name]:
            assert since(steps, before[-1]) not in item.good, name


# Fixes reverted and back-ported: release, file, function (None: the whole file), pattern, replacement, what flips.

V1 = ("v1/worker/gpu_model_runner.py", "_reshape_kv_cache_tensors")
V2 = ("v1/worker/gpu/attn_utils.py", "_reshape_kv_cache")
LAYER = "models/deepseek_v4/attention.py"
RESOLVER = (LAYER, "_resolve_dsv4_kv_cache_dtype")
WINDOW = "v1/attention/backends/mla/sparse_swa.py"
PLANNING = "v1/core/kv_cache_utils.py"
SPECULATIVE = "config/speculative.py"
NVIDIA = "models/deepseek_v4/nvidia"
EXPERTS = "model_executor/layers/fused_moe"
PATCHES: list[tuple[str, str, str | None, str, str, dict[str, str]]] = [
    ("0.25.0", *V1, r"=layer_cache_dtype_str\b", "=self.cache_config.cache_dtype", {"v1-cache-dtype-string": "global"}),
    ("0.28.0", *V1, r"=layer_cache_dtype_str\b", "=kv_cache_spec.cache_dtype_str", {"v1-cache-dtype-string": "spec"}),
    (
        "0.24.0",
        *V1,
        r"=self\.cache_config\.cache_dtype\b",
        "=kv_cache_spec.cache_dtype_str",
        {"v1-cache-dtype-string": "spec", "promoted-swa-width": "kept"},
    ),
    ("0.28.0", *V2, r"=layer_cache_dtype\b", "=cache_dtype", {"v2-cache-dtype-string": "global"}),
    (
        "0.28.0",
        *V2,
        r"else cache_dtype\b",
        "else kv_cache_spec.cache_dtype_str",
        {"v2-cache-dtype-string": "spec-if-quantised"},
    ),
    ("0.23.0", *V2, r"storage_block_size // kernel", "block_size // kernel", {"v2-reshape-block-size": "block-size"}),
    ("0.28.0", *V2, r"storage_block_size // kernel", "block_size // kernel", {"v2-reshape-block-size": "block-size"}),
    (
        "0.25.0",
        LAYER,
        None,
        r"kv_quant_mode=get_kv_quant_mode\(self\.kv_cache_dtype\),",
        "",
        {"main-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    ("0.28.0", LAYER, None, r"state_content_bytes=.*,\n", "\n", {"main-spec-quant-mode": "quant-mode"}),
    (
        "0.29.0",
        LAYER,
        None,
        r"state_content_bytes=.*,\n",
        "\n",
        {"main-spec-quant-mode": "quant-mode", "packed-view-width": "plain"},
    ),
    (
        "0.24.0",
        LAYER,
        None,
        r'model_version="deepseek_v4"',
        "kv_quant_mode=get_kv_quant_mode(self.kv_cache_dtype)",
        {"main-spec-quant-mode": "quant-mode"},
    ),
    (
        "0.25.0",
        WINDOW,
        None,
        r"kv_quant_mode=get_kv_quant_mode\(.*\),",
        "",
        {"swa-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    (
        "0.24.0",
        WINDOW,
        None,
        r'model_version="deepseek_v4"',
        "kv_quant_mode=get_kv_quant_mode(self.cache_config.cache_dtype)",
        {"swa-spec-quant-mode": "quant-mode"},
    ),
    (
        "0.27.1",
        PLANNING,
        "_promote_local_kv_cache_specs",
        r"cache_dtype_str=spec\.cache_dtype_str,",
        "cache_dtype_str=spec.cache_dtype_str, kv_quant_mode=spec.kv_quant_mode,",
        {"promoted-swa-width": "kept"},
    ),
    (
        "0.28.0",
        PLANNING,
        "_promote_local_kv_cache_specs",
        r'drop=\("extra_retained_tokens",\)',
        'drop=("kv_quant_mode", "state_content_bytes")',
        {"promoted-swa-width": "lost"},
    ),
    (
        "0.30.0",
        *RESOLVER,
        r'if kv_cache_dtype == "auto":\n\s+kv_cache_dtype = "fp8"',
        "pass",
        {"auto-kv-cache-dtype": "refused"},
    ),
    (
        "0.29.0",
        *RESOLVER,
        r"(if use_fp8_ds_mla_layout:\n)(\s+)",
        r'\1\2if kv_cache_dtype == "auto":\2    kv_cache_dtype = "fp8"\n\2',
        {"auto-kv-cache-dtype": "fp8"},
    ),
    (
        "0.33.0",
        *RESOLVER,
        r'if not (kv_cache_dtype\.startswith\("fp8"\)):\s+raise ValueError\(',
        r"assert \1, (",
        {"kv-cache-dtype-refusal": "assertion"},
    ),
    (
        "0.24.0",
        "models/deepseek_v4/sparse_mla.py",
        None,
        r'(?m)^( +"auto",)$',
        r'\1 "bfloat16",',
        {"supported-kv-cache-dtypes": "bfloat16-listed"},
    ),
    (
        "0.22.1",
        f"{NVIDIA}/flashmla.py",
        None,
        r"(class DeepseekV4FlashMLASparseBackend\(.*\):\n)",
        r"\1    supported_kv_cache_dtypes = ['auto', 'fp8']\n",
        {"supported-kv-cache-dtypes": "as-stored"},
    ),
    *(
        (
            version,
            f"{NVIDIA}/dspark.py",
            "_remap_dspark_name",
            r"layers\.\{stage\}",
            "layers.{self.config.num_hidden_layers + stage}",
            {"dspark-name-mapping": "target-layers"},
        )
        for version in ("0.25.0", "0.28.0", "0.33.0")
    ),
    (
        "0.27.1",
        "config/vllm.py",
        None,
        r"(DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset\(\n\s+\{)",
        r'\1"DeepseekV4ForCausalLM",',
        {"default-runner": "v2", "default-runner-on-rocm": "v2"},
    ),
    (
        "0.28.0",
        "config/vllm.py",
        None,
        r'\n\s+"DeepseekV4ForCausalLM",',
        "",
        {"default-runner": "v1", "default-runner-on-rocm": "v1"},
    ),
    (
        "0.27.0",
        "v1/worker/gpu/cudagraph_utils.py",
        "_init_candidates",
        r"if mixed_mode == CUDAGraphMode.FULL:",
        "if mixed_mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):",
        {"v2-piecewise-requests": "padded"},
    ),
    (
        "0.25.0",
        "model_executor/layers/sparse_attn_indexer.py",
        None,
        r"and not current_platform\.is_device_capability_family\(120\)",
        "",
        {"indexer-top-k-on-sm12": "on-sm12"},
    ),
    (
        "0.24.0",
        "model_executor/layers/sparse_attn_indexer.py",
        None,
        r"and current_platform\.has_device_capability\(90\)",
        "and not current_platform.is_device_capability_family(120)",
        {"indexer-top-k-on-sm12": "not-on-sm12"},
    ),
    (
        "0.22.1",
        f"{NVIDIA}/model.py",
        None,
        r'config\.quantization_config\["scale_fmt"\]',
        "None",
        {"scale-fmt": "not-required"},
    ),
    (
        "0.31.0",
        f"{NVIDIA}/flashinfer_sparse.py",
        None,
        r"sparse_indices_are_storage_offsets=True,",
        "",
        {"flashinfer-storage-offsets": "not-told"},
    ),
    (
        "0.24.0",
        f"{NVIDIA}/model.py",
        "_select_dsv4_attn_cls",
        r"(?s)raise ValueError\(.*?\n        \)",
        "return DeepseekV4FlashMLAAttention",
        {"v4-named-backends": "mapped"},
    ),
    (
        "0.28.0",
        SPECULATIVE,
        None,
        r"self\.draft_model_config\.quantization = ",
        "unused = ",
        {"dspark-quantization": "frozen"},
    ),
    (
        "0.27.1",
        SPECULATIVE,
        None,
        r"DSpark requires num_speculative_tokens >= ",
        "Fewer than ",
        {"spec-tokens-below-block": "accepted"},
    ),
    (
        "0.29.0",
        SPECULATIVE,
        None,
        r"pipeline_parallel_size=target_parallel_config\.pipeline_parallel_size",
        "pipeline_parallel_size=1",
        {"spec-draft-pipeline": "supported"},
    ),
    (
        "0.27.1",
        "v1/worker/gpu/spec_decode/dspark/utils.py",
        None,
        r"backend=speculative_config\.attention_backend",
        "backend=speculative_config.attention_backend or vllm_config.attention_config.backend",
        {"dspark-attention": "targets"},
    ),
    (
        "0.27.0",
        f"{NVIDIA}/mtp.py",
        None,
        r"_pad_shared_expert_weight",
        "_leave_as_it_is",
        {"draft-shared-expert-padding": "missing"},
    ),
    (
        "0.33.0",
        "models/deepseek_v4/amd/mtp.py",
        None,
        r"align_mtp_quant_config",
        "leave_as_it_is",
        {"quark-mtp-prefix": "as-written"},
    ),
    (
        "0.25.0",
        f"{EXPERTS}/experts/trtllm_fp8_moe.py",
        None,
        r"gemm1_clamp_limit=self\.gemm1_clamp_limit,",
        "",
        {"trtllm-fp8-clamp": "dropped"},
    ),
    (
        "0.29.0",
        f"{NVIDIA}/model.py",
        None,
        r"\n    SupportsLoRA,",
        "",
        {"v4-lora": "refused"},
    ),
    (
        "0.30.0",
        f"{NVIDIA}/model.py",
        None,
        r"\n    SupportsPP,",
        "",
        {"v4-pipeline": "refused", "spec-draft-pipeline": "target-refused"},
    ),
    (
        "0.23.0",
        f"{NVIDIA}/model.py",
        None,
        r"class DeepseekV4MixtureOfExperts\(.*\):",
        "class DeepseekV4MixtureOfExperts:",
        {"v4-expert-balancing": "refused"},
    ),
    (
        "0.32.0",
        "v1/worker/utils.py",
        "prepare_kernel_block_sizes",
        r"t\.block_stride > t\.layer_stride",
        "False",
        {"common-block-size": "checked"},
    ),
    (
        "0.28.0",
        "envs.py",
        None,
        r'(VLLM_USE_MODELSCOPE", "False"\)\.strip\(\)\.lower\(\)) in \("1", "true"\)',
        r'\1 == "true"',
        {"modelscope-switch": "true"},
    ),
    (
        "0.33.0",
        "utils/argparse_utils.py",
        None,
        r'if "--config" in args:',
        'if any(word == "--config" or word.startswith("--config=") for word in args):',
        {"config-file-option": "both"},
    ),
    (
        "0.28.0",
        "config/parallel.py",
        None,
        r"requires decode_context_parallel_size > 1",
        "is odd",
        {"dcp-backend-without-dcp": "accepted"},
    ),
]


def lines(indent: int, *written: str) -> str:
    return "".join(f"{' ' * indent}{line}\n" for line in written)


V1_STRING = (*V1, r"(?s) {20}layer_cache_dtype_str = \(.*?\n {20}\)\n")
V2_STRING = (*V2, r"(?s) {16}layer_cache_dtype = \(.*?\n {16}\)\n")
BLOCKS = (*V2, r"(num_blocks_per_kv_block) = \(\s+kv_cache_spec\.storage_block_size // kernel_block_size\s+\)")
WINDOW_MODE = (WINDOW, None, r"kv_quant_mode=get_kv_quant_mode\(.*\),")
MAIN_MODE = (LAYER, None, r"kv_quant_mode=get_kv_quant_mode\(self\.kv_cache_dtype\),")
AUTO = (*RESOLVER, r' {8}if kv_cache_dtype == "auto":\n\s+kv_cache_dtype = "fp8"\n')
ONLY_FP8 = (*RESOLVER, r"(?s) {8}assert kv_cache_dtype\.startswith.*?\n {8}\)\n")
PROMOTED = (PLANNING, "_promote_local_kv_cache_specs", r"= MLAAttentionSpec\(\n")
DRAFT_NAME = (f"{NVIDIA}/dspark.py", "_remap_dspark_name", r"(?s)\A(.*?:\n).*\Z")
ARCHITECTURES = ("config/vllm.py", None, r'( {8}architectures = getattr\(model_config, "architectures", \[\]\)\n)')
SM12 = (
    f"{NVIDIA}/model.py",
    "_select_dsv4_attn_cls",
    r"(?s) {4}if device_capability is not None and [^\n]* == 12:\n +return \w+\n +return \w+\n\Z",
)
# The same and other behaviour in words that no release has: what is told is what the code does.
REWRITTEN: list[tuple[str, str, str | None, str, str, dict[str, str]]] = [
    (
        "0.25.0",
        *V1_STRING,
        lines(
            20,
            "layer_cache_dtype_str = self.cache_config.cache_dtype",
            "if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE:",
            '    layer_cache_dtype_str = "auto"',
        ),
        {"v1-cache-dtype-string": "global-if-quantised"},
    ),
    (
        "0.25.0",
        *V1_STRING,
        lines(
            20,
            "match kv_cache_spec.kv_quant_mode:",
            "    case KVQuantMode.NONE:",
            '        layer_cache_dtype_str = "auto"',
            "    case _:",
            "        layer_cache_dtype_str = kv_cache_spec.cache_dtype_str or self.cache_config.cache_dtype",
        ),
        {},
    ),
    (
        "0.25.0",
        *V1_STRING,
        lines(
            20,
            'own = getattr(kv_cache_spec, "cache_dtype_str", None)',
            "layer_cache_dtype_str: str = own if own is not None else self.cache_config.cache_dtype",
        ),
        {"v1-cache-dtype-string": "spec"},
    ),
    (
        "0.25.0",
        *V1_STRING,
        lines(
            20,
            "layer_cache_dtype_str = {KVQuantMode.NONE: 'auto'}.get(",
            "    kv_cache_spec.kv_quant_mode, self.cache_config.cache_dtype)",
        ),
        {"v1-cache-dtype-string": "global-if-quantised"},
    ),
    (
        "0.28.0",
        *V2_STRING,
        lines(
            16,
            "try:",
            "    layer_cache_dtype = kv_cache_spec.cache_dtype_str or cache_dtype",
            "except AttributeError:",
            "    layer_cache_dtype = cache_dtype",
        ),
        {"v2-cache-dtype-string": "spec"},
    ),
    (
        "0.28.0",
        *V2_STRING,
        lines(
            16,
            "def pick(spec):",
            '    return spec.cache_dtype_str if spec.kv_quant_mode else "auto"',
            "layer_cache_dtype = pick(kv_cache_spec)",
        ),
        {"v2-cache-dtype-string": "spec-if-quantised"},
    ),
    (
        "0.28.0",
        *BLOCKS,
        r"\1, rest = divmod(kv_cache_spec.storage_block_size, kernel_block_size)",
        {},
    ),
    (
        "0.28.0",
        *BLOCKS,
        r"\1 = (per := kv_cache_spec.block_size // kernel_block_size)",
        {"v2-reshape-block-size": "block-size"},
    ),
    (
        "0.25.0",
        *WINDOW_MODE,
        '**({"kv_quant_mode": get_kv_quant_mode("fp8")} if uses_fp8_ds_mla_layout else {}),',
        {},
    ),
    (
        "0.25.0",
        *WINDOW_MODE,
        'kv_quant_mode=get_kv_quant_mode("auto"),',
        {"swa-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    (
        "0.25.0",
        *MAIN_MODE,
        'kv_quant_mode=KVQuantMode.FP8_PER_TENSOR if self.kv_cache_dtype.startswith("fp8") else KVQuantMode.NONE,',
        {},
    ),
    ("0.30.0", *AUTO, lines(8, 'kv_cache_dtype = {"auto": "fp8"}.get(kv_cache_dtype, kv_cache_dtype)'), {}),
    (
        "0.30.0",
        *AUTO,
        lines(8, "match kv_cache_dtype:", '    case "auto" | "":', '        kv_cache_dtype = "fp8_ds_mla"'),
        {},
    ),
    (
        "0.28.0",
        *ONLY_FP8,
        lines(
            8,
            'if kv_cache_dtype == "auto" or kv_cache_dtype.startswith("fp8"):',
            "    pass",
            "else:",
            '    raise ValueError("DeepseekV4 fp8_ds_mla layout only supports fp8, got " + kv_cache_dtype)',
        ),
        {"auto-kv-cache-dtype": "fp8", "kv-cache-dtype-refusal": "value-error"},
    ),
    ("0.27.1", *PROMOTED, "= MLAAttentionSpec(kv_quant_mode=KVQuantMode.NONE,\n", {}),
    (
        "0.27.1",
        *PROMOTED,
        '= MLAAttentionSpec(**{"kv_quant_mode": get_kv_quant_mode(spec.cache_dtype_str)},\n',
        {"promoted-swa-width": "kept"},
    ),
    (
        "0.25.0",
        *DRAFT_NAME,
        r"\1"
        + lines(
            8,
            'if not name.startswith("mtp."):',
            "    return None",
            '_, stage, rest = name.split(".", 2)',
            'if rest.startswith(("norm.", "hc_head", "main_", "markov_head.")):',
            '    return f"model.{rest}"',
            'return ".".join(("model", "layers", stage, rest))',
        ),
        {},
    ),
    (
        "0.25.0",
        *DRAFT_NAME,
        r"\1"
        + lines(
            8,
            'if (m := re.match("mtp[.](?P<stage>[0-9]+)[.](?P<rest>.*)", name)) is None:',
            "    return None",
            'layer = self.config.num_hidden_layers + int(m["stage"])',
            'return "model.layers.%d.%s" % (layer, m["rest"])',
        ),
        {"dspark-name-mapping": "target-layers"},
    ),
    (
        "0.27.1",
        *ARCHITECTURES,
        r"\1" + lines(8, 'if "DeepseekV4ForCausalLM" in architectures:', "    return True"),
        {"default-runner": "v2", "default-runner-on-rocm": "v2"},
    ),
    (
        "0.28.0",
        "config/vllm.py",
        None,
        r"( {4}return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES)\n",
        r'\1 - {"DeepseekV4ForCausalLM"}' + "\n",
        {"default-runner": "v1", "default-runner-on-rocm": "v1"},
    ),
    (
        "0.28.0",
        *SM12,
        lines(
            4,
            "table = {12: DeepseekV4FlashInferSM120Attention}",
            "major = device_capability.major if device_capability is not None else None",
            "return table.get(major, DeepseekV4FlashMLAAttention)",
        ),
        {},
    ),
    ("0.28.0", *SM12, lines(4, "return DeepseekV4FlashMLAAttention"), {"v4-attention-default": "flashmla"}),
]


@functools.lru_cache(maxsize=1)
def parsed(version: str) -> Source:
    """A release with the files that the readers look at."""
    source = Source(package(version))
    read_fingerprints(source)
    return source


def copied(version: str, folder: Path) -> Source:
    """A copy of these files."""
    source = parsed(version)
    models = (path.relative_to(source.package).as_posix() for path in source.package.glob("models/deepseek_v4/**/*.py"))
    for path in dict.fromkeys([*source._texts, *models]):
        target = folder / "vllm" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.text(path))
    return Source(folder / "vllm")


def span(text: str, name: str | None) -> tuple[int, int]:
    """First and last line of a function, or of the whole file."""
    if name is None:
        return 0, len(text.splitlines())
    found = next(item for item in ast.walk(ast.parse(text)) if isinstance(item, ast.FunctionDef) and item.name == name)
    return found.lineno - 1, found.end_lineno or 0


def changed(version: str, path: str, name: str | None, pattern: str, new: str, folder: Path) -> dict[str, str | None]:
    """The answers that are others once the pattern is replaced."""
    source = copied(version, folder)
    target = source.package / path
    stored = target.read_text().splitlines(keepends=True)
    first, last = span("".join(stored), name)
    text = "".join(stored[first:last])
    assert re.search(pattern, text)
    target.write_text("".join([*stored[:first], re.sub(pattern, new, text), *stored[last:]]))
    # What was not changed is not parsed once more.
    source._trees.update({name: tree for name, tree in parsed(version)._trees.items() if name != path})
    before = values(answers(version))
    after = values(read_fingerprints(source))
    return {key: value for key, value in after.items() if value != before[key]}


@needs_trees
@pytest.mark.parametrize(
    ("version", "path", "name", "pattern", "new", "flipped"),
    sorted(PATCHES, key=lambda patch: key(patch[0])),
    ids=[
        f"{patch[0]}-{next(iter(patch[5]))}-{next(iter(patch[5].values()))}-{number}"
        for number, patch in enumerate(sorted(PATCHES, key=lambda patch: key(patch[0])))
    ],
)
def test_a_fix_taken_out_or_put_in_flips_its_fingerprint(
    version: str, path: str, name: str | None, pattern: str, new: str, flipped: dict[str, str], tmp_path: Path
) -> None:
    assert changed(version, path, name, pattern, new, tmp_path) == flipped


@needs_trees
@pytest.mark.parametrize(
    ("version", "path", "name", "pattern", "new", "flipped"),
    sorted(REWRITTEN, key=lambda patch: key(patch[0])),
    ids=[
        f"{patch[0]}-{patch[2] or Path(patch[1]).stem}-{number}"
        for number, patch in enumerate(sorted(REWRITTEN, key=lambda patch: key(patch[0])))
    ],
)
def test_other_words_are_read_by_what_they_do(
    version: str, path: str, name: str | None, pattern: str, new: str, flipped: dict[str, str], tmp_path: Path
) -> None:
    assert changed(version, path, name, pattern, new, tmp_path) == flipped


@needs_trees
@pytest.mark.parametrize("version", ["0.20.0", "0.28.0", "0.33.0"])
def test_the_copied_files_are_all_that_is_read(version: str, tmp_path: Path) -> None:
    assert values(read_fingerprints(copied(version, tmp_path))) == values(answers(version))
