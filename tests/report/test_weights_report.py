"""What is said about a checkpoint under a release: the data, its JSON and its text."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from dsv4check.api import read_request
from dsv4check.checkpoint.loading import Row
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.shards import write_index, write_shard
from dsv4check.checkpoint.synthetic import write_checkpoint
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.cli.weights import find_checkpoint
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import INDEX_NAME
from dsv4check.report.model import Verdict
from dsv4check.report.rich_format import print_blocks
from dsv4check.report.text_format import render_blocks
from dsv4check.report.weights_json import weights_to_dict
from dsv4check.report.weights_names import tensor_lines
from dsv4check.report.weights_rows import loaded_groups, skipped_lines
from dsv4check.report.weights_schema import weights_json_schema
from dsv4check.report.weights_text import weights_blocks
from dsv4check.weights_report import WeightsReport
from tests.conftest import PEAK_MEMORY, SLOWER
from tests.report.weights import weights

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "weights.schema.json").read_text(encoding="utf-8"))
AI = "deepseek-ai/DeepSeek-"
MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
DSPARK = """--speculative-config '{"method": "dspark", "num_speculative_tokens": 5}'"""


def text(item: WeightsReport) -> str:
    return render_blocks(weights_blocks(item))


def made(folder: Path, like: str = "flash", layers: int = 4, experts: int = 4, **more: Any) -> Path:
    write_checkpoint(folder, like, layers=layers, experts=experts, **more)
    return folder


def with_tensor(folder: Path, name: str) -> Path:
    """Add a file with one more tensor, listed in the index."""
    file = "model-more.safetensors"
    size = write_shard(folder / file, {name: Tensor("BF16", (2,))})
    index = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
    write_index(folder, index["weight_map"] | {name: file}, index["metadata"]["total_size"] + size)
    return folder


@pytest.mark.parametrize(
    ("model", "vllm", "args", "draft"),
    [
        ("V4-Flash", "0.20.2", MTP, "mtp"),
        ("V4-Flash", "0.24.0", MTP, "mtp"),
        ("V4-Flash", "0.28.0", MTP, "mtp"),
        ("V4-Flash", "0.33.0", MTP, "mtp"),
        ("V4-Pro", "0.24.0", MTP, "mtp"),
        ("V4-Flash-0731", "0.28.0", DSPARK, "dspark"),
        ("V4-Pro-0813", "0.33.0", DSPARK, "dspark"),
        ("V4.1-Flash", "0.33.0", DSPARK, "dspark"),
    ],
)
def test_published_checkpoints_fit(model: str, vllm: str, args: str, draft: str) -> None:
    item = weights(AI + model, vllm, f"-tp 8 {args}")
    assert (item.fatal_defects, item.refused, item.empty, item.disagreements) == ((), 0, 0, ())
    assert not item.fails
    assert (item.choice.method, item.choice.started) == (draft, True)
    tensors = len(item.located.checkpoint.tensors)
    for part in item.loaded:
        assert part.load.parameters
        assert sum(row.count for row in part.load.rows) == tensors
    assert len(item.loaded) == 2
    (stage,) = item.shares
    assert stage.draft is not None
    assert stage.total == stage.target.total + stage.draft.total


def test_a_draft_that_the_release_has_no_class_for_does_not_count_unless_it_is_started() -> None:
    item = weights(f"{AI}V4-Flash-0731", "0.24.0", "-tp 8")
    assert (item.choice.method, item.choice.started, item.draft) == ("dspark", False, None)
    assert "no class for a dspark draft" in item.no_draft
    assert not item.fails
    assert f"not evaluated: {item.no_draft[:40]}" in text(item)


def test_a_dspark_checkpoint_served_by_mtp() -> None:
    item = weights(f"{AI}V4-Flash-0731", "0.28.0", f"-tp 8 {MTP}")
    assert item.draft is not None
    refused = {row.first: (row.exception, row.message) for row in item.draft.load.refused}
    assert refused["mtp.0.main_norm.weight"] == ("KeyError", "'model.layers.43.mtp_block.main_norm.weight'")
    assert "model.layers.43.enorm.weight" in {gap.first for gap in item.draft.load.gaps}
    assert item.verdict is Verdict.FAIL
    assert "WT001" in {finding.rule for finding in item.findings}
    said = text(item)
    assert "refused: mtp.0.main_norm.weight: KeyError: 'model.layers.43.mtp_block.main_norm.weight'" in said
    # Nothing is started: it is told, and does not count.
    quiet = weights(f"{AI}V4-Flash-0731", "0.28.0", "-tp 8", draft="none")
    assert (quiet.choice.method, quiet.fails) == ("none", False)
    assert weights(f"{AI}V4-Flash-0731", "0.28.0", "-tp 8", draft="mtp").fails


def test_dropped_tensors_leave_parameters_empty(tmp_path: Path) -> None:
    drop = ["layers.2.attn.wkv.scale", "layers.1.ffn.experts.3.w2.*", "layers.3.attn_norm.weight"]
    item = weights(made(tmp_path / "made", drop=drop), "0.33.0", "-tp 4 --kv-cache-dtype fp8")
    assert item.target is not None
    assert {gap.first: gap.lacking for gap in item.target.load.gaps} == {
        "model.layers.1.ffn.experts.routed_experts.w2_weight": "1 of 4 experts (w2)",
        "model.layers.1.ffn.experts.routed_experts.w2_weight_scale": "1 of 4 experts (w2)",
        "model.layers.2.attn.fused_wqa_wkv.weight_scale_inv": "shard 1",
        "model.layers.3.attn_norm.weight": "",
    }
    assert item.empty == 4
    assert item.verdict is Verdict.FAIL
    said = text(item)
    assert "4 parameters not filled" in said.splitlines()[0]
    assert "not filled: model.layers.2.attn.fused_wqa_wkv.weight_scale_inv: lacks shard 1" in said
    assert "not filled: model.layers.3.attn_norm.weight: nothing fills it" in said


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    folder = with_tensor(made(tmp_path / "made"), "layers.1.attn.wkx.weight")
    item = weights(folder, "0.33.0", "-tp 4")
    assert item.target is not None
    (row,) = item.target.load.refused
    assert (row.first, row.exception) == ("layers.1.attn.wkx.weight", "KeyError")
    assert (item.refused, item.empty, item.fails) == (1, 0, True)
    assert "refused: layers.1.attn.wkx.weight: KeyError: 'layers.1.attn.wkx.weight'" in text(item)


def test_a_truncated_file_is_a_defect_and_a_missing_one_too(tmp_path: Path) -> None:
    folder = made(tmp_path / "made", shards=3)
    shards = sorted(folder.glob("*.safetensors"))
    with shards[1].open("r+b") as stream:
        stream.truncate(shards[1].stat().st_size - 1)
    item = weights(folder, "0.33.0", "-tp 4")
    assert [(defect.kind, defect.file) for defect in item.fatal_defects] == [("data-truncated", shards[1].name)]
    assert f"data-truncated: {shards[1].name}:" in text(item)
    shards[2].unlink()
    item = weights(folder, "0.33.0", "-tp 4")
    assert {defect.kind for defect in item.fatal_defects} == {"data-truncated", "shard-missing"}
    assert "only the names are known" in item.no_shares
    # With an index alone, names are compared; there is no folder to serve from yet.
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    item = weights(folder, "0.33.0", "-tp 4")
    assert (item.fatal_defects, item.empty, item.shares) == ((), 0, ())


@pytest.mark.parametrize(
    ("args", "tensor", "spread", "layers"),
    [
        ("-tp 8", 8, 8, (43,)),
        ("-tp 1", 1, 1, (43,)),
        ("-tp 4 -pp 2", 4, 4, (22, 21)),
        ("-tp 2 -pp 4 -ep", 2, 2, (11, 11, 11, 10)),
        ("-tp 2 -dp 4 -ep", 2, 8, (43,)),
        ("-tp 2 -dp 4", 2, 8, (43,)),
        ("-tp 1 -dp 8 -ep", 1, 8, (43,)),
    ],
)
def test_shares_add_up_to_the_checkpoint(args: str, tensor: int, spread: int, layers: tuple[int, ...]) -> None:
    item = weights(f"{AI}V4-Flash", "0.33.0", args)
    assert tuple(stage.layers for stage in item.shares) == layers
    sizes = {name: tensor.size or 0 for name, tensor in item.located.checkpoint.tensors.items()}
    loaded = sum(size for name, size in sizes.items() if not name.startswith("mtp."))
    # Outside the layers, and not the embedding, norm or head: every stage has them.
    everywhere = sum(size for name, size in sizes.items() if name.startswith("hc_head_"))
    held = sum(stage.target.experts * spread + stage.target.cut * tensor + stage.target.whole for stage in item.shares)
    assert held == pytest.approx(loaded + everywhere * (len(layers) - 1), rel=1e-12)
    experts = sum(size for name, size in sizes.items() if ".experts." in name and name.startswith("layers."))
    assert sum(stage.target.experts for stage in item.shares) * spread == pytest.approx(experts)
    assert [stage.draft is not None for stage in item.shares] == [False] * (len(layers) - 1) + [True]
    assert item.shares[-1].total == item.shares[-1].target.total, "a draft that is not started does not count"


def test_stated_pipeline_layers() -> None:
    item = weights(f"{AI}V4-Flash", "0.33.0", "-tp 4 -pp 2", env={"VLLM_PP_LAYER_PARTITION": "20,23"})
    assert [stage.layers for stage in item.shares] == [20, 23]
    item = weights(f"{AI}V4-Flash", "0.33.0", "-tp 4 -pp 2", env={"VLLM_PP_LAYER_PARTITION": "20,20"})
    assert (item.shares, item.no_shares) == ((), "the layers of each pipeline stage are not known")


def test_mega_moe_has_parameters_of_its_own() -> None:
    item = weights(f"{AI}V4-Flash", "0.33.0", "-tp 8 -ep --moe-backend deep_gemm_mega_moe")
    assert item.target is not None
    into = {target for row in item.target.load.rows for target in row.targets}
    assert "model.layers.{n}.ffn.experts.w13_weight[w1]" in into
    assert not item.fails


def test_a_draft_model_of_its_own(tmp_path: Path) -> None:
    target = made(tmp_path / "target", stages=0)
    draft = made(tmp_path / "draft", "flash-dspark", stages=3)
    config = json.dumps({"method": "dspark", "model": str(draft), "num_speculative_tokens": 5})
    item = weights(target, "0.33.0", f"-tp 4 --speculative-config '{config}'")
    assert (item.choice.own, item.choice.started, item.content.draft_kind) == (True, True, "none")
    assert item.draft is not None
    assert item.draft.checkpoint.source.startswith(str(draft))
    assert (item.draft.load.refused, item.draft.load.gaps) == ((), ())
    lines = list(tensor_lines(item))[1:]
    both = len(item.located.checkpoint.tensors) + len(item.draft.checkpoint.tensors)
    assert len(lines) == both
    config = json.dumps({"method": "dspark", "model": "nobody/nothing", "num_speculative_tokens": 5})
    item = weights(target, "0.33.0", f"-tp 4 --speculative-config '{config}'")
    assert item.no_draft == "the checkpoint of nobody/nothing is not known"


def test_config_and_checkpoint_disagree(tmp_path: Path) -> None:
    folder = made(tmp_path / "made", config_changes={"expert_dtype": "fp8"})
    item = weights(folder, "0.33.0", "-tp 4")
    assert {one.what for one in item.disagreements} == {"expert_dtype"}
    said = text(item)
    assert "config.json and checkpoint disagree" in said
    assert "routed experts are mxfp4 with F8_E8M0 scales" in said


def test_findings_are_those_about_weights() -> None:
    item = weights(f"{AI}V4-Flash", "0.33.0", f"-tp 3 {DSPARK}", gpu="H200")
    assert {finding.rule for finding in item.findings} == {"WT003"}
    assert len(item.report.findings) > 1


def test_other_vendors_are_not_evaluated() -> None:
    item = weights(f"{AI}V4-Flash", "0.33.0", "-tp 8", gpu="MI355X")
    assert item.target is not None
    assert item.target.load.parameters is None
    assert "amd" in item.no_shares
    assert "empty parameters not evaluated" in text(item).splitlines()[0]
    assert weights_to_dict(item)["target"]["filled"] is None


def test_every_tensor_is_listed_once(tmp_path: Path) -> None:
    folder = with_tensor(made(tmp_path / "made", shards=2), "layers.1.attn.wkx.weight")
    item = weights(folder, "0.33.0", f"-tp 4 {MTP}")
    header, *lines = tensor_lines(item)
    assert header == ("tensor", "dtype", "shape", "bytes", "file", "target", "draft")
    assert [line[0] for line in lines] == list(item.located.checkpoint.tensors)
    said = {line[0]: line for line in lines}
    assert said["layers.2.ffn.experts.3.w1.weight"][5] == (
        "model.layers.2.ffn.experts.routed_experts.w13_weight[w1, expert 3]"
    )
    assert said["layers.1.attn.wkx.weight"][5].startswith("refused: KeyError: ")
    assert said["mtp.0.enorm.weight"][5:] == ("skipped: left out by the model's renames", "model.layers.4.enorm.weight")
    assert said["norm.weight"][1:4] == ("BF16", "4096", "8192")
    assert all(line[4].endswith(".safetensors") for line in lines)


def test_schema_file_is_current() -> None:
    assert weights_json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize(
    ("model", "vllm", "args"),
    [
        ("V4-Flash", "0.20.2", f"-tp 8 {MTP}"),
        ("V4-Flash-0731", "0.24.0", f"-tp 4 -pp 2 {MTP}"),
        ("V4.1-Flash", "0.33.0", f"-tp 8 -ep {DSPARK}"),
        ("V4-Pro", "0.23.1rc1.dev788+gfa4321de3", "-tp 8"),
    ],
)
def test_json_is_valid(model: str, vllm: str, args: str) -> None:
    item = weights(AI + model, vllm, args)
    report = json.loads(json.dumps(weights_to_dict(item)))
    jsonschema.validate(report, SCHEMA)
    assert report["checkpoint"]["tensors"] == sum(row["count"] for row in report["target"]["rows"])
    assert report["checkpoint"]["size"] == sum(part["size"] for part in report["content"]["parts"].values())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report | {"shares": None}, SCHEMA)


def test_json_of_a_damaged_checkpoint_is_valid(tmp_path: Path) -> None:
    folder = made(tmp_path / "made", shards=2, drop=["layers.3.attn_norm.weight"])
    next(folder.glob("*-00002-*")).write_bytes(b"version https://git-lfs")
    report = json.loads(json.dumps(weights_to_dict(weights(folder, "0.33.0", "-tp 4"))))
    jsonschema.validate(report, SCHEMA)
    assert (report["fatal_defects"], report["unfilled_parameters"], report["verdict"]) == (1, 1, "fail")
    assert report["shares"]["stages"] == []
    assert report["shares"]["not_evaluated"]


@pytest.mark.parametrize("model", ["V4-Flash-0731", "V4-Pro", "V4.1-Flash"])
def test_text_fits_120_columns_and_names_every_pattern(model: str) -> None:
    item = weights(AI + model, "0.33.0", "-tp 8")
    said = text(item)
    assert max(map(len, said.splitlines())) <= 120
    assert item.target is not None
    leaves = {row.pattern.partition("{n}.")[2] or row.pattern for row in item.target.load.rows if row.targets}
    for leaf in leaves:
        stem, _, suffix = leaf.rpartition(".")
        assert any(stem in line and suffix in line for line in said.splitlines()), leaf


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    folder = with_tensor(made(tmp_path / "made"), "layers.1.attn.\x1b[31mx.weight")
    item = weights(folder, "0.33.0", "-tp 4")
    said = text(item)
    assert "\x1b" not in said
    assert "\\x1b[31mx" in said
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
    print_blocks(weights_blocks(item), console)
    assert "\x1b[31m" not in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "layers.1.ffn.experts.007.w1.weight",
        "layers.1.ffn.experts.99999999999999999999.w1.weight",
        f"layers.{'9' * 5000}.attn.x",
        f"layers.1.ffn.experts.{'9' * 5000}.w1.weight",
        f"mtp.{'1' * 5000}.x",
        "a.experts.1.b.experts.2.w1.weight",
        "\u0661.layers.\u0661.x",
        "",
    ],
    ids=range(8),
)
@pytest.mark.parametrize("args", ["-tp 4", f"-tp 4 {DSPARK}"], ids=["mtp", "dspark"])
def test_odd_names_are_judged_like_others(tmp_path: Path, name: str, args: str) -> None:
    item = weights(with_tensor(made(tmp_path / "made"), name), "0.33.0", args)
    assert item.target is not None
    assert item.target.load.gaps == ()
    assert name in [line[0] for line in tensor_lines(item)]
    assert text(item)
    jsonschema.validate(weights_to_dict(item), SCHEMA)


def test_rows_that_go_the_same_way_share_a_line() -> None:
    rows = [
        Row("a.{n}.wkv.weight", 1, "a.0.wkv.weight", ("m.{n}.f.weight[1]", "ctx.weight[0]")),
        Row("a.{n}.wkv.scale", 1, "a.0.wkv.scale", ("m.{n}.f.weight_scale[1]", "ctx.weight_scale[0]")),
        Row("a.{n}.wkv.weight", 1, "a.1.wkv.weight", ("m.{n}.f.weight[1]", "ctx.weight[1]")),
        Row("a.{n}.wkv.scale", 1, "a.1.wkv.scale", ("m.{n}.f.weight_scale[1]", "ctx.weight_scale[1]")),
        Row("a.{n}.e.w1.weight", 8, "", ("m.{n}.w13_weight[w1]",)),
        Row("a.{n}.e.w1.scale", 7, "", ("m.{n}.w13_scale[w1]",)),
        Row("b.{n}.x", 4, "b.0.x", skipped="not of this draft"),
        *(Row(f"c.{{n}}.x{number}", 2, "", skipped="not of this draft") for number in range(4)),
        Row("d", 1, "d", skipped="never used"),
    ]
    (group,) = loaded_groups(rows)
    assert (group.tensors, group.parameters) == ("a.{n}.", "m.{n}.")
    assert [(line.tensor, line.count, line.targets) for line in group.lines] == [
        ("wkv.{weight,scale}", 2, ("f.{weight,weight_scale}[1]", "ctx.{weight,weight_scale}[0, 1]")),
        # Another number of them: something is missing, so they stay apart.
        ("e.w1.weight", 8, ("w13_weight[w1]",)),
        ("e.w1.scale", 7, ("w13_scale[w1]",)),
    ]
    assert list(skipped_lines(rows)) == [("b.{n}.*, c.{n}.*", 12, "not of this draft"), ("d", 1, "never used")]


_CHILD = f"""{PEAK_MEMORY}
import sys, time
from dsv4check.api import check_request, read_request
from dsv4check.cli.weights import find_checkpoint
from dsv4check.engine.rule import load_rules
from dsv4check.releases.facts import load_facts
from dsv4check.weights_report import build_weights_report

