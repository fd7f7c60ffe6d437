"""The readers on made-up trees: every decision is told, each edit flips what it concerns and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsv4check.installation.fingerprint import Answer, fingerprints, read_fingerprints
from dsv4check.learning.source import Source
from tests.installation import miniature as tree
from tests.installation.miniature import FILES, VALUES, miniature

IDS = [item.id for item in fingerprints()]


def told(answers: dict[str, Answer]) -> dict[str, str | None]:
    return {name: answer.value for name, answer in answers.items()}


def test_the_records_are_sound() -> None:
    assert len(set(IDS)) == len(IDS) == len(VALUES)
    for item in fingerprints():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item.id)
        assert item.question.endswith("?")
        assert item.good
        assert item.good <= set(item.values)
        assert len(item.values) >= 2
        for value, sentence in item.values.items():
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", value), (item.id, value)
            assert sentence.endswith(".")
        assert all(re.fullmatch(r"\w+#\d+", reference) for reference in item.references)


def test_every_question_is_answered(tmp_path: Path) -> None:
    answers = read_fingerprints(miniature(tmp_path))
    assert list(answers) == IDS
    assert told(answers) == VALUES
    for item in fingerprints():
        answer = answers[item.id]
        assert answer.says == item.values[str(answer.value)]
        assert answer.why == ""


def test_quotes_are_lines_of_the_tree(tmp_path: Path) -> None:
    for name, answer in read_fingerprints(miniature(tmp_path)).items():
        assert answer.quotes, name
        for quote in answer.quotes:
            line = (tmp_path / quote.file).read_text().split("\n")[quote.line - 1]
            assert quote.text == line.strip()[:160] != "", name


GLOBAL = "self.cache_config.cache_dtype"
OVERWRITTEN = f"""string = {GLOBAL}
                if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE:
                    string = "auto"
                shape = group.backend"""
MATCHED = f"""match kv_cache_spec.kv_quant_mode:
                    case KVQuantMode.NONE:
                        string = "auto"
                    case _:
                        string = {GLOBAL}
                shape = group.backend"""
LOOKED_UP = f"""table = {{KVQuantMode.NONE: "auto"}}
                string = table.get(kv_cache_spec.kv_quant_mode, {GLOBAL})
                shape = group.backend"""
PIECES = "pieces = kv_cache_spec.storage_block_size // kernel_block_size"
STATED = "state_content_bytes=584 if packed else None,\n            alignment="
REFUSED = 'f"this layout only supports fp8 kv-cache, got {kv_cache_dtype}"'
ONLY_NVFP4 = "flashinfer_nvlink_one_sided only supports nvfp4 activation quantization"
CARRIED = "flashinfer_nvlink_one_sided dispatch supports nvfp4, mxfp8"
COMBINED = 'raise ValueError(f"quantization_config is only supported when quantization is one of {NAMES}")'
GENERIC = 'raise ValueError(f"{backend.name} is not a DeepSeek V4 attention backend")'
BY_PLATFORM = "default_v2_model_runner_architectures()"
LOADS = "        self.load(weights)\n"
FLIPS = {
    "V1 takes the string of the launch": (
        {tree.V1: (("cache_dtype_str=string", "cache_dtype_str=self.cache_config.cache_dtype"),)},
        {"v1-cache-dtype-string": "global"},
    ),
    "V1 takes the layer's string always": (
        {tree.V1: (("cache_dtype_str=string", "cache_dtype_str=kv_cache_spec.cache_dtype_str"),)},
        {"v1-cache-dtype-string": "spec"},
    ),
    "V2 takes the string of the launch": (
        {tree.V2: (("cache_dtype_str=string", "cache_dtype_str=cache_dtype"),)},
        {"v2-cache-dtype-string": "global"},
    ),
    "V2 takes the layer's string": (
        {tree.V2: (("else cache_dtype", "else kv_cache_spec.cache_dtype_str"),)},
        {"v2-cache-dtype-string": "spec-if-quantised"},
    ),
    "V2 counts tokens": (
        {tree.V2: (("pieces = kv_cache_spec.storage_block_size", "pieces = kv_cache_spec.block_size"),)},
        {"v2-reshape-block-size": "block-size"},
    ),
    "V2 counts blocks of 256": (
        {
            tree.V2: (
                (
                    PIECES,
                    "pieces = kv_cache_spec.block_size // 256",
                ),
            )
        },
        {"v2-reshape-block-size": "kernel-size"},
    ),
    "both runners view what the spec says": (
        {
            tree.V1: (
                ("def _reshape_kv_cache_tensors", "def _old"),
                ("class GPUModelRunner:", "allocate_kv_cache()\nclass GPUModelRunner:"),
            ),
            tree.V2: (("def _reshape_kv_cache(", "allocate_kv_cache()\ndef _old("),),
            tree.WINDOW: (("alignment=", STATED),),
            tree.LAYER: (("alignment=", STATED),),
        },
        {
            "v1-cache-dtype-string": "spec-shape",
            "v2-cache-dtype-string": "spec-shape",
            "v2-reshape-block-size": "spec-view",
            "main-spec-quant-mode": "state-size",
            "swa-spec-quant-mode": "state-size",
        },
    ),
    "the main spec says nothing": (
        {tree.LAYER: (("            kv_quant_mode=get_kv_quant_mode(self.kv_cache_dtype),\n", ""),)},
        {"main-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    "the main spec says that it is not quantised": (
        {tree.LAYER: (("get_kv_quant_mode(self.kv_cache_dtype)", "KVQuantMode.NONE"),)},
        {"main-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    "the window's spec says nothing, as in the builds between the two changes": (
        {
            tree.WINDOW: (("            kv_quant_mode=get_kv_quant_mode(self.cache_config.cache_dtype),\n", ""),),
            tree.V2: (("cache_dtype_str=string", "cache_dtype_str=cache_dtype"),),
        },
        {"swa-spec-quant-mode": "none", "packed-view-width": "plain-on-v1", "v2-cache-dtype-string": "global"},
    ),
    "the window's spec states its size": (
        {tree.WINDOW: (("alignment=", STATED),)},
        {"swa-spec-quant-mode": "state-size"},
    ),
    "the promoted spec keeps the mode": (
        {tree.PLANNING: (("alignment=", "kv_quant_mode=spec.kv_quant_mode,\n                alignment="),)},
        {"promoted-swa-width": "kept"},
    ),
    "the promoted spec keeps every field": (
        {tree.PLANNING: (("MLAAttentionSpec(", "replace_as(spec, MLAAttentionSpec, drop=('extra',),"),)},
        {"promoted-swa-width": "kept"},
    ),
    "the promoted spec keeps every field but the mode": (
        {tree.PLANNING: (("MLAAttentionSpec(", "replace_as(spec, MLAAttentionSpec, drop=('kv_quant_mode',),"),)},
        {},
    ),
    "both runners take the string of the launch": (
        {
            tree.V1: (("cache_dtype_str=string", "cache_dtype_str=self.cache_config.cache_dtype"),),
            tree.V2: (("cache_dtype_str=string", "cache_dtype_str=cache_dtype"),),
        },
        {
            "v1-cache-dtype-string": "global",
            "v2-cache-dtype-string": "global",
            "promoted-swa-width": "through-global-string",
        },
    ),
    "outermost blocks skip the check": (
        {
            tree.UTILS: (
                (
                    "select_common_block_size(",
                    "group.block_size if any(t.block_stride > 1 for t in groups) else select_common_block_size(",
                ),
            )
        },
        {"common-block-size": "bypassed"},
    ),
    "plain rows are not aligned": (
        {
            tree.LAYER: (("576 if packed else 512", "576 if packed else None"),),
            tree.WINDOW: (("576 if packed else 512", "576 if packed else None"),),
        },
        {"plain-row-alignment": "none"},
    ),
    "auto becomes fp8": (
        {
            tree.LAYER: (
                (
                    "    if packed:\n        assert",
                    "    if packed:\n        if kv_cache_dtype == 'auto':\n"
                    "            kv_cache_dtype = 'fp8'\n        assert",
                ),
            )
        },
        {"auto-kv-cache-dtype": "fp8"},
    ),
    "the refusal says what to set": (
        {
            tree.LAYER: (
                (
                    f'assert kv_cache_dtype.startswith("fp8"), {REFUSED}',
                    f'if not kv_cache_dtype.startswith("fp8"):\n            raise ValueError({REFUSED})',
                ),
            )
        },
        {"kv-cache-dtype-refusal": "value-error"},
    ),
    "the packed backend lists bfloat16": (
        {tree.FLASHMLA: (('"auto",', '"auto",\n        "bfloat16",'),)},
        {"supported-kv-cache-dtypes": "bfloat16-listed"},
    ),
    "nvfp4 is accepted": (
        {
            tree.CONFIG: (
                ("validate_nvfp4_kv_cache_with_mla", "validate_other"),
                ("nvfp4 KV cache is not supported with MLA", "no"),
            )
        },
        {"nvfp4-with-mla": "accepted"},
    ),
    "every nvfp4 is refused": (
        {tree.CONFIG: (('cache_dtype == "nvfp4"', 'cache_dtype.startswith("nvfp4")'),)},
        {"nvfp4-with-mla": "prefix"},
    ),
    "any name is parsed": (
        {tree.CACHE: (("cache_dtype: CacheDType", "cache_dtype: CacheDType | str"),)},
        {"kv-cache-dtype-names": "open"},
    ),
    "float caches are compared": (
        {
            tree.CONFIG: (
                (
                    "        self.other()\n",
                    "        self.other()\n        self._reject_mismatched_float_kv_cache()\n"
                    "    def _reject_mismatched_float_kv_cache(self):\n"
                    "        if self.cache_config.cache_dtype != self.model_config.dtype:\n"
                    '            raise ValueError(f"kv_cache_dtype={x} is incompatible with dtype={y}")\n',
                ),
            )
        },
        {"float-kv-cache-dtype": "checked"},
    ),
    "MXFP4 keys are small": (
        {
            tree.LAYER: (
                (
                    "        k_cache_head_dim = ",
                    "        if self.use_fp4_kv:\n            k_cache_head_dim = 68\n"
                    "        else:\n            k_cache_head_dim = ",
                ),
            )
        },
        {"mxfp4-indexer-size": "half"},
    ),
    "the indexer reads the new option": (
        {tree.LAYER: (("attention_config.use_fp4_indexer_cache", "attention_config.indexer_kv_dtype"),)},
        {"indexer-dtype-option": "indexer-kv-dtype"},
    ),
    "SM 12.x has no class of its own": (
        {tree.MODEL: (("return FlashInferSmall", "return FlashMLAAttention"),)},
        {
            "v4-attention-default": "flashmla",
            "padded-query-heads": "from-64",
            "supported-kv-cache-dtypes": "packed-listed",
        },
    ),
    "the generic backend is ignored": (
        {
            tree.MODEL: (
                (
                    GENERIC,
                    "return FlashMLAAttention",
                ),
            )
        },
        {"v4-named-backends": "mapped"},
    ),
    "FlashInfer's classes pad less": (
        {
            tree.FLASHINFER: (
                ("(16, 32, 64, 128)", "(8, 16, 32, 64, 128)"),
                (
                    "        if num_heads > 128:\n"
                    '            raise ValueError(f"no kernel for {num_heads} heads")\n'
                    "        return 64 if num_heads <= 64 else 128\n",
                    "        return pad(num_heads)\n",
                ),
            )
        },
        {"padded-query-heads": "from-8"},
    ),
    "the cluster kernel leaves out SM 12.x": (
        {tree.TOP_K: (("capability(90)", "capability(90) and not current_platform.is_device_capability_family(120)"),)},
        {"indexer-top-k-on-sm12": "not-on-sm12"},
    ),
    "FlashInfer is told of the offsets": (
        {tree.FLASHINFER: (("indices=self.indices,", "sparse_indices_are_storage_offsets=True,"),)},
        {"flashinfer-storage-offsets": "told"},
    ),
    "V4 gets the V2 runner": (
        {tree.CONFIG: (('"AnotherForCausalLM"', '"AnotherForCausalLM", "DeepseekV4ForCausalLM"'),)},
        {"default-runner": "v2", "default-runner-on-rocm": "v2"},
    ),
    "V4 stays on V1 on ROCm": (
        {
            tree.CONFIG: (
                ('"AnotherForCausalLM"', '"AnotherForCausalLM", "DeepseekV4ForCausalLM"'),
                (
                    "for name in self.architectures)",
                    f"for name in self.architectures if {BY_PLATFORM})",
                ),
                (
                    "V2_CLASSES = 1\n",
                    "def default_v2_model_runner_architectures():\n    if current_platform.is_rocm():\n"
                    '        return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES - {"DeepseekV4ForCausalLM"}\n'
                    "    return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n",
                ),
            )
        },
        {"default-runner": "v2", "default-runner-on-rocm": "kept-on-v1"},
    ),
    "requests are padded": (
        {
            tree.GRAPHS: (
                ("mixed_mode == CUDAGraphMode.FULL", "mixed_mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)"),
            )
        },
        {"v2-piecewise-requests": "padded"},
    ),
    "there is no DSpark": (
        {tree.SPECULATIVE: (('"mtp", "dspark"', '"mtp"'),)},
        {
            "dspark-method": "absent",
            "dspark-name-mapping": "no-dspark",
            "dspark-vendors": "no-dspark",
            "dspark-attention": "no-dspark",
            "dspark-quantization": "no-dspark",
            "spec-tokens-below-block": "no-dspark",
        },
    ),
    "DSpark's weights get the target's numbers": (
        {tree.DSPARK: (("layers.{stage}", "layers.{self.config.num_hidden_layers + stage}"),)},
        {"dspark-name-mapping": "target-layers"},
    ),
    "DSpark's names are taken apart in another way": (
        {tree.DSPARK: (('    m = re.match(r"mtp\\.(\\d+)\\.(.*)", name)', "    m = MTP.match(name)"),)},
        {},
    ),
    "V1 overwrites the launch's cache dtype": (
        {tree.V1: (("shape = group.backend", OVERWRITTEN),)},
        {"v1-cache-dtype-string": "global-if-quantised"},
    ),
    "V1 takes the string by a match": (
        {tree.V1: (("shape = group.backend", MATCHED),)},
        {"v1-cache-dtype-string": "global-if-quantised"},
    ),
    "V1 looks the string up": (
        {tree.V1: (("shape = group.backend", LOOKED_UP),)},
        {"v1-cache-dtype-string": "global-if-quantised"},
    ),
    "the window's mode is none by a variable": (
        {
            tree.WINDOW: (
                (
                    "kv_quant_mode=get_kv_quant_mode(self.cache_config.cache_dtype)",
                    '**{"kv_quant_mode": KVQuantMode.NONE}',
                ),
            )
        },
        {"swa-spec-quant-mode": "none", "packed-view-width": "plain"},
    ),
    "auto is looked up": (
        {
            tree.LAYER: (
                (
                    "    if packed:\n        assert",
                    '    if packed:\n        kv_cache_dtype = {"auto": "fp8"}.get(kv_cache_dtype, kv_cache_dtype)\n'
                    "        assert",
                ),
            )
        },
        {"auto-kv-cache-dtype": "fp8"},
    ),
    "DSpark's weights get numbers from elsewhere": (
        {
            tree.DSPARK: (
                ("stage = int(m.group(1))", "stage = self.first_layer + int(m.group(1))"),
                (
                    "    def _remap_dspark_name",
                    "    def __init__(self, config):\n        self.first_layer = config.num_hidden_layers\n"
                    "    def _remap_dspark_name",
                ),
            )
        },
        {"dspark-name-mapping": "target-layers"},
    ),
    "DSpark for every GPU": (
        {
            tree.PLATFORMS: (
                (
                    ".amd.model import DeepseekV4ForCausalLM",
                    ".nvidia.dspark import DSparkDeepseekV4ForCausalLM",
                ),
            )
        },
        {"dspark-vendors": "all"},
    ),
    "DSpark follows its target's backend": (
        {
            tree.DSPARK_LOADER: (
                (
                    "backend=speculative_config.attention_backend",
                    "backend=speculative_config.attention_backend or vllm_config.attention_config.backend",
                ),
            )
        },
        {"dspark-attention": "targets"},
    ),
    "a draft shares the cache dtype": (
        {tree.SPECULATIVE: (("    kv_cache_dtype: str | None = None\n", ""),)},
        {"draft-kv-cache-dtype": "shared"},
    ),
    "the draft's cache dtype is not read": (
        {tree.MTP_LOADER: (("speculative_config.kv_cache_dtype is not None", "other"),)},
        {"draft-kv-cache-dtype": "not-read"},
    ),
    "DSpark gets the target's quantisation": (
        {
            tree.SPECULATIVE: (
                (
                    '["DSparkDraftModel"]\n',
                    '["DSparkDraftModel"]\n            self.draft_model_config.quantization = '
                    "self.target_model_config.quantization\n",
                ),
            )
        },
        {"dspark-quantization": "targets"},
    ),
    "the drafts pad, too": (
        {
            tree.MTP: ((LOADS, "        self.load(self._pad_shared_expert_weight(weights))\n"),),
            tree.DSPARK: (("    def _remap", "    pad = DeepseekV4Model._pad_shared_expert_weight\n    def _remap"),),
        },
        {"draft-shared-expert-padding": "as-target"},
    ),
    "a draft has one stage": (
        {tree.SPECULATIVE: (("=target_parallel_config.pipeline_parallel_size", "=1"),)},
        {"spec-draft-pipeline": "supported"},
    ),
    "few speculative tokens are accepted": (
        {tree.SPECULATIVE: (("DSpark requires num_speculative_tokens >= ", "Something else than "),)},
        {"spec-tokens-below-block": "accepted"},
    ),
    "no name is a class": (
        {tree.SPECULATIVE: (('"dspark", "custom_class"', '"dspark"'),)},
        {"draft-model-as-class": "none"},
    ),
    "one sequence's slots are set aside": (
        {tree.CONFIG: (("drafting * self.max_num_seqs", "drafting"),)},
        {"draft-token-budget": "per-batch"},
    ),
    "nothing verifies adaptively": (
        {tree.SPECULATIVE: (("    enable_adaptive_verification: bool = False\n", ""),)},
        {"adaptive-verification": "none"},
    ),
    "any draft verifies adaptively": (
        {
            tree.SPECULATIVE: (
                (
                    "and self.enable_adaptive_verification:",
                    "and self.enable_adaptive_verification and self.use_local_argmax_reduction:",
                ),
            )
        },
        {"adaptive-verification": "any"},
    ),
    "drafts sample": (
        {tree.SPECULATIVE: (('"gumbel"', '"probabilistic"'),)},
        {"draft-sampling": "probabilistic"},
    ),
    "keys may have dashes": (
        {tree.ARGUMENTS: (("given.update(self.extra)", "given = {k.replace('-', '_'): v for k, v in given.items()}"),)},
        {"speculative-config-dashes": "taken"},
    ),
    "V4 has no pipeline": (
        {tree.MODEL: (("SupportsPP, ", ""),)},
        {"v4-pipeline": "refused", "spec-draft-pipeline": "target-refused"},
    ),
    "V4 does not balance experts": (
        {tree.MODEL: ((", MixtureOfExperts)", ")"),)},
        {"v4-expert-balancing": "refused"},
    ),
    "V4 has LoRA": (
        {tree.MODEL: (("SupportsPP, ", "SupportsPP, SupportsLoRA, "),)},
        {"v4-lora": "supported"},
    ),
    "scale_fmt is indexed": (
        {
            tree.MODEL: (
                (
                    "    def load_weights(self, weights):\n",
                    '    fmt = config.quantization_config["scale_fmt"]\n    def load_weights(self, weights):\n',
                ),
            )
        },
        {"scale-fmt": "required"},
    ),
    "vision is registered": (
        {tree.REGISTRY: (('"Other"', '"DeepseekV4ForConditionalGeneration"'),)},
        {"v4-vision": "registered"},
    ),
    "V4.1 is registered": (
        {tree.CONFIGS: (("deepseek_v4=", 'deepseek_v41="C", deepseek_v4='),)},
        {"v41-config": "registered"},
    ),
    "the exchange carries more": (
        {
            tree.EXCHANGE: (
                (
                    ONLY_NVFP4,
                    CARRIED,
                ),
            )
        },
        {"one-sided-exchange": "nvfp4-mxfp8-bf16"},
    ),
    "the exchange carries FP8 blocks": (
        {
            tree.EXCHANGE: (
                (
                    ONLY_NVFP4,
                    "flashinfer_nvlink_one_sided dispatch supports nvfp4, mxfp8, DeepSeek Blockwise FP8 (E4M3 ...)",
                ),
            )
        },
        {"one-sided-exchange": "fp8-blocks"},
    ),
    "the limit is passed": (
        {tree.TRTLLM: (("hidden_states=x,", "gemm1_clamp_limit=x,"),)},
        {"trtllm-fp8-clamp": "passed"},
    ),
    "quantisation is combined": (
        {
            tree.QUANTIZATION: (
                (
                    COMBINED,
                    "return quantization_config",
                ),
            )
        },
        {"quantization-config-beside-method": "combined"},
    ),
    "Quark's names are aligned": (
        {tree.AMD_MTP: (("self.quant_config = given", "align_mtp_quant_config(given)"),)},
        {"quark-mtp-prefix": "aligned"},
    ),
    "--config=FILE is read": (
        {
            tree.PARSER: (
                ('if "--config" in args:', 'if any(x == "--config" or x.startswith("--config=") for x in args):'),
            )
        },
        {"config-file-option": "both"},
    ),
    "a2a stands alone": (
        {tree.PARALLEL: (('raise ValueError("a2a requires decode_context_parallel_size > 1.")', "pass"),)},
        {"dcp-backend-without-dcp": "accepted"},
    ),
    "chunked prefill is refused": (
        {
            tree.CONFIG: (
                (
                    "        self.other()\n",
                    '        if self.kv == "ExampleHiddenStatesConnector":\n'
                    '            raise ValueError("ExampleHiddenStatesConnector does not support chunked prefill.")\n',
                ),
            )
        },
        {"hidden-states-chunked": "refused"},
    ),
    "1 switches ModelScope on": (
        {tree.ENVS: (('== "true"', 'in ("1", "true")'),)},
        {"modelscope-switch": "one-or-true"},
    ),
}


@pytest.mark.parametrize("name", FLIPS)
def test_an_edit_flips_what_it_concerns(name: str, tmp_path: Path) -> None:
    edits, flipped = FLIPS[name]
    answers = told(read_fingerprints(miniature(tmp_path, edits)))
    assert {key: value for key, value in answers.items() if value != VALUES[key]} == flipped


def test_every_fingerprint_is_flipped_by_some_edit() -> None:
    assert {key for _, flipped in FLIPS.values() for key in flipped} == set(IDS)


def assert_forgiving(answers: dict[str, Answer]) -> set[str]:
    """Every question has an answer, and those without a value say why; the ids of these."""
    assert list(answers) == IDS
    for answer in answers.values():
        assert (answer.value is None) == bool(answer.why) == (not answer.quotes)
        assert answer.says
    return {name for name, answer in answers.items() if answer.value is None}


@pytest.mark.parametrize("path", [name for name in FILES if name != "__init__.py"])
@pytest.mark.parametrize(
    "held", [None, b"def broken(:\n", b"\xff\xfe", b"x = '\0'\n", b"(" * 5000, b"", b"other = 1\n"]
)
def test_a_broken_file_is_a_reason(path: str, held: bytes | None, tmp_path: Path) -> None:
    source = miniature(tmp_path)
    target = source.package / path
    if held is None:
        target.unlink()
    else:
        target.write_bytes(held)
    untold = assert_forgiving(read_fingerprints(source))
    assert untold
    assert len(untold) < len(IDS)
    if held and b"broken" in held:
        answers = read_fingerprints(source)
        assert any(f"{path} is not valid Python (line 1" in answers[name].why for name in untold)


@pytest.mark.parametrize("path", [name for name in FILES if name not in ("__init__.py", tree.ENVS, tree.PLATFORMS)])
def test_renamed_functions_and_classes_are_a_reason(path: str, tmp_path: Path) -> None:
    source = miniature(tmp_path)
    target = source.package / path
    text = re.sub(r"\b(def|class) (\w+)", r"\1 \2Renamed", target.read_text())
    target.write_text(re.sub(r"^([_A-Za-z]\w*) = ", r"\1_renamed = ", text, flags=re.MULTILINE))
    assert_forgiving(read_fingerprints(source))


def test_an_empty_package_and_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    assert assert_forgiving(read_fingerprints(Source(tmp_path / "vllm"))) == set(IDS)
    assert assert_forgiving(read_fingerprints(Source(tmp_path / "nowhere"))) == set(IDS)


def test_one_question_alone_forgives_too(tmp_path: Path) -> None:
    source = miniature(tmp_path)
    (source.package / tree.V1).write_text("def broken(:")
    first = fingerprints()[0].read(source)
    assert first.value is None
    assert "v1/worker/gpu_model_runner.py is not valid Python" in first.why
    assert fingerprints()[1].read(source).value == VALUES["v2-cache-dtype-string"]
