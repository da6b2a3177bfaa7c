"""Environment variables with a fixed set of values: invalid ones are rejected with a list of valid values.

Variables that name a compiler, a library or a folder are read where these are located, by the same rule.
"""

from __future__ import annotations

import functools
import math
import os

from rocattn.errors import SettingError

USE_FLASH_ATTENTION = "ROCATTN_USE_FLASH_ATTENTION"
GPU_POISON = "ROCATTN_GPU_POISON"
LINE_TABLES = "ROCATTN_LINE_TABLES"
"""Adds source lines to code objects for profilers, without changing the machine code."""
OFFLINE = "ROCATTN_OFFLINE"
NUM_THREADS = "ROCATTN_NUM_THREADS"
_NUM_THREADS = NUM_THREADS.encode()
CACHE_GIB = "ROCATTN_CACHE_GIB"
HOSTGPU_OPTIMIZE = "ROCATTN_HOSTGPU_OPTIMIZE"
"""The compiler's optimization level for the stand-in GPU's kernels."""
DEFAULT_CACHE_GIB = 4.0
_CHOICES = {
    HOSTGPU_OPTIMIZE: ("2", "1", "0"),
    "ROCATTN_HOSTGPU_ORDER": ("forward", "reverse"),
    "ROCATTN_HOSTGPU_CHECKS": ("all", "none"),
}
_SWITCHES = (USE_FLASH_ATTENTION, GPU_POISON, LINE_TABLES, OFFLINE)
# The mapping in which `os.environ` looks up encoded names: saves 3 us per call.
_NOW: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None
_VALUES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def switch(name: str, *, default: bool = False) -> bool:
    """Return whether a variable is on; the default if it is unset or empty.

    Raises:
        SettingError: When its value is neither on nor off.
    """
    text = os.environ.get(name, "").strip().lower()
    if text and text not in _VALUES:
        raise SettingError(f"{name} is {os.environ[name]!r}: set it to 1 or 0, or unset it")
    return _VALUES.get(text, default)


def raw_text(name: bytes) -> bytes | str | None:
    """Return a variable's current value; None if it is unset."""
    return os.environ.get(name.decode()) if _NOW is None else _NOW.get(name)


def num_threads() -> int:
    """Return ``ROCATTN_NUM_THREADS``; 0 if it is unset or empty.

    Raises:
        SettingError: When it is not a valid number of threads.
    """
    return _threads(text) if (text := raw_text(_NUM_THREADS)) else 0


@functools.lru_cache(maxsize=16)  # read on every call
def _threads(raw: bytes | str) -> int:
    text = os.fsdecode(raw)
    if count := first_number(text):
        return count
    raise SettingError(f"{NUM_THREADS} is {text!r}: set it to a number of threads, 1 or more, or unset it")


@functools.lru_cache(maxsize=16)
def first_number(text: str) -> int:
    """Return the first of comma-separated numbers, as in ``OMP_NUM_THREADS``; 0 if it is not a number.

    More than nine digits are not a thread count, and do not fit in the kernels' int.
    """
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def cache_gib() -> float:
    """Return the limit of each part of the cache in GiB: ``ROCATTN_CACHE_GIB``; infinite for 0.

    Raises:
        SettingError: When it is not a size.
    """
    text = os.environ.get(CACHE_GIB, "")
    try:
        number = float(text) if text else DEFAULT_CACHE_GIB
    except ValueError:
        number = math.nan
    if not number >= 0:  # also catches nan
        raise SettingError(f"{CACHE_GIB} is {text!r}: set it to a number of GiB (0 for no limit), or unset it")
    return number or math.inf


def choice(name: str) -> str:
    """Return the value of a variable in `_CHOICES`; the first choice if it is unset or empty.

    Raises:
        SettingError: When it has any other value.
    """
    text, values = os.environ.get(name, ""), _CHOICES[name]
    if text and text not in values:
        raise SettingError(f"{name} is {text!r}: set it to {' or '.join(sorted(values))}, or unset it")
    return text or values[0]


@functools.cache
def check() -> None:
    """Check all variables, once per process if they are valid.

    Raises:
        SettingError: For the first invalid one.
    """
    for name in _SWITCHES:
        switch(name)
    num_threads()
    cache_gib()
    for name in _CHOICES:
        choice(name)
