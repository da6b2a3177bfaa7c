"""Hot spots: PC samples and thread traces by source line and instruction, with what the waves wait for.

The three methods measure different things, so their counts are never added. Stochastic samples (MI300 and later) are
exact: each says whether the wave issued an instruction in that cycle, or why not. Host-trap samples have skid and no
reason: the wave is sampled up to two instructions late (rocprofiler-sdk's using-pc-sampling.rst), and a wait is
inferred from the sampled instruction. A thread trace has the cycles of every instruction, for a few waves.

The reasons' meanings are those of rocprofiler-sdk's cdna3-cdna4-pc-sampling.rst. Each line also has its static cost:
the cycles that a lone wave needs to issue its instructions once (`rocattn_profiling.kernels.model`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn_profiling.base.markup import terminal
from rocattn_profiling.kernels.model.cost import lone_cycles
from rocattn_profiling.kernels.model.rates import RatesError, rates
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.pages.render import shorten
from rocattn_profiling.profile.ingest.table import HOST_TRAP, IDLE, ISSUED, NO_DISPATCH, STALLED, THREAD_TRACE
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.metrics.timeline import kind_of
from rocattn_profiling.profile.report.limits import NEAR
from rocattn_profiling.profile.report.records import Bounds, HotInstruction, HotLine, HotSpots, KernelFinding, Stall

if TYPE_CHECKING:
    import pandas as pd

SHARE = 0.25
"""Minimum share of a kernel's samples with one cause on one line that makes a finding."""
LINES = 15
"""Number of lines per kernel, and of instructions per line, that a page shows."""
ON_TERMINAL = 2
"""Number of kernels whose hot spots the terminal shows."""
_FRAMES = " -> "  # rocprofiler-sdk's separator between a line and the lines that it is inlined into
_LINE = re.compile(r"(.+):([1-9]\d*)$")
_TOOLKIT = re.compile(r"/opt/rocm|/usr/include/|/amd_detail/|__clang_hip|/lib/clang/")
_BARRIER = re.compile(r"s_barrier")
_WAIT = re.compile(r"s_wait(?:cnt)?(?:_|\b)")


@dataclass(frozen=True, slots=True)
class StallCause:
    """What a wave was doing when it was sampled.

    Attributes:
        says: Text that follows "the waves".
        title: As a diagnosis of a kernel.
        colour: Color of its bar, `--s0` to `--s7` of the style sheet.
        advice: What usually helps; "" if it is not a defect.
        groups: Groups of counters for more detail (`rocattn profile --metrics`).
    """

    says: str
    title: str
    colour: int
    advice: str = ""
    groups: str = ""


