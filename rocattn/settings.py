"""Environment variables with a closed set of values: each is obeyed, or refused with what it can be.

Variables that name a compiler, a library or a folder are read where that is looked for, by the same rule.
"""

from __future__ import annotations

import functools
import math
import os

from rocattn.errors import SettingError

USE_FLASH_ATTENTION = "ROCATTN_USE_FLASH_ATTENTION"
GPU_POISON = "ROCATTN_GPU_POISON"
LINE_TABLES = "ROCATTN_LINE_TABLES"
"""With it code objects say their source lines, for profilers; the machine code is the same."""
OFFLINE = "ROCATTN_OFFLINE"
NUM_THREADS = "ROCATTN_NUM_THREADS"
_NUM_THREADS = NUM_THREADS.encode()
CACHE_GIB = "ROCATTN_CACHE_GIB"
HOSTGPU_OPTIMIZE = "ROCATTN_HOSTGPU_OPTIMIZE"
"""The compiler's level for the stand-in GPU's kernels."""
DEFAULT_CACHE_GIB = 4.0
_CHOICES = {
    HOSTGPU_OPTIMIZE: ("2", "1", "0"),
    "ROCATTN_HOSTGPU_ORDER": ("forward", "reverse"),
    "ROCATTN_HOSTGPU_CHECKS": ("all", "none"),
}
_SWITCHES = (USE_FLASH_ATTENTION, GPU_POISON, LINE_TABLES, OFFLINE)
# Where `os.environ` looks up encoded names: 3 us faster, which every call would take.
_NOW: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None
_VALUES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def switch(name: str, *, default: bool = False) -> bool:
    """Return whether a variable is on; the default if it is unset or empty.

    Raises:
        SettingError: When it is neither on nor off.
    """
    text = os.environ.get(name, "").strip().lower()
    if text and text not in _VALUES:
        raise SettingError(f"{name} is {os.environ[name]!r}: set it to 1 or 0, or unset it")
    return _VALUES.get(text, default)


def raw_text(name: bytes) -> bytes | str | None:
    """Return a variable as it is now; None if it is unset."""
    return os.environ.get(name.decode()) if _NOW is None else _NOW.get(name)


def num_threads() -> int:
    """Return ``ROCATTN_NUM_THREADS``; 0 if it is unset or empty.

    Raises:
        SettingError: When it is no number of threads.
    """
    return _threads(text) if (text := raw_text(_NUM_THREADS)) else 0


@functools.lru_cache(maxsize=16)  # every call asks
def _threads(raw: bytes | str) -> int:
    text = os.fsdecode(raw)
    if count := first_number(text):
        return count
    raise SettingError(f"{NUM_THREADS} is {text!r}: set it to a number of threads, 1 or more, or unset it")


@functools.lru_cache(maxsize=16)
def first_number(text: str) -> int:
    """Return the first of numbers with commas between, as ``OMP_NUM_THREADS`` has them; 0 if that is none.

    More than nine digits are no count of threads, and do not fit into the kernels' int.
    """
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def cache_gib() -> float:
    """Return how much each part of the cache may hold in GiB: ``ROCATTN_CACHE_GIB``; infinite for 0.

    Raises:
        SettingError: When it is no size.
    """
    text = os.environ.get(CACHE_GIB, "")
    try:
        number = float(text) if text else DEFAULT_CACHE_GIB
    except ValueError:
        number = math.nan
    if not number >= 0:  # nan too
        raise SettingError(f"{CACHE_GIB} is {text!r}: set it to a number of GiB (0 for no limit), or unset it")
    return number or math.inf


def choice(name: str) -> str:
    """Return which of its values a variable of `_CHOICES` has; the first if it is unset or empty.

    Raises:
        SettingError: When it has another.
    """
    text, values = os.environ.get(name, ""), _CHOICES[name]
    if text and text not in values:
        raise SettingError(f"{name} is {text!r}: set it to {' or '.join(sorted(values))}, or unset it")
    return text or values[0]


@functools.cache
def check() -> None:
    """Look at all of them, once a process if they are right.

    Raises:
        SettingError: For the first one that is wrong.
    """
    for name in _SWITCHES:
        switch(name)
    num_threads()
    cache_gib()
    for name in _CHOICES:
        choice(name)
