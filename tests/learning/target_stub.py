"""Runs a release's own mapper, ``AutoWeightsLoader`` and ``load_weights`` of a target on stub modules."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from dsv4check.learning.source import Source
from tests.learning.loader_stub import Nothing, Parameters, module_globals, run

UTILS = "model_executor/models/utils.py"
QUANTIZATION = "model_executor/layers/quantization"
LAYERS = "DeepseekV4Model"
_ABSENT = ("load_weights", "quant_config", "hf_to_vllm_mapper", "finalizes_weights_during_load")
MEGA_MOE = "make_deepseek_v4_expert_params_mapping"
LAST_HEAD = "lm_head.weight"


class Parameter(Nothing):
    """A parameter outside the layers; notes down that it was loaded."""

    def __init__(self, *_values: Any) -> None:
        self.name = ""
        self.asked: list[Any] = []

    def weight_loader(self, _param: Any, _weight: Any) -> None:
        self.asked.append((self.name, None, None))


class Module:
    """``torch.nn.Module`` as far as loaders ask it; anything else is nothing."""

    def __init__(self, *_values: Any, **_options: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT or name.startswith("_"):
            raise AttributeError(name)
        return Nothing()

    def named_children(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Module)]

    def children(self) -> list[Any]:
        return [value for _name, value in self.named_children()]

    def named_modules(self, **_options: Any) -> list[tuple[str, Any]]:
        return []

    def named_buffers(self, recurse: bool = True) -> list[tuple[str, Any]]:
        return []

    def named_parameters(self, recurse: bool = True, **_options: Any) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Parameter)]

    def _get_name(self) -> str:
        return type(self).__name__

    @contextlib.contextmanager
    def _mark_tower_model(self, vllm_config: Any, _modalities: Any) -> Any:
        yield
        if not vllm_config.images:
            for name, _module in self.named_children():
                setattr(self, name, StageMissing())

    @contextlib.contextmanager
    def _mark_language_model(self, _config: Any) -> Any:
        yield


class StageMissing(Module):
    pass


def tree(names: Iterable[str], prefix: str, asked: list[Any]) -> Module:
    """Modules with these parameters, whose full names begin with ``prefix``."""
    root = Module()
    for name in names:
        *path, leaf = name.removeprefix(prefix).split(".")
        node = root
        for part in path:
            if part not in vars(node):
                setattr(node, part, Module())
            node = vars(node)[part]
        parameter = Parameter()
        parameter.name, parameter.asked = name, asked
        setattr(node, leaf, parameter)
    return root


class Moe(Nothing):
    """The MoE of a layer."""

    def __init__(self, stub: TargetStub) -> None:
        self.use_mega_moe = self.use_native_mega_moe = stub.mega
        self.fuse_shared_experts = self.is_fused_shared_expert_enabled = stub.fused
        self.n_redundant_experts = 0
        self.experts = stub.mega_experts()


class TargetStub:
    """One target class of a release under one set of settings."""

    def __init__(
        self,
        source: Source,
        path: str,
        name: str,
        *,
        text: tuple[str, str] | None = None,
        dtype: str = "fp4",
        block: list[int] | None = None,
        mega: bool = False,
        fused: bool = False,
        images: bool = True,
        experts: int = 2,
        outside: Iterable[str] = (),
    ) -> None:
        self.source, self.mega, self.fused, self.experts = source, mega, fused, experts
        self.parameters = Parameters()
        self.asked: list[Any] = []
        self.outside = list(outside)
        self.prefix = "language_model.model." if text else "model."
        self.config = SimpleNamespace(
            expert_dtype=dtype,
            n_routed_experts=experts,
            n_shared_experts=1,
            num_attention_heads=8,
            vocab_size=8,
            hidden_size=8,
            vision_n_layers=1,
            vision_n_heads=1,
            num_hidden_layers=43,
        )
        limits = SimpleNamespace(get_limit_per_prompt=lambda _kind: int(images))
        model = SimpleNamespace(hf_config=self.config, multimodal_config=limits, dtype=None)
        self.utils = self._utils()
        self.quantization = self._quantization(block)
        self.vllm_config = SimpleNamespace(
            model_config=model, quant_config=self.quantization, images=images, parallel_config=Nothing()
        )
        if text is None:
            self.model = self._class(path, name)(vllm_config=self.vllm_config)
        else:
            self.model = self._wrapper(path, name, text)

    def load(self, tensor: str, registered: set[str] | None = None) -> Any:
        """[(parameter, shard, expert)] or (exception, message) of one tensor.

        ``registered``: the parameters below the layers, without prefix; all that is asked for when it is None.
        """
        self.asked.clear()
        self.parameters.asked = []
        self.parameters.registered = registered
        try:
            self.model.load_weights([(tensor, Nothing())])
        except (ValueError, KeyError, UnboundLocalError) as error:
            return type(error).__name__, str(error)
        return self.asked + [(self.prefix + found, *rest) for found, *rest in self.parameters.asked]

    def _utils(self) -> dict[str, Any]:
        """The release's ``WeightsMapper`` and ``AutoWeightsLoader``."""
        kinds = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d")
        other = {name: type(name, (), {}) for name in (*kinds, "SyncBatchNorm")}
        space: dict[str, Any] = {
            "__builtins__": builtins,
            "re": re,
            "itertools": itertools,
            "dataclass": dataclasses.dataclass,
            "field": dataclasses.field,
            "replace": dataclasses.replace,
            "nn": SimpleNamespace(Module=Module, Parameter=Parameter, **other),
            "torch": Nothing(),
            "logger": Nothing(),
            "default_weight_loader": Nothing(),
            "support_quantized_model_reload_from_hp_weights": lambda method: method,
            "StageMissingLayer": StageMissing,
            "PPMissingLayer": type("PPMissing", (), {}),
            "VocabParallelEmbedding": type("Embedding", (), {}),
            "maybe_prefix": lambda prefix, name: f"{prefix}.{name}" if prefix else name,
        }
        for name in ("_get_tied_embedding_params", "WeightsMapper", "AutoWeightsLoader"):
            node = self.source.find(UTILS, name)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                run(node, space)
        return space

    def _quantization(self, block: list[int] | None) -> Any:
        """An FP8 config with the release's own mappers."""
        wanted = ("get_cache_scale_mapper", "get_checkpoint_weight_mapper", "_ignore_unexpected_suffixes")
        space = {"__builtins__": builtins, "re": re, "WeightsMapper": self.utils["WeightsMapper"]}
        for file, owner, base in (
            ("base_config.py", "QuantizationConfig", "object"),
            ("fp8.py", "Fp8Config", "QuantizationConfig"),
        ):
            node = self.source.get(f"{QUANTIZATION}/{file}", owner)
            assert isinstance(node, ast.ClassDef)
            kept: list[ast.stmt] = [
                item
                for item in node.body
                if (isinstance(item, ast.FunctionDef) and item.name in wanted)
                or (isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) in wanted)
            ]
            kept = [_without_imports(item) for item in kept] or [ast.Pass()]
            run(ast.ClassDef(owner, [ast.Name(base, ast.Load())], [], kept, []), space)
        found = space["Fp8Config"]()
        found.weight_block_size = block
        return found

    def mega_experts(self) -> Any:
        """Experts that take the shared one, with the release's own function; nothing where there is none."""
        path = "model_executor/layers/fused_moe/deep_gemm_mega_moe.py"
        for item in self.source.tree(path).body if self.source.has(path) and self.fused and self.mega else ():
            if isinstance(item, ast.ClassDef) and self.source.find(path, f"{item.name}.load_shared_expert_weight"):
                names = ("load_shared_expert_weight", "shared_weight_loader")
                kept: list[ast.stmt] = [
                    part for part in item.body if isinstance(part, ast.FunctionDef) and part.name in names
                ]
                space: dict[str, Any] = {"__builtins__": builtins}
                run(ast.ClassDef("Experts", [], [], kept, []), space)
                return _mega_experts(space["Experts"], self.parameters)
        return Nothing()

    def _class(self, path: str, name: str) -> Any:
        space = module_globals(self.source, path)
        space |= {
            "Module": Module,
            "WeightsMapper": self.utils["WeightsMapper"],
            "AutoWeightsLoader": self.utils["AutoWeightsLoader"],
            "islice": itertools.islice,
            "typing": SimpleNamespace(cast=lambda _kind, value: value),
            "nn": SimpleNamespace(Parameter=Parameter, Module=Module),
            "ParallelLMHead": lambda *_values, **_options: tree(
                [self.prefix.removesuffix("model.") + LAST_HEAD],
                self.prefix.removesuffix("model.") + "lm_head.",
                self.asked,
            ),
            "DeepseekV4ViT": lambda _config: self._tower("vision."),
            "DeepseekV4Aligner": lambda _config: self._tower("aligner."),
            "_fuse_shared_experts_enabled": lambda *_values: self.fused,
            "get_pp_group": lambda: SimpleNamespace(is_last_rank=True, is_first_rank=False),
            LAYERS: lambda **_options: self._layers(path),
        }
        for other in (path, path.rpartition("/")[0] + "/model.py"):
            for function in ("_make_deepseek_v4_weights_mapper", "_linear_scale_param_name"):
                node = self.source.find(other, function) if self.source.has(other) else None
                if isinstance(node, ast.FunctionDef):
                    run(node, space)
        for item in self.source.tree(path).body:
            named = isinstance(item, ast.Assign | ast.AnnAssign) and "_VL_PREFIX_MAPPING" in ast.unparse(item)
            if named or (isinstance(item, ast.FunctionDef) and "mapper" in item.name):
                run(item, space)
        node = self.source.get(path, name)
        assert isinstance(node, ast.ClassDef)
        kept: list[ast.stmt] = [
            item
            for item in node.body
            if (
                isinstance(item, ast.FunctionDef)
                and item.name in ("__init__", "load_weights", "process_weights_after_loading")
            )
            or (
                isinstance(item, ast.Assign)
                and ast.unparse(item.targets[0]) in ("hf_to_vllm_mapper", "model_cls", "finalizes_weights_during_load")
            )
        ]
        space |= self.more if hasattr(self, "more") else {}
        space.setdefault("stream_language_model_first", lambda weights: weights)
        if not callable(space.get("stream_language_model_first")):
            space["stream_language_model_first"] = lambda weights: weights
        run(ast.ClassDef(name, [ast.Name("Module", ast.Load())], [], kept, []), space)
        found = space[name]
        model_cls = vars(found).get("model_cls")
        if model_cls is not None:
            found.model_cls = staticmethod(model_cls)
        return found

    def _tower(self, prefix: str) -> Module:
        return tree([name for name in self.outside if name.startswith(prefix)], prefix, self.asked)

    def _wrapper(self, path: str, name: str, text: tuple[str, str]) -> Any:
        inner = self._class(*text)
        self.more = {
            "init_vllm_registered_model": lambda **_options: inner(vllm_config=self.vllm_config),
            text[1]: lambda **_options: inner(vllm_config=self.vllm_config),
            "stream_language_model_first": lambda weights: weights,
        }
        model = self._class(path, name)(vllm_config=self.vllm_config)
        for part, parameter in model.named_parameters():
            parameter.name, parameter.asked = part, self.asked
        return model

    def _layers(self, path: str) -> Any:
        """The model of layers, with its own methods for loading."""
        space = module_globals(self.source, path)
        space |= {
            "Module": Module,
            "dict": lambda pairs=(): self.parameters,
            "islice": itertools.islice,
            "DeepseekV4MoE": Moe,
            "extract_layer_index": lambda _name: 0,
            "_fuse_shared_experts_enabled": lambda *_values: self.fused,
        }
        for other in ("models/deepseek_v4/nvidia/model.py", path):
            node = self.source.find(other, MEGA_MOE) if self.source.has(other) else None
            if isinstance(node, ast.FunctionDef):
                run(node, space)
        node = self.source.get(path, LAYERS)
        assert isinstance(node, ast.ClassDef)
        kept: list[ast.stmt] = [
            item
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name in ("load_weights", "get_expert_mapping")
        ]
        run(ast.ClassDef(LAYERS, [ast.Name("Module", ast.Load())], [], kept, []), space)
        model = space[LAYERS]()
        if "self.quant_config = " in self.source.segment(path, LAYERS):
            model.quant_config = self.quantization
        moe = Moe(self)
        model.config = self.config
        model._pad_shared_expert_weight = lambda *_values: Nothing()
        model.layers = [SimpleNamespace(ffn=moe)]
        model.start_layer, model.end_layer = 0, 1
        model.is_fused_shared_expert_enabled = model.fuse_shared_experts = self.fused
        model.use_mega_moe = self.mega
        model.named_modules = lambda **_options: [("layers.0.ffn", moe)]
        return model


def _mega_experts(owner: Any, parameters: Parameters) -> Any:
    class Experts(owner):  # type: ignore[misc]
        has_fused_shared_experts = True

        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(data=None, weight_loader=self.shared_weight_loader)

        def _load_weight(self, _param: Any, _weight: Any, shard: str, _scale: bool) -> None:
            self.shard = shard

        def load_shared_expert_weight(self, name: str, weight: Any) -> str:
            found: str = super().load_shared_expert_weight(name, weight)
            parameters.asked.append((found, self.shard, None))
            return found

    return Experts()


def _without_imports(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef):
        body = [item for item in node.body if not isinstance(item, ast.ImportFrom)]
        return ast.FunctionDef(node.name, node.args, body, node.decorator_list, None, None, type_params=[])
    return node
