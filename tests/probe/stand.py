"""FlashMLA's interface, computed in plain PyTorch. Importable without pytest: children of the probe take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsv4check.probe import contract, kernel, reference


class Stand:
    """FlashMLA's interface: checks its arguments as the kernel does, then computes; ``spoil`` may change the result."""

    def __init__(self, spoil: Callable[[Any], Any] = lambda output: output) -> None:
        self.given: dict[str, Any] = {}
        self._spoil = spoil

    def decode(self, **given: Any) -> tuple[Any, Any]:
        self.given = given
        call = contract.Call(
            q=given["q"],
            k_cache=given["k_cache"],
            indices=given["indices"],
            topk_length=given["topk_length"],
            attn_sink=given["attn_sink"],
            extra_k_cache=given["extra_k_cache"],
            extra_indices=given["extra_indices_in_kvcache"],
            extra_topk_length=given["extra_topk_length"],
        )
        if said := contract.refusal(call):
            raise RuntimeError(said)
        output, lse = reference.sparse_decode(
            given["q"],
            given["k_cache"],
            given["indices"],
            given["topk_length"],
            given["extra_k_cache"],
            given["extra_indices_in_kvcache"],
            given["extra_topk_length"],
            given["attn_sink"],
            given["softmax_scale"],
        )
        given["out"].copy_(self._spoil(output).to(torch.bfloat16))
        return given["out"], lse

    def interface(self) -> kernel.FlashMla:
        return kernel.FlashMla(self.decode, lambda: (object(), None), "stand-in")
