"""Building the target and the draft model: vLLM's own classes, all layers, on the meta device, without weights."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .failures import HarnessLimit, RepeatedCheck
from .weights import Built

_BUILT: list[Built] = []
"""Models of this process in the order in which they were built."""


@contextlib.contextmanager
def meta_platform() -> Iterator[None]:
    """vLLM's platform names ``meta`` as its device, so that modules allocate nothing."""
    import torch
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    device, dtype = platform.device_type, torch.get_default_dtype()
    platform.device_type = "meta"
    try:
        yield
    finally:
        platform.device_type = device
        torch.set_default_dtype(dtype)


def build_target(config: Any) -> Built:
    """The target model of a VllmConfig. Raises what its constructors raise.

    Everything must run under ``set_current_vllm_config`` and :func:`meta_platform`.
    """
    importlib.import_module("vllm.model_executor.model_loader")
    from vllm.model_executor.model_loader.utils import get_model_architecture

    _patch(config)
    get_model_architecture(config.model_config)  # imports the model's modules
    _patch(config)
    _get_model(vllm_config=config)
    return _BUILT[-1]


def describe_target(model: Any) -> dict[str, Any]:
    """Class names of the model, its attention layers and its expert kernels."""
    attention: dict[str, int] = {}
    experts: set[str] = set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if hasattr(module, "get_attn_backend") and hasattr(module, "get_kv_cache_spec"):
            attention[kind] = attention.get(kind, 0) + 1
        if name.endswith("experts") and hasattr(module, "quant_method"):
            method = module.quant_method
            chosen = next(
                (getattr(method, key) for key in _MOE_CHOICES if getattr(method, key, None) is not None), None
            )
            experts.add(f"{type(method).__name__}:{getattr(chosen, 'name', chosen)}")
    return {
        "model_class": f"{type(model).__module__}.{type(model).__name__}",
        "cache_layers": attention,
        "experts": sorted(experts),
        "parameter_bytes": held_bytes(model),
        "buffer_bytes": buffer_bytes(model),
    }


_MOE_CHOICES = ("mxfp4_backend", "nvfp4_backend", "fp8_backend")


_IN_HOST_MEMORY: dict[int, Any] = {}
"""Tensors that would lie in pinned host memory, by their storage."""


def held_bytes(model: Any) -> int:
    """Bytes of this rank's parameters on the GPU, before any processing after loading."""
    return sum(
        parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
        if parameter.untyped_storage()._cdata not in _IN_HOST_MEMORY
    )


def buffer_bytes(model: Any) -> int:
    """Bytes of this rank's buffers and other tensors that its modules keep, each storage once (tables of RoPE, ...)."""
    import torch

    held: dict[int, int] = {}
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    for module in model.modules():
        for tensor in (*module._buffers.values(), *vars(module).values()):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in parameters and storage._cdata not in _IN_HOST_MEMORY:
                held[storage._cdata] = storage.nbytes()
    return sum(held.values())


def check_lora(config: Any, model: Any) -> None:
    """What the runner says when LoRA is asked of a model class that has none (``LoRAModelRunnerMixin``)."""
    from vllm.model_executor.models.interfaces import supports_lora

    if config.lora_config is not None and not supports_lora(model):
        message = f"{type(model).__name__} does not support LoRA yet."
        raise RepeatedCheck(message, "v1/worker/lora_model_runner_mixin.py:load_lora_model")


def build_draft(config: Any, target: Any, v2_runner: bool) -> tuple[dict[str, Any], Built | None]:
    """Set the drafter up the way the runner does and build its model: a description, and the model if it has one."""
    speculative = config.speculative_config
    if speculative is None:
        return {}, None
    before = len(_BUILT)
    described = _v2_draft(config, target) if v2_runner else _v1_draft(config, speculative)
    return described, _BUILT[-1] if len(_BUILT) > before else None


def _v2_draft(config: Any, target: Any) -> dict[str, Any]:
    import torch

    module = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
    make = getattr(module, "init_speculator", None)
    if make is None:
        raise HarnessLimit("vllm.v1.worker.gpu.spec_decode has no init_speculator any more")
    extra = {"req_states": None} if "req_states" in inspect.signature(make).parameters else {}
    speculator = make(config, torch.device("meta"), **extra)
    described = {"drafter": type(speculator).__name__}
    _patch(config)
    if hasattr(speculator, "load_model"):
        speculator.load_model(target)
        described["draft_class"] = _path(speculator.model)
    return described


_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "custom_class")
_PROPOSERS = {
    "medusa": ("medusa", "MedusaProposer"),
    "extract_hidden_states": ("extract_hidden_states", "ExtractHiddenStatesProposer"),
    "draft_model": ("draft_model", "DraftModelProposer"),
    "dflash": ("dflash", "DFlashProposer"),
}


def check_v1_drafter(config: Any) -> None:
    """What the V1 runner's drafter asks of the draft's config before any model is built (its constructor)."""
    speculative = config.speculative_config
    if speculative is None or speculative.method in _WITHOUT_MODEL or not speculative.parallel_drafting:
        return
    proposer = _v1_proposer(config, speculative)
    proposer.pass_hidden_states_to_model = False  # the tensors for that are not needed
    if hasattr(proposer, "_init_parallel_drafting_params"):
        proposer._init_parallel_drafting_params()


