"""Which GPUs a pod asks for: resources, node selectors, instance types."""

from __future__ import annotations

import re
from typing import Final

import yaml

from dsv4check.launchfiles.records import Stated
from dsv4check.launchfiles.yaml_nodes import Document, get, items, mappings, pairs, text_of

_PRODUCTS: Final = frozenset(
    (
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "gpu.nvidia.com/class",
        "gpu.nvidia.com/model",
        "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
        "amd.com/gpu.product-name",
    )
)
"""Labels whose value names the GPU."""
_MACHINES: Final = frozenset(
    (
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "karpenter.k8s.aws/instance-family",
        "eks.amazonaws.com/instance-family",
        "cloud.google.com/machine-family",
    )
)
"""Labels whose value names the machine."""
_GPU_OF_MACHINE: Final = {
    "p4d": "A100-SXM4-40GB",
    "p4de": "A100-SXM4-80GB",
    "p5": "H100",
    "p5e": "H200",
    "p5en": "H200",
    "p6-b200": "B200",
    "p6-b300": "B300",
    "a3-highgpu-8g": "H100",
    "a3-megagpu-8g": "H100",
    "a3-ultragpu-8g": "H200",
    "a4-highgpu-8g": "B200",
    "a4x-highgpu-4g": "GB200",
    "standard_nd96isr_h100_v5": "H100",
    "standard_nd96isr_h200_v5": "H200",
    "standard_nd128isr_ndr_gb200_v6": "GB200",
}
_SPELLINGS: Final = {"nvidia-h100-mega-80gb": "H100"}
_SHARED: Final = re.compile(r"-SHARED$", re.IGNORECASE)
_SLICE: Final = re.compile(r"-MIG-", re.IGNORECASE)
_COUNTED: Final = frozenset(("nvidia.com/gpu", "amd.com/gpu", "gpu"))
_NUMBER: Final = re.compile(r"[1-9]\d{0,4}")


def gpu_of_pod(document: Document, pod: yaml.Node | None) -> tuple[Stated | None, tuple[str, ...]]:
    """The GPU that a pod's node selector or affinity asks for, and what is to be said about it."""
    for key, value in pairs(get(pod, "nodeSelector")):
        found = _named(document, key.value, value)
        if found is not None:
            return found
    for name in ("affinity", "nodeSelectorTerms"):
        node = get(pod, name)
        for term in () if node is None else mappings(node):
            label = text_of(get(term, "key"))
            values = items(get(term, "values"))
            if label is None or len(values) != 1 or text_of(get(term, "operator")) not in (None, "In"):
                continue
            found = _named(document, label, values[0])
            if found is not None:
                return found
    return None, ()


def _named(document: Document, label: str, node: yaml.Node) -> tuple[Stated | None, tuple[str, ...]] | None:
    value = text_of(node)
    if not value:
        return None
    span = document.span(node)
    if label in _MACHINES:
        machine = value.lower()
        gpu = _GPU_OF_MACHINE.get(machine) or (
            _GPU_OF_MACHINE.get(machine.partition(".")[0]) if re.fullmatch(r"p\d[\w-]*(?:\.\w+)?", machine) else None
        )
        return None if gpu is None else (Stated(gpu, span), ())
    if label not in _PRODUCTS:
        return None
    if _SLICE.search(value):
        return Stated(value, span), (f"{value} is a slice of a GPU (MIG), not a whole one",)
    whole = _SHARED.sub("", value)
    notes = () if whole == value else (f"{value}: the GPU is shared with other pods (time slicing)",)
    return Stated(_SPELLINGS.get(whole, whole), span), notes


def gpus_of_resources(document: Document, resources: yaml.Node | None) -> Stated | None:
    """How many GPUs a container gets; None for slices of GPUs and where it is not said."""
    for kind in ("limits", "requests"):
        for key, value in pairs(get(resources, kind)):
            text = text_of(value)
            if key.value in _COUNTED and text is not None and _NUMBER.fullmatch(text):
                return Stated(text, document.span(value))
    return None
