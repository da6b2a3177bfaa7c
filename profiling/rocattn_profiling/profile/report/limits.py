"""How close each kernel is to the hardware limits of ``limits.toml``, the closest first."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rocattn_profiling.profile.collect.find import METHODS
from rocattn_profiling.profile.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.profile.metrics.formula import Condition, Formula, RuleError, fill, places

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

MEASURED = {"measured_gbps": "HBM", "measured_l2_gbps": "L2", "measured_l1_gbps": "L1"}
"""The names that are neither metrics nor constants: bandwidths in GB/s, and the roofs of roofline.csv that they are."""
LINES = "lines"
"""The one word in what to run next: the command that shows the cost of source lines."""
NEAR = 50.0
"""Percent of a limit from which it bounds a kernel: the same work can gain at most the rest."""
_OF_MEASURED = "{:.0f} % of what roofline.csv's benchmark reached"
_MOST = 100.5  # percent of a peak that rounding may show


@dataclass(frozen=True, slots=True)
class _Clause:
    when: tuple[Condition, ...]
    says: str


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """One limit; see the head of ``limits.toml`` for the meaning of each field."""

    key: str
    name: str
    of: str
    exact: tuple[Formula, ...]
    at_least: tuple[Formula, ...]
    parts: tuple[Formula, ...]
    counted_by: tuple[str, ...]
    essential: bool
    measured: Formula | None
    let: dict[str, Formula]
    notes: tuple[_Clause, ...]
    advice: tuple[_Clause, ...]
    label: str
    less: str
    next: tuple[_Clause, ...]

    def countable(self, arch: str) -> str:
        """Return the metric that an architecture counts it by; "" if it has none."""
        ways = {metric.key: metric.for_arch(arch) for metric in definitions().metrics if metric.key in self.counted_by}
        return next((key for key in self.counted_by if ways[key]), "")


@dataclass(frozen=True, slots=True)
class Bound:
    """How near a kernel is to one limit.

    Attributes:
        key, name: Of the limit.
        pct: Its share of the limit; 0 to 100.
        is_least: Whether it may be nearer than that.
        is_part: Whether only a part of the work was counted.
        where: The share in words: "at 79 % of the time or more".
        notes: Further observations in words; "" for none.
        advice: How to make a kernel at this limit faster.
        label: What the share is of: "LDS busy".
        less: What gains more than the same work can: "fewer LDS cycles".
        command: What to run to find the cause.
        numbers: The inputs of the share and the numbers of the notes, by name.
        of_measured: Percent of what a benchmark of the same run reached; None if there is none.
    """

    key: str
    name: str
    pct: float
    is_least: bool
    is_part: bool
    where: str
    notes: str
    advice: str
    label: str
    less: str
    command: str
    numbers: dict[str, float]
    of_measured: float | None = None

    @property
    def reached(self) -> float:
        """Percent of what is within reach: of the peak, or of what the benchmark reached, if that is less."""
        return max(self.pct, self.of_measured or 0.0)

    @property
    def short(self) -> str:
        """The limit and the share: "LDS at least 79 %"."""
        return f"{self.name} {'at least ' if self.is_least else ''}{self.pct:.0f} %"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How close a kernel is to all limits.

    Attributes:
        known: The limits with a known share, the nearest first.
        uncounted: Essential limits that the GPU can count, but whose share is unknown or known only in part.
        uncountable: Essential limits that it cannot count.
    """

    known: tuple[Bound, ...]
    uncounted: tuple[HardwareLimit, ...]
    uncountable: tuple[HardwareLimit, ...]

    @property
    def nearest(self) -> Bound | None:
        """The limit that is nearest, of those that are known."""
        return self.known[0] if self.known else None

    def without(self, keys: AbstractSet[str]) -> float:
        """Return what the nearest of all limits but these has reached; 0 if nothing is known of any."""
        return max((bound.reached for bound in self.known if bound.key not in keys), default=0.0)


def bounds(numbers: Mapping[str, float], arch: str, too_low: AbstractSet[str] = frozenset()) -> Bounds:
    """Return how near one kernel is to each limit.

    Args:
        numbers: Metrics by key, constants of the GPU, and the names of `MEASURED`, as far as known.
        arch: The GPU's architecture; "" if unknown; then nothing counts as uncountable.
        too_low: The numbers that are too low: per cycle, with the profiler's own cycles included.
    """
    words = {LINES: lines_command(arch)}
    by_limit = {limit.key: bound for limit in limits() if (bound := _bound(limit, numbers, too_low, words))}
    known = {key for key, bound in by_limit.items() if not bound.is_part}
    unknown = [limit for limit in limits() if limit.essential and limit.key not in known]
    uncountable = tuple(limit for limit in unknown if arch and not limit.countable(arch))
    return Bounds(
        tuple(sorted(by_limit.values(), key=lambda bound: -bound.pct)),
        tuple(limit for limit in unknown if limit not in uncountable),
        uncountable,
    )


