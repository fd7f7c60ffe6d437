"""Source text of a made-up package with all that the section ``spec_decode`` looks at."""

from __future__ import annotations

CONFIG = """
    from vllm.config.kernel import MoEBackend
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    MTPModelTypes = Literal["old_mtp", "mtp"]
    EagleModelTypes = Literal["eagle", MTPModelTypes]
    SpeculativeMethod = Literal["ngram", "custom_class", EagleModelTypes, "mtp", "dspark"]

    class SpeculativeConfig:
        num_speculative_tokens: int = Field(default=None, gt=0)
        method: SpeculativeMethod | None = None
        moe_backend: MoEBackend | None = None
        kv_cache_dtype: Literal["auto", "fp8"] | None = None
        quantization: me_quant.QuantizationMethods | str | None = None
        share: float = Field(default=0.3, ge=0.5)
        schedule: list[tuple[int, int, int]] | None = None
        draft_model_config: SkipValidation[ModelConfig] = None
        enable_adaptive_verification: bool = False
        dspark_draft_topk: int | None = Field(default=None, ge=1)

        @staticmethod
        def _is_path(model):
            return "/" not in model and all(part.isidentifier() for part in model.split("."))

        def __post_init__(self):
            if self.method is None and SpeculativeConfig._is_path(self.model):
                self.method = "custom_class"
            self.draft_model_config = ModelConfig(model=self.model, runner="draft", max_model_len=self.max_model_len)
            if self.method in ("eagle", "dspark"):
                pass
            elif "eagle-" in self.draft_model_config.model.lower():
                self.method = "eagle"
            elif "spark" in self.draft_model_config.model.lower() or "XModel" in self.draft_model_config.architectures:
                self.method = "dspark"
            elif self.draft_model_config.hf_config.model_type in get_args(MTPModelTypes):
                self.method = "mtp"
                if self.target_model_config.hf_config.model_type == "deepseek_v41":
                    raise ValueError("no classic-MTP draft")
            if self.method == "dspark" and "XModel" not in self.draft_model_config.architectures:
                self.draft_model_config.hf_config.architectures = ["DSparkDraftModel"]
            if self.use_dspark():
                if self.num_speculative_tokens is None:
                    block_size = getattr(hf_config, "dspark_block_size", None)
                    self.num_speculative_tokens = block_size
            elif n_predict is not None:
                if self.num_speculative_tokens % n_predict != 0:
                    raise ValueError(f"num_speculative_tokens must be divisible by {n_predict=}")
            if self.dspark_draft_topk is not None and self.method != "dspark":
                raise ValueError("dspark_draft_topk is only supported by DSpark")
            if "XModel" not in self.draft_model_config.architectures:
                raise ValueError("dspark_draft_topk is only supported by XModel")
            if self.method != "dspark" and self.enable_adaptive_verification and self.use_local_argmax_reduction:
                raise ValueError("Adaptive verification estimates acceptance from the draft logits")

        @staticmethod
        def create_draft_parallel_config(target_parallel_config, size):
            return ParallelConfig(pipeline_parallel_size=target_parallel_config.pipeline_parallel_size)

        def use_eagle(self):
            return self.method in ("eagle", "mtp", "dspark")

        def _verify_args(self):
            return self
"""

ARGUMENTS = """
    class EngineArgs:
        def create_speculative_config(self):
            self.speculative_config = {k.replace("-", "_"): v for k, v in self.speculative_config.items()}
            if self.spec_method is not None and "method" in self.speculative_config:
                raise ValueError(f"{flag} and --speculative-config['{key}'] are mutually exclusive")
            return SpeculativeConfig(**self.speculative_config)

        def get_batch_defaults(cls, world_size):
            small_one = current_platform.is_device_capability((12, 1))
            if device_memory >= 200 * GiB_bytes:
                default_max_num_batched_tokens = {UsageContext.OPENAI_API_SERVER: 32768}
                default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 2048}
            elif device_memory >= 90 * GiB_bytes and "a100" not in device_name and not small_one:
                default_max_num_batched_tokens = {UsageContext.LLM_CLASS: 1, UsageContext.OPENAI_API_SERVER: 4096}
                default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 512}
            else:
                default_max_num_batched_tokens = {UsageContext.OPENAI_API_SERVER: 1024}
                default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 64}
"""

