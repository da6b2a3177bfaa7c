"""Builds the site: which pages there are, their contents (including one page per measured commit), and their files."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rocattn
from rocattn_profiling.asv.series import commits_of, once_for_commits
from rocattn_profiling.base.files import StagedFiles
from rocattn_profiling.base.forks import forked
from rocattn_profiling.bench.report import BASELINE, BenchReport, order_backends, prepare_templates
from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.pages.quantities import MANY, natural, percent, quantity
from rocattn_profiling.pages.render import GENERATOR, PROJECT, add_filters, environment, moment, render
from rocattn_profiling.site.asv_pages import AsvPages
from rocattn_profiling.site.changes import AUDIT, atom, lower_is_better, where_of
from rocattn_profiling.site.commits import CommitInfo, History, with_pull_requests
from rocattn_profiling.site.compare import ROWS, CommitPair, compare_page, compared_commits
from rocattn_profiling.site.history import (
    CSV_VALUES,
    Family,
    HistoryPage,
    drawn_lines,
    families,
    history_page,
    in_commit_order,
    kernel_pages,
    tree_of,
    values_csv,
)
from rocattn_profiling.site.history_charts import Around
from rocattn_profiling.site.model import Boundary, Changes, LevelChange
from rocattn_profiling.site.state import HEADLINE, Standing, broken_lines, judged_state, last_measured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import Series
    from rocattn_profiling.gate.model import GateResult

    Step = Callable[[int, str], None]
    Keep = Callable[[str, str], str]
    Texts = list[tuple[str, str]]

FRONT = "index.html"
OPTIONAL = ("compare.html", "changes.html", "commits.html", "kernels.html", "bench.html", "gate.html")
FOLDERS = ("history", "commits", "kernels", "baselines", "reports")
HINTS = 10
"""Most differences from the previous commit that a page lists, largest first."""
LEAST = math.log(1.02)
"""Smaller differences between single runs are not listed."""

LISTED_CAUSES = 100
"""Commits per list of changes."""
_MACHINE_WORDS = {"num_cpu": "cores", "ram": "memory", "os": "system", "arch": "architecture", "gfx": "target"}


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the navigation."""

    href: str
    text: str


@dataclass(slots=True)
class Site:
    """Everything that a site is made from.

    Attributes:
        series: Every history line.
        history: The repository's commits.
        machines: Contents of machine.json, by machine name.
        report: The latest bench report, or None.
        gate: The latest verdict, or None.
        asv: Outcome of asv's pages.
        problems: One line for each omission.
        made_ms: When the site was made.
        changes: Change points and boundaries of the series.
        standing: Results of other commands.
        baselines: Bench reports of baselines, by name.
        url: The site's future address, for its feed; "" if unknown.
        commit_url: Prefix of a commit's address, before its hash; "" if there is none.
        project: Name of the project.
        documents: Front page of the project's documentation, relative to the site; "" if there is none.
        gate_branch: A different branch with the verdict's head; "" if there is none.
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
    documents: str = ""
    gate_branch: str = ""


def write_site(
    out: Path, site: Site, on_step: Step = lambda _, __: None, staging: StagedFiles | None = None, jobs: int = 1
) -> list[Path]:
    """Write all our pages below ``out``; return their paths, front page first.

    Stale pages of ours are removed, so that every remaining page is linked.

    Args:
        out: Folder of the site.
        site: The contents.
        on_step: Called after each step with the number of steps and what it did.
        staging: Moved into place together with the pages; closed by the caller.
        jobs: Number of processes that lay out pages.

    Raises:
        RocattnError: The folder cannot be written; then nothing changed.
    """
    with staging or StagedFiles() as waiting:

        def keep(name: str, text: str) -> str:
            waiting.add(out / name, [text.encode()])
            return ""

        pages = pages_of(site, on_step, jobs, keep, lambda names: waiting.expect(out / name for name in names))
        written = [out / FRONT, *(out / name for name, _ in pages if name != FRONT)]
        waiting.commit()
    kept = set(written)
    earlier = [*(out / name for name in OPTIONAL), *(path for name in FOLDERS for path in (out / name).glob("*.html"))]
    for stale in earlier:
        if stale not in kept and stale.is_file() and GENERATOR in stale.read_text("utf-8", errors="replace"):
            stale.unlink()
            if stale.parent.name == "history":
                stale.with_suffix(".csv").unlink(missing_ok=True)
    return written


def pages_of(
    site: Site, on_step: Step = lambda _, __: None, jobs: int = 1, keep: Keep = lambda _, text: text,
    expect: Callable[[list[str]], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield the path and text of each page, including feed, style sheet and script.

    Args:
        site: The contents.
        on_step: See `write_site`.
        jobs: Number of processes that lay out pages.
        keep: Called with path and text in the process that laid out the page; its result is sent instead of the text.
        expect: Called with the paths of pages that other processes may lay out, before they do.
    """
    prepare_templates()
    add_filters(
        {
            "machine_word": lambda key: _MACHINE_WORDS.get(key, key),
            "machine_fact": machine_fact,
            "pull_requests": with_pull_requests,
        }
    )
    layout = _Layout(site, keep)
    expect(layout.many())
    steps = len(layout.families) + len(layout.kernels) + len(layout.paths)
    # Longest first.
    alone = [layout.commits, layout.comparison, *[layout.changes] * bool(site.series)]
    tasks: list[Callable[[], Any]] = [*alone, *(partial(layout.history, family) for family in layout.families)]
    done = forked(_called, tasks, jobs)
    moved, compared, *changes = itertools.islice(done, len(alone))
    histories = []
    for laid, texts in done:
        on_step(steps, texts[0][0])
        histories.append(laid)
        yield from texts
    tasks = [partial(layout.front, histories), partial(layout.all_commits, moved)]
    done = forked(_called, tasks + [partial(layout.commit, commit) for commit in moved], jobs)
    yield from itertools.chain(next(done), *changes, compared, next(done), _optional(layout))
    for kernel in layout.kernels:
        path = f"kernels/{kernel.slug}.html"
        on_step(steps, path)
        yield layout.page(path, "kernel.html.j2", kernel.name, page=kernel)
    for texts in done:
        on_step(steps, texts[0][0])
        yield from texts
    yield from (layout.text(attached.path, attached.text) for attached in site.standing.attached)
    for name in ("style.css", "site.js")[: 1 + bool(histories)]:
        yield layout.text(name, environment().get_template(f"{name}.j2").render(many=MANY))


