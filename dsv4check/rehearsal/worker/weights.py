"""Loading by name: vLLM's own loader and ``load_weights``, fed a checkpoint's names, shapes and dtypes on meta tensors.

A tensor counts as used when vLLM copied it, or something it made from it, into a parameter; a parameter counts as
loaded when something was copied into its storage. Both are seen by watching torch's functions, so they do not
depend on what ``load_weights`` says of itself.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..protocol import TensorRecord
from .failures import HarnessLimit, read_failure

_DTYPES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}
"""Safetensors' names of dtypes, and torch's."""
MOST_REFUSED = 12
"""Kinds of refused tensors that are looked for after the first."""
ALL_REFUSED = 1000
"""Where every tensor is to be traced: each kind costs one more load."""
_EXPERT = re.compile(r"^(.*\.experts\.)(\d+)(\..+)$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_AT_THE_END = "weights missing from checkpoint"
"""What MTP's loader says after the last tensor, of a layer that got none."""
_REARRANGES = ("finalize_mega_moe_weights", "finalize_weights")
_COPIES = ("copy_", "__setitem__", "set_")


class LoadRefused(Exception):
    """vLLM raised while it loaded; ``detail`` says what else it would refuse."""

    def __init__(self, error: BaseException, detail: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.detail = detail


@dataclass(frozen=True)
class Loaded:
    """What became of a checkpoint in one model."""

    detail: dict[str, Any]
    """Counts, parameters that got nothing, tensors that were refused."""
    used: frozenset[str]
    """Names of the tensors that reached a parameter."""
    traced: dict[str, Any]
    """``parameters``: name -> [dtype, shape]; ``loaded``: rows of tensor, experts, the parameters it reached (see
    :func:`trace_rows`); ``whole``: False when vLLM stopped at a tensor that could not be told, with others left."""
    error: BaseException | None = None
    """What vLLM raised first."""


@dataclass(frozen=True)
class Built:
    """A model that was built, with what its weights would be loaded by."""

    loader: Any
    model: Any
    model_config: Any


def pattern_of(name: str) -> str:
    """A tensor's name with ``{n}`` for its numbers."""
    return _NUMBER.sub("{n}", name)


def load(
    built: Built, records: Sequence[TensorRecord], *, shared: frozenset[int] = frozenset(), most: int = MOST_REFUSED
) -> Loaded:
    """Feed the records to the model; after a tensor that vLLM refuses, once more without those like it.

    ``shared`` holds ids of parameters that belong to another model (a draft shares the target's embedding); ``most`` is
    how many kinds of refused tensors are looked for.
    """
    feed = _Feed(records)
    watch = _watch(built.model, feed)
    first: BaseException | None = None
    refused: dict[str, dict[str, str]] = {}
    whole = True
    while True:
        feed.start(frozenset(refused))
        try:
            with watch:
                _run_loader(built, feed)
        except Exception as error:
            if not read_failure(error).verdict:
                raise
            first = first or error
            pattern = pattern_of(feed.current) if feed.current else ""
            # A model that collects all tensors first stops at one that cannot be told; a check at the end has seen all.
            whole = not pattern and _AT_THE_END in str(error)
            if not pattern or pattern in refused or len(refused) >= most:
                break
            read = read_failure(error)
            whole = True
            refused[pattern] = {"tensor": feed.current, "exception": read.exception, "message": read.message}
            continue
        break
    own = {
        name for name, parameter in built.model.named_parameters() if id(parameter) not in shared and parameter.numel()
    }
    detail = {
        "model": f"{type(built.model).__module__}.{type(built.model).__name__}",
        "parameters": len(own),
        "loaded": len(own & watch.loaded),
        "missing": counted(sorted(own - watch.loaded)),
        "refused": list(refused.values()),
    }
    traced = {
        "parameters": {
            name: [str(parameter.dtype).removeprefix("torch."), list(parameter.shape)]
            for name, parameter in built.model.named_parameters()
            if name in own
        },
        "loaded": trace_rows(watch.targets),
        "whole": whole,
    }
    return Loaded(detail, frozenset(watch.targets), traced, first)


def trace_rows(targets: Mapping[str, Collection[str]]) -> list[list[Any]]:
    """[tensor, numbers of experts, parameters]; experts of a layer that reach the same are one row, with ``{e}``."""
    rows: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for source, reached in targets.items():
        match = _EXPERT.match(source)
        name = source if match is None else f"{match[1]}{{e}}{match[3]}"
        numbers = rows.setdefault((name, tuple(sorted(reached))), [])
        if match is not None:
            numbers.append(int(match[2]))
    return [[name, sorted(numbers), list(reached)] for (name, reached), numbers in rows.items()]


def unused(records: Sequence[TensorRecord], used: frozenset[str]) -> dict[str, int]:
    """Patterns of which no tensor reached a parameter of any model, and how many tensors they are.

    Of the experts a rank has its own part only, so a pattern counts as a whole.
    """
    seen = {pattern_of(name) for name in used}
    return counted([name for name, _dtype, shape in records if shape is not None and pattern_of(name) not in seen])


def reads_checkpoint(loader: Any) -> bool:
    """True for loaders that read safetensors by name; others (``dummy``) never open the checkpoint."""
    default = importlib.import_module("vllm.model_executor.model_loader.default_loader").DefaultModelLoader
    return isinstance(loader, default)


def _run_loader(built: Built, feed: _Feed) -> None:
    import torch

    loader = built.loader
    if not hasattr(type(loader), "get_all_weights"):
        raise HarnessLimit("vLLM's default loader no longer has get_all_weights")
    for module in built.model.modules():
        # MegaMoE rearranges its weights at the end of load_weights, on the GPU: that is no part of loading by name.
        for name in _REARRANGES:
            if hasattr(type(module), name):
                setattr(module, name, lambda *_args, **_kwargs: None)
    loader.get_all_weights = lambda *_args, **_kwargs: iter(feed)
    loader.counter_before_loading_weights = 0.0
    with torch.device("meta"):
        loader.load_weights(built.model, built.model_config)


class _Feed:
    """The checkpoint's tensors in order, without those that were refused before."""

    def __init__(self, records: Sequence[TensorRecord]) -> None:
        self._records = records
        self._left_out: frozenset[str] = frozenset()
        self.current = ""
        """The tensor handed out last; empty before the first and after the last."""
        self.names: dict[int, str] = {}
        """id of a tensor -> name of the checkpoint's tensor it comes from."""
        self.alive: list[Any] = []
        """Every tensor in ``names``, so that ids stay theirs."""

    def start(self, left_out: frozenset[str]) -> None:
        """Begin again, without tensors of these patterns."""
        self._left_out = left_out
        self.current = ""
        self.names.clear()
        self.alive.clear()

    def note(self, tensor: Any, name: str) -> None:
        """Remember where a tensor comes from."""
        self.names[id(tensor)] = name
        self.alive.append(tensor)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        import torch

        for name, dtype, shape in self._records:
            if shape is None or pattern_of(name) in self._left_out:
                continue
            kind = getattr(torch, _DTYPES.get(dtype, ""), None)
            if kind is None:
                raise HarnessLimit(f"the checkpoint's dtype {dtype} of {name} is unknown here")
            tensor = torch.empty(shape, dtype=kind, device="meta")
            self.current = name
            self.note(tensor, name)
            yield name, tensor
        self.current = ""


def _watch(model: Any, feed: _Feed) -> Any:
    """A context in which copies of the feed's tensors into the model's parameters are seen."""
    import torch
    from torch.overrides import TorchFunctionMode

    parameters = {parameter.untyped_storage()._cdata: name for name, parameter in model.named_parameters()}

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.targets: dict[str, set[str]] = {}
            self.loaded: set[str] = set()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not feed.names:
                return result
            source = next((feed.names[id(item)] for item in _tensors(args) if id(item) in feed.names), "")
            if not source:
                return result
            if getattr(func, "__name__", "") in _COPIES:
                # Through the mode the storage would be asked of torch again, and again.
                with torch._C.DisableTorchFunction():
                    target = parameters.get(args[0].untyped_storage()._cdata)
                targets = self.targets.setdefault(source, set())
                if target is not None:
                    self.loaded.add(target)
                    targets.add(target)
            else:
                for made in _tensors(result if isinstance(result, (list, tuple)) else (result,)):
                    feed.note(made, source)
            return result

    def _tensors(items: Any) -> Iterator[Any]:
        for item in items:
            if isinstance(item, torch.Tensor):
                yield item
            elif isinstance(item, (list, tuple)):
                yield from _tensors(item)

    return Watch()


def counted(names: Sequence[str]) -> dict[str, int]:
    """How many names there are of each pattern."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = pattern_of(name)
        counts[pattern] = counts.get(pattern, 0) + 1
    return counts
