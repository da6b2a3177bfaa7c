"""C++ symbols as sources have them, by LLVM's llvm-cxxfilt or binutils' c++filt, where one is here.

They are for people: what is compared and what is written as JSON goes by the symbol. The symbols are anybody's, and a
short one may unfold to gigabytes, so the program that unfolds them has little time, memory and room.
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
_LONGEST = 1 << 14  # characters of a name; Composable Kernel's have thousands


def readable(symbols: Iterable[str]) -> dict[str, str]:
    """Return the names of C++ symbols; those that no program here can read are left out."""
    left = [symbol for symbol in dict.fromkeys(symbols) if _SYMBOL.fullmatch(symbol)]
    names: dict[str, str] = {}
    end = time.monotonic() + _TIMEOUT_S
    for tool in _tools() if left else ():
        names |= _ask(tool, left, end - time.monotonic())  # an older one does not know bfloat16, say
        left = [symbol for symbol in left if symbol not in names]
        if not left:
            break
    return names


def _tools() -> list[str]:
    other = shutil.which("c++filt")
    return find_tools("llvm-cxxfilt") + ([other] if other else [])


def _ask(tool: str, symbols: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Return the names that a program knows; none if it fails."""
    try:
        with (
            tempfile.TemporaryFile() as out,
            subprocess.Popen([tool], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL) as process,
        ):
            try:  # it waits for its input
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
