from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import bundled_config, deep_merge
from dsv4check.inputs.model_config import MAX_CONFIG_BYTES, parse_config, read_config


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


FLASH = bundled_config("deepseek-ai/DeepSeek-V4-Flash")
V41 = bundled_config("deepseek-ai/DeepSeek-V4.1-Flash")
SAVED: dict[str, Any] = {
    **{key: value for key, value in FLASH.items() if key not in ("compress_ratios", "num_hash_layers")},
    "layer_types": ["sliding_attention"] * 2
    + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
    + ["compressed_sparse_attention"],
    "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[1, 2]", "expected a JSON object, got a list"),
        (b'"x"', "got a string"),
        (b"null", "got null"),
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b'{"a": 1', "line 1, column"),
        (b'{\n "a": tru\n}', "line 2, column"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        (b"\x80\x81", "not UTF-8"),
        (b"a" * (MAX_CONFIG_BYTES + 1), "too large"),
        (b"[" * 100_000, "line 1"),
    ],
    ids=["list", "string", "null", "empty", "blank", "cut", "word", "utf16", "bytes", "huge", "deep"],
)
def test_unusable_files_are_one_clear_line(data: bytes, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_config(data, "model/config.json")
    message = str(caught.value)
    assert message.startswith("model/config.json: ")
    assert told in message or ("deep" in message and data[:2] == b"[[")
    assert "\n" not in message


def test_a_byte_order_mark_is_accepted() -> None:
    assert parse_config(b"\xef\xbb\xbf{}", "f") == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": "43"}, 'num_hidden_layers: expected an integer, got "43"'),
        ({"num_hidden_layers": -1}, "num_hidden_layers: expected a positive integer, got -1"),
        ({"hidden_size": 4096.5}, "hidden_size: expected an integer, got 4096.5"),
        ({"head_dim": True}, "head_dim: expected an integer, got true"),
        ({"num_hash_layers": -3}, "num_hash_layers: expected zero or a positive integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a finite number, got nan"),
        ({"rope_scaling": {"factor": float("inf")}}, "rope_scaling.factor: expected a finite number"),
        ({"swiglu_limit": "10"}, 'swiglu_limit: expected a number, got "10"'),
        ({"compress_ratios": "0,4"}, "compress_ratios: expected a list of integers"),
        ({"compress_ratios": [0, "4"]}, 'compress_ratios[1]: expected one of integers, got "4"'),
        ({"compress_ratios": [0] * 5000}, "5000 entries are too many"),
        ({"architectures": "DeepseekV4ForCausalLM"}, "architectures: expected a list of strings"),
        ({"quantization_config": ["fp8"]}, "quantization_config: expected an object"),
        ({"expert_dtype": 4}, "expert_dtype: expected a string"),
        ({"num_hidden_layers": 2**39}, "num_hidden_layers: 549755813888 are too many"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor: expected a number from 0 to 1"),
        ({"partial_rotary_factor": "half"}, 'partial_rotary_factor: expected a number, got "half"'),
        ({"quantization_config": {"quant_method": 5}}, "quantization_config.quant_method: expected a string, got 5"),
        ({"rope_scaling": {"type": []}}, "rope_scaling.type: expected a string, got []"),
    ],
)
def test_values_no_release_can_use(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config({**FLASH, **change}, "config.json", transformers_class=False)
    assert str(caught.value).startswith("config.json: ")
    assert told in str(caught.value)


def test_paths_inside_the_nested_text_model_are_named() -> None:
    broken = deep_merge(V41, {"text_config": {"head_dim": "512"}})
    with pytest.raises(InputError, match=r"text_config\.head_dim"):
        read_config(broken, "config.json", transformers_class=False)


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "deepseek_v32"])
def test_other_models_are_refused(model_type: str) -> None:
    with pytest.raises(InputError, match=f"not a DeepSeek-V4 model .model_type '{model_type}'"):
        read_config({"model_type": model_type}, "config.json", transformers_class=False)


