"""Names of the drafts' weights: from the checkpoint's ``mtp.*`` tensors to the parameters they are loaded into.

Source: ``load_weights`` of ``DeepSeekV4MTP`` and ``DSparkDeepseekV4ForCausalLM`` (``models/deepseek_v4*/<vendor>/``,
``model_executor/models/deepseek_v4_mtp.py`` before), and the functions for names that it calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from ...release import Release
from ...source import LearningError, Source, names, strings
from ..spec_decode.draft import DSPARK_CLASS, MTP_CLASS, V4_FOLDER, dspark_path
from ..spec_decode.queries import calls, class_, function, text
from ..spec_decode.vendors import VENDORS, files_by_vendor
from .loaders import learn_loader
from .pure import string_function

V41_FOLDER: Final = "models/deepseek_v41"
_OLD_MTP: Final = "model_executor/models/deepseek_v4_mtp.py"
_LAYER: Final = 43
"""Any number of a layer; the functions for names are asked with it."""
_STAGE: Final = 7
_STAGE_FIELD: Final = "num_nextn_predict_layers"
"""The field of config.json that bounds the layers taken from the checkpoint."""


def learn_draft_names(release: Release) -> dict[str, Any]:
    """Rules for the names of each draft's weights: ``mtp``, and where the method exists ``dspark``, ``dspark_v41``.

    Each has a set of rules by GPU vendors, those with the same rules in one key. MTP: ``mtp.{i}.`` becomes ``layers``
    (``named_layers``: other starts that its loader takes for such a layer, which then have no parameter),
    then ``renamed_parts`` are replaced; a name with a part of ``model_level`` goes to ``model.``, one with a part of
    ``layer_level`` stays, any other goes into the layer's ``block``. DSpark: what follows ``mtp.{i}.`` decides by its
    start; ``optional`` starts are dropped when the model was built without that head, ``copied`` ones are loaded into
    another parameter, too. Both then apply ``scales``, ``replaced``, and ``experts`` or ``stacked`` or ``suffixes``.
    """
    source = release.source
    if source.has(f"{V4_FOLDER}/__init__.py"):
        mtp = files_by_vendor(source, V4_FOLDER, MTP_CLASS)
    else:
        mtp = dict.fromkeys(VENDORS, source.first(_OLD_MTP))
    found = {"mtp": _by_files(source, mtp, _mtp)}
    if dspark_path(source) is not None:
        found["dspark"] = _by_files(source, files_by_vendor(source, V4_FOLDER, DSPARK_CLASS), _dspark)
        if source.has(f"{V41_FOLDER}/__init__.py"):
            found["dspark_v41"] = _by_files(source, files_by_vendor(source, V41_FOLDER, DSPARK_CLASS), _dspark)
    return found


def _by_files(
    source: Source, files: dict[str, str], learn: Callable[[Source, str], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Rules by vendors, from the file of each."""
    learned = {path: learn(source, path) for path in dict.fromkeys(files.values())}
    return by_rules({vendor: learned[path] for vendor, path in files.items()})