def _called(lay_out: Callable[[], Any]) -> Any:
    return lay_out()


class _Layout:
    """Data shared by all pages of a site, and how to lay out each, in any process.

    Args:
        site: The contents.
        keep: See `pages_of`.
    """

    def __init__(self, site: Site, keep: Keep) -> None:
        self.site, self._keep = site, keep
        commits, by_series = site.history.commits, site.changes.by_series()
        self._series = series = in_commit_order(site.series, commits)
        self.families = grouped = families(series, by_series)
        self._lines = [line for family in grouped for line in family.lines]
        names = {line.name for line in self._lines if line.name}
        backends = order_backends({*names, *(site.report.backends if site.report else ())})
        self.paths = paths = commit_paths(series, commits)
        pages_above = {sha: f"../{path}" for sha, path in paths.items()}
        self._around = around = Around(commits, backends, site.changes.boundaries, pages_above, site.history.tags)
        self.kernels = kernel_pages(series, around, by_series)
        self.gate = gate_view.view(site.gate) if site.gate else None
        self._places, dots = places_of(grouped, around)
        homes = {change.id: dots.get(change.id, "changes.html") for change in site.changes.listed}
        self._measured = commits_of(line.points for line in series).keys()
        self.compared = compared_commits(self._lines, around)
        self.csv = sum(len(line.points) for line in series) <= CSV_VALUES
        self._common: dict[str, Any] = {
            "searched": sum(commits[sha].on_branch for sha in self._measured & commits.keys()),
            "links": _navigation(site, bool(self.kernels), bool(paths), self.compared), "compares": bool(self.compared),
            "project": site.project, "version": rocattn.__version__,
            "made": moment(site.made_ms), "history": site.history, "backends": backends, "homes": homes,
            "commit_pages": paths, "line_count": len(series), "limit": LISTED_CAUSES, "asv": site.asv,
            "feed": bool(site.series), "commit_url": site.commit_url, "audited": bool(self.kernels),
            "gated": bool(site.gate), "csv": self.csv,
            "tags": {sha: [name for name, tagged in site.history.tags if tagged == sha] for sha in paths},
            "pretty": {line.benchmark: line.pretty_name for line in series if line.pretty_name},
            "places": self._places, "causes": {cause.sha: cause for cause in site.changes.causes},
        }  # fmt: skip

    def text(self, path: str, text: str) -> tuple[str, str]:
        """Keep a page, and return what `pages_of` yields for it."""
        return path, self._keep(path, text)

    def page(self, path: str, template: str, title: str, **values: Any) -> tuple[str, str]:
        """Lay out one page."""
        title = f"{title} - {self.site.project}" if title else self.site.project
        root = "../" * path.count("/")
        return self.text(path, render(template, title, root=root, here=path, **self._common, **values))

    def history(self, family: Family) -> tuple[HistoryPage, Texts]:
        """Lay out a family's page and its values."""
        laid = history_page(family, self._around)
        texts = [self.page(f"history/{laid.slug}.html", "history.html.j2", laid.title, page=laid, scripted=True)]
        if self.csv:
            texts.append(self.text(f"history/{family.slug}.csv", values_csv(family)))
        return laid.without_charts(), texts

    def changes(self) -> Texts:
        """Lay out the list of changes and the feed."""
        site = self.site
        listed = self.page("changes.html", "changes.html.j2", "Changes", changes=site.changes)
        feed = atom(site.changes.regressions, site.history, self.paths, site.made_ms, site.url, site.project)
        return [listed, self.text("feed.xml", feed)]

    def comparison(self) -> Texts:
        """Lay out the page that compares two commits, if there are two."""
        if not self.compared:
            return []
        laid = compare_page(self.compared, self._lines, self._places, self._around)
        return [self.page("compare.html", "compare.html.j2", "Compare", page=laid, most=ROWS, scripted=True)]

    def commits(self) -> list[CommitPage]:
        """Return the contents of all commit pages."""
        changes = self.site.changes
        return commit_pages(self._series, self.site.history, changes.listed, changes.boundaries, self.paths)

    def commit(self, commit: CommitPage) -> Texts:
        """Lay out a commit's page."""
        return [self.page(commit.path, "commit.html.j2", commit.commit.sha[:8], page=commit, judged=self.gate)]

    def front(self, histories: Sequence[HistoryPage]) -> Texts:
        """Lay out the front page."""
        site, series = self.site, self._series
        return [self.page(
            FRONT, "index.html.j2", "", gate=self.gate,
            judged=judged_state(site.gate, site.history, site.gate_branch) if site.gate else None,
            head=site.history.commits.get(site.history.head), report=site.report,
            baseline=BASELINE, problems=site.problems, machines=site.machines,
            pages=histories, tree=tree_of(histories), scripted=bool(histories),
            machine_names=sorted({line.machine for line in series}), commit_count=len(self._measured),
            standing=site.standing, headline=HEADLINE, changes=site.changes,
            kernels=self.kernels, baselines=sorted(site.baselines), last=last_measured(series, site.history),
            broken=broken_lines(series, site.history),
        )]  # fmt: skip

    def all_commits(self, moved: Sequence[CommitPage]) -> Texts:
        """Lay out the list of commits, if there are any."""
        return [self.page("commits.html", "commits.html.j2", "Commits", pages=moved)] if moved else []

    def many(self) -> list[str]:
        """Return the paths of the pages that are laid out in several processes."""
        kinds = ("html", "csv") if self.csv else ("html",)
        return [
            FRONT, *["changes.html", "feed.xml"] * bool(self.site.series), *["compare.html"] * bool(self.compared),
            *(f"history/{family.slug}.{kind}" for family in self.families for kind in kinds),
            *["commits.html"] * bool(self.paths), *self.paths.values(),
        ]  # fmt: skip


