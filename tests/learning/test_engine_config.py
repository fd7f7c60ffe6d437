"""``engine_config`` of the shipped releases is what their text says, and follows the text when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4check.learning.sections.engine_config.bounds import bounds
from dsv4check.learning.sections.engine_config.checks import (
    lora,
    replay_with_drafts,
    routed_experts,
    sliding_window_crash,
)
from dsv4check.learning.sections.engine_config.lengths import batch, long_prefill, max_len
from dsv4check.learning.sections.engine_config.names import kv_layouts, parsers, retention
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, tree

BATCH = """
class EngineArgs:
    def get_batch_defaults(cls, world_size):
        is_gb10 = current_platform.is_device_capability((12, 1))
        if device_memory >= {big} * GiB_bytes:
            default_max_num_batched_tokens = {{UsageContext.LLM_CLASS: 16384, UsageContext.OPENAI_API_SERVER: 16384}}
        elif device_memory >= 70 * GiB_bytes and "a100" not in device_name{gb10}:
            default_max_num_batched_tokens = {{UsageContext.LLM_CLASS: 16384, UsageContext.OPENAI_API_SERVER: 8192}}
        else:
            default_max_num_batched_tokens = {{UsageContext.LLM_CLASS: 8192, UsageContext.OPENAI_API_SERVER: {small}}}
        if current_platform.is_cpu():
            default_max_num_batched_tokens = {{UsageContext.OPENAI_API_SERVER: 2048 * world_size}}
"""
LENGTH = """
def _get_and_verify_max_len(hf_config):
    scaling_factor = 1.0
    for rp in rope_parameters:
        if rope_type not in ({scaled}):
            scaling_factor = rp.get("factor", scaling_factor)
            {start}
    derived_max_model_len *= scaling_factor
"""
YARN = 'if rope_type == "yarn":\n                derived_max_model_len = rp["original_max_position_embeddings"]'


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped_release(version: str) -> None:
    assert_learned("engine_config", version)


def config_classes(scheduler: str) -> dict[str, str]:
    files = {
        f"config/{name.lower()}.py": f"class {name}Config:\n    other: int = 0\n"
        for name in ("Cache", "Model", "Parallel")
    }
    files["config/lora.py"] = "class LoRAConfig:\n    max_loras: int = Field(default=1, ge=1)\n"
    files["config/scheduler.py"] = f"class SchedulerConfig:\n    max_num_seqs: int = Field(default=1, {scheduler})\n"
    return files


def test_bounds_follow_the_fields_that_are_flags(tmp_path: Path) -> None:
    files = config_classes("ge=2, le=64")
    files["config/cache.py"] = "class CacheConfig:\n    hidden: int = Field(default=1, gt=0)\n"
    files["engine/arg_utils.py"] = "class EngineArgs:\n    max_num_seqs: int = 0\n    max_loras: int = 1\n"
    assert bounds(tree(tmp_path, files)) == {
        "max_num_seqs": {"class": "SchedulerConfig", "ge": 2, "le": 64},
        "max_loras": {"class": "LoRAConfig", "ge": 1},
    }


@pytest.mark.parametrize(("limit", "message"), [("ge=LEAST", "ge is not a number"), ("title='x'", "max_num_seqs")])
def test_bounds_that_cannot_be_read(tmp_path: Path, limit: str, message: str) -> None:
    files = config_classes(limit)
    files["engine/arg_utils.py"] = "class EngineArgs:\n    max_num_seqs: int = 0\n"
    with pytest.raises(LearningError, match=message):
        bounds(tree(tmp_path, files))


@pytest.mark.parametrize("big", [160, 250])
@pytest.mark.parametrize("gb10", [True, False])
def test_batch_tiers(tmp_path: Path, big: int, gb10: bool) -> None:
    text = BATCH.format(big=big, small=2048, gb10=" and not is_gb10" if gb10 else "")
    source = tree(tmp_path, {"engine/arg_utils.py": text})
    assert batch(source) == {"big_gib": big, "gb10_small": gb10}


def test_batch_tiers_that_the_rules_do_not_know(tmp_path: Path) -> None:
    source = tree(tmp_path, {"engine/arg_utils.py": BATCH.format(big=160, small=4096, gb10="")})
    with pytest.raises(LearningError, match=r"the tiers are .*4096"):
        batch(source)


@pytest.mark.parametrize(
    ("scaled", "start", "original"), [('"su",', YARN, True), ('"su", "yarn"', "pass", False), ('"su",', "pass", None)]
)
def test_length_of_yarn(tmp_path: Path, scaled: str, start: str, original: bool | None) -> None:
    source = tree(tmp_path, {"config/model.py": LENGTH.format(scaled=scaled, start=start)})
    if original is None:
        with pytest.raises(LearningError, match="the factor of YaRN"):
            max_len(source)
    else:
        assert max_len(source) == {"yarn_from_original": original, "float": not original}


def test_long_prefill(tmp_path: Path) -> None:
    text = """
