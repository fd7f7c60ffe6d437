"""FlashInfer's sparse MLA on the probe's caches, against a reference in plain PyTorch.

Standard library and torch only: a child of the probe runs it.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from .flashinfer import BOUNDS, PACKED_BYTES, WINDOW, Inputs, padded, plan, run
from .plain import HEAD, plain_read, plain_write, sparse_decode

_TOKENS: Final = 4


def _packed() -> Any:
    return importlib.import_module(".packed", __package__)


def expected(inputs: Inputs, heads: int) -> Any:
    """What the call must come to: (tokens, heads, 512) in float64, from the caches' bytes in plain PyTorch."""
    import torch

    q, sink, _ = padded(inputs, heads)
    read = _packed().read_states if inputs.swa.shape[-1] == PACKED_BYTES else plain_read
    if inputs.swa.dtype == torch.float8_e4m3fn:
        q = q.to(torch.float8_e4m3fn)
    parts = [(inputs.swa, inputs.swa_indices, inputs.swa_lengths)]
    if inputs.compressed is not None:
        parts.append((inputs.compressed, inputs.compressed_indices, inputs.compressed_lengths))
    return sparse_decode(q, parts, sink, HEAD**-0.5, read)


def relative_error(out: Any, wanted: Any) -> float:
    """Root of the squared error over that of the values; infinite when a value is no number."""
    error = (out.double() - wanted).norm() / wanted.norm()
    return float(error) if bool(error.isfinite()) else float("inf")


def build(swa: Any, extra: Any, attention: dict[str, Any], seed: int) -> Inputs:
    """A decode step over the probe's caches (objects with ``view`` and ``slots``), keys in the slots it lists."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    device, local = swa.view.device, int(attention["local_heads"])
    q = torch.randn(_TOKENS, local, HEAD, generator=generator) * 2
    sink = torch.randn(local, generator=generator)
    window = _filled(swa, WINDOW, (WINDOW, 100, 17, 1), generator)
    more: tuple[Any, ...] = ()
    if extra is not None:
        topk = int(attention.get("topk") or WINDOW) if "c4" in extra.kind else WINDOW
        more = (extra.view, *_filled(extra, -(-topk // WINDOW) * WINDOW, (topk, topk // 2, 3, 1), generator))
    return Inputs(q.to(torch.bfloat16).to(device), sink.to(device), swa.view, *window, *more)


def _filled(cache: Any, width: int, lengths: tuple[int, ...], generator: Any) -> tuple[Any, Any]:
    import torch

    slots = cache.slots.cpu()
    keys = torch.randn(len(slots), HEAD, generator=generator).to(torch.bfloat16).to(cache.view.device)
    write = _packed().write_states if cache.view.shape[-1] == PACKED_BYTES else plain_write
    write(cache.view, cache.slots, keys)
    indices = torch.full((_TOKENS, width), -1, dtype=torch.int32)
    counts = [min(length, len(slots)) for length in lengths]
    for token, count in enumerate(counts):
        indices[token, :count] = slots[torch.randperm(len(slots), generator=generator)[:count]].to(torch.int32)
    return indices.to(cache.view.device), torch.tensor(counts, dtype=torch.int32, device=cache.view.device)


def run_checks(caches: dict[str, Any], attention: dict[str, Any], reporter: Any, outcome: Any, seed: int) -> None:
    """The probe's checks of FlashInfer: the window alone, and with each compressed cache. ``outcome`` ends a check."""
    import torch

    swa = caches.get("swa")
    if swa is None:
        reporter.skip("kernel: FlashInfer", "the kernel was not run: there is no sliding-window cache")
        return
    capability = torch.cuda.get_device_capability() if swa.view.is_cuda else (0, 0)
    heads = int(attention["padded_heads"])

    def check(extra: Any, number: int) -> tuple[str, dict[str, Any]]:
        inputs = build(swa, extra, attention, seed + number)
        planned = plan(inputs, heads, capability)
        if isinstance(planned, str):
            raise outcome("skipped", f"the kernel was not run: {planned}")
        done = run(planned)
        if done.status != "ran":
            raise outcome("failed", f"{planned.name} {done.status}: {done.message}")
        error, bound = relative_error(done.out, expected(inputs, heads)), BOUNDS[planned.arithmetic]
        figures = {"relative_error": error, "bound": bound, "seconds": done.seconds, "function": planned.name}
        said = f"relative error {error:.2e} (bound {bound:.0e}) by {planned.name}"
        if error > bound:
            raise outcome("failed", f"the kernel's numbers are not the reference's: {said}", figures)
        return said, figures

    extras = [None, *(cache for kind, cache in caches.items() if kind in ("main_c4", "main_c128"))]
    for number, extra in enumerate(extras):
        name = f"kernel: FlashInfer, swa{f' + {extra.kind}' if extra is not None else ''}"
        # The first call may compile: its time counts as that of importing.
        reporter.check(name, lambda extra=extra, number=number: check(extra, number), imports=True)
