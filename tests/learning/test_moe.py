"""``moe``: the facts of the text for the shipped releases, the table made from answers, and the answers live."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import load_yaml, rules_dir
from dsv4check.learning.release import open_release
from dsv4check.learning.sections.moe import learn
from dsv4check.learning.sections.moe.facts import text_facts
from dsv4check.learning.sections.moe.packages import optional_packages
from dsv4check.learning.sections.moe.selection import aiter_exchanges, quantization_flags, selection
from dsv4check.learning.source import LearningError, Source
from dsv4check.rehearsal.environment import find_environment

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
RELEASES = sorted(
    (path.stem for path in (rules_dir() / "releases").glob("[0-9]*.yaml")),
    key=lambda name: tuple(map(int, name.split("."))),
)
FROM_ANSWERS = {"aiter_all2all", "packages", "quantization_refused", "quantization_taken", "selection"}

MODEL = """
class DeepseekV4MLP:
    pass

class DeepseekV4MegaMoEExperts:
    def __init__(self):
        pass
    def _check_runtime_supported(self):
        raise NotImplementedError("DeepGEMM MegaMoE requires SM100 GPUs.")
    def finalize_weights(self):
        self._check_runtime_supported()

class DeepseekV4MoE:
    def __init__(self, vllm_config):
        self.use_mega_moe = vllm_config.kernel_config.moe_backend in MEGA
        if self.use_mega_moe and self.scoring_func != "sqrtsoftplus":
            raise NotImplementedError("DeepSeek V4 MegaMoE currently supports sqrtsoftplus routing only.")
    def _init_mega_moe_experts(self):
        assert config.n_routed_experts % self.ep_size == 0

class DeepseekV4ForCausalLM(nn.Module, SupportsPP):
    pass
"""
FILES = {
    "config/kernel.py": """
MoEBackend = Literal["auto", "marlin", "giant", "huge"]
BIGGEST: Final = "huge"
MEGA = frozenset({"giant"}) | frozenset({BIGGEST})
""",
    "models/deepseek_v4/quant_config.py": """
class DeepseekV4FP8Config:
    def override_quantization_method(cls, config):
        if not (config.get("quant_method") in ("fp8",) or config.get("quant_method") == "quark"):
            return None
        return "deepseek_v4_fp8"
    def get_quant_method(self, layer):
        if self.expert_dtype == "fp4":
            return Mxfp4MoEMethod(layer)
""",
    "models/deepseek_v4/nvidia/model.py": MODEL,
    "model_executor/layers/quantization/fp8.py": """
class Fp8MoEMethod:
    def create_weights(self):
        if size % block_n != 0:
            raise ValueError(f"The output_size of gate's and up's weight = {size} is not divisible")
""",
    "model_executor/layers/quantization/mxfp4.py": """
class Mxfp4MoEMethod:
    def __init__(self, moe):
        self.mxfp4_backend = select_v4_mxfp4_moe_backend(moe)
""",
    "model_executor/layers/fused_moe/oracle/mxfp4.py": """
def select_v4_mxfp4_moe_backend(moe):
    if envs.is_set("VLLM_ONE") or envs.VLLM_ROCM_TWO:
        return envs.VLLM_THREE
""",
    "model_executor/layers/fused_moe/experts/odd.py": """
from vllm.utils.import_utils import has_humming
""",
    "model_executor/model_loader/weight_utils.py": """
def get_quant_config(model_config):
    pass
""",
    "v1/worker/gpu/spec_decode/eagle/utils.py": """
def load_eagle_model(target, vllm_config):
    vllm_config = vllm_config.speculative_config.apply_draft_overrides(vllm_config)
""",
    "config/speculative.py": """
OVERRIDES = (("moe_backend", "kernel_config", "moe_backend"),)
class SpeculativeConfig:
    def apply_draft_overrides(self, vllm_config):
        return [getattr(self, name) for name, _, _ in OVERRIDES]
