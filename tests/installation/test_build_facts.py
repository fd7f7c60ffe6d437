"""A launch judged by a build's own tree: what is learned from it, what is not, and what the report makes of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4check.api import check, check_request, read_request
from dsv4check.cli.main import make_app
from dsv4check.engine.examples import example_request
from dsv4check.errors import InputError
from dsv4check.installation import build_facts, locate
from dsv4check.installation.build_facts import build_of_tree, read_build
from dsv4check.installation.code_answers import TreeCode
from dsv4check.installation.fingerprint import Answer, Quote
from dsv4check.installation.tree import VllmTree
from dsv4check.learning.registry import SECTIONS
from dsv4check.learning.source import LearningError
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.report.json_format import report_to_dict
from dsv4check.report.model import Report
from tests.launches import all_rules

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
ALL = os.environ.get("DSV4CHECK_ALL_TREES")
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
RUN = frozenset({"cache_planning", "env", "moe", "parameters"})
needs_trees = pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")


def report(
    tree: VllmTree | None, args: str, gpu: str = "H200", vllm: str | None = None, model: str = FLASH, **more: Any
) -> Report:
    request = read_request(f"vllm serve {model} {args}", gpu=gpu, gpus=8, vllm=vllm, tree=tree, **more)
    return check_request(request, all_rules(), fixes=False)


def rules_of(found: Report) -> set[str]:
    return {item.rule for item in found.findings}


# -- without trees: facts as if they had been learned ----------------------------------------------------------

Learned = Mapping[str, Any]
Tree = Callable[..., VllmTree]


@pytest.fixture
def like(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tree:
    """A tree of which is learned what a release does, with some sections changed (or an error in their place)."""
    made = iter(range(99))

    def tree(release: str, version: str | None, change: Mapping[str, Any] | None = None) -> VllmTree:
        def learner(section: str) -> Callable[[Any], Learned]:
            def learn(_release: Any) -> Learned:
                changed = (change or {}).get(section)
                if isinstance(changed, Exception):
                    raise changed
                facts = json.loads(json.dumps(load_facts(release).section(section)))
                if changed is not None:
                    changed(facts)
                return facts

            return learn

        monkeypatch.setattr(build_facts, "learner", learner)
        package = tmp_path / f"tree{next(made)}" / "vllm"
        package.mkdir(parents=True)
        found = VllmTree(package, version, "vllm/_version.py:1")
        read_build(found)  # kept: another tree of the same test learns something else
        return found

    return tree


def auto_is_fp8(facts: dict[str, Any]) -> None:
    facts["packed"] = json.loads(json.dumps(load_facts("0.30.0").section("kv_cache")["packed"]))


def test_a_release_with_its_own_facts_is_that_release(like: Tree) -> None:
    own = read_build(like("0.24.0", "0.24.0"))
    assert own.nearest == "0.24.0"
    assert own.differs == ()
    assert set(own.unread) == RUN
    assert set(own.learned) == set(SECTIONS) - RUN
    facts = own.over("0.24.0")
    assert all(facts.section(name) == load_facts("0.24.0").section(name) for name in SECTIONS)
    assert own.over("0.24.0") is facts
    assert own.over("0.25.0").section("kv_cache") == load_facts("0.24.0").section("kv_cache")
    assert own.over("0.25.0").section("moe") == load_facts("0.25.0").section("moe")
    assert len({facts.identity, own.over("0.25.0").identity, load_facts("0.24.0").identity}) == 3


def test_a_patched_image_is_judged_by_its_code(like: Tree) -> None:
    tree = like("0.28.0", "0.28.0", {"kv_cache": auto_is_fp8})
    assert "KV001" in rules_of(report(None, "-tp 8", vllm="0.28.0"))
    found = report(tree, "-tp 8")
    assert "KV001" not in rules_of(found)
    assert found.resolution.kv_cache is not None
    assert found.resolution.kv_cache.resolved_dtype == "fp8_ds_mla"
    assert (found.deployment.vllm.version, found.resolution.release) == ("0.28.0", "0.28.0")
    assert any(
        note.startswith("judged by its own code in ")
        and "(13 of 17 parts read; cache_planning, env, moe, parameters as in 0.28.0; flags as in 0.28.0)" in note
        for note in found.notes
    )
    assert any(
        note.startswith("this tree is not like 0.28.0: ") and 'kv_cache.packed.auto is "fp8", was "refused"' in note
        for note in found.notes
    )
    said = report_to_dict(found)["evidence"][0]["how"]
    assert said == f"facts read from the code in {tree.package}; what was not read there is as in 0.28.0"


def test_a_development_build_is_judged_once(like: Tree) -> None:
    version = "0.23.1rc1.dev900+gabcdef123"
    dspark = """-tp 8 --kv-cache-dtype fp8 --speculative-config '{"method":"dspark","num_speculative_tokens":5}'"""
    without = report(None, dspark, vllm=version)
    assert any("SD002" in item.what for item in without.not_evaluated)
    assert "SD002" not in rules_of(without)
    found = report(like("0.24.0", version), dspark)
    assert "SD002" in rules_of(found)
    assert not any("SD0" in item.what for item in found.not_evaluated)
    assert found.deployment.vllm.version == version
    assert found.deployment.vllm.release == "0.24.0"
    assert found.deployment.vllm.brackets == ("0.23.0", "0.24.0", "0.25.0")
    assert any("as in 0.23.0, 0.24.0, 0.25.0, as far as these agree; flags as in 0.24.0" in n for n in found.notes)
    assert "SD002" not in rules_of(report(like("0.25.0", version), dspark))


def test_what_only_unread_parts_decide_stays_open(like: Tree) -> None:
    """Which variables exist is learned by running: the releases around differ there, and the tree does not tell."""
    tree = like("0.24.0", "0.23.1rc1.dev900+gabcdef123")
    known = {release: set(load_facts(release).section("env")["known"].split()) for release in ("0.24.0", "0.25.0")}
    new = sorted(known["0.25.0"] - known["0.24.0"])[0]
    args = "-tp 8 --kv-cache-dtype fp8"
    for name, opens in ((f"VLLM_{new}", True), ("VLLM_NO_SUCH_THING_AT_ALL", False)):
        found = report(tree, args, env={name: "1"})
        around = [item for item in found.not_evaluated if "that its text does not tell" in item.why]
        assert bool(around) is opens
        assert all(item.why.startswith("true of ") and "rehearse" in item.how for item in around)
        assert any(item.rule.startswith("EV") for item in found.findings) is not opens


@pytest.mark.parametrize(
    ("version", "kind", "brackets"),
    [
        ("0.1.dev15830+g8d599d76a", "development", ("0.27.1", "0.28.0", "0.29.0")),
        (None, "development", ("0.27.1", "0.28.0", "0.29.0")),
        ("our-own-build", "development", ("0.27.1", "0.28.0", "0.29.0")),
        ("0.23.1rc1.dev900", "development", ("0.27.1", "0.28.0", "0.29.0")),
        ("0.27.2rc1.dev40", "development", ("0.27.1", "0.28.0", "0.29.0")),
        ("0.28.0+acme.3", "release", ()),
        ("0.28.0rc2", "release", ()),
    ],
)
def test_which_build_a_tree_is(like: Tree, version: str | None, kind: str, brackets: tuple[str, ...]) -> None:
    tree = like("0.28.0", version)
    build = build_of_tree(tree)
    assert (build.kind, build.release, build.brackets) == (kind, "0.28.0", brackets)
    assert not build.may_be_any
    # `auto` is refused by all around it, and the facts say so without any version.
    found = report(tree, "-tp 8")
    assert "KV001" in rules_of(found)
    assert "MC001" not in rules_of(found)


def test_the_stated_version_wins_and_the_tree_is_named(like: Tree) -> None:
    found = report(like("0.24.0", "0.24.0"), "-tp 8", vllm="0.25.0")
    assert found.deployment.vllm.version == "0.25.0"
    assert "the tree says that it is 0.24.0 (vllm/_version.py:1), judged as 0.25.0" in found.notes
    assert any(note.startswith("this tree is not like 0.25.0: ") for note in found.notes)
    with pytest.raises(InputError):
        report(like("0.24.0", "0.24.0"), "-tp 8", vllm="not a version")


def test_of_equal_releases_the_named_one_is_nearest(like: Tree) -> None:
    same = [(a, b) for a in known_releases() for b in known_releases() if a < b and _alike(a, b)]
    for first, second in same:
        assert read_build(like(first, first)).nearest == first
        assert read_build(like(first, second)).nearest == second
        assert read_build(like(first, None)).nearest == second
    if not same:
        only = {name: LearningError("gone") for name in SECTIONS if name != "block_size"}
        assert read_build(like("0.24.0", "0.24.0", only)).nearest == "0.24.0"


def _alike(first: str, second: str) -> bool:
    sections = set(SECTIONS) - RUN
    return all(load_facts(first).section(name) == load_facts(second).section(name) for name in sections)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LearningError("attention.py has no _select"), "attention.py has no _select"),
        (SyntaxError("invalid syntax"), "SyntaxError: invalid syntax"),
        (RecursionError("too deep\nsecond line"), "RecursionError: too deep"),
        (KeyError("odd"), "KeyError: 'odd'"),
        (AssertionError(), "AssertionError: "),
    ],
)
def test_a_part_that_cannot_be_read_is_the_releases(like: Tree, error: Exception, said: str) -> None:
    tree = like("0.24.0", "0.24.0", {"attention": error, "kv_cache": auto_is_fp8})
    own = read_build(tree)
    assert own.unread["attention"] == said
    assert "attention" not in own.learned
    found = report(tree, "-tp 8")
    assert "KV001" not in rules_of(found)
    assert found.resolution.attention is not None
    assert found.resolution.attention.backend == "FLASHMLA_SPARSE_DSV4"
    assert f"not read in this tree: attention ({said})" in found.notes
    assert any("attention, cache_planning, env, moe, parameters as in 0.24.0" in note for note in found.notes)


def test_differences_are_limited(like: Tree) -> None:
    def other(facts: dict[str, Any]) -> None:
        facts |= {f"new{number:03}": "x" * 500 for number in range(100)}

    own = read_build(like("0.24.0", "0.24.0", {"block_size": other}))
    assert len(own.differs) == 40
    assert all(len(item.build) < 100 and item.release == "" for item in own.differs)
    note = own.notes(build_of_tree(own.tree))[-1]
    assert note.endswith("and many more")
    assert len(note) < 600


def test_a_fix_that_changes_the_release_leaves_the_tree(like: Tree) -> None:
    tree = like("0.28.0", "0.28.0")
    request = read_request(f"vllm serve {FLASH} -tp 8", gpu="H200", gpus=8, tree=tree)
    found = check_request(request, all_rules())
    fixes = next(item for item in found.findings if item.rule == "KV001").fixes
    assert any(edit.kind == "set_vllm" for fix in fixes for edit in fix.edits if fix.verified)


# -- the command line and the API ------------------------------------------------------------------------------


def found_there(monkeypatch: pytest.MonkeyPatch, answer: VllmTree | str) -> list[str | None]:
    asked: list[str | None] = []

    def find_tree(vllm_path: str | None, python: str | None) -> VllmTree | str:
        assert python is None
        asked.append(vllm_path)
        return answer

    monkeypatch.setattr(locate, "find_tree", find_tree)
    return asked


WORDS = ["serve-args", "--gpu", "H200", "--gpus", "8", "--vllm-path", "somewhere"]


def test_the_option_names_the_tree(like: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = found_there(monkeypatch, like("0.28.0", "0.28.0", {"kv_cache": auto_is_fp8}))
    result = CliRunner().invoke(make_app(), [*WORDS, "--", "vllm", "serve", FLASH, "-tp", "8"])
    assert (result.exit_code, asked) == (0, ["somewhere"]), result.output
    assert "judged by its own code" in " ".join(result.output.split())
    assert check(f"vllm serve {FLASH} -tp 8", gpu="H200", gpus=8, vllm_path="somewhere").resolution.release == "0.28.0"
    refused = check(f"vllm serve {FLASH} -tp 8", gpu="H200", gpus=8, vllm="0.28.0")
    assert "KV001" in rules_of(refused)


def test_a_path_without_a_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found_there(monkeypatch, "--vllm-path somewhere: no vLLM there")
    result = CliRunner().invoke(make_app(), [*WORDS, "--", "vllm", "serve", FLASH])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "--vllm-path somewhere: no vLLM there"
    result = CliRunner().invoke(make_app(), [*WORDS, "--batch", "-"])
    assert isinstance(result.exception, InputError)
    assert "remove --vllm-path" in str(result.exception)


def test_a_check_without_a_tree_imports_none_of_it() -> None:
    script = (
        "import sys\n"
        "from dsv4check.api import check\n"
        f"check('vllm serve {FLASH} -tp 8', gpu='H200', gpus=8, vllm='0.24.0')\n"
        "parts = ('dsv4check.installation', 'dsv4check.learning', 'dsv4check.engine.code_marks')\n"
        "print([name for name in sys.modules if name.startswith(parts)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- made-up and broken trees ----------------------------------------------------------------------------------


def write(folder: Path, files: Mapping[str, str]) -> VllmTree:
    for name, text in files.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return VllmTree(folder / "vllm", None, "")


ODD = ("def broken(:", "x = " + "(" * 5000, "\0", "class A(A): pass\nA = A", "")


@pytest.mark.parametrize("text", ODD)
def test_a_tree_that_makes_no_sense_is_judged_like_a_release(tmp_path: Path, text: str) -> None:
    places = ["config/cache.py", "models/deepseek_v4/attention.py", "config/vllm.py", "v1/kv_cache_interface.py"]
    places += ["models/deepseek_v4/nvidia/model.py", "config/speculative.py", "envs.py"]
    tree = write(tmp_path, dict.fromkeys(places, text))
    own = read_build(tree)
    assert len(own.learned) + len(own.unread) == len(SECTIONS)
    assert len(own.unread) > len(SECTIONS) / 2
    assert all("\n" not in why for why in own.unread.values())
    assert report(tree, "-tp 8 --kv-cache-dtype fp8").deployment.vllm.version == "(no version)"


def test_an_empty_folder_is_no_reason_to_stop(tmp_path: Path) -> None:
    tree = replace(write(tmp_path, {"__init__.py": ""}), version="0.24.0", version_from="_version.py:1")
    found = report(tree, "-tp 8")
    assert "KV001" in rules_of(found)
    assert found.resolution.release == "0.24.0"


def test_rules_are_judged_by_the_code(like: Tree) -> None:
    """The draft's own configuration, which switched the balancing of experts off from 0.30.0 on (SD034)."""
    method = '{"method":"dspark","num_speculative_tokens":5}'
    args = f"-tp 8 --kv-cache-dtype fp8 --enable-expert-parallel --enable-eplb --speculative-config '{method}'"
    launch = {"args": args, "model": f"{FLASH}-0731"}
    place = "v1/worker/gpu/spec_decode/dspark/utils.py"
    draft = "def draft_config(config):\n    # enable_eplb=False in words\n    return replace(config, rank=0{more})\n"
    broken, fixed, silent = (like("0.29.0", number) for number in ("0.30.0", "0.29.0", "0.29.0"))
    write(broken.package.parent, {place: draft.format(more="")})
    write(fixed.package.parent, {place: draft.format(more=", enable_eplb = False")})
    found = report(broken, **launch)
    (finding,) = (item for item in found.findings if item.rule == "SD034")
    assert finding.evidence == (f"vllm/{place}:1 has no `enable_eplb=False`",)
    shown = next(item for item in report_to_dict(found)["findings"] if item["rule"] == "SD034")
    assert shown["evidence"] == list(finding.evidence)
    assert "SD034" not in rules_of(report(fixed, **launch)), "the number says so, the code does not"
    # Without the place the number counts, as without a tree.
    assert "SD034" in rules_of(report(silent, **launch))
    assert "SD034" not in rules_of(report(like("0.29.0", "0.30.0"), **launch))


