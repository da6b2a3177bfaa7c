"""The bench report: records as tables, speedups and charts, and the templates' filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.bench.limits import few_queries
from rocattn_profiling.bench.model import ModelView, model_view
from rocattn_profiling.bench.view import (
    UNDECIDED,
    caches,
    config_text,
    undecided_notes,
    variant,
    winning_lengths,
    winning_lines,
)
from rocattn_profiling.measure.records import Place, by_place, place_names, place_of, to_builtins
from rocattn_profiling.measure.stats import (
    DISTURBED_CEILINGS,
    GPU_STANDARD,
    Speedup,
    Summary,
    newest,
    speedup,
    summarize,
)
from rocattn_profiling.pages.charts import Chart, ChartLine, ChartPoint, colour_of, line_chart
from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.pages.render import add_filters
from rocattn_profiling.workloads.grids import GRIDS
from rocattn_profiling.workloads.modules import WORKLOADS

if TYPE_CHECKING:
    from rocattn_profiling.measure.records import Commit, Machine, Record


SCHEMA = 1
BASELINE = "cpu"
"""Without it, the GPU's standard path is the baseline of a config."""
CHARTS = 6
"""Maximum number of charts per grid; those with the most points are kept, and the page states how many are omitted."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured record with its numbers; ``speedup`` is relative to the config's baseline backend."""

    record: Record
    config: AttentionConfig
    summary: Summary
    speedup: Speedup | None

    @property
    def verdict(self) -> str:
        """The speedup's interval relative to 1: "faster", "slower", "same" or "undecided"."""
        if self.speedup is None or self.speedup.undecided:
            return "" if self.speedup is None else UNDECIDED
        return "faster" if self.speedup.low > 1 else "slower" if self.speedup.high < 1 else "same"

    @property
    def wrong(self) -> bool:
        """Whether the output broke the accuracy rule."""
        return self.record.check is not None and not self.record.check.ok

    @property
    def error_ratio(self) -> float | None:
        """The error relative to float64 over the naive program's; None if that is 0 or nothing was checked."""
        check = self.record.check
        return check.max_abs_error / check.naive_max_abs_error if check and check.naive_max_abs_error else None


@dataclass(slots=True)
class Group:
    """A suite in one place: its rows by config and backend, skipped records, and charts of time over length.

    ``name`` is the suite's name, plus the place's if several places were measured; ``model`` is a model's passes, which
    have separate charts.
    """

    name: str
    suite: str
    rows: list[Row] = field(default_factory=list)
    skipped: list[Record] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    charts_left_out: int = 0
    model: ModelView | None = None

    def why_not(self, label: str, backend: str) -> str:
        """Return why a backend has no row for a config: the record's reason, or "" if it was not requested."""
        reasons = (r for r in self.skipped if r.label == label and r.backend == backend)
        return next((r.why_not for r in reasons), "")


@dataclass(frozen=True, slots=True)
class Measured:
    """A place with records: a unique name, its machine, and its measured ceilings."""

    name: str
    place: Place
    ceilings: dict[str, float]

    @property
    def machine(self) -> Machine:
        """Its machine."""
        return self.place.machine


@dataclass(slots=True)
class BenchReport:
    """The data for the templates.

    Attributes:
        backends: In color order.
        launches, disturbed: Process launches, and those that repeatedly lost the CPU to other processes.
        wrong: Records whose output broke the accuracy rule.
        command: The command that repeats the measurement.
    """

    groups: list[Group]
    backends: list[str]
    machines: list[Measured]
    commits: list[Commit]
    threads: list[int]
    data: list[str]
    measured: int
    launches: int
    disturbed: int
    checked: int
    wrong: list[Record]
    skipped: int
    command: str