_EARLIER = "request the data earlier, or keep more waves resident to cover the latency"
_LDS = "read LDS earlier or in fewer, wider accesses without bank conflicts"
CAUSES = {
    "issued": StallCause("issue", "issuing", 2),
    "vector_memory": StallCause("wait for vector memory", "vector memory latency", 1, _EARLIER, "memory caches"),
    "lds_or_scalar": StallCause(
        "wait for LDS or scalar memory", "LDS or scalar memory latency", 1, _LDS, "lds small_caches"
    ),
    "lds": StallCause("wait for LDS", "LDS latency", 1, _LDS, "lds"),
    "scalar_memory": StallCause(
        "wait for scalar memory", "scalar memory latency", 1, "load arguments and constants early", "small_caches"
    ),
    "stores": StallCause(
        "wait for stores", "store latency", 1, "let nothing wait for stores before the end", "memory caches"
    ),
    "memory": StallCause("wait for several kinds of memory", "memory latency", 1, _EARLIER, "memory caches lds"),
    "barrier": StallCause(
        "wait at a barrier", "barrier waits", 4,
        "balance the waves of a block, or run two blocks per CU so that they take turns", "occupancy",
    ),
    "dependency": StallCause(
        "wait for an earlier result", "dependent instructions", 3, "interleave independent instructions", "compute"
    ),
    "arbiter": StallCause(
        "are ready, another wave issues", "waves contending for a unit", 0, "several waves want its unit at once",
        "compute units",
    ),
    "full": StallCause(
        "are ready, their unit is full", "a saturated unit", 5, "that unit is the bottleneck: use it less",
        "compute units",
    ),
    "fetch": StallCause(
        "wait for instructions", "instruction fetch", 7, "unroll less: it misses the instruction cache", "small_caches"
    ),
    "idle": StallCause(
        "are idle before it", "idle waves", 3, "a result, another wave or the I-cache holds it up", "compute"
    ),
    "sampled": StallCause("are here", "not known", 6),
    "other": StallCause("wait for something else", "not known", 6),
}  # fmt: skip
_OF_REASON = {
    ISSUED: "issued", IDLE: "idle", "BARRIER_WAIT": "barrier", "ALU_DEPENDENCY": "dependency",
    "ARBITER_NOT_WIN": "arbiter", "ARBITER_WIN_EX_STALL": "full", "NO_INSTRUCTION_AVAILABLE": "fetch",
}  # fmt: skip
# Each wait's counters: those of s_waitcnt, then gfx12's separate instructions.
_COUNTERS = (
    (re.compile(r"vmcnt|loadcnt|samplecnt|bvhcnt|asynccnt|tensorcnt"), "vector_memory"),
    (re.compile(r"lgkmcnt"), "lds_or_scalar"),
    (re.compile(r"dscnt"), "lds"), (re.compile(r"(?<!lg)kmcnt"), "scalar_memory"),
    (re.compile(r"vscnt|storecnt"), "stores"),
)  # fmt: skip
# Limits that can cause such a wait, if one of them is near.
_BEYOND_L1 = frozenset({"memory", "fabric", "l2", "l1", "address"})
_LIMITS_OF = {
    "vector_memory": _BEYOND_L1, "stores": _BEYOND_L1, "lds": frozenset({"lds"}), "lds_or_scalar": frozenset({"lds"}),
    "memory": _BEYOND_L1 | {"lds"},
}  # fmt: skip


def hot_spots(
    samples: pd.DataFrame, sampled_on: Mapping[str, tuple[Device | None, int | None]], unnamed: Device | None
) -> tuple[list[HotSpots], str]:
    """Return the hot spots of each kernel and method, the most samples first, and what is left out.

    Args:
        samples: Columns `SAMPLE_DTYPES`.
        sampled_on: GPU and wave size of each kernel named in the dispatches.
        unnamed: GPU of all other kernels.
    """
    if not len(samples):
        return [], ""
    table = samples.copy()
    for name in ("kernel", "method", "instruction", "source", "state"):
        table[name] = table[name].astype("object")
    traced = table["method"] == THREAD_TRACE
    runtime = {name for name in table["kernel"].unique() if kind_of(name) == "runtime"}
    own = table["kernel"].isin(runtime) | ((table["instruction"] == "") & table["code_object"].isna())
    total = int(table.loc[~traced, "count"].sum())
    of_runtime = int(table.loc[~traced & own, "count"].sum())
    left_out = f"{100 * of_runtime / total:.2g} % of the samples are in the runtime's own code" if of_runtime else ""
    spots = []
    for (kernel, method), rows in table[~own].groupby(["kernel", "method"], sort=False):
        if rows["count"].any():  # a trace also lists the code of kernels that no traced wave ran
            device, lanes = sampled_on.get(str(kernel), (unnamed, None))
            spots.append(_of_kernel(str(kernel), str(method), rows, device, lanes))
    return sorted(
        spots, key=lambda each: (each.method == THREAD_TRACE, each.method == HOST_TRAP, -each.total)
    ), left_out


