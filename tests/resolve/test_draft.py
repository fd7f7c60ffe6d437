"""Speculative config, draft weights and the token budget, against what each release does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.api import build_deployment, check
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.resolution import Draft
from dsv4check.resolve.draft import resolve_draft
from dsv4check.resolve.parallelism import resolve_parallel
from dsv4check.resolve.speculative_fields import check_value
from dsv4check.resolve.speculative_limits import batch_limits
from tests.launches import launch_request

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
FLASH_0731 = "deepseek-ai/DeepSeek-V4-Flash-0731"
FLASH_DSPARK = "deepseek-ai/DeepSeek-V4-Flash-DSpark"
VISION = "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"
WITH_DSPARK = [name for name in known_releases() if load_facts(name).section("spec_decode").get("dspark")]


def drafted(release: str, model: str, spec: Any = None, args: str = "", **launch: Any) -> tuple[Draft, list[Problem]]:
    """Resolve the draft of ``vllm serve model -tp 8`` with a speculative config."""
    words = ["--tensor-parallel-size", "8", "--kv-cache-dtype", "fp8", *args.split()]
    if spec is not None:
        words += ["--speculative-config", json.dumps(spec)]
    launch = {"gpu": "H200", "gpus": 8, **launch}
    deployment = build_deployment(launch_request({"vllm": release, "model": model, "args": words, **launch}))
    facts = load_facts(release)
    parallel, _ = resolve_parallel(deployment, facts)
    draft, problems = resolve_draft(deployment, facts, parallel)
    return draft, [problem for problem in problems if problem.code != "spec-token-budget-small"]


def codes(problems: list[Problem]) -> list[str]:
    return [problem.code for problem in problems]


@pytest.mark.parametrize("release", known_releases())
def test_no_speculative_decoding(release: str) -> None:
    assert drafted(release, FLASH) == (Draft(method=None), [])


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp"])
def test_mtp_takes_the_draft_from_the_target(release: str, method: str) -> None:
    draft, problems = drafted(release, FLASH, {"method": method, "num_speculative_tokens": 2})
    assert problems == []
    assert (draft.method, draft.requested_method, draft.num_speculative_tokens) == ("mtp", method, 2)
    assert (draft.source, draft.layers) == ("target checkpoint", 1)
    assert draft.mapping is not None
    assert draft.mapping.startswith("mtp.{i}.* -> model.layers.{43+i}.*")


@pytest.mark.parametrize("release", known_releases())
def test_dspark_by_release(release: str) -> None:
    draft, problems = drafted(release, FLASH_0731, {"method": "dspark", "num_speculative_tokens": 5})
    if release in WITH_DSPARK:
        assert problems == []
        assert (draft.method, draft.layers) == ("dspark", 3)
        assert draft.mapping is not None
        assert draft.mapping.startswith("mtp.{i}.* -> model.layers.{i}.*;")
        return
    assert draft.method is None
    assert draft.requested_method == "dspark"
    [problem] = problems
    assert (problem.code, problem.stage) == ("spec-unknown-method", Stage.ENGINE_CONFIG)
    head = "1 validation error for SpeculativeConfig\nmethod\n  Input should be 'ngram', 'medusa', 'mlp_speculator', "
    assert problem.error.startswith(head)
    assert problem.error.endswith(" [type=literal_error, input_value='dspark', input_type=str]")


def test_first_release_with_dspark() -> None:
    assert WITH_DSPARK[0] == "0.25.0"


@pytest.mark.parametrize(
    ("release", "spec", "exception"),
    [
        ("0.24.0", {"method": "mtp"}, "ValidationError"),
        ("0.24.0", {"method": "mtp", "model": FLASH}, "TypeError"),
        ("0.33.0", {"method": "dspark"}, "ValidationError"),
        ("0.33.0", {"method": "ngram"}, "ValidationError"),
        ("0.33.0", {}, "ValidationError"),
    ],
)
def test_missing_number_of_tokens(release: str, spec: dict[str, Any], exception: str) -> None:
    _, [problem] = drafted(release, FLASH, spec)
    assert (problem.code, problem.exception) == ("spec-tokens-missing", exception)


@pytest.mark.parametrize(
    ("release", "tokens"), [("0.25.0", 1), ("0.28.0", 1), ("0.30.0", 1), ("0.31.0", 5), ("0.33.0", 5)]
)
def test_dspark_default_depth_with_a_named_model(release: str, tokens: int) -> None:
    draft, problems = drafted(release, FLASH_0731, {"method": "dspark", "model": FLASH_0731})
    assert problems == []
    assert draft.num_speculative_tokens == tokens


def test_dspark_default_depth_hits_the_block_guard() -> None:
    _, problems = drafted("0.26.0", FLASH_0731, {"method": "dspark", "model": FLASH_0731})
    assert codes(problems) == ["spec-tokens-below-block"]


@pytest.mark.parametrize(
    ("release", "refused"), [("0.25.1", False), ("0.26.0", True), ("0.27.0", True), ("0.27.1", True), ("0.28.0", False)]
)
def test_block_guard(release: str, refused: bool) -> None:
    _, problems = drafted(release, FLASH_DSPARK, {"method": "dspark", "num_speculative_tokens": 3})
    assert codes(problems) == (["spec-tokens-below-block"] if refused else [])


@pytest.mark.parametrize(
    ("release", "model", "tokens", "refused"),
    [
        ("0.28.0", VISION, 5, True),
        ("0.28.0", VISION, 6, False),
        ("0.28.0", VISION, 2, False),
        ("0.31.0", VISION, 5, False),
        ("0.30.0", V41, 7, True),
        ("0.30.0", V41, 5, False),
        ("0.31.0", V41, 7, False),
    ],
)
def test_divisibility(release: str, model: str, tokens: int, refused: bool) -> None:
    _, problems = drafted(release, model, {"method": "dspark", "num_speculative_tokens": tokens})
    assert codes(problems) == (["spec-tokens-not-divisible"] if refused else [])


@pytest.mark.parametrize("release", ["0.20.2", "0.28.0", "0.33.0"])
def test_zero_draft_layers_divide_by_zero(release: str) -> None:
    overrides = {"num_nextn_predict_layers": 0}
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    _, [problem] = drafted(release, "local/v4", spec, config_like=FLASH, config_overrides=overrides)
    assert (problem.code, problem.exception) == ("spec-no-draft-layers", "ZeroDivisionError")


def test_hf_overrides_do_not_reach_the_draft() -> None:
    args = '--hf-overrides {"num_nextn_predict_layers":0}'
    _, problems = drafted("0.28.0", FLASH, {"method": "mtp", "num_speculative_tokens": 1}, args)
    assert "spec-no-draft-layers" not in codes(problems)


@pytest.mark.parametrize(
    ("release", "model", "method"),
    [("0.24.0", FLASH_DSPARK, "mtp"), ("0.25.0", FLASH_DSPARK, "dspark"), ("0.28.0", FLASH_0731, "mtp")],
)
def test_path_decides_the_method(release: str, model: str, method: str) -> None:
    draft, _ = drafted(release, model, {"method": "mtp", "num_speculative_tokens": 5})
    assert draft.method == method


@pytest.mark.parametrize("release", ["0.22.1", "0.28.0"])
def test_mtp_over_dspark_tensors(release: str) -> None:
    _, [problem] = drafted(release, FLASH_0731, {"method": "mtp", "num_speculative_tokens": 1})
    assert (problem.code, problem.stage) == ("weights-mtp-on-dspark", Stage.WEIGHT_LOAD)
    assert problem.error == "'model.layers.43.mtp_block.main_norm.weight'"


def test_dummy_weights_never_meet_the_checkpoint() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    assert drafted("0.28.0", FLASH_0731, spec, "--load-format dummy")[1] == []


def test_dspark_over_mtp_tensors() -> None:
    draft, [problem] = drafted("0.28.0", FLASH, {"method": "dspark", "num_speculative_tokens": 5})
    assert draft.method == "dspark"
    assert (problem.code, problem.stage) == ("weights-dspark-on-other-draft", Stage.WEIGHT_LOAD)


@pytest.mark.parametrize(
    ("release", "refused"), [("0.26.0", False), ("0.27.0", True), ("0.27.1", True), ("0.28.0", False)]
)
def test_named_draft_model_freezes_the_quantisation(release: str, refused: bool) -> None:
    spec = {"method": "dspark", "num_speculative_tokens": 5}
    assert drafted(release, FLASH_0731, spec)[1] == []
    _, problems = drafted(release, FLASH_0731, {**spec, "model": FLASH_0731})
    assert codes(problems) == (["weights-draft-quantization-frozen"] if refused else [])


@pytest.mark.parametrize("release", known_releases())
def test_pipeline_parallelism_with_a_draft(release: str) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    refusing = load_facts(release).section("spec_decode")["draft_pipeline"] == "refused"
    _, problems = drafted(release, FLASH, spec, "--pipeline-parallel-size 2", gpus=16)
    assert codes(problems) == (["spec-draft-pipeline"] if refusing else [])
    _, problems = drafted(release, FLASH, {**spec, "method": "ngram"}, "--pipeline-parallel-size 2", gpus=16)
    assert problems == []


@pytest.mark.parametrize(
    ("release", "method", "tokens", "args", "refused"),
    [
        ("0.25.1", "dspark", 7, "--max-num-batched-tokens 120 --max-num-seqs 60", True),
        ("0.28.0", "dspark", 7, "--max-num-batched-tokens 120 --max-num-seqs 60", False),
        ("0.26.0", "dspark", 7, "", False),  # 8192 - 6 * 1024
        ("0.26.0", "dspark", 9, "", True),  # 8192 - 8 * 1024
        ("0.26.0", "dspark", 9, "--max-num-seqs 512", False),
        ("0.26.0", "mtp", 9, "", False),  # MTP reserves nothing
        ("0.28.0", "dspark", 5, "--max-num-batched-tokens 4 --max-num-seqs 1", True),
        ("0.28.0", "dspark", 5, "--max-num-batched-tokens 5 --max-num-seqs 1", False),
        ("0.33.0", "dspark", 5, "--max-num-batched-tokens 5 --max-num-seqs 1", True),
        ("0.33.0", "mtp", 2, "--max-num-batched-tokens 2 --max-num-seqs 1", True),
        ("0.32.0", "mtp", 2, "--max-num-batched-tokens 2 --max-num-seqs 1", False),
    ],
)
def test_token_budget(release: str, method: str, tokens: int, args: str, refused: bool) -> None:
    model = FLASH_0731 if method == "dspark" else FLASH
    _, problems = drafted(release, model, {"method": method, "num_speculative_tokens": tokens}, args)
    assert codes(problems) == (["spec-token-budget"] if refused else [])


@pytest.mark.parametrize(
    ("release", "gpu", "args", "limits"),
    [
        ("0.27.1", "H200", "", (8192, 1024)),
        ("0.27.1", "B200", "", (8192, 1024)),
        ("0.28.0", "B200", "", (16384, 1024)),
        ("0.28.0", "A100-80GB", "", (2048, 256)),
        ("0.28.0", "L40S", "", (2048, 256)),
        ("0.32.0", "GB10", "", (8192, 1024)),
        ("0.33.0", "GB10", "", (2048, 256)),
        ("0.33.0", "H200", "--max-num-batched-tokens 512", (512, 512)),
        ("0.33.0", "H200", "--performance-mode throughput", (16384, 2048)),
    ],
)
def test_default_batch_limits(release: str, gpu: str, args: str, limits: tuple[int, int]) -> None:
    launch = {"vllm": release, "model": FLASH, "gpu": gpu, "gpus": 8, "args": f"-tp 8 {args}"}
    deployment = build_deployment(launch_request(launch))
    facts = load_facts(release)
    parallel, _ = resolve_parallel(deployment, facts)
    assert batch_limits(deployment, facts.section("spec_decode"), parallel) == limits


def test_shortcut_flags_join_the_json() -> None:
    draft, problems = drafted("0.33.0", FLASH, {"method": "mtp"}, "--spec-tokens 2")
    assert problems == []
    assert draft.num_speculative_tokens == 2
    _, problems = drafted("0.33.0", FLASH, {"method": "mtp", "num_speculative_tokens": 1}, "--spec-tokens 1")
    assert codes(problems) == ["spec-flag-conflict"]
    assert (
        problems[0].error == "--spec-tokens and --speculative-config['num_speculative_tokens'] are mutually exclusive"
    )


def test_a_shortcut_the_parser_refuses_is_reported_once() -> None:
    draft, problems = drafted("0.24.0", FLASH_0731, None, "--spec-method dspark --spec-tokens 5")
    assert problems == []
    assert (draft.method, draft.requested_method) == (None, "dspark")


@pytest.mark.parametrize(
    ("release", "spec", "code"),
    [
        ("0.20.2", {"draft_sample_method": "greedy"}, "spec-unknown-key"),
        ("0.22.0", {"draft_sample_method": "greedy"}, None),
        ("0.21.0", {"draft_sample_method": "probabilistic"}, "spec-bad-value"),
        ("0.25.1", {"draft-sample-method": "greedy"}, "spec-unknown-key"),
        ("0.26.0", {"draft-sample-method": "greedy"}, None),
        ("0.24.0", {"rejection_sample_method": "block"}, "spec-bad-value"),
        ("0.25.0", {"rejection_sample_method": "block"}, None),
        ("0.24.0", {"attention_backend": "NO_SUCH"}, "spec-bad-value"),
        ("0.24.0", {"attention_backend": "auto"}, None),
        ("0.24.0", {"tensor_parallel_size": 8}, "spec-tensor-parallel-key"),
        ("0.24.0", {"draft_tensor_parallel_size": 4}, "spec-draft-tensor-parallel"),
        ("0.24.0", {"draft_tensor_parallel_size": 1}, None),
        ("0.28.0", {"dspark_draft_topk": 4}, "spec-draft-topk"),
        ("0.29.0", {"enable_adaptive_verification": True}, "spec-adaptive-method"),
        ("0.30.0", {"enable_adaptive_verification": True}, None),
    ],
)
def test_keys_of_the_config(release: str, spec: dict[str, Any], code: str | None) -> None:
    _, problems = drafted(release, FLASH, {"method": "mtp", "num_speculative_tokens": 1, **spec})
    assert codes(problems) == ([code] if code else [])


@pytest.mark.parametrize(
    ("release", "key", "renamed", "spec", "hint"),
    [
        ("0.20.2", "draft_sample_method", "", ">=0.21.0", "; it exists from 0.21.0 on"),
        ("0.27.1", "enable_adaptive_verification", "", ">=0.28.0", "; it exists from 0.28.0 on"),
        ("0.21.0", "speculative_token_tree", "", "<0.21.0", "; it was removed in 0.21.0"),
        (
            "0.33.0",
            "num_spec_tokens",
            "speculative_config.num_speculative_tokens",
            "<0",
            "; the closest is num_speculative_tokens",
        ),
        ("0.33.0", "dspark_budget_frac", "", "<0", ""),
    ],
)
def test_unknown_keys_name_what_knows_them(release: str, key: str, renamed: str, spec: str, hint: str) -> None:
    [problem] = drafted(release, FLASH, {"method": "mtp", "num_speculative_tokens": 1, key: 1})[1]
    assert problem.code == "spec-unknown-key"
    assert (problem.data["renamed"], problem.data["vllm_spec"], problem.data["hint"]) == (renamed, spec, hint)


def test_v41_has_no_mtp_draft() -> None:
    _, problems = drafted("0.30.0", V41, {"method": "mtp", "num_speculative_tokens": 1})
    assert codes(problems) == ["spec-mtp-on-v41"]


def test_shared_expert_padding_of_the_draft() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    model, wide = "deepseek-ai/DeepSeek-V4-Pro", "--tensor-parallel-size 16"
    [problem] = drafted("0.26.0", model, spec, wide, gpus=16)[1]
    assert problem.code == "weights-draft-shared-padding"
    assert (problem.data["width"], problem.data["padded"], problem.data["fitting"]) == (3072, 256, 12)
    assert drafted("0.27.0", model, spec, wide, gpus=16)[1] == []
    assert drafted("0.26.0", model, spec)[1] == []


@pytest.mark.parametrize(
    ("code", "value", "converted", "accepted"),
    [
        ("int gt=0", "5", 5, True),
        ("int gt=0", 5.0, 5, True),
        ("int gt=0", 5.5, 5.5, False),
        ("int gt=0", 0, 0, False),
        ("int gt=0", None, None, False),
        ("int? ge=1", None, None, True),
        ("bool", "yes", True, True),
        ("bool", 2, 2, False),
        ("str?", 7, 7, False),
        ("float", "0.5", 0.5, True),
        ("list[float]?", [0.5, "1"], [0.5, 1.0], True),
        ("list[int3]?", [[1, 2, 3]], [(1, 2, 3)], True),
        ("list[int3]?", [[1, 2]], [[1, 2]], False),
    ],
)
def test_values_are_read_as_pydantic_reads_them(code: str, value: Any, converted: Any, accepted: bool) -> None:
    result, error = check_value(code, value, {})
    assert (error is None) is accepted
    assert result == converted


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELD_NAMES = sorted(load_facts("0.33.0").section("spec_decode")["fields"])


@given(st.dictionaries(st.sampled_from(FIELD_NAMES), JSON, max_size=4), st.sampled_from(["0.20.2", "0.27.1", "0.33.0"]))
def test_any_json_gives_problems_not_exceptions(spec: dict[str, Any], release: str) -> None:
    draft, problems = drafted(release, FLASH, spec)
    assert all(problem.stage in Stage for problem in problems)
    assert draft.method is None or isinstance(draft.method, str)


HIDDEN_STATES = {"method": "extract_hidden_states", "num_speculative_tokens": 1}


@pytest.mark.parametrize(
    ("draft_config", "layers"),
    [
        ({"hf_config": {"eagle_aux_hidden_state_layer_ids": [40, 41, 42, 43]}}, 4),
        ({"hf_config": {"eagle_aux_hidden_state_layer_ids": []}}, 0),
        ({"hf_config": {"eagle_aux_hidden_state_layer_ids": None}}, 0),
        ({"hf_config": [1, 2]}, 0),
        ("some/config", 0),
        (None, 0),
    ],
)
def test_layers_whose_hidden_states_are_kept(draft_config: Any, layers: int) -> None:
    spec = HIDDEN_STATES if draft_config is None else HIDDEN_STATES | {"draft_model_config": draft_config}
    draft, problems = drafted("0.26.0", FLASH, spec)
    assert (draft.method, draft.hidden_state_layers, draft.layers, problems) == ("extract_hidden_states", layers, 0, [])


def test_only_that_method_keeps_hidden_states() -> None:
    spec = {
        "method": "mtp",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [40]}},
    }
    assert drafted("0.26.0", FLASH, spec)[0].hidden_state_layers == 0


@pytest.mark.parametrize(("release", "stride"), [("0.26.0", 9), ("0.32.0", 8)])
def test_hidden_states_in_the_cache_and_its_memory(release: str, stride: int) -> None:
    """Four layers of 4096 bfloat16 values for 256 tokens: 8 MiB, 22 times counted where they share the main group."""
    spec = HIDDEN_STATES | {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [40, 41, 42, 43]}}}
    words = ["vllm", "serve", FLASH, "-tp", "4", "--kv-cache-dtype", "fp8", "--max-model-len", "8192"]
    report = check([*words, "--speculative-config", json.dumps(spec)], gpu="H100", gpus=4, vllm=release, fixes=False)
    kinds = {kind.kind: kind for kind in report.resolution.kv_cache.layers}
    hidden = kinds["hidden_states"]
    assert (hidden.count, hidden.draft_count, hidden.page_bytes, hidden.dtype) == (0, 1, 8 << 20, "bfloat16")
    plan = report.resolution.memory.plan
    assert round(plan.strides[0] / 2**20) == stride
    # vllm#53243: 581.48 GiB for one request of 8,192 tokens on 4 H100 with 0.26.0.
    told = [finding.message for finding in report.errors if finding.rule == "ME003"]
    assert ["needs 581.5 GiB of KV cache" in message for message in told] == ([True] if release == "0.26.0" else [])
