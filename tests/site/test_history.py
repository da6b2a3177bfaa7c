"""What a history page says of the newest points of its lines, and which lines it draws."""

import itertools
import math
import re

import msgspec
import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.series import CommitPlaces, Point, Points
from rocattn_profiling.pages.charts import line_class
from rocattn_profiling.site import history, history_charts
from rocattn_profiling.site.changes import find_changes
from rocattn_profiling.site.commits import CommitInfo, History
from rocattn_profiling.site.history import (
    HistoryLine,
    direction_of,
    entry_of,
    families,
    history_page,
    order_commits,
    slug_of,
)
from rocattn_profiling.site.history_charts import Around, against, geometric_means, relative
from rocattn_profiling.site.model import Changes
from rocattn_profiling.site.site import Site, pages_of


def point(value, low=None, high=None, sha="a", date_ms=0):
    """A point; its interval reaches 1 % to each side unless said."""
    if value is not None and low is None:
        low, high = 0.99 * value, 1.01 * value
    return Point(sha=sha, date_ms=date_ms, value=value, low=low, high=high)


def said(values, unit="seconds", *, lower=True):
    """What the page says of a line of these values (None failed, NaN is n/a)."""
    line = HistoryLine("p", "n", "m", unit, Points.of(map(point, values)), lower_is_better=lower)
    entry = entry_of(line)
    return entry.latest, entry.previous, entry.first, entry.direction, entry.worse


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([1.0, 2.0, 3.0], {}, ("3.00 s", "+50.0 %", "+200 %", "up", True)),
        ([4.0, None, math.nan, 3.0], {}, ("3.00 s", "-25.0 %", "-25.0 %", "down", False)),
        ([None, 2.0], {}, ("2.00 s", "—", "—", "", False)),
        ([1.0, 2.0, None], {}, ("failed", "", "", "", False)),
        ([1.0, 2.0, math.nan], {}, ("n/a", "", "", "", False)),
        ([2.0, 3.0], {"unit": "GB/s", "lower": False}, ("3 GB/s", "+50.0 %", "+50.0 %", "up", False)),
        ([3.0, 2.0], {"unit": "GB/s", "lower": False}, ("2 GB/s", "-33.3 %", "-33.3 %", "down", True)),
        ([2.0, 3.0], {"unit": "bytes", "lower": None}, ("3.00 B", "+50.0 %", "+50.0 %", "up", False)),
        ([-2.0, -3.0], {}, ("-3.00 s", "-50.0 %", "-50.0 %", "down", False)),  # below 0, down stays down
    ],
)
def test_the_newest_point_is_compared_with_previous_and_first(values, options, expected):
    """What failed or is not available in between is passed over; at the end it has neither a value nor a change."""
    assert said(values, **options) == expected
    assert entry_of(HistoryLine("p", "n", "m", "seconds", Points.of([]))).latest == "not measured"


NO_INTERVAL = Point(sha="a", date_ms=0, value=9.0)


@pytest.mark.parametrize(
    ("new", "old", "direction"),
    [
        (point(4.0, 3.0, 5.0), point(2.0, 1.0, 3.0), ""),
        (point(4.0, 3.1, 5.0), point(2.0, 1.0, 3.0), "up"),
        (point(0.5, 0.2, 1.0), point(2.0, 1.0, 3.0), ""),
        (point(0.5, 0.2, 0.9), point(2.0, 1.0, 3.0), "down"),
        (NO_INTERVAL, point(2.0, 1.0, 3.0), ""),
        (point(2.0, 1.0, 3.0), NO_INTERVAL, ""),
    ],
)
def test_intervals_that_touch_are_no_direction(new, old, direction):
    """Only what left the other's interval went up or down; without an interval nothing did."""
    assert direction_of(new, old) == direction


def test_values_are_against_the_first_that_is_one():
    """A line starts at 0 %; a fall below 0 stays a fall."""
    points = [point(v, sha=s) for s, v in (("b", None), ("c", 2.0), ("d", 3.0), ("e", math.nan))]
    line = HistoryLine("p", "n", "m", "s", Points.of(points))
    places = CommitPlaces("abcde")
    assert relative(line, places).tolist() == pytest.approx([math.nan, math.nan, 1.0, 1.5, math.nan], nan_ok=True)
    assert [against(new, -10.0) for new in (-10.0, -15.0, -5.0)] == pytest.approx([1.0, 0.5, 1.5])
    means = geometric_means(np.array([[2.0, math.nan], [math.nan, 0.0], [8.0, -1.0]]))
    assert means.tolist() == pytest.approx([4.0, math.nan], nan_ok=True)


