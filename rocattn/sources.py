"""Locate the kernel sources: inside the installed package, or at the top level of a checkout."""

from __future__ import annotations

from pathlib import Path

from rocattn.errors import ToolchainError

_HEADER = Path("include/rocattn/device.h")


def kernel_root() -> Path:
    """Return the folder with ``hip/`` and ``include/``.

    A wheel contains it as ``rocattn/kernels``; an editable install and a source tree have it next to the package.

    Raises:
        ToolchainError: When it is in neither place.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "kernels", package.parent / "kernels")
    for root in candidates:
        if (root / _HEADER).is_file():
            return root
    looked = " and ".join(str(root) for root in candidates)
    raise ToolchainError(f"the kernel sources are missing (looked in {looked}): reinstall rocattn")


def require_own_checkout(folder: Path | None = None) -> None:
    """Reject checking this package's kernels inside another checkout, whose own kernels would be ignored.

    Args:
        folder: The user's folder; default the current folder.

    Raises:
        ToolchainError: When it is in a checkout of rocattn from which this package was not installed with ``-e``.
    """
    here = folder or Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "kernels" / _HEADER).is_file() and (parent / "rocattn" / "sources.py").is_file():
            if not (parent / "kernels").samefile(kernel_root()):
                raise ToolchainError(
                    f"{parent} is a checkout of rocattn, but this command runs the kernels of {kernel_root().parent}: "
                    f"pip install -e '{parent}[toolchain]', or run it in another folder"
                )
            return
