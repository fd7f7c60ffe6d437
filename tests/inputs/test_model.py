from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4check.deployment import Model, ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import (
    bundled_config,
    find_published,
    guess_sibling,
    hub_cache,
    published_models,
)
from dsv4check.inputs.checkpoint_files import checkpoint_on_this_machine
from dsv4check.inputs.config_values import value_issues
from dsv4check.inputs.model import load_model
from dsv4check.problems import Stage
from dsv4check.releases.facts import known_releases


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


FLASH = "deepseek-ai/DeepSeek-V4-Flash"
CONFIG = bundled_config(FLASH)


@pytest.fixture(autouse=True)
def _no_cache_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def load(name: str | None = FLASH, release: str = "0.28.0", flags: dict[str, Any] | None = None, **rest: Any) -> Model:
    rest.setdefault("env", {"HF_HUB_CACHE": "/nonexistent"})
    given = ServeFlags(name, flags or {})
    if name is not None:
        rest.setdefault("checkpoint", checkpoint_on_this_machine(name, given, rest["env"]))
    return load_model(name, flags=given, release=release, **rest)


def codes(model: Model) -> dict[str, Stage]:
    return {problem.code: problem.stage for problem in model.problems}


def write_checkpoint(folder: Path, config: Any = None, names: list[str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    if names is not None:
        index = {"weight_map": dict.fromkeys(names, "model-00001.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_cache(root: Path, repo: str, commit: str = "abc123", ref: str = "main", config: Any = None) -> Path:
    folder = root / ("models--" + repo.replace("/", "--"))
    write_checkpoint(folder / "snapshots" / commit, config)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / ref).write_text(commit)
    return root


def test_a_web_address_is_no_model_name() -> None:
    with pytest.raises(InputError, match="is a web address; expected"):
        load(f"https://huggingface.co/{FLASH}")


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize("model_id", [entry.id for entry in published_models().values() if entry.trust != "assumed"])
def test_published_checkpoints_are_read_by_every_release(model_id: str, release: str) -> None:
    model = load(model_id, release)
    assert model.known_id == model_id
    assert len(model.compress_ratios) == model.integer("num_hidden_layers")
    assert model.draft_kind == published_models()[model_id.lower()].draft
    expected: set[str] = set()
    if model.family == "deepseek_v41" and release < "0.30":
        expected = {"config-model-too-new"}
    elif "Vision" in model_id and release < "0.30":
        expected = {"config-vision-too-new"}
    elif model_id.startswith("sgl-project/"):
        expected = {"config-model-type-unknown"} | ({"config-field-missing"} if release < "0.33" else set())
    assert set(codes(model)) == expected


@pytest.mark.parametrize("name", ["DEEPSEEK-AI/deepseek-v4-flash", "deepseek-v4-flash", "/models/DeepSeek-V4-Flash/"])
def test_names_of_published_checkpoints(name: str) -> None:
    model = load(name)
    assert model.known_id == FLASH
    assert "bundled config" in model.source
    assert "not on this machine" in model.source or name.lower() == FLASH.lower()


def test_cache_folder_names_are_recognised() -> None:
    entry = find_published("/cache/models--deepseek-ai--DeepSeek-V4-Pro/snapshots/abc")
    assert entry is not None
    assert entry.id == "deepseek-ai/DeepSeek-V4-Pro"


def test_unknown_models_name_the_ways_out() -> None:
    with pytest.raises(InputError, match="--model-config"):
        load("example/some-model")


@pytest.mark.parametrize("name", ["", "  ", None])
def test_an_empty_name(name: str | None) -> None:
    with pytest.raises(InputError, match="empty"):
        load(name)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["layers.0.attn.wq_a.weight", "mtp.0.enorm.weight"], "mtp"),
        (["mtp.0.main_norm.weight", "mtp.2.markov_head.markov_w1.weight"], "dspark"),
        (["layers.0.attn.wq_a.weight"], "none"),
        (["mtp.0.attn.wkv.weight"], "mtp"),
    ],
)
def test_draft_kind_from_the_index(tmp_path: Path, names: list[str], kind: str) -> None:
    folder = write_checkpoint(tmp_path / "mine", names=names)
    # The last case shows neither kind's tell-tale names; the config of V4-Flash does not tell either.
    expected = None if names == ["mtp.0.attn.wkv.weight"] else kind
    assert load(str(folder)).draft_kind == expected
    assert load(str(folder / "config.json")).draft_kind == expected


