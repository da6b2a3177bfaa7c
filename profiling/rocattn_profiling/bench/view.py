"""The output of ``rocattn bench``: tables for users, one JSON value for programs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.config import AttentionConfig
from rocattn_profiling.base.console import emit_json, print_table, say
from rocattn_profiling.base.reasons import Coverage, NotCompared
from rocattn_profiling.base.status import OK
from rocattn_profiling.measure import stats
from rocattn_profiling.measure.records import Place, by_place, coverage_of, place_names, written_into
from rocattn_profiling.pages import render
from rocattn_profiling.workloads.grids import GRIDS

if TYPE_CHECKING:
    from rocattn_profiling.bench.fleet.session import FleetSession
    from rocattn_profiling.bench.session import BenchSession
    from rocattn_profiling.measure.records import Check, Record

UNDECIDED = "undecided"
"""Shown in place of a number that is not meaningful; `undecided_notes` gives the reason."""
SHARE = "% of ceiling"
COLUMNS = (
    "config", "backend", "P50", "P95", "P99", "tokens/s", "TFLOP/s", "GB/s", SHARE, "max error", "speed-up (95 %)",
)  # fmt: skip


def list_grids(*, as_json: bool) -> int:
    """Print the grids with their number of configs."""
    rows = [
        {
            "name": grid.name,
            "configs": len(grid.configs()),
            "quick_configs": len(grid.configs(quick=True)),
            "directions": list(grid.directions),
            "backends": list(grid.backends),
            "description": grid.description,
        }
        for grid in GRIDS.values()
    ]
    if as_json:
        emit_json(rows)
        return OK
    for row in rows:
        print(f"{row['name']:10} {row['configs']:>3} configs, {row['quick_configs']} quick: {row['description']}")
    return OK


def speedups(records: Iterable[Record]) -> list[tuple[Record, stats.Speedup]]:
    """Return each backend's speedup over the first backend measured side by side with it."""
    first: dict[tuple[str, str], Record] = {}
    ratios = []
    for record in records:
        if not record.launches:
            continue
        base = first.setdefault((record.suite, record.pair), record)
        if base is not record:
            ratios.append((record, stats.speedup(base, record)))
    return ratios


def as_json(session: BenchSession | FleetSession, records: list[Record]) -> dict[str, Any]:
    """Return all measurements as JSON-ready values; see the docs of the record and summary classes.

    For a fleet, ``machine`` is None and ``machines`` lists the machines with their ceilings; each of the
    ``speedups`` is from one machine.
    """
    measured = [record for record in records if record.launches]
    ceilings = _ceilings(records) if session.machine else {}
    failed = [
        {"id": f"{unit.suite}/{name}/{config.label}", "suite": unit.suite, "backend": name, "label": config.label,
         "failed": True, "reason": reason}
        for unit, reason in session.failures for config in unit.configs for name in unit.backends
    ]  # fmt: skip
    machines = [
        {**msgspec.to_builtins(place.machine), "host": place.host, "ceilings": _ceilings(members)}
        for place, members in by_place(records).items()
    ]
    return {
        **({} if session.machine else {"machines": machines}),
        "machine": msgspec.to_builtins(session.machine),
        "commit": msgspec.to_builtins(session.commit),
        "settings": msgspec.to_builtins(session.settings),
        "ceilings": ceilings,
        "path": str(session.path.resolve()),
        "records": [
            {"id": record.id, **msgspec.to_builtins(record), "summary": msgspec.to_builtins(stats.summarize(record))}
            for record in measured
        ],
        "speedups": [
            {"suite": record.suite, "label": record.label, **msgspec.to_builtins(speedup)}
            for record, speedup in speedups(records)
        ],
        "winning_lengths": msgspec.to_builtins(winning_lengths(records)),
        "skipped": [
            {
                "id": record.id,
                "suite": record.suite,
                "backend": record.backend,
                "label": record.label,
                "failed": record.status == "failed",
                "reason": record.skipped,
            }
            for record in records
            if not record.launches
        ]
        + failed,
    }