def _of_kernel(name: str, method: str, rows: pd.DataFrame, device: Device | None, lanes: int | None) -> HotSpots:
    rows = rows.assign(
        cause=[cause_of(state, text) for state, text in zip(rows["state"], rows["instruction"], strict=True)]
    )
    cost, no_cycles = _cost(device, lanes)
    rows["line"] = [_line_of(source) for source in rows["source"]]
    rows["address"] = [
        f"{code}+{offset:#x}" if offset >= 0 else ""
        for code, offset in zip(rows["code_object"].fillna(-1), rows["offset"].fillna(-1), strict=True)
    ]
    shorter = _shorter({line for line in rows["line"] if line})
    rows["place"] = [
        shorter[line] if line else (address or text)
        for line, address, text in zip(rows["line"], rows["address"], rows["instruction"], strict=True)
    ]
    lines = []
    for place, of_line in rows.groupby("place", sort=False):
        instructions = [
            _instruction(str(text), str(address), _caller(str(source)), of_one, method, cost)
            for (text, address, source), of_one in of_line.groupby(["instruction", "address", "source"], sort=False)
        ]
        instructions.sort(key=lambda each: -each.count)
        known = [each.cycles for each in instructions if each.cycles is not None]
        source = str(of_line["source"].iloc[int(of_line["count"].argmax())])
        cycles = sum(known) if len(known) == len(instructions) else None
        lines.append(HotLine(str(place), source, int(of_line["count"].sum()), _sums(of_line), cycles, instructions))
    launched = rows[rows["dispatch"] != NO_DISPATCH].drop_duplicates(["pass", "process", "dispatch"])
    total = int(rows["count"].sum())
    return HotSpots(
        name, None, method, total, len(launched), _sums(rows), _mean_lanes(rows, method),
        sorted((line for line in lines if line.count), key=lambda line: -line.count), no_cycles,
    )  # fmt: skip


def _instruction(
    text: str, address: str, caller: str, rows: pd.DataFrame, method: str, cost: Callable[[str], float | None]
) -> HotInstruction:
    return HotInstruction(
        text, address, caller, int(rows["count"].sum()), _sums(rows), int(rows["hits"].sum()), cost(text),
        _mean_lanes(rows, method),
    )  # fmt: skip


def _mean_lanes(rows: pd.DataFrame, method: str) -> float | None:
    count = int(rows["count"].sum())
    return int(rows["lanes"].sum()) / count if count and method != THREAD_TRACE else None


def _sums(rows: pd.DataFrame) -> dict[str, int]:
    sums = rows.groupby("cause", sort=False)["count"].sum().sort_values(ascending=False, kind="stable")
    return {str(key): int(count) for key, count in sums.items() if count}


@cache
def cause_of(state: str, instruction: str) -> str:
    """Return the key in `CAUSES` of a state; for waits and host-trap samples it depends on the instruction."""
    if state in _OF_REASON:
        return _OF_REASON[state]
    if _WAIT.match(instruction) and state != "OTHER_WAIT":
        kinds = [key for counter, key in _COUNTERS if counter.search(instruction)]
        return kinds[0] if len(kinds) == 1 else "memory"
    if state in {"SAMPLED", STALLED}:
        return "barrier" if _BARRIER.match(instruction) else "full" if state == STALLED else "sampled"
    return "memory" if state == "WAITCNT" else "other"


def _line_of(source: str) -> str:
    """Return the innermost line outside the toolkit's headers, or "" without a line."""
    frames = [frame for frame in source.split(_FRAMES) if _LINE.match(frame)]
    return next((frame for frame in frames if not _TOOLKIT.search(frame)), frames[0] if frames else "")


def _caller(source: str) -> str:
    """Return the file name and line that a sample's line is inlined into; "" for none."""
    _, _, outer = source.partition(_line_of(source) + _FRAMES)
    return outer.split(_FRAMES)[0].rpartition("/")[2]


