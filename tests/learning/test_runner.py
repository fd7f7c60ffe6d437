"""``runner`` of the shipped releases is what their text says, and follows the text when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.runner.asynchronous import asynchronous
from dsv4check.learning.sections.runner.choice import choice, environment
from dsv4check.learning.sections.runner.drafts import capture_check, mask_token_fields
from dsv4check.learning.sections.runner.features import TESTS, v1_features, v2_features
from dsv4check.learning.source import LearningError, Source
from dsv4check.resolve import runner as resolve_runner
from tests.learning.shipped import VERSIONS, assert_learned, tree

CHOICE = """
{constants}
class VllmConfig:
    @property
    def use_v2_model_runner(self):
{before}
        use_v2_model_runner = envs.VLLM_USE_V2_MODEL_RUNNER
        if use_v2_model_runner is not None:
            return use_v2_model_runner
{after}
        unsupported = self._get_v2_model_runner_unsupported_features()
        if unsupported:
            return False
        return {last}
"""
HISPARSE = """
        if self.attention_config.hisparse_config is not None:
            return True
"""
ROCM = """
        if model_config is not None and current_platform.is_rocm():
            if any(arch in ROCM_ARCHITECTURES for arch in architectures):
                if not self._get_v1_model_runner_unsupported_features():
                    return False
"""
FEATURES = """
class VllmConfig:
    def _get_v2_model_runner_unsupported_features(self):
        unsupported = []
        if self.parallel_config.prefill_context_parallel_size > 1:
            unsupported.append("prefill context parallelism")
        if model_config is not None and model_config.has_inner_state:
            unsupported.append("hybrid/mamba models")
        if speculative_config is not None:
            if speculative_config.method {methods}:
                unsupported.append(f"speculative method '{{speculative_config.method}}'")
        {more}
        return unsupported
    def _validate_v2_model_runner(self):
        unsupported = self._get_v2_model_runner_unsupported_features()
        if unsupported:
            raise ValueError(f"The second runner does not have: {{', '.join(unsupported)}}")
"""
METHODS = 'SpeculativeMethod = Literal["ngram", Mtp, Gpu]\nMtp = Literal["mtp"]\nGpu = Literal["ngram_gpu"]\n'
ASYNC = """
class VllmConfig:
    def __post_init__(self):
        reason = None
        if not self.use_v2_model_runner:
            if spec_config is not None and spec_config.method not in get_args(Mtp) and spec_config.method != "x":
                reason = f"{spec_config.method}-based drafts"
            elif spec_config is not None and spec_config.disable_padded_drafter_batch:
                reason = "unpadded drafts"
        if self.scheduler_config.async_scheduling:
            if reason is not None:
                raise ValueError(f"No async scheduling with {reason}.")
            if not executor_supports_async_sched:
                raise ValueError(f"`{executor_backend}` does not support async scheduling yet.")
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped_release(version: str) -> None:
    assert_learned("runner", version)


def test_every_feature_has_a_test_in_the_rules() -> None:
    known = {*resolve_runner._TESTS, "logprobs_mode"}
    assert set(TESTS.values()) <= known


def chosen(folder: Path, constants: str = "", before: str = "", after: str = "", last: str = "True") -> Source:
    text = CHOICE.format(constants=constants, before=before, after=after, last=last)
    return tree(folder, {"config/vllm.py": text})


def test_choice_of_the_runner(tmp_path: Path) -> None:
    constants = 'ROCM_ARCHITECTURES = frozenset({"DeepseekV4ForCausalLM", "Other"})'
    source = chosen(tmp_path / "a", constants, HISPARSE, ROCM)
    expected = {"default": "v2", "forced_by": ["hisparse"], "rocm_v1_archs": ["DeepseekV4ForCausalLM"]}
    assert choice(source) == {**expected, "rocm_v1_yields": True}
    plain = {"default": "v2", "forced_by": [], "rocm_v1_archs": [], "rocm_v1_yields": False}
    assert choice(chosen(tmp_path / "b")) == plain
    old = tree(tmp_path / "c", {"config/vllm.py": "if envs.VLLM_USE_V2_MODEL_RUNNER: pass"})
    assert choice(old) == {**plain, "default": "v1"}