rules = load_rules()
request = read_request([sys.argv[1], "-tp", "8"], gpu="B200", gpus=8, vllm="0.33.0")
request, located = find_checkpoint(request, own_config=True)
report = check_request(request, rules)
facts = load_facts("0.33.0")
start = time.process_time()
item = build_weights_report(report, located, facts, rules)
seconds = time.process_time() - start
print(len(located.checkpoint.tensors), item.empty, seconds, time.process_time(),
      peak_mib())
"""


def test_a_large_index_is_judged_quickly(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """As many names as Flash-0731 has; of its files the index alone is there."""
    write_checkpoint(tmp_path / "made", "deepseek-ai/DeepSeek-V4-Flash-0731", header_only=True)
    for shard in (tmp_path / "made").glob("*.safetensors"):
        shard.unlink()
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    tensors, empty, seconds, everything, peak = map(float, done.stdout.split())
    figures(f"weights of {tensors:.0f} names: {seconds:.2f} s of CPU time ({everything:.2f} s in all), {peak:.0f} MB")
    assert (tensors, empty) == (72317, 0)
    assert seconds <= 1.0 * SLOWER
    assert peak < 300


def test_online_the_hub_is_asked_for_what_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "made")
    there = read_checkpoint(folder)
    asked: list[tuple[str, str | None]] = []

    def fetch(repo: str, revision: str | None) -> Any:
        asked.append((repo, revision))
        return there

    monkeypatch.setattr("dsv4check.checkpoint.hub.fetch_headers", fetch)
    words = ["somebody/some-v4", "--revision", "v2"]
    request = read_request(words, vllm="0.33.0", model_config=str(folder), online=True)
    request, located = find_checkpoint(request, own_config=False)
    assert asked == [("somebody/some-v4", "v2")]
    assert (located.place, located.checkpoint, request.checkpoint) == ("Hugging Face Hub", there, there)
    offline = read_request(words, vllm="0.33.0", model_config=str(folder))
    with pytest.raises(InputError, match="--online"):
        find_checkpoint(offline, own_config=False)