def _shorter(lines: set[str]) -> dict[str, str]:
    """Return each line with as much of its path as distinguishes the files."""
    files = {line: line.rpartition(":")[0].split("/") for line in lines}
    shown = {}
    for line, parts in files.items():
        others = {tuple(other) for other in files.values() if other != parts}
        most = next(n for n in range(1, len(parts) + 1) if n == len(parts) or _unlike(parts, others, n))
        shown[line] = f"{'/'.join(parts[-most:])}:{line.rpartition(':')[2]}"
    return shown


def _unlike(parts: list[str], others: set[tuple[str, ...]], count: int) -> bool:
    return not any(other[-count:] == tuple(parts[-count:]) for other in others)


def _cost(device: Device | None, lanes: int | None) -> tuple[Callable[[str], float | None], str]:
    """Return a function for the issue cycles of a lone wave (None without a rate), and why these are unknown, or ""."""
    if device is None:
        return lambda _text: None, "no file says which GPU ran it (--gpu NAME)"
    if lanes is None:
        lanes = 64 if device.known is None else device.known.arch.wave_sizes[0]
    try:
        table = rates(device.arch, lanes)
    except RatesError as error:
        return lambda _text: None, str(error)

    @cache
    def cycles(text: str) -> float | None:
        mnemonic, _, operands = text.partition(" ")
        cost = table.cost(Instruction(mnemonic, operands)) if mnemonic else None
        return lone_cycles(cost) if cost and cost.known else None

    return cycles, ""


def stall_of(spots: Sequence[HotSpots]) -> Stall | None:
    """Return what a kernel's waves mostly wait for, by its best method with enough samples; None for nothing."""
    best = next((each for each in spots if not each.few), None)
    if best is None:
        return None
    key = next((key for key in best.causes if CAUSES[key].advice), "")
    part = best.causes.get(key, 0) / best.total
    if part < SHARE:
        return None
    cause = CAUSES[key]
    text = f"{100 * part:.0f} % of its {best.unit} {cause.says}"
    return Stall(100 * part, cause.title, text, cause.advice, f"rocattn profile --metrics {cause.groups} -- COMMAND")


def finding_of(spots: HotSpots, near: Bounds | None, time_share: float | None, command: str) -> KernelFinding | None:
    """Return the finding for the line and cause with the most samples, if they are enough to act on.

    Args:
        spots: The hot spots of a kernel.
        near: How close the kernel is to its limits; None if no dispatch names it.
        time_share: Its share of all kernels' time, 0 to 1; None without times.
        command: What to run next.
    """
    if spots.few:
        return None
    waits = [(count, line, key) for line in spots.lines for key, count in line.causes.items() if CAUSES[key].advice]
    if not waits:
        return None
    count, line, key = max(waits, key=lambda wait: wait[0])
    part = count / spots.total
    if part < SHARE:
        return None
    nearest = near.nearest if near else None
    advice = CAUSES[key].advice
    if nearest and nearest.pct >= NEAR and nearest.key in _LIMITS_OF.get(key, ()):
        advice = f"that is the effect of the {nearest.name} limit ({nearest.short}): {nearest.advice}"
    text = max(line.instructions, key=lambda each: each.causes.get(key, 0)).text
    at = "near" if spots.method == HOST_TRAP else "at"
    stands = f" ({text})" if text and text != line.place else ""
    sentence = f"{100 * part:.0f} % of its {spots.unit} {CAUSES[key].says} {at} {line.place}{stands}: {advice}"
    gain = min(part, 1 - nearest.pct / 100) if nearest else part
    rank = gain * (1 if time_share is None else time_share)
    numbers = {"part": part, "count": float(count), "total": float(spots.total)}
    return KernelFinding(
        "hot-line", CAUSES[key].title, sentence, None if time_share is None else rank, rank, numbers, command
    )