def _optional(layout: _Layout) -> Iterator[tuple[str, str]]:
    """Yield the remaining pages: those that a site has at most once, and those of reports."""
    site, page = layout.site, layout.page
    if layout.kernels:
        yield page("kernels.html", "kernels.html.j2", "Kernels", pages=layout.kernels)
    reports = {"bench.html": ("Report", site.report)} if site.report else {}
    reports |= {f"baselines/{name}.html": (f"Baseline: {name}", report) for name, report in site.baselines.items()}
    for path, (heading, report) in reports.items():
        yield page(path, "bench.html.j2", heading, report=report, heading=heading)
    if layout.gate:
        yield page("gate.html", "gate.html.j2", "Gate", gate=layout.gate)


def machine_fact(value: str, key: str) -> str:
    """Format a value from machine.json; asv stores memory as text, in bytes or kilobytes."""
    return quantity(float(value), "bytes") if key == "ram" and value.isdigit() and int(value) > 1 << 28 else value


def places_of(
    grouped: Iterable[Family], around: Around
) -> tuple[dict[tuple[str, str], str], dict[str, str]]:  # fmt: skip
    """Return where each series is drawn, by its label and place of measurement, and each change's dot, by its id."""
    places, dots = {}, {}
    for family in grouped:
        drawn = set(drawn_lines(family))
        for at, line in enumerate(family.lines):
            anchor = f"#{line.anchor}" if at in drawn else ""
            places[line.label, line.where] = place = f"history/{family.slug}.html{anchor}"
            for change in line.changes:
                shas, sha = line.points.shas, change.likeliest
                drawn_at = anchor and sha in shas and not math.isnan(line.points.values[shas.index(sha)])
                dots[change.id] = f"{place}-{around.short(sha)}" if drawn_at else place
    return places, dots


