"""Times a command as a whole, in a fresh process of this interpreter: wall time, and CPU time from its rusage.

Called like ``asv/worker.py``: the request is JSON, and the answer goes to the file that it names. The command runs in a
shell, and its output goes to the log. Every sample is a separate process; the canary runs between them.

Involuntary context switches of a whole program do not show that it was disturbed: it waits for files and for its own
child processes. So none are reported, and `rule.launches` distinguishes programs that compute from those that wait by
their share of CPU time alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from rocattn_profiling.asv import worker as kit

MOST_SAMPLES = 12


class CommandFailedError(Exception):
    """Raised when a command exits with a status other than 0."""


def main() -> None:
    """Perform the request and write the answer."""
    request = json.loads(sys.argv[1])
    kit.end_with_parent(request.get("parent"))
    try:
        answer = {"status": "ok", **measure(request)}
    except CommandFailedError as error:
        answer = {"status": "failed", "reason": str(error)}
    kit.write(request["answer"], answer)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Run the command as often as the request says, or as often as the budget allows; at least once.

    Raises:
        CommandFailedError: A run fails.
    """
    canaries = [kit.canary_ns() for _ in range(4)]
    load, ticks, started = os.getloadavg()[0], kit.cpu_ticks(), time.time_ns()
    rows = [timed(request)]
    # The first run has a cold file cache: it only determines how many others fit. Both sides use the same number.
    count = request["count"] or max(1, min(MOST_SAMPLES, request["budget_ns"] // rows[0][0]))
    if count > 1:
        rows = []
    while len(rows) < count:
        rows.append(timed(request))
        canaries += [kit.canary_ns() for _ in range(2)]
    canaries += [kit.canary_ns() for _ in range(4)]
    return {
        "number": 1,
        "samples_ns": [row[0] for row in rows],
        "cpu_ns": [row[1] for row in rows],
        "canary_ns": kit.low_end(canaries),
        "canary_of": sys.version,
        "start_ns": started,
        "load": load,
        "steal_pct": kit.steal_pct(ticks, kit.cpu_ticks()),
        "peak_rss_bytes": max(row[2] for row in rows),
    }


def timed(request: dict[str, Any]) -> tuple[int, int, int]:
    """Return wall time and CPU time in ns, and the peak resident set in bytes, of one run with all its children.

    Raises:
        CommandFailedError: It exits with a status other than 0.
    """
    with open(request["log"], "wb") as log:  # noqa: PTH123
        start = time.perf_counter_ns()
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["command"]], cwd=request["cwd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter_ns() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        ending = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise CommandFailedError(f"it ended with {ending}: {last_line(request['log'])}")
    scale = 1 if sys.platform == "darwin" else 1024
    return wall, round(1e9 * (usage.ru_utime + usage.ru_stime)), usage.ru_maxrss * scale


def last_line(path: str) -> str:
    """Return the last line that a command printed."""
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(max(0, os.path.getsize(path) - 4000))  # noqa: PTH202
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:1000] if lines else "it printed nothing"


if __name__ == "__main__":
    main()
