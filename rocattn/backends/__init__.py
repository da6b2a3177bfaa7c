"""The backends. Importing this package registers all three: "cpu", "cpu-flash" and "gpu"; each reports if it works."""

from rocattn.backends.cpu import CpuBackend
from rocattn.backends.cpu_flash import CpuFlashBackend
from rocattn.backends.gpu import GpuBackend
from rocattn.registry import BACKENDS

__all__ = ["BACKENDS", "CpuBackend", "CpuFlashBackend", "GpuBackend"]

BACKENDS.register(CpuBackend())
BACKENDS.register(CpuFlashBackend())
BACKENDS.register(GpuBackend())
