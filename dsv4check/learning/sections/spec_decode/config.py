"""How the speculative config is merged, how it finds its method, and what it refuses.

Sources: ``engine/arg_utils.py:EngineArgs.create_speculative_config`` and ``config/speculative.py:SpeculativeConfig``,
its ``__post_init__`` (``_INIT``) and ``_verify_args``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, names, strings
from .fields import CONFIG, has_field, methods
from .queries import around, assigned, branches, calls, conjuncts, function, keyword, raised, text, texts

ARGUMENTS: Final = "engine/arg_utils.py"
VLLM_CONFIG: Final = "config/vllm.py"
_INIT: Final = "SpeculativeConfig.__post_init__"
_METHOD: Final = "self.method"
_TOKENS: Final = "self.num_speculative_tokens"


def learn_merging(source: Source) -> dict[str, Any]:
    """``dashed_keys`` and ``shortcut_flags`` of ``create_speculative_config``."""
    place = "EngineArgs.create_speculative_config"
    create = function(source, ARGUMENTS, place)
    dashed = any([text(item) for item in call.args] == ["-", "_"] for call in calls(create, "replace"))
    shortcuts = bool(raised(create, "mutually exclusive"))
    if not shortcuts and (source.find(ARGUMENTS, "EngineArgs.spec_method") or "spec_method" in names(create)):
        raise LearningError(f"{ARGUMENTS} {place}: expected a refusal of --spec-method beside --speculative-config")
    if not dashed and not calls(create, "update"):
        raise LearningError(f"{ARGUMENTS} {place}: expected the given keys to be updated")
    return {"dashed_keys": dashed, "shortcut_flags": shortcuts}


def learn_method(source: Source) -> dict[str, Any]:
    """``class_path``, ``fixed_methods``, ``path_methods`` and ``v41_mtp_refused``: where the method comes from."""
    init = function(source, CONFIG, _INIT)
    fixed, chain = _detection(init)
    by_path = []
    family_refused = None
    for test, body in chain:
        value = text(assigned(body, _METHOD))
        if value is None or test is None:
            continue
        needles = _needles(test)
        if len(needles) > 1:
            raise LearningError(f"{CONFIG} {_INIT}: expected one word of the path for method {value}, got {needles}")
        by_path += [[needle, value] for needle in needles]
        if value == "mtp":
            family_refused = any(
                isinstance(item, ast.If) and "deepseek_v41" in strings(item.test) and raised(item, "") for item in body
            )
    if not by_path or family_refused is None:
        raise LearningError(f"{CONFIG} {_INIT}: expected methods found by the draft's path, and mtp by its model type")
    return {
        "class_path": class_path_names(source, init),
        "fixed_methods": fixed,
        "path_methods": by_path,
        "v41_mtp_refused": family_refused,
    }


def _detection(init: ast.FunctionDef) -> tuple[list[str], list[tuple[ast.expr | None, list[ast.stmt]]]]:
    """Methods that are not looked for, and the branches that find one."""
    for item in ast.walk(init):
        if not isinstance(item, ast.If) or not isinstance(item.test, ast.Compare):
            continue
        if ast.unparse(item.test.left) == _METHOD and [type(part) for part in item.body] == [ast.Pass]:
            fixed = texts(item.test.comparators[0])
            if fixed:
                return fixed, list(branches(item))[1:]
    raise LearningError(f"{CONFIG} {_INIT}: expected a list of methods that the draft's path does not change")


def _needles(test: ast.expr) -> list[str]:
    """Words looked for in the lower-case name of the draft model."""
    return [
        word
        for item in ast.walk(test)
        if isinstance(item, ast.Compare)
        and isinstance(item.ops[0], ast.In)
        and (word := text(item.left)) is not None
        and ast.unparse(item.comparators[0]).endswith(".model.lower()")
    ]


def class_path_names(source: Source, init: ast.FunctionDef) -> str:
    """What makes the name of a draft model the path of a proposer class."""
    if "custom_class" not in methods(source):
        return "none"
    for item in ast.walk(init):
        if not isinstance(item, ast.If) or text(assigned(item.body, _METHOD)) != "custom_class":
            continue
        asked: list[ast.AST] = [item.test]
        for name in sorted(names(item.test)):
            helper = source.find(CONFIG, f"SpeculativeConfig.{name}")
            if isinstance(helper, ast.FunctionDef):
                asked.append(helper)
        words = {word for part in asked for word in names(part) | set(strings(part))}
        free = any(ast.unparse(part) == f"{_METHOD} is None" for part in conjuncts(item.test))
        if "/" in words and "." in words and free == ("isidentifier" in words):
            return "identifier" if free else "any_dot"
    raise LearningError(f"{CONFIG} {_INIT}: expected a test of the draft's name before method custom_class")


def learn_draft_model(source: Source) -> dict[str, Any]:
    """``draft_len_to_model_config``, ``draft_topk`` and, where there is one, ``aux_hidden_models``."""
    init = function(source, CONFIG, _INIT)
    drafts = [call for call in calls(init, "ModelConfig") if text(keyword(call, "runner")) == "draft"]
    if len(drafts) != 1:
        raise LearningError(f"{CONFIG} {_INIT}: expected one ModelConfig of the draft, got {len(drafts)}")
    length = keyword(drafts[0], "max_model_len")
    found: dict[str, Any] = {
        "draft_len_to_model_config": length is not None and ast.unparse(length) == "self.max_model_len",
        "draft_topk": _draft_topk(source, init),
    }
    place = "SpeculativeConfig._verify_args"
    verify = function(source, CONFIG, place)
    refusals = raised(verify, "is only supported for ")
    if refusals:
        values = texts(assigned(verify.body, "aux_hidden_states_supported"))
        if not values:
            raise LearningError(f"{CONFIG} {place}: expected the models that give intermediate hidden states")
        found["aux_hidden_models"] = values
    return found


def _draft_topk(source: Source, init: ast.FunctionDef) -> str | None:
    """The drafts that take ``dspark_draft_topk``, in vLLM's words; None where the key does not exist."""
    key = "dspark_draft_topk"
    if not has_field(source, key):
        return None
    said = [match[1] for item in strings(init) if (match := re.fullmatch(rf"{key} is only supported by (.+)", item))]
    others = [item for item in said if item != "DSpark"]
    if len(said) != 2 or len(others) != 1:
        raise LearningError(f"{CONFIG} {_INIT}: expected {key} to be refused for other methods and for other drafts")
    return others[0]


