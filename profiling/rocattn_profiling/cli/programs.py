"""Other programs: where they are, and which version they say they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

_VERSION_TIMEOUT_S = 20.0


def find_tool(*names: str) -> str | None:
    """Return the first of these programs that is on PATH or in ROCm's bin."""
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "bin"
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(rocm)])
    return next((path for name in names if (path := shutil.which(name, path=places))), None)


def tool_version(path: str) -> str:
    """Return the version that a program prints, or why it does not."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"does not start ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"gives no version in {_VERSION_TIMEOUT_S:.0f} s"
    found = re.search(r"\d+(?:\.\d+)+\S*", done.stdout + done.stderr)
    return found[0].rstrip(",)") if found else "gives no version"
