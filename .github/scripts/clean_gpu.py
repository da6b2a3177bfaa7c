"""End an earlier job's leftovers on the GPU: this user's processes that have ``/dev/kfd`` open outside of this job.

Sends SIGTERM, then SIGKILL. Fails if one survives (it hangs in the driver: the machine needs a restart) or belongs to
another user, because no measurement next to it would count. Standard library only: this runs before anything is
installed, and as the runner's job-started hook.
"""  # noqa: INP001 - a script of the workflows, in no package

import os
import signal
import sys
import time
from pathlib import Path

DEVICES = ("/dev/kfd",)
GRACE_S = 10.0


def holders(proc: Path, devices: tuple[str, ...]) -> list[int]:
    """Return the processes that have one of the device files open, as far as this user may see."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            files = list((folder / "fd").iterdir())
        except OSError:  # another user's process, or it has ended
            continue
        if any(_target(file) in devices for file in files):
            found.append(int(folder.name))
    return sorted(found)


def registered(sysfs: Path) -> list[int]:
    """Return the processes registered with the driver, of any user."""
    try:
        return sorted(int(folder.name) for folder in sysfs.iterdir() if folder.name.isdigit())
    except OSError:
        return []


def own_family(proc: Path, pid: int) -> set[int]:
    """Return a process and its ancestors: the job itself, its shell, the runner."""
    family = set()
    while pid > 0 and pid not in family:
        family.add(pid)
        pid = _parent(proc, pid)
    return family


def end(pids: list[int], proc: Path, grace_s: float) -> list[int]:
    """Ask processes to end, kill those that do not in time, and return the survivors."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue
            except PermissionError:
                print(f"clean_gpu: process {pid} is another user's", file=sys.stderr)
        deadline = time.monotonic() + grace_s
        while (pids := [pid for pid in pids if _alive(proc, pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not pids:
            break
    return pids


def describe(proc: Path, pid: int) -> str:
    """Describe a process: number, state, command; control characters are shown as escapes."""
    state = _status(proc, pid).get("State", "?")
    try:
        command = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"{pid} [{state}] {command[:200]!r}"


def main(proc: Path = Path("/proc"), sysfs: Path = Path("/sys/class/kfd/kfd/proc")) -> int:
    """Find and end the processes, and report that; the status is 1 if the GPU is not free afterwards."""
    devices = tuple(os.environ.get("ROCATTN_GPU_DEVICES", "").split()) or DEVICES
    mine = own_family(proc, os.getpid())
    left = [pid for pid in holders(proc, devices) if pid not in mine]
    for pid in left:
        print(f"clean_gpu: ending {describe(proc, pid)}")
    survivors = end(left, proc, GRACE_S)
    others = [pid for pid in registered(sysfs) if pid not in mine and pid not in survivors and _alive(proc, pid)]
    for pid in survivors:
        print(f"clean_gpu: process {describe(proc, pid)} does not end: restart the machine", file=sys.stderr)
    for pid in others:
        print(f"clean_gpu: process {describe(proc, pid)} uses the GPU and is not ours to end", file=sys.stderr)
    if not survivors and not others:
        print(f"clean_gpu: the GPU is free ({len(left)} ended)")
    return 1 if survivors or others else 0


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""


def _status(proc: Path, pid: int) -> dict[str, str]:
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _parent(proc: Path, pid: int) -> int:
    return int(_status(proc, pid).get("PPid", "0") or 0)


def _alive(proc: Path, pid: int) -> bool:
    # A zombie has closed its files: only its parent has not yet read its exit status.
    return not _status(proc, pid).get("State", "Z").startswith(("Z", "X"))


if __name__ == "__main__":
    sys.exit(main())
