"""``config_fields`` of the shipped releases is what their code says, and follows it when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.release import Release, source_only
from dsv4check.learning.sections.config_fields import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped(version: str) -> None:
    assert_learned("config_fields", version)


REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "DeepseekV3ForCausalLM": ("deepseek_v2", "X"),
    "DeepseekV4ForCausalLM": ("vllm.models.deepseek_v4", "DeepseekV4ForCausalLM"),
}
_MULTIMODAL_MODELS = {"LlavaForConditionalGeneration": ("llava", "X")}
"""
CONFIGS = '_CONFIG_REGISTRY = LazyConfigDict(chatglm="ChatGLMConfig", deepseek_v4="DeepseekV4Config")\n'
OWN_CLASS = """
class DeepseekV4Config(PretrainedConfig):
    def __init__(self, window_scale=1, **kwargs):
        self.window_scale = window_scale
        super().__init__(**kwargs)
"""
MODEL = """
class Layer:
    def __init__(self, vllm_config):
        config = vllm_config.model_config.hf_config
        self.size = config.hidden_size
        self.scale = config.window_scale
        self.tail = getattr(config, "tail", 0)
        if self.tail:
            print(config.tail)

class Model:
    def __init__(self, vllm_config):
        config = self.config = vllm_config.model_config.hf_config
        self.layers = [Layer(vllm_config) for _ in range(config.num_hidden_layers)]
        self.heads = self.config.num_attention_heads
        self.quantization = config.quantization_config["scale_fmt"]
        config.to_dict()
"""
QUANTIZATION = """
_DEEPSEEK_V4_EXPERT_DTYPES = ("fp4",)
class Config:
    def check(self, dtype):
        if dtype not in _DEEPSEEK_V4_EXPERT_DTYPES:
            raise ValueError(f"Unsupported DeepSeek V4 expert_dtype={dtype!r}")
"""
FILES = {
    "model_executor/models/registry.py": REGISTRY,
    "transformers_utils/config.py": CONFIGS,
    "transformers_utils/configs/deepseek_v4.py": OWN_CLASS,
    "config/vllm.py": "class VllmConfig:\n    model_config: ModelConfig = None\n    load_config: int = 0\n",
    "models/deepseek_v4/nvidia/model.py": MODEL,
    "models/deepseek_v4/nvidia/mtp.py": "def build(config):\n    return config.only_the_draft\n",
    "models/deepseek_v4/quant_config.py": "",
}


def release(folder: Path, transformers: str = ">=4.56", **replaced: str | None) -> Release:
    """A made-up release; keys of ``replaced`` are the last part of a path (``registry``); None removes the file."""
    metadata = folder / "vllm-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        f"Requires-Python: >=3.10\nRequires-Dist: torch==2.14.0\nRequires-Dist: transformers{transformers}\n"
    )
    for path, text in FILES.items():
        written = replaced.get(Path(path).stem, text)
        if written is not None:
            target = folder / "vllm" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(written)
    return source_only(folder / "vllm")


def test_fields_without_a_default(tmp_path: Path) -> None:
    found = learn(release(tmp_path))
    assert found["required"] == ["hidden_size", "num_attention_heads", "num_hidden_layers"]
    assert found["config_class"] == "vllm"
    assert found["model_types"] == ["deepseek_v4"]
    assert found["architectures"] == ["DeepseekV4ForCausalLM"]
    assert (found["scale_fmt_read"], found["expert_dtype_checked"], found["vision"]) == (True, False, False)
    assert found["layer_types_validated"] == "none"


def test_a_new_field_is_required(tmp_path: Path) -> None:
    text = MODEL.replace('config.quantization_config["scale_fmt"]', "config.rank + self.config.num_attention_heads")
    found = learn(release(tmp_path, model=text))
    assert "rank" in found["required"]
    assert found["scale_fmt_read"] is False


def test_the_class_of_transformers(tmp_path: Path) -> None:
    text = CONFIGS.replace(', deepseek_v4="DeepseekV4Config"', "")
    found = learn(release(tmp_path, ">=5.16,<6", config=text, deepseek_v4=None))
    assert found["config_class"] == "transformers"
    assert "required" not in found
    assert found["layer_types_validated"] == "mlp_layer_types"


def test_expert_dtype(tmp_path: Path) -> None:
    assert learn(release(tmp_path, quant_config=QUANTIZATION))["expert_dtype_checked"] is True


def test_vision_classes(tmp_path: Path) -> None:
    text = REGISTRY.replace("_MULTIMODAL_MODELS = {", '_MULTIMODAL_MODELS = {"DeepseekV4ForConditionalGeneration": (),')
    found = learn(release(tmp_path, registry=text))
    assert found["vision"] is True
    assert found["architectures"] == ["DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"]


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"registry": "_TEXT_GENERATION_MODELS = {}\n_MULTIMODAL_MODELS = {}\n"}, "no DeepseekV4ForCausalLM"),
        ({"registry": REGISTRY.replace("_MULTIMODAL_MODELS", "_OTHER")}, "has no _MULTIMODAL_MODELS"),
        ({"config": "_CONFIG_REGISTRY = {}\n"}, "_CONFIG_REGISTRY is not made by a call"),
        ({"model": "class Model:\n    pass\n"}, "no longer reads config.hidden_size"),
        ({"quant_config": QUANTIZATION.replace("Unsupported", "Unknown")}, "checked in another way"),
        ({"model": None, "mtp": None, "quant_config": None}, "models/deepseek_v4 is not there"),
    ],
)
def test_code_that_moved(tmp_path: Path, replaced: dict[str, str | None], message: str) -> None:
    with pytest.raises(LearningError, match=message):
        learn(release(tmp_path, **replaced))
