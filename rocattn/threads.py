"""The number of CPU-kernel threads: set by the user, or else by affinity and cgroup quota."""

from __future__ import annotations

import functools
import math
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.settings import first_number, num_threads, raw_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_here = threading.local()


def thread_count() -> int:
    """Return the number of threads that a call may use.

    That is ``ROCATTN_NUM_THREADS``, else the number from `threads_from_caller`, else ``OMP_NUM_THREADS``, else the CPUs
    in this process's affinity and cgroup. Other programs also use ``OMP_NUM_THREADS``, so an invalid value is ignored.

    Raises:
        SettingError: When ``ROCATTN_NUM_THREADS`` is not a valid number of threads.
    """
    if count := num_threads():
        return count
    if count := getattr(_here, "count", 0):
        return int(count)
    if (text := raw_text(b"OMP_NUM_THREADS")) and (count := first_number(os.fsdecode(text))):
        return count
    try:
        granted = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        granted = os.cpu_count() or 1
    return max(1, min(granted, _cgroup_cpus()))


@contextmanager
def threads_from_caller(count: int) -> Iterator[None]:
    """Let calls from this Python thread use a framework's configured number of threads."""
    before, _here.count = getattr(_here, "count", 0), count
    try:
        yield
    finally:
        _here.count = before


@functools.cache
def _cgroup_cpus() -> int:
    """Return the CPU quota of this process's control group, rounded up; a large number without a quota."""
    unlimited = 1 << 20
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return unlimited
    quotas = [unlimited]
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if not controllers:  # version 2: limits of every ancestor apply
            folder = Path("/sys/fs/cgroup" + path)
            quotas += [_quota_v2(place / "cpu.max") for place in (folder, *folder.parents) if "cgroup" in place.parts]
        elif "cpu" in controllers.split(","):
            for folder in (Path("/sys/fs/cgroup/cpu" + path), Path("/sys/fs/cgroup/cpu")):
                quotas.append(_quota_v1(folder))
    return min(quota for quota in quotas if quota > 0)


def _quota_v2(file: Path) -> int:
    try:
        quota, period = file.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 20


def _quota_v1(folder: Path) -> int:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return 1 << 20
    return math.ceil(quota / period) if quota > 0 and period > 0 else 1 << 20
