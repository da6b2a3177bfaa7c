"""Compressed offload bundles ("CCOB"): versions 1 to 3 of the header, zlib and zstd, never more than a budget unpacked.

The header is described in clang's "Clang Offload Bundler" and in llvm/Object/OffloadBundle.h.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from rocattn.errors import ToolchainError

MAX_UNPACKED_BYTES = 512 << 20
_MAX_RATIO, _FREE_BYTES = 256, 1 << 20  # code of many targets is compressed 5 to 50 times; a bomb 1000 times
_MAGIC = b"CCOB"
_ZLIB, _ZSTD = 0, 1
# After magic, version and method: the whole size (version 1 has none), the unpacked size, a hash.
_HEADERS = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard")


@dataclass(slots=True)
class Budget:
    """How many bytes may still be unpacked from one file."""

    left: int = MAX_UNPACKED_BYTES

    def spend(self, size: int) -> None:
        """Take bytes off.

        Raises:
            ToolchainError: When there are not so many.
        """
        if size > self.left:
            raise ToolchainError(
                f"its compressed bundles unpack to more than {MAX_UNPACKED_BYTES >> 20} MiB: unpack the one that you "
                "want with clang-offload-bundler --unbundle"
            )
        self.left -= size


def unpack(data: memoryview, budget: Budget) -> tuple[int, bytes]:
    """Return how long the compressed bundle at the beginning of the data is, and the bundle in it.

    Raises:
        ToolchainError: When it is damaged, larger than the budget, or compressed in a way that nothing here reads.
    """
    try:
        version, method = struct.unpack_from("<HH", data, len(_MAGIC))
        if version not in _HEADERS:
            raise ToolchainError(f"its compressed bundle is of version {version}; 1 to 3 are known")
        header = _HEADERS[version]
        *whole, size, _ = header.unpack_from(data, len(_MAGIC) + 4)
    except struct.error as error:
        raise ToolchainError("its compressed bundle is cut short in the header") from error
    start = len(_MAGIC) + 4 + header.size
    end = whole[0] if whole else len(data)
    if not start <= end <= len(data):
        raise ToolchainError(f"its compressed bundle is cut short: it ends at byte {end} of {len(data)}")
    if size > _MAX_RATIO * (end - start) + _FREE_BYTES:
        raise ToolchainError(
            f"its compressed bundle says that it unpacks {end - start} bytes to {size}: that is no code"
        )
    budget.spend(size)
    content = bytes(data[start:end])
    if method == _ZLIB:
        unpacked, used = _unzip(content, size)
    elif method == _ZSTD:
        unpacked, used = _unzstd(content, size)
    else:
        raise ToolchainError(f"its compressed bundle says compression {method}; 0 (zlib) and 1 (zstd) are known")
    if len(unpacked) != size:
        raise ToolchainError(f"its compressed bundle does not unpack to the {size} bytes that its header says")
    return (end if whole else start + used), unpacked


def _unzip(data: bytes, size: int) -> tuple[bytes, int]:
    """Return at most one byte more than ``size``, and how many bytes of the data that took."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise ToolchainError(f"its compressed bundle is damaged: {error}") from error
    return unpacked, len(data) - len(unpacker.unused_data)


def _unzstd(data: bytes, size: int) -> tuple[bytes, int]:
    """Return at most one byte more than ``size``, and how many bytes of the data that took.

    Only bundles of version 1 do not say where they end; then it is where the next one's magic stands, as in clang.
    """
    module = zstd_module()
    if module is None:
        raise ToolchainError(
            "its bundle is compressed with zstd, and there is no module for that: pip install zstandard, use Python "
            "3.14, or unpack it with clang-offload-bundler --unbundle"
        )
    following = data.find(_MAGIC)
    try:
        if hasattr(module, "ZstdDecompressionReader"):  # zstandard, whose other calls cannot be bounded
            unpacked = module.ZstdDecompressor().stream_reader(data).read(size + 1)
        else:
            unpacked = module.ZstdDecompressor().decompress(data, size + 1)
    except (module.ZstdError, EOFError, MemoryError) as error:
        raise ToolchainError(f"its compressed bundle is damaged: {error}") from error
    return unpacked, len(data) if following < 0 else following


def zstd_module() -> Any:
    """Return the first module here that reads zstd; None if there is none."""
    for name in _ZSTD_MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
