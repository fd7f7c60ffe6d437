"""DSpark drafts: the names of their weights, their attention, their cache dtype, their quantisation."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from dsv4check.learning.classes import Defined, get_class
from dsv4check.learning.following import Following, Thing
from dsv4check.learning.sections.spec_decode.config import frozen_quantization
from dsv4check.learning.sections.spec_decode.draft import (
    DSPARK_CLASS,
    V4_FOLDER,
    dspark_path,
    loader_reads_key,
    mtp_path,
    shared_expert_padding,
    target_path,
    v2_loader,
)
from dsv4check.learning.sections.spec_decode.fields import CONFIG, has_field
from dsv4check.learning.sections.spec_decode.queries import calls, keyword
from dsv4check.learning.sections.spec_decode.vendors import files_by_vendor
from dsv4check.learning.source import LearningError, Source, names
from dsv4check.learning.values import Raised

from .kit import Decision, Place, assignments, fingerprint, function, having, mentions

_LOADER: Final = "v1/worker/gpu/spec_decode/dspark/utils.py"
_REMAP: Final = "_remap_dspark_name"
_LAYERS: Final = 43
_STAGE: Final = "7"
_REST: Final = "unknown.weight"
_NONE: Final = "There is no method dspark."
_OVERRIDES: Final = "_DRAFT_VLLM_CONFIG_OVERRIDES"


def _no_dspark(source: Source) -> list[Place]:
    return [(CONFIG, source.get(CONFIG, "SpeculativeMethod"))]


def _names(source: Source) -> Decision:
    """What the draft makes of ``mtp.7.unknown.weight``, worked out on the function's text."""
    path = dspark_path(source)
    if path is None:
        return "no-dspark", _no_dspark(source)
    owner = get_class(source, path, DSPARK_CLASS)
    remap = owner.member(_REMAP)
    if not isinstance(remap, ast.FunctionDef):
        raise LearningError(f"{path} {DSPARK_CLASS} has no {_REMAP}")
    argument = remap.args.args[-1].arg
    known: dict[str, Any] = {argument: f"mtp.{_STAGE}.{_REST}"}
    for holder in ("self.config", "self.model.config", "self.hf_config", "config"):
        known[f"{holder}.num_hidden_layers"] = _LAYERS
    known |= _kept(owner)
    outcome = Following(source, path, known, owner, seen=_matched).run(remap)
    if isinstance(outcome, Raised) or not isinstance(outcome, str):
        raise LearningError(f"{path} {_REMAP} gives no name for a weight of a draft's layer")
    found = re.fullmatch(rf"model\.layers\.(\d+|\{{.*\}})\.{re.escape(_REST)}", outcome)
    value = "" if found is None else _numbering(found[1])
    if not value:
        raise LearningError(f"{path} {_REMAP} gives {outcome!r} for a weight of a draft's layer")
    returned = [item for item in ast.walk(remap) if isinstance(item, ast.Return) and having(item, "layers.")]
    return value, [(path, item) for item in (*returned, remap)]


def _numbering(layer: str) -> str:
    """Which number a draft's layer gets; empty where it is not known."""
    if layer == _STAGE:
        return "stage"
    counted = "num_hidden_layers" in layer if layer.startswith("{") else int(layer) >= _LAYERS
    return "target-layers" if counted else ""


def _matched(reading: Following, call: ast.Call) -> Any:
    """The name is of the form that the function looks for, with the stage and the rest in its two groups."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in ("match", "fullmatch", "search"):
        named = re.findall(r"\?P<(\w+)>", ast.unparse(call)) or ["1", "2"]
        parts = dict(zip(named, (_STAGE, _REST), strict=False))
        return Thing("match", {f"[{key}]": value for key, value in {**parts, "1": _STAGE, "2": _REST}.items()})
    if name in ("group", "groups", "groupdict") and isinstance(call.func, ast.Attribute):
        found = reading.value(call.func.value)
        if isinstance(found, Thing) and found.text == "match":
            asked = [found.attributes.get(f"[{reading.value(item)}]") for item in call.args]
            if name == "groups":
                return _STAGE, _REST
            return asked[0] if len(asked) == 1 else tuple(asked) if asked else None
    return None


def _kept(owner: Defined) -> dict[str, int]:
    """Attributes in which the constructor keeps the number of the target's layers."""
    init = owner.member("__init__")
    return {
        ast.unparse(target): _LAYERS
        for item in (ast.walk(init) if init is not None else ())
        if isinstance(item, ast.Assign) and ast.unparse(item.value).endswith(".num_hidden_layers")
        for target in item.targets
    }


def _method(source: Source) -> Decision:
    return ("absent" if dspark_path(source) is None else "known"), _no_dspark(source)


def _vendors(source: Source) -> Decision:
    if dspark_path(source) is None:
        return "no-dspark", _no_dspark(source)
    vendors = files_by_vendor(source, V4_FOLDER, DSPARK_CLASS)
    entry = f"{V4_FOLDER}/__init__.py"
    imported = [
        (entry, item)
        for item in ast.walk(source.tree(entry))
        if isinstance(item, ast.ImportFrom) and any(alias.name == DSPARK_CLASS for alias in item.names)
    ]
    return ("nvidia" if list(vendors) == ["nvidia"] else "all"), imported