def _navigation(site: Site, kernels: bool, commits: bool, compared: CommitPair | None) -> list[Link]:
    links = [Link("index.html", "Overview")]
    links += [Link("changes.html", "Changes")] if site.series else []
    links += [Link("commits.html", "Commits")] if commits else []
    links += [Link("compare.html", "Compare")] if compared else []
    links += [Link("kernels.html", "Kernels")] if kernels else []
    links += [Link("bench.html", "Report")] if site.report else []
    links += [Link("gate.html", "Gate")] if site.gate else []
    links += [Link("asv/index.html", "asv")] if site.asv.published else []
    links += [Link(site.documents, "Documents")] if site.documents else []
    return links


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that differs from the previously measured commit's, as text; ``tone`` is "good", "bad" or ""."""

    label: str
    where: str
    before: str
    after: str
    change: str
    rose: bool
    tone: str


@dataclass(slots=True)
class CommitPage:
    """Everything ``commit.html.j2`` shows.

    Attributes:
        commit: The commit.
        path: Path of the page; ``previous`` and ``following`` are the pages of the commits measured before and after.
        measured: Number of results of the commit.
        brought: Change points whose most likely commit this is; ``perhaps``: those whose interval includes it.
        machine_code: Differences in the audit's numbers, which are exact.
        hints: Results outside the previous commit's interval; the runs may be days apart.
        failed: Benchmarks that ran on the previous commit but not on this one.
        boundaries: Changes of machine, driver or compiler from this commit on.
    """

    commit: CommitInfo
    path: str
    previous: str = ""
    following: str = ""
    measured: int = 0
    brought: list[LevelChange] = field(default_factory=list)
    perhaps: list[LevelChange] = field(default_factory=list)
    machine_code: list[Difference] = field(default_factory=list)
    hints: list[Difference] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)

    @property
    def quiet(self) -> bool:
        """Whether nothing changed."""
        return not (self.brought or self.machine_code or self.hints or self.failed)


def commit_paths(series: Iterable[Series], commits: Mapping[str, CommitInfo]) -> dict[str, str]:
    """Return the page of each measured commit in git, named by its short hash if that is unique."""
    shas = commits_of(line.points for line in series).keys() & commits.keys()
    short: dict[str, list[str]] = {}
    for sha in shas:
        short.setdefault(sha[:8], []).append(sha)
    return {sha: f"commits/{sha[:8] if len(short[sha[:8]]) == 1 else sha}.html" for sha in shas}


def commit_pages(
    series: Sequence[Series], history: History, changes: Sequence[LevelChange], bounds: Sequence[Boundary],
    paths: Mapping[str, str],
) -> list[CommitPage]:  # fmt: skip
    """Lay out the pages of all measured commits, newest first.

    Args:
        series: Every history line, its points in commit order.
        history: The repository's commits.
        changes: All change points.
        bounds: Where something other than the code changed.
        paths: Paths of the pages, by commit.
    """
    commits = history.commits
    pages = {sha: CommitPage(commits[sha], path) for sha, path in paths.items()}
    branch = [page for _, page in sorted((p.commit.order, p) for p in pages.values() if p.commit.on_branch)]
    for before, after in itertools.pairwise(branch):
        before.following, after.previous = after.path, before.path
    for change in changes:
        for sha in change.commits:
            if sha in pages:
                (pages[sha].brought if sha == change.likeliest else pages[sha].perhaps).append(change)
    for boundary in bounds:
        if boundary.sha in pages:
            pages[boundary.sha].boundaries.append(boundary)
    on_pages = once_for_commits(lambda points: _OnPages.of(points.shas, pages))
    largest = _Largest(len(pages))
    for line in series:
        on = on_pages(line.points)
        on.lines += 1
        _add_series(line, on, largest)
    for on in {id(on): on for on in (on_pages(line.points) for line in series)}.values():
        for page in on.every:
            page.measured += on.lines
    for number, page in enumerate(pages.values()):
        page.hints = [_difference(*move[2:]) for move in sorted(largest.of[number], reverse=True)]
        page.machine_code.sort(key=lambda move: (natural(move.label), natural(move.where)))
    return sorted(pages.values(), key=lambda page: page.commit.order, reverse=True)


