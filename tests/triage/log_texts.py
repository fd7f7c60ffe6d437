"""What stands in a log where a rule's signature or quotation is only a part of it: the whole text, as it is printed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dsv4check.problems import Stage
from tests.triage.log_records import LogError

LOGGED = re.compile(
    r"Turning off hybrid kv cache manager|hidden_size too small for the SP|VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used"
    r"|^Casting torch|Unknown vLLM environment variable|Found duplicate keys|use_fp4_indexer_cache is deprecated"
    r"|all2all backend has been removed|not yet support .*using the V1 model runner"
    r"|max_num_scheduled_tokens is set to .*suboptimal|Dynamic speculative decoding is not supported with data"
)
"""Texts that vLLM's logger prints as warnings; everything else that a rule quotes ends the start or a request."""
INFORMED = re.compile(r"^SpecDecoding metrics")
DEEP_GEMM = "/workspace/.deps/deepgemm-src/csrc"
SITE = "/usr/local/lib/python3.12/dist-packages"
CUDA_TAIL = (
    "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
    " for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with"
    " `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A part of a text, and the whole of it; ``\\g<0>`` stands for the part that was found."""

    part: str
    kind: str
    text: str
    stage: Stage | None = None
    """Where it shows, when that is another place than the one the rule names."""
    request: bool = False
    """True for what fails a request and not the server."""


def config(name: str, text: str) -> str:
    return (
        f"1 validation error for {name}\n  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{'model':"
        " 'd...y_factory': None}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    )


VALIDATION = "pydantic_core._pydantic_core.ValidationError"
WHOLES = (
    Whole(r"^custom_all_reduce\.cuh:\d+ 'invalid argument'", "", r"Failed: Cuda error /workspace/csrc/\g<0>"),
    Whole(r"^Memory access fault by GPU node-\d+", "", r"\g<0> (Agent handle: 0x55d2c1a0) on address 0x7f3c1a200000."
          " Reason: Unknown."),
    Whole(r"^(CUDA_ERROR_ILLEGAL_ADDRESS|an illegal memory access was encountered)", "torch.AcceleratorError",
          f"CUDA error: an illegal memory access was encountered\n{CUDA_TAIL}"),
    Whole(r"^(CUDA_ERROR_INVALID_VALUE|invalid (configuration )?argument)\Z", "RuntimeError",
          f"CUDA driver error ({DEEP_GEMM}/jit/handle.hpp:172): 1 (CUDA_ERROR_INVALID_VALUE, invalid argument)"),
    Whole(r"^(?:jit/)?(\w+\.hpp):\d+\): (200 \(CUDA_ERROR\w+)", "RuntimeError",
          rf"CUDA driver error ({DEEP_GEMM}/jit/\1:172): \2, device kernel image is invalid)"),
    Whole(r"^(?:jit/)?(compiler\.hpp):\d+\)", "RuntimeError", rf"Assertion error ({DEEP_GEMM}/jit/\1:112)"),
    Whole(r"^(\w+\.hpp):\d+\)", "RuntimeError", rf"Assertion error ({DEEP_GEMM}/apis/\1:56)"),
    Whole(r"^context_lens\.is_contiguous\(\)", "RuntimeError", rf"Assertion error ({DEEP_GEMM}/apis/attention.hpp:327):"
          r" \g<0>"),
    Whole(r"^csrc/sm90/prefill/sparse/\S*phase1\.cuh:\d+\): Assertion", "RuntimeError", "Assertion error"
          " (/workspace/.deps/flashmla-src/csrc/sm90/prefill/sparse/phase1.cuh:614): Assertion"
          " `res == CUresult::CUDA_SUCCESS` failed."),
    Whole(r"^\S*vllm/_C\.abi3\.so: undefined symbol: ?(\.\.\.)?", "ImportError", f"{SITE}/vllm/_C.abi3.so: undefined"
          " symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"),
    Whole(r"^setStorage: sizes .*out of bounds for storage( of size)?\Z", "RuntimeError",
          "setStorage: sizes [4096, 2, 584], strides [37376, 584, 1], storage offset 0, and itemsize 1 requiring a"
          " storage size of 153092096 are out of bounds for storage of size 76546048"),
    Whole(r"^To serve at least one request with the model('?s?'?s)? max seq len.*\Z", "ValueError",
          "To serve at least one request with the model's max seq len (1048576), (12.41 GiB KV cache is needed, which"
          " is larger than the available KV cache memory (7.93 GiB). Based on the available memory, the estimated"
          " maximum model length is 655360. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when"
          " initializing the engine."),
    Whole(r"^Free memory on device .*desired GPU memory utilization\Z", "ValueError",
          "Free memory on device cuda:0 (103.2/119.7 GiB) on startup is less than desired GPU memory utilization (0.9,"
          " 107.7 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
    Whole(r"^DP adjusted local rank (\d+) is out of( bounds)?\Z", "AssertionError",
          r"DP adjusted local rank \1 is out of bounds. "),
    Whole(r"^RPC call to \w+ timed out\Z", "TimeoutError", r"\g<0>."),
    Whole(r"^No available shared memory broadcast block found in\Z", "TimeoutError",
          "RPC call to sample_tokens timed out."),
    Whole(r"^(The checkpoint you are trying to load has )?model type `deepseek_v4` but Transformers does not recognize"
          r".*\Z", VALIDATION, config("ModelConfig", "The checkpoint you are trying to load has model type"
          " `deepseek_v4` but Transformers does not recognize this architecture. This could be because of an issue with"
          " the checkpoint, or because your version of Transformers is out of date.")),
    Whole(r"^Invalid repository ID or local directory specified: '\Z", VALIDATION,
          config("ModelConfig", "Invalid repository ID or local directory specified: 'deepseek-v4-flash'.")),
    Whole(r"^OfflineModeIsEnabled\Z", "huggingface_hub.errors.OfflineModeIsEnabled", "Cannot reach"
          " https://huggingface.co/api/models/deepseek-ai/DeepSeek-V4-Flash: offline mode is enabled. To disable it,"
          " please unset the `HF_HUB_OFFLINE` environment variable."),
    Whole(r"^Please install modelscope>=1\.18\.1 via\Z", "ImportError",
          r"\g<0> `pip install modelscope>=1.18.1` to use ModelScope."),
    Whole(r"^Please install vllm\[(\w+)\] for\Z", "ImportError", r"\g<0> \1 support."),
    Whole(r"^No module named ", "ModuleNotFoundError", r"\g<0>"),
    Whole(r"^gRPC mode requires smg-grpc-servicer\Z", "ImportError",
          r"\g<0>. If not installed, run: pip install vllm[grpc]."),
    Whole(r"^Unable to find (address|interface) for: \w\Z", "RuntimeError",
          r"[/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find \1 for: eth7"),
    Whole(r"^Timed out waiting for engine core processes to start\Z", "TimeoutError",
          r"\g<0>. This is often caused by slow weight loading for large models. Waited 600s (configured by"
          " VLLM_ENGINE_READY_TIMEOUT_S). To increase the timeout, set the environment variable:"
          " VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"),
    Whole(r"^kernel requires amd-quark package\Z", "ValueError", "Mxfp4 MoE backend 'EMULATION' does not support the"
          r" deployment configuration since \g<0>."),
    Whole(r"^module 'cutlass\.cute\S*' has no attribute\Z", "AttributeError", r"\g<0> 'make_rmem_tensor'"),
    Whole(r"^MegaMoE expert weight shape mismatch for\Z", "ValueError", r"DeepSeek V4 \g<0> w13_weight: parameter shard"
          " (4096, 2048) vs checkpoint (4096, 4096)"),
    Whole(r"^start \((\d+)\) \+ length \((\d+)\) exceeds dimension size\Z", "RuntimeError", r"\g<0> (8)."),
    Whole(r"^'model\.layers\.\d+\.\Z", "KeyError", r"\g<0>attn.q_norm.bias'"),
    Whole(r"^'model\.layers\.\d+\.mtp_block\.\Z", "KeyError", r"\g<0>ffn.gate.e_score_correction_bias'"),
    Whole(r"^Error while deserializing header\Z", "safetensors_rust.SafetensorError",
          r"\g<0>: incomplete metadata, file not fully covered"),
    Whole(r"^SpecDecoding metrics:.*(Avg Draft acceptance rate: [\d.]+%)", "",
          r"SpecDecoding metrics: Mean acceptance length: 1.02, Accepted throughput: 0.31 tokens/s, Drafted"
          r" throughput: 130.10 tokens/s, Accepted: 3 tokens, Drafted: 1301 tokens, Per-position acceptance"
          r" rate: 0.010, 0.006, \1"),
    Whole(r"^Can't load tokenizer for\Z", "OSError", r"\g<0> 'deepseek-ai/DeepSeek-V4-Flash'. If you were trying to"
          " load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same"
          " name.",
          Stage.ENGINE_CONFIG),
    Whole(r"^\(?(NIXL|Mooncake|MoRIIO) is not available\Z", "RuntimeError", r"\g<0>"),
    Whole(r"^default chat template is no longer allowed.*\Z", "ValueError", r"As of transformers v4.44, \g<0> if the"
          " tokenizer does not define one.", request=True),
    Whole(r"^DeepSeek-V3\S* Tool parser could not locate tool call start/end tokens\Z", "RuntimeError",
          r"\g<0> in the tokenizer!", request=True),
    Whole(r"^could not locate think start/end tokens in the tokenizer\Z", "RuntimeError",
          r"DeepSeekR1ReasoningParser reasoning parser \g<0>!", request=True),
    Whole(r'^"auto" tool choice requires', "ValueError", r"\g<0>", request=True),
)  # fmt: skip


def whole(error: LogError) -> LogError:
    """The failure with the text that a log has for it; unchanged where what is known of it is all there is."""
    if error.kind == "argparse":
        return error
    for known in WHOLES:
        text, found = re.subn(known.part, known.text, error.message, count=1)
        if found:
            error = replace(error, kind=known.kind, message=text, stage=known.stage or error.stage)
            if INFORMED.match(text):
                return replace(error, level="INFO")
            return replace(error, level="ERROR", survived=known.request)
    return error
