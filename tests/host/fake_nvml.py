"""A driver that answers as ``pynvml`` does: the functions that are used, over GPUs that a test describes."""

# The names are those of pynvml.
# ruff: noqa: N802

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    words = "Unknown Error"

    def __str__(self) -> str:
        return self.words


class NotSupportedError(NVMLError):
    words = "Not Supported"


class NoPermissionError(NVMLError):
    words = "Insufficient Permissions"


class LibraryNotFoundError(NVMLError):
    words = "NVML Shared Library Not Found"


class DriverNotLoadedError(NVMLError):
    words = "Driver Not Loaded"


def gpu(
    name: str = "NVIDIA H200", sm: tuple[int, int] = (9, 0), mib: int | None = 143771, **rest: Any
) -> dict[str, Any]:
    return {"name": name, "sm": sm, "mib": mib, **rest}


class FakeNvml:
    """``gpus`` by ``gpu()``; ``init`` is raised by nvmlInit; ``nvlink`` holds the connected pairs (None: not asked)."""

    NVMLError = NVMLError

    def __init__(
        self,
        gpus: list[dict[str, Any]] | None = None,
        *,
        init: Exception | None = None,
        count: int | Exception | None = None,
        driver: str | bytes = "580.95.05",
        cuda: int | None = 13000,
        nvlink: set[tuple[int, int]] | str | None = "all",
    ) -> None:
        self.gpus = gpus or []
        self.init = init
        self.count = len(self.gpus) if count is None else count
        self.driver = driver
        self.cuda = cuda
        self.nvlink = nvlink
        self.open = 0

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise self.init
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def _of(self, handle: int, key: str, absent: Any = NotSupportedError) -> Any:
        assert self.open == 1, "NVML asked outside a session"
        value = self.gpus[handle].get(key, absent)
        if isinstance(value, type) and issubclass(value, Exception):
            raise value
        return value

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        if self.cuda is None:
            raise LibraryNotFoundError
        return self.cuda

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.nvmlSystemGetCudaDriverVersion_v2()

    def nvmlDeviceGetCount(self) -> int:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._of(index, "handle", 0)
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._of(handle, "name")

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self._of(handle, "uuid", f"GPU-{handle:08x}-1111-2222-3333-444444444444")

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self._of(handle, "sm")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        total = self._of(handle, "mib")
        if total is None:
            raise NotSupportedError
        used = self.gpus[handle].get("used_mib", 600)
        return SimpleNamespace(total=total * MIB, used=used * MIB, free=(total - used) * MIB)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return self._of(handle, "mig", [0, 0])

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return self._of(handle, "mode", 0)

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return self._of(handle, "rows", (0, 0, 0, 0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[int]:
        return self._of(handle, "processes", [])

    def nvmlDeviceGetP2PStatus(self, left: int, right: int, what: int) -> int:
        assert what == 2
        if self.nvlink is None:
            raise NotSupportedError
        return 0 if self.nvlink == "all" or (left, right) in self.nvlink else 3