@dataclass(slots=True)
class _OnPages:
    """The pages of a line's points: all, and those on the branch with their indices and numbers; and its lines."""

    every: list[CommitPage]
    branch: list[CommitPage]
    at: NDArray[np.intp]
    numbers: NDArray[np.intp]
    lines: int = 0

    @classmethod
    def of(cls, shas: Sequence[str], pages: Mapping[str, CommitPage]) -> _OnPages:
        """Look up the pages of commits."""
        number = {sha: at for at, sha in enumerate(pages)}
        every = [(at, pages[sha]) for at, sha in enumerate(shas) if sha in pages]
        branch = [(at, page) for at, page in every if page.commit.on_branch]
        at = np.array([at for at, _ in branch], dtype=np.intp)
        numbers = np.array([number[page.commit.sha] for _, page in branch], dtype=np.intp)
        return cls([page for _, page in every], [page for _, page in branch], at, numbers)


class _Largest:
    """The `HINTS` largest moves per page: size, order of arrival, and the arguments of `_difference`."""

    def __init__(self, pages: int) -> None:
        self.of: list[list[tuple[float, int, Series, float, float]]] = [[] for _ in range(pages)]
        self._least = np.full(pages, LEAST)  # smallest size that still replaces one of them
        self._came = itertools.count()

    def add(self, line: Series, old: NDArray[np.float64], new: NDArray[np.float64], pages: NDArray[np.intp]) -> None:
        """Add a line's moves, from ``old`` to ``new`` values at ``pages``."""
        sizes = np.abs(np.log(new / old))
        came = next(self._came)
        for at in np.flatnonzero(sizes >= self._least[pages]).tolist():
            number, size = pages[at].item(), sizes[at].item()
            found = self.of[number]
            if len(found) == HINTS and size <= found[0][0]:
                continue
            heapq.heappush(found, (size, came, line, old[at].item(), new[at].item()))
            if len(found) > HINTS:
                heapq.heappop(found)
            if len(found) == HINTS:
                self._least[number] = found[0][0]


def _add_series(line: Series, on: _OnPages, largest: _Largest) -> None:
    """Add the differences between one line's successive points on the branch to the pages."""
    audited = line.benchmark.startswith(AUDIT)
    values, lows, highs = (column[on.at] for column in (line.points.values, line.points.lows, line.points.highs))
    old, new = values[:-1], values[1:]
    for at in np.flatnonzero((new == math.inf) & (old != math.inf)).tolist():
        on.branch[at + 1].failed.append((line.label, where_of(line)))
    moved = (new != old) & np.isfinite(new) & np.isfinite(old)
    if audited:
        for at in np.flatnonzero(moved).tolist():
            on.branch[at + 1].machine_code.append(_difference(line, old[at].item(), new[at].item()))
        return
    # Only intervals that do not overlap; without an interval nothing counts.
    moved &= (new > 0) & (old > 0) & ((lows[1:] > highs[:-1]) | (highs[1:] < lows[:-1]))
    if moved.any():
        largest.add(line, old[moved], new[moved], on.numbers[1:][moved])


def _difference(series: Series, old: float, new: float) -> Difference:
    audited = series.benchmark.startswith(AUDIT)
    metric = series.benchmark.rsplit(".track_", 1)[-1].replace("_", " ")
    label = f"{series.params.get('kernel', '')}: {metric}" if audited else series.label
    where = series.params.get("arch", "") if audited else where_of(series)
    lower = lower_is_better(series)
    tone = "" if lower is None else "bad" if (new > old) == lower else "good"
    change = percent(new / old) if old else ""
    return Difference(label, where, quantity(old, series.unit), quantity(new, series.unit), change, new > old, tone)
