"""The inputs of a compilation: a source and everything it includes, found without a compiler, and their hash."""

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
    """Return one hash of several texts; where one ends and the next begins counts."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in encoded)).hexdigest()


def inputs_of(headers: Path, *sources: Path) -> list[tuple[str, bytes]]:
    """Return sources and every file they could include, by the name it is included by, as found without a compiler.

    Conditions are not evaluated: a header inside ``#if 0`` counts too, which costs a rebuild at worst. A name that
    is found nowhere is listed empty, so that adding the file later changes the key; the compiler reports it.
    """
    inputs: dict[Path, tuple[str, bytes]] = {}
    spellings: set[tuple[Path | None, str]] = set()  # most headers are included by many: a path is made of each once
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
    """Return what a text includes: quoted, in angle brackets, or computed. Each kernel asks for the same headers."""
    return _INCLUDE.findall(data.replace(b"\\\n", b""))


def absolute(path: Path | str) -> Path:
    """Return a path from the root, without dots and with its links."""
    return Path(os.path.normpath(Path(path).absolute()))
