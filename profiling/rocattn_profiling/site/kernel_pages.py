"""A page for each GPU kernel: what its machine code needs on every architecture, commit by commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.pages.charts import colour_of
from rocattn_profiling.pages.quantities import natural
from rocattn_profiling.site.changes.changes import AUDIT, lower_is_better, where_of
from rocattn_profiling.site.history import Panel, entry_of, order_commits, slug_of
from rocattn_profiling.site.history_charts import Around, HistoryLine, panel_chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocattn_profiling.asv.series import Series
    from rocattn_profiling.site.changes.changes import LevelChange

TITLES = {
    "vgprs": "VGPRs of a wave",
    "sgprs": "SGPRs of a wave",
    "spills": "Registers spilled",
    "lds_bytes": "LDS of a block",
    "lost_wave_slots": "Wave slots of a SIMD left empty (lost occupancy)",
    "code_bytes": "Machine code",
    "hot_loop": "Issue cycles of the hot loop for 1e6 FLOP",
}
"""Tracked numbers in the order of the page; others come after them under their own name."""


@dataclass(frozen=True, slots=True)
class KernelPage:
    """Everything ``kernel.html.j2`` shows.

    Attributes:
        name: The kernel and what it is compiled for.
        archs: Its architectures.
        panels: A chart a number, a line an architecture.
        rows: (number, newest value by architecture).
        changes: Change points of its numbers, newest first.
        commits: How many were audited.
    """

    name: str
    slug: str
    archs: list[str]
    panels: list[Panel]
    rows: list[tuple[str, list[str]]]
    changes: list[LevelChange]
    commits: int
    legend: list[tuple[str, int]]

    @property
    def open(self) -> int:
        """How many regressions stand."""
        return sum(change.open for change in self.changes)


def kernel_pages(
    series: Sequence[Series], around: Around, changes: Mapping[tuple[str, str], list[LevelChange]]
) -> list[KernelPage]:
    """Lay out a page for each kernel that the store has numbers of; the same kernel of two machines shares one.

    Args:
        series: Every history line; those of the audit are taken.
        around: The site's commits; colours are given to architectures here.
        changes: Change points by label and place.
    """
    found: dict[str, dict[str, dict[str, HistoryLine]]] = {}
    for one in series:
        metric = one.benchmark.rpartition(".track_")[2]
        kernel, arch = one.params.get("kernel", ""), one.params.get("arch", "")
        if not one.benchmark.startswith(AUDIT) or not kernel or not arch:
            continue
        own = changes.get((one.label, where_of(one)), [])
        line = HistoryLine(
            metric, arch, one.machine, one.unit, one.points, one.label, where_of(one), own, lower_is_better(one)
        )
        lines = found.setdefault(kernel, {}).setdefault(metric, {})
        # Exact numbers do not depend on the machine: the place with the longest history speaks.
        if arch not in lines or len(lines[arch].points) < len(line.points):
            lines[arch] = line
    archs = sorted({arch for metrics in found.values() for lines in metrics.values() for arch in lines}, key=natural)
    own_colours = Around(around.commits, archs, around.boundaries, around.pages)
    taken: set[str] = set()
    return [_page(kernel, slug_of(kernel, taken), found[kernel], own_colours) for kernel in sorted(found, key=natural)]


def _page(kernel: str, slug: str, metrics: Mapping[str, Mapping[str, HistoryLine]], around: Around) -> KernelPage:
    ordered = sorted(metrics, key=lambda m: (list(TITLES).index(m) if m in TITLES else len(TITLES), m))
    lines = [line for metric in ordered for line in metrics[metric].values()]
    shas = order_commits((point for line in lines for point in line.points), around.commits)
    place = {sha: at for at, sha in enumerate(shas)}
    archs = [arch for arch in around.backends if any(arch in own for own in metrics.values())]
    panels, rows = [], []
    for metric in ordered:
        title = TITLES.get(metric, metric.replace("_", " "))
        own = [metrics[metric][arch] for arch in archs if arch in metrics[metric]]
        entries = {line.name: entry_of(line, colour_of(line.name, around.backends)) for line in own}
        chart = panel_chart(title, own, place, around, len(lines))
        panels.append(Panel(title, "", f"m-{metric}", chart, list(entries.values())))
        rows.append((title, [entries[arch].latest if arch in entries else "" for arch in archs]))
    changes = sorted(
        (change for line in lines for change in line.changes), key=lambda c: (place[c.likeliest], c.label), reverse=True
    )
    legend = [(arch, colour_of(arch, around.backends)) for arch in archs]
    return KernelPage(kernel, slug, archs, panels, rows, changes, len(shas), legend)
