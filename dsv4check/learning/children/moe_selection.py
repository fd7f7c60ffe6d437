"""Run inside a release's simulation: which kernel vLLM's own selection functions choose for the routed experts.

``main(words)`` takes words ``format=folder of a checkpoint's config.json``. For every format and every way to spread
the experts it builds one of V4's expert layers up to the point where the layer asks for its quantisation method, then
asks for that method again for every ``--moe-backend`` and every compute capability that can be simulated. The layer
and the configuration are vLLM's own; only the device changes between the questions.

It also asks what every ``--quantization`` value does to a checkpoint that has a quantisation of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

_WORKER = "dsv4check_rehearsal.worker"
_GPUS = 8
_LAYERS = 4
_WITHOUT_HASHING = "tp without hash layers"
_STAND_INS = frozenset({"b12x", "deep_gemm", "humming", "quark"})
"""Packages that kernels import while they are asked; nothing in them is needed for the answer."""
_INSTALLED = frozenset(
    {
        "has_b12x",
        "has_cutedsl",
        "has_deep_ep",
        "has_deep_gemm",
        "has_humming",
        "has_mori",
        "has_nixl_ep",
        "has_pplx",
        "has_triton_kernels",
    }
)
"""vLLM's questions about packages that the answers take as installed, beside FlashInfer's (``has_flashinfer...``)."""
_KERNEL = ("mxfp4_backend", "fp8_backend", "nvfp4_backend", "mxfp8_backend")


class _Asked(BaseException):
    """Not an error: the layer has asked for its method, so there is nothing more to build."""

    def __init__(self, layer: Any, prefix: str) -> None:
        super().__init__()
        self.layer = layer
        self.prefix = prefix


class _AnyMember(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = types.SimpleNamespace(value=name.lower(), name=name) if name.isupper() else MagicMock()
        setattr(cls, name, value)
        return value


class _AnyClass(metaclass=_AnyMember):
    """Stands for every class of a package that is not there."""

    is_supported = staticmethod(lambda *_args, **_kwargs: True)

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return MagicMock()


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the packages above and everything below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in _STAND_INS:
            return importlib.machinery.ModuleSpec(fullname, self, origin="simulated", is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def member(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return (lambda *_args, **_kwargs: True) if name == "is_supported" else _AnyClass

        module.__getattr__ = member  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main(words: Sequence[str]) -> dict[str, Any]:
    """The answers, one record for each format and layout; errors are kept once and named by their place."""
    sys.meta_path.insert(0, _StandInFinder())
    errors = _Errors()
    sweeps = []
    modules: dict[str, dict[str, list[str]]] = {}
    folders = dict(word.split("=", 1) for word in words)
    for form, folder in folders.items():
        for layout, options in _layouts().items():
            record: dict[str, Any] = {"format": form, "layout": layout}
            try:
                record["answers"] = _sweep(form, folder, layout, options, errors, modules.setdefault(form, {}))
            except _RefusedError as refused:
                record |= {"stage": refused.stage, "error": errors.place(refused.error)}
            sweeps.append(record)
    quantization = _quantization(next(iter(folders.values())), errors)
    return {"errors": errors.listed, "sweeps": sweeps, "modules": modules, "quantization": quantization}


class _RefusedError(Exception):
    """vLLM refuses the launch before any kernel is asked."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(stage)
        self.stage = stage
        self.error = error


class _Errors:
    """Every different (exception, message) once."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], int] = {}

    def place(self, error: BaseException) -> int:
        """Where the error stands in the list."""
        return self._places.setdefault((type(error).__name__, str(error)[:1500]), len(self._places))

    @property
    def listed(self) -> list[tuple[str, str]]:
        return list(self._places)


def _layouts() -> dict[str, dict[str, Any]]:
    """Ways to spread the experts over eight ranks; ``ep`` names an all-to-all backend where there is one."""
    exchanges = typing.get_args(importlib.import_module("vllm.config.parallel").All2AllBackend)
    tensor = {"tensor_parallel_size": _GPUS}
    data = {"data_parallel_size": _GPUS}
    expert = {"enable_expert_parallel": True}
    lora = {"enable_lora": True, "max_lora_rank": 16}
    return {
        "tp": tensor,
        _WITHOUT_HASHING: {**tensor, "hf_overrides": {"num_hidden_layers": _LAYERS, "num_hash_layers": 0}},
        "ep": {**tensor, **expert},
        **{f"dp ep {name}": {**data, **expert, "all2all_backend": name} for name in exchanges},
        "dp": data,
        "lora": {**tensor, **lora},
        "tp of one": {"tensor_parallel_size": 1},
        "lora ep": {**tensor, **expert, **lora},
    }


def _sweep(
    form: str, folder: str, layout: str, options: dict[str, Any], errors: _Errors, modules: dict[str, list[str]]
) -> dict[str, dict[str, str | int]]:
    """Answers of one layer: ``{choice: {capability: kernel or place of the error}}``.

    ``modules`` receives the modules of every kernel that the format's backends stand for.
    """
    simulated = importlib.import_module(f"{_WORKER}.simulated_device")
    import torch
    from vllm.config import set_current_vllm_config

    # A capability on which the format's checkpoint passes the checks of the configuration.
    _device("10.0" if form == "nvfp4" else "9.0")
    _MODULES.forget()
    config = _config(folder, options)
    layer, prefix = _layer(config, hashed=layout != _WITHOUT_HASHING)
    original = layer.moe_config
    choices = typing.get_args(importlib.import_module("vllm.config.kernel").MoEBackend)

    def ask(choice: str) -> str:
        layer.moe_config = copy.copy(original)
        layer.moe_config.moe_backend = choice
        with set_current_vllm_config(config), torch.device("meta"):
            method = config.quant_config.get_quant_method(layer, prefix)
        chosen = _backend(method)
        if not modules:
            modules.update(_kernel_modules(type(chosen)))
        return str(getattr(chosen, "value", chosen))

    for choice in choices:
        with contextlib.suppress(Exception):
            ask(choice)  # imports the kernels' modules
    _replace()
    answers: dict[str, dict[str, str | int]] = {choice: {} for choice in choices}
    for capability in simulated.USUAL:
        _device(capability)
        _MODULES.forget()
        for choice in choices:
            try:
                answers[choice][capability] = ask(choice)
            except Exception as error:
                answers[choice][capability] = errors.place(error)
    return answers


def _backend(method: Any) -> Any:
    """The member of the format's enumeration of backends that a quantisation method holds."""
    for name in _KERNEL:
        if hasattr(method, name):
            return getattr(method, name)
    raise RuntimeError(f"{type(method).__name__} has none of {', '.join(_KERNEL)}")


