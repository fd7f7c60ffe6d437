"""The simulated machine: device, extensions and process groups in place, and vLLM imported on top of them."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..protocol import SimulatedDevice
from . import extensions, groups, simulated_device
from .failures import HarnessLimit

_OPTIONAL = ("flashinfer",)
"""Packages whose absence changes what vLLM does; a failure that names one is not taken for a verdict."""


def start(sm: str) -> frozenset[str]:
    """Simulate the device and import vLLM; returns the optional packages that are missing."""
    if sm not in simulated_device.USUAL:
        raise HarnessLimit(f"compute capability {sm} is not simulated; known: {', '.join(simulated_device.USUAL)}")
    simulated_device.STATE.set(SimulatedDevice(sm=sm))
    absent = frozenset(name for name, there in extensions.present(*_OPTIONAL).items() if not there)
    if "flashinfer" not in absent:
        os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
    extensions.install()
    _answer_for_metadata()
    simulated_device.install_triton()
    import torch

    torch.set_num_threads(1)
    simulated_device.install_torch()
    import vllm  # noqa: F401

    simulated_device.install_vllm()
    groups.start_process_group()
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    if not hasattr(registry, "_run_in_subprocess"):
        raise HarnessLimit("vLLM's model registry no longer has _run_in_subprocess")
    # The registry looks at model classes in a process of its own, where nothing is simulated.
    registry._run_in_subprocess = lambda function: function()
    for name in ("vllm.entrypoints.cli.serve", "vllm.v1.engine.async_llm", "vllm.v1.engine.core"):
        importlib.import_module(name)
    return absent


def _answer_for_metadata() -> None:
    """A tree without ``dist-info`` says its version itself: vLLM's choice of a platform asks the metadata for it."""
    metadata: Any = importlib.metadata
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("vllm")
        file = Path(spec.origin or "").parent / "_version.py" if spec is not None else Path()
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found = re.search(r"__version__ = version = ['\"]([^'\"]+)", text)
        stated = found[1] if found else "0"
        original = metadata.version
        metadata.version = lambda name: stated if name == "vllm" else original(name)


def import_model(architectures: Sequence[str]) -> None:
    """Import what a model's classes need, once, before the first launch is forked.

    Best effort: a module that cannot be imported fails again, and is reported, in the launch that needs it.
    """
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    known = getattr(registry.ModelRegistry, "models", {})
    importlib.import_module("vllm.model_executor.model_loader")
    for architecture in architectures:
        entry: Any = known.get(architecture)
        try:
            if hasattr(entry, "load_model_cls"):
                entry.load_model_cls()
        except Exception as error:
            print(f"not imported ahead: {architecture}: {error}", file=sys.stderr)