def test_commits_that_git_does_not_know_come_first_by_date():
    """Results of a rewritten branch lie before the history, not after it, whatever their dates."""
    commits = {sha: CommitInfo(sha, 0, "s", order, on_branch=True) for order, sha in enumerate("xy")}
    dates = {"y": 1, "lost": 9, "x": 5, "older": 7}
    assert order_commits(dates, commits) == ["older", "lost", "x", "y"]


def test_names_of_pages_are_unlike():
    """Two benchmarks that differ in what a file name leaves out."""
    taken = set()
    names = [slug_of(name, taken) for name in ("a.time_x", "a time x", "A-TIME-X", "///")]
    assert len(set(names)) == 4
    assert names[0] == "a-time-x"


def test_lines_with_open_changes_are_drawn_first(series_of, log_of, monkeypatch):
    """Of five lines three fit; the last one regressed. Lines stay in order."""
    monkeypatch.setattr(history, "LINES", 3)
    log = log_of(20)
    flat = [1 + 0.001 * (n % 3) for n in range(20)]
    step = [value * (1.3 if n > 10 else 1) for n, value in enumerate(flat)]
    series = [series_of(step if n == 4 else flat, benchmark="s.time_x", params={"n": str(n)}) for n in range(5)]
    changes = find_changes(series, log)
    (family,) = families(series, changes.by_series())
    page = history_page(family, Around(log.commits))
    assert [panel.label for panel in page.panels] == ["n=0", "n=1", "n=4"]
    assert (page.lines, page.left_out, page.open, page.commits) == (5, 2, 1, 20)
    assert [line.name for line in page.overview.lines] == ["n=0", "n=1", "n=4"]


def test_changes_of_a_page_are_newest_first(series_of, log_of):
    """A regression of commit 11 and its end with 22: the end comes first."""
    log = log_of(32)
    values = [(1.3 if 11 <= n < 22 else 1) * (1 + 0.001 * (n % 3)) for n in range(32)]
    changes = find_changes([one := series_of(values)], log)
    (family,) = families([one], changes.by_series())
    page = history_page(family, Around(log.commits))
    assert [int(change.likeliest, 16) for change in page.changes] == [22, 11]
    assert (page.open, len(page.changes)) == (0, 2)
    assert page.overview.bands == []  # of what stands only; the chart of the line has both
    assert len(page.panels[0].chart.bands) == 2


def test_a_sketch_is_of_its_own_backend(series_of):
    """Of two backends with a line each, the one that rose rises."""
    series = [
        series_of([1.0, 1.0, 1.0], benchmark="bench.inference.cpu"),
        series_of([1.0, 1.5, 2.0], benchmark="bench.inference.cpu_flash"),
    ]
    (family,) = families(series)
    sparks = dict(history_page(family, Around({})).sparks)
    heights = {name: [float(place.split(",")[1]) for place in points.split()] for name, points in sparks.items()}
    assert len(set(heights["cpu"])) == 1
    assert heights["cpu-flash"] == sorted(set(heights["cpu-flash"]), reverse=True)  # y grows downwards


def test_the_table_lists_newest_commits_first_with_failures(series_of, log_of, monkeypatch):
    """Ten rows at least; of a commit that is not in the clone no subject is made up."""
    monkeypatch.setattr(history, "TABLE_ROWS", 3)
    values = [float(n + 1) for n in range(14)]
    values[12] = None
    (family,) = families([series_of(values)])
    page = history_page(family, Around(log_of(14).commits))
    assert [row.subject for row in page.rows] == [f"Commit {n}" for n in range(13, 3, -1)]
    assert [row.cells for row in page.rows][:3] == [["14.0 s"], ["failed"], ["12.0 s"]]
    rows = history_page(family, Around({})).rows
    assert {row.subject for row in rows} == {"(not in this clone)"}


def test_environments_that_share_a_page_are_told_apart(series_of):
    """One machine, two environments: two charts, each with its place; three places in all, one combination."""
    series = [series_of([1.0, 2.0], env=env) for env in ("py3.11", "py3.12")] + [series_of([1.0], machine="other")]
    (family,) = families(series)
    page = history_page(family, Around({}))
    assert sorted(panel.machine for panel in page.panels) == ["box, py3.11", "box, py3.12", "other"]
    assert (page.places, page.combinations, page.lines) == (3, 1, 3)
    assert len({panel.anchor for panel in page.panels}) == 3