def test_an_empty_object_is_no_v4_model() -> None:
    with pytest.raises(InputError, match="no model_type"):
        read_config({}, "config.json", transformers_class=False)


@pytest.mark.parametrize("transformers_class", [False, True])
def test_original_generation(transformers_class: bool) -> None:
    reading = read_config(FLASH, "f", transformers_class=transformers_class)
    assert (reading.family, reading.generation) == ("deepseek_v4", "original")
    assert len(reading.compress_ratios) == 43, "entries of draft layers are cut off"
    assert reading.compress_ratios[:4] == (0, 0, 4, 128)
    assert reading.text["num_hash_layers"] == 3
    assert reading.text["qk_rope_head_dim"] == 64
    assert reading.defaulted == ()


@pytest.mark.parametrize("transformers_class", [False, True])
def test_files_saved_by_transformers(transformers_class: bool) -> None:
    reading = read_config(SAVED, "f", transformers_class=transformers_class)
    assert reading.generation == "transformers"
    assert reading.compress_ratios == read_config(FLASH, "f", transformers_class=False).compress_ratios
    assert ("num_hash_layers" in reading.text) is transformers_class, "older classes have no such attribute then"


def test_nested_generation_is_flattened_as_vllm_does() -> None:
    reading = read_config(V41, "f", transformers_class=False)
    assert (reading.family, reading.generation) == ("deepseek_v41", "nested")
    assert len(reading.compress_ratios) == reading.text["num_hidden_layers"] == 40
    assert set(reading.compress_ratios) == {0, 1, 2}
    assert reading.text["expert_dtype"] == "fp4", "it stands in quantization_config there"
    assert reading.text["model_type"] == "deepseek_v41"
    assert reading.text["vision_n_layers"] == 32


def test_layer_override_shortens_the_ratios() -> None:
    for config, by_transformers in ((FLASH, False), (FLASH, True), (V41, False)):
        reading = read_config(config, "f", transformers_class=by_transformers, flat_overrides={"num_hidden_layers": 4})
        assert len(reading.compress_ratios) == 4
        assert reading.raw["num_hidden_layers"] == 4


def test_transformers_class_fills_in_flash_and_says_so() -> None:
    pro = {
        key: value
        for key, value in bundled_config("deepseek-ai/DeepSeek-V4-Pro").items()
        if key not in ("o_groups", "compress_ratios")
    }
    reading = read_config(pro, "f", transformers_class=True)
    assert reading.text["o_groups"] == 8
    assert {"o_groups", "compress_ratios"} <= set(reading.defaulted)
    assert reading.compress_ratios[:4] == (128, 128, 128, 4), "the class has a schedule of its own"
    assert "o_groups" not in read_config(pro, "f", transformers_class=False).text


def test_overrides_that_transformers_class_ignores() -> None:
    overrides = {"compress_ratios": [4] * 44, "hc_mult": 2}
    reading = read_config(FLASH, "f", transformers_class=True, flat_overrides=overrides)
    assert reading.ineffective == ("compress_ratios",)
    assert reading.compress_ratios[:3] == (0, 0, 4)
    assert reading.text["hc_mult"] == 2
    older = read_config(FLASH, "f", transformers_class=False, flat_overrides=overrides)
    assert older.compress_ratios[:3] == (4, 4, 4)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_KEYS = st.sampled_from([*FLASH, "text_config", "layer_types", "mlp_layer_types", "compress_rates", "rope_parameters"])


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse_config(data, "f"), dict)
    except InputError as error:
        one_line(error)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(_KEYS, _JSON, max_size=5), st.dictionaries(_KEYS, _JSON, max_size=2), st.booleans())
def test_any_json_values_are_read_or_refused(changes: dict[str, Any], overrides: dict[str, Any], new: bool) -> None:
    for base in (FLASH, SAVED, V41):
        try:
            reading = read_config({**base, **changes}, "f", transformers_class=new, flat_overrides=overrides)
        except InputError as error:
            one_line(error)
        else:
            assert all(isinstance(ratio, int) for ratio in reading.compress_ratios)
            json.dumps(dict(reading.text))