def _attention(source: Source) -> Decision:
    if dspark_path(source) is None:
        return "no-dspark", _no_dspark(source)
    loader = v2_loader(source, "dspark")
    attention = [
        keyword(call, "backend")
        for call in calls(loader, "replace")
        if call.args and ast.unparse(call.args[0]).endswith("attention_config")
    ]
    given = next((item for item in attention if item is not None), None)
    if given is None:
        raise LearningError(f"{_LOADER} load_dspark_model gives the draft no attention backend")
    settled = assignments(loader, ast.unparse(given)) if isinstance(given, ast.Name) else []
    texts = " ".join(ast.unparse(item) for item in (given, *(item.value for item in settled)))
    if "speculative_config.attention_backend" not in texts:
        raise LearningError(f"{_LOADER} load_dspark_model: where the draft's attention backend comes from")
    inherits = "vllm_config.attention_config.backend" in texts
    return ("targets" if inherits else "own"), [(_LOADER, item) for item in (*settled, given)]


def _cache_dtype(source: Source) -> Decision:
    key = "kv_cache_dtype"
    if not has_field(source, key):
        return "shared", [(CONFIG, source.get(CONFIG, "SpeculativeConfig"))]
    field = (CONFIG, source.get(CONFIG, f"SpeculativeConfig.{key}"))
    if not loader_reads_key(source, "mtp", key):
        return "not-read", [field]
    path = "v1/worker/gpu/spec_decode/eagle/utils.py"
    read = [(path, item) for item in mentions(v2_loader(source, "mtp"), key, "apply_draft_overrides")]
    table = [(CONFIG, item) for item in ([source.get(CONFIG, _OVERRIDES)] if source.find(CONFIG, _OVERRIDES) else [])]
    return "own", [field, *read, *table]


def _quantization(source: Source) -> Decision:
    if dspark_path(source) is None:
        return "no-dspark", _no_dspark(source)
    loader = v2_loader(source, "dspark")
    init = function(source, CONFIG, "SpeculativeConfig.__post_init__")
    if frozen_quantization(source, loader):
        made = [(CONFIG, item) for item in having(init, "DSparkDraftModel")]
        return "frozen", [*((_LOADER, item) for item in mentions(loader, "get_draft_quant_config")[:1]), *made]
    given = [
        (CONFIG, item)
        for item in assignments(init, "self.draft_model_config.quantization")
        if "target_model_config" in names(item.value)
    ]
    return "targets", given or [(_LOADER, loader)]


def _padding(source: Source) -> Decision:
    value = shared_expert_padding(source)
    pad = "_pad_shared_expert_weight"
    if value == "missing":
        target = target_path(source)
        return value, [(target, item) for item in mentions(source.tree(target), pad)[:1]]
    draft = mtp_path(source)
    padded = [(draft, item) for item in mentions(source.tree(draft), pad)[:1]]
    return "as-target", padded or [(draft, get_class(source, draft, "DeepSeekV4MTP").node)]


FINGERPRINTS: Final = (
    fingerprint(
        "dspark-method",
        "Is there a speculative method dspark?",
        {"absent": "There is none: the method is refused.", "known": "There is."},
        _method,
        good=("known",),
        rules=("SD002",),
    ),
    fingerprint(
        "dspark-name-mapping",
        "Which layer numbers does the DSpark draft give to the checkpoint's mtp.{i} weights?",
        {
            "no-dspark": _NONE,
            "stage": "The draft's own numbers, model.layers.{i}, under which its parameters are registered.",
            "target-layers": "The target's numbers, model.layers.{num_hidden_layers + i}: loading the draft ends in a "
            "KeyError.",
        },
        _names,
        good=("no-dspark", "stage"),
        rules=("WT007",),
        references=("vllm#47648",),
    ),
    fingerprint(
        "dspark-vendors",
        "For which GPUs is there a DSpark draft of V4?",
        {
            "no-dspark": _NONE,
            "nvidia": "For NVIDIA's only.",
            "all": "For NVIDIA's, AMD's and Intel's.",
        },
        _vendors,
        good=("no-dspark", "all"),
        rules=("SD031",),
    ),
    fingerprint(
        "dspark-attention",
        "Does a DSpark draft follow the attention backend that is pinned for its target?",
        {
            "no-dspark": _NONE,
            "own": "It does not: without a backend of its own it gets the default for the GPU.",
            "targets": "It does, unless it has a backend of its own.",
        },
        _attention,
        good=("no-dspark", "targets"),
        rules=("SD047",),
    ),
    fingerprint(
        "draft-kv-cache-dtype",
        "Can a draft have a cache dtype of its own?",
        {
            "shared": "It cannot; it shares the target's.",
            "not-read": "The speculative config has the key, but the V2 runner's loader does not read it.",
            "own": "It can: kv_cache_dtype of the speculative config.",
        },
        _cache_dtype,
        good=("shared", "own"),
    ),
    fingerprint(
        "dspark-quantization",
        "Which quantisation does a DSpark draft with a model of its own get?",
        {
            "no-dspark": _NONE,
            "frozen": "The one its config.json names, as plain fp8: loading ends in a KeyError for a weight scale.",
            "targets": "The target's.",
        },
        _quantization,
        good=("no-dspark", "targets"),
        rules=("WT005",),
        references=("vllm#51758", "vllm#51916"),
    ),
    fingerprint(
        "draft-shared-expert-padding",
        "Do the drafts' loaders pad the shared expert as the target's does?",
        {
            "as-target": "They do as the target does.",
            "missing": "The target's loader pads, a draft's does not: at large tensor parallel sizes loading fails.",
        },
        _padding,
        good=("as-target",),
        rules=("WT012",),
        references=("vllm#49415",),
    ),
)