def _v1_draft(config: Any, speculative: Any) -> dict[str, Any]:
    """The V1 runner's drafter and its model."""
    if speculative.method in _WITHOUT_MODEL:
        return {"drafter": speculative.method}
    proposer = _v1_proposer(config, speculative)
    _patch(config)
    if hasattr(proposer, "_get_model"):
        model = proposer._get_model()
    else:
        model = _get_model(vllm_config=config, model_config=speculative.draft_model_config)
    return {"drafter": type(proposer).__name__, "draft_class": _path(model)}


def _v1_proposer(config: Any, speculative: Any) -> Any:
    """The V1 runner's choice of proposer (``GPUModelRunner.__init__``), without its constructor."""
    import torch

    method = speculative.method
    if method in _PROPOSERS:
        module, name = _PROPOSERS[method]
    elif hasattr(speculative, "use_eagle") and speculative.use_eagle():
        module, name = "eagle", "EagleProposer"
    else:
        raise HarnessLimit(f"the V1 runner's drafter for method {method!r} is not rehearsed")
    proposer_class = getattr(importlib.import_module(f"vllm.v1.spec_decode.{module}"), name)
    proposer = object.__new__(proposer_class)
    proposer.vllm_config = config
    proposer.speculative_config = speculative
    proposer.draft_model_config = speculative.draft_model_config
    proposer.device = torch.device("meta")
    proposer.method = method
    return proposer


def _path(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


def _get_model(
    *, vllm_config: Any, model_config: Any = None, prefix: str = "", load_config: Any = None, **_ignored: Any
) -> Any:
    """vLLM's ``get_model`` without weights: the loader is chosen (it has checks of its own), the modules are built."""
    import torch
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    loader = get_model_loader(load_config or vllm_config.load_config)
    model_config = model_config or vllm_config.model_config
    with _quick_attributes(), _no_pinned_memory(), set_default_torch_dtype(model_config.dtype), torch.device("meta"):
        model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
    _BUILT.append(Built(loader, model, model_config))
    return model


@contextlib.contextmanager
def _no_pinned_memory() -> Iterator[None]:
    """Pinned host memory (V4.1 may keep its n-gram tables there) is as meta as that of the device."""
    import torch
    from torch.utils._device import _device_constructors

    # torch remembers the functions that `torch.device("meta")` steers when it is first asked: before they are replaced.
    _device_constructors()
    original = torch.empty

    def empty(*sizes: Any, **options: Any) -> Any:
        if not options.pop("pin_memory", False):
            return original(*sizes, **options)
        tensor = original(*sizes, **{**options, "device": "meta"})
        _IN_HOST_MEMORY[tensor.untyped_storage()._cdata] = tensor
        return tensor

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = original


@contextlib.contextmanager
def _quick_attributes() -> Iterator[None]:
    """Plain values reach a module's ``__dict__`` at once; torch first asks of each whether it is a parameter.

    What torch does with the name of a parameter, a buffer or a child stays with torch.
    """
    import torch

    module: Any = torch.nn.Module
    original = module.__setattr__
    plain = frozenset({bool, int, float, str, type(None), tuple, list, dict, set, torch.dtype, types.FunctionType})

    def assign(self: Any, name: str, value: Any) -> None:
        if type(value) in plain:
            members = self.__dict__
            try:
                known = name in members["_parameters"] or name in members["_buffers"] or name in members["_modules"]
            except KeyError:  # before Module.__init__: torch has an error for some of these
                known = True
            if not known:
                members[name] = value
                return
        original(self, name, value)

    module.__setattr__ = assign
    try:
        yield
    finally:
        module.__setattr__ = original


def _yes(*_args: Any, **_kwargs: Any) -> bool:
    return True


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function whose tensors are read back (expert maps): on the meta device they have no values."""

    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.device("cpu"):
            return function(*args, **kwargs)

    return run


def _patch(config: Any) -> None:
    """Stand-ins for functions that modules have imported by name. Called again after modules were imported."""
    replacements: dict[str, Callable[[Any], Any]] = {
        # Book-keeping for weight updates at run time, a quarter of the time of building a model.
        "record_metadata_for_reloading": lambda _original: _yes,
        "has_deep_gemm": lambda _original: _yes,
        "determine_expert_map": _on_cpu,
        # V4.1 hashes n-grams of compressed token ids; how many there are follows from the real tokenizer.
        "build_compressed_token_map": lambda _original: (
            lambda tokenizer: (
                [0] * len(tokenizer),
                getattr(config.model_config.hf_text_config, "engram_compressed_vocab_size", 0),
            )
        ),
        "get_model": lambda original: (
            _get_model
            if getattr(original, "__module__", "").startswith("vllm.model_executor.model_loader")
            else original
        ),
    }
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm") or module is None:
            continue
        members = vars(module)
        for target, make in replacements.items():
            original = members.get(target)
            if callable(original) and not getattr(original, "stand_in", False):
                stand_in = make(original)
                if stand_in is not original:
                    stand_in.stand_in = True
                    setattr(module, target, stand_in)