def unmeasured(suites: Iterable[tuple[str, list[Record]]], named: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return suite, backend and reason for each backend requested by name that has no measurement of a suite."""
    lacking = []
    for suite, records in suites:
        measured = {record.backend for record in records if record.launches}
        reasons = {record.backend: record.skipped for record in reversed(records)}  # the first record's
        lacking += [(suite, name, reasons.get(name, "no result")) for name in named if name not in measured]
    return lacking


def coverage(
    session: BenchSession | FleetSession, suites: list[tuple[str, list[Record]]], named: Iterable[str]
) -> Coverage:
    """Return how much was measured; failures, empty suites and backends requested by name are needed.

    Args:
        session: The session, with the jobs that left no result.
        suites: Records by suite.
        named: Backends requested by name.
    """
    of_records = coverage_of(record for _, records in suites for record in records)
    needed = [
        NotCompared(what=f"{name} in {suite}", code="unmeasured", text=reason, needed=True)
        for suite, name, reason in unmeasured(suites, named)
    ]
    needed += [
        NotCompared(what=f"all of {suite}", code="unmeasured", text="no backend ran it", needed=True)
        for suite, records in suites
        if not any(record.launches for record in records)
    ]
    needed += [
        NotCompared(what=f"{unit.name} on {', '.join(unit.backends)}", code="failed", text=reason, needed=True)
        for unit, reason in session.failures
    ]
    return msgspec.structs.replace(of_records, not_compared=(*needed, *of_records.not_compared))


def _ceilings(records: list[Record]) -> dict[str, float]:
    """Return the most recent ceilings in the records of one place."""
    return next((record.ceilings for record in reversed(records) if record.ceilings), {})


def duration(ns: float) -> str:
    """Format a time with three digits and its unit: ``48.1 us``, ``1.25 s``."""
    for limit, unit, scale in ((1e3, "ns", 1.0), (1e6, "us", 1e3), (1e9, "ms", 1e6)):
        if ns < limit * 0.9995:
            return f"{_digits(ns / scale)} {unit}"
    return f"{_digits(ns / 1e9)} s"


def count(value: float) -> str:
    """Format a rate with three digits: ``12.3k``, ``1.05M``."""
    for limit, unit, scale in ((1e3, "", 1.0), (1e6, "k", 1e3), (1e9, "M", 1e6)):
        if value < limit * 0.9995:
            return f"{_digits(value / scale)}{unit}"
    return f"{_digits(value / 1e9)}G"


def _digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def caches(records: Iterable[Record]) -> str:
    """Describe whether calls found their data in the caches, for the head of a table."""
    cold = [record.caches == "cold" for record in records]
    return "caches cold" if all(cold) else "caches warm unless marked cold" if any(cold) else "caches warm"


def config_text(record: Record, dtype: str = "") -> str:
    """Return the label of a record's config without a dtype stated elsewhere, marked if caches were cold."""
    label = record.label.removesuffix(f"-{dtype}") if dtype else record.label
    return f"{label} cold" if record.caches == "cold" else label


def variant(config: AttentionConfig, *, square: bool) -> str:
    """Return the sizes of a config without its sequence length, and without D if that grows with it."""
    same = config.seq_q == config.seq_k
    dropped = {f"q{config.seq_q}", f"k{config.seq_k}"} if same else {f"k{config.seq_k}"}
    dropped |= {f"d{config.head_dim}"} if square else set()
    return " ".join(part for part in config.label.split("-") if part not in dropped)


class Winning(msgspec.Struct, frozen=True, kw_only=True):
    """The sequence length from which a backend is faster than standard attention, for one set of other sizes.

    Attributes:
        suite, backend, standard: The suite, and the two compared backends.
        sizes: The other sizes.
        lengths: Keys of the measured problems, shortest first.
        start: From this length on, every problem is proven faster; None if the longest is not.
        undecided: Whether the longest is neither proven faster nor slower.
    """

    suite: str
    backend: str
    standard: str
    sizes: str
    lengths: tuple[int, ...]
    start: int | None
    undecided: bool


def winning_lengths(records: Iterable[Record]) -> list[Winning]:
    """Return where flash attention begins to win, for each set of other sizes with at least two lengths."""
    measured = [record for record in records if record.launches]
    configs = {record.id: AttentionConfig.from_dict(record.config) for record in measured}
    square = all(config.head_dim == config.seq_k for config in configs.values())
    base = {(record.pair, record.backend): record for record in measured if record.pair}
    found: dict[tuple[str, str, str, str], dict[int, stats.Speedup]] = {}
    for record in measured:
        standard = stats.STANDARD_OF.get(record.backend, "cpu")
        if (slow := base.get((record.pair, standard))) is not None:
            config = configs[record.id]
            of = found.setdefault((record.suite, record.backend, standard, variant(config, square=square)), {})
            of[config.seq_k] = stats.speedup(slow, record)
    return [
        Winning(
            suite=suite, backend=backend, standard=standard, sizes=sizes, lengths=tuple(sorted(ratios)),
            start=stats.winning_start(ratios), undecided=ratios[max(ratios)].ratio is None,
        )
        for (suite, backend, standard, sizes), ratios in found.items()
        if len(ratios) > 1
    ]  # fmt: skip


def winning_lines(records: Iterable[Record]) -> list[str]:
    """Return a line for each backend that was compared with standard attention at two or more lengths."""
    lines: dict[tuple[str, str], list[Winning]] = {}
    for each in winning_lengths(records):
        lines.setdefault((each.backend, each.standard), []).append(each)
    return [
        f"{backend} against {standard}: {'; '.join(_winning_parts(members))}"
        for (backend, standard), members in lines.items()
    ]


def _winning_parts(members: Sequence[Winning]) -> list[str]:
    """Return the starting lengths and how many combinations of other sizes win from there."""
    alike: dict[str, list[Winning]] = {}
    for each in members:
        if each.start is not None:
            words = "faster at every length measured"
            words = words if each.start == each.lengths[0] else f"faster from {each.start} keys on"
        else:
            words = f"not {'proven ' * each.undecided}faster at {each.lengths[-1]} keys"
        alike.setdefault(words, []).append(each)
    shown = []
    for words, of in sorted(alike.items(), key=lambda item: -len(item[1])):
        least, most = min(each.lengths[0] for each in of), max(each.lengths[-1] for each in of)
        span = f" ({least} to {most} keys)" if all(each.start == each.lengths[0] for each in of) else ""
        share = f" in {len(of)} of {len(members)} combinations of the other sizes" if len(members) > 1 else ""
        shown.append(f"{words}{span}{share}")
    return shown


def _ceiling(summary: stats.Summary) -> str:
    """Return the percentage of the nearer ceiling, and its name; unknown if one was exceeded."""
    if summary.undecided:
        return UNDECIDED
    shares = {"GEMM": summary.gemm_pct or 0.0, "memory": summary.memory_pct or 0.0}
    name = max(shares, key=lambda key: shares[key])
    return f"{shares[name]:.1f} {name}" if shares[name] else ""


def _error(record: Record) -> str:
    if record.check is None:
        return ""
    size = "NaN or inf," if record.check.not_finite else f"{record.check.max_abs_error:.1e}"
    if record.check.written:
        return f"{size} WROTE {' '.join(record.check.written)}"
    return size + ("" if record.check.ok else f" WRONG {record.check.what}")


def _ratio(speedup: stats.Speedup | None) -> str:
    if speedup is None or speedup.ratio is None:
        return "" if speedup is None else UNDECIDED
    mark = "" if speedup.unit == "launch" else " *"
    return f"{speedup.ratio:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}){mark}"


def undecided_notes(summaries: Iterable[stats.Summary], speedups: Iterable[stats.Speedup | None]) -> list[str]:
    """Return a line with the remedy for each reason why a table says "undecided", if any."""
    shares = (reason for summary in summaries for reason in summary.undecided.values())
    ratios = (speedup.undecided for speedup in speedups if speedup is not None and speedup.undecided is not None)
    named = [(SHARE, reason) for reason in shares] + [("speed-up", reason) for reason in ratios]
    return [f"{UNDECIDED} {what}: {reason.line}" for what, reason in dict.fromkeys(named)]


def print_tables(suites: list[tuple[str, list[Record]]]) -> None:
    """Print a table per grid and place on stderr."""
    names = place_names(by_place(record for _, records in suites for record in records))
    for suite, records in suites:
        for place, of_place in by_place(record for record in records if record.launches).items():
            _print_table(f"{suite} on {names[place]}" if len(names) > 1 else suite, of_place)


def _print_table(suite: str, measured: list[Record]) -> None:
    """Print a table of a grid's records from one place."""
    ratios = {record.id: speedup for record, speedup in speedups(measured)}
    rows, before, dtype = [], "", measured[0].config["dtype"]
    for record in measured:
        summary = stats.summarize(record)
        rows.append(
            (
                "" if record.label == before else config_text(record, dtype),
                record.backend,
                duration(summary.p50_ns) + (" !" if summary.disturbed_launches else ""),
                duration(summary.p95_ns),
                duration(summary.p99_ns),
                count(summary.tokens_per_s),
                f"{summary.tflops:.4f}",
                _digits(summary.gbps),
                _ceiling(summary),
                _error(record),
                _ratio(ratios.get(record.id)),
            )
        )
        before = record.label
    where = f"{measured[0].threads} threads, {measured[0].data} data, {caches(measured)}"
    print_table(f"{suite}: {dtype}, {where}", COLUMNS, rows, keys=2)
    for line in winning_lines(measured):
        say(line)
    for line in host_lines(measured):
        say(line)
    for line in undecided_notes([stats.summarize(record) for record in measured], ratios.values()):
        say(line)
    if any(speedup.unit != "launch" and speedup.ratio is not None for speedup in ratios.values()):
        say("* one launch: the interval is over samples of one process, not over processes (use --launches 3)")


def host_lines(records: Iterable[Record]) -> list[str]:
    """Return a line for each GPU record: host time per call and kernel time."""
    lines = []
    for record in records:
        timed = [launch for launch in record.launches if launch.host_ns]
        if timed:
            host, kernels = (statistics.median(getattr(x, name) for x in timed) for name in ("host_ns", "kernels_ns"))
            parts = f"host {duration(host)} per call, kernels {duration(kernels)}"
            lines.append(f"{record.backend}, {record.label}, arrays on the GPU: {parts}")
    return lines


def _disturbance(records: list[Record]) -> str:
    """Return a line about launches that had to share the CPU, or ""."""
    summaries = [stats.summarize(record) for record in records if record.launches]
    hit, total = sum(s.disturbed_launches for s in summaries), sum(s.launches for s in summaries)
    if not hit:
        return ""
    return f"! {hit} of {total} launches repeatedly lost the CPU to other processes: their times are too long"


def _fault(check: Check) -> str:
    if check.written:
        return written_into(check.written)
    if check.not_finite:
        return f"{check.what} has NaN or inf where float64 has none, or vice versa"
    allowed = f"{check.factor:g} x {check.naive_max_abs_error:.2e}"
    return f"error of {check.what} is {check.max_abs_error:.2e}, allowed {allowed}"


def _skipped(records: list[Record]) -> list[str]:
    """Return a line for each reason why a backend did not run something, with the names or number of configs."""
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.skipped:
            alike.setdefault((record.status, record.backend, record.skipped), []).append(record)
    return [
        f"{status} {of[0].suite} {of[0].label} on {name}: {why}"
        if len(of) == 1
        else f"{status} {len(of)} problems on {name}: {why}"
        for (status, name, why), of in alike.items()
    ]


def print_summary(session: BenchSession | FleetSession, records: list[Record]) -> None:
    """Print the ceilings, skipped and wrong results, and the location of the records."""
    if disturbance := _disturbance(records):
        say(disturbance)
    places = by_place(records)
    names: dict[Place, str] = place_names(places)
    for place, members in places.items():
        if ceilings := _ceilings(members):
            passed = {name for record in members if record.launches for name in stats.summarize(record).undecided}
            word = " (disturbed)" if stats.DISTURBED_CEILINGS in ceilings else " (passed)"
            gemm, memory = (word if name in passed else "" for name in ("gemm_pct", "memory_pct"))
            gemm = f"{ceilings['gemm_tflops']:.3f} TFLOP/s{gemm}"
            memory = f"{ceilings['memory_gbps']:.1f} GB/s{memory}"
            where = f" of {names[place]}" if len(places) > 1 else ""
            say(f"measured ceilings{where}: float32 GEMM {gemm}, memory {memory}")
    for line in _skipped(records):
        say(line)
    for record in records:
        if record.check is not None and not record.check.ok:
            say(f"WRONG: {record.id}: {_fault(record.check)}")
    for unit, reason in session.failures:
        say(f"failed: {unit.name} on {', '.join(unit.backends)}: {reason}")
    if session.failures:
        say(f"{render.count(len(session.failures), 'job')} left no result: rerun the command to submit them again")
    if session.failures or any(record.status == "failed" for record in records):
        say(f"output of the failed processes: {session.out / 'failures.log'}")
    if session.kept_configs:
        say(f"{render.count(session.kept_configs, 'config')} kept from an earlier run (--fresh measures all again)")
    say(f"records: {session.path}")
