"""The learned names of the drafts' weights are those that the releases' own loaders use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4check.checkpoint.names import NameRules, NameSettings, Refused, Skipped
from dsv4check.data import rules_dir
from dsv4check.learning.release import source_only
from dsv4check.learning.sections.draft_names import learn_draft_names
from dsv4check.learning.sections.draft_names.pure import string_function
from dsv4check.learning.sections.spec_decode.draft import DSPARK_CLASS, MTP_CLASS
from dsv4check.learning.sections.spec_decode.queries import function
from dsv4check.learning.sections.spec_decode.vendors import files_by_vendor
from dsv4check.learning.sections.weights.loader import learn_loader_facts
from dsv4check.learning.source import LearningError, Source
from tests.learning.fake_draft_names import FILES
from tests.learning.loader_stub import loaded_names

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
RELEASES = sorted(path.stem for path in (rules_dir() / "releases").glob("[0-9]*.yaml"))
LAYERS = 43
MTP_STAGES = 2
DSPARK_STAGES = 3
"""``num_hidden_layers`` and ``num_nextn_predict_layers`` of the stub, and the layers that it has."""

_WEIGHT_AND_SCALE = (
    *("attn.wkv", "attn.wo_a", "attn.wo_b", "attn.wq_a", "attn.wq_b", "ffn.shared_experts.w1", "ffn.shared_experts.w2"),
    *("ffn.shared_experts.w3", *(f"ffn.experts.{expert}.w{part}" for expert in (0, 1) for part in (1, 2, 3))),
)
LAYER = (
    *(f"{name}.{leaf}" for name in _WEIGHT_AND_SCALE for leaf in ("weight", "scale")),
    *("attn.attn_sink", "attn.kv_norm.weight", "attn.q_norm.weight", "attn_norm.weight", "ffn_norm.weight"),
    *("ffn.gate.weight", "ffn.gate.bias", "ffn.gate.bias_vl", "hc_attn_base", "hc_ffn_fn", "hc_ffn_scale"),
)
"""Names of a draft's layer in published checkpoints."""
EXTRAS = {
    "mtp": (
        *("e_proj.weight", "e_proj.scale", "h_proj.weight", "h_proj.scale", "enorm.weight", "hnorm.weight"),
        *("norm.weight", "hc_head_base", "hc_head_fn", "hc_head_scale", "emb.tok_emb.weight", "head.weight"),
        "main_norm.weight",  # of another kind of draft
    ),
    "dspark": (
        *("main_proj.weight", "main_proj.scale", "main_norm.weight", "norm.weight", "confidence_head.proj.weight"),
        *(
            "hc_head_base",
            "hc_head_fn",
            "hc_head_scale",
            "markov_head.markov_w1.weight",
            "markov_head.markov_w2.weight",
        ),
        "enorm.weight",
    ),
}
EXTRAS["dspark_v41"] = (*EXTRAS["dspark"], "markov_head.embed.weight", "markov_head.head.weight")
TARGET = ("embed.weight", "head.weight", "norm.weight", "layers.0.attn.wkv.weight", "hc_head_base")


UNUSUAL = (
    *(
        "mtp.0.ffn.experts.2.w1.weight",
        "mtp.0.ffn.experts.0.w4.weight",
        "mtp.00.attn_norm.weight",
        "xmtp.0.enorm.weight",
    ),
    *(
        "model.layers.43.enorm.weight",
        "layers.43.enorm.weight",
        "layers.44.enorm.weight",
        "model.layers.45.enorm.weight",
    ),
    *("mtp.1.emb.tok_emb.weight", "mtp.0.attn.wkv.unknown", "mtp.7.attn.wkv.weight", "mtp.0.unknown.scale", "mtp.0.x"),
    *("mtp.0.attn.wq_a.weight_scale", "mtp.0.ffn.shared_experts.w2.weight_scale", "mtp.0.attn.wkv.", "mtp.unknown"),
)
"""Names no published checkpoint has."""