def test_fingerprints_answer_for_rules(like: Tree) -> None:
    args = """-tp 8 --kv-cache-dtype fp8 --speculative-config '{"method":"dspark","num_speculative_tokens":5}'"""
    for value, fires in (("target-layers", True), ("stage", False), (None, False)):
        tree = like("0.26.0", "0.26.0")
        build = build_of_tree(tree)
        assert build.own is not None
        answers = {"dspark-name-mapping": Answer(value, "", (Quote("vllm/dspark.py", 9, "N + stage"),))}
        own = replace(build.own, code=TreeCode(tree.source, lambda _source, answers=answers: answers))
        request = read_request(f"vllm serve {FLASH} {args}", gpu="H200", gpus=8, vllm="0.26.0")
        found = check_request(replace(request, vllm=replace(build, own=own)), all_rules(), fixes=False)
        assert ("WT007" in rules_of(found)) is fires
        if fires:
            finding = next(item for item in found.findings if item.rule == "WT007")
            assert finding.evidence == ("dspark-name-mapping is target-layers: vllm/dspark.py:9 `N + stage`",)


# -- with trees ------------------------------------------------------------------------------------------------


def unpacked(version: str) -> VllmTree:
    package = Path(TREES or "") / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"vLLM {version} is not unpacked under DSV4CHECK_VLLM_TREES")
    return VllmTree(package, version, "vllm/_version.py:1")