def test_a_change_is_drawn_from_the_last_surely_old_commit(series_of, log_of):
    """The band reaches from before the first commit that it may have come with to the last; the tooltip names all."""
    log = log_of(20)
    commits = log.commits
    flat = [1 + 0.001 * (n % 3) for n in range(20)]
    series = [series_of([value * (1.3 if n > 10 else 1) for n, value in enumerate(flat)])]
    changes = find_changes(series, log)
    (found,) = changes.listed
    wide = msgspec.structs.replace
    shas = [f"{n:040x}" for n in (9, 10, 11, 12)]
    change = type(found)(
        found.label, found.benchmark, found.where, found.unit, wide(found.point, ratio_low=1.2, ratio_high=1.4), shas,
        shas[2], found.date_ms,
    )  # fmt: skip
    place = {sha: at for at, sha in enumerate(commits)}
    band = history_charts._band(change, place, Around(commits))
    assert (band.low, band.high) == (8, 12)
    assert band.title == snapshot("""\
bench.inference.cpu('b1-h3-q33'): +30.0 % (+20.0 % to +40.0 %), confirmed
with one of 4 commits, likeliest 00000000 Commit 11\
""")
    alone = history_charts._band(found, place, Around(commits))
    assert f"with {found.likeliest[:8]} Commit 11" in alone.title


def test_a_boundary_stands_before_its_commit(series_of, log_of):
    """Between the last point of the old driver and the first of the new one."""
    log = log_of(9)
    commits = log.commits
    places = {sha: {"driver": "6.3" if info.order < 4 else "6.4"} for sha, info in commits.items()}
    both = [series_of([1.0] * 9, places=places, env=env) for env in ("py3.11", "py3.12")]
    changes = find_changes(both, log)
    page = history_page(families(both)[0], Around(commits, boundaries=changes.boundaries))
    assert len(page.boundaries) == 2  # one of each environment; drawn over each other they would be one, and are
    for chart in (page.overview, page.panels[0].chart):
        ((x, text),) = chart.edges
        marks = chart.lines[0].marks
        assert marks[3].x < x < marks[4].x
        assert text == "not comparable across: driver 6.3 -> 6.4"


def test_a_name_has_one_colour_on_every_page():
    """By its place among the site's names, dashed beyond eight; a stranger has the last."""
    names = [f"n{n}" for n in range(10)]
    styles = [history_charts.colour_of(name, names) for name in ("n0", "n3", "n8", "other")]
    assert [line_class(style) for style in styles] == ["s0", "s3", "s0 d1", "s7"]


def drawn(series, backends=()):
    """The styles of the overview's lines, and the legend; every other chart of the page draws a line likewise."""
    (family,) = families(series)
    page = history_page(family, Around({}, backends))
    styles = {line.name: line.colour for line in page.overview.lines}
    assert sorted(entry.colour for panel in page.panels for entry in panel.entries) == sorted(
        line.colour for line in page.overview.lines
    )
    assert {key.anchor for key in page.legend} <= {entry.anchor for p in page.panels for entry in p.entries} | {""}
    return styles, {key.full_name: key.style for key in page.legend}


def test_each_line_of_a_page_has_its_own_name_and_look(series_of):
    """Named by what differs alone: parameters, environments, machines; values that read alike as asv has them."""

    def lines(**options):
        return drawn([
            series_of([1.0, 1.1], benchmark="suite.time_it", params={"n": n, "kind": "x"}, env=env, machine=machine)
            for n in options.get("sizes", (10, 20)) for env in options.get("envs", ("py3.11-numpy2.4",))
            for machine in options.get("machines", ("box",))
        ])  # fmt: skip

    assert lines() == ({"n=10": 0, "n=20": 1},) * 2
    styles, legend = lines(envs=("py3.11", "py3.12"), machines=("box", "fox"))
    assert styles == legend
    assert len(set(styles.values())) == len(styles) == 8
    assert "n=10, fox, py3.12" in styles
    alike = [
        msgspec.structs.replace(series_of([1.0, 1.1], benchmark="a.b", params={"n": "1"}), arguments=(argument,))
        for argument in ("1", "'1'")
    ]
    assert set(drawn(alike)[0]) == {"n=1", "n='1'"}
    (only,) = lines(sizes=(1,))[0]
    assert only == "n=1, kind=x"