def lines_command(arch: str) -> str:
    """Return what shows the cost of source lines: PC samples where the GPU takes them, else the machine code."""
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
    # The largest share, and of equal ones an exact one.
    shares = [
        (float(way.evaluate(numbers)), not is_least, way)
        for is_least, ways in ((False, limit.exact), (True, (*limit.at_least, *limit.parts)))
        for way in ways
        if way.names <= numbers.keys()
    ]
    if not shares:
        return None
    pct, is_exact, way = max(shares, key=lambda share: share[:2])
    if pct > _MOST:
        return None  # another level (an Infinity Cache) served a part, so the share of this one is unknown
    is_least = not is_exact or bool(way.names & too_low)
    said = [clause.says for clause in limit.notes if _holds(clause, known)]
    advice, command = (
        next((fill(clause.says, known, words) for clause in clauses if _holds(clause, known)), "")
        for clauses in (limit.advice, limit.next)
    )
    of = fill(limit.of, known) if places(limit.of) <= known.keys() else ""
    of_measured = None
    if limit.measured and limit.measured.names <= known.keys():
        share = float(limit.measured.evaluate(known))
        of_measured = share if share <= 100 else None  # beyond it the benchmark says nothing
    used = way.names.union(*map(places, said))
    where = " ".join(filter(None, (f"at {pct:.0f} %", of, "or more" if is_least else "")))
    clauses = [] if of_measured is None else [_OF_MEASURED.format(of_measured)]
    notes = ", ".join([*clauses, *(fill(each, known) for each in said)])
    numbers_used = {name: known[name] for name in sorted(used)}
    return Bound(
        limit.key, limit.name, min(pct, 100.0), is_least, way in limit.parts, where, notes, advice, limit.label,
        limit.less, command, numbers_used, of_measured,
    )  # fmt: skip


def _holds(clause: _Clause, known: Mapping[str, float]) -> bool:
    return places(clause.says) - {LINES} <= known.keys() and all(each.holds(known) for each in clause.when)


@cache
def limits() -> tuple[HardwareLimit, ...]:
    """Read ``limits.toml``.

    Raises:
        RuleError: When a limit refers to an unknown name.
    """
    text = files(__package__).joinpath("limits.toml").read_text("utf-8")
    return tuple(_limit(table) for table in tomllib.loads(text)["limit"])


def _limit(table: dict[str, Any]) -> HardwareLimit:
    key = str(table["key"])

    def clauses(name: str) -> tuple[_Clause, ...]:
        return tuple(
            _Clause(tuple(Condition.parse(key, each) for each in clause.get("when", ())), clause["says"])
            for clause in table.get(name, ())
        )

    def formulas(name: str) -> tuple[Formula, ...]:
        return tuple(Formula.parse(text) for text in table.get(name, ()))

    let = {name: Formula.parse(formula) for name, formula in table.get("let", {}).items()}
    limit = HardwareLimit(
        key, table["name"], table["of"], formulas("exact"), formulas("at_least"), formulas("parts"),
        tuple(table["counted_by"]), table.get("essential", False),
        Formula.parse(table["measured"]) if "measured" in table else None, let, clauses("note"), clauses("advice"),
        table["label"], table["less"], clauses("next"),
    )  # fmt: skip
    names = {name for formula in (*limit.exact, *limit.at_least, *limit.parts, *let.values()) for name in formula.names}
    for clause in (*limit.notes, *limit.advice, *limit.next):
        names |= places(clause.says) | {name for each in clause.when for name in each.names}
    names |= places(limit.of) | set(limit.counted_by) | (limit.measured.names if limit.measured else frozenset())
    _refuse_unknown(key, names - set(let) - CONSTANTS - MEASURED.keys() - {LINES})
    return limit


def _refuse_unknown(key: str, names: Iterable[str]) -> None:
    metrics = {metric.key for metric in definitions().metrics}
    if unknown := sorted(set(names) - metrics):
        raise RuleError(f"the limit {key} names {', '.join(unknown)}, which nothing gives")