def learn_adaptive(source: Source) -> dict[str, Any] | None:
    """``adaptive``: preconditions of adaptive verification; None where the release has none.

    They stand in ``config/vllm.py``: in a validator of their own, or in the list of what the V2 runner lacks.
    """
    key = "enable_adaptive_verification"
    if not has_field(source, key):
        return None
    places = {
        "validator": "VllmConfig._validate_adaptive_verification",
        "v2_list": "VllmConfig._get_v2_model_runner_unsupported_features",
    }
    for by, place in places.items():
        checker = source.find(VLLM_CONFIG, place)
        if checker is None or key not in names(checker):
            continue
        tests = [item.test for item in ast.walk(checker) if isinstance(item, ast.If)]
        if by == "v2_list":
            tests = [test for test in tests if key in names(test)]
        full = any("has_full_cudagraphs" in names(test) for test in tests)
        if not full and not any("CUDAGraphMode.NONE" in ast.unparse(test) for test in tests):
            raise LearningError(f"{VLLM_CONFIG} {place}: expected a condition on the CUDA graph mode")
        return {"checked_by": by, "full_graphs": full, "methods": adaptive_methods(source)}
    raise LearningError(f"{VLLM_CONFIG}: expected {' or '.join(places.values())} to check {key}")


def adaptive_methods(source: Source) -> str | list[str]:
    """Methods that may verify adaptively: one, or any whose draft keeps its logits."""
    init = function(source, CONFIG, _INIT)
    for item in raised(init, "Adaptive verification"):
        parts = {ast.unparse(part) for test, _under in around(init, item) for part in conjuncts(test.test)}
        compared = [match[1] for part in parts if (match := re.fullmatch(r"self\.method != '(\w+)'", part))]
        rest = {part for part in parts if not part.startswith(f"{_METHOD} ")} - {"self.enable_adaptive_verification"}
        if compared and not rest:
            return compared
        if compared and rest == {"self.use_local_argmax_reduction"}:
            return "any"
    raise LearningError(f"{CONFIG} {_INIT}: expected a refusal of adaptive verification by method")