class SchedulerConfig:
    def verify_max_model_len(self, max_model_len):
        if {condition}self.long_prefill_token_threshold > max_model_len:
            raise ValueError(f"long_prefill_token_threshold ({{self.long_prefill_token_threshold}}) cannot be greater")
"""
    path = "config/scheduler.py"
    assert long_prefill(tree(tmp_path / "a", {path: text.format(condition="")})) == "always"
    partial = text.format(condition="self.max_num_partial_prefills > 1 and ")
    assert long_prefill(tree(tmp_path / "b", {path: partial})) == "partial"
    with pytest.raises(LearningError, match="not compared"):
        long_prefill(tree(tmp_path / "c", {path: text.format(condition="").replace("raise ValueError", "print")}))


def test_parsers_and_tokenizer_modes(tmp_path: Path) -> None:
    files = {
        "tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"zeta": ("z", "Z"), "alpha": ("a", "A")}',
        "reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"deepseek_v4": ("d", "D")}',
        "tokenizers/registry.py": (
            '_VLLM_TOKENIZERS = {"hf": ("hf", "Hf")}\n'
            "def resolve_tokenizer_args(tokenizer_mode):\n"
            '    if tokenizer_mode == "quick":\n        tokenizer_mode = "hf"\n'
            '    if tokenizer_mode == "auto":\n        tokenizer_mode = "hf"\n'
        ),
    }
    expected = {"tool": "alpha zeta", "reasoning": "deepseek_v4", "tokenizer": "auto hf quick"}
    assert parsers(tree(tmp_path, files)) == expected
    with pytest.raises(LearningError, match="a key is not a plain name"):
        parsers(tree(tmp_path / "b", files | {"reasoning/__init__.py": "_REASONING_PARSERS_TO_REGISTER = {**MORE}"}))


def test_kv_layouts(tmp_path: Path) -> None:
    files = {"v1/attention/backends/utils.py": "", "v1/attention/backends/mla/indexer.py": ""}
    assert kv_layouts(tree(tmp_path / "a", files)) is None
    files["v1/attention/backends/utils.py"] = "def resolve_kv_cache_layout(): pass"
    with pytest.raises(LearningError, match="has no DeepseekV4IndexerBackend"):
        kv_layouts(tree(tmp_path / "b", files))
    files["v1/attention/backends/mla/indexer.py"] = (
        "class DeepseekV4IndexerBackend:\n"
        "    def supported_kv_cache_layouts(cls):\n        return (KVCacheLayout.XY,)\n"
    )
    assert kv_layouts(tree(tmp_path / "c", files)) == ["XY"]


@pytest.mark.parametrize(
    ("flag", "env", "where"), [(True, True, "both"), (True, False, "flag"), (False, True, "env"), (False, False, None)]
)
def test_retention_interval(tmp_path: Path, flag: bool, env: bool, where: str | None) -> None:
    field = "prefix_cache_retention_interval" if flag else "other"
    check = 'def _validate_prefix_cache_retention_interval(): raise ValueError("a multiple of scheduler_block_size")'
    files = {
        "engine/arg_utils.py": f"class EngineArgs:\n    {field}: int = 0\n",
        "envs.py": '{"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": 0}' if env else "",
        "v1/core/kv_cache_coordinator.py": check,
    }
    assert retention(tree(tmp_path, files)) == where
    if where:
        with pytest.raises(LearningError, match="not compared with scheduler_block_size"):
            retention(tree(tmp_path / "b", files | {"v1/core/kv_cache_coordinator.py": ""}))


def test_lora(tmp_path: Path) -> None:
    refusals = """