""",
}
NO_DEVICE = [
    "ValueError",
    "Mxfp4 MoE backend 'MARLIN' does not support the deployment configuration since kernel "
    "does not support current device cuda.",
]
UNMAPPED = ["ValueError", "moe_backend='giant' is not supported for MXFP4 MoE. Expected one of ['marlin', 'odd']."]
NOTHING = ["NotImplementedError", "No MXFP4 MoE backend supports the deployment configuration."]
MORI = ["AssertionError", "Mori needs to be used with aiter fused_moe for now."]
CONFIG = ["ValidationError", "all2all_backend='passthrough' is only valid with other kernels"]
ONLINE = ["ValidationError", "Setting `quantization_config` for online quantization when it has one"]
TENSOR: dict[str, Any] = {
    "auto": {"7.0": 2, "9.0": "MARLIN", "10.0": "ODD"},
    "marlin": {"7.0": 0, "9.0": "MARLIN", "10.0": "MARLIN"},
    "giant": {"7.0": 1, "9.0": 1, "10.0": 1},
}
WITHOUT_ODD = {**TENSOR, "auto": {"7.0": 2, "9.0": "MARLIN", "10.0": "MARLIN"}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp": {"answers": TENSOR},
    "tp without hash layers": {"answers": TENSOR},
    "ep": {"answers": TENSOR},
    "dp ep first": {"answers": WITHOUT_ODD},
    "dp ep second": {"answers": WITHOUT_ODD},
    "dp ep plain": {"answers": TENSOR},
    "dp ep mori": {"stage": "layer", "error": 3},
    "dp ep passthrough": {"stage": "config", "error": 4},
    "dp": {"answers": TENSOR},
    "lora": {"answers": WITHOUT_ODD},
    "tp of one": {"answers": TENSOR},
    "lora ep": {"answers": TENSOR},
}


def fake(folder: Path, file: str = "", old: str = "", new: str = "") -> Source:
    """A package with the files above; in the one named, text is replaced."""
    for name, text in FILES.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        changed = text.replace(old, new) if name == file else text
        assert name != file or changed != text
        path.write_text(changed)
    metadata = folder / "vllm-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Requires-Dist: torch==2\nRequires-Dist: humming-kernels; extra == 'all'\n")
    return Source(folder / "vllm")


def answer(**layouts: dict[str, Any]) -> dict[str, Any]:
    """What the child says about one format; a layout's name has ``_`` for spaces."""
    given = {name.replace("_", " "): item for name, item in layouts.items()}
    return {
        "errors": [NO_DEVICE, UNMAPPED, NOTHING, MORI, CONFIG, ONLINE],
        "sweeps": [
            {"format": "mxfp4", "layout": name, **given.get(name, item)}
            for name, item in copy.deepcopy(LAYOUTS).items()
        ],
        "modules": {"mxfp4": {"ODD": ["vllm.model_executor.layers.fused_moe.experts.odd"]}},
        "quantization": {"fp8": "deepseek_v4_fp8", "humming": "humming", "mxfp8": 5},
    }


