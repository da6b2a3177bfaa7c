"""Find the inputs of a compilation without a compiler (a source and everything it includes), and hash them."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable

_INCLUDE = re.compile(
    rb"(?:^[ \t]*#[ \t]*(?:include(?:_next)?|import|embed)\b|\b__has_(?:include|embed)[ \t]*\()[ \t]*"
    rb'(?:"([^"\n]+)"|<([^>\n]+)>|(.*))',
    re.MULTILINE,
)


def content_key(parts: Iterable[str | bytes]) -> str:
    """Return one hash of several texts, including their boundaries."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in encoded)).hexdigest()


def inputs_of(headers: Path, *sources: Path) -> list[tuple[str, bytes]]:
    """Return sources and every file they could include, by include name, found without a compiler.

    Conditions are not evaluated: a header inside ``#if 0`` also counts, which costs a rebuild at worst. A missing
    file is listed empty, so that adding it later changes the key; the compiler reports it.
    """
    inputs: dict[Path, tuple[str, bytes]] = {}
    spellings: set[tuple[Path | None, str]] = set()  # most headers are included many times: resolve each path once
    waiting = list(sources)
    while waiting:
        path = waiting.pop(0)
        if path in inputs:
            continue
        name = (
            f"include/{path.relative_to(headers)}"
            if path.is_relative_to(headers)
            else os.path.relpath(path, sources[0].parent)
        )
        try:
            data = path.read_bytes()
        except OSError as error:
            if path in sources:
                raise ToolchainError(f"cannot read the kernel source {path}: {error.strerror}") from error
            data = b""
        inputs[path] = name, data
        for quoted, angled, computed in _includes(data):
            if computed:
                line = computed.decode(errors="replace").strip()
                raise ToolchainError(f"{path.name}: cannot follow the include of {line}: name the header literally")
            spelt = (quoted or angled).decode(errors="replace")
            if (spelling := (path.parent if quoted else None, spelt)) in spellings:
                continue
            spellings.add(spelling)
            beside = absolute(path.parent / spelt)
            waiting.append(beside if quoted and beside.is_file() else absolute(headers / spelt))
    return list(inputs.values())


@functools.lru_cache(maxsize=256)
def _includes(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return a text's includes: quoted, in angle brackets, or computed. Cached, as kernels share headers."""
    return _INCLUDE.findall(data.replace(b"\\\n", b""))


def absolute(path: Path | str) -> Path:
    """Return an absolute path without dots, keeping links."""
    return Path(os.path.normpath(Path(path).absolute()))