class LoRAConfig:
    def verify_with_kernel_config(self, kernel_config):
        if moe_backend in MEGA_MOE_BACKENDS:
            raise ValueError(f"LoRA is not supported with moe_backend={moe_backend!r}.")
    def verify_with_model_config(self, model_config):
        if not model_config.is_lora_supported:
            raise ValueError(f"LoRA is not supported for {model_config.architecture}")
"""
    model = "models/deepseek_v4/nvidia/model.py"
    files = {"config/lora.py": refusals, model: "class DeepseekV4ForCausalLM(nn.Module, SupportsPP): pass"}
    assert lora(tree(tmp_path / "a", files)) == {"supported": False, "mega_moe_refused": True}
    files[model] = "class DeepseekV4ForCausalLM(nn.Module, SupportsLoRA): pass"
    assert lora(tree(tmp_path / "b", files)) == {"supported": True, "mega_moe_refused": True}
    files["config/lora.py"] = refusals.replace("LoRA is not supported with", "No LoRA with")
    with pytest.raises(LearningError, match="not refused together"):
        lora(tree(tmp_path / "c", files))


def config(method: str, body: str) -> str:
    return f"class VllmConfig:\n    def {method}(self):\n{body}"


EXPERTS = """
        if self.parallel_config.pipeline_parallel_size > 1:
            raise ValueError("--enable-return-routed-experts is incompatible with pipeline parallelism (PP > 1).")
        if self.parallel_config.decode_context_parallel_size > 1:
            raise ValueError("--enable-return-routed-experts is incompatible " "with context parallelism (any).")
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (config("__post_init__", "        pass\n"), None),
        (config("__post_init__", EXPERTS), {"checks": "own", "context": "context parallelism (any)."}),
        (
            config("_verify_aux_output_compatibility", EXPERTS.split("        if self.parallel_config.decode")[0]),
            {"checks": "auxiliary", "context": None},
        ),
    ],
)
def test_routed_experts(tmp_path: Path, text: str, expected: dict[str, Any] | None) -> None:
    assert routed_experts(tree(tmp_path, {"config/vllm.py": text})) == expected


def test_routed_experts_with_a_new_list(tmp_path: Path) -> None:
    text = config(
        "_validate_return_routed_experts", '        unsupported.append(f"sequence parallelism (size={self.x})")'
    )
    with pytest.raises(LearningError, match="sequence parallelism"):
        routed_experts(tree(tmp_path, {"config/vllm.py": text}))


def test_replay_with_drafts(tmp_path: Path) -> None:
    files = {"engine/arg_utils.py": "class EngineArgs:\n    return_sampling_mask: bool = False\n"}
    body = """
        if not self.use_v2_model_runner:
            raise ValueError("sampling distribution replay requires Model Runner V2")
        if self.speculative_config is not None:
            raise ValueError("sampling distribution replay does not support speculative decoding")
"""
    files["config/vllm.py"] = config("_verify_sampling_replay_config", body)
    assert replay_with_drafts(tree(tmp_path / "a", files)) is False
    files["config/vllm.py"] = files["config/vllm.py"].replace("does not support speculative decoding", "is fine")
    assert replay_with_drafts(tree(tmp_path / "b", files)) is True
    files["config/vllm.py"] = config("__post_init__", "        pass\n")
    with pytest.raises(LearningError, match="no error that starts with"):
        replay_with_drafts(tree(tmp_path / "c", files))


@pytest.mark.parametrize(("own", "crashes"), [(', deepseek_v4="DeepseekV4Config"', False), ("", True)])
def test_disable_sliding_window(tmp_path: Path, own: str, crashes: bool) -> None:
    files = {
        "transformers_utils/config.py": f'_CONFIG_REGISTRY = LazyConfigDict(deepseek_v32="DeepseekV3Config"{own})',
        "config/model.py": (
            "class ModelConfig:\n    def __post_init__(self):\n        if self.disable_sliding_window:\n"
            "            self.hf_text_config.sliding_window = None\n"
        ),
    }
    assert sliding_window_crash(tree(tmp_path, files)) is crashes
    with pytest.raises(LearningError, match="does not set sliding_window"):
        sliding_window_crash(tree(tmp_path / "b", files | {"config/model.py": "class ModelConfig:\n    x: int = 0\n"}))