@pytest.mark.parametrize(("listed", "default"), [('"DeepseekV4ForCausalLM"', "v2"), ('"Other"', "v1")])
def test_choice_by_architecture(tmp_path: Path, listed: str, default: str) -> None:
    constants = f"""
DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({{{listed}}})
def default_v2_model_runner_architectures():
    if current_platform.is_rocm():
        return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES - {{{listed}}}
    return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES
"""
    after = "        if not self._is_default_v2_model_runner_model():\n            return False"
    source = chosen(tmp_path, constants, "", after)
    path = tmp_path / "config/vllm.py"
    listing = """
    def _is_default_v2_model_runner_model(self):
        return self.model_config.architecture in default_v2_model_runner_architectures()
"""
    path.write_text(path.read_text(encoding="utf-8") + listing, encoding="utf-8")
    assert choice(source)["default"] == default
    assert choice(source)["rocm_v1_archs"] == (["DeepseekV4ForCausalLM"] if default == "v2" else [])


@pytest.mark.parametrize(
    ("before", "after", "last", "message"),
    [
        (
            "        if self.new_config.thing:\n            return True",
            "",
            "True",
            "cannot decide whether it returns True",
        ),
        ("", HISPARSE, "True", "changed their order"),
        ("", "", "maybe", "what it gives for DeepSeek-V4"),
    ],
)
def test_choice_that_cannot_be_read(tmp_path: Path, before: str, after: str, last: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        choice(chosen(tmp_path, "", before, after, last))


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ('maybe_convert_bool(os.getenv("VLLM_USE_V2_MODEL_RUNNER", None))', "tristate"),
        ('bool(int(os.getenv("VLLM_USE_V2_MODEL_RUNNER", "0")))', "flag"),
        ("something()", None),
    ],
)
def test_environment(tmp_path: Path, reader: str, kind: str | None) -> None:
    text = f'environment_variables = {{"VLLM_USE_V2_MODEL_RUNNER": lambda: {reader}}}'
    source = tree(tmp_path, {"envs.py": text})
    if kind is None:
        with pytest.raises(LearningError, match="VLLM_USE_V2_MODEL_RUNNER is read"):
            environment(source)
    else:
        assert environment(source) == kind


def test_v2_features(tmp_path: Path) -> None:
    text = FEATURES.format(methods='not in ("eagle", "mtp")', more="")
    assert v2_features(tree(tmp_path / "a", {"config/vllm.py": text})) == {
        "v2_error": "The second runner does not have: ",
        "v2_methods": ["eagle", "mtp"],
        "v2_refused_methods": None,
        "v2_unsupported": {"prefill context parallelism": "pcp"},
    }
    text = FEATURES.format(methods='in ("suffix",)', more="")
    found = v2_features(tree(tmp_path / "b", {"config/vllm.py": text}))
    assert (found["v2_methods"], found["v2_refused_methods"]) == (None, ["suffix"])
    more = 'if self.parallel_config.brand_new:\n            unsupported.append("brand new")'
    text = FEATURES.format(methods='in ("suffix",)', more=more)
    with pytest.raises(LearningError, match="'brand new' follows from brand_new"):
        v2_features(tree(tmp_path / "c", {"config/vllm.py": text}))


def test_dual_batch_overlap_has_a_list_of_its_own(tmp_path: Path) -> None:
    more = "if self.parallel_config.use_ubatching:\n            unsupported.extend(self._dbo())"
    own = """
    def _dbo(self):
        if envs.VLLM_USE_V2_MODEL_RUNNER is None:
            return ["dual batch overlap"]
        if self.lora_config is not None:
            unsupported.append("dual batch overlap with {what}")
"""
    text = FEATURES.format(methods='in ("suffix",)', more=more)
    source = tree(tmp_path / "a", {"config/vllm.py": text + own.format(what="LoRA")})
    assert v2_features(source)["v2_unsupported"]["dual batch overlap"] == "dbo_limits"
    with pytest.raises(LearningError, match=r"does not know .*with tea"):
        v2_features(tree(tmp_path / "b", {"config/vllm.py": text + own.format(what="tea")}))


