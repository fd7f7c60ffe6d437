"""Source text of a made-up package with drafts, each with loaders of the kind that vLLM has."""

from __future__ import annotations

MTP = '''
def make_deepseek_v4_expert_params_mapping(count):
    return [("experts.fast.w13_" if part in ("w1", "w3") else "experts.fast.w2_", part) for part in parts]

_EXPERT_SCALE_RE = re.compile(r"\\.experts\\.\\d+\\.w[123]\\.scale$")

class DeepSeekV4MTP(nn.Module):
    def load_weights(self, weights):
        table = {".head.weight": ".shared_head.head.weight"}
        stacked_params_mapping = [("gate_up", "w1", 0), ("gate_up", "w3", 1)]
        if fast:
            expert_mapping = make_deepseek_v4_expert_params_mapping(8)
        else:
            expert_mapping = fused_moe_make_expert_params_mapping(
                self, ckpt_gate_proj_name="a", ckpt_down_proj_name="b", ckpt_up_proj_name="c", num_experts=8
            )
        expert_suffix = ".four" if getattr(self.config, "expert_dtype", "fp4") == "fp4" else ".eight"
        for name, weight in weights:
            name = name.replace(f"mtp.{i}.", f"model.layers.{self.config.num_hidden_layers + i}.")
            if name.endswith(".scale"):
                suffix = expert_suffix if _EXPERT_SCALE_RE.search(name) else ".plain"
            if ".shared_experts.w2" in name:
                name = name.replace(".w2", ".down")
            if name.endswith(".gate.bias"):
                name = name.replace(".bias", ".correction")
            if ".experts." in name:
                weight = weight.view(raw)
                for mapping in expert_mapping:
                    name_mapped = name.replace(weight_name, param_name)
                continue
            param = params_dict[name]
        if not loaded:
            raise ValueError(f"layer {layer_idx} weights missing from checkpoint.")

    def _rewrite_spec_layer_name(self, spec_layer, name):
        """Names of a layer."""
        own = ["enorm", "embed_tokens"]
        for part in own:
            if part in name:
                if part == "embed_tokens":
                    name = name.replace(f"model.layers.{spec_layer}.", "model.")
                return name
        name = name.replace(f"model.layers.{spec_layer}.", f"model.layers.{spec_layer}.inner_block.")
        return name
'''

DSPARK = '''
_EXPERT_SCALE_RE = re.compile(r"\\.experts\\.\\d+\\.w[123]\\.scale$")
_CONTEXT = re.compile(r"^mtp\\.(\\d+)\\.attn\\.wkv\\.(.+)$")

def _copies(weights):
    for name, weight in weights:
        match = _CONTEXT.fullmatch(name)
        yield f"context_proj.{match.group(2)}", weight

class Model(nn.Module):
    def __init__(self):
        self.num_dspark_layers = getattr(config, "n_mtp_layers", None) or 2

class DSparkDeepseekV4ForCausalLM(nn.Module):
    def load_weights(self, weights):
        stacked_params_mapping = [("gate_up", "w1", 0)]
        expert_mapping = fused_moe_make_expert_params_mapping(
            self, ckpt_gate_proj_name="w1", ckpt_down_proj_name="w2", ckpt_up_proj_name="w3", num_experts=8
        )
        for name, weight in weights:
            if name.endswith(".scale"):
                suffix = ".four" if _EXPERT_SCALE_RE.search(name) else ".plain"
            if ".experts." in name:
                weight = weight.view(raw)
                for mapping in expert_mapping:
                    name_mapped = name.replace(weight_name, param_name)
                continue
            if not name.startswith("model.layers."):
                continue
            if name not in params_dict:
                break
            param = params_dict[name]
            if ".shared_experts.w2" in name:
                name = name.replace(".shared_experts.w2", ".shared_experts.down")
            if name.endswith(".gate.bias"):
                name = name.replace(".gate.bias", ".gate.correction")
            if name not in params_dict:
                continue
            param = params_dict[name]

    def _remap_dspark_name(self, name: str) -> str | None:
        """Where ``mtp.{i}.*`` goes."""
        if name.startswith("context_proj."):
            return f"model.{name}"
        m = re.match(r"mtp\\.(\\d+)\\.(.*)", name)
        if m is None:
            return None
        stage = int(m.group(1))
        rest = m.group(2)
        if rest.startswith("extra."):
            return None
        if rest.startswith("judge.") and self.model.confidence_head is None:
            return None
        if rest.startswith("tail."):
            return "model.heads.tail." + rest.removeprefix("tail.")
        if rest.startswith(("norm.", "judge.")):
            return f"model.{rest}"
        return f"model.layers.{stage}.{rest}"
'''

FILES = {
    "config/speculative.py": 'SpeculativeMethod = Literal["mtp", "dspark"]',
    "models/deepseek_v4/__init__.py": """
if current_platform.is_rocm():
    from .amd.mtp import DeepSeekV4MTP
    DSparkDeepseekV4ForCausalLM = None
elif current_platform.is_xpu():
    from .nvidia.mtp import DeepSeekV4MTP
else:
    from .nvidia.mtp import DeepSeekV4MTP
    from .nvidia.dspark import DSparkDeepseekV4ForCausalLM
""",
    "models/deepseek_v4/nvidia/mtp.py": MTP,
    "models/deepseek_v4/amd/mtp.py": MTP.replace('".four"', '".amd"'),
    "models/deepseek_v4/nvidia/dspark.py": DSPARK,
    "model_executor/models/deepseek_v2.py": """
def get_spec_layer_idx_from_weight_name(config, name):
    count = config.num_nextn_predict_layers
    return next((i for i in range(count) if name.startswith((f"model.layers.{i}.", f"layers.{i}."))), None)
""",
    "model_executor/layers/fused_moe/layer.py": """
def fused_moe_make_expert_params_mapping(model, gate, down, up, num_experts, routed_experts_prefix="inner"):
    return RoutedExperts.make_expert_params_mapping(model)
""",
}
