"""Other programs: where they are, and which version they say they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from rocattn.complaint import complaint
from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import terminal

_VERSION_TIMEOUT_S = 20.0
_VERSION_QUESTIONS = {"amd-smi": "version"}


class BrokenToolError(RocattnError):
    """Raised when a program is there and does not run; the text goes on from its name: "does not start (…)"."""


def find_tool(*names: str) -> str | None:
    """Return the first of these programs that is on PATH or in ROCm's bin."""
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "bin"
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(rocm)])
    return next((path for name in names if (path := shutil.which(name, path=places))), None)


def tool_version(path: str) -> str:
    """Return the version that a program prints.

    Raises:
        BrokenToolError: When it does not run; the text says what it does not do.
    """
    question = _VERSION_QUESTIONS.get(Path(path).name, "--version")
    try:
        done = subprocess.run(
            [path, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise BrokenToolError(f"does not start ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise BrokenToolError(f"does not answer in {_VERSION_TIMEOUT_S:.0f} s") from error
    said = done.stdout + done.stderr
    if done.returncode:
        # No number of what it says: a traceback has those of the folders that it goes through.
        why = terminal(complaint(said, "it prints nothing"), 200)
        raise BrokenToolError(f"does not work, `{question}` ends with status {done.returncode}: {why}")
    found = re.search(r"\d+(?:\.\d+)+\S*", said)
    return found[0].rstrip(",)") if found else "gives no version"
