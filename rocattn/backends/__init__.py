"""The backends; importing this package registers those that every machine has: "cpu" and "cpu-flash"."""

from rocattn.backends.cpu import CpuBackend
from rocattn.backends.cpu_flash import CpuFlashBackend
from rocattn.registry import BACKENDS

__all__ = ["BACKENDS", "CpuBackend", "CpuFlashBackend"]

BACKENDS.register(CpuBackend())
BACKENDS.register(CpuFlashBackend())
