"""What CPU this is, by the name that the system gives it."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's name as the system gives it; its architecture where it gives none."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1] if found else ""
    if not name and platform.system() == "Darwin":
        with suppress(OSError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return " ".join((name or platform.processor() or platform.machine() or "unknown CPU").split())