def test_draft_kind_from_the_config_without_an_index(tmp_path: Path) -> None:
    assert load(str(write_checkpoint(tmp_path / "a"))).draft_kind is None
    assert load(str(write_checkpoint(tmp_path / "b", {**CONFIG, "dspark_block_size": 5}))).draft_kind == "dspark"
    assert load(str(write_checkpoint(tmp_path / "c", {**CONFIG, "num_nextn_predict_layers": 0}))).draft_kind == "none"
    assert load(config_overrides={"num_nextn_predict_layers": 0}).draft_kind == "none"


def test_a_directory_on_disk_wins_over_the_bundled_config(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "DeepSeek-V4-Flash", {**CONFIG, "hc_mult": 2})
    model = load(str(folder))
    assert model.get("hc_mult") == 2
    assert model.source == str(folder / "config.json")
    assert model.known_id == FLASH


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(str(tmp_path))


def test_broken_files_name_the_file_and_the_place(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "config.json").write_text('{"model_type": "deepseek_v4",')
    with pytest.raises(InputError) as caught:
        load(str(folder))
    assert str(folder / "config.json") in str(caught.value)
    assert "line 1, column" in str(caught.value)
    write_checkpoint(folder, names=[])
    with pytest.raises(InputError, match="weight_map"):
        load(str(folder))


def test_model_config_replaces_the_search(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "conf", {**CONFIG, "hc_mult": 2})
    for given_path in (folder, folder / "config.json"):
        model = load("example/anything", model_config=str(given_path))
        assert (model.name, model.get("hc_mult")) == ("example/anything", 2)
    assert load(None, model_config=str(folder)).get("hc_mult") == 2
    with pytest.raises(InputError, match="no such file"):
        load("example/anything", model_config=str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_local_cache(tmp_path: Path, variable: str) -> None:
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(variable, "")
    write_cache(tmp_path / below, "example/finetune", config={**CONFIG, "hc_mult": 2})
    model = load("example/finetune", env={"HOME": "/nonexistent", variable: str(tmp_path)})
    assert model.get("hc_mult") == 2


def test_cache_variables_in_the_order_of_the_hub() -> None:
    everything = {"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}
    assert hub_cache(everything) == Path("/a")
    assert hub_cache({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}) == Path("/b")
    assert hub_cache({"HF_HOME": "/c"}) == Path("/c/hub")
    assert hub_cache({"HOME": "/h"}) == Path("/h/.cache/huggingface/hub")


def test_revision_picks_branch_or_commit(tmp_path: Path) -> None:
    write_cache(tmp_path, "example/x", "aaa111", "main", {**CONFIG, "hc_mult": 2})
    write_cache(tmp_path, "example/x", "bbb222", "v2", {**CONFIG, "hc_mult": 3})
    env = {"HF_HUB_CACHE": str(tmp_path)}
    assert load("example/x", env=env).get("hc_mult") == 2
    assert load("example/x", flags={"revision": "v2"}, env=env).get("hc_mult") == 3
    assert load("example/x", flags={"revision": "bbb222"}, env=env).get("hc_mult") == 3
    with pytest.raises(InputError):
        load("example/x", flags={"revision": "../../etc"}, env=env)


def test_hf_config_path_supplies_config_but_not_weights(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path / "w", {**CONFIG, "hc_mult": 9}, ["mtp.0.enorm.weight"])
    config = write_checkpoint(tmp_path / "c", {**CONFIG, "hc_mult": 2})
    model = load(str(weights), flags={"hf_config_path": str(config)})
    assert model.get("hc_mult") == 2
    assert model.draft_kind == "mtp"


def test_legacy_modelopt_section_is_read_from_beside(tmp_path: Path) -> None:
    plain = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    folder = write_checkpoint(tmp_path / "m", plain)
    quantisation = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantisation))
    model = load(str(folder))
    assert model.get("quantization_config")["producer"]["name"] == "modelopt"
    assert "config-quantization-missing" not in codes(model)


