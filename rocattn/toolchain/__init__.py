"""Compilers and their products: kernels for a GPU target or for this CPU, cached by content."""

from rocattn.toolchain.compilers import (
    Compiler,
    choose_compiler,
    choose_host_compiler,
    compiler_environment,
    find_compilers,
)
from rocattn.toolchain.cpu_library import choose_cpu_library
from rocattn.toolchain.hip import CodeObject, compile_hip
from rocattn.toolchain.host import compile_host, host_isa

__all__ = [
    "CodeObject",
    "Compiler",
    "choose_compiler",
    "choose_cpu_library",
    "choose_host_compiler",
    "compile_hip",
    "compile_host",
    "compiler_environment",
    "find_compilers",
    "host_isa",
]