def build(records: Iterable[Record]) -> BenchReport:
    """Build the report of records; a repeated measurement replaces the earlier one from the same place.

    Nothing is compared, charted or added up across places: each suite is a separate group in each place.

    Raises:
        RocattnError: When there are no records.
    """
    kept = newest(records)
    if not kept:
        raise RocattnError("there is no record to report")
    backends = order_backends(record.backend for record in kept)
    places = by_place(kept)
    names = place_names(places)
    suites = list(dict.fromkeys(record.suite for record in kept))
    groups = {
        (suite, place): Group(f"{suite} on {names[place]}" if len(places) > 1 else suite, suite)
        for suite in suites
        for place, members in places.items()
        if any(record.suite == suite for record in members)
    }
    base = {
        (place_of(r), r.suite, r.label): r
        for backend in (GPU_STANDARD, BASELINE)
        for r in kept
        if r.backend == backend and r.launches
    }
    for record in sorted(kept, key=lambda r: backends.index(r.backend)):
        group = groups[record.suite, place_of(record)]
        if record.skipped or not record.launches:
            group.skipped.append(record)
            continue
        config = AttentionConfig.from_dict(record.config)
        group.rows.append(
            Row(
                record,
                config,
                summarize(record),
                _against(base.get((place_of(record), record.suite, record.label)), record),
            )
        )
    for group in groups.values():
        labels = list(dict.fromkeys(r.label for r in kept if r.suite == group.suite))
        place = {name: at for at, name in enumerate([*labels, *backends])}
        group.rows.sort(key=lambda row: (place[row.record.label], place[row.record.backend]))
        group.model = model_view([*(row.record for row in group.rows), *group.skipped], backends)
        drawn = [] if group.model else scaling_charts(group.rows, backends)
        group.charts, group.charts_left_out = drawn[:CHARTS], max(0, len(drawn) - CHARTS)
    rows = [row for group in groups.values() for row in group.rows]
    measured = [row.record for row in rows]
    return BenchReport(
        groups=list(groups.values()),
        backends=backends,
        machines=[Measured(names[place], place, _ceilings(members)) for place, members in places.items()],
        commits=list({r.commit.sha + str(r.commit.dirty): r.commit for r in kept if r.commit}.values()),
        threads=sorted({r.threads for r in kept}),
        data=list(dict.fromkeys(f"{r.data} (seed {r.seed})" for r in kept)),
        measured=len(measured),
        launches=sum(row.summary.launches for row in rows),
        disturbed=sum(row.summary.disturbed_launches for row in rows),
        checked=sum(r.check is not None for r in measured),
        wrong=[r for r in measured if r.check is not None and not r.check.ok],
        skipped=sum(len(g.skipped) for g in groups.values()),
        command=reproduce(kept, backends),
    )


def _ceilings(records: Iterable[Record]) -> dict[str, float]:
    """Return the most recent ceilings in the records of one place."""
    return {name: value for record in records for name, value in record.ceilings.items()}


def order_backends(names: Iterable[str]) -> list[str]:
    """Return backend names, the baseline first."""
    return sorted(set(names), key=lambda name: (name != BASELINE, name != GPU_STANDARD, name))


def reproduce(records: Sequence[Record], backends: Sequence[str]) -> str:
    """Return the command that measures the same configs with the same backends and inputs."""
    configs = {record.label: AttentionConfig.from_dict(record.config) for record in records}
    suites = list(dict.fromkeys(record.suite for record in records))
    first = next(iter(configs.values()))
    parts = ["rocattn bench"]
    if options := dict.fromkeys(record.option for record in records if record.option):
        parts.append(_joined_options(options))
    elif grids := [suite for suite in suites if suite in GRIDS]:
        parts.append(f"--grid {' '.join(grids)}")
        quick = {c.label for g in grids for c in GRIDS[g].configs(quick=True)}
        forward = {c.replace(dtype="float32", layout="BSHD", direction="forward").label for c in configs.values()}
        parts += ["--quick"] * (forward <= quick)
    else:
        sizes = ("batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v")
        parts += [f"--{name.replace('_', '-')} {getattr(first, name)}" for name in sizes]
        parts += ["--causal"] * first.causal
    parts.append(f"--backend {' '.join(backends)}")
    for name, default in (("direction", "forward"), ("layout", "BSHD"), ("dtype", "float32")):
        if (value := getattr(first, name)) != default:
            parts.append(f"--{name} {value}")
    parts += [f"--data {records[0].data}"] * (records[0].data != "normal")
    parts += [f"--seed {records[0].seed}"] * bool(records[0].seed)
    parts += [f"--threads {records[0].threads}"] * bool(records[0].threads)
    warm = (record.caches == "warm" and few_queries(configs[record.label]) for record in records if record.launches)
    parts += ["--warm"] * (any(warm) and not any(option.startswith("--modules") for option in options))
    return " ".join(parts)


