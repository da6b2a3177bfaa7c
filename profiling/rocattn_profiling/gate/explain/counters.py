"""Counters of the benchmarks that got slower, base against head, where there is a GPU and a profiler for it.

Each benchmark runs by itself under the profiler, once for each side and group of counters. The report's own comparison
names the kernels whose time changed, and the metrics that moved with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.verdict import Cause, badness
from rocattn_profiling.profile.collect import find, hardware
from rocattn_profiling.profile.collect.assemble import CollectionRequest, assemble
from rocattn_profiling.profile.collect.run import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocattn_profiling.gate.measure import SideName
    from rocattn_profiling.gate.sides import Context
    from rocattn_profiling.gate.verdict import Entry

MOST = 3
"""Benchmarks that are profiled, the worst first: each takes a run for every group of counters on both sides."""
REPORT = "profile.json"
_SLOWER = 1.02
_MOST_MOVES = 3
_TIMEOUT_S = 300.0


class Counters:
    """Profiles the worst benchmarks, each on demand.

    Args:
        context: Both sides.
        entries: Worse benchmarks.
    """

    def __init__(self, context: Context, entries: Sequence[Entry]) -> None:
        self._context = context
        slower = [entry for entry in entries if entry.status == "regression" and entry.decision is not None]
        slower.sort(key=badness, reverse=True)
        # A benchmark with a parameter "backend" uses the GPU if that is its value; of others it is not known.
        able = [entry for entry in slower if entry.params.get("backend", "gpu").strip("'\"") == "gpu"]
        self._chosen = [entry.label for entry in able[:MOST]]
        self._archs = hardware.examine().archs if self._chosen else ()
        self._there = bool(self._archs) and any(not tool.problem for tool in find.find_profilers())

    def of(self, entry: Entry) -> list[Cause]:
        """Return what changed in a benchmark's kernels; nothing where it cannot be profiled."""
        if not self._there or entry.label not in self._chosen:
            return []
        folder = self._context.out / "explain" / f"{self._chosen.index(entry.label)}"
        self._context.say(f"profiling {entry.label} on both sides")
        try:
            for side in SIDES:
                self._profile(entry, side, folder / side)
            return causes_of(_compared(folder))
        except (RocattnError, OSError) as error:
            self._context.say(f"no counters of {entry.label}: {error}")
            return []

    def _profile(self, entry: Entry, side: SideName, out: Path) -> None:
        launcher = self._context.launchers[side]
        command = launcher.call_command(entry.name, entry.label)
        job = assemble(CollectionRequest(command, arch=self._archs[0]), hardware.examine())
        # The variables that the gate runs benchmarks with, without those that the profiler's start removes.
        own = {name: value for name, value in launcher.environment.items() if os.environ.get(name) != value}
        kept = {
            name: value
            for name, value in job.environment.items()
            if name in launcher.environment or name not in os.environ
        }
        collection = Session(msgspec.structs.replace(job, environment=kept | own), out).collect()
        if not collection.measured:
            raise RocattnError(f"no pass of {side} was measured ({out / REPORT} says why)")


def _compared(folder: Path) -> dict[str, Any]:
    """Return the report of head against base by `rocattn report --json`, a verb that the gate may not import."""
    sides = [str(folder / "head"), "--against", str(folder / "base"), "--out", str(folder / "report")]
    command = [sys.executable, "-m", "rocattn_profiling.cli", "report", *sides, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RocattnError(f"the report took over {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise RocattnError((done.stderr.strip().splitlines() or ["the report failed"])[-1])
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    return report


def causes_of(report: dict[str, Any]) -> list[Cause]:
    """Return a cause for each slower kernel, with the metrics that moved and the report's advice.

    Args:
        report: Of head, with its comparison to base under "against".
    """
    advice = {
        (kernel["kernel"], kernel["label"]): kernel["findings"][0]["sentence"]
        for kernel in report["kernels"]
        if kernel["findings"]
    }
    causes = []
    for pair in report["against"]:
        name = pair["label"] or pair["kernel"]
        if pair["only_in"] == "after":
            causes.append(Cause(kind="counters", text=f"the kernel {name} runs on head only"))
        elif pair["only_in"] is None and pair["time_ratio"] and pair["time_ratio"] > _SLOWER:
            moved = [
                f"{move['metric']} {move['before']:.4g} -> {move['after']:.4g} {move['unit']}".strip()
                for move in pair["moved"][:_MOST_MOVES]
            ]
            metrics = f": {', '.join(moved)}" if moved else ""
            remedy = advice.get((pair["kernel"], pair["label"]))
            text = f"the kernel {name} takes {pair['time_ratio']:.2f} times as long{metrics}"
            text += f"; {remedy}" if remedy else ""
            causes.append(Cause(kind="counters", text=text))
    return causes
