"""The site: which pages there are, what each is made from, and how they lie in their folder."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import rocattn
from rocattn_profiling.base.files import Staging
from rocattn_profiling.bench.report import BASELINE, BenchReport, order_backends, prepare_templates
from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.pages.quantities import quantity
from rocattn_profiling.pages.render import GENERATOR, PROJECT, add_filters, environment, moment, render
from rocattn_profiling.site.asv.pages import AsvPages
from rocattn_profiling.site.changes import Changes, atom
from rocattn_profiling.site.commit_pages import commit_pages, commit_paths
from rocattn_profiling.site.history import families, history_page, in_commit_order, kernel_pages, panel_anchor
from rocattn_profiling.site.history_charts import Around
from rocattn_profiling.site.state import HEADLINE, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from rocattn_profiling.asv.series import Series
    from rocattn_profiling.gate.verdict import GateResult
    from rocattn_profiling.site.commits import History
    from rocattn_profiling.site.history import Family, HistoryPage

    Step = Callable[[int, str], None]

OPTIONAL = ("changes.html", "commits.html", "kernels.html", "bench.html", "gate.html")
FOLDERS = ("history", "commits", "kernels", "baselines", "reports")
LISTED_CHANGES = 200
"""Rows of each table of changes; the feed and the pages of benchmarks have the others."""
_MACHINE_WORDS = {"num_cpu": "cores", "ram": "memory", "os": "system", "arch": "architecture", "gfx": "target"}


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the navigation."""

    href: str
    text: str


@dataclass(slots=True)
class Site:
    """What a site is made from.

    Attributes:
        series: Every history line.
        history: The repository's commits.
        machines: What machine.json says, by machine name.
        report: The latest bench report, or None.
        gate: The latest verdict, or None.
        asv: What became of asv's pages.
        problems: One line for each thing that was left out.
        made_ms: When the site was made.
        changes: Change points and boundaries of the series.
        standing: What other commands left.
        baselines: Bench reports of baselines, by name.
        url: Address that the site will have, for its feed; "" if that is not known.
        commit_url: Address before which a commit's hash leads to it; "" if there is none.
        project: Whose site it is.
    """

    series: Sequence[Series]
    history: History
    machines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    report: BenchReport | None = None
    gate: GateResult | None = None
    asv: AsvPages = field(default_factory=AsvPages)
    problems: list[str] = field(default_factory=list)
    made_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    changes: Changes = field(default_factory=Changes)
    standing: Standing = field(default_factory=Standing)
    baselines: Mapping[str, BenchReport] = field(default_factory=dict)
    url: str = ""
    commit_url: str = ""
    project: str = PROJECT


def write_site(out: Path, site: Site, on_step: Step = lambda _, __: None, staging: Staging | None = None) -> list[Path]:
    """Write all pages of our own below ``out``; returns their paths, the front page first.

    Pages of ours that are not made any more are removed, so that no page is without a link to it.

    Args:
        out: Folder of the site.
        site: What it shows.
        on_step: Called after each piece of work with how many there are, and what it was.
        staging: What is put in its place with them; ended by the caller.

    Raises:
        RocattnError: When the folder does not take them; then all is as it was.
    """
    with staging or Staging() as waiting:
        written = []
        for name, text in pages_of(site, on_step).items():
            waiting.add(out / name, [text.encode()])
            written.append(out / name)
        waiting.commit()
    kept = set(written)
    found = [*(out / name for name in OPTIONAL), *(path for name in FOLDERS for path in (out / name).glob("*.html"))]
    for stale in found:
        if stale not in kept and stale.is_file() and GENERATOR in stale.read_text("utf-8", errors="replace"):
            stale.unlink()
    return written