@cache
def launches() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """One example of each rule that is not about a checkpoint or a log."""
    from dsv4check.engine.examples import firing_examples

    found = [(rule.id, launch) for rule in all_rules() for launch in firing_examples(rule.id)[:1]]
    return tuple(found[:: 1 if ALL else 4])


def told(found: Report) -> dict[str, Any]:
    """What two reports must have in common: all but the words about where the facts come from."""
    values = report_to_dict(found)
    del values["evidence"], values["notes"]
    del values["deployment"]["vllm"]["source"]
    for finding in values["findings"]:
        finding.pop("evidence", None)
    return values


SAMPLED = ("0.21.0", "0.24.0", "0.27.0", "0.30.0", "0.33.0")


@needs_trees
@pytest.mark.parametrize("version", known_releases() if ALL else SAMPLED)
def test_a_release_judged_by_its_tree_is_judged_the_same(version: str) -> None:
    tree = unpacked(version)
    build = build_of_tree(tree)
    assert build.own is not None
    assert (build.own.nearest, build.own.differs, set(build.own.unread)) == (version, (), RUN)
    assert len(launches()) > 40
    for name, launch in launches():
        try:
            request = example_request({**launch, "vllm": version})
            expected = told(check_request(request, all_rules(), fixes=False))
        except InputError:
            continue
        assert told(check_request(replace(request, vllm=build), all_rules(), fixes=False)) == expected, name


