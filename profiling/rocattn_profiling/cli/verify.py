"""``rocattn verify``: check every available backend against float64 on a covering set of cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocattn_profiling.cli import console
from rocattn_profiling.cli.status import FAILED, NOT_MEASURED, OK

if TYPE_CHECKING:
    import argparse

    from rocattn_profiling.measure.verification import Case, Outcome


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--quick", action="store_true", help="only small cases, which still cover all pairs of options")
    parser.add_argument("--backend", nargs="+", metavar="NAME", help="backends to check (default: every available one)")
    parser.add_argument("--case", metavar="LABEL", help="only the case of this label, as a failing line names it")
    console.add_common(parser, out="out/verify")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep, print the table and the failures, write verify.json; returns the exit status."""
    import os
    from pathlib import Path

    # Before numpy is imported: the cases are small, and on a busy machine OpenBLAS' threads wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ROCATTN_GPU_POISON", "1")  # device memory may hold the right answer of an earlier case

    import msgspec

    from rocattn.backends import BACKENDS
    from rocattn_profiling.files import write_text
    from rocattn_profiling.measure import verification

    chosen = [verification.find_case(arguments.case)] if arguments.case else verification.cases(quick=arguments.quick)
    named = [BACKENDS.get(name) for name in dict.fromkeys(arguments.backend)] if arguments.backend else list(BACKENDS)
    absent = {backend.name: answer.reason for backend in named if not (answer := backend.available())}
    backends = [backend for backend in named if backend.name not in absent]
    with console.progress("verify", len(chosen) * len(backends)) as shown:
        outcomes = verification.verify(chosen, backends, shown.step)
    report = _report(chosen, outcomes, absent)
    _print(outcomes, absent)  # before the file: a full disk must not hide the result
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    path = write_text(Path(arguments.out) / "verify.json", encoded + "\n")
    counts = f"{report['ran']} checked, {report['failed']} wrong, {report['skipped']} not supported"
    console.say(f"verify: {counts}; written to {path}")
    if arguments.json:
        console.emit_json(report)
    if not report["ran"]:
        return NOT_MEASURED
    return FAILED if report["failed"] else OK


def _report(chosen: list[Case], outcomes: list[Outcome], absent: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "cases": len(chosen),
        "ran": sum(outcome.ran for outcome in outcomes),
        "failed": sum(not outcome.ok for outcome in outcomes),
        "skipped": sum(not outcome.ran for outcome in outcomes),
        "unavailable": absent,
        "outcomes": outcomes,
    }


def _print(outcomes: list[Outcome], absent: dict[str, str]) -> None:
    """Print the worst error of each option and backend, then a line for each failure."""
    names = list(dict.fromkeys(outcome.backend for outcome in outcomes))
    options = list(dict.fromkeys(option for outcome in outcomes for option in outcome.options))
    rows = []
    for option in sorted(options):
        cells = []
        for name in names:
            mine = [o for o in outcomes if o.backend == name and option in o.options and o.ran]
            cells += [str(len(mine)), _worst(mine)]
        rows.append([option, *cells])
    if rows:
        columns = [column for name in names for column in ("cases", name)]
        console.print_table("worst error / allowed error (largest absolute error)", ["option", *columns], rows)
    for name, reason in absent.items():
        console.say(f"not checked: {name}: {reason}")
    for outcome in outcomes:
        if not outcome.ok:
            command = f"rocattn verify --case {outcome.case} --backend {outcome.backend}"
            console.say(f"WRONG {outcome.backend} {outcome.case}: {_fault(outcome)}; again: {command}")


def _worst(outcomes: list[Outcome]) -> str:
    checks = [outcome.check for outcome in outcomes if outcome.check is not None]
    if any(outcome.error for outcome in outcomes):
        return "raised"
    if not checks:
        return "-"
    return f"{max(c.ratio for c in checks):.2g} ({max(c.max_abs_error for c in checks):.1e})"


def _fault(outcome: Outcome) -> str:
    if outcome.check is None:
        return outcome.error
    check = outcome.check
    return (
        f"{check.what} is off by {check.max_abs_error:.2e} (naive {check.naive_max_abs_error:.2e}), "
        f"{check.ratio:.3g} times what is allowed"
    )