def test_v1_features(tmp_path: Path) -> None:
    text = """
class VllmConfig:
    def _get_v1_model_runner_unsupported_features(self):
        if self.speculative_config and self.speculative_config.method == "dspark":
            unsupported.append("DSpark")
        if self.parallel_config.pipeline_parallel_size > 1 and self.scheduler_config.async_scheduling:
            unsupported.append("pipelines")
    def _validate_v1_model_runner(self):
        if unsupported:
            raise ValueError(f"Model Runner V1 does not support: {', '.join(unsupported)}")
"""
    source = tree(tmp_path / "a", {"config/vllm.py": text})
    assert v1_features(source, asynchronous_pipeline=True) == {"DSpark": "dspark", "pipelines": "pp_async"}
    assert v1_features(source, asynchronous_pipeline=False) == {"DSpark": "dspark"}
    assert v1_features(tree(tmp_path / "b", {"config/vllm.py": "class VllmConfig: pass"}), True) == {}
    with pytest.raises(LearningError, match="Model Runner V1 does not support"):
        v1_features(tree(tmp_path / "c", {"config/vllm.py": text.replace("Runner V1 does", "V1 does")}), True)


def test_asynchronous(tmp_path: Path) -> None:
    files = {"config/speculative.py": METHODS, "config/vllm.py": ASYNC}
    assert asynchronous(tree(tmp_path / "a", files)) == {
        "method_error": "No async scheduling with {method}-based drafts.",
        "padded_error": "No async scheduling with unpadded drafts.",
        "pipeline_error": None,
        "refused_methods": ["ngram", "ngram_gpu"],
        "runners": ["v1"],
    }
    both = ASYNC.replace("if not self.use_v2_model_runner:", "if True:")
    assert asynchronous(tree(tmp_path / "b", files | {"config/vllm.py": both}))["runners"] == ["v1", "v2"]
    with pytest.raises(LearningError, match="no error for async scheduling"):
        asynchronous(
            tree(tmp_path / "c", files | {"config/vllm.py": ASYNC.replace("spec_config.method", "spec_config.kind")})
        )


@pytest.mark.parametrize(("condition", "runner"), [("not use_v2_model_runner and ", "v1"), ("", "any_runner")])
def test_capture_check(tmp_path: Path, condition: str, runner: str) -> None:
    text = f"""
class CompilationConfig:
    def resolve_cudagraph_mode_and_sizes(self, uniform_decode_query_len, use_v2_model_runner=False):
        if {condition}uniform_decode_query_len > 1:
            self.adjust_cudagraph_sizes_for_spec_decode(uniform_decode_query_len)
"""
    files = {"config/compilation.py": text, "v1/worker/gpu/cudagraph_utils.py": ""}
    assert capture_check(tree(tmp_path / "a", files)) == runner
    gone = text.replace("adjust_cudagraph_sizes_for_spec_decode", "other")
    with pytest.raises(LearningError, match="does not call"):
        capture_check(tree(tmp_path / "b", files | {"config/compilation.py": gone}))


def test_mask_token_fields(tmp_path: Path) -> None:
    path = "v1/spec_decode/llm_base_proposer.py"
    text = """
class Proposer:
    def _init_parallel_drafting_params(self):
        dflash_config = getattr(model_hf_config, "dflash_config", None)
        if hasattr(model_hf_config, "first_token"):
            self.parallel_drafting_token_id = model_hf_config.first_token
        elif getattr(model_hf_config, "second_token", None) is not None:
            self.parallel_drafting_token_id = model_hf_config.second_token
"""
    assert mask_token_fields(tree(tmp_path / "a", {path: text})) == ["first_token", "second_token"]
    with pytest.raises(LearningError, match="has no _init_parallel_drafting_params"):
        mask_token_fields(tree(tmp_path / "b", {path: text.replace("_init_parallel", "_start_parallel")}))