class Everything(Collection[str]):
    """A model that has every parameter."""

    def __contains__(self, _name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def read(rules: NameRules, tensor: str) -> list[tuple[str | None, Any, Any]]:
    """(parameter, shard, expert) that the rules give for a tensor of the checkpoint, in a model with all parameters."""
    found = rules.map(tensor)
    assert not isinstance(found, Refused)
    if isinstance(found, Skipped):
        return []
    return [(rules.resolve(target, Everything()), target.shard, target.expert) for target in found]


def loaders(source: Source, kind: str) -> dict[str, str]:
    """The loader's file by vendor."""
    if kind == "mtp" and not source.has("models/deepseek_v4/__init__.py"):
        return {"nvidia": "model_executor/models/deepseek_v4_mtp.py"}
    folder = "models/deepseek_v41" if kind == "dspark_v41" else "models/deepseek_v4"
    return files_by_vendor(source, folder, MTP_CLASS if kind == "mtp" else DSPARK_CLASS)


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES is not set")
@pytest.mark.parametrize("version", RELEASES)
def test_rules_are_what_the_loaders_do(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    release = source_only(package)
    learned = learn_draft_names(release)
    loader = learn_loader_facts(release.source)
    assert learned["mtp"]
    for kind, by_vendors in learned.items():
        tensors = [f"mtp.{stage}.{name}" for stage in (0, 1, 2) for name in (*LAYER, *EXTRAS[kind])] + [
            *TARGET,
            *UNUSUAL,
        ]
        for vendor, path in loaders(release.source, kind).items():
            rules = next(rules for vendors, rules in by_vendors.items() if vendor in vendors.split())
            for dtype, head in (("fp4", True), ("fp8", False)):
                name = MTP_CLASS if kind == "mtp" else DSPARK_CLASS
                loaded = loaded_names(release.source, path, name, tensors, dtype, head)
                stages = MTP_STAGES if kind == "mtp" else DSPARK_STAGES
                settings = NameSettings(2, LAYERS, stages, dtype, confidence_head=head)
                product = NameRules(rules, loader, settings)
                assert loaded == {tensor: read(product, tensor) for tensor in tensors}, (vendor, dtype)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return Source(tmp_path)


def edit(source: Source, name: str, before: str, after: str) -> Any:
    """Change a file and learn again."""
    path = source.package / name
    content = path.read_text(encoding="utf-8")
    assert before in content, f"{before!r} is not in {name}"
    path.write_text(content.replace(before, after), encoding="utf-8")
    return learn_draft_names(source_only(source.package))


MTP = "models/deepseek_v4/nvidia/mtp.py"
DSPARK = "models/deepseek_v4/nvidia/dspark.py"


def test_mtp_rules(source: Source) -> None:
    rules = learn_draft_names(source_only(source.package))["mtp"]["nvidia intel"]
    assert rules["layers"] == "model.layers.{num_hidden_layers+i}."
    assert rules["stages"] == ["num_nextn_predict_layers"]
    assert rules["named_layers"] == ["model.layers.", "layers."]
    assert rules["renamed_parts"] == [[".head.weight", ".shared_head.head.weight"]]
    assert (rules["block"], rules["layer_level"], rules["model_level"]) == ("inner_block", ["enorm"], ["embed_tokens"])
    assert rules["scales"] == {
        "experts_match": r"\.experts\.\d+\.w[123]\.scale$",
        "fp4_experts": ".four",
        "other_experts": ".eight",
        "others": ".plain",
        "fallback": None,
    }
    assert rules["suffixes"] == [[".gate.bias", ".gate.correction"]]
    assert rules["replaced"] == [[".shared_experts.w2", ".shared_experts.down"]]
    assert rules["stacked"] == [["gate_up", ["w1", "w3"], [0, 1]]]
    assert rules["experts"] == [["experts.inner.w13_", ["a", "c"]], ["experts.inner.w2_", ["b"]]]
    assert rules["experts_mega_moe"] == [["experts.fast.w13_", ["a", "c"]], ["experts.fast.w2_", ["b"]]]
    assert (rules["unknown"], rules["missing"]) == ("KeyError", "layer {layer} weights missing from checkpoint.")


def test_dspark_rules(source: Source) -> None:
    found = learn_draft_names(source_only(source.package))["dspark"]
    assert list(found) == ["nvidia"]
    rules = found["nvidia"]
    assert (rules["layers"], rules["stages"]) == ("model.layers.{i}.", ["n_mtp_layers", 2])
    assert rules["model_level"] == ["judge.", "norm."]
    assert (rules["dropped"], rules["optional"]) == (["extra."], ["judge."])
    assert rules["renamed_starts"] == [["tail.", "model.heads.tail."]]
    assert rules["copied"] == [["attn.wkv.", "model.context_proj."]]
    assert (rules["unknown"], rules["missing"], rules["stacked_only_in_layers"]) == ("skipped", None, True)


def test_rules_follow_the_text(source: Source) -> None:
    assert edit(source, MTP, "inner_block", "other_block")["mtp"]["nvidia intel"]["block"] == "other_block"
    assert edit(source, MTP, '"w3", 1', '"w4", 2')["mtp"]["nvidia intel"]["stacked"] == [
        ["gate_up", ["w1", "w4"], [0, 2]]
    ]
    rules = edit(source, DSPARK, 'rest.startswith("extra.")', 'rest.startswith("surplus.")')["dspark"]["nvidia"]
    assert rules["dropped"] == ["surplus."]


def test_vendors_with_the_same_rules_share_them(source: Source) -> None:
    entry = "models/deepseek_v4/__init__.py"
    found = edit(source, entry, "from .amd.mtp import", "from .nvidia.mtp import")["mtp"]
    assert list(found) == ["nvidia amd intel"]


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        (MTP, "                continue\n            param", "            param", "experts without a matrix"),
        (MTP, '{"', '{1: 2, "', "one table of renamed parts, got 0"),
        (MTP, "stacked_params_mapping = ", "mapping = ", "expected stacked_params_mapping"),
        (MTP, "num_hidden_layers + i", "start + i", "expected mtp.i. to become"),
        (MTP, "suffix = ", "ending = ", "expected one suffix"),
        (MTP, "return name\n", "return self.table[name]\n", "more than string handling"),
        (DSPARK, 'f"model.layers.{stage}.{rest}"', 'f"model.stages.{stage}.{rest}"', "expected mtp.i.X to become"),
        (DSPARK, "_CONTEXT.fullmatch", "_OTHER.fullmatch", "expected the weights that become"),
        (
            DSPARK,
            "if name not in params_dict:\n                break",
            "if False:\n                break",
            "all names or",
        ),
        (DSPARK, "num_dspark_layers", "layer_count", "expected num_dspark_layers"),
    ],
)
def test_rules_are_not_guessed(source: Source, name: str, before: str, after: str, said: str) -> None:
    with pytest.raises(LearningError, match=said):
        edit(source, name, before, after)


def test_only_string_functions_are_called(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(
        "def good(name: str) -> str:\n    part = name.removeprefix('a.')\n    return f'b.{part}'\n"
        "def bad(name):\n    import os\n    return os.environ\n"
        "def worse(name):\n    return name.__class__\n"
        "def unknown(name):\n    return open(name)\n",
        encoding="utf-8",
    )
    source = Source(tmp_path)
    assert string_function("names.py", function(source, "names.py", "good"))("a.x") == "b.x"
    for name in ("bad", "worse", "unknown"):
        with pytest.raises(LearningError, match="more than string handling"):
            string_function("names.py", function(source, "names.py", name))