def next_of(spots: HotSpots, device: Device | None, *, judged: bool) -> str:
    """Return the command that gives more detail on the hottest line; "" for none.

    Args:
        spots: The hot spots of a kernel.
        device: Its GPU.
        judged: Whether its counters were judged, too; if so, the verdict says what is missing.
    """
    if spots.few or not spots.lines:
        return ""
    if spots.method == HOST_TRAP and device and device.arch in {"gfx942", "gfx950"}:
        return "rocattn profile --pc-sampling stochastic -- COMMAND"
    groups = CAUSES[spots.lines[0].wait].groups if spots.lines[0].wait else ""
    return f"rocattn profile --metrics {groups} -- COMMAND" if groups and not judged else ""


def headline(spots: HotSpots, most: int = 90) -> str:
    """Return what the numbers describe: kernel, method, samples, launches and the share that issued.

    Args:
        spots: The hot spots.
        most: Maximum length of the name of a kernel without a number, in characters.
    """
    unknown = "unnamed kernels (add --kernel-trace)"
    who = f"kernel {spots.number}" if spots.number else terminal(shorten(spots.kernel, most)) or unknown
    how = {HOST_TRAP: "host-trap samples", THREAD_TRACE: "thread trace"}.get(spots.method, "stochastic samples")
    facts = [f"{spots.total:,} cycles" if spots.method == THREAD_TRACE else f"{spots.total:,}"]
    if spots.launches:
        facts.append(f"{spots.launches:,} launch{'es' if spots.launches > 1 else ''}")
    if "issued" in spots.causes:
        facts.append(f"{spots.share(spots.causes['issued']):.0f} % issued")
    return f"Hot spots of {who}, {how}: {', '.join(facts)}"


def caution(spots: HotSpots) -> str:
    """Return the uncertainty of the shares as text; "" for a thread trace."""
    if spots.few:
        return f"{spots.total:,} samples are too few to rank lines: sample more often, or run it longer"
    if spots.method == THREAD_TRACE:
        return "of the waves on the traced compute units only"
    skid = "; the host trap samples up to two instructions late" if spots.method == HOST_TRAP else ""
    return f"shares are good to {spots.uncertainty:.1f} points at best{skid}"


def summary(spots: HotSpots, line: HotLine) -> str:
    """Return what the waves mostly wait for at a line, in percent of all samples, and its static cost."""
    cost = "" if line.cycles is None else f"{cycles_text(line)} cycles to issue"
    return "; ".join(filter(None, (wait_text(spots, line.causes), cost)))


def cycles_text(line: HotLine) -> str:
    """Return a line's static cost, or the known part of it; "-" for none."""
    if line.cycles is None:
        return "-"
    # Without addresses, equal instructions of a line cannot be told apart.
    return f"{'' if all(each.address for each in line.instructions) else '≥ '}{line.cycles:g}"


def about(spots: HotSpots, instruction: HotInstruction) -> str:
    """Return the same for an instruction, with its active lanes or, in a thread trace, its executions."""
    cost = "" if instruction.cycles is None else f"{instruction.cycles:g} cycles to issue"
    lanes = "" if instruction.lanes is None else f"{instruction.lanes:.0f} lanes"
    runs = (
        f"ran {instruction.hits:,} times, {instruction.count / instruction.hits:.3g} cycles each"
        if instruction.hits
        else ""
    )
    return "; ".join(filter(None, (wait_text(spots, instruction.causes), lanes, runs, cost)))


def wait_text(spots: HotSpots, causes: Mapping[str, int]) -> str:
    """Return what the waves mostly do, in percent of all samples."""
    waits = (key for key in causes if key not in {"issued", "sampled"})
    key = next(waits, "issued" if "issued" in causes else "")
    share = spots.share(causes.get(key, 0))
    return f"{share:.{0 if share >= 1 else 1}f} % {CAUSES[key].says}" if key else ""


def to_json(spots: HotSpots) -> dict[str, Any]:
    """Return JSON-ready values."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(spots)
    return values | {"unit": spots.unit, "few": spots.few, "uncertainty_points": float(np.round(spots.uncertainty, 2))}
