"""How close each kernel is to the hardware limits of ``limits.toml``, the closest first."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.gpus import attainable_gbps
from rocattn_profiling.profile.collect.find import METHODS
from rocattn_profiling.profile.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.metrics.formula import Condition, Formula, RuleError, fill, places
from rocattn_profiling.profile.report.records import Bound, Bounds, Clause, HardwareLimit

if TYPE_CHECKING:
    import pandas as pd

MEASURED = {"measured_gbps": "HBM", "measured_l2_gbps": "L2", "measured_l1_gbps": "L1"}
"""Names other than metrics and constants: bandwidths in GB/s -> roofs in roofline.csv."""
ATTAINABLE = "attainable_gbps"
"""Another such name: the bandwidth that copies reach on this GPU, in GB/s."""
LINES = "lines"
"""The only placeholder in a next command: the command that shows the cost of source lines."""
NEAR = 50.0
"""Percent of a limit from which it bounds a kernel: the same work can gain at most the rest."""
_OF_MEASURED = "{:.0f} % of what roofline.csv's benchmark reached"
_OF_COPIES = "{:.0f} % of the {attainable_tbps:.1f} TB/s that copies reach on it"
_WAITING = "waiting for the caches and the memory included"
_MOST = 100.5  # largest percentage of a peak that rounding explains


def bounds(
    numbers: Mapping[str, float], arch: str, too_low: AbstractSet[str] = frozenset(), *, sampled: bool = False
) -> Bounds:
    """Return how close one kernel is to each limit.

    Args:
        numbers: Metrics by key, constants of the GPU, and the known names of `MEASURED`.
        arch: The GPU's architecture; "" if unknown, in which case nothing counts as uncountable.
        too_low: Per-cycle numbers that are too low because they include the profiler's own cycles.
        sampled: Whether the profile has PC samples or a thread trace of the kernel.
    """
    words = {LINES: lines_command(arch, sampled=sampled)}
    by_limit = {limit.key: bound for limit in limits() if (bound := _bound(limit, numbers, too_low, words))}
    known = {key for key, bound in by_limit.items() if not bound.is_part}
    unknown = [limit for limit in limits() if limit.essential and limit.key not in known]
    uncountable = tuple(limit for limit in unknown if arch and not limit.countable(arch))
    near = any(bound.pct >= NEAR and not bound.is_waiting for bound in by_limit.values())
    return Bounds(
        tuple(sorted(by_limit.values(), key=lambda bound: (near and bound.is_waiting, -bound.pct))),
        tuple(limit for limit in unknown if limit not in uncountable),
        uncountable,
        frozenset(
            limit.key for limit in unknown for way in limit.exact
            if way.names <= numbers.keys() and way.evaluate(numbers) > _MOST
        ),
    )  # fmt: skip


def lines_command(arch: str, *, sampled: bool = False) -> str:
    """Return the command that shows the cost of source lines; "" if the profile already has samples.

    It collects PC samples if the GPU supports them, and otherwise audits the machine code.
    """
    if sampled:
        return ""
    if arch in METHODS:
        return "rocattn profile --pc-sampling -- COMMAND"
    return "rocattn kernels audit FILE --lines"


def _bound(
    limit: HardwareLimit, numbers: Mapping[str, float], too_low: AbstractSet[str], words: Mapping[str, str]
) -> Bound | None:
    known = dict(numbers)
    for name, formula in limit.let.items():
        if formula.names <= known.keys():
            known[name] = float(formula.evaluate(known))
    # The largest share; among equal shares an exact one.
    shares = [
        (float(way.evaluate(numbers)), not is_least, way)
        for is_least, ways in ((False, limit.exact), (True, (*limit.at_least, *limit.parts)))
        for way in ways
        if way.names <= numbers.keys()
    ]
    is_waiting = False
    if not shares:
        shares = [(float(way.evaluate(numbers)), True, way) for way in limit.waiting if way.names <= numbers.keys()]
        is_waiting = not all(each.holds(known) for each in limit.sure)
    if not shares:
        return None
    pct, is_exact, way = max(shares, key=lambda share: share[:2])
    if pct > _MOST:
        return None  # another level (an Infinity Cache) served part of it, so this level's share is unknown
    is_least = not is_exact or bool(way.names & too_low)
    said = [clause.says for clause in limit.notes if _holds(clause, known)]
    advice, command = (
        next((fill(clause.says, known, words) for clause in clauses if _holds(clause, known)), "")
        for clauses in (limit.advice, limit.next)
    )
    of = fill(limit.of, known) if places(limit.of) <= known.keys() else ""
    of_measured, clauses = None, []
    for formula, clause in limit.measured:
        if formula.names <= known.keys() and (share := float(formula.evaluate(known))) <= 100:
            of_measured, clauses = share, [clause.format(share, **known)]  # more than it reached: it does not apply
            break
    used = way.names.union(*map(places, said))
    where = " ".join(filter(None, (f"at {pct:.0f} %", of, "or more" if is_least else "")))
    clauses += [_WAITING] if way in limit.waiting else []
    notes = ", ".join([*clauses, *(fill(each, known) for each in said)])
    numbers_used = {name: known[name] for name in sorted(used)}
    name = limit.waiting_name if is_waiting else limit.name
    advice = limit.waiting_advice if is_waiting else advice
    return Bound(
        limit.key, name, min(pct, 100.0), is_least, way in limit.parts, where, notes, advice, limit.label,
        limit.less, command, numbers_used, of_measured, is_waiting,
    )  # fmt: skip


def _holds(clause: Clause, known: Mapping[str, float]) -> bool:
    return places(clause.says) - {LINES} <= known.keys() and all(each.holds(known) for each in clause.when)


@cache
def limits() -> tuple[HardwareLimit, ...]:
    """Read ``limits.toml``.

    Raises:
        RuleError: If a limit refers to an unknown name.
    """
    text = files(__package__).joinpath("limits.toml").read_text("utf-8")
    return tuple(_limit(table) for table in tomllib.loads(text)["limit"])


def _limit(table: dict[str, Any]) -> HardwareLimit:
    key = str(table["key"])

    def clauses(name: str) -> tuple[Clause, ...]:
        return tuple(
            Clause(tuple(Condition.parse(key, each) for each in clause.get("when", ())), clause["says"])
            for clause in table.get(name, ())
        )

    def formulas(name: str) -> tuple[Formula, ...]:
        return tuple(Formula.parse(text) for text in table.get(name, ()))

    let = {name: Formula.parse(formula) for name, formula in table.get("let", {}).items()}
    limit = HardwareLimit(
        key, table["name"], table["of"], formulas("exact"), formulas("at_least"), formulas("parts"),
        tuple(table["counted_by"]), table.get("essential", False),
        tuple(
            (Formula.parse(table[name]), text)
            for name, text in (("measured", _OF_MEASURED), ("attainable", _OF_COPIES)) if name in table
        ),
        formulas("waiting"), table.get("waiting_name", ""), table.get("waiting_advice", ""),
        tuple(Condition.parse(key, each) for each in table.get("sure", ())),
        let, clauses("note"), clauses("advice"), table["label"], table["less"], clauses("next"),
    )  # fmt: skip
    shares = (*limit.exact, *limit.at_least, *limit.parts, *limit.waiting, *(formula for formula, _ in limit.measured))
    names = {name for each in (*shares, *let.values()) for name in each.names}
    names |= {name for each in limit.sure for name in each.names}
    for clause in (*limit.notes, *limit.advice, *limit.next):
        names |= places(clause.says) | {name for each in clause.when for name in each.names}
    names |= places(limit.of) | set(limit.counted_by)
    _refuse_unknown(key, names - set(let) - CONSTANTS - MEASURED.keys() - {LINES, ATTAINABLE})
    return limit


def _refuse_unknown(key: str, names: Iterable[str]) -> None:
    metrics = {metric.key for metric in definitions().metrics}
    if unknown := sorted(set(names) - metrics):
        raise RuleError(f"the limit {key} refers to unknown names: {', '.join(unknown)}")


def measured_roofs(device: Device, roofs: pd.DataFrame) -> dict[str, float]:
    """Return the measured roofs next to the device's own file, by name: one each, because its GPUs are equal."""
    beside = [str(Path(str(file)).parent) == device.folder for file in roofs["file"]]
    rows: list[dict[Hashable, Any]] = roofs[beside].drop_duplicates("roof").to_dict("records")
    # rocprof-compute's benchmark counts 64 bytes per L1 access; its counters count a line, 128 bytes from CDNA 3 on.
    scale = {"L1": 2.0 if device.arch.startswith(("gfx94", "gfx95")) else 1.0}
    return {str(row["roof"]): float(row["mean"]) * scale.get(row["roof"], 1.0) for row in rows if row["mean"] > 0}


def measured_bandwidths(device: Device, roofs: pd.DataFrame) -> dict[str, float]:
    """Return the memory levels' bandwidths in GB/s, by name, as measured by a benchmark of the same run.

    Without such a benchmark it is the bandwidth that copies reach on the product (`ATTAINABLE`), if known.
    """
    measured = measured_roofs(device, roofs)
    known = {name: measured[roof] for name, roof in MEASURED.items() if roof in measured}
    copies = attainable_gbps(device.name)
    return known if "measured_gbps" in known or copies is None else known | {ATTAINABLE: copies}
