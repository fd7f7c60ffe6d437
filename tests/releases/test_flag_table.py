"""The flag tables of the releases and their history."""

from __future__ import annotations

import time

import pytest

from dsv4check.errors import InputError
from dsv4check.inputs.flags.config_checks import CHECKS
from dsv4check.releases.facts import known_releases
from dsv4check.releases.flag_table import Shape, load_flag_table
from dsv4check.releases.history import flag_history

RELEASES = known_releases()


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_a_consistent_table(release: str) -> None:
    table = load_flag_table(release)
    assert table.release == release
    assert len(table.by_dest) > 200
    for dest, spec in table.by_dest.items():
        assert spec.dest == dest
        assert spec.flag.startswith("--")
        assert all(table.by_option[option] is spec for option in spec.options)
        assert spec.negative <= set(spec.options)
        if spec.config:
            assert spec.config in table.configs, spec
    for config in table.configs.values():
        assert set(config.after) <= set(CHECKS)
        for field in config.fields.values():
            _check_shape(table.configs, field.shape)


def _check_shape(configs: object, shape: Shape) -> None:
    if isinstance(shape, list):
        if shape[0] != "lit":
            for part in shape[1:]:
                _check_shape(configs, part)
        return
    assert isinstance(shape, str)


def test_unknown_release_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"no flag table for vLLM 9\.9\.9"):
        load_flag_table("9.9.9")


@pytest.mark.parametrize(
    ("flag", "first", "last"),
    [
        ("--spec-method", "0.22.0", None),
        ("--calculate-kv-scales", None, "0.27.1"),
        ("--max-num-partial-prefills", None, "0.26.0"),
        ("--enable-bf16x3-router-gemm", "0.26.0", "0.29.0"),
        ("--disable-prefix-caching", "0.33.0", None),
        ("--enable-hybrid-kv-cache-manager", "0.33.0", None),
        ("--prefix-match-unit", "0.26.0", None),
        ("--kernel-config", None, None),
    ],
)
def test_flags_exist_in_their_releases(flag: str, first: str | None, last: str | None) -> None:
    history = flag_history()
    present = [release for release in RELEASES if flag in load_flag_table(release).by_option]
    assert present[0] == (first or RELEASES[0])
    assert present[-1] == (last or RELEASES[-1])
    assert history.exists(flag)
    assert history.arrives_in(flag, RELEASES[0]) == first
    assert (history.removed_in(flag, RELEASES[-1]) is None) == (last is None)


@pytest.mark.parametrize(
    ("name", "release", "removed", "arrives"),
    [
        ("attention_config.use_fp4_indexer_cache", "0.33.0", "0.30.0", None),
        ("attention_config.indexer_kv_dtype", "0.22.1", None, "0.24.0"),
        ("kv_transfer_config.kv_rank", "0.32.0", "0.32.0", None),
        ("compilation_config.pass_config.enable_sp", "0.33.0", "0.32.0", None),
        ("--moe-backend=triton_unfused", "0.20.0", None, "0.21.0"),
        ("--moe-backend=flashinfer_moe_ep_mega_cutedsl", "0.32.0", "0.32.0", None),
        ("--no-such-flag", "0.24.0", None, None),
    ],
)
def test_history_says_when_names_come_and_go(name: str, release: str, removed: str | None, arrives: str | None) -> None:
    history = flag_history()
    assert history.removed_in(name, release) == removed
    assert history.arrives_in(name, release) == arrives


def test_short_flags_and_negative_forms() -> None:
    table = load_flag_table("0.33.0")
    assert table.by_option["-tp"].dest == "tensor_parallel_size"
    assert table.by_option["-ep"].dest == "enable_expert_parallel"
    assert table.by_option["--disable-prefix-caching"].dest == "enable_prefix_caching"
    assert "--disable-prefix-caching" in table.by_option["--enable-prefix-caching"].negative
    assert "--enable-sliding-window" in table.by_option["--disable-sliding-window"].negative
    older = load_flag_table("0.32.0")
    assert "--disable-prefix-caching" not in older.by_option
    assert older.by_option["--no-enable-prefix-caching"].negative == {"--no-enable-prefix-caching"}


def test_patch_releases_have_the_flags_of_their_series() -> None:
    for one, other in (("0.20.0", "0.20.1"), ("0.20.1", "0.20.2"), ("0.22.0", "0.22.1"), ("0.27.0", "0.27.1")):
        assert set(load_flag_table(one).by_option) == set(load_flag_table(other).by_option)


def test_kv_cache_dtype_becomes_free_text_in_0_33() -> None:
    assert "fp8_ds_mla" in (load_flag_table("0.32.0").by_dest["kv_cache_dtype"].choices or ())
    assert load_flag_table("0.33.0").by_dest["kv_cache_dtype"].choices is None


def test_loading_is_quick() -> None:
    load_flag_table.cache_clear()
    best = 1.0
    for _ in range(3):
        load_flag_table.cache_clear()
        start = time.process_time()
        load_flag_table("0.33.0")
        best = min(best, time.process_time() - start)
    assert best < 0.1
