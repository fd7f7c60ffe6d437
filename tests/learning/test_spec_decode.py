"""``spec_decode`` of the shipped releases is what their text says, and follows the text when it changes."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from dsv4check.data import load_yaml, rules_dir
from dsv4check.learning.release import source_only
from dsv4check.learning.sections.spec_decode import learn
from dsv4check.learning.sections.spec_decode.config import (
    learn_adaptive,
    learn_draft_model,
    learn_dspark_tokens,
    learn_merging,
    learn_method,
)
from dsv4check.learning.sections.spec_decode.draft import (
    learn_dspark,
    learn_overrides,
    learn_pipeline,
    learn_rocm_top_tokens,
    learn_weights,
)
from dsv4check.learning.sections.spec_decode.fields import learn_fields
from dsv4check.learning.sections.spec_decode.scheduling import learn_batch, learn_budget
from dsv4check.learning.source import LearningError, Source
from tests.learning.fake_spec_decode import FILES

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
RELEASES = sorted(path.stem for path in (rules_dir() / "releases").glob("[0-9]*.yaml"))


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES is not set")
@pytest.mark.parametrize("version", RELEASES)
def test_learned_from_the_release(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    shipped = load_yaml((rules_dir() / "releases" / f"{version}.yaml").read_text(encoding="utf-8"))["spec_decode"]
    assert learn(source_only(package)) == shipped


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A package with all that the section looks at; a test changes a file before it asks."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(content), encoding="utf-8")
    return Source(tmp_path)


def edit(source: Source, name: str, *changes: tuple[str, str]) -> None:
    path = source.package / name
    content = path.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in content, f"{before!r} is not in {name}"
        content = content.replace(before, after)
    path.write_text(content, encoding="utf-8")


SPECULATIVE = "config/speculative.py"


def test_fields_follow_the_annotations(source: Source) -> None:
    found = learn_fields(source)
    assert found["fields"] == {
        "num_speculative_tokens": "int gt=0",
        "method": "method?",
        "moe_backend": "moe_backend?",
        "kv_cache_dtype": "cache_dtype?",
        "quantization": "str?",
        "share": "float ge=0.5",
        "schedule": "list[int3]?",
        "enable_adaptive_verification": "bool",
        "dspark_draft_topk": "int? ge=1",
    }
    assert found["literals"] == {
        "attention_backend": ["ONE", "TWO"],
        "method": ["ngram", "custom_class", "eagle", "old_mtp", "mtp", "dspark"],
        "moe_backend": ["auto", "cutlass"],
        "cache_dtype": ["auto", "fp8"],
    }
    assert found["mtp_methods"] == ["old_mtp", "mtp"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("share: float", "share: dict[str, int]", "share: no type code"),
        ("ge=0.5", "multiple_of=2", "share: no code for Field"),
        ("method: SpeculativeMethod", "way: SpeculativeMethod", "expected the field method"),
        ('Literal["old_mtp", "mtp"]', "frozenset()", "expected Literal"),
        ("kernel import MoEBackend", "kernel import Other", "neither defines nor imports MoEBackend"),
    ],
)
def test_fields_that_are_not_understood(source: Source, before: str, after: str, said: str) -> None:
    edit(source, SPECULATIVE, (before, after))
    with pytest.raises(LearningError, match=said):
        learn_fields(source)


def test_method_follows_the_chain(source: Source) -> None:
    assert learn_method(source) == {
        "class_path": "identifier",
        "fixed_methods": ["eagle", "dspark"],
        "path_methods": [["eagle-", "eagle"], ["spark", "dspark"]],
        "v41_mtp_refused": True,
    }
    edit(
        source,
        SPECULATIVE,
        ("self.method is None and SpeculativeConfig._is_path(self.model)", '"." in model and "/" not in model'),
        ('"deepseek_v41"', '"other"'),
        ('"eagle-" in', '"eagle+" in'),
    )
    changed = learn_method(Source(source.package))
    assert (changed["class_path"], changed["v41_mtp_refused"]) == ("any_dot", False)
    assert changed["path_methods"][0] == ["eagle+", "eagle"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('if self.method in ("eagle", "dspark"):', "if self.fixed:", "expected a list of methods"),
        ('self.method = "mtp"', "self.use_mtp()", "expected methods found by the draft's path"),
        ('self.method = "custom_class"', "self.custom = True", "expected a test of the draft's name"),
        ("self.method is None and ", "", "expected a test of the draft's name"),
    ],
)
def test_method_is_not_guessed(source: Source, before: str, after: str, said: str) -> None:
    edit(source, SPECULATIVE, (before, after))
    with pytest.raises(LearningError, match=said):
        learn_method(source)


def test_merging(source: Source) -> None:
    assert learn_merging(source) == {"dashed_keys": True, "shortcut_flags": True}
    name = "engine/arg_utils.py"
    edit(source, name, ('k.replace("-", "_")', "k"), ("mutually exclusive", "both given"))
    with pytest.raises(LearningError, match="expected a refusal of --spec-method"):
        learn_merging(Source(source.package))
    edit(source, name, ("self.spec_method is not None and ", ""))
    with pytest.raises(LearningError, match="expected the given keys to be updated"):
        learn_merging(Source(source.package))
    edit(source, name, ("return Spec", "self.speculative_config.update(more)\n        return Spec"))
    assert learn_merging(Source(source.package)) == {"dashed_keys": False, "shortcut_flags": False}


def test_draft_model(source: Source) -> None:
    assert learn_draft_model(source) == {"draft_len_to_model_config": True, "draft_topk": "XModel"}
    edit(
        source,
        SPECULATIVE,
        (", max_model_len=self.max_model_len", ""),
        (
            "return self\n",
            'aux_hidden_states_supported = ["llama"]\n        if self.method == "eagle3":\n'
            '            raise ValueError(f"{self.method} is only supported for {supported} models")\n',
        ),
    )
    found = learn_draft_model(Source(source.package))
    assert (found["draft_len_to_model_config"], found["aux_hidden_models"]) == (False, ["llama"])
    edit(source, SPECULATIVE, ("aux_hidden_states_supported = ", "supported = "))
    with pytest.raises(LearningError, match="intermediate hidden states"):
        learn_draft_model(Source(source.package))


def test_adaptive_verification(source: Source) -> None:
    assert learn_adaptive(source) == {"checked_by": "validator", "full_graphs": True, "methods": "any"}
    edit(source, SPECULATIVE, (" and self.use_local_argmax_reduction", ""))
    edit(
        source,
        "config/vllm.py",
        ("def _validate_adaptive_verification", "def _get_v2_model_runner_unsupported_features"),
        (
            "if not self.compilation_config.cudagraph_mode.has_full_cudagraphs():",
            "if spec.enable_adaptive_verification and self.cudagraph_mode == CUDAGraphMode.NONE:",
        ),
    )
    changed = Source(source.package)
    assert learn_adaptive(changed) == {"checked_by": "v2_list", "full_graphs": False, "methods": ["dspark"]}
    edit(source, "config/vllm.py", ("_get_v2_model_runner_unsupported_features", "_elsewhere"))
    with pytest.raises(LearningError, match="to check enable_adaptive_verification"):
        learn_adaptive(Source(source.package))
    edit(source, SPECULATIVE, ("enable_adaptive_verification: bool", "other: bool"))
    assert learn_adaptive(Source(source.package)) is None


def test_number_of_dspark_tokens(source: Source) -> None:
    assert learn_dspark_tokens(source) == {"default_tokens": "block", "n_predict": None, "needs_block": False}
    edit(source, SPECULATIVE, ("if self.use_dspark():", "if self.use_dflash():"))
    found = learn_dspark_tokens(Source(source.package))
    assert found == {"default_tokens": "n_predict", "n_predict": "layers", "needs_block": False}
    added = """
        if is_v41:
            hf.n_predict = getattr(hf, "dspark_block_size", None)
        if dspark_block_size is not None and self.num_speculative_tokens < dspark_block_size:
            raise ValueError(f"DSpark requires num_speculative_tokens >= dspark_block_size ({dspark_block_size})")