def test_a_backend_keeps_its_colour_while_dashes_last(series_of):
    """Up to four lines of a backend; with more, each line still looks different; beyond all looks, legends count."""

    def lines(sizes):
        made = [
            series_of([1.0, 1.1], benchmark="suite.time_it", params={"backend": backend, "n": n})
            for backend in ("cpu", "gpu") for n in range(sizes)
        ]  # fmt: skip
        return drawn(made, ["cpu", "gpu"])

    styles, _ = lines(4)
    assert {style % 8 for name, style in styles.items() if name.startswith("gpu")} == {1}
    for sizes in (1, 4, 5, 16):
        styles, legend = lines(sizes)
        assert styles == legend
        assert len(set(styles.values())) == 2 * sizes
    assert lines(17)[1] == {"cpu: 17 lines": 0, "gpu: 17 lines": 1}
    assert drawn([series_of([1.0], params={"n": n}, benchmark="a.b") for n in range(33)])[1] == {"33 lines": 0}
    both = [series_of([1.0], params={"n": n}, benchmark="a.b", machine=m) for n in range(20) for m in ("box", "fox")]
    assert drawn(both)[1] == {"box: 20 lines": 0, "fox: 20 lines": 1}


def test_a_module_named_bench_is_no_grid_of_ours(series_of):
    """A time and a memory of a foreign class are two pages, not two backends in one chart."""
    both = [series_of([1.0], benchmark=f"bench.Sort.{name}", params={"n": 1}) for name in ("time_all", "peakmem_all")]
    assert [family.name for family in families(both)] == ["bench.Sort.peakmem_all", "bench.Sort.time_all"]


def test_a_change_has_its_dot_in_a_history_of_any_length(series_of, log_of):
    """Of 400 commits few have dots; the one that moved the level is among them, with its tooltip."""
    log = log_of(400)
    commits = log.commits
    values = [(1.3 if n >= 211 else 1) * (1 + 0.001 * (n % 5)) for n in range(400)]
    values[210], values[212] = 0.9, 1.5  # the lowest and the highest of their stretches
    changes = find_changes([one := series_of(values)], log)
    (found,) = changes.listed
    line = HistoryLine("p", "cpu", "box", "seconds", one.points, one.label, changes=[found])
    chart = history_charts.panel_chart("p", [line], CommitPlaces(commits), Around(commits), 300, [])
    assert chart.thinned
    told = [mark.title for mark in chart.lines[0].marks if mark.title]
    assert len(told) < 30
    assert any(f"Commit {int(found.likeliest, 16)}" in title for title in told)


def test_a_failed_point_s_tooltip_says_so(series_of):
    """And a commit that the clone has not is said to be none of it."""
    page = dict(pages_of(Site([series_of([1.0, None, 1.2])], History({}, "main", "f" * 40), changes=Changes())))
    text = page["history/bench-inference.html"]
    assert "cpu: failed" in text
    assert re.search(r"cpu: failed\s+0{8} 2026-09-11 not in this clone", text)


def test_a_thousandfold_change_is_drawn_in_logs(series_of):
    """Multiples in place of percents, a fall as far from x1 as a rise; small ranges keep their percents."""

    def overview(values):
        (family,) = families([series_of(values)])
        return history_page(family, Around({})).overview

    wide = overview([1.0, 2000.0, 0.001])
    labels = [tick.label for tick in wide.y_ticks]
    assert {"x1", "x1000", "x1/100"} <= set(labels)
    assert wide.left >= 11 * 0.6 * max(map(len, labels))
    assert all(tick.label.endswith("%") for tick in overview([1.0, 1.1, 0.9]).y_ticks)


def test_names_are_shortened_to_what_tells_them_apart():
    """Long common runs go, short ones stay; names that differ stay different, whatever they are."""
    folder = "PosixPath('/home/runner/project/test/meshfiles/"
    long = [
        f"{folder}{end}" for end in ("mpas/QU/a.231010.nc')", "ugrid/geoflow-small/grid.nc')", "ugrid/quad/grid.nc')")
    ]
    short = history_charts.shortened([*long, "WindowsPath('C:/Users/somebody/project/test/mpas.nc')"])
    assert short == ["PosixPath…mpas…", "PosixPath…ugrid/geoflow…", "PosixPath…ugrid/quad/grid.nc')", "WindowsPath…"]
    assert history_charts.shortened(["n=10", "n=2"]) == ["n=10", "n=2"]
    assert history_charts.shortened(["one long name of a single line"] * 2) == ["…", "…"]
    stems = ["", "a" * 40, "b " * 30, "…", "(" * 20]
    odd = [f"{stem}{end}" for stem in stems for end in ("", "x", " y", "a" * 40, "…", "((((((((((((((")]
    assert len(set(history_charts.shortened(odd))) == len(set(odd))


