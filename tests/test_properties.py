"""Whatever comes in, the answer is a report or one clear InputError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4check import InputError, check
from dsv4check.batch import check_line
from dsv4check.cli.output import FailOn
from dsv4check.releases.facts import known_releases
from dsv4check.releases.flag_table import load_flag_table
from tests.launches import all_rules

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
quiet = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
CONFIG = json.loads((Path(__file__).parents[1] / "rules/models/deepseek-ai/DeepSeek-V4-Flash/config.json").read_text())


def answered(**kwargs: Any) -> None:
    try:
        report = check(**kwargs)
    except InputError as error:
        message = str(error)
    else:
        message = "answered"
        json.dumps(report.to_dict())
    assert message.strip()
    assert "\n" not in message


@quiet
@given(st.text(max_size=200))
def test_any_text_as_command(text: str) -> None:
    answered(command=text, gpu="H200", vllm="0.28.0")


@quiet
@given(st.lists(st.text(max_size=30), max_size=8))
def test_any_words_as_command(words: list[str]) -> None:
    answered(command=["vllm", "serve", FLASH, *words], gpu="B200", gpus=8, vllm="0.33.0")


@quiet
@given(st.data())
def test_known_flags_with_any_value(data: st.DataObject) -> None:
    release = data.draw(st.sampled_from(known_releases()))
    flags = sorted(spec.flag for spec in load_flag_table(release).by_dest.values())
    words: list[str] = []
    for flag in data.draw(st.lists(st.sampled_from(flags), max_size=5)):
        words.append(flag)
        value = data.draw(
            st.none() | st.text(max_size=12) | st.integers(-5, 2**33).map(str) | json_values.map(json.dumps)
        )
        if value is not None:
            words.append(value)
    answered(command=["vllm", "serve", FLASH, *words], gpu="H200", gpus=8, vllm=release, fixes=False)


@quiet
@given(
    st.dictionaries(st.sampled_from(sorted(CONFIG)), json_values, max_size=4),
    st.sampled_from(["0.22.1", "0.28.0", "0.33.0"]),
)
def test_any_config_values(tmp_path: Path, changes: dict[str, Any], release: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    answered(
        command="vllm serve x -tp 8 --kv-cache-dtype fp8",
        model_config=path,
        gpu="H200",
        gpus=8,
        vllm=release,
    )


@quiet
@given(st.binary(max_size=300))
def test_any_bytes_as_config(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        check("vllm serve x", model_config=path, gpu="H200", vllm="0.28.0")
    assert str(path) in str(caught.value)


@quiet
@given(json_values | st.text(max_size=60))
def test_any_batch_line(value: Any) -> None:
    line = value if isinstance(value, str) else json.dumps(value)
    reply, code = check_line(line, "batch, line 1", all_rules(), FailOn.ERROR, False, False)
    assert code in (0, 1, 2)
    assert json.dumps(reply)
    assert (reply["verdict"] is None) == (code == 2)


@quiet
@given(
    st.sampled_from(["fp8", "auto", "bfloat16"]),
    st.sampled_from(["H200", "B200", "RTX-PRO-6000"]),
    st.sampled_from(known_releases()),
)
def test_verified_fixes_really_pass(dtype: str, gpu: str, release: str) -> None:
    command = f"vllm serve {FLASH} -tp 8 --kv-cache-dtype {dtype}"
    report = check(command, gpu=gpu, gpus=8, vllm=release)
    for finding in report.errors:
        for fix in finding.fixes:
            if not fix.verified or any(
                edit.kind in ("set_vllm", "set_gpu", "set_package", "set_env") for edit in (*fix.edits, *fix.also)
            ):
                continue
            assert not check(fix.command, gpu=gpu, gpus=8, vllm=release).errors
