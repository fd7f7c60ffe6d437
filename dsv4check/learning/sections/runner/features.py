"""The two lists of features that a runner does not support, and the test of resolve/runner.py for each."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...guards import Guarded, guarded, template, words
from ...source import LearningError, Source
from .place import CONFIG, V1_CHECK, V1_LIST, V2_CHECK, V2_LIST, method, required

_NOISE: Final = {
    *("self", "getattr", "model_config", "speculative_config", "parallel_config", "compilation_config"),
    *("cache_config", "scheduler_config", "pass_config", "CompilationMode", "CUDAGraphMode", "mode"),
}
"""Words of a condition that do not tell one feature from another."""

TESTS: Final[Mapping[frozenset[str], str]] = {
    frozenset(key.split()): test
    for key, test in (
        ("prefill_context_parallel_size", "pcp"),
        ("STOCK_TORCH_COMPILE", "stock_compile"),
        ("enable_sp tensor_parallel_size", "sequence_parallel"),
        ("distributed_executor_backend external_launcher pipeline_parallel_size", "external_launcher_pp"),
        ("method ngram ngram_gpu", "ngram"),
        ("uses_dynamic_speculative_decoding", "dynamic_spec"),
        ("parallel_drafting", "parallel_drafting"),
        ("parallel_drafting method dflash", "parallel_drafting"),
        ("parallel_drafting method dflash dspark", "parallel_drafting"),
        ("method eagle3 pipeline_parallel_size", "eagle3_pp"),
        ("reasoning_config", "reasoning"),
        ("enable_dbo", "dbo"),
        ("enable_elastic_ep", "elastic_ep"),
        ("enable_return_routed_experts", "routed_experts"),
        ("logits_processors", "logits_processors"),
        ("logits_processors has_logitsproc_plugins", "logits_processors"),
        ("enable_prompt_embeds", "prompt_embeds"),
        ("runner_type generate logprobs_mode raw_logits processed_logits", "logprobs_mode"),
        ("kv_sharing_fast_prefill", "kv_sharing"),
        ("ec_transfer_config", "ec_transfer"),
        ("enable_adaptive_verification lora_config", "adaptive_lora"),
        ("enable_adaptive_verification cudagraph_mode NONE", "adaptive_eager"),
        ("enable_adaptive_verification pipeline_parallel_size", "adaptive_pp"),
        ("use_heterogeneous_vocab", "hetero_vocab"),
        ("pipeline_parallel_size async_scheduling", "pp_async"),
        ("method dspark", "dspark"),
        ("enable_adaptive_verification", "adaptive"),
        ("draft_lm_head_quantization", "lm_head_quantization"),
        ("enable_batch_sharded_sampling", "batch_sharded_sampling"),
    )
}
"""Names in a condition of vLLM -> the test in ``dsv4check/resolve/runner.py`` that asks the same of a launch."""

_OTHER_MODELS: Final = (
    # V4 is an MLA model without recurrent state that generates text; its drafts are not DFlash's, xpress' or others'.
    *({"has_inner_state"}, {"has_inner_state", "mamba_cache_mode", "align"}, {"mamba_cache_mode", "all"}),
    *({"prefill_context_parallel_size", "use_mla"}, {"is_diffusion"}, {"is_xpress"}),
    *({"_dflash_needs_multi_kv_group"}, {"_is_dflash2_draft"}, {"_is_dflash_candidate_draft"}),
    {"draft_config", "architectures", "ParseAuxMTPModel"},
    {"architecture", "Step5ForCausalLM", "Step5ForConditionalGeneration"},
)
"""Conditions that no launch of DeepSeek-V4 meets."""

_DBO: Final = (
    # In resolve/runner.py:_dbo_limits; the last three are for models that are not text generators like V4.
    *("dual batch overlap", "dual batch overlap with LoRA", "dual batch overlap with speculative decoding"),
    *("dual batch overlap with pipeline parallelism", "dual batch overlap with context parallelism"),
    *("dual batch overlap with PIECEWISE CUDA graphs", "dual batch overlap with multimodal models"),
    *("dual batch overlap with hybrid models", "dual batch overlap with encoder only models"),
)
_METHOD: Final = "speculative method '{}'"
_V1_ERROR: Final = "Model Runner V1 does not support: "


def v1_features(source: Source, asynchronous_pipeline: bool) -> dict[str, str]:
    """``VllmConfig._get_v1_model_runner_unsupported_features``: text -> test; empty before it existed.

    ``asynchronous_pipeline`` is False when ``VllmConfig`` refuses async scheduling with a pipeline earlier: the entry
    for it then never shows.
    """
    node = method(source, V1_LIST)
    if node is None:
        return {}
    if _error(required(source, V1_CHECK)) != _V1_ERROR:
        raise LearningError(f"{CONFIG} VllmConfig.{V1_CHECK}: {_V1_ERROR!r} was expected")
    found: dict[str, str] = {}
    for text, item in _entries(node):
        test = _test(V1_LIST, text, item)
        if test is not None and (asynchronous_pipeline or test != "pp_async"):
            found[text] = test
    return found


def v2_features(source: Source) -> dict[str, Any]:
    """What V2 refuses: the features, the methods (those it takes, or those it does not), and how the error starts."""
    check = required(source, V2_CHECK)
    node = method(source, V2_LIST) or check
    found: dict[str, str] = {}
    accepted = refused = None
    for text, item in _entries(node):
        if text == _METHOD:
            left_out, methods = _methods(item)
            accepted, refused = (methods, refused) if left_out else (accepted, methods)
        elif text.startswith("self."):
            found |= _dual_batch_overlap(source, text.removeprefix("self."), item)
        else:
            test = _test(V2_LIST, text, item)
            if test is not None:
                found[text.removesuffix(" '{}'")] = test
    if (accepted is None) is (refused is None):
        raise LearningError(f"{CONFIG} VllmConfig.{node.name}: which speculative methods V2 takes")
    return {
        "v2_error": _error(check),
        "v2_methods": accepted,
        "v2_refused_methods": refused,
        "v2_unsupported": found,
    }


def _error(node: ast.FunctionDef) -> str:
    """How the error of a check starts, up to the list of features."""
    for item in guarded(node):
        if isinstance(item.statement, ast.Raise) and isinstance(item.statement.exc, ast.Call) and item.tests:
            text = template(item.statement.exc.args[0])
            if text.endswith("{}") and "unsupported" in item.names():
                return text.removesuffix("{}")
    raise LearningError(f"{CONFIG} VllmConfig.{node.name}: an error with the unsupported features")


def _entries(node: ast.FunctionDef) -> Iterator[tuple[str, Guarded]]:
    """Texts appended to ``unsupported``, and calls that extend it, each with its conditions."""
    for item in guarded(node):
        call = item.statement.value if isinstance(item.statement, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "unsupported.append":
            yield template(call.args[0]), item
        elif isinstance(call, ast.Call) and ast.unparse(call.func) == "unsupported.extend":
            yield ast.unparse(call.args[0]).removesuffix("()"), item


def _subject(item: Guarded) -> frozenset[str]:
    return frozenset(item.names() - _NOISE)


def _test(place: str, text: str, item: Guarded) -> str | None:
    """The test for an entry; None when it is about other models. LearningError for an entry that is not known."""
    subject = _subject(item)
    if subject in TESTS:
        return TESTS[subject]
    if subject in _OTHER_MODELS:
        return None
    raise LearningError(
        f"{CONFIG} VllmConfig.{place}: {text!r} follows from {' '.join(sorted(subject))}, for which resolve/runner.py "
        "has no test yet"
    )


def _methods(item: Guarded) -> tuple[bool, list[str]]:
    """(the methods are those V2 takes, the methods in order) of a condition on the method."""
    for part in ast.walk(item.tests[-1]):
        if isinstance(part, ast.Compare) and ast.unparse(part.left).endswith(".method"):
            names = part.comparators[0]
            if isinstance(part.ops[0], (ast.In, ast.NotIn)) and isinstance(names, (ast.Tuple, ast.List, ast.Set)):
                listed = [str(name.value) for name in names.elts if isinstance(name, ast.Constant)]
                return isinstance(part.ops[0], ast.NotIn), listed
    raise LearningError(f"{CONFIG} VllmConfig.{V2_LIST}: {ast.unparse(item.tests[-1])} is no list of methods")


def _dual_batch_overlap(source: Source, place: str, item: Guarded) -> dict[str, str]:
    """The list of its own that dual batch overlap has, which ``resolve/runner.py:_dbo_limits`` knows by heart."""
    node = required(source, place)
    texts = [text for text, _item in _entries(node)]
    alone = [
        text.value
        for part in guarded(node)
        if isinstance(part.statement, ast.Return) and isinstance(part.statement.value, ast.List)
        for text in part.statement.value.elts
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]
    if "use_ubatching" not in words(item.tests[-1]) or len(alone) != 1:
        raise LearningError(f"{CONFIG} VllmConfig.{place}: one text for dual batch overlap was expected")
    unknown = [text for text in (*alone, *texts) if text not in _DBO]
    if unknown:
        raise LearningError(f"{CONFIG} VllmConfig.{place}: resolve/runner.py does not know {unknown}")
    return {str(alone[0]): "dbo_limits"}
