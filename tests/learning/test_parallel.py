"""``parallel`` of the shipped releases is what their text says, and follows the text when it changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import load_yaml, rules_dir
from dsv4check.learning.release import Release, source_only
from dsv4check.learning.sections.parallel import learn
from dsv4check.learning.source import LearningError

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
RELEASES = sorted(path.stem for path in (rules_dir() / "releases").glob("[0-9]*.yaml"))

VALIDATOR = """
All2AllBackend = Literal["allgather_reducescatter", "moonep"]

class ParallelConfig:
    def _validate_parallel_config(self):
        if self.ranks <= 1:
            raise ValueError("EPLB requires tensor, prefill-context, or data parallelism, " f"but got {self.ranks}")
        if self.dcp not in (1, 2):
            raise ValueError("When PCP is enabled, DCP must be disabled")
    def _verify_args(self):
        return self
    def __post_init__(self):
        if self.data_parallel_hybrid_lb:
            raise NotImplementedError("Elastic EP is not compatible with data_parallel_hybrid_lb.")
"""
VLLM_CONFIG = """
class VllmConfig:
    def __post_init__(self):
        if self.parallel_config.all2all_backend == "moonep":
            raise ValueError("The moonep all2all backend currently supports unquantized models only")
        if current_platform.is_rocm():
            backends = ["mori"]
        else:
            backends = ["left", "right"]
        assert a2a in backends, (
            "Microbatching currently only supports the "
            f"{', '.join(backends)} all2all backends on this platform. {a2a} is not supported."
        )
"""
CREATE = """
class EngineArgs:
    def create_engine_config(self, headless):
        world_size_within_dp = self.pipeline_parallel_size * self.tensor_parallel_size
        assert self.data_parallel_backend == "mp", "nnodes > 1 is only supported with data_parallel_backend=mp"
        assert world_size % self.nnodes == 0, f"world_size={world_size} must be divisible by nnodes={self.nnodes}."
        assert self.node_rank < self.nnodes, f"node_rank={self.node_rank} must be less than nnodes={self.nnodes}."
        if self.data_parallel_size > 1 and self.data_parallel_external_lb:
            self.data_parallel_rank = inferred_data_parallel_rank
        assert self.local in (1, None), "data_parallel_size_local must be 1 or None when data_parallel_rank is set"
        if self.data_parallel_start_rank and not headless:
            self.data_parallel_hybrid_lb = True
        assert not self.hybrid, "data_parallel_size_local must be set to use data_parallel_hybrid_lb."
"""
FILES = {
    "config/parallel.py": VALIDATOR,
    "config/vllm.py": VLLM_CONFIG,
    "config/model.py": """
class ModelConfig:
    def verify_with_parallel_config(self, parallel_config):
        if parallel_config.pipeline_parallel_size > 1:
            raise NotImplementedError("Pipeline parallelism is not supported for this model.")
""",
    "engine/arg_utils.py": CREATE,
    "entrypoints/cli/serve.py": """
class ServeSubcommand:
    def cmd(args):
        raise ValueError("Cannot use both external and hybrid data parallel load balancing modes.")
""",
    "v1/kv_cache_interface.py": """
class SlidingWindowSpec:
    def max_memory_usage_bytes(self, config):
        assert config.decode_context_parallel_size == 1, "No DCP here."
""",
    "v1/worker/gpu_model_runner.py": """
class GPUModelRunner:
    def eplb_step(self):
        assert self.eplb_state is not None
        assert is_mixture_of_experts(model)
""",
    "model_executor/layers/fused_moe/layer.py": """
def layer():
    raise ValueError(f"EPLB currently only supports even distribution of experts. Got {experts}")
""",
    "models/deepseek_v4/nvidia/model.py": """
class DeepseekV4MoE:
    pass

class DeepseekV4ForCausalLM(nn.Module, SupportsPP):
    pass
