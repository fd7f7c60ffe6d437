"""Source text of a made-up package with a target, its loaders and the files they read."""

from __future__ import annotations

from tests.learning.fake_draft_names import FILES as DRAFTS

MODEL = """
def make_deepseek_v4_expert_params_mapping(count):
    return ["experts.fast.w13_"]

class DeepseekV4Model(nn.Module):
    def __init__(self, config):
        self.quant_config = config.quant_config

    def load_weights(self, weights):
        stacked_params_mapping = [("gate_up", "w1", 0), ("gate_up", "w3", 1)]
        def _resolve_param_name(name):
            inv_name = f"{name}_inv"
            if name not in params_dict and inv_name in params_dict:
                return inv_name
            return name
        for name, loaded_weight in weights:
            if name.startswith(("picture.",)):
                logger.warning_once("Skipping non-text weight: %s", name)
                continue
            if ".ffn.shared_experts.w" in name and fuse_by_layer.get(extract_layer_index(name), False):
                name = name.replace(".ffn.shared_experts.w", f".ffn.experts.{n_routed}.w")
            for param_name, weight_name, shard_id in stacked_params_mapping:
                if ".experts." in name:
                    continue
                if weight_name not in name:
                    continue
                name = name.replace(weight_name, param_name)
                name = _resolve_param_name(name)
                param = params_dict[name]
                weight_loader(param, loaded_weight, shard_id)
                break
            else:
                if ".experts." in name:
                    if "weight_scale" in name and loaded_weight.dtype == torch.float8_e8m0fnu:
                        loaded_weight = loaded_weight.view(torch.uint8)
                    for mapping in expert_mapping:
                        param_name, weight_name, expert_id, expert_shard_id = mapping
                        if weight_name not in name:
                            continue
                        name_mapped = name.replace(weight_name, param_name)
                        param = params_dict[name_mapped]
                        success = weight_loader(param, loaded_weight, name_mapped, shard_id=expert_shard_id)
                        if success:
                            name = name_mapped
                            break
                    loaded_params.add(name_mapped)
                    continue
                else:
                    if name not in params_dict:
                        continue
                    name = _resolve_param_name(name)
                    param = params_dict[name]
                    weight_loader(param, loaded_weight)
                    continue

    def get_expert_mapping(self):
        num_experts = self.config.n_routed_experts + (n_shared if self.is_fused else 0)
        return fused_moe_make_expert_params_mapping(
            self, ckpt_gate_proj_name="w1", ckpt_down_proj_name="w2", ckpt_up_proj_name="w3", num_experts=num_experts
        )

def _mapper(expert_dtype, fuse_shared_experts=False):
    if expert_dtype == "fp4":
        scales = {re.compile(r"(\\.experts\\.\\d+\\.w[123])\\.scale$"): r"\\1.four", re.compile(r"\\.scale$"): ".plain"}
    else:
        scales = {re.compile(r"\\.scale$"): ".plain"}
    parts = {} if fuse_shared_experts else {".shared_experts.w2": ".shared_experts.down"}
    parts["mtp."] = None
    return WeightsMapper(
        orig_to_new_prefix={"layers.": "model.layers."},
        orig_to_new_regex=scales,
        orig_to_new_suffix={"head.weight": "lm_head.weight"},
        orig_to_new_substr=parts,
    )

class DeepseekV4ForCausalLM(nn.Module):
    model_cls = DeepseekV4Model
    hf_to_vllm_mapper = _mapper("fp4")

    def __init__(self, vllm_config):
        expert_dtype = getattr(config, "expert_dtype", "fp4")
        self.model = self.model_cls(vllm_config=vllm_config)
        if expert_dtype != "fp4" or self.model.is_fused_shared_expert_enabled:
            fuse_shared_experts = self.model.is_fused_shared_expert_enabled
            self.hf_to_vllm_mapper = _mapper(expert_dtype, fuse_shared_experts=fuse_shared_experts)

    def load_weights(self, weights):
        loader = AutoWeightsLoader(self, skip_substrs=["old."])
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
"""

UTILS = """
class WeightsMapper:
    def _map_name(self, key):
        for prefix, new_key in self.orig_to_new_prefix.items():
            if key.startswith(prefix):
                if new_key is None:
                    return None
                key = key.replace(prefix, new_key, 1)
        for pattern, new_key in self.orig_to_new_regex.items():
            if pattern.search(key):
                if new_key is None:
                    return None
                key = pattern.sub(new_key, key)
        for substr, new_key in self.orig_to_new_substr.items():
            if substr in key:
                if new_key is None:
                    return None
                key = key.replace(substr, new_key, 1)
        for suffix, new_key in self.orig_to_new_suffix.items():
            if key.endswith(suffix):
                if new_key is None:
                    return None
                key = new_key.join(key.rsplit(suffix, 1))
        return key

class AutoWeightsLoader:
    ROTARY_EMBEDS_UNUSED_WEIGHTS = ["turned."]

    def __init__(self, module):
        self.skip_substrs += self.ROTARY_EMBEDS_UNUSED_WEIGHTS

    def _load_param(self):
        raise ValueError(f"Nested {weight_qualname!r} in {base_prefix!r}")

    def _load_module(self):
        msg = f"There is no module {prefix!r} in {self.module._get_name()}. More {words}"
        raise ValueError(msg)

    def load_weights(self, weights):
        self.ignore_unexpected_suffixes.append(".bias")
"""

WEIGHT_UTILS = """
def filter_duplicate_safetensors_files(hf_weights_files, hf_folder, index_file):
    index_file_name = os.path.join(hf_folder, index_file)
    if not os.path.isfile(index_file_name):
        return hf_weights_files
    with open(index_file_name) as f:
        weight_map = json.load(f)["weight_map"]
    weight_files_in_index = set()
    for weight_name in weight_map:
        weight_files_in_index.add(os.path.join(hf_folder, weight_map[weight_name]))
    hf_weights_files = [f for f in hf_weights_files if f in weight_files_in_index]
    return hf_weights_files
"""

LOADER = """
class DefaultModelLoader:
    def _prepare_weights(self):
        hf_weights_files = filter_duplicate_safetensors_files(hf_weights_files, hf_folder, index_file)
        if len(hf_weights_files) == 0:
            raise RuntimeError(f"No weights in `{model_name_or_path}`")

    def load_weights(self, model, model_config):
        if model_config.quantization is None and loaded_weights is not None:
            weights_not_loaded = weights_to_load - loaded_weights
            if weights_not_loaded:
                raise ValueError(f"Not loaded: {weights_not_loaded}")
"""

FILES = {
    **DRAFTS,
    "models/deepseek_v4/__init__.py": """
if current_platform.is_rocm():
    from .amd.mtp import DeepSeekV4MTP
    from .nvidia.model import DeepseekV4ForCausalLM
else:
    from .nvidia.mtp import DeepSeekV4MTP
    from .nvidia.dspark import DSparkDeepseekV4ForCausalLM
    from .nvidia.model import DeepseekV4ForCausalLM
""",
    "models/deepseek_v4/nvidia/model.py": MODEL,
    "model_executor/models/registry.py": """
_MODELS = {"DeepseekV4ForCausalLM": ("vllm.models.deepseek_v4", "DeepseekV4ForCausalLM")}
""",
    "model_executor/models/utils.py": UTILS,
    "model_executor/model_loader/weight_utils.py": WEIGHT_UTILS,
    "model_executor/model_loader/default_loader.py": LOADER,
}
