"""The metrics of ``definitions.toml``: their meaning and their formulas over counters."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rocattn.errors import RocattnError
from rocattn_profiling.profile.metrics.formula import Formula


class DefinitionError(RocattnError):
    """A metric that contradicts itself or refers to an unknown name."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One formula for a metric.

    Attributes:
        arch: The targets it applies to.
        formula: Uses counters (capitals, or the profilers' names of derived ones), metrics and constants.
        one_pass: Whether its counters must come from one run of the application.
        source: Its reference.
    """

    arch: re.Pattern[str]
    formula: Formula
    one_pass: bool
    source: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; the head of ``definitions.toml`` explains the fields."""

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
        """Return its formulas on one target, in order of preference."""
        return tuple(each for each in self.alternatives if each.arch.fullmatch(arch))


@dataclass(frozen=True, slots=True)
class CounterRule:
    """A consistency rule for counters.

    Attributes:
        arch: The targets it applies to.
        part, whole: Two counters; the first cannot exceed the second; "" for a rule about names.
        foreign: Names that are meaningless on these targets, or None.
        why: The reason, for the report.
    """

    arch: re.Pattern[str]
    part: str
    whole: str
    foreign: re.Pattern[str] | None
    why: str


@dataclass(frozen=True, slots=True)
class Caution:
    """A known defect of counters that cannot be detected in the files.

    Attributes:
        arch: The targets it applies to.
        counters: Their names.
        metrics: The affected metrics; empty for all.
        whole_cus: Target -> number of compute units of the chips that are not affected.
        why: What may be wrong, for the report.
    """

    arch: re.Pattern[str]
    counters: re.Pattern[str]
    metrics: frozenset[str]
    whole_cus: dict[str, int]
    why: str

    def concerns(self, metric: str, way: Alternative, arch: str, cus: float) -> bool:
        """Whether it applies to a metric by one formula, on a target with this many compute units (NaN: any)."""
        if not self.arch.fullmatch(arch) or (self.metrics and metric not in self.metrics):
            return False
        return self.whole_cus.get(arch) != cus and any(map(self.counters.fullmatch, way.formula.names))


@dataclass(frozen=True, slots=True)
class Definitions:
    """All of ``definitions.toml``; each metric comes after those it is computed from."""

    metrics: tuple[Metric, ...]
    checks: tuple[CounterRule, ...]
    cautions: tuple[Caution, ...]

    def cautions_of(self, metric: str, way: Alternative, arch: str, cus: float) -> tuple[str, ...]:
        """Return the cautions for the counters in a metric's formula, on a target with this many compute units."""
        return tuple(each.why for each in self.cautions if each.concerns(metric, way, arch, cus))

    def counters(self, arch: str) -> dict[str, tuple[frozenset[str], ...]]:
        """Return by metric the counters of each of its formulas on a target, with other metrics resolved.

        Metrics without a formula on the target are left out.
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
        DefinitionError: If a metric refers to a later one, or is defined twice.
        FormulaError: If a formula is not arithmetic.
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
            raise DefinitionError(f"the metric {table['key']} uses {', '.join(unknown)}, not defined before it")
        if table["key"] in metrics or table["kind"] not in {"ratio", "amount"}:
            raise DefinitionError(f"the metric {table['key']} is defined twice, or its kind is unknown")
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