""",
}


def fake(folder: Path, **changes: tuple[str, str]) -> Release:
    """A package with the files above; a change replaces text in the file whose stem it is given under."""
    for name, text in FILES.items():
        old, new = changes.get(Path(name).stem, ("", ""))
        assert old in text
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if old else text)
    return source_only(folder)


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")
@pytest.mark.parametrize("version", RELEASES)
def test_shipped_section(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    shipped = load_yaml((rules_dir() / "releases" / f"{version}.yaml").read_text())["parallel"]
    assert learn(source_only(package)) == shipped


def test_values_of_the_fake_release(tmp_path: Path) -> None:
    assert learn(fake(tmp_path)) == {
        "context_parallel_error": {"dcp": "No DCP here.", "pcp": None},
        "dbo_backends": ["left", "right"],
        "dbo_text": "platform",
        "dbo_threshold": False,
        "dcp_a2a_needs_dcp": False,
        "dcp_text": "pcp",
        "elastic_hybrid_only": True,
        "eplb_assert": "assert is_mixture_of_experts(model)",
        "eplb_even": "ValueError",
        "eplb_fused_divisor": "none",
        "eplb_protocol": False,
        "eplb_size_text": "pcp",
        "external_lb_overrides_rank": True,
        "geometry": "AssertionError",
        "hc_sp": False,
        "moonep": True,
        "multi_port_lb": False,
        "nnodes_counts_pcp": False,
        "pcp_needs_v2": False,
        "pcp_with_dp": True,
        "pipeline": True,
        "start_rank_zero_is_hybrid": False,
    }


OVERRIDE = (
    "            self.data_parallel_rank = inf",
    "            if self.data_parallel_rank is None:\n                self.data_parallel_rank = inf",
)


@pytest.mark.parametrize(
    ("file", "change", "key", "value"),
    [
        (
            "kv_cache_interface",
            ("No DCP", "Never DCP"),
            "context_parallel_error",
            {"dcp": "Never DCP here.", "pcp": None},
        ),
        (
            "arg_utils",
            ("= self.pipeline_parallel_size", "= self.prefill_context_parallel_size"),
            "nnodes_counts_pcp",
            True,
        ),
        ("arg_utils", ("_start_rank and", "_start_rank is not None and"), "start_rank_zero_is_hybrid", True),
        ("arg_utils", OVERRIDE, "external_lb_overrides_rank", False),
        ("serve", ("both external and hybrid data", "more than one data"), "multi_port_lb", True),
        ("vllm", ('["left", "right"]', '["middle"]'), "dbo_backends", ["middle"]),
    ],
)
def test_follows_the_text(tmp_path: Path, file: str, change: tuple[str, str], key: str, value: Any) -> None:
    assert learn(fake(tmp_path, **{file: change}))[key] == value


def test_protocol_through_a_base_of_the_same_file(tmp_path: Path) -> None:
    text = """
class Balanced(MixtureOfExperts):
    pass

class DeepseekV4MoE:
    def experts(self):
        assert self.n_physical_experts % self.tp_size == 0, "uneven"

class DeepseekV4ForCausalLM(nn.Module, Balanced):
    pass
"""
    release = fake(tmp_path)
    (tmp_path / "models/deepseek_v4/nvidia/model.py").write_text(text)
    learned = learn(release)
    assert (learned["eplb_protocol"], learned["eplb_assert"]) == (True, "")
    assert (learned["eplb_fused_divisor"], learned["pipeline"]) == ("tp", False)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("parallel", ("When PCP is enabled", "With PCP"), "_validate_parallel_config: none of the messages"),
        ("arg_utils", ("% self.nnodes", "// self.nnodes"), "create_engine_config: the division of the world"),
        ("arg_utils", ("must be less than nnodes", "is too large for"), "'must be less than nnodes=' is not there"),
        ("kv_cache_interface", ("decode_context_parallel_size", "other"), "decode context parallelism is not refused"),
        ("vllm", ("unquantized", "plain"), "quantised models are not refused"),
        ("gpu_model_runner", ("is_mixture_of_experts", "fine"), "eplb_step: the model is not asserted"),
        ("vllm", ("in backends", "in chosen()"), "the list of all-to-all backends for microbatches cannot be read"),
    ],
)
def test_missing_code_is_said(tmp_path: Path, file: str, change: tuple[str, str], message: str) -> None:
    with pytest.raises(LearningError, match=message.replace("(", r"\(")):
        learn(fake(tmp_path, **{file: change}))