def pages_of(site: Site, on_step: Step = lambda _, __: None) -> dict[str, str]:
    """Return each page's text by its path, the feed and the style sheet included; the front page comes first."""
    prepare_templates()
    add_filters({"machine_word": lambda key: _MACHINE_WORDS.get(key, key), "machine_fact": machine_fact})
    commits, by_series = site.history.commits, site.changes.by_series()
    series = in_commit_order(site.series, commits)
    found = families(series, by_series)
    names = {line.name for family in found for line in family.lines}
    backends = order_backends({*names, *(site.report.backends if site.report else ())})
    paths = commit_paths(series, commits)
    around = Around(commits, backends, site.changes.boundaries, {sha: f"../{path}" for sha, path in paths.items()})
    kernels = kernel_pages(series, around, by_series)
    steps = 2 * len(found) + len(kernels) + len(paths) + len(site.baselines)
    histories = _laid_out(found, around, lambda what: on_step(steps, what))
    moved = commit_pages(series, site.history, site.changes.found, site.changes.boundaries, paths)
    gate = gate_view.view(site.gate) if site.gate else None
    places = places_of(found)
    homes = {change.id: places.get((change.label, change.where), "changes.html") for change in site.changes.found}
    measured = {point.sha for one in series for point in one.points}
    common: dict[str, Any] = {
        "searched": sum(commits[sha].on_branch for sha in measured & commits.keys()),
        "links": _navigation(site, bool(kernels), bool(moved)), "project": site.project, "version": rocattn.__version__,
        "made": moment(site.made_ms), "history": site.history, "backends": backends, "homes": homes,
        "commit_pages": paths, "line_count": len(series), "limit": LISTED_CHANGES, "asv": site.asv,
        "feed": bool(site.series), "commit_url": site.commit_url, "audited": bool(kernels),
    }  # fmt: skip
    pages: dict[str, str] = {}

    def page(path: str, template: str, title: str, **values: Any) -> None:
        pages[path] = render(template, title, root="../" * path.count("/"), here=path, **common, **values)
        if "/" in path:  # of those there are many
            on_step(steps, path)

    page(
        "index.html", "index.html.j2", site.project, gate=gate, head=commits.get(site.history.head), report=site.report,
        baseline=BASELINE, problems=[*site.problems, *site.asv.notes], machines=site.machines,
        pages=histories,
        machine_names=sorted({one.machine for one in series}), commit_count=len(measured),
        standing=site.standing, headline=HEADLINE, changes=site.changes,
        kernels=kernels, baselines=sorted(site.baselines), newest=moved[:1],
    )  # fmt: skip
    if site.series:
        page("changes.html", "changes.html.j2", f"Changes - {site.project}", changes=site.changes, places=places)
    if moved:
        page("commits.html", "commits.html.j2", f"Commits - {site.project}", pages=moved)
    if kernels:
        page("kernels.html", "kernels.html.j2", f"Kernels - {site.project}", pages=kernels)
    reports = {"bench.html": ("Report", site.report)} if site.report else {}
    reports |= {f"baselines/{name}.html": (f"Baseline: {name}", report) for name, report in site.baselines.items()}
    for path, (heading, report) in reports.items():
        title = f"{heading} - {site.project}"
        page(path, "bench.html.j2", title, report=report, heading=heading, gate=None)
    if gate:
        page("gate.html", "gate.html.j2", f"Gate - {site.project}", gate=gate)
    for made in histories:
        page(f"history/{made.slug}.html", "history.html.j2", f"{made.name} - {site.project}", page=made)
    for kernel in kernels:
        page(f"kernels/{kernel.slug}.html", "kernel.html.j2", f"{kernel.name} - {site.project}", page=kernel)
    for one in moved:
        page(one.path, "commit.html.j2", f"{one.commit.sha[:8]} - {site.project}", page=one, judged=gate)
    pages |= {one.path: one.text for one in site.standing.attached}
    pages["style.css"] = environment().get_template("style.css.j2").render()
    if site.series:
        pages["feed.xml"] = atom(site.changes.found, site.history, homes, site.made_ms, site.url, site.project)
    return pages


def machine_fact(value: str, key: str) -> str:
    """Return a fact of machine.json as people read it; asv gives memory in bytes or kilobytes as text."""
    return quantity(float(value), "bytes") if key == "ram" and value.isdigit() and int(value) > 1 << 28 else value


def _laid_out(found: Iterable[Family], around: Around, on_step: Callable[[str], None]) -> list[HistoryPage]:
    pages = []
    for family in found:
        pages.append(history_page(family, around))
        on_step(family.name)
    return pages


def places_of(found: Iterable[Family]) -> dict[tuple[str, str], str]:
    """Return where each series is shown, by its label and where it was measured: a page and a place on it."""
    return {
        (line.label, line.where): f"history/{family.slug}.html#{panel_anchor(line.panel, line.machine)}"
        for family in found
        for line in family.lines
    }


def _navigation(site: Site, kernels: bool, commits: bool) -> list[Link]:
    links = [Link("index.html", "Overview")]
    links += [Link("changes.html", "Changes")] if site.series else []
    links += [Link("commits.html", "Commits")] if commits else []
    links += [Link("kernels.html", "Kernels")] if kernels else []
    links += [Link("bench.html", "Report")] if site.report else []
    links += [Link("gate.html", "Gate")] if site.gate else []
    links += [Link("asv/index.html", "asv")] if site.asv.published else []
    return links