VLLM_CONFIG = """
    class VllmConfig:
        def _set_max_num_scheduled_tokens(self):
            scheduled_token_delta = self.speculative_config.max_num_new_slots_for_drafting
            if max_num_batched_tokens <= scheduled_token_delta:
                raise ValueError("VllmConfig does not have enough slots to schedule a token")

        def _validate_adaptive_verification(self):
            if not spec_config.enable_adaptive_verification:
                return
            if not self.compilation_config.cudagraph_mode.has_full_cudagraphs():
                raise ValueError("Adaptive verification requires full CUDA graphs.")
"""

PROPOSER = """
    class SpecDecodeBaseProposer:
        def _create_draft_vllm_config(self):
            if spec_cfg.kv_cache_dtype is not None:
                return replace(base, cache_dtype=spec_cfg.kv_cache_dtype)

        def load_model(self):
            if self.use_local_argmax_reduction:
                raise ValueError(f"{self.model.__class__.__name__} does not implement get_top_tokens().")
"""

DRAFT_MODEL = """
    class {name}(nn.Module):
        draft_id_to_target_id = None

        def load_weights(self, weights):
            mapping = fused_moe_make_expert_params_mapping(self, num_experts=8)
            self._pad_shared_expert_weight(weights)
"""

FILES = {
    "config/speculative.py": CONFIG,
    "config/kernel.py": 'MoEBackend = Literal["auto", "cutlass"]',
    "config/vllm.py": VLLM_CONFIG,
    "engine/arg_utils.py": ARGUMENTS,
    "v1/attention/backends/registry.py": """
        class AttentionBackendEnum(Enum):
            ONE = "vllm.one"
            TWO = ""
    """,
    "v1/spec_decode/llm_base_proposer.py": PROPOSER,
    "v1/worker/gpu_model_runner.py": "self.drafter = EagleProposer(self.vllm_config)",
    "v1/worker/gpu/spec_decode/eagle/utils.py": """
        def load_eagle_model(target_model, vllm_config):
            return get_model(vllm_config, speculative_config.kv_cache_dtype)
    """,
    "v1/worker/gpu/spec_decode/dspark/utils.py": """
        def load_dspark_model(target_model, vllm_config):
            draft_vllm_config.quant_config = get_draft_quant_config(vllm_config)
    """,
    "v1/worker/gpu/spec_decode/dspark/speculator.py": "d2t = model.draft_id_to_target_id",
    "models/deepseek_v4/__init__.py": """
        if current_platform.is_rocm():
            DSparkDeepseekV4ForCausalLM = None
        elif current_platform.is_xpu():
            from .xpu.dspark import DSparkDeepseekV4ForCausalLM
        else:
            from .nvidia.dspark import DSparkDeepseekV4ForCausalLM
    """,
    "models/deepseek_v4/nvidia/model.py": """
        class DeepseekV4ForCausalLM(nn.Module, SupportsPP):
            def load_weights(self, weights):
                self._pad_shared_expert_weight(weights)
    """,
    "models/deepseek_v4/nvidia/mtp.py": DRAFT_MODEL.format(name="DeepSeekV4MTP"),
    "models/deepseek_v4/nvidia/dspark.py": DRAFT_MODEL.format(name="DSparkDeepseekV4ForCausalLM"),
    "models/deepseek_v4/xpu/dspark.py": "class DSparkDeepseekV4ForCausalLM(nn.Module): pass",
    "model_executor/layers/fused_moe/layer.py": """
        def fused_moe_make_expert_params_mapping(model, num_experts, routed_experts_prefix="inner"):
            return RoutedExperts.make_expert_params_mapping(model)
    """,
}