def test_config_like_and_siblings() -> None:
    model = load("amd/DeepSeek-V4-Flash-Quark", config_like=FLASH)
    assert (model.name, model.known_id) == ("amd/DeepSeek-V4-Flash-Quark", "amd/DeepSeek-V4-Flash-Quark")
    assert "standing in" in model.source
    assert "config-assumed" in codes(model)
    sibling = guess_sibling("community/DeepSeek-V4-Flash-0731-NVFP4")
    assert sibling is not None
    assert sibling.id == "deepseek-ai/DeepSeek-V4-Flash-0731", "the longest name counts"
    assert guess_sibling("community/other") is None
    guessed = load("community/DeepSeek-V4-Flash-0731-NVFP4")
    assert guessed.draft_kind == "dspark"
    assert codes(guessed) == {"config-assumed": Stage.ENGINE_CONFIG}
    with pytest.raises(InputError, match="config_like"):
        load("a/b", config_like="c/d")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("community/DeepSeek-V4-Flash-NVFP4-DSpark", "deepseek-ai/DeepSeek-V4-Flash-DSpark"),
        ("community/DeepSeek-V4-Flash-Abliterated-DSpark", "deepseek-ai/DeepSeek-V4-Flash-DSpark"),
        ("community/DeepSeek-V4-Flash-FP8-0731", "deepseek-ai/DeepSeek-V4-Flash-0731"),
        ("community/DeepSeek-V4-Pro_W4A16_DSpark", "deepseek-ai/DeepSeek-V4-Pro-DSpark"),
        ("community/DeepSeek-V4-Flash-Abliterated", "deepseek-ai/DeepSeek-V4-Flash"),
        ("community/DeepSeek-V4-Flash-Base-FP8", "deepseek-ai/DeepSeek-V4-Flash-Base"),
        ("community/DeepSeek-V4.1-Flash-NVFP4", "deepseek-ai/DeepSeek-V4.1-Flash"),
    ],
)
def test_a_later_word_of_a_repack_names_its_draft(name: str, expected: str) -> None:
    sibling = guess_sibling(name)
    assert sibling is not None
    assert sibling.id == expected


def test_overrides_merge_and_null_deletes() -> None:
    model = load(config_overrides={"quantization_config": {"scale_fmt": None, "fmt": "x"}, "hc_mult": None})
    assert "scale_fmt" not in model.get("quantization_config")
    assert model.get("quantization_config")["quant_method"] == "fp8"
    assert codes(model)["config-field-missing"] is Stage.MODEL_INIT
    assert CONFIG["hc_mult"] == 4, "the bundled config is not changed"


def test_hf_overrides_replace_whole_sections() -> None:
    model = load(flags={"hf_overrides": {"quantization_config": {"quant_method": "fp8"}, "num_hidden_layers": 4}})
    assert model.get("quantization_config") == {"quant_method": "fp8"}
    assert model.compress_ratios == (0, 0, 4, 128)


@pytest.mark.parametrize(
    ("release", "change", "code", "stage"),
    [
        ("0.28.0", {"model_type": None}, "config-model-type-missing", Stage.ENGINE_CONFIG),
        ("0.28.0", {"architectures": None}, "config-architectures-missing", Stage.RUNTIME),
        ("0.28.0", {"architectures": ["X"]}, "config-architecture-unknown", Stage.ENGINE_CONFIG),
        (
            "0.28.0",
            {"compress_ratios": [0, 0, 8] + [4] * 41},
            "config-compress-ratio-value",
            Stage.MODEL_INIT,
        ),
        (
            "0.33.0",
            {"compress_ratios": [0, 0, 8] + [4] * 41},
            "config-compress-ratio-value",
            Stage.ENGINE_CONFIG,
        ),
        ("0.28.0", {"compress_ratios": [0, 4]}, "config-compress-ratio-count", Stage.MODEL_INIT),
        ("0.33.0", {"compress_ratios": [0, 4]}, "config-compress-ratio-count", Stage.ENGINE_CONFIG),
        ("0.33.0", {"swiglu_limit": 10}, "config-strict-type", Stage.ENGINE_CONFIG),
        ("0.33.0", {"o_groups": None}, "config-field-defaulted", Stage.ACCURACY),
        ("0.32.0", {"o_groups": None}, "config-field-missing", Stage.MODEL_INIT),
        ("0.28.0", {"rope_scaling": {"factor": None}}, "config-rope-factor-missing", Stage.ENGINE_CONFIG),
        ("0.28.0", {"rope_scaling": None}, "config-rope-scaling-missing", Stage.ACCURACY),
        ("0.28.0", {"quantization_config": None}, "config-quantization-missing", Stage.WEIGHT_LOAD),
        ("0.22.1", {"quantization_config": None}, "config-quantization-missing", Stage.MODEL_INIT),
        (
            "0.22.1",
            {"quantization_config": {"scale_fmt": None}},
            "config-scale-fmt-missing",
            Stage.MODEL_INIT,
        ),
        ("0.20.1", {"expert_dtype": "int4"}, "config-expert-dtype", Stage.MODEL_INIT),
        (
            "0.28.0",
            {"quantization_config": {"activation_scheme": "static"}},
            "config-activation-scheme",
            Stage.ENGINE_CONFIG,
        ),
        (
            "0.28.0",
            {"quantization_config": {"weight_block_size": [128]}},
            "config-weight-block-size",
            Stage.ENGINE_CONFIG,
        ),
        ("0.28.0", {"hidden_act": "gelu"}, "config-hidden-act", Stage.MODEL_INIT),
    ],
)
def test_problems_and_their_stage(release: str, change: dict[str, Any], code: str, stage: Stage) -> None:
    assert codes(load(release=release, config_overrides=change))[code] is stage
    assert code not in codes(load(release=release))


