"""Detect how rocattn was installed, and thus the command that adds a package to it."""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Any

_SOURCES = ("directory", "editable", "path", "url")  # of a requirement in uv's receipt; "git" has another kind of URL


def install_command(package: str) -> str:
    """Return the command that installs a package next to this rocattn, in the version from rocattn's metadata.

    pip's changes do not last in a pipx or ``uv tool`` environment, and a system Python may reject them (PEP 668).
    """
    wanted = shlex.quote(_requirement(package))
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {shlex.quote(prefix.name)} {wanted}"
    if (receipt := prefix / "uv-receipt.toml").exists():
        return f"uv tool install --with {wanted} {_uv_tool(receipt)}"
    python = shlex.quote(sys.executable)
    own = sys.prefix != sys.base_prefix
    if own and not any(Path(sysconfig.get_path("purelib")).glob("pip/__init__.py")):
        return f"uv pip install --python {python} {wanted}"
    if own and os.path.realpath(os.environ.get("VIRTUAL_ENV", "")) == os.path.realpath(sys.prefix):
        return f"pip install {wanted}"  # in the active environment
    managed = not own and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    return f"{python} -m pip install {'--break-system-packages ' * managed}{wanted}"


def _requirement(package: str) -> str:
    """Return the requirement for a package in rocattn's metadata, including extras, or just its name."""
    from importlib.metadata import PackageNotFoundError, requires  # takes 20 ms: only if something is missing

    try:
        lines = requires("rocattn") or []
    except PackageNotFoundError:  # a source tree on the path
        return package
    texts = (line.partition(";")[0].strip() for line in lines)
    return next((text for text in texts if re.split(r"[^\w.-]", text)[0] == package), package)


def _uv_tool(receipt: Path) -> str:
    """Return the tool's requirement and those installed with it, which uv removes unless repeated."""
    import tomllib

    try:
        tool, *others = tomllib.loads(receipt.read_text())["tool"]["requirements"]
        return " ".join([*(f"--with {_uv_spec(other)}" for other in others), _uv_spec(tool)])
    except (OSError, ValueError, KeyError, TypeError):  # an unknown format
        return "rocattn"


def _uv_spec(entry: dict[str, Any]) -> str:
    name = entry["name"] + (f"[{','.join(entry['extras'])}]" if entry.get("extras") else "")
    if git := entry.get("git"):
        url, _, reference = git.partition("?")
        return shlex.quote(f"{name} @ git+{url}{'@' * bool(reference)}{reference.partition('=')[2]}")
    source = next((entry[key] for key in _SOURCES if key in entry), "")
    if not source:
        return shlex.quote(name + entry.get("specifier", ""))
    url = source if "://" in source else Path(source).absolute().as_uri()
    return shlex.quote(f"{name} @ {url}")