def _joined_options(options: Iterable[str]) -> str:
    """Return the combined options of modules, or those of the first model: each model needs a separate command."""
    options = list(options)
    modules = [option.split() for option in options if option.startswith("--modules ")]
    if not modules:
        return options[0]
    quick = " --quick" if all("--quick" in words for words in modules) else ""
    return f"--modules {' '.join(dict.fromkeys(words[1] for words in modules))}{quick}"


def scaling_charts(rows: Sequence[Row], backends: Sequence[str]) -> list[Chart]:
    """Return charts of time over sequence length, one per set of other sizes with at least two lengths."""
    square = all(row.config.head_dim == row.config.seq_k for row in rows)
    variants: dict[str, list[Row]] = {}
    for row in rows:
        variants.setdefault(variant(row.config, square=square), []).append(row)
    charts = []
    for name, members in sorted(variants.items(), key=lambda item: -len(item[1])):
        lengths = sorted({row.config.seq_k for row in members})
        if len(lengths) < 2 or lengths[0] < 1:
            continue
        traces = []
        for backend in backends:
            own = sorted((r for r in members if r.record.backend == backend), key=lambda r: r.config.seq_k)
            values = [
                ChartPoint(
                    r.config.seq_k, r.summary.p50_ns / 1e9, _tooltip(r), r.summary.min_ns / 1e9, r.summary.p95_ns / 1e9
                )
                for r in own
            ]
            if values:
                traces.append(ChartLine(backend, colour_of(backend, backends), values))
        charts.append(
            line_chart(
                traces,
                title=name,
                description=f"median time against sequence length for {', '.join(t.name for t in traces)}",
                unit="seconds",
                x_ticks=[(n, str(n)) for n in lengths],
                x_label="n (tokens and dimensions)" if square else "Sk (tokens)",
                x_log=True,
                size=(360, 240),
            )
        )
    return charts


def _tooltip(row: Row) -> str:
    s = row.summary
    return (
        f"{row.record.backend}, {row.record.label}: median {quantity(s.p50_ns / 1e9, 'seconds')} "
        f"(min {quantity(s.min_ns / 1e9, 'seconds')}, p95 {quantity(s.p95_ns / 1e9, 'seconds')})"
    )


def _against(base: Record | None, record: Record) -> Speedup | None:
    if base is None or record.backend == base.backend or not base.pair or base.pair != record.pair:
        return None
    try:
        return speedup(base, record)
    except RocattnError:  # no shared launch (an interrupted run): nothing to compare
        return None


def speedup_text(value: Speedup | None) -> str:
    """Format a speedup with its interval ("1.42x [1.38, 1.46]"), or "undecided" if it is not meaningful."""
    if value is None or value.ratio is None:
        return "" if value is None else UNDECIDED
    return f"{digits(value.ratio)}x [{digits(value.low)}, {digits(value.high)}]"


def interval_text(value: Speedup | None) -> str:
    """Return the tooltip of an undecided speedup: the reason and the interval; "" for any other."""
    if value is None or value.undecided is None:
        return ""
    return f"{digits(value.low)} to {digits(value.high)}: {value.undecided.line}"


