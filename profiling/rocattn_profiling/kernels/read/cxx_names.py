"""Demangle C++ symbols with LLVM's llvm-cxxfilt or binutils' c++filt, if installed.

The names are for display only: comparisons and JSON use the symbols. Symbols are untrusted, and a short one may expand
to gigabytes, so the demangler's time, memory and output are limited.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence

from rocattn_profiling.kernels.read.disassembly import find_tools

_SYMBOL = re.compile(r"_Z[\w.$]+", re.ASCII)
_TIMEOUT_S = 5.0
_MAX_MEMORY_BYTES, _MAX_OUTPUT_BYTES = 1 << 29, 128 << 20
_LONGEST = 1 << 14  # most characters of a name; Composable Kernel's have thousands


def readable(symbols: Iterable[str]) -> dict[str, str]:
    """Return symbol -> demangled name, without those that no demangler here can read."""
    left = [symbol for symbol in dict.fromkeys(symbols) if _SYMBOL.fullmatch(symbol)]
    names: dict[str, str] = {}
    end = time.monotonic() + _TIMEOUT_S
    for tool in _tools() if left else ():
        names |= _ask(tool, left, end - time.monotonic())  # older tools do not know bfloat16, for example
        left = [symbol for symbol in left if symbol not in names]
        if not left:
            break
    return names


def _tools() -> list[str]:
    other = shutil.which("c++filt")
    return find_tools("llvm-cxxfilt") + ([other] if other else [])


def _ask(tool: str, symbols: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Return the names that a demangler can read; none if it fails."""
    try:
        with (
            tempfile.TemporaryFile() as out,
            subprocess.Popen([tool], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL) as process,
        ):
            try:  # it may still be waiting for input
                resource.prlimit(process.pid, resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES))
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
                process.communicate("".join(f"{symbol}\n" for symbol in symbols).encode(), timeout=timeout_s)
            finally:
                process.kill()
            out.seek(0)
            names = out.read().decode(errors="replace").splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if process.returncode or len(names) != len(symbols):
        return {}
    return {
        symbol: name
        for symbol, name in zip(symbols, names, strict=True)
        if name != symbol and len(name) <= _LONGEST and name.isprintable()
    }
