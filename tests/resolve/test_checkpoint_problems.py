"""Launches whose checkpoint lies on this machine: what its files and names say about them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dsv4check.checkpoint.published import published_tensors
from dsv4check.inputs.checkpoint import bundled_config
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.report.model import Report
from tests.conftest import PEAK_MEMORY, SLOWER
from tests.launches import run_launch
from tests.report.weights import weights
from tests.synthetic import synthetic_folder

SMALL: dict[str, Any] = {"like": "flash", "layers": 4, "experts": 8}
CODES = frozenset({"WT013", "WT014", "WT015", "WT016", "WT017", "WT018", "WT019", "WT020", "WT021", "WT022", "WT023"})
MTP = '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\''


def spec(**keys: Any) -> str:
    return f"--speculative-config '{json.dumps(keys)}'"


def rules(report: Report, among: Iterable[str] = CODES) -> set[str]:
    return {finding.rule for finding in report.findings} & set(among)


def launch(vllm: str, args: str = "", gpu: str = "B200", **checkpoint: Any) -> Report:
    return run_launch(
        {
            "vllm": vllm,
            "gpu": gpu,
            "gpus": 8,
            "checkpoint": SMALL | checkpoint,
            "args": f"-tp 4 --kv-cache-dtype fp8 {args}",
        }
    )


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize("like", ["flash", "pro", "flash-fp8", "flash-base", "flash-dspark", "pro-dspark"])
def test_whole_checkpoints_have_no_finding(release: str, like: str) -> None:
    """Every kind under every release that reads it, served plainly and with its draft."""
    dspark = "dspark" in like
    known = "dspark" in load_facts(release).section("weights")["names"]
    draft = spec(method="dspark", num_speculative_tokens=5) if dspark else MTP
    for args in ("", *([draft] if known or not dspark else [])):
        report = launch(release, args, like=like)
        misread = like in ("flash-fp8", "flash-base") and release == "0.20.0"
        assert rules(report, {*CODES, "QN011"}) == set(), [finding.message for finding in report.findings]
        assert ("QN004" in {finding.rule for finding in report.findings}) is misread
        assert "weights by name" not in {item.what for item in report.not_evaluated}


@pytest.mark.parametrize(
    "release", [item for item in known_releases() if "target_v41" in load_facts(item).section("parameters")]
)
def test_whole_v41_checkpoints_have_no_finding(release: str) -> None:
    draft = spec(method="dspark", num_speculative_tokens=5)
    assert rules(launch(release, draft, like="v4.1-flash", layers=20), {*CODES, "QN011"}) == set()


@pytest.mark.parametrize("release", known_releases())
def test_nvfp4_draft_by_release(release: str) -> None:
    """The published NVFP4 checkpoints keep their draft in MXFP4; 0.22 to 0.31 build it in NVFP4."""
    found = rules(launch(release, MTP, like="flash-nvfp4"))
    number = tuple(int(part) for part in release.split("."))
    if number < (0, 22):
        assert found == {"WT018"}  # NVFP4 is not read at all
    else:
        assert found == ({"WT022"} if number < (0, 32) else set())


def test_nvfp4_experts_of_a_draft_that_is_not_ignored() -> None:
    """From 0.32.0 on the list decides; before, the draft is NVFP4 whatever it says."""
    config = bundled_config("nvidia/DeepSeek-V4-Flash-NVFP4")["quantization_config"]
    kept = [item for item in config["ignore"] if item != "mtp.*"]
    changes = {"quantization_config": {"ignore": kept}}
    assert rules(launch("0.33.0", MTP, like="flash-nvfp4", config_changes=changes)) == {"WT022"}
    assert rules(launch("0.31.0", MTP, like="flash-nvfp4", config_changes=changes)) == {"WT022"}
    some = {"quantization_config": {"ignore": [*kept, "layers.1.*"]}}
    report = launch("0.33.0", like="flash-nvfp4", config_changes=some)
    assert rules(report) == set()
    assert any("some layers" in item.why for item in report.not_evaluated)


def test_an_explicit_draft_is_built_in_the_quantisation_of_the_target() -> None:
    """MXFP4 draft beside an NVFP4 target: it gets NVFP4 parameters, whose second scales nothing fills.

    From 0.32.0 on MTP is spared by the target's ignore list; DSpark reads the list of its own config, which has none.
    """
    dspark = synthetic_folder({**SMALL, "like": "flash-dspark"})
    fitting = spec(method="dspark", model=str(dspark), num_speculative_tokens=5)
    mtp = spec(method="mtp", model=str(synthetic_folder(SMALL)), num_speculative_tokens=1)
    for release in ("0.31.0", "0.33.0"):
        assert rules(launch(release, fitting, like="flash-nvfp4")) == {"WT022"}
    assert rules(launch("0.31.0", mtp, like="flash-nvfp4")) == {"WT022"}
    assert rules(launch("0.33.0", mtp, like="flash-nvfp4")) == set()


def test_an_explicit_draft_on_this_machine() -> None:
    draft = synthetic_folder({**SMALL, "like": "flash-dspark"})
    fitting = spec(method="dspark", model=str(draft), num_speculative_tokens=5)
    assert rules(launch("0.33.0", fitting)) == set()
    wrong = spec(method="mtp", model=str(draft), num_speculative_tokens=1)
    assert rules(launch("0.33.0", wrong), {"WT001"}) == {"WT001"}
    half = synthetic_folder({**SMALL, "like": "flash-dspark", "drop": ["mtp.2.*"]})
    report = launch("0.33.0", spec(method="dspark", model=str(half), num_speculative_tokens=5))
    assert rules(report) == {"WT022"}
    assert str(half) in next(finding.message for finding in report.findings if finding.rule == "WT022")


def cached(root: Path, damage: dict[str, int] | None = None) -> Path:
    """A snapshot of a repository in a Hugging Face cache."""
    folder = synthetic_folder({**SMALL, "shards": 3, **({"damage": damage} if damage else {})})
    snapshot = root / "models--someone--v4" / "snapshots" / "abc"
    shutil.copytree(folder, snapshot)
    refs = root / "models--someone--v4" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    return root


def test_what_the_cache_lacks_is_fetched_unless_offline(tmp_path: Path) -> None:
    env = {"HF_HUB_CACHE": str(cached(tmp_path, {"remove": 2}))}
    start = {"vllm": "0.33.0", "gpu": "B200", "gpus": 8, "model": "someone/v4", "args": "-tp 4 --kv-cache-dtype fp8"}
    assert rules(run_launch({**start, "env": env})) == set()
    assert rules(run_launch({**start, "env": {**env, "HF_HUB_OFFLINE": "1"}})) == {"WT013"}


def test_an_index_alone_is_enough_to_check_names(tmp_path: Path) -> None:
    folder = synthetic_folder({**SMALL, "drop": ["layers.3.attn.wkv.*"]})
    for name in ("config.json", "model.safetensors.index.json"):
        shutil.copy(folder / name, tmp_path / name)
    report = run_launch({"vllm": "0.33.0", "gpu": "B200", "gpus": 8, "model": str(tmp_path), "args": "-tp 4"})
    assert rules(report) == {"WT019"}


def test_what_cannot_be_compared_is_said() -> None:
    amd = launch("0.33.0", gpu="MI355X")
    assert rules(amd) == set()
    assert any("has parameters for" in item.what for item in amd.not_evaluated)
    ascend = launch("0.33.0", gpu="Ascend-910B")
    assert any(item.what == "weights by name" and "huawei" in item.why for item in ascend.not_evaluated)
    other = launch("0.33.0", "--load-format tensorizer")
    assert any(item.what == "weights by name" for item in other.not_evaluated)
    own = launch("0.33.0", "--quantization humming", damage={"add": "layers.2.attn.rotary.weight"})
    assert rules(own) == set()
    assert any("--quantization humming" in item.why for item in own.not_evaluated)
    assert rules(launch("0.33.0", "--load-format dummy", drop=["norm.weight"])) == set()


def test_words_of_the_release() -> None:
    refused = launch("0.20.2", damage={"add": "layers.2.attn.rotary.weight"})
    finding = next(item for item in refused.findings if item.rule == "WT018")
    assert finding.error == "KeyError: 'layers.2.attn.rotary.weight'"
    outside = launch("0.33.0", damage={"add": "surprise.weight"})
    finding = next(item for item in outside.findings if item.rule == "WT018")
    assert finding.error == "ValueError: There is no module or parameter named 'surprise' in DeepseekV4ForCausalLM."
    missing = launch(
        "0.33.0",
        spec(method="mtp", num_speculative_tokens=2),
        config_changes={"num_nextn_predict_layers": 2},
        like="flash",
    )
    finding = next(item for item in missing.findings if item.rule == "WT002")
    assert finding.error.startswith("ValueError: MTP speculative decoding layer 5 weights missing from checkpoint.")


def test_superfluous_scales_of_a_repack() -> None:
    """A converter that wrote scales for modules that vLLM keeps unquantised."""
    report = launch("0.22.0", damage={"add": "layers.3.attn.compressor.wkv.weight_scale"})
    finding = next(item for item in report.findings if item.rule == "WT018")
    assert finding.error == "KeyError: 'layers.3.attn.mla_attn.compressor.fused_wkv_wgate.weight_scale'"


def test_seventy_thousand_names_are_checked_in_a_second(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """The whole check of a launch, of which only the index is there: as many names as Flash-0731 has."""
    checkpoint = published_tensors("deepseek-ai/DeepSeek-V4-Flash-0731")
    assert checkpoint is not None
    files = {name: f"model-{number % 48:05}-of-00048.safetensors" for number, name in enumerate(checkpoint.tensors)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    config = bundled_config("deepseek-ai/DeepSeek-V4-Flash-0731")
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = spec(method="dspark", num_speculative_tokens=5)
    code = (
        f"{PEAK_MEMORY}\n"
        "import sys, time\n"
        "from dsv4check import check\n"
        "began = time.process_time()\n"
        "report = check(sys.argv[1], gpu='H200', gpus=8, vllm='0.33.0')\n"
        "taken = time.process_time() - began\n"
        "print(report.verdict, len(report.findings), taken, peak_mib())\n"
    )
    command = f"vllm serve {tmp_path} -tp 8 --kv-cache-dtype fp8 {draft}"
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, check=True)
    verdict, findings, seconds, megabytes = done.stdout.split()
    figures(f"a launch with an index of {len(files):,} names: {float(seconds):.2f} s of CPU time, {megabytes} MB")
    assert (verdict, findings) == ("pass", "0")
    assert float(seconds) < 1.0 * SLOWER
    assert int(megabytes) < 300


@pytest.mark.parametrize("release", ["0.31.0", "0.33.0"])
@pytest.mark.parametrize("method", ["mtp", "dspark"])
def test_the_table_of_weights_says_what_the_rules_say(release: str, method: str) -> None:
    """A draft of another model beside an NVFP4 target, and layers that are built another way."""
    draft = synthetic_folder(SMALL if method == "mtp" else {**SMALL, "like": "flash-dspark"})
    target = synthetic_folder({**SMALL, "like": "flash-nvfp4"})
    tokens = 1 if method == "mtp" else 5
    for args in (spec(method=method, model=str(draft), num_speculative_tokens=tokens), "--quantization humming"):
        table = weights(target, release, f"-tp 4 --kv-cache-dtype fp8 {args}")
        assert bool(table.empty) is ("WT022" in rules(table.report))
        assert table.target is not None
        assert bool(table.target.part.unknown) is ("humming" in args)
