"""What `rocattn verify` prints: the worst error of each family and option on each backend, then the failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.base import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocattn_profiling.verify.outcomes import CaseOutcome
    from rocattn_profiling.verify.page import VerifyReport


def print_tables(report: VerifyReport) -> None:
    """Print the worst error over what is allowed, by family and by option."""
    outcomes = [outcome for outcome in report.outcomes if outcome.backend in report.backends]
    families = list(dict.fromkeys(outcome.family for outcome in outcomes))
    _table(report, "family", families, lambda outcome: [outcome.family])
    options = sorted({option for outcome in outcomes for option in outcome.options})
    _table(report, "option", options, lambda outcome: outcome.options)


def _table(
    report: VerifyReport, title: str, groups: list[str], groups_of: Callable[[CaseOutcome], Iterable[str]]
) -> None:
    rows = []
    for group in groups:
        cells = []
        for name in report.backends:
            mine = [o for o in report.outcomes if o.backend == name and o.ran and group in groups_of(o)]
            cells += [str(len(mine)), worst(mine)]
        rows.append([group, *cells])
    if rows:
        columns = [column for name in report.backends for column in ("cases", name)]
        console.print_table("worst error / allowed error (largest absolute error)", [title, *columns], rows)


def worst(outcomes: list[CaseOutcome]) -> str:
    """Return the worst ratio and the largest error of some outcomes."""
    if any(outcome.error for outcome in outcomes):
        return "raised"
    checks = [outcome.check for outcome in outcomes if outcome.check is not None]
    if not checks:
        return "-"
    text = f"{max(c.ratio for c in checks):.2g} ({max(c.max_abs_error for c in checks):.1e})"
    return f"{text} WRONG" if any(outcome.problem for outcome in outcomes) else text


def print_failures(report: VerifyReport, limit: int) -> None:
    """Print what was not checked, what failures look like, and a line with its command for each of the worst."""
    for name, reason in (report.unavailable | report.unchecked).items():
        asked = " (asked for with --backend: status 3)" if name in report.unchecked else ""
        console.say(f"not checked: {name}{asked}: {reason}")
    for backend, lines in report.symptoms.items():
        for line in lines:
            console.say(f"{backend}: {line}")
    for failure in report.failures[:limit]:
        looks = f"; looks like: {failure.symptom}" if failure.symptom else ""
        console.say(f"WRONG {failure.backend} {failure.case}: {failure.fault}{looks}; again: {failure.command}")
    if len(report.failures) > limit:
        console.say(f"… and {len(report.failures) - limit} more, in verify.json and index.html")