def shipped(version: str) -> dict[str, Any]:
    section: dict[str, Any] = load_yaml((rules_dir() / "releases" / f"{version}.yaml").read_text())["moe"]
    return section


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")
@pytest.mark.parametrize("version", RELEASES)
def test_shipped_facts_of_the_text(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    expected = {key: value for key, value in shipped(version).items() if key not in FROM_ANSWERS}
    assert text_facts(Source(package)) == expected


@pytest.mark.skipif(not (TREES and PYTHON), reason="needs DSV4CHECK_VLLM_TREES and DSV4CHECK_VLLM_PYTHON")
def test_newest_release_live() -> None:
    there = [name for name in RELEASES if (Path(str(TREES)) / name / "vllm").is_dir()]
    if not there:
        pytest.skip("no release is unpacked")
    release = open_release(find_environment(PYTHON, str(Path(str(TREES)) / there[-1])))
    assert learn(release) == shipped(there[-1])


def test_facts_of_the_fake_release(tmp_path: Path) -> None:
    assert text_facts(fake(tmp_path)) == {
        "choices": ["auto", "marlin", "giant", "huge"],
        "draft_moe_backend": True,
        "expert_dtype_read": True,
        "fp8_expert_block_checked": True,
        "mega": {
            "device_stage": "weight-load",
            "experts_text": False,
            "fp4_check": False,
            "names": ["giant", "huge"],
            "norm_check": False,
            "requires_ep": False,
        },
        "nvfp4_read": False,
        "online_composed": False,
        "quark_claimed": True,
        "shared_expert_padded": False,
    }


OWN = """
def bind(moe_backend, exchange):
    if moe_backend in MEGA:
        raise ValueError(f"{moe_backend} dispatches and combines itself and cannot be paired with {exchange}")
"""
KERNEL, QUANT, V4 = "config/kernel.py", "models/deepseek_v4/quant_config.py", "models/deepseek_v4/nvidia/model.py"


@pytest.mark.parametrize(
    ("file", "old", "new", "key", "value"),
    [
        (KERNEL, "MEGA =", OWN + "MEGA =", "own_all2all", ["giant", "huge"]),
        (QUANT, "not (config", "(config", "quark_claimed", False),
        (QUANT, "self.expert_dtype", "self.moe_quant_algo", "nvfp4_read", True),
        ("config/speculative.py", '"moe_backend"', '"kv_dtype"', "draft_moe_backend", False),
    ],
)
def test_facts_follow_the_text(tmp_path: Path, file: str, old: str, new: str, key: str, value: Any) -> None:
    assert text_facts(fake(tmp_path, file, old, new))[key] == value


def test_device_is_looked_at_by_the_constructor(tmp_path: Path) -> None:
    source = fake(
        tmp_path, V4, "        pass\n    def _check", "        self._check_runtime_supported()\n    def _check"
    )
    assert text_facts(source)["mega"]["device_stage"] == "model-init"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (V4, "sqrtsoftplus routing only", "one routing", "MegaMoE's condition on the routing is gone"),
        (V4, "requires SM100", "needs SM100", "asks for SM100"),
        (V4, "% self.ep_size", "// self.ep_size", "the number of experts is not compared with the ranks"),
        (KERNEL, 'frozenset({"giant"})', "chosen", "has no chosen"),
        (QUANT, "Mxfp4MoEMethod", "OtherMethod", "no Mxfp4MoEMethod any more"),
        ("model_executor/layers/quantization/fp8.py", "output_size of", "size of", "neither refused nor refined"),
    ],
)
def test_missing_code_is_said(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        text_facts(fake(tmp_path, file, old, new))


def test_table(tmp_path: Path) -> None:
    assert selection(fake(tmp_path), answer()) == {
        "mxfp4": {
            "label": "MXFP4",
            "names": ["marlin", "odd"],
            "reasons": {"device": "kernel does not support current device cuda"},
            "errors": {"none": {"type": NOTHING[0], "text": NOTHING[1]}},
            "tp": {"auto": "7.0: !none | 9.0: MARLIN | 10.0: ODD", "marlin": "7.0: MARLIN !device | 9.0: MARLIN"},
            "all2all": {"first second": {"auto": "7.0: !none | 9.0: MARLIN"}},
            "env": ["VLLM_ONE", "VLLM_THREE"],
        }
    }


def test_tables_with_adapters(tmp_path: Path) -> None:
    table = selection(fake(tmp_path, V4, "SupportsPP", "SupportsPP, SupportsLoRA"), answer())["mxfp4"]
    assert table["lora"] == {"auto": "7.0: !none | 9.0: MARLIN"}
    assert table["lora_ep"] == {"auto": "7.0: !none | 9.0: MARLIN | 10.0: ODD"}


def test_answers_beside_the_table(tmp_path: Path) -> None:
    assert aiter_exchanges(answer()) == ["mori"]
    assert quantization_flags(answer()) == {"quantization_refused": ["mxfp8"], "quantization_taken": ["humming"]}
    assert optional_packages(fake(tmp_path), answer()) == {"mxfp4.ODD": "humming-kernels"}


def test_required_packages_are_not_optional(tmp_path: Path) -> None:
    source = fake(tmp_path)
    (tmp_path / "vllm-1.dist-info" / "METADATA").write_text("Requires-Dist: humming-kernels[cu13]==0.1\n")
    assert optional_packages(source, answer()) == {}


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"dp": {"answers": WITHOUT_ODD}}, "differ between 'tp' and 'dp'"),
        ({"dp_ep_first": {"stage": "config", "error": 4}}, "refuses the layout 'dp ep first'"),
        (
            {"ep": {"answers": {**TENSOR, "auto": dict.fromkeys(["7.0", "9.0", "10.0"], 3)}}},
            "an unknown refusal of mxfp4",
        ),
    ],
)
def test_unknown_answers_are_said(tmp_path: Path, layouts: dict[str, Any], message: str) -> None:
    with pytest.raises(LearningError, match=message):
        selection(fake(tmp_path), answer(**layouts))


def test_a_layer_that_cannot_be_built_is_said() -> None:
    with pytest.raises(LearningError, match="cannot be built with dp ep first"):
        aiter_exchanges(answer(dp_ep_first={"stage": "layer", "error": 2}))


def test_a_package_without_a_name_is_said(tmp_path: Path) -> None:
    source = fake(tmp_path, "model_executor/layers/fused_moe/experts/odd.py", "has_humming", "has_brandnew")
    with pytest.raises(LearningError, match="has_brandnew looks for a package"):
        optional_packages(source, answer())