"""
    edit(source, SPECULATIVE, ("    def __post_init__(self):\n", f"    def __post_init__(self):{added}"))
    found = learn_dspark_tokens(Source(source.package))
    assert found == {"default_tokens": "n_predict", "n_predict": "layers_or_v41_block", "needs_block": True}
    edit(source, SPECULATIVE, ("must be divisible by", "has to be a multiple of"))
    with pytest.raises(LearningError, match="that n_predict does not divide"):
        learn_dspark_tokens(Source(source.package))


def test_batch_defaults_and_budget(source: Source) -> None:
    assert learn_batch(source) == {
        "batch_defaults": [[200, 32768, 2048], [90, 4096, 512], [0, 1024, 64]],
        "gb10_small": True,
    }
    assert learn_budget(source) == {"token_budget": "per_batch"}
    edit(source, "engine/arg_utils.py", (" and not small_one", " and not integrated"))
    with pytest.raises(LearningError, match=r"unexpected .*not integrated.* from 90 GiB on"):
        learn_batch(Source(source.package))
    edit(source, "config/vllm.py", ("slots_for_drafting", "slots_for_drafting * scheduler.max_num_seqs"))
    assert learn_budget(Source(source.package)) == {"token_budget": "per_sequence"}
    edit(source, "config/vllm.py", ("<= scheduled_token_delta", "<= self.num_lookahead_tokens"))
    assert learn_budget(Source(source.package)) == {"token_budget": "lookahead"}
    edit(source, "config/vllm.py", ("num_lookahead_tokens", "reserved"), ("scheduled_token_delta =", "delta ="))
    with pytest.raises(LearningError, match="without room for draft tokens"):
        learn_budget(Source(source.package))


def test_overrides_that_reach_the_draft(source: Source) -> None:
    assert learn_overrides(source) == {
        "draft_overrides": {
            "v1": {"local_argmax": "any", "kv_cache_dtype": ["mtp"]},
            "v2": {"kv_cache_dtype": ["mtp"]},
        }
    }
    speculator = source.package / "v1/worker/gpu/spec_decode/speculator.py"
    speculator.write_text(
        "def validate(self):\n"
        "    if self.use_local_argmax_reduction:\n"
        '        raise ValueError("use_local_argmax_reduction is not compatible with '
        "draft_sample_method='probabilistic'.\")\n"
        '    raise ValueError("the draft model does not implement get_top_tokens().")\n',
        encoding="utf-8",
    )
    edit(
        source,
        "v1/worker/gpu/spec_decode/dspark/utils.py",
        ("get_draft_quant_config(vllm_config)", "speculative_config.kv_cache_dtype"),
    )
    found = learn_overrides(Source(source.package))["draft_overrides"]
    assert found["v2"] == {"local_argmax": "greedy", "kv_cache_dtype": ["mtp", "dspark"]}
    speculator.write_text("self.use_local_argmax_reduction = True", encoding="utf-8")
    with pytest.raises(LearningError, match="expected use_local_argmax_reduction to need get_top_tokens"):
        learn_overrides(Source(source.package))


def test_drafts_with_top_tokens_on_rocm(source: Source) -> None:
    folder = source.package / "models/deepseek_v4/amd"
    folder.mkdir(parents=True, exist_ok=True)
    method = "    def get_top_tokens(self): ..."
    (folder / "mtp.py").write_text(f"class DeepSeekV4MTP:\n{method}\n", encoding="utf-8")
    assert learn_rocm_top_tokens(Source(source.package)) == {"draft_top_tokens_rocm": ["mtp"]}
    (folder / "dspark.py").write_text(f"class DSparkDeepseekV4ForCausalLM:\n{method}\n", encoding="utf-8")
    (folder / "mtp.py").write_text("class DeepSeekV4MTP:\n    def forward(self): ...\n", encoding="utf-8")
    assert learn_rocm_top_tokens(Source(source.package)) == {"draft_top_tokens_rocm": ["dspark"]}
    (folder / "dspark.py").unlink()
    assert learn_rocm_top_tokens(Source(source.package)) == {"draft_top_tokens_rocm": []}


def test_pipeline(source: Source) -> None:
    assert learn_pipeline(source) == {"draft_pipeline": "refused"}
    own = "pipeline_parallel_size=target_parallel_config.pipeline_parallel_size"
    edit(source, SPECULATIVE, (own, "pipeline_parallel_size=1"))
    assert learn_pipeline(Source(source.package)) == {"draft_pipeline": "supported"}
    edit(source, SPECULATIVE, ("pipeline_parallel_size=1", "tensor_parallel_size=1"))
    with pytest.raises(LearningError, match="expected the draft's pipeline_parallel_size"):
        learn_pipeline(Source(source.package))
    edit(source, "models/deepseek_v4/nvidia/model.py", (", SupportsPP", ""))
    assert learn_pipeline(Source(source.package)) == {"draft_pipeline": "target_refused"}


def test_weights(source: Source) -> None:
    assert learn_weights(source) == {"draft_experts": "inner", "draft_shared_padding": "as_target"}
    edit(source, "models/deepseek_v4/nvidia/dspark.py", ("_pad_shared_expert_weight", "_keep"))
    assert learn_weights(Source(source.package))["draft_shared_padding"] == "missing"
    edit(source, "model_executor/layers/fused_moe/layer.py", (', routed_experts_prefix="inner"', ""))
    with pytest.raises(LearningError, match=r"or names of the form experts\.w13_"):
        learn_weights(Source(source.package))
    edit(source, "model_executor/layers/fused_moe/layer.py", ("num_experts)", 'num_experts, routed_experts_prefix="")'))
    assert learn_weights(Source(source.package))["draft_experts"] == "flat"
    edit(source, "models/deepseek_v4/nvidia/model.py", ("_pad_shared_expert_weight", "pad_all_shared"))
    with pytest.raises(LearningError, match="expected _pad_shared_expert_weight, got pad_all_shared"):
        learn_weights(Source(source.package))


def test_dspark_vendors_and_quantisation(source: Source) -> None:
    found = learn_dspark(source)["dspark"]
    assert found["vendors"] == ["nvidia", "intel"]
    assert found["probabilistic_vendors"] == ["nvidia"]
    assert found["frozen_quantization"] is True
    given = (
        '["DSparkDraftModel"]\n            self.draft_model_config.quantization = self.target_model_config.quantization'
    )
    edit(source, SPECULATIVE, ('["DSparkDraftModel"]', given))
    assert learn_dspark(Source(source.package))["dspark"]["frozen_quantization"] is False
    edit(source, "models/deepseek_v4/__init__.py", ("is_xpu", "is_other"))
    with pytest.raises(LearningError, match=r"no vendor for current_platform\.is_other"):
        learn_dspark(Source(source.package))


def test_a_file_that_has_moved_is_named(source: Source) -> None:
    (source.package / "config/vllm.py").unlink()
    with pytest.raises(LearningError, match=r"config/vllm\.py is not there"):
        learn(source_only(source.package))
