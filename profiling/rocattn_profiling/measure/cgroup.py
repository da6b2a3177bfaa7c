"""The limits that a container puts on this process: CPU quota and memory, of control groups version 1 and 2."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def _folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Go through (version, folder) of the groups of this process for a controller, innermost first.

    A container with a namespace of its own sees its group at the mount's root, one without sees the host's path; both
    the path and its parents are tried, and folders that are not there are left out.
    """
    mounts: dict[str, Path] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        target = before.split(" ")[4] if kind.startswith("cgroup") else ""
        if kind == "cgroup2":
            mounts[""] = root / target.lstrip("/")
        elif kind == "cgroup":
            mounts |= {name: root / target.lstrip("/") for name in options.split(",")}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = mounts.get(controller if controllers else "")
        if mount is None:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for part in dict.fromkeys([inside, *inside.parents, PurePosixPath()]):
            if (mount / part).is_dir():
                yield (1 if controllers else 2), mount / part


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the whole number in a file; None when there is none, or the word "max"."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU time this process may use, in cores, or None without a limit.

    Args:
        root: Where /proc and the control groups are looked for.
    """
    limits = []
    for version, folder in _folders("cpu", root):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the most memory this process and its group may use, in bytes, or None without a limit."""
    limits = []
    for version, folder in _folders("memory", root):
        limit = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for "no limit"
            limits.append(limit)
    return min(limits, default=None)


def memory_left_bytes(root: Path = Path("/")) -> int | None:
    """Return how much more memory the group may take, in bytes, or None without a limit.

    File pages that the kernel can drop at once (inactive_file) count as free, as they do for ``docker stats``.
    """
    left = []
    for version, folder in _folders("memory", root):
        names = ("memory.max", "memory.current", "inactive_file ")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is None or used is None or limit >= 1 << 60:
            continue
        stat = _text(folder / "memory.stat").splitlines()
        cache = sum(int(line.split()[1]) for line in stat if line.startswith(names[2]))
        left.append(max(0, limit - max(0, used - cache)))
    return min(left, default=None)
