"""What machine code says, commit by commit, in the asv store: the history that the site shows, with no GPU anywhere.

The benchmarks are those of ``benchmarks/bench_audit.py``, and ``asv run`` fills the same series. Here no commit is
built and no process launched: sources come from git and the numbers, of old commits too, from today's audit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.kernels.audit import audit_shipped
from rocattn_profiling.kernels.revision import kernels_of_revision
from rocattn_profiling.measure.records import Commit
from rocattn_profiling.revisions import git as revisions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.asv.store import Sample
    from rocattn_profiling.kernels.facts import KernelFacts

SUITE = "bench_audit.Kernels"
UNITS = {
    "track_vgprs": "registers",
    "track_lost_wave_slots": "waves",
    "track_spills": "registers",
    "track_hot_loop": "cycles",
    "track_sgprs": "registers",
    "track_lds_bytes": "bytes",
    "track_code_bytes": "bytes",
}
"""Tracked numbers and their units, the same as in the suite; lower is better for all."""


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """What was put into the store.

    Attributes:
        stored: Commits that now have numbers.
        known: Commits that had them before.
        passed_over: Commits without kernels to audit: short hash -> why.
    """

    stored: list[str] = []
    known: list[str] = []
    passed_over: dict[str, str] = {}


def track_history(
    start: Path,
    count: int,
    archs: Sequence[str],
    *,
    jobs: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> Tracked:
    """Audit the kernels that stand for all, of those of the newest first-parent commits that the store does not know.

    Args:
        start: A folder of the repository.
        count: How many commits back to look.
        archs: Targets.
        jobs: Processes at once.
        on_step: Called with a line after each commit.

    Raises:
        RevisionError: When there is no repository.
        RocattnError: When the store takes no files.
    """
    repo = revisions.find_repository(start)
    store = AsvStore(repo)
    shas = _with_all_numbers(store)
    result = Tracked()
    for revision in revisions.first_parents(repo, "HEAD", count):
        if revision.sha in shas:
            result.known.append(revision.sha)
            on_step(f"{revision.short} is known")
            continue
        try:
            with kernels_of_revision(repo, revision.sha, archs, quick=True) as found:
                audit = audit_shipped(archs, jobs=jobs, root=found.root, kernels=found.kernels)
        except RocattnError as error:
            result.passed_over[revision.short] = str(error)
            on_step(f"{revision.short} is passed over")
            continue
        store_facts(store, Commit(sha=revision.sha, date_ms=revision.date_ms, subject=revision.subject), audit.kernels)
        result.stored.append(revision.sha)
        on_step(revision.short)
    return result


def _with_all_numbers(store: AsvStore) -> set[str]:
    """Return the commits whose every number is known: older versions tracked fewer."""
    found: dict[str, set[str]] = {f"{SUITE}.{metric}": set() for metric in UNITS}
    for series in store.read():
        if series.benchmark in found:
            found[series.benchmark] |= {point.sha for point in series.points}
    return set.intersection(*found.values())


def store_facts(store: AsvStore, commit: Commit, kernels: Sequence[KernelFacts]) -> None:
    """Put the tracked numbers of one commit's kernels into the store.

    Raises:
        RocattnError: When the store takes no files.
    """
    archs = sorted({facts.arch for facts in kernels})
    names = list(dict.fromkeys(facts.name for facts in kernels))
    params = [list(map(repr, archs)), list(map(repr, names))]
    for metric, unit in UNITS.items():
        values: dict[tuple[int, ...], Sample] = {
            (archs.index(facts.arch), names.index(facts.name)): _value(metric, facts) for facts in kernels
        }
        store.add(commit, f"{SUITE}.{metric}", params, ["arch", "kernel"], unit, values, type="track")


def _value(metric: str, facts: KernelFacts) -> Sample:
    """Return a tracked number, NaN where there is none."""
    value = {
        "track_vgprs": facts.vgprs,
        "track_lost_wave_slots": facts.lost_wave_slots,
        "track_spills": facts.spills.vgprs + facts.spills.sgprs,
        "track_hot_loop": facts.cycles_for_work,
        "track_sgprs": facts.sgprs,
        "track_lds_bytes": facts.lds_bytes,
        "track_code_bytes": facts.code_bytes,
    }[metric]
    return math.nan if value is None else float(value)