def _kernel_modules(backends: Any) -> dict[str, list[str]]:
    """``backend_to_kernel_cls`` beside the enumeration, asked for every member that it knows."""
    module: Any = sys.modules[backends.__module__]
    found = {}
    for member in backends:
        with contextlib.suppress(Exception):
            classes = module.backend_to_kernel_cls(member)
            classes = classes if isinstance(classes, list | tuple) else [classes]
            found[str(member.value)] = sorted({kind.__module__ for kind in classes})
    return found


def _device(capability: str) -> None:
    protocol = importlib.import_module("dsv4check_rehearsal.protocol")
    simulated = importlib.import_module(f"{_WORKER}.simulated_device")
    simulated.STATE.set(protocol.SimulatedDevice(sm=capability, count=_GPUS))


class _Modules:
    """What has to be done to vLLM's modules; looked through again only after more were imported."""

    def __init__(self) -> None:
        self._seen = 0
        self._caches: list[Any] = []

    def forget(self) -> None:
        """Memoised functions forget the device before."""
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            self._caches = [
                item
                for item in gc.get_objects()
                if type(item) is functools._lru_cache_wrapper
                and str(getattr(item, "__module__", "")).startswith("vllm")
            ]
        for cached in self._caches:
            cached.cache_clear()


_MODULES = _Modules()


def _replace() -> None:
    """Functions that look for optional packages say yes; expert maps, which are read back, are made on the CPU.

    Modules have imported these functions by name, so it is done in every one of them.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm") or module is None:
            continue
        for member, value in list(vars(module).items()):
            optional = member in _INSTALLED or member.startswith("has_flashinfer")
            if not (optional or member == "determine_expert_map"):
                continue
            if callable(value) and not getattr(value, "stand_in", False):
                setattr(module, member, _yes if optional else _on_cpu(value))


def _yes(*_args: Any, **_kwargs: Any) -> bool:
    return True


_yes.stand_in = True  # type: ignore[attr-defined]


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.device("cpu"):
            return function(*args, **kwargs)

    run.stand_in = True  # type: ignore[attr-defined]
    return run


def _config(folder: str, options: dict[str, Any]) -> Any:
    """The engine's configuration; raises _RefusedError when vLLM refuses the launch."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = {"hf_overrides": {"num_hidden_layers": _LAYERS}, **options}
    try:
        return AsyncEngineArgs(
            model=folder, skip_tokenizer_init=True, kv_cache_dtype="fp8", max_model_len=4096, **arguments
        ).create_engine_config()
    except Exception as error:
        raise _RefusedError("config", error) from None


def _layer(config: Any, hashed: bool) -> tuple[Any, str]:
    """The first expert layer as it asks for its method, and its prefix; raises _RefusedError when it never does."""
    construction = importlib.import_module(f"{_WORKER}.construction")
    groups = importlib.import_module(f"{_WORKER}.groups")
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import get_model_architecture

    kind = type(config.quant_config)
    original: Callable[..., Any] = kind.get_quant_method

    def ask(self: Any, layer: Any, prefix: str) -> Any:
        if hasattr(layer, "moe_config"):
            raise _Asked(layer, prefix)
        return original(self, layer, prefix)

    groups.install(config)
    kind.get_quant_method = ask
    try:
        with set_current_vllm_config(config), construction.meta_platform(), torch.device("meta"):
            model, _ = get_model_architecture(config.model_config)
            torch.set_default_dtype(torch.bfloat16)
            _replace()
            block = sys.modules[model.__module__].DeepseekV4MoE
            extra = {}
            if "num_hash_layers" in inspect.signature(block.__init__).parameters:
                extra["num_hash_layers"] = _LAYERS if hashed else 0
            block(config, prefix="model.layers.0.ffn", **extra)
    except _Asked as asked:
        return asked.layer, asked.prefix
    except Exception as error:
        raise _RefusedError("layer", error) from None
    finally:
        kind.get_quant_method = original
    raise RuntimeError(f"{model.__name__}: its expert layer asked for no quantisation method")


def _quantization(folder: str, errors: _Errors) -> dict[str, str | int]:
    """For every value of ``--quantization``: the method that results, or the place of the error."""
    methods = importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
    found: dict[str, str | int] = {}
    for method in methods:
        _device("10.0")
        try:
            config = _config(folder, {"tensor_parallel_size": _GPUS, "quantization": method})
            found[method] = str(config.model_config.quantization)
        except _RefusedError as refused:
            found[method] = errors.place(refused.error)
    return found