def learn_dspark_tokens(source: Source) -> dict[str, Any]:
    """``default_tokens``, ``n_predict`` and ``needs_block`` of DSpark: the number of draft tokens."""
    init = function(source, CONFIG, _INIT)
    refusals = raised(init, "must be divisible by ")
    if len(refusals) != 1:
        raise LearningError(f"{CONFIG} {_INIT}: expected one refusal of a number that n_predict does not divide")
    spared = [test for test, under in around(init, refusals[0]) if not under and _is_dspark(test.test)]
    block = "dspark_block_size"
    if spared:
        wanted = [test for test in spared if _sets_tokens(test.body) and block in strings(ast.Module(test.body, []))]
        if not wanted:
            raise LearningError(f"{CONFIG} {_INIT}: expected DSpark's tokens to default to {block}")
        tokens: dict[str, Any] = {"default_tokens": "block", "n_predict": None}
    else:
        tokens = {"default_tokens": "n_predict", "n_predict": "layers"}
        if _n_predict_from_block(init, block):
            tokens["n_predict"] = "layers_or_v41_block"
    least = [
        item
        for item in raised(init, "DSpark requires num_speculative_tokens >= ")
        if any(f"{_TOKENS} < {block}" in ast.unparse(test.test) for test, _under in around(init, item))
    ]
    return tokens | {"needs_block": bool(least)}


def _is_dspark(test: ast.expr) -> bool:
    return ast.unparse(test) in ("self.use_dspark()", f"{_METHOD} == 'dspark'")


def _sets_tokens(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(item, ast.Assign) and any(ast.unparse(target) == _TOKENS for target in item.targets)
        for part in body
        for item in ast.walk(part)
    )


def _n_predict_from_block(init: ast.FunctionDef, block: str) -> bool:
    """True when a V4.1 draft gets its block size as ``n_predict``."""
    for item in ast.walk(init):
        if not isinstance(item, ast.Assign) or block not in strings(item.value):
            continue
        if any(isinstance(target, ast.Attribute) and target.attr == "n_predict" for target in item.targets):
            tests = [test.test for test, under in around(init, item) if under]
            if any("is_v41" in names(test) or "deepseek_v41" in strings(test) for test in tests):
                return True
            raise LearningError(f"{CONFIG} {_INIT}: n_predict becomes {block}, but not for V4.1 alone")
    return False


def frozen_quantization(source: Source, draft_loader: ast.FunctionDef) -> bool:
    """True when a DSpark draft keeps the quantisation that its own config.json names.

    The loader of the draft model takes ``get_draft_quant_config``, while ``__post_init__`` does not give the draft the
    target's quantisation where it makes it a ``DSparkDraftModel``.
    """
    if "get_draft_quant_config" not in names(draft_loader):
        return False
    init = function(source, CONFIG, _INIT)
    for item in ast.walk(init):
        if isinstance(item, ast.If):
            for _test, body in branches(item):
                makes = [
                    part
                    for part in body
                    if isinstance(part, ast.Assign)
                    and ast.unparse(part.targets[0]).endswith(".architectures")
                    and "DSparkDraftModel" in strings(part.value)
                ]
                if makes:
                    given = assigned(body, "self.draft_model_config.quantization")
                    return given is None or "target_model_config" not in names(given)
    raise LearningError(f"{CONFIG} {_INIT}: expected the draft to become a DSparkDraftModel")
