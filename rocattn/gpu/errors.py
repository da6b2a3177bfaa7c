"""Exception types of the GPU backend; every message names a remedy."""

from __future__ import annotations

from rocattn.errors import RocattnError


class GpuError(RocattnError, RuntimeError):
    """Base of all errors reported by the HIP runtime or a kernel.

    Attributes:
        status: HIP's name of the status ("hipErrorOutOfMemory"); "" if there is none.
    """

    def __init__(self, message: str, *, status: str = "") -> None:
        super().__init__(message)
        self.status = status


class NoRuntimeError(GpuError):
    """Raised when hip-python or the HIP runtime library is missing or broken."""


class NoDeviceError(GpuError):
    """Raised when there is a HIP runtime but no usable device."""


class ArchError(GpuError):
    """Raised for a GPU architecture without kernels."""


class DeviceMemoryError(GpuError):
    """Raised when device (or pinned host) memory runs out.

    Attributes:
        requested_bytes: The requested size.
        free_bytes, total_bytes: The device's memory; -1 if unknown.
    """

    def __init__(self, what: str, requested_bytes: int, free_bytes: int, total_bytes: int) -> None:
        free = f": {_size(free_bytes)} of {_size(total_bytes)} are free" if total_bytes >= 0 else ""
        super().__init__(f"no {what} for {_size(requested_bytes)}{free}")
        self._what = what
        self.requested_bytes, self.free_bytes, self.total_bytes = requested_bytes, free_bytes, total_bytes

    def __reduce__(self) -> tuple[type[DeviceMemoryError], tuple[str, int, int, int]]:
        """Return how to recreate it: pickle would call the class with only the message."""
        return type(self), (self._what, self.requested_bytes, self.free_bytes, self.total_bytes)


class LaunchError(GpuError):
    """Raised when a kernel cannot be launched or fails while it runs.

    Attributes:
        kernel: The kernel's name; empty if an asynchronous failure is detected later.
        report: The findings of the stand-in GPU's checks; empty on a GPU.
    """

    def __init__(self, message: str, kernel: str = "", report: str = "") -> None:
        super().__init__(f"{message}\n{report}" if report else message)
        self.kernel, self.report = kernel, report


class CaptureError(GpuError):
    """Raised for work that cannot be captured in a graph, and for a graph that cannot be launched."""


class ForkError(GpuError):
    """Raised in a process forked from one that had initialized HIP."""


def _size(count: int) -> str:
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