def patched(version: str, folder: Path, edits: Mapping[str, tuple[str, str]], said: str | None = None) -> VllmTree:
    """A copy of an unpacked release with pieces of text replaced; the metadata stands beside it."""
    tree = unpacked(version)
    root = tree.package.parent
    shutil.copytree(root, folder / "root", ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.so"))
    for name, (old, new) in edits.items():
        path = folder / "root" / "vllm" / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")
    return VllmTree(folder / "root" / "vllm", said or version, "vllm/_version.py:1")


ATTENTION = "models/deepseek_v4/attention.py"
AUTO = '        if kv_cache_dtype == "auto":\n            kv_cache_dtype = "fp8"\n'
DSPARK = "-tp 8 --kv-cache-dtype fp8 --speculative-config " + """'{"method":"dspark","num_speculative_tokens":5}'"""


@needs_trees
def test_auto_is_back_ported(tmp_path: Path) -> None:
    old = '        assert kv_cache_dtype.startswith("fp8")'
    tree = patched("0.28.0", tmp_path, {ATTENTION: (old, AUTO + old)})
    before, after = report(unpacked("0.28.0"), "-tp 8"), report(tree, "-tp 8")
    assert rules_of(before) - rules_of(after) == {"KV001"}
    assert not rules_of(after) - rules_of(before)
    assert any('kv_cache.packed.auto is "fp8", was "refused"' in note for note in after.notes)


@needs_trees
def test_auto_is_reverted(tmp_path: Path) -> None:
    tree = patched("0.30.0", tmp_path, {ATTENTION: (AUTO, "")})
    before, after = report(unpacked("0.30.0"), "-tp 8"), report(tree, "-tp 8")
    assert rules_of(after) - rules_of(before) == {"KV001"}
    assert not rules_of(before) - rules_of(after)


@needs_trees
def test_the_windows_spec_loses_its_quantisation_mode(tmp_path: Path) -> None:
    place = "v1/attention/backends/mla/sparse_swa.py"
    line = "            kv_quant_mode=get_kv_quant_mode(self.cache_config.cache_dtype),\n"
    tree = patched("0.25.0", tmp_path, {place: (line, "")})
    args = "-tp 8 --kv-cache-dtype fp8"
    before, after = report(unpacked("0.25.0"), args), report(tree, args)
    assert rules_of(after) - rules_of(before) == {"KV010"}
    assert not rules_of(before) - rules_of(after)


@needs_trees
def test_the_draft_takes_the_targets_layer_numbers(tmp_path: Path) -> None:
    place = "models/deepseek_v4/nvidia/dspark.py"
    line = '        return f"model.layers.{stage}.{rest}"'
    new = '        return f"model.layers.{self.config.num_hidden_layers + stage}.{rest}"'
    before, after = (
        report(unpacked("0.26.0"), DSPARK),
        report(patched("0.26.0", tmp_path, {place: (line, new)}), DSPARK),
    )
    assert "WT007" in rules_of(after) - rules_of(before)
    assert rules_of(before) <= rules_of(after) | {"WT003"}
    evidence = next(item.evidence for item in after.findings if item.rule == "WT007")
    assert evidence[0].startswith("dspark-name-mapping is target-layers: vllm/models/deepseek_v4/nvidia/dspark.py:")


@needs_trees
def test_the_option_reads_an_unpacked_release() -> None:
    folder = unpacked("0.24.0").package.parent
    result = CliRunner().invoke(make_app(), [*WORDS[:-1], str(folder), "--", "vllm", "serve", FLASH, "-tp", "8"])
    assert result.exit_code == 1, result.output
    assert "KV001" in result.output
    assert "vLLM 0.24.0" in result.output


@needs_trees
def test_the_drafts_experts_are_taken_from_the_balancer(tmp_path: Path) -> None:
    place = "v1/worker/gpu/spec_decode/dspark/utils.py"
    args = f"{DSPARK} -ep --enable-eplb"
    newer = patched("0.30.0", tmp_path, {place: ("        enable_eplb=False,\n", "")})
    before, after = report(unpacked("0.30.0"), args, "B200"), report(newer, args, "B200")
    assert rules_of(after) - rules_of(before) == {"SD034"}
    assert "vllm/v1/worker/gpu/spec_decode/dspark/utils.py" in " ".join(
        line for item in after.findings if item.rule == "SD034" for line in item.evidence
    )


@needs_trees
def test_a_development_build_of_known_code_gets_answers() -> None:
    tree = replace(unpacked("0.24.0"), version="0.23.1rc1.dev788+gabcdef123")
    args = "-tp 8 --kv-cache-dtype fp8 --attention-backend FLASHINFER_MLA_SPARSE_DSV4"
    without = report(None, args, "B200", vllm=tree.version)
    assert any("GA015" in item.what for item in without.not_evaluated)
    found = report(tree, args, "B200")
    assert "GA015" in rules_of(found)
    assert not any("GA015" in item.what for item in found.not_evaluated)
    plain = report(tree, "-tp 8 --kv-cache-dtype fp8")
    assert "KV010" in rules_of(report(None, "-tp 8 --kv-cache-dtype fp8", vllm=tree.version))
    assert "KV010" not in rules_of(plain), "0.24.0's code has not got that fault, whatever the number says"
