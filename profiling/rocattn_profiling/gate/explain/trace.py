"""Where a benchmark's calls go on each side: functions, how often each is called and how long, and modules loaded."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn_profiling.base.process import StartError, run_group

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Launcher
    from rocattn_profiling.gate.verdict import Entry

TRACER = Path(__file__).with_name("trace_worker.py")
TIMEOUT_S = 120.0
_MOST_MOVES = 3
_SHARE = 0.1  # of what was added: a function that has less of it is not named
_OFTENER = 1.02  # call counts are exact but for code that waits or polls


class Function(msgspec.Struct, frozen=True):
    """One function as the profiler saw it, for each call of the benchmark.

    Attributes:
        module, file, line, name: Where it is.
        calls: How often it is called.
        self_ns, total_ns: Time in it, without and with the Python functions that it calls; native code, be it a
            builtin or a library called through ctypes, counts as its caller's.
        callees: Functions that it calls, by `key`, with how often.
    """

    module: str
    file: str
    line: int
    name: str
    calls: float
    self_ns: float
    total_ns: float
    callees: dict[str, float] = {}

    @property
    def key(self) -> str:
        """What it is known by on both sides, whatever line it is on there."""
        return f"{self.module or self.file}:{self.name}"

    @property
    def label(self) -> str:
        """Its dotted name."""
        return f"{self.module}.{self.name}" if self.module else self.name


class Trace(msgspec.Struct, frozen=True):
    """One side of a benchmark.

    Attributes:
        status: "ok", or why there is nothing else: "skipped" or "failed" with ``reason``.
        functions: Those that ran, the longest first.
        modules: Name -> file of all that is loaded.
        packages: Distributions that something was loaded from.
        opened: Files that Python opened, without its modules.
    """

    status: str
    reason: str = ""
    functions: tuple[Function, ...] = ()
    modules: dict[str, str] = {}
    packages: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()


class Move(NamedTuple):
    """One function that takes more time than in base; ``share`` is its part of all that was added."""

    function: Function
    before: Function | None
    share: float

    @property
    def sentence(self) -> str:
        """What happened to it, with numbers."""
        after, before = self.function, self.before
        time = f"{_ms(before.self_ns if before else 0)} -> {_ms(after.self_ns)} in itself, native code included"
        calls = f"{_number(before.calls if before else 0)} -> {_number(after.calls)} times"
        oftener = before is None or after.calls > before.calls * _OFTENER
        told = f"is called {calls} a call of the benchmark and takes {time}" if oftener else f"takes {time}"
        was = f" ({before.label} in base)" if before is not None and before.label != after.label else ""
        return f"{after.label}{was} {told}, {100 * self.share:.0f} % of what was added"


def trace(launcher: Launcher, entry: Entry) -> Trace | None:
    """Run a benchmark under the profiler on one side; None where that does not work."""
    runner = launcher.scratch / "runner"
    if not (runner / "asv_worker.py").is_file():
        return None
    with tempfile.TemporaryDirectory(prefix="trace-", dir=launcher.scratch) as folder:
        answer = Path(folder, "answer.json")
        request = request_of(launcher, entry) | {"answer": str(answer)}
        command = [launcher.python, str(shutil.copy(TRACER, runner)), msgspec.json.encode(request).decode()]
        try:
            with Path(folder, "log").open("wb") as log:
                run_group(
                    command, cwd=Path(folder), env=launcher.environment, stdout=log, stderr=log, timeout_s=TIMEOUT_S,
                    grace_s=0.0,
                )  # fmt: skip
            found = msgspec.json.decode(answer.read_bytes(), type=Trace)
        except (StartError, OSError, msgspec.DecodeError):
            return None
    return found if found.status == "ok" else None


def request_of(launcher: Launcher, entry: Entry) -> dict[str, object]:
    """Return what `trace_worker` is to run."""
    kind = {"mem": "memory", "peakmem": "peakmemory"}.get(entry.metric, entry.metric)
    return {
        "benchmark": entry.name, "label": entry.label, "type": kind, "suite": str(launcher.suite),
        "scratch": str(launcher.scratch),
    }  # fmt: skip


def moves(base: Trace, head: Trace) -> list[Move]:
    """Return the functions that the added time is in, those that take most of it first.

    Args:
        base: Before.
        head: Now; of a side that is not slower under the profiler nothing is said.
    """
    before, after = _by_key(base), _by_key(head)
    if sum(one.self_ns for one in after.values()) <= sum(one.self_ns for one in before.values()):
        return []
    pairs = [(one, _partner(one, before, after)) for one in after.values()]
    added = [(one.self_ns - (old.self_ns if old else 0.0), one, old) for one, old in pairs]
    total = sum(max(more, 0.0) for more, _, _ in added)
    added.sort(key=lambda item: -item[0])
    found = [Move(one, old, more / total) for more, one, old in added[:_MOST_MOVES]]
    return [move for move in found if move.share >= _SHARE]


def shares(base: Trace, head: Trace) -> list[tuple[Function, float]]:
    """Return each of head's functions with the part of the added time that is its own doing.

    That is what it takes longer itself, and what it calls oftener. A function that is called oftener, or that calls
    one which became slower, adds time without having changed.
    """
    before, after = _by_key(base), _by_key(head)
    found = []
    for one in after.values():
        old = _partner(one, before, after)
        more = one.self_ns - (old.self_ns / old.calls * one.calls if old and old.calls else 0.0)
        for key, calls in one.callees.items():
            callee = after.get(key)
            if callee is None or not callee.calls or key == one.key:
                continue
            same = _partner(callee, before, after)
            usual = (
                old.callees.get(same.key if same else key, 0.0) / old.calls * one.calls if old and old.calls else 0.0
            )
            each = min(side.total_ns / side.calls for side in (callee, same) if side is not None and side.calls)
            more += (calls - usual) * each
        found.append((one, max(more, 0.0)))
    total = sum(more for _, more in found)
    return [(one, more / total) for one, more in found] if total else []


def _by_key(trace: Trace) -> dict[str, Function]:
    """Return a trace's functions by `Function.key`; those that share one (lambdas; methods on 3.10) are added up."""
    found: dict[str, Function] = {}
    for one in trace.functions:
        known = found.get(one.key)
        if known is None:
            found[one.key] = one
            continue
        callees = known.callees | {key: calls + known.callees.get(key, 0.0) for key, calls in one.callees.items()}
        found[one.key] = msgspec.structs.replace(
            known, calls=known.calls + one.calls, self_ns=known.self_ns + one.self_ns,
            total_ns=known.total_ns + one.total_ns, callees=callees,
        )  # fmt: skip
    return found


def _partner(one: Function, before: dict[str, Function], after: dict[str, Function]) -> Function | None:
    """Return what a function of head's was on base: the one of its key, or the only one of its name that moved."""
    if one.key in before:
        return before[one.key]
    here = [other for key, other in after.items() if other.name == one.name and key not in before]
    there = [other for key, other in before.items() if other.name == one.name and key not in after]
    return there[0] if len(here) == len(there) == 1 else None


def _ms(time_ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def _number(value: float) -> str:
    return f"{value:.6g}"
