"""Refusals of ``VllmConfig`` and its parts that only some releases have."""

from __future__ import annotations

import ast
from typing import Any, Final, TypeGuard

from ...guards import fields, guarded, refused, template, words
from ...source import LearningError, Source, names
from .bounds import ARGUMENTS

_CONFIG: Final = "config/vllm.py"
_MODELS: Final = ("models/deepseek_v4/nvidia/model.py", "model_executor/models/deepseek_v4.py")
_EXPERTS: Final = "--enable-return-routed-experts is incompatible with "
_UNVALIDATED: Final = "_validate_return_routed_experts"
_NOT_VALIDATED: Final = {
    *("pipeline parallelism", "prefill context parallelism", "decode context parallelism", "async scheduling"),
}
"""What ``resolve/routed_experts.py`` knows of that list."""


def lora(source: Source) -> dict[str, bool]:
    """NVIDIA's V4 class has LoRA or not; ``config/lora.py`` refuses MegaMoE and classes without LoRA or not."""
    path = source.first(*_MODELS)
    node = source.get(path, "DeepseekV4ForCausalLM")
    if not isinstance(node, ast.ClassDef):
        raise LearningError(f"{path} DeepseekV4ForCausalLM: a class was expected")
    mega_moe = _refused_by(source, "config/lora.py", "LoRAConfig", "LoRA is not supported with moe_backend=")
    if mega_moe != _refused_by(source, "config/lora.py", "LoRAConfig", "LoRA is not supported for {}"):
        raise LearningError("config/lora.py LoRAConfig: MegaMoE and classes without LoRA are not refused together")
    bases = {name for base in node.bases for name in names(base)}
    return {"supported": "SupportsLoRA" in bases, "mega_moe_refused": mega_moe}


def _functions(node: ast.AST) -> list[ast.FunctionDef]:
    return [item for item in ast.iter_child_nodes(node) if isinstance(item, ast.FunctionDef)]


def _refused_by(source: Source, path: str, name: str, start: str) -> bool:
    """Some method of a class raises an error that starts like this."""
    return any(refused(item, start) is not None for item in _functions(source.get(path, name)))


def _checked(source: Source, flag: str, start: str) -> bool:
    """The release has ``flag`` and the refusal; LearningError when it has the flag without the refusal."""
    if flag not in fields(source, *ARGUMENTS):
        return False
    if not _refused_by(source, _CONFIG, "VllmConfig", start):
        raise LearningError(f"{_CONFIG} VllmConfig: no error that starts with {start!r}")
    return True


def batch_sharded_sampling(source: Source) -> bool:
    """``VllmConfig`` says why ``--enable-batch-sharded-sampling`` cannot be had."""
    return _checked(source, "enable_batch_sharded_sampling", "Batch-sharded sampling was explicitly enabled")


def spec_metrics(source: Source) -> bool:
    """``VllmConfig.__post_init__`` wants speculative decoding for ``--per-request-spec-decode-metrics``."""
    start = "--per-request-spec-decode-metrics requires speculative decoding"
    return _checked(source, "per_request_spec_decode_metrics", start)


def replay_with_drafts(source: Source) -> bool:
    """``VllmConfig._verify_sampling_replay_config`` lets ``--return-sampling-mask`` be used with a draft."""
    subject = "sampling distribution replay"
    if not _checked(source, "return_sampling_mask", f"{subject} requires Model Runner V2"):
        return True
    return not _refused_by(source, _CONFIG, "VllmConfig", f"{subject} does not support speculative decoding")


def sliding_window_crash(source: Source) -> bool:
    """``--disable-sliding-window`` sets ``sliding_window = None`` on a config class that refuses it.

    vLLM's own ``DeepseekV4Config`` takes the value; without it in ``_CONFIG_REGISTRY`` the class is that of
    Transformers, whose fields are checked when they are set (its ``sliding_window`` is a plain ``int``).
    """
    path, place = "transformers_utils/config.py", "_CONFIG_REGISTRY"
    registry = source.get(path, place)
    own = words(registry)
    own |= {item.arg for item in ast.walk(registry) if isinstance(item, ast.keyword) and item.arg is not None}
    if "deepseek_v32" not in own:
        raise LearningError(f"{path} {place}: deepseek_v32 was expected in it")
    for item in _functions(source.get("config/model.py", "ModelConfig")):
        for part in guarded(item):
            if "disable_sliding_window" in part.names() and _clears_window(part.statement):
                return "deepseek_v4" not in own
    raise LearningError("config/model.py ModelConfig: disable_sliding_window does not set sliding_window = None")


def _clears_window(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement).endswith(".sliding_window = None")


def routed_experts(source: Source) -> dict[str, Any] | None:
    """What refuses ``--enable-return-routed-experts``: ``VllmConfig`` itself, or the check of all auxiliary outputs.

    The first check of all is a list of what was not validated with it; None before that.
    """
    config = source.get(_CONFIG, "VllmConfig")
    listed = source.find(_CONFIG, f"VllmConfig.{_UNVALIDATED}")
    if listed is not None:
        found = {template(item.args[0]).split(" (")[0] for item in ast.walk(listed) if _appends(item)}
        if found != _NOT_VALIDATED:
            raise LearningError(f"{_CONFIG} VllmConfig.{_UNVALIDATED}: {sorted(found)}, not {sorted(_NOT_VALIDATED)}")
        return {"checks": "unvalidated", "context": None}
    for place, checks in (("_verify_aux_output_compatibility", "auxiliary"), ("__post_init__", "own")):
        node = next((item for item in _functions(config) if item.name == place), None)
        texts = [] if node is None else _refused_with(node)
        if not texts:
            continue
        if "pipeline parallelism (PP > 1)." not in texts:
            raise LearningError(f"{_CONFIG} VllmConfig.{place}: {_EXPERTS}pipeline parallelism was expected")
        return {"checks": checks, "context": next((text for text in texts if text.startswith("context ")), None)}
    return None


def _appends(item: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(item, ast.Call) and ast.unparse(item.func) == "unsupported.append"


def _refused_with(node: ast.FunctionDef) -> list[str]:
    found = []
    for item in guarded(node):
        if isinstance(item.statement, ast.Raise) and isinstance(item.statement.exc, ast.Call):
            text = template(item.statement.exc.args[0]) if item.statement.exc.args else ""
            if text.startswith(_EXPERTS):
                found.append(text.removeprefix(_EXPERTS))
    return found
