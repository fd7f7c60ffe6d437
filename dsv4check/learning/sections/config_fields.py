"""``config_fields``: which config.json a release can read, and the fields its model code asks for without a default."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from ..release import Release
from ..source import LearningError, Source, names, strings
from . import pins

REGISTRY: Final = "model_executor/models/registry.py"
CONFIGS: Final = "transformers_utils/config.py"
_MODEL_FILES: Final = (
    "model_executor/models/deepseek_v4.py",
    "model_executor/layers/deepseek_v4_attention.py",
    "model_executor/layers/deepseek_compressor.py",
)
"""Up to 0.21; afterwards the model has a package of its own, ``models/deepseek_v4``."""
_OTHER_PARTS: Final = frozenset({"mtp", "dspark", "vision", "mm_preprocess", "vl_model", "vl_cudagraph", "vl_stub"})
"""Files of drafts and of the vision tower: a text-only launch of the target does not build them."""
_HOLDERS: Final = frozenset({"config", "hf_config", "text_config"})
_OF_THE_BASE: Final = frozenset(
    {"max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "torch_dtype"}
)
"""Fields that the config classes or transformers' base class always have."""
_JUDGED_APART: Final = frozenset({"quantization_config"})
_PART_PREFIXES: Final = ("vision_", "engram_")
"""Fields of parts that are built only when the config has them."""
_TRANSFORMERS_4: Final = ("4.56.0", "4.57.6", "4.99")


def learn(release: Release) -> dict[str, Any]:
    """Config classes, registered names, and what the model code reads."""
    source = release.source
    own = own_config_types(source)
    architectures = [name for name in registered_architectures(source) if re.match(r"DeepseekV4\d*For", name)]
    if "DeepseekV4ForCausalLM" not in architectures:
        raise LearningError(f"{REGISTRY}: no DeepseekV4ForCausalLM is registered")
    config_class = "vllm" if "deepseek_v4" in own else "transformers"
    files = model_files(source, "deepseek_v4")
    found: dict[str, Any] = {
        "architectures": architectures,
        "config_class": config_class,
        "expert_dtype_checked": _expert_dtype_checked(source, files),
        "layer_types_validated": "mlp_layer_types" if _needs_transformers_5(release) else "none",
        "model_types": sorted({"deepseek_v4", *own}),
        "scale_fmt_read": any(is_subscripted(source.tree(path), "quantization_config", "scale_fmt") for path in files),
        "vision": "DeepseekV4ForConditionalGeneration" in architectures,
    }
    if config_class == "vllm":
        found["required"] = _required(source, files, "deepseek_v4")
    if "deepseek_v41" in own:
        found["required_v41"] = _required(source, model_files(source, "deepseek_v41"), "deepseek_v41")
    return found


def registered_architectures(source: Source) -> list[str]:
    """Architectures in the order of the registry's dicts (``_TEXT_GENERATION_MODELS``, ``_MULTIMODAL_MODELS``)."""
    found: list[str] = []
    for table in ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"):
        value = getattr(source.get(REGISTRY, table), "value", None)
        if not isinstance(value, ast.Dict):
            raise LearningError(f"{REGISTRY}: {table} is not a dict any more")
        found += [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return found


def own_config_types(source: Source) -> list[str]:
    """Model types for which ``_CONFIG_REGISTRY`` names a class of vLLM's own."""
    value = getattr(source.get(CONFIGS, "_CONFIG_REGISTRY"), "value", None)
    if not isinstance(value, ast.Call):
        raise LearningError(f"{CONFIGS}: _CONFIG_REGISTRY is not made by a call any more")
    known = [keyword.arg for keyword in value.keywords if keyword.arg] + strings(value)
    return sorted({name for name in known if re.fullmatch(r"deepseek_v4\d*", name)})


def model_files(source: Source, family: str) -> list[str]:
    """The files of the target model on NVIDIA GPUs, relative to the package."""
    folder = source.package / "models" / family
    if not folder.is_dir():
        files = [path for path in _MODEL_FILES if source.has(path)]
        if family != "deepseek_v4" or _MODEL_FILES[0] not in files:
            raise LearningError(f"models/{family} is not there")
        return files
    paths = [path for part in ("", "common", "nvidia") for path in sorted((folder / part).glob("*.py"))]
    if not paths:
        raise LearningError(f"models/{family} has no files")
    return [path.relative_to(source.package).as_posix() for path in paths if path.stem not in _OTHER_PARTS]


def _expert_dtype_checked(source: Source, files: list[str]) -> bool:
    """True when the quantization config compares ``expert_dtype`` with ``_DEEPSEEK_V4_EXPERT_DTYPES`` and says so."""
    listed = any("_DEEPSEEK_V4_EXPERT_DTYPES" in names(source.tree(path)) for path in files)
    text = "Unsupported DeepSeek V4 expert_dtype"
    if listed != any(text in said for path in files for said in strings(source.tree(path))):
        raise LearningError(f"{PurePosixPath(files[0]).parent}: expert_dtype is checked in another way than before")
    return listed


def is_subscripted(tree: ast.AST, attribute: str, key: str) -> bool:
    """True for ``....<attribute>["<key>"]``."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Constant(value=index)):
                if (name, index) == (attribute, key):
                    return True
    return False


def _needs_transformers_5(release: Release) -> bool:
    """From version 5 on transformers' base class refuses ``mlp_layer_types`` it does not know."""
    wanted = pins.learn(release)["packages"].get("transformers")
    if wanted is None:
        raise LearningError("METADATA: Requires-Dist names no transformers")
    return not any(SpecifierSet(wanted).contains(version) for version in _TRANSFORMERS_4)


def _required(source: Source, files: list[str], family: str) -> list[str]:
    """Fields read as ``config.<field>`` that neither the config class nor a ``getattr`` gives a default."""
    given = _OF_THE_BASE | _JUDGED_APART | _fields_of_vllm_config(source) | _set_by_class(source, family)
    found: set[str] = set()
    for path in files:
        for function in _functions(source.tree(path)):
            reads, guarded = _reads(function)
            found |= reads - guarded
    found = {name for name in found - given if not name.startswith(_PART_PREFIXES)}
    if "hidden_size" not in found or "num_hidden_layers" not in found:
        raise LearningError(f"{PurePosixPath(files[0]).parent}: the model no longer reads config.hidden_size")
    return sorted(found)


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every function, methods included (inner functions belong to the one around them)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.ClassDef, ast.If, ast.Try, ast.With)):
            yield from _functions(node)


def _reads(function: ast.AST) -> tuple[set[str], set[str]]:
    """(fields read from a config object, fields the function asks for with a default or calls)."""
    reads: set[str] = set()
    guarded: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[held, ast.Constant(value=str(name)), *_]):
                if _name(held) in _HOLDERS:
                    guarded.add(name)
            case ast.Call(func=ast.Attribute(value=held, attr=name)) if _name(held) in _HOLDERS:
                guarded.add(name)  # a method
            case ast.Attribute(value=held, attr=name, ctx=ast.Load()) if _name(held) in _HOLDERS:
                reads.add(name)
    return reads, guarded


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _fields_of_vllm_config(source: Source) -> set[str]:
    """Fields of ``VllmConfig``, which some functions call ``config`` too."""
    found = set()
    for item in ast.walk(source.get("config/vllm.py", "VllmConfig")):
        match item:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def _set_by_class(source: Source, family: str) -> set[str]:
    """Attributes that the release's own config class always sets."""
    path = f"transformers_utils/configs/{family}.py"
    return {
        node.attr
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self"
    }
