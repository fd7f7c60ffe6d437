from __future__ import annotations

from dsv4check.triage.stated import read_stated
from tests.triage.readings import log_reading, log_run

_LINE = (
    "Initializing a V1 LLM engine (v0.26.0) with config: model='deepseek-ai/DeepSeek-V4-Flash', "
    "speculative_config=SpeculativeConfig(method='mtp', model='deepseek-ai/DeepSeek-V4-Flash', num_spec_tokens=1), "
    "tokenizer='deepseek-ai/DeepSeek-V4-Flash', skip_tokenizer_init=False, tokenizer_mode=deepseek_v4, revision=None, "
    "trust_remote_code=True, dtype=torch.bfloat16, max_seq_len={length}, download_dir=None, load_format=auto, "
    "tensor_parallel_size=8, pipeline_parallel_size=1, data_parallel_size=1, decode_context_parallel_size=1, "
    "disable_custom_all_reduce=False, quantization=deepseek_v4_fp8, quantization_config=None, enforce_eager=True, "
    "kv_cache_dtype={dtype}, device_config=cuda, structured_outputs_config=StructuredOutputsConfig(backend='auto', "
    "reasoning_parser='deepseek_v4'), seed=0, served_model_name=flash, enable_prefix_caching=False, "
    "enable_chunked_prefill=True, pooler_config=None, compilation_config={{'mode': <CompilationMode.NONE: 0>, "
    "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}}, kernel_config=KernelConfig(moe_backend='auto')"
)


def _stated(length: int = 370000, dtype: str = "fp8_ds_mla"):  # type: ignore[no-untyped-def]
    run = log_run([_LINE.format(length=length, dtype=dtype)])
    return read_stated(log_reading(run), run)


def test_the_summary_gives_flags_where_nothing_better_is_there() -> None:
    stated = _stated()
    assert stated.model == "deepseek-ai/DeepSeek-V4-Flash"
    assert stated.words == (
        *("--tensor-parallel-size", "8", "--kv-cache-dtype", "fp8", "--max-model-len", "370000"),
        *("--enforce-eager", "--trust-remote-code", "--no-enable-prefix-caching"),
        *("--tokenizer-mode", "deepseek_v4", "--served-model-name", "flash", "--reasoning-parser", "deepseek_v4"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":1}'),
    )
    assert any("as they were typed" in text for text in stated.missing)


def test_what_is_the_models_own_needs_no_flag() -> None:
    words = _stated(length=1048576, dtype="auto").words
    assert "--max-model-len" not in words
    assert "--kv-cache-dtype" not in words


def test_decisions_in_the_summary_are_observed() -> None:
    observed = _stated().observed
    assert observed["quantization"] == "deepseek_v4_fp8"
    assert observed["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert observed["speculative_method"] == "mtp"


def test_the_printed_arguments_win_over_the_summary() -> None:
    run = log_run(
        [
            "non-default args: {'model': 'deepseek-ai/DeepSeek-V4-Flash', 'enable_expert_parallel': True}",
            _LINE.format(length=1, dtype="fp8"),
        ]
    )
    assert read_stated(log_reading(run), run).words == ("--enable-expert-parallel",)
