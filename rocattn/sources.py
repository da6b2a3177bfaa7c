"""Locate the kernel sources: inside the installed package, or at the top level of a checkout."""

from __future__ import annotations

from pathlib import Path

from rocattn.errors import ToolchainError


def kernel_root() -> Path:
    """Return the folder that holds ``hip/`` and ``include/``.

    A wheel carries it as ``rocattn/kernels``; an editable install and a source tree have it beside the package.

    Raises:
        ToolchainError: When neither place has it.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "kernels", package.parent / "kernels")
    for root in candidates:
        if (root / "include" / "rocattn" / "device.h").is_file():
            return root
    looked = " and ".join(str(root) for root in candidates)
    raise ToolchainError(f"the kernel sources are missing (looked in {looked}): reinstall rocattn")
