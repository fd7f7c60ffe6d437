"""The checks of one device, in order: arithmetic, allocation, contract, round trip, vLLM's inserts, the kernels.

Standard library and torch only: a child of the probe runs it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

from . import contract, device_caches, insert_ops, kernel, packed, symbols
from .device_caches import Cache

_FLASHMLA_CLASSES: Final = ("DeepseekV4FlashMLAAttention", "DeepseekV4MLAAttention")
_FLASHINFER_CLASSES: Final = ("DeepseekV4FlashInferMLAAttention", "DeepseekV4FlashInferSM120Attention")
_NO_GPU: Final = "the kernel was not run: PyTorch sees no CUDA GPU"
_INSERTED: Final = 8
"""Keys that go through an op of vLLM: on the CPU, Triton's interpreter takes each of them in turn."""


def run_all(request: dict[str, Any], device: str, reporter: Any, outcome: Any) -> None:
    """Every check, each reported as it ends."""
    _Steps(request, device, reporter, outcome).run()


class _Steps:
    def __init__(self, request: dict[str, Any], device: str, reporter: Any, outcome: Any) -> None:
        self._layouts: dict[str, Any] = request["layouts"]
        self._attention: dict[str, Any] = request["attention"]
        self._seed = int(request.get("seed", 0))
        self._detects = bool(request.get("detects_format"))
        self._device = device
        self._reporter = reporter
        self._outcome = outcome
        self._storages: list[Any] = []
        self._caches: dict[str, Cache] = {}
        self._flashmla: kernel.FlashMla | None = None

    def run(self) -> None:
        check = self._reporter.check
        check("storage arithmetic", self._arithmetic)
        if not check("allocation", self._allocate):
            self._reporter.skip(kernel_name(""), "the kernel was not run: the caches could not be allocated")
            return
        for number, cache in enumerate(self._caches.values()):
            if self._for_flashmla(cache):
                check(f"contract: {cache.kind}", lambda cache=cache: self._contract(cache))
            check(f"bytes: {cache.kind}", lambda cache=cache, number=number: self._bytes(cache, number))
        check("neighbours", self._neighbours)
        self._inserts()
        if self._narrowable() is not None:
            check("512-byte view: argument checks", self._narrow_arguments)
        self._kernels()

    # What the caches are.

    def _arithmetic(self) -> tuple[str, dict[str, Any]]:
        refused, figures = device_caches.arithmetic(self._layouts)
        if refused:
            raise self._outcome("failed", refused[0], figures)
        return f"all {len(figures)} views lie inside their storages", figures

    def _allocate(self) -> tuple[str, dict[str, Any]]:
        self._storages, self._caches = device_caches.allocate(self._layouts, self._device)
        total = sum(self._layouts["storages"])
        count = len(self._storages)
        return (
            f"{total:,} bytes in {count} storage{'s' * (count != 1)}, {self._layouts['blocks']} blocks",
            {"bytes": total, "caches": [contract.layout_of(cache.view) for cache in self._caches.values()]},
        )

    def _for_flashmla(self, cache: Cache) -> bool:
        """Main and sliding-window caches of the class that hands them to FlashMLA."""
        kind = cache.kind.removeprefix("draft_")
        return self._attention["class"] in _FLASHMLA_CLASSES and kind.startswith(("main_", "swa"))

    def _contract(self, cache: Cache) -> tuple[str, dict[str, Any]]:
        figures = contract.view_of(cache.view)
        said = contract.cache_refusal(cache.view, sm=self._sm, detects_format=self._detects)
        if said:
            raise self._outcome("failed", f"FlashMLA would say: {said}", figures)
        return "FlashMLA's argument checks accept it", figures

    @property
    def _sm(self) -> int | None:
        stated = self._attention.get("capability")
        # On other GPUs another kernel gets the cache; the architecture is not what is asked here.
        return stated[0] if stated and stated[0] in (9, 10) else None

    def _bytes(self, cache: Cache, number: int) -> tuple[str, dict[str, Any]]:
        if not cache.packed:
            figures = device_caches.plain_bytes(cache, self._seed + number)
            return f"{figures['bytes_compared']:,} bytes of a block written and read back", figures
        figures = device_caches.round_trip(cache, self._storages[cache.layout["storage"]], self._seed + number)
        return (
            f"{figures['states']} states quantised, packed, unpacked, dequantised: errors inside fp8's, RoPE exact; a "
            f"block's {figures['bytes_compared']:,} bytes as a second implementation packs them",
            figures,
        )

    def _neighbours(self) -> tuple[str, dict[str, Any]]:
        said = device_caches.overwritten(self._caches) or device_caches.strangers(self._storages, self._caches)
        if said:
            raise self._outcome("failed", said)
        return "padding, unused blocks and the other layers' bytes are still zero; nothing was overwritten", {}

    # What vLLM writes.

    def _inserts(self) -> None:
        found: list[Any] = []
        if not self._reporter.check("vLLM's insert ops", lambda: self._find_inserts(found), imports=True):
            return
        seen: dict[str, int] = {}
        for op, cache in self._pairs(found):
            seen[cache.kind] = seen.get(cache.kind, 0) + 1
            name = f"insert: {cache.kind}" + (f" ({seen[cache.kind]})" if seen[cache.kind] > 1 else "")
            # Compiling a kernel is not the kernel's time.
            self._reporter.check(name, lambda op=op, cache=cache: self._insert(op, cache), imports=True)
        if seen:
            self._reporter.check("neighbours of the inserts", self._neighbours)

    def _find_inserts(self, found: list[Any]) -> tuple[str, dict[str, Any]]:
        if self._device == "cpu":
            # Read by Triton when it is imported, which nothing here has done yet.
            os.environ.setdefault("TRITON_INTERPRET", "1")
        ops, missing = insert_ops.find_ops(interpret=self._device == "cpu")
        found.extend(ops)
        if not ops:
            why = next(iter(missing.values()), "") if symbols.vllm_root() else "no vllm on the path"
            raise self._outcome("skipped", f"none can be run here: {why}", {"missing": missing})
        how = "in Triton's interpreter" if self._device == "cpu" else "on the GPU"
        names = list(dict.fromkeys(op.name for op in ops))
        return f"{len(names)} run {how}", {"ops": names, "missing": missing}

    def _pairs(self, ops: list[Any]) -> list[tuple[Any, Cache]]:
        """Each op with the cache it is for: compressed keys go to main caches, whole keys to the window's."""
        pairs = []
        for op in ops:
            for cache in self._caches.values():
                fits = cache.packed and op.writes == "packed"
                wanted = "main_c" if op.kind == "compress" else "swa"
                if fits and cache.kind.startswith(wanted):
                    pairs.append((op, cache))
        return pairs

    def _insert(self, op: Any, cache: Cache) -> tuple[str, dict[str, Any]]:
        import torch

        used = cache.slots[-_INSERTED:]
        made = device_caches.keys(len(used), self._seed + 100, self._device)
        if self._device == "cpu":
            # Triton's interpreter loses a carry when it rounds to fp8: keys that fp8 holds exactly need no rounding.
            packed.write_states(cache.view, used, made)
            made = packed.read_states(cache.view, used)
            packed.write_states(cache.view, used, torch.zeros_like(made))
        made = insert_ops.comparable(made)
        done = insert_ops.insert_with_vllm(
            op, cache.view, used, made, ratio=cache.layout["tokens_per_state"], heads=self._attention["padded_heads"]
        )
        if not done.ok:
            raise self._outcome("failed", done.error)
        found = packed.read_states(cache.view, used)
        # The same keys written by the reference, into the same place.
        packed.write_states(cache.view, used, made)
        wanted = packed.read_states(cache.view, used)
        device_caches.keep(cache, used)
        if not torch.equal(found, wanted):
            differ = int((found != wanted).sum())
            raise self._outcome("failed", f"{differ} of {found.numel()} values differ from the reference's")
        return (
            f"{len(used)} keys by {op.name} come back as the reference's do, every value",
            {"op": op.name, "where": op.where, "keys": len(used), "seconds": done.seconds},
        )

    # The kernels.

    def _narrowable(self) -> Cache | None:
        swa = self._caches.get("swa")
        return swa if swa is not None and swa.packed and self._for_flashmla(swa) else None

    def _narrow_arguments(self) -> tuple[str, dict[str, Any]]:
        swa = self._narrowable()
        assert swa is not None
        said = contract.cache_refusal(device_caches.narrow(swa), sm=self._sm, detects_format=self._detects)
        if not said:
            raise self._outcome("failed", "the argument checks accept a view of 512 bytes a state")
        raise self._outcome("refused-as-expected", said)

    def _kernels(self) -> None:
        swa = self._caches.get("swa")
        cls = self._attention["class"]
        if self._device != "cuda":
            self._reporter.skip(kernel_name(""), _NO_GPU)
        elif cls in _FLASHINFER_CLASSES:
            self._flashinfer()
        elif cls not in _FLASHMLA_CLASSES:
            why = f"no kernel is known here for {cls or 'this launch'}"
            self._reporter.skip(kernel_name(""), f"the kernel was not run: {why}")
        elif swa is None or not swa.packed:
            self._reporter.skip(kernel_name(""), "the kernel was not run: there is no packed sliding-window cache")
        else:
            self._flashmla_checks(swa)

    def _flashmla_checks(self, swa: Cache) -> None:
        check = self._reporter.check
        if not check("FlashMLA", self._load, imports=True):
            self._reporter.skip(kernel_name(""), "the kernel was not run: FlashMLA is not there")
            return
        check("keys for the kernel", self._fill)
        extras = [None, *(cache for cache in self._caches.values() if _is_extra(cache))]
        for number, extra in enumerate(extras):
            check(kernel_name(f"swa{f' + {extra.kind}' if extra else ''}"), self._kernel(swa, extra, number))
        check("512-byte view: the kernel", lambda: self._narrow_kernel(swa))
        check("neighbours of the kernel", self._neighbours)

    def _load(self) -> tuple[str, dict[str, Any]]:
        try:
            self._flashmla = kernel.load()
        except ImportError as error:
            raise self._outcome("skipped", str(error)) from None
        return self._flashmla.origin, {}

    def _fill(self) -> tuple[str, dict[str, Any]]:
        kernel.fill(self._caches, self._seed + 1000)
        return "every slot of the packed caches holds a key", {}

    def _kernel(self, swa: Cache, extra: Cache | None, number: int) -> Callable[[], tuple[str, dict[str, Any]]]:
        def work() -> tuple[str, dict[str, Any]]:
            assert self._flashmla is not None
            call = kernel.build(swa, extra, self._attention, self._seed + 2000 + number)
            output, lse = kernel.run(self._flashmla, call)
            figures = kernel.compare(call, output, lse)
            said = (
                f"max error {figures['max_error']:.2e} ({figures['worst_share_of_bound']:.0%} of what that value may "
                f"be off), mean {figures['mean_error']:.2e} (bound {figures['mean_bound']:.2e})"
            )
            if not figures["inside"]:
                raise self._outcome("failed", f"the kernel's numbers are not the reference's: {said}", figures)
            if not figures["lse_agrees"]:
                said += "; its log-sum-exp is not the reference's (vLLM does not use it)"
            return said, figures

        return work

    def _narrow_kernel(self, swa: Cache) -> tuple[str, dict[str, Any]]:
        assert self._flashmla is not None
        call = kernel.build(swa, None, self._attention, self._seed + 3000)
        call.cache = device_caches.narrow(swa)
        try:
            kernel.run(self._flashmla, call)
        except (RuntimeError, ValueError, AssertionError) as error:
            if "CUDA error" in str(error) or "CUDA out of memory" in str(error):
                raise  # it was not refused: it was run, and broke, or could not be
            raise self._outcome("refused-as-expected", " ".join(str(error).split())[:600]) from None
        raise self._outcome("failed", "the kernel took a view of 512 bytes a state: what it reads there is not a state")

    def _flashinfer(self) -> None:
        try:
            flashinfer = importlib.import_module(".flashinfer", __package__)
        except ImportError:
            self._reporter.skip(kernel_name(""), "the kernel was not run: FlashInfer's is not probed")
            return
        flashinfer.run_checks(self._caches, self._attention, self._reporter, self._outcome, self._seed)


def _is_extra(cache: Cache) -> bool:
    return cache.packed and cache.kind in ("main_c4", "main_c128")


def kernel_name(what: str) -> str:
    """The name of a check that compares a kernel's numbers; ``records.KERNEL`` is its beginning."""
    return f"kernel: {what or 'sparse decode'}"