def test_a_legend_is_short_and_says_all_on_hover(series_of):
    """Environments are shortened on their own: the parameters stay."""
    envs = ("conda-py3.11-netcdf4-pip+pyfma-setuptools_scm-xarray", "conda-py3.11-python")
    (family,) = families([
        series_of([1.0, 1.1], benchmark="a.time_b", params={"n": n}, env=env) for env in envs for n in (1, 2)
    ])  # fmt: skip
    page = history_page(family, Around({}))
    assert [key.name for key in page.legend] == ["n=1, …netcdf4…", "n=1, …python", "n=2, …netcdf4…", "n=2, …python"]
    assert page.legend[0].full_name == f"n=1, {envs[0]}"


def test_tags_stand_below_the_dates_and_never_overlap(series_of, log_of):
    """At their commit, or between two where it was not measured; of 40 tags those that fit, versions first."""
    commits = log_of(100).commits
    values = [1.0 + 0.001 * (n % 7) for n in range(80)]
    line = series_of(values)
    sparse = msgspec.structs.replace(line, points=[point for n, point in enumerate(line.points) if n not in {50, 51}])
    tags = [(f"v2.{n}.0", f"{n:040x}") for n in range(95, 0, -5)] + [
        (f"v2.{n}.0rc1", f"{n:040x}") for n in range(4, 95, 5)
    ]
    around = Around(commits, tags=tags)
    page = history_page(families([sparse])[0], around)
    shas = [point.sha for point in sparse.points]
    places = {name: at for at, name in history_charts.tag_places(shas, around)}
    assert (places["v2.10.0"], places["v2.50.0"], places["v2.55.0"]) == (10, 49.5, 53)
    assert "v2.90.0" not in places  # later than what was measured
    for chart in (page.overview, page.overview_narrow, page.panels[0].chart):
        assert {"v2.75.0"} <= {tag.text for tag in chart.tags}
        assert all(tag.y > chart.bottom + 16 for tag in chart.tags)
        width = {tag.text: 11 * 0.6 * len(tag.text) for tag in chart.tags}
        shift = {"middle": 0.5, "end": 1.0}
        lefts = sorted((tag.x - shift[tag.anchor] * width[tag.text], width[tag.text]) for tag in chart.tags)
        assert all(left + wide <= other for (left, wide), (other, _) in itertools.pairwise(lefts))
        assert lefts[-1][0] + lefts[-1][1] <= chart.width
    assert len(page.overview.tags) > 2 * len(page.panels[0].chart.tags) > 2


def test_machines_are_compared_on_one_chart(series_of):
    """Against the one with the most points: at the same commit, or the last before it; only what both have."""
    slow = series_of([2.0, None, 6.0, 2.0, 2.0], machine="slow")
    fast = series_of([1.0, 1.0, 2.0, 1.0, 1.0, 1.0], machine="fast")
    other = series_of([1.0], machine="slow", params={"config": "b2-h3-q33"})
    early = series_of([3.0, 3.0], machine="early")
    never = series_of([None, math.nan, None], machine="never")
    fast = msgspec.structs.replace(fast, points=[p for p in fast.points if p.sha[-1] not in "03"])
    (family,) = families([slow, fast, other, early, never])
    place = CommitPlaces(f"{n:040x}" for n in range(6))
    reference, lines, ratios = history_charts.against_place(family.lines, place)
    assert (reference, [line.machine for line in lines]) == ("slow", ["early", "fast"])
    none = math.nan
    wanted = [[1.5, 1.5, none, none, none, none], [none, 0.5, 2 / 6, none, 0.5, 0.5]]
    assert np.array(ratios) == pytest.approx(np.array(wanted), nan_ok=True)
    page = history_page(family, Around({}))
    assert [line.place for line in page.against[0].lines] == ["early", "fast"]
    assert page.against[0].title == "Machines and environments against slow"
    (alone,) = families([slow])
    assert history_page(alone, Around({})).against is None


def test_a_single_point_among_long_lines_is_a_dot(series_of):
    """It makes no line, and long lines have no dots: a machine measured once would be invisible."""
    long = series_of([1.0] * 300, machine="usual")
    once = series_of([None] * 299 + [2.0], machine="once")
    (family,) = families([long, once])
    for chart in history_page(family, Around({})).against:
        assert [len(line.marks) for line in chart.lines] == [1]
