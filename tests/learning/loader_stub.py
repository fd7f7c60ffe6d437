"""Runs the ``load_weights`` of a release's own source with everything but names replaced, and writes down the names."""

from __future__ import annotations

import ast
import builtins
import re
import typing
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from dsv4check.learning.source import Source


class Nothing:
    """Stands for whatever has no part in names: any attribute, any call, no truth, nothing in it."""

    def __getattr__(self, name: str) -> Any:
        return Nothing()

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        return Nothing()

    def __getitem__(self, _key: Any) -> Any:
        return Nothing()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())


Loaded = tuple[str, Any, Any]
"""Parameter, shard and expert."""


class Parameters:
    """A model that has every parameter that is asked for, or those that are ``registered``."""

    def __init__(self) -> None:
        self.asked: list[Loaded] = []
        self.registered: set[str] | None = None

    def __contains__(self, name: str) -> bool:
        return self.registered is None or name in self.registered

    def __getitem__(self, name: str) -> Any:
        def load(_param: Any, _weight: Any, *words: Any, **options: Any) -> bool:
            shard = options.get("shard_id", next((word for word in words if word != name), None))
            self.asked[-1] = (name, shard, options.get("expert_id"))
            return True

        if name not in self:
            raise KeyError(name)
        self.asked.append((name, None, None))
        return SlicedParameter(load)


class SlicedParameter(Nothing):
    def __init__(self, load: Any) -> None:
        self.weight_loader = load


class Layers(Nothing):
    """The draft's layers, by number or by name."""

    def __len__(self) -> int:
        return 3

    def values(self) -> list[Any]:
        return [Nothing()]

    def __getitem__(self, _key: Any) -> Any:
        moe = SimpleNamespace(use_mega_moe=False, use_native_mega_moe=False, n_redundant_experts=0, experts=Nothing())
        return SimpleNamespace(ffn=moe, mtp_block=SimpleNamespace(ffn=moe))


def loaded_names(
    source: Source, path: str, name: str, tensors: Iterable[str], expert_dtype: str, head: bool = True
) -> dict[str, list[Loaded]]:
    """(parameter, shard, expert) that each tensor of a checkpoint is loaded into by a draft's class."""
    space = module_globals(source, path)
    space["dict"] = lambda _pairs=(): parameters
    parameters = Parameters()
    model = _model(source, path, name, space)
    model.config = SimpleNamespace(
        num_hidden_layers=43,
        num_nextn_predict_layers=2,
        n_routed_experts=2,
        num_attention_heads=8,
        expert_dtype=expert_dtype,
    )
    model.pad_shared_expert = False
    model.linear_scale_name = "weight_scale_inv"
    found = {}
    for tensor in tensors:
        parameters.asked = []
        model.model = SimpleNamespace(
            layers=Layers(), mtp_start_layer_idx=43, num_mtp_layers=0, confidence_head=Nothing() if head else None
        )
        model.load_weights([(tensor, Nothing())])
        found[tensor] = parameters.asked
    return found


def _model(source: Source, path: str, name: str, space: dict[str, Any]) -> Any:
    """An object with the class's own methods for loading."""
    node = source.get(path, name)
    assert isinstance(node, ast.ClassDef)
    methods: list[ast.stmt] = [
        item for item in node.body if isinstance(item, ast.FunctionDef) and item.name != "__init__"
    ]
    run(ast.ClassDef(name, [ast.Name("Nothing", ast.Load())], [], methods, []), space)
    return space[name]()


def module_globals(source: Source, path: str) -> dict[str, Any]:
    tree = source.tree(path)
    space: dict[str, Any] = {}
    for item in ast.walk(tree):
        if isinstance(item, ast.Name) and not hasattr(builtins, item.id):
            space[item.id] = Nothing()
    space |= {"Nothing": Nothing, "re": re, "typing": typing, "__builtins__": builtins}
    space["get_tensor_model_parallel_world_size"] = lambda: 1
    space["get_tensor_model_parallel_rank"] = lambda: 0
    space["extract_layer_index"] = lambda _name: 0
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) or (isinstance(item, ast.Assign) and "re.compile" in ast.unparse(item)):
            run(item, space)
    for file in ("model_executor/models/deepseek_v2.py", "model_executor/models/utils.py"):
        layer = source.find(file, "get_spec_layer_idx_from_weight_name")
        if isinstance(layer, ast.FunctionDef):
            run(layer, space)
    _experts(source, space)
    return space


def _experts(source: Source, space: dict[str, Any]) -> None:
    """The release's own table of the experts' parameters."""
    folder = "model_executor/layers/fused_moe"
    plan = SimpleNamespace(build_initial_global_physical_to_logical_map=lambda count, more: list(range(count + more)))
    inner: dict[str, Any] = {"__builtins__": builtins, "EplbState": plan, "logger": Nothing()}
    for file, owner in ((f"{folder}/routed_experts.py", "RoutedExperts"), (f"{folder}/layer.py", "FusedMoE")):
        node = source.find(file, owner) if source.has(file) else None
        if isinstance(node, ast.ClassDef):
            kept: list[ast.stmt] = [
                item
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name.endswith("expert_params_mapping")
            ]
            if kept:
                run(ast.ClassDef(owner, [], [], kept, []), inner)
                space[owner] = inner[owner]
    name = "fused_moe_make_expert_params_mapping"
    mapping = source.get(f"{folder}/layer.py", name)
    assert isinstance(mapping, ast.FunctionDef)
    run(mapping, inner)
    space[name] = inner[name]


def run(node: ast.stmt, space: dict[str, Any]) -> None:
    """Execute one statement; annotations stay text."""
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    exec(compile(ast.fix_missing_locations(ast.Module([future, node], [])), "release", "exec"), space)
