"""Set the GPU's performance level for a job and restore it: ``gpu_level.py set LEVEL STATE``, ``… restore STATE``.

The previous level is written to STATE before anything is set. If the GPU or this user's permissions do not allow a
level, that is reported and recorded, and the job goes on: clocks are recorded with every sample anyway. Restoring must
succeed if setting did. Tools: amd-smi, or else rocm-smi; through ``sudo -n`` unless root. ROCATTN_SMI_GPU selects one
of several GPUs (in the format of ``-g`` / ``-d``); by default all are set. Standard library only: it also runs before
anything is installed.
"""  # noqa: INP001 - a script of the workflows, in no package

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LEVELS = ("auto", "low", "high", "stable_std", "stable_peak", "stable_min_mclk", "stable_min_sclk")
# tool -> (query arguments, arguments before a level, the option that selects one GPU, arguments for all GPUs)
# amd-smi of ROCm up to 6.2 sets nothing without a GPU selection; rocm-smi has no argument for all GPUs.
TOOLS = {
    "amd-smi": (["metric", "--perf-level", "--json"], ["set", "--perf-level"], "-g", ["-g", "all"]),
    "rocm-smi": (["--showperflevel", "--json"], ["--setperflevel"], "-d", []),
}
TIMEOUT_S = 60.0


def main(words: list[str]) -> int:
    """Do what the command line says."""
    if len(words) == 3 and words[0] == "set" and words[1] in LEVELS:
        return set_level(words[1], Path(words[2]))
    if len(words) == 2 and words[0] == "restore":
        return restore(Path(words[1]))
    print(f"usage: gpu_level.py set {{{'|'.join(LEVELS)}}} STATE | restore STATE", file=sys.stderr)
    return 4


def set_level(level: str, state: Path) -> int:
    """Record the current level, set another, and report the result; fails only if the record cannot be written."""
    tool = find_tool()
    before = read(tool) if tool else ""
    if not tool or not before:
        why = "it does not report the level" if tool else "neither amd-smi nor rocm-smi is installed"
        print(f"::warning::performance level not set: {why}; samples carry their clocks")
        return 0
    if before == level:
        # The owner's choice, or left over from a job that lost its machine: nothing to change or restore either way.
        print(f"gpu_level: {level} already")
        return 0
    # Record before the change: a job that dies in between can still restore.
    state.write_text(json.dumps({"tool": tool, "before": before}))
    said = change(tool, level)
    now = read(tool)
    if now != level:
        print(f"::warning::performance level is {now or 'unknown'}, not {level}: {said}")
    else:
        print(f"gpu_level: {before} -> {now}")
    return 0


def restore(state: Path) -> int:
    """Restore the recorded level and check it; without a record there is nothing to do."""
    try:
        note = json.loads(state.read_text())
    except FileNotFoundError:
        print("gpu_level: nothing was set")
        return 0
    tool, before = note["tool"], note["before"]
    if read(tool) != before:
        said = change(tool, before)
        if (now := read(tool)) != before:
            print(f"::error::performance level is {now or 'unknown'} and must be {before}: {said}")
            return 1
    state.unlink()
    print(f"gpu_level: {before} again")
    return 0


def find_tool() -> str:
    """Return the first tool that is installed, or ""."""
    return next((name for name in TOOLS if _path(name)), "")


def read(tool: str) -> str:
    """Return the level of all selected GPUs, "mixed" if they differ, "" if the tool does not report it."""
    done = _run([_path(tool), *TOOLS[tool][0], *_gpus(tool)])
    if done is None or done.returncode:
        return ""
    found = re.findall(r'"(?:perf_level|Performance Level)":\s*"(?:AMDSMI_DEV_PERF_LEVEL_)?(\w+)"', done.stdout)
    levels = {level.lower() for level in found}
    return levels.pop() if len(levels) == 1 else "mixed" if levels else ""


def change(tool: str, level: str) -> str:
    """Request a level; return the tool's last line, for a report that it failed."""
    # One call cannot set several levels: mixed levels go back to the driver's automatic choice.
    wanted = "auto" if level == "mixed" else level
    words = wanted.upper() if tool == "amd-smi" else wanted
    rights = [] if os.geteuid() == 0 else ["sudo", "-n"]
    done = _run([*rights, _path(tool), *TOOLS[tool][1], words, *_gpus(tool)])
    if done is None:
        return "it did not answer"
    # A tool's output must not be interpreted as a workflow command.
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return re.sub(r"[^ -~]|::", "?", lines[-1])[:200] if lines else f"exit status {done.returncode}"


def _path(tool: str) -> str:
    return shutil.which(tool) or shutil.which(tool, path="/opt/rocm/bin") or ""


def _gpus(tool: str) -> list[str]:
    gpu = os.environ.get("ROCATTN_SMI_GPU", "")
    return [TOOLS[tool][2], gpu] if gpu else TOOLS[tool][3]


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