def by_rules(learned: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rules by the vendors that share them, such as ``nvidia amd``."""
    grouped: list[tuple[list[str], dict[str, Any]]] = []
    for vendor, own in learned.items():
        same = next((vendors for vendors, rules in grouped if rules == own), None)
        if same is None:
            grouped.append(([vendor], own))
        else:
            same.append(vendor)
    return {" ".join(vendors): rules for vendors, rules in grouped}


def _mtp(source: Source, path: str) -> dict[str, Any]:
    load = function(source, path, f"{MTP_CLASS}.load_weights")
    return {
        "layers": _mtp_layers(source, path),
        "named_layers": _named_layers(source),
        "stages": [_STAGE_FIELD],
        "renamed_parts": _renamed_parts(path, load),
        **_rewriting(source, path),
        "model_level_first_only": _first_only(load),
        **learn_loader(source, path, load),
    }


def _mtp_layers(source: Source, path: str) -> str:
    """Where the layers of ``mtp.{i}.`` are registered."""
    for call in calls(class_(source, path, MTP_CLASS), "replace"):
        spelled = [strings(item)[:1] for item in call.args if isinstance(item, ast.JoinedStr)]
        if spelled == [["mtp.{}."], ["model.layers.{}."]] and "num_hidden_layers" in names(call.args[1]):
            return "model.layers.{num_hidden_layers+i}."
    raise LearningError(f"{path} {MTP_CLASS}: expected mtp.i. to become model.layers.(num_hidden_layers + i).")


def _named_layers(source: Source) -> list[str]:
    """Starts of names, before the number of a layer, that are taken for the draft's beside ``mtp.{i}.``."""
    name = "get_spec_layer_idx_from_weight_name"
    for path in ("model_executor/models/deepseek_v2.py", "model_executor/models/utils.py"):
        node = source.find(path, name) if source.has(path) else None
        if isinstance(node, ast.FunctionDef) and _STAGE_FIELD in set(strings(node)) | names(node):
            starts = [item.removesuffix("{}.") for item in strings(node) if item.endswith("layers.{}.")]
            if "model.layers." not in starts:
                raise LearningError(f"{path} {name}: expected it to know model.layers.")
            return starts
    raise LearningError(f"model_executor/models {name}: expected it to read {_STAGE_FIELD}")


def _renamed_parts(path: str, load: ast.FunctionDef) -> list[list[str]]:
    """Parts of names replaced wherever they stand."""
    tables = []
    for item in ast.walk(load):
        if not isinstance(item, ast.Dict) or not item.keys:
            continue
        table = [[text(key), text(value)] for key, value in zip(item.keys, item.values, strict=True)]
        if all(isinstance(part, str) for pair in table for part in pair):
            tables.append(table)
    if len(tables) != 1:
        raise LearningError(f"{path} load_weights: expected one table of renamed parts, got {len(tables)}")
    return [[str(old), str(new)] for old, new in tables[0]]


def _rewriting(source: Source, path: str) -> dict[str, Any]:
    """``block``: the module of a layer that most weights belong to; what stays beside it, or goes to the model."""
    place = f"{MTP_CLASS}._rewrite_spec_layer_name"
    node = function(source, path, place)
    ask = string_function(path, node)
    prefix = f"model.layers.{_LAYER}."
    usual = re.fullmatch(rf"{re.escape(prefix)}(\w+)\.unknown\.weight", ask(None, _LAYER, f"{prefix}unknown.weight"))
    if usual is None:
        raise LearningError(f"{path} {place}: expected a module for the weights of a layer")
    layer, model = [], []
    for word in dict.fromkeys(strings(node)):
        if not re.fullmatch(r"\w+", word):
            continue
        answers = {ask(None, _LAYER, f"{prefix}a{word}b.weight"), ask(None, _LAYER, f"{prefix}{word}.weight")}
        if answers == {f"{prefix}a{word}b.weight", f"{prefix}{word}.weight"}:
            layer.append(word)
        elif answers == {f"model.a{word}b.weight", f"model.{word}.weight"}:
            model.append(word)
        elif answers != {f"{prefix}{usual[1]}.a{word}b.weight", f"{prefix}{usual[1]}.{word}.weight"}:
            raise LearningError(f"{path} {place}: {word} is rewritten in no known way")
    return {"block": usual[1], "layer_level": layer, "model_level": model}


def _first_only(load: ast.FunctionDef) -> bool:
    """True when only the first layer's weights at model level are loaded."""
    return any(
        isinstance(item, ast.If) and "mtp_start_layer_idx" in names(item.test) and ".layers" in strings(item.test)
        for item in ast.walk(load)
    )


def _dspark(source: Source, path: str) -> dict[str, Any]:
    load = function(source, path, f"{DSPARK_CLASS}.load_weights")
    place = f"{DSPARK_CLASS}._remap_dspark_name"
    node = function(source, path, place)
    ask = string_function(path, node, ("model", "confidence_head"))
    built, without = (SimpleNamespace(model=SimpleNamespace(confidence_head=head)) for head in (object(), None))
    stage = f"mtp.{_STAGE}."
    if ask(built, f"{stage}unknown.weight") != f"model.layers.{_STAGE}.unknown.weight" or any(
        ask(built, name) is not None for name in ("layers.0.attn_norm.weight", "embed.weight", "norm.weight")
    ):
        raise LearningError(f"{path} {place}: expected mtp.i.X to become model.layers.i.X, and no other name")
    found: dict[str, Any] = {"model_level": [], "renamed_starts": [], "dropped": [], "optional": []}
    others = []
    for word in sorted(word for word in set(strings(node)) if re.fullmatch(r"[\w.]+", word)):
        if word.startswith(tuple(found["model_level"])) and ask(built, f"{stage}{word}x") == f"model.{word}x":
            continue
        if ask(built, f"{word}x") is not None:
            others.append(word)
            continue
        answer = ask(built, f"{stage}{word}x")
        if answer is None:
            found["dropped"].append(word)
            continue
        if ask(without, f"{stage}{word}x") is None:
            found["optional"].append(word)
        if answer == f"model.{word}x":
            found["model_level"].append(word)
        elif answer != f"model.layers.{_STAGE}.{word}x":
            if not answer.startswith("model.") or not answer.endswith("x"):
                raise LearningError(f"{path} {place}: {word} is renamed in no known way")
            found["renamed_starts"].append([word, answer.removesuffix("x")])
    if not found["model_level"]:
        raise LearningError(f"{path} {place}: expected names at the model's level")
    return {
        "layers": "model.layers.{i}.",
        "stages": _dspark_stages(source, path),
        **found,
        "copied": [[_copied_from(source, path, word), ask(built, word)] for word in others],
        **learn_loader(source, path, load),
    }


def _dspark_stages(source: Source, path: str) -> list[Any]:
    """Fields of config.json that give the number of stages, the first that is set; last a number."""
    for item in ast.walk(source.tree(path)):
        if not isinstance(item, ast.Assign) or not ast.unparse(item.targets[0]).endswith(".num_dspark_layers"):
            continue
        if isinstance(item.value, ast.BoolOp) and isinstance(item.value.op, ast.Or):
            *fields, last = item.value.values
            spelled = [text(part.args[1]) for part in fields if isinstance(part, ast.Call) and len(part.args) == 3]
            if isinstance(last, ast.Constant) and len(spelled) == len(fields) and all(spelled):
                return [*spelled, last.value]
    raise LearningError(f"{path}: expected num_dspark_layers by fields of the config")


def _copied_from(source: Source, path: str, word: str) -> str:
    """The names of a layer whose weights are loaded into one of the model, too."""
    for item in source.tree(path).body:
        if not isinstance(item, ast.Assign) or not isinstance(item.value, ast.Call):
            continue
        pattern = next((value for value in strings(item.value) if "mtp" in value), "")
        match = re.fullmatch(r"\^?mtp\\\.\(\\d\+\)\\\.([\w\\.]+?)\(\.[+*]\)\$?", pattern)
        target = item.targets[0]
        if match is None or not isinstance(target, ast.Name):
            continue
        users = [
            node
            for node in source.tree(path).body
            if isinstance(node, ast.FunctionDef) and target.id in names(node) and f"{word}{{}}" in strings(node)
        ]
        if users:
            return match[1].replace("\\", "")
    raise LearningError(f"{path}: expected the weights that become {word}")