def to_json(report: BenchReport) -> dict[str, Any]:
    """Return the report as JSON-ready values: computed numbers and the records with their raw samples."""
    rows = [
        {
            "id": row.record.id,
            "suite": group.suite,
            "machine": row.record.machine.name,
            "host": row.record.host,
            "backend": row.record.backend,
            "label": row.record.label,
            "summary": msgspec.to_builtins(row.summary),
            "speedup": msgspec.to_builtins(row.speedup),
            "check": msgspec.to_builtins(row.record.check),
        }
        for group in report.groups
        for row in group.rows
    ]
    skipped = [
        {"id": r.id, "machine": r.machine.name, "host": r.host, "status": r.status, "reason": r.why_not}
        for g in report.groups
        for r in g.skipped
    ]
    records = [row.record for group in report.groups for row in group.rows] + [
        r for g in report.groups for r in g.skipped
    ]
    return {
        "schema": SCHEMA,
        "measured": report.measured,
        "launches": report.launches,
        "disturbed_launches": report.disturbed,
        "wrong": [r.id for r in report.wrong],
        "command": report.command,
        "machines": [
            {**msgspec.to_builtins(m.machine), "host": m.place.host, "ceilings": m.ceilings} for m in report.machines
        ],
        "commits": msgspec.to_builtins(report.commits),
        "rows": rows,
        "winning_lengths": msgspec.to_builtins(winning_lengths(records)),
        "skipped": skipped,
        "records": to_builtins(records),
    }


def by_config(group: Group) -> list[tuple[str, dict[str, Row]]]:
    """Return (label, rows by backend) in the group's order."""
    rows_of: dict[str, dict[str, Row]] = {}
    for row in group.rows:
        rows_of.setdefault(row.record.label, {})[row.record.backend] = row
    return list(rows_of.items())


def best_rate(rows: Mapping[str, Row]) -> str:
    """Return the highest rate of exact FLOPs among the backends."""
    return quantity(max(row.summary.tflops for row in rows.values()) * 1e12, "FLOP/s")


def worst_error(rows: Mapping[str, Row]) -> str:
    """Format the largest error as a multiple of the naive program's; "exact" if both are 0."""
    if any(row.record.check and row.record.check.not_finite for row in rows.values()):
        return "NaN or inf"
    ratios = [ratio for row in rows.values() if (ratio := row.error_ratio) is not None]
    if ratios:
        return f"{digits(max(ratios), 2)}x"
    return "exact" if any(row.record.check for row in rows.values()) else "not checked"


def any_wrong(rows: Mapping[str, Row]) -> bool:
    """Return whether an output broke the accuracy rule."""
    return any(row.wrong for row in rows.values())


def ceiling(name: str, value: float) -> str:
    """Format a measured limit ("gemm 0.09 TFLOP/s")."""
    if name == DISTURBED_CEILINGS:
        return "disturbed by other processes"
    stem, _, unit = name.rpartition("_")
    return f"{stem.replace('_', ' ')} {digits(value)} {'GB/s' if unit == 'gbps' else 'TFLOP/s'}"


def of_ceiling(summary: Summary, name: str) -> str:
    """Format a percentage of a measured limit: "gemm_pct" or "memory_pct" of a summary."""
    pct = getattr(summary, name)
    return UNDECIDED if name in summary.undecided else "" if pct is None else digits(pct)


def notes(group: Group) -> list[str]:
    """Return a line for each reason why the group's table says "undecided"."""
    return undecided_notes((row.summary for row in group.rows), (row.speedup for row in group.rows))


def winning(group: Group) -> list[str]:
    """Return the sequence lengths from which flash attention wins, in the terminal's words."""
    return winning_lines(row.record for row in group.rows)


def speedup_notes(group: Group) -> list[str]:
    """Return the lines of `notes` about speedups, for tables without percentages of ceilings."""
    return undecided_notes((), (row.speedup for row in group.rows))


def _legend(report: BenchReport) -> list[tuple[str, int]]:
    return [(backend, colour_of(backend, report.backends)) for backend in report.backends]


def prepare_templates() -> None:
    """Register the record filters for templates."""
    filters: dict[str, Callable[..., Any]] = {
        "speedup": speedup_text, "interval": interval_text, "by_config": by_config, "best_rate": best_rate,
        "worst_error": worst_error, "any_wrong": any_wrong, "ceiling": ceiling, "of_ceiling": of_ceiling,
        "legend": _legend, "undecided_notes": notes, "speedup_notes": speedup_notes, "winning": winning,
        "config_text": config_text, "caches": lambda group: caches(row.record for row in group.rows),
    }  # fmt: skip
    descriptions = {name: suite.description for name, suite in (GRIDS | WORKLOADS).items()}
    add_filters(filters, descriptions=descriptions)