@pytest.mark.parametrize(
    ("release", "change"),
    [
        ("0.32.0", {"swiglu_limit": 10}),
        ("0.32.0", {"n_shared_experts": 1, "rope_theta": 10000.0}),
        ("0.33.0", {"rope_theta": 10000}),
        ("0.33.0", {"compress_ratios": [0, 0] + [4, 128] * 30}),
        ("0.20.0", {"expert_dtype": "int4"}),
        ("0.23.0", {"quantization_config": {"scale_fmt": None}}),
    ],
)
def test_what_the_release_takes_is_no_problem(release: str, change: dict[str, Any]) -> None:
    assert codes(load(release=release, config_overrides=change)) == {}


def test_strict_error_is_quoted_as_transformers_words_it() -> None:
    (problem,) = load(release="0.33.0", config_overrides={"swiglu_limit": 10}).problems
    assert problem.error == "Field 'swiglu_limit' expected float, got int (value: 10)"
    assert problem.exception == "StrictDataclassFieldValidationError"


def test_an_enlarged_layer_count_fails_in_the_worker_even_with_the_strict_class() -> None:
    for release in ("0.28.0", "0.33.0"):
        model = load(release=release, flags={"hf_overrides": {"num_hidden_layers": 50}})
        assert codes(model) == {"config-compress-ratio-count": Stage.MODEL_INIT}


def test_runner_stated_keeps_text_generation() -> None:
    model = load(config_overrides={"architectures": None}, flags={"runner": "generate"})
    assert "config-architectures-missing" not in codes(model)


def test_dummy_weights_hide_what_only_loading_shows() -> None:
    name = "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"
    assert "config-vision-too-new" in codes(load(name))
    assert codes(load(name, flags={"load_format": "dummy"})) == {}


def test_an_unknown_release_takes_the_nearest_facts() -> None:
    assert codes(load("deepseek-ai/DeepSeek-V4.1-Flash", "0.29.7")) == {"config-model-too-new": Stage.ENGINE_CONFIG}
    assert codes(load(release="99.0")) == {}


def test_online_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"dsv4check\[hub\]"):
        load("example/unknown", online=True)


def test_online_fetches_config_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**CONFIG, "hc_mult": 2})
    asked: list[tuple[str, str, str | None]] = []

    def download(repo: str, name: str, revision: str | None = None) -> str:
        asked.append((repo, name, revision))
        return str(folder / name)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    model = load("example/unknown", online=True, flags={"revision": "v1"})
    assert model.get("hc_mult") == 2
    assert asked == [("example/unknown", "config.json", "v1")]


def test_online_failures_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_args: object, **_rest: object) -> str:
        raise OSError("401 Client Error\nlong text")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    with pytest.raises(InputError) as caught:
        load("example/unknown", online=True)
    assert "401 Client Error" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_name_is_found_or_refused(name: str) -> None:
    try:
        load(name)
    except InputError as error:
        one_line(error)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_SECTIONS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("quant_method", "scale_fmt", "activation_scheme", "weight_block_size", "type"), _VALUES),
)
_OVERRIDES = st.dictionaries(st.sampled_from(sorted(CONFIG)), _VALUES | _SECTIONS, max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_OVERRIDES, _OVERRIDES, st.sampled_from(["0.20.0", "0.32.0", "0.33.0"]))
def test_any_overrides_give_a_model_or_an_input_error(
    changes: dict[str, Any], overrides: dict[str, Any], release: str
) -> None:
    try:
        model = load(release=release, config_overrides=changes, flags={"hf_overrides": overrides})
    except InputError as error:
        one_line(error)
    else:
        assert all(problem.code for problem in model.problems)


@pytest.mark.parametrize("model", sorted(published_models()))
def test_bundled_configs_need_no_check(model: str) -> None:
    assert not list(value_issues(bundled_config(model)))
