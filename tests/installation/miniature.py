"""A made-up vLLM: a few lines a file, each with one decision that a fingerprint asks about."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from dsv4check.learning.source import Source

V4 = "models/deepseek_v4"
LAYER = f"{V4}/attention.py"
MODEL = f"{V4}/nvidia/model.py"
FLASHMLA = f"{V4}/nvidia/flashmla.py"
FLASHINFER = f"{V4}/nvidia/flashinfer_sparse.py"
MTP = f"{V4}/nvidia/mtp.py"
DSPARK = f"{V4}/nvidia/dspark.py"
AMD_MTP = f"{V4}/amd/mtp.py"
PLATFORMS = f"{V4}/__init__.py"
V1 = "v1/worker/gpu_model_runner.py"
V2 = "v1/worker/gpu/attn_utils.py"
UTILS = "v1/worker/utils.py"
GRAPHS = "v1/worker/gpu/cudagraph_utils.py"
SPECS = "v1/kv_cache_interface.py"
PLANNING = "v1/core/kv_cache_utils.py"
WINDOW = "v1/attention/backends/mla/sparse_swa.py"
TOP_K = "model_executor/layers/sparse_attn_indexer.py"
EXCHANGE = "model_executor/layers/fused_moe/all2all_utils.py"
TRTLLM = "model_executor/layers/fused_moe/experts/trtllm_fp8_moe.py"
REGISTRY = "model_executor/models/registry.py"
CONFIGS = "transformers_utils/config.py"
CACHE = "config/cache.py"
CONFIG = "config/vllm.py"
PARALLEL = "config/parallel.py"
ATTENTION = "config/attention.py"
SPECULATIVE = "config/speculative.py"
QUANTIZATION = "config/quantization.py"
ARGUMENTS = "engine/arg_utils.py"
PARSER = "utils/argparse_utils.py"
ENVS = "envs.py"
DSPARK_LOADER = "v1/worker/gpu/spec_decode/dspark/utils.py"
MTP_LOADER = "v1/worker/gpu/spec_decode/eagle/utils.py"

FILES = {
    "__init__.py": "",
    CACHE: """
        CacheDType = Literal["auto", "fp8", "nvfp4"]
        class CacheConfig:
            cache_dtype: CacheDType = "auto"
            def check(self):
                raise ValueError("Invalid kv_cache_dtype")
    """,
    ATTENTION: """
        class AttentionConfig:
            use_fp4_indexer_cache: bool = False
            indexer_kv_dtype: str = "auto"
    """,
    CONFIG: """
        V2_CLASSES = 1
        DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({"AnotherForCausalLM"})
        class VllmConfig:
            def __post_init__(self):
                self.other()
            @property
            def use_v2_model_runner(self):
                chosen = envs.VLLM_USE_V2_MODEL_RUNNER
                if chosen is not None:
                    return chosen
                if not self._is_default_v2_model_runner_model():
                    return False
                if self._get_v2_model_runner_unsupported_features():
                    return False
                return True
            def _is_default_v2_model_runner_model(self):
                return any(name in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES for name in self.architectures)
            def validate_nvfp4_kv_cache_with_mla(self):
                if self.cache_config.cache_dtype == "nvfp4" and self.model_config.use_mla:
                    raise ValueError("nvfp4 KV cache is not supported with MLA")
                return self
            def _set_max_num_scheduled_tokens(self):
                scheduled_token_delta = self.max_num_new_slots_for_drafting * self.max_num_seqs
                if self.tokens < scheduled_token_delta:
                    raise ValueError("the batch does not have enough slots")
    """,
    PARALLEL: """
        class ParallelConfig:
            def _validate_parallel_config(self):
                if self.dcp_comm_backend == "a2a" and self.decode_context_parallel_size == 1:
                    raise ValueError("a2a requires decode_context_parallel_size > 1.")
                return self
    """,
    QUANTIZATION: """
        def resolve_quantization_config(quantization, quantization_config):
            if quantization is not None and quantization not in NAMES:
                if quantization_config is not None:
                    raise ValueError(f"quantization_config is only supported when quantization is one of {NAMES}")
                return None
            return quantization_config
    """,
    SPECULATIVE: """
        SpeculativeMethod = Literal["mtp", "dspark", "custom_class"]
        DraftSampleMethod = Literal["greedy", "gumbel"]
        class SpeculativeConfig:
            method: SpeculativeMethod | None = None
            draft_sample_method: DraftSampleMethod = "greedy"
            kv_cache_dtype: str | None = None
            enable_adaptive_verification: bool = False
            def __post_init__(self):
                if self.model and "." in self.model and "/" not in self.model:
                    self.method = "custom_class"
                if self.method == "dspark":
                    if self.num_speculative_tokens < dspark_block_size:
                        raise ValueError(f"DSpark requires num_speculative_tokens >= {dspark_block_size}")
                    self.draft_model_config.hf_config.architectures = ["DSparkDraftModel"]
                if self.method != "dspark" and self.enable_adaptive_verification:
                    raise ValueError("Adaptive verification needs DSpark")
            @staticmethod
            def create_draft_parallel_config(target_parallel_config):
                return ParallelConfig(pipeline_parallel_size=target_parallel_config.pipeline_parallel_size)
    """,
    ARGUMENTS: """
        class EngineArgs:
            def create_speculative_config(self):
                given = self.speculative_config
                given.update(self.extra)
                return SpeculativeConfig(**given)
    """,
    PARSER: """
        class FlexibleArgumentParser:
            def parse_args(self, args):
                if "--config" in args:
                    args = self._pull_args_from_config(args)
                return args
            def _pull_args_from_config(self, args):
                place = args.index("--config")
                return self.load(args[place + 1])
    """,
    ENVS: """
        environment_variables = {
            "VLLM_USE_MODELSCOPE": lambda: (
                os.environ.get("VLLM_USE_MODELSCOPE", "no").lower() == "true"
            ),
        }
    """,
    SPECS: """
        class KVCacheSpec: pass
        class FullAttentionSpec(KVCacheSpec): pass
        class MLAAttentionSpec(FullAttentionSpec): pass
        class OtherSpec(FullAttentionSpec): pass
        def compute_layer_kv_cache_shape_bytes(spec, blocks, size):
            blocks_per_page = spec.block_size // size
            return (blocks * blocks_per_page, spec.rows, spec.state_content_size_bytes)
    """,
    V1: """
        class GPUModelRunner:
            def _reshape_kv_cache_tensors(self, tensors, kernel_block_sizes):
                for group in self.groups():
                    kv_cache_spec = group.kv_cache_spec
                    kernel_block_size = kernel_block_sizes[group.kv_cache_group_id]
                    for name in group.layer_names:
                        num_blocks = tensors[name].numel() // kv_cache_spec.page_size_bytes
                        string = (
                            "auto"
                            if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE
                            else getattr(kv_cache_spec, "cache_dtype_str", None)
                            or self.cache_config.cache_dtype
                        )
                        shape = group.backend.get_kv_cache_shape(
                            num_blocks,
                            kernel_block_size,
                            kv_cache_spec.num_kv_heads,
                            kv_cache_spec.head_size,
                            cache_dtype_str=string,
                        )
    """,
    V2: """
        def _reshape_kv_cache(groups, tensors, cache_dtype, kernel_block_sizes):
            for group in groups:
                kv_cache_spec = group.kv_cache_spec
                if kv_cache_spec.storage_block_size != kv_cache_spec.block_size:
                    kernel_block_size = kv_cache_spec.storage_block_size
                else:
                    kernel_block_size = kernel_block_sizes[group.kv_cache_group_id]
                for name in group.layer_names:
                    num_blocks = tensors[name].numel() // kv_cache_spec.page_size_bytes
                    pieces = kv_cache_spec.storage_block_size // kernel_block_size
                    kernel_num_blocks = num_blocks * pieces
                    string = (
                        "auto"
                        if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE
                        and not isinstance(kv_cache_spec, OtherSpec)
                        else cache_dtype
                    )
                    shape = group.backend.get_kv_cache_shape(
                        kernel_num_blocks,
                        kernel_block_size,
                        kv_cache_spec.num_kv_heads,
                        kv_cache_spec.head_size,
                        cache_dtype_str=string,
                    )
    """,
    UTILS: """
        def prepare_kernel_block_sizes(config, groups):
            sizes = []
            for group in config.groups:
                sizes.append(select_common_block_size(group.block_size, groups))
            return sizes
        def allocate_kv_cache(config): ...
    """,
    GRAPHS: """
        class Graphs:
            def _init_candidates(self):
                for num_tokens in self.sizes:
                    if mixed_mode:
                        num_reqs = None
                        if mixed_mode == CUDAGraphMode.FULL:
                            num_reqs = min(num_tokens, self.max_num_reqs)
    """,
    PLANNING: """
        def unify_hybrid_kv_cache_specs(specs):
            for name, spec in specs.items():
                if isinstance(spec, SlidingWindowMLASpec):
                    specs[name] = MLAAttentionSpec(
                        head_size=spec.head_size,
                        cache_dtype_str=spec.cache_dtype_str,
                        alignment=spec.alignment,
                    )
    """,
    WINDOW: """
        class DeepseekV4SWACache:
            def get_kv_cache_spec(self, vllm_config):
                packed = self.cache_config.cache_dtype == "fp8_ds_mla"
                return SlidingWindowMLASpec(
                    cache_dtype_str=self.cache_config.cache_dtype,
                    alignment=576 if packed else 512,
                    kv_quant_mode=get_kv_quant_mode(self.cache_config.cache_dtype),
                )
    """,
    LAYER: """
        def _resolve_dsv4_kv_cache_dtype(packed, kv_cache_dtype, cache_config):
            if packed:
                assert kv_cache_dtype.startswith("fp8"), f"this layout only supports fp8 kv-cache, got {kv_cache_dtype}"
                return "fp8_ds_mla", torch.uint8
            return kv_cache_dtype, torch.bfloat16
        class DeepseekV4Attention:
            packed_layout = True
            def __init__(self):
                self.kv_cache_dtype = _resolve_dsv4_kv_cache_dtype(self.packed_layout, cache_dtype, cache_config)
            def get_kv_cache_spec(self, vllm_config):
                packed = self.kv_cache_dtype == "fp8_ds_mla"
                return MLAAttentionSpec(
                    cache_dtype_str=self.kv_cache_dtype,
                    alignment=576 if packed else 512,
                    kv_quant_mode=get_kv_quant_mode(self.kv_cache_dtype),
                )
        class DeepseekV4Indexer:
            def __init__(self):
                self.use_fp4_kv = self.vllm_config.attention_config.use_fp4_indexer_cache
                k_cache_head_dim = self.head_dim + self.head_dim // self.quant_block_size * 4
    """,
    FLASHMLA: """
        class PackedBackend:
            supported_kv_cache_dtypes = [
                "auto",
                "fp8",
            ]
        from ..attention import DeepseekV4Attention
        class FlashMLAAttention(DeepseekV4Attention):
            backend_cls = PackedBackend
            @classmethod
            def get_padded_num_q_heads(cls, num_heads):
                if num_heads > 128:
                    raise ValueError(f"no kernel for {num_heads} heads")
                return 64 if num_heads <= 64 else 128
    """,
    FLASHINFER: """
        from ..attention import DeepseekV4Attention
        class PlainBackend:
            supported_kv_cache_dtypes = ["auto", "bfloat16", "fp8", "fp8_ds_mla"]
        def pad(num_heads):
            for size in (16, 32, 64, 128):
                if num_heads <= size:
                    return size
            raise ValueError(f"no kernel for {num_heads} heads")
        class FlashInferAttention(DeepseekV4Attention):
            packed_layout = False
            backend_cls = PlainBackend
            @classmethod
            def get_padded_num_q_heads(cls, num_heads):
                if num_heads > 128:
                    raise ValueError(f"no kernel for {num_heads} heads")
                return 64 if num_heads <= 64 else 128
            def decode(self):
                flashinfer_trtllm_batch_decode_sparse_mla_dsv4(
                    indices=self.indices,
                )
        class FlashInferSmall(DeepseekV4Attention):
            backend_cls = PlainBackend
            @classmethod
            def get_padded_num_q_heads(cls, num_heads):
                return pad(num_heads)
    """,
    MODEL: """
        from .flashinfer_sparse import FlashInferAttention, FlashInferSmall
        from .flashmla import FlashMLAAttention
        def _select_dsv4_attn_cls(vllm_config):
            backend = vllm_config.attention_config.backend
            capability = current_platform.get_device_capability()
            if backend == AttentionBackendEnum.FLASHINFER_MLA_SPARSE:
                raise ValueError(f"{backend.name} is not a DeepSeek V4 attention backend")
            if backend == AttentionBackendEnum.FLASHINFER_MLA_SPARSE_DSV4:
                return FlashInferAttention
            if capability is not None and capability.major == 12:
                return FlashInferSmall
            return FlashMLAAttention
        class DeepseekV4ForCausalLM(nn.Module, SupportsPP, MixtureOfExperts):
            def load_weights(self, weights):
                self.load(self._pad_shared_expert_weight(weights))
    """,
    MTP: """
        class DeepSeekV4MTP(nn.Module):
            def load_weights(self, weights):
                self.load(weights)
    """,
    AMD_MTP: """
        class DeepSeekV4MTP(nn.Module):
            def __init__(self):
                self.quant_config = given
    """,
    DSPARK: """
        class DSparkDeepseekV4ForCausalLM(nn.Module):
            def _remap_dspark_name(self, name):
                m = re.match(r"mtp\\.(\\d+)\\.(.*)", name)
                if m is None:
                    return None
                stage = int(m.group(1))
                rest = m.group(2)
                if rest.startswith(("main_proj.", "norm.")):
                    return f"model.{rest}"
                return f"model.layers.{stage}.{rest}"
    """,
    PLATFORMS: """
        if current_platform.is_rocm():
            from .amd.model import DeepseekV4ForCausalLM
        elif current_platform.is_xpu():
            from .xpu.model import DeepseekV4ForCausalLM
        else:
            from .nvidia.dspark import DSparkDeepseekV4ForCausalLM
    """,
    DSPARK_LOADER: """
        def load_dspark_model(target_model, vllm_config):
            speculative_config = vllm_config.speculative_config
            own = replace(
                vllm_config,
                attention_config=replace(vllm_config.attention_config, backend=speculative_config.attention_backend),
            )
            own.quant_config = get_draft_quant_config(vllm_config)
            return get_model(own)
    """,
    MTP_LOADER: """
        def load_eagle_model(target_model, vllm_config):
            if vllm_config.speculative_config.kv_cache_dtype is not None:
                vllm_config = replace(vllm_config)
            return get_model(vllm_config)
    """,
    TOP_K: """
        def indexer(logits):
            use_cooperative_topk = (
                current_platform.is_cuda()
                and current_platform.has_device_capability(90)
            )
            if use_cooperative_topk:
                torch.ops._C.cooperative_topk(logits)
    """,
    EXCHANGE: """
        def prepare(moe, quant_config):
            if quant_config.quant_dtype != "nvfp4":
                raise ValueError(
                    f"flashinfer_nvlink_one_sided only supports nvfp4 activation quantization, not {moe}"
                )
    """,
    TRTLLM: """
        def apply(x):
            return flashinfer.fused_moe.trtllm_fp8_block_scale_moe(
                hidden_states=x,
            )
    """,
    REGISTRY: """
        _TEXT_GENERATION_MODELS = {"DeepseekV4ForCausalLM": ("a", "b")}
        _MULTIMODAL_MODELS = {"Other": ("a", "b")}
    """,
    CONFIGS: """
        _CONFIG_REGISTRY = LazyConfigDict(deepseek_v4="DeepseekV4Config")
    """,
}
"""Every file with what it holds before a test changes it."""

VALUES = {
    "v1-cache-dtype-string": "spec-if-quantised",
    "v2-cache-dtype-string": "global-if-quantised",
    "v2-reshape-block-size": "storage-size",
    "common-block-size": "checked",
    "main-spec-quant-mode": "quant-mode",
    "swa-spec-quant-mode": "quant-mode",
    "packed-view-width": "packed",
    "promoted-swa-width": "lost",
    "plain-row-alignment": "aligned-512",
    "auto-kv-cache-dtype": "refused",
    "kv-cache-dtype-refusal": "assertion",
    "supported-kv-cache-dtypes": "as-stored",
    "nvfp4-with-mla": "exact",
    "kv-cache-dtype-names": "choices",
    "float-kv-cache-dtype": "unchecked",
    "mxfp4-indexer-size": "full",
    "indexer-dtype-option": "use-fp4-indexer-cache",
    "v4-attention-default": "own-class-on-sm12",
    "v4-named-backends": "generic-refused",
    "padded-query-heads": "from-16-on-sm12",
    "indexer-top-k-on-sm12": "on-sm12",
    "flashinfer-storage-offsets": "not-told",
    "default-runner": "v1",
    "default-runner-on-rocm": "v1",
    "v2-piecewise-requests": "exact",
    "dspark-method": "known",
    "dspark-name-mapping": "stage",
    "dspark-vendors": "nvidia",
    "dspark-attention": "own",
    "draft-kv-cache-dtype": "own",
    "dspark-quantization": "frozen",
    "draft-shared-expert-padding": "missing",
    "spec-draft-pipeline": "refused",
    "spec-tokens-below-block": "refused",
    "draft-model-as-class": "any-dot",
    "draft-token-budget": "per-sequence",
    "adaptive-verification": "dspark",
    "draft-sampling": "gumbel",
    "speculative-config-dashes": "refused",
    "v4-pipeline": "supported",
    "v4-expert-balancing": "supported",
    "v4-lora": "refused",
    "scale-fmt": "not-required",
    "v4-vision": "unknown",
    "v41-config": "unknown",
    "one-sided-exchange": "nvfp4",
    "trtllm-fp8-clamp": "dropped",
    "quantization-config-beside-method": "refused",
    "quark-mtp-prefix": "as-written",
    "config-file-option": "separate",
    "dcp-backend-without-dcp": "refused",
    "hidden-states-chunked": "accepted",
    "modelscope-switch": "true",
}
"""What the files above say."""


def miniature(folder: Path, edits: dict[str, tuple[tuple[str, str], ...]] | None = None) -> Source:
    """The made-up tree, after replacing text in some of its files; each text replaced must be there once."""
    package = folder / "vllm"
    for path, text in FILES.items():
        held = dedent(text)
        for old, new in (edits or {}).get(path, ()):
            assert held.count(old) == 1, (path, old, held.count(old))
            held = held.replace(old, new)
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(held, encoding="utf-8")
    return Source(package)
