"""The metrics of ``definitions.toml``: what each means and how it follows from counters."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rocattn.errors import RocattnError
from rocattn_profiling.profile.metrics.formula import Formula


class DefinitionError(RocattnError):
    """A metric that contradicts itself or names what there is not."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to a metric.

    Attributes:
        arch: The targets that it is for.
        formula: Over counters (capitals or the profilers' own derived names), metrics and constants.
        one_pass: Whether its counters must come from one run of the application.
        source: Where it is from.
    """

    arch: re.Pattern[str]
    formula: Formula
    one_pass: bool
    source: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; see the head of ``definitions.toml`` for the meaning of each field."""

    key: str
    title: str
    unit: str
    group: str
    about: str
    is_ratio: bool
    least: float | None
    most: Formula | None
    slack: float
    alternatives: tuple[Alternative, ...]

    def for_arch(self, arch: str) -> tuple[Alternative, ...]:
        """Return the ways to it on one target, the preferred first."""
        return tuple(each for each in self.alternatives if each.arch.fullmatch(arch))


@dataclass(frozen=True, slots=True)
class CounterRule:
    """What counters must obey among themselves.

    Attributes:
        arch: The targets that it is for.
        part, whole: Counters of which the first cannot exceed the second; empty for a rule about names.
        foreign: Names that mean nothing on these targets, or None.
        why: The reason, for people.
    """

    arch: re.Pattern[str]
    part: str
    whole: str
    foreign: re.Pattern[str] | None
    why: str


@dataclass(frozen=True, slots=True)
class Caution:
    """What is to be known of counters that nothing in the files shows to be wrong.

    Attributes:
        arch: The targets that it is for.
        counters: Their names.
        metrics: Of which alone it is said; empty for all.
        whole_cus: Compute units of chips, by target, that it does not concern.
        why: What may be wrong, for people.
    """

    arch: re.Pattern[str]
    counters: re.Pattern[str]
    metrics: frozenset[str]
    whole_cus: dict[str, int]
    why: str

    def concerns(self, metric: str, way: Alternative, arch: str, cus: float) -> bool:
        """Whether it is to be said of a metric by one formula, on a target with so many compute units (NaN: any)."""
        if not self.arch.fullmatch(arch) or (self.metrics and metric not in self.metrics):
            return False
        return self.whole_cus.get(arch) != cus and any(map(self.counters.fullmatch, way.formula.names))


@dataclass(frozen=True, slots=True)
class Definitions:
    """All of ``definitions.toml``; metrics in an order in which each comes after those that it is made of."""

    metrics: tuple[Metric, ...]
    checks: tuple[CounterRule, ...]
    cautions: tuple[Caution, ...]

    def cautions_of(self, metric: str, way: Alternative, arch: str, cus: float) -> tuple[str, ...]:
        """Return what to know of the counters that a metric's formula reads on a target with so many compute units."""
        return tuple(each.why for each in self.cautions if each.concerns(metric, way, arch, cus))

    def counters(self, arch: str) -> dict[str, tuple[frozenset[str], ...]]:
        """Return what each metric's ways on a target need of counters, other metrics resolved, by metric.

        Ways that need nothing from the GPU but its constants do not occur.
        """
        needs: dict[str, tuple[frozenset[str], ...]] = {}
        for metric in self.metrics:
            ways: list[frozenset[str]] = []
            for way in metric.for_arch(arch):
                combinations: list[frozenset[str]] = [frozenset()]
                for name in sorted(way.formula.names):
                    choices = needs.get(name, (frozenset({name}),) if name not in CONSTANTS else (frozenset(),))
                    combinations = [have | more for have in combinations for more in choices]
                ways += combinations
            if ways:
                needs[metric.key] = tuple(dict.fromkeys(ways))
        return needs


CONSTANTS = frozenset({
    "duration_ns", "cus", "simds_per_cu", "waves_per_cu", "xcds", "lds_banks", "clock_mhz", "peak_gbps",
    "peak_matrix_tflops", "peak_vector_tflops", "l2_channels", "grid_threads", "block_threads", "wave_size",
    "work_flops", "work_bytes",
})  # fmt: skip
"""Names in formulas that are neither counters nor metrics; see the head of ``definitions.toml``."""


@cache
def definitions() -> Definitions:
    """Read ``definitions.toml``.

    Raises:
        DefinitionError: When a metric names what comes after it, or is there twice.
        FormulaError: When a formula is no arithmetic.
    """
    tables = tomllib.loads(files(__package__).joinpath("definitions.toml").read_text("utf-8"))
    named = {name: f"(?:{pattern})" for name, pattern in tables["archs"].items()}

    def archs(text: str) -> re.Pattern[str]:
        return re.compile("|".join(named.get(part, part) for part in text.split("|")))

    metrics: dict[str, Metric] = {}
    for table in tables["metric"]:
        ways = tuple(
            Alternative(archs(way["arch"]), Formula.parse(way["of"]), way.get("one_pass", False), way["source"])
            for way in table["formulas"]
        )
        most = Formula.parse(table["most"]) if "most" in table else None
        names = {name for way in ways for name in way.formula.names} | (most.names if most else frozenset())
        if unknown := sorted(n for n in names if n.islower() and n not in metrics and n not in CONSTANTS):
            raise DefinitionError(f"the metric {table['key']} is made of {', '.join(unknown)}, not defined before it")
        if table["key"] in metrics or table["kind"] not in {"ratio", "amount"}:
            raise DefinitionError(f"the metric {table['key']} is there twice, or its kind is unknown")
        metrics[table["key"]] = Metric(
            table["key"], table["title"], table["unit"], table["group"], table["about"], table["kind"] == "ratio",
            table.get("least"), most, table.get("slack", 0.0), ways,
        )  # fmt: skip
    checks = tuple(
        CounterRule(
            archs(table["arch"]), table.get("part", ""), table.get("whole", ""),
            re.compile(table["foreign"]) if "foreign" in table else None, table["why"],
        )
        for table in tables["check"]
    )  # fmt: skip
    cautions = tuple(
        Caution(
            archs(table["arch"]), re.compile(table["counters"]), frozenset(table.get("metrics", ())),
            table.get("whole_cus", {}), table["why"],
        )
        for table in tables["caution"]
    )  # fmt: skip
    return Definitions(tuple(metrics.values()), checks, cautions)
