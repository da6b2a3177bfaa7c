"""Changes of level on the site: found on the branch, not across boundaries, with their state, and in the feed."""

import dataclasses
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.launch import Benchmark, Case
from rocattn_profiling.asv.series import is_rate
from rocattn_profiling.gate import verdict
from rocattn_profiling.site.changes import ENTRIES, _starts, atom, find_changes, gate_names, where_of
from rocattn_profiling.site.commits import CommitInfo, History
from rocattn_profiling.site.model import Boundary
from rocattn_profiling.site.site import Site, pages_of

from .reading import card, section, words

ATOM = "{http://www.w3.org/2005/Atom}"


def wobble(level, count, start=0):
    """Values around a level, within half a percent, the same in every run."""
    return [level * (1 + 0.005 * ((7 * (n + start)) % 11 - 5) / 5) for n in range(count)]


STEP = [*wobble(1.0, 11), *wobble(1.3, 9, 11)]
FAMILIES = ("suite-track-gbps", "bench-inference")


@pytest.fixture
def long_history(log_of):
    """Thirty commits on the branch; every subject is plain."""
    return log_of(30)


def site_of(series, history, waived=lambda *_: "", **more):
    """All pages of a site with its changes."""
    changes = find_changes(series, history, waived)
    return changes, dict(pages_of(Site(series, history, changes=changes, made_ms=1_790_000_000_000, **more)))


def test_a_step_is_a_change_with_its_commit_size_and_state(series_of, long_history):
    """A level that rises by 30 % at commit 11 is an open regression there; drawn, listed, and on the commit's page."""
    changes, pages = site_of([series_of(STEP)], long_history)
    (change,) = changes.open
    assert (change.likeliest, change.state, change.worse) == (f"{11:040x}", "confirmed", True)
    assert change.point.ratio == pytest.approx(1.3, rel=0.02)
    assert card(pages, "history") == snapshot("""\
history of main
1 regression open
1 benchmark line over 20 commits on box; 1 commit made 1 line worse; 1 change of level in all\
""")
    assert section(pages["changes.html"], "Open regressions") == snapshot("""\
1 commit, 1 line
+30.0 % 1 line confirmed 00000000 2026-09-21 Commit 11
benchmark | state | change 95 % interval | notes
bench.inference.cpu('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +30.0 % +29.6 % to +30.4 %\
""")
    assert 'class="band bad confirmed"' in pages["history/bench-inference.html"]
    assert f'id="c-{change.id}"' in pages["changes.html"]
    brought = [name for name, text in pages.items() if name.startswith("commits/") and "<h2>What moved</h2>" in text]
    assert brought == [f"commits/{change.likeliest}.html"]


def test_a_history_of_another_repository_is_not_called_quiet(series_of, long_history):
    """Without a measured commit on the branch nothing was searched, and no page says that nothing is open."""
    strange = History({"f" * 40: CommitInfo("f" * 40, 1, "Other", 0, on_branch=True)}, "main", "f" * 40)
    changes, pages = site_of([series_of(STEP)], strange)
    assert changes.listed == []
    assert card(pages, "history") == snapshot("""\
history of main
not searched
1 benchmark line over 20 commits on box, none of them on main\
""")
    assert section(pages["changes.html"], "Open regressions") == snapshot(
        "Nothing was searched: no measured commit is on main of this clone."
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            [STEP[:4]],
            snapshot("""\
too short to search
1 benchmark line over 4 commits on box; not looked at: 1 line of fewer than 8 points\
"""),
        ),
        (
            [[0.0] * 11, STEP[:4]],
            snapshot("""\
too short to search
2 benchmark lines over 11 commits on box; not looked at: 1 line of fewer than 8 points and 1 line with values
  of zero or less\
"""),
        ),
        (
            [[0.0] * 11],
            snapshot("""\
nothing to search
1 benchmark line over 11 commits on box; not looked at: 1 line with values of zero or less\
"""),
        ),
        (
            [STEP[:4], STEP],
            snapshot("""\
1 regression open
2 benchmark lines over 20 commits on box; 1 commit made 1 line worse; 1 change of level in all; not looked at:
  1 line of fewer than 8 points\
"""),
        ),
    ],
    ids=["short", "zeros and short", "zeros", "one that is long enough"],
)
def test_a_short_history_is_not_called_free_of_regressions(series_of, long_history, lines, says):
    """The first site that anybody makes has a few commits: green would say what nobody looked at."""
    series = [series_of(values, benchmark=f"suite.time_{n}") for n, values in enumerate(lines)]
    _, pages = site_of(series, long_history)
    assert card(pages, "history").partition("\n")[2] == says
    listed = section(pages["changes.html"], "Open regressions").partition("\n")[0]
    assert listed == ("1 commit, 1 line" if STEP in lines else "No line could be searched.")


def test_an_improvement_and_a_rise_of_a_rate_are_no_regressions(series_of, long_history):
    """Down is better for times; for GB/s up is better."""
    faster = series_of([1 / value for value in STEP])
    rate = series_of(STEP, benchmark="suite.track_gbps", unit="GB/s")
    changes, pages = site_of([faster, rate], long_history)
    assert [(c.worse, c.tone) for c in changes.listed] == [(False, "good")] * 2
    assert changes.open == []
    assert card(pages, "history") == snapshot("""\
history of main
0 regressions open
2 benchmark lines over 20 commits on box; 2 changes of level in all\
""")
    leads = [words(re.search(r'<p class="lead">.*?</p>', pages[f"history/{name}.html"])[0]) for name in FAMILIES]
    assert leads == snapshot(
        [
            "1 parameter combination over 20 commits. Higher is better.",
            "1 parameter combination over 20 commits. Lower is better.",
        ]
    )
    assert is_rate("TFLOP/s")
    assert not is_rate("seconds")


@pytest.mark.parametrize(
    ("unit", "rate"),
    [
        ("GB/s", True), ("GBps", True), ("GiB / s", True), ("TFLOPS", True), ("tokens/sec", True), ("fps", True),
        ("images/second", True), ("tokens per second", True), ("Tokens per second and GPU", True), ("IOPS", True),
        ("ps", False), ("steps", False), ("hops", False), ("ms/step", False), ("ns/op", False), ("seconds", False),
        ("bytes", False), ("", False), ("s", False),
    ],
)  # fmt: skip
def test_the_site_and_the_gate_take_the_same_units_for_rates(series_of, long_history, unit, rate):
    """A fall of GBps was an improvement on the site; a rise of steps was said to be good by the gate."""
    fallen = series_of([1 / value for value in STEP], benchmark="suite.track_x", unit=unit)
    (change,) = find_changes([fallen], long_history).listed
    assert (change.worse, change.tone) == ((True, "bad") if rate else (False, "good"))
    benchmark = Benchmark(name="suite.track_x", type="track", unit=unit, version="1", params=[], param_names=[])
    assert bool(verdict.ungated(Case(benchmark=benchmark, param=None, label="x"))) == rate


def test_pages_point_at_nothing_that_they_do_not_have(series_of, log_of):
    """Without an audit no commit's page tells of machine code; a chart too full for dots is not said to have them."""
    history = log_of(90)
    audited = series_of([1.0] * 20, benchmark="bench_audit.K.track_vgprs", params={"arch": "gfx942", "kernel": "k"})
    for points, more in ((20, []), (20, [audited]), (70, [])):
        changes, pages = site_of([series_of([*wobble(1.0, 11), *wobble(1.3, points - 11, 11)]), *more], history)
        (change,) = changes.listed
        assert ("machine code differs" in pages[f"commits/{change.likeliest}.html"]) == bool(more)
        assert ("click it for" in pages["history/bench-inference.html"]) == (points == 20)


def test_an_accepted_regression_is_waived_with_its_reason(series_of, long_history):
    """The waiver is asked by the gate's names; what it accepts is not open, and its reason is on the page."""
    asked = []

    def waived(label, metric, arch, ratio):
        asked.append((label, metric, arch, round(ratio, 1)))
        return "needed for <issue 7>"

    changes, pages = site_of([series_of(STEP)], long_history, waived)
    assert asked == [("bench.inference.cpu('b1-h3-q33')", "time", "", 1.3)]
    assert [(c.state, c.tone, c.open) for c in changes.listed] == [("waived", "warn", False)]
    assert section(pages["changes.html"], "Accepted regressions") == snapshot("""\
+30.0 % 1 line waived 00000000 2026-09-21 Commit 11
benchmark | state | change 95 % interval | notes
bench.inference.cpu('b1-h3-q33') box, py3.11-numpy2.4 | waived | +30.0 % +29.6 % to +30.4 % | accepted: needed
  for <issue 7>\
""")
    asked.clear()
    rate = series_of([1 / value for value in STEP], benchmark="suite.track_gbps", unit="GB/s")
    find_changes([rate], long_history, waived)
    (improved,) = find_changes([series_of([1 / value for value in STEP])], long_history, waived).listed
    assert (improved.state, improved.waived) == ("confirmed", "")  # nobody accepts what is better
    assert [cost for *_, cost in asked] == [1.3]  # times what it was, as a ceiling says it: also of a rate that fell


def test_audit_numbers_are_known_to_waivers_by_kernel_and_arch(series_of):
    """The gate calls them by kernel, "audit" and architecture; memory and tracked values by their kind."""
    audited = series_of(
        [1.0], benchmark="bench_audit.Kernels.track_vgprs", params={"arch": "gfx942", "kernel": "k D=9"}
    )
    assert gate_names(audited) == ("k D=9", "audit", "gfx942")
    for name, metric in (("peakmem_x", "peakmem"), ("mem_x", "mem"), ("track_x", "track"), ("timeraw_x", "time")):
        assert gate_names(series_of([1.0], benchmark=f"s.C.{name}", params={})) == (f"s.C.{name}", metric, "")


def places_of(fact, *values):
    """A fact's value at each of 20 commits: values with the commit that each begins at."""
    found = {}
    for value, start in values:
        found |= {f"{n:040x}": {"cpu": "x"} | ({fact: value} if value else {}) for n in range(start, 20)}
    return found


@pytest.mark.parametrize(
    ("places", "gap", "boundary"),
    [
        (places_of("driver", ("6.3", 0), ("<6.4>", 11)), (), (11, "driver 6.3 -> <6.4>")),
        (places_of("driver", ("6.3", 0), ("", 10), ("6.4", 11)), (), (11, "driver 6.3 -> 6.4")),
        (places_of("compiler", ("clang 21", 0), ("clang 22", 10)), (10,), (10, "compiler clang 21 -> clang 22")),
        (places_of("compiler", ("", 0), ("clang 22", 11)), (), None),
    ],
    ids=["driver", "not written down in between", "begins without a point", "a newer tool's fact"],
)
def test_nothing_is_compared_across_another_driver(series_of, long_history, places, gap, boundary):
    """A step where the driver became another one is no change: the boundary is drawn and declared instead."""
    values = [None if n in gap else value for n, value in enumerate(STEP)]
    changes, pages = site_of([series_of(values, places=places)], long_history)
    assert [(int(b.sha, 16), b.text) for b in changes.boundaries] == ([boundary] if boundary else [])
    assert len(changes.listed) == (boundary is None)
    assert ('class="edge"' in pages["history/bench-inference.html"]) == bool(boundary)
    for name in ("changes.html", "history/bench-inference.html") if boundary else ():
        assert boundary[1].replace("<", "&lt;").replace(">", "&gt;") in pages[name]


def test_a_boundary_without_a_point_counts_from_the_next_one():
    """Of two, the one whose commit was measured by this line stays where it is."""
    order = {sha: number for number, sha in enumerate("abcde")}
    assert _starts("abde", [Boundary(sha, "m", "") for sha in "bc"], order) == {"b", "d"}


def test_a_boundary_is_of_one_machine_and_environment(series_of, long_history):
    """Of two environments one got another driver, on a machine whose name has a comma: the other's step is a change."""
    names = {"machine": "rack 3, left"}
    places = {f"{n:040x}": {"driver": "6.3" if n < 11 else "6.4"} for n in range(20)}
    moved = series_of(STEP, benchmark="s.time_moved", env="old", places=places, **names)
    stayed = series_of(
        STEP, benchmark="s.time_stayed", env="new", places={sha: {"driver": "6.4"} for sha in places}, **names
    )
    elsewhere = series_of(STEP, benchmark="s.time_elsewhere", env="old", machine="box")
    changes, pages = site_of([moved, stayed, elsewhere], long_history)
    assert [(b.sha, b.where) for b in changes.boundaries] == [(f"{11:040x}", "rack 3, left, old")]
    assert [(c.benchmark, c.where) for c in changes.listed] == [
        ("s.time_stayed", "rack 3, left, new"), ("s.time_elsewhere", "box, old"),
    ]  # fmt: skip
    drawn = {name for name, text in pages.items() if 'class="edge"' in text}
    assert drawn == {"history/s-time-moved.html"}
    told = [section(pages[f"history/s-time-{name}.html"], "Not comparable across") for name in ("moved", "stayed")]
    assert told == snapshot(
        [
            """\
Dashed lines in the charts: something other than the code changed, so levels are not compared across them.
00000000 on rack 3, left, old: driver 6.3 -> 6.4\
""",
            "",
        ]
    )


def test_changes_are_newest_first_with_stable_ids(series_of, long_history):
    """In git's order, whatever dates the results have; two lines that moved with one commit are two changes."""
    twice = [*wobble(1.0, 10), *wobble(1.3, 9), *wobble(1.8, 10)]
    places = {f"{n:040x}": {"driver": str(n // 10)} for n in range(30)}
    found = [
        series_of(twice, benchmark="s.time_z"), series_of(twice, benchmark="s.time_z", env="other"),
        series_of(twice, benchmark="s.time_a"), series_of(twice, machine="bounded", places=places),
    ]  # fmt: skip
    dated = [
        msgspec.structs.replace(
            one, points=[msgspec.structs.replace(p, date_ms=10**12 - p.date_ms % 10**11) for p in one.points[::-1]]
        )
        for one in found
    ]
    for series in (found, dated):
        changes = find_changes(series, long_history)
        assert [(int(c.likeliest, 16), c.benchmark) for c in changes.listed] == [
            (19, "s.time_z"), (19, "s.time_z"), (19, "s.time_a"), (10, "s.time_z"), (10, "s.time_z"), (10, "s.time_a"),
        ]  # fmt: skip
        assert all(change.point.ratio > 1.2 for change in changes.listed)
        assert len({change.id for change in changes.listed}) == 6
        assert [int(b.sha, 16) for b in changes.boundaries] == [20, 10]


def test_a_regression_is_open_until_the_level_comes_back(series_of, long_history):
    """New with fewer than five points on the new level; recovered is no colour, and not waived by a reason either."""
    (new,) = find_changes([series_of(STEP[:15])], long_history).listed
    assert (new.state, new.open, new.tone) == ("new", True, "bad")
    back = [series_of([*wobble(1.0, 10), *wobble(1.4, 9), *wobble(1.0, 10)])]
    for waived, accepted in ((lambda *_: "", ""), (lambda *_: "why", " | accepted: why")):
        changes, pages = site_of(back, long_history, waived)
        assert [(c.state, c.open, c.tone) for c in changes.listed if c.worse] == [("recovered", False, "")]
        assert changes.open == []
        undone = section(pages["changes.html"], "Undone by a later change")
        assert undone.endswith(accepted)
        assert undone.removesuffix(accepted) == snapshot("""\
+40.0 % 1 line recovered 00000000 2026-09-20 Commit 10
benchmark | state | change 95 % interval | notes
bench.inference.cpu('b1-h3-q33') box, py3.11-numpy2.4 | recovered | +40.0 % +39.5 % to +40.4 %\
""")


def test_commits_of_other_branches_are_not_part_of_the_line(series_of, long_history):
    """A slow experiment that was measured on its branch does not make a change on the main one."""
    commits = {
        sha: CommitInfo(sha, info.date_ms, info.subject, info.order, on_branch=not 11 <= info.order < 17)
        for sha, info in long_history.commits.items()
    }
    values = [*wobble(1.0, 11), *wobble(1.5, 6), *wobble(1.0, 9)]
    changes, pages = site_of([series_of(values)], History(commits, "main", long_history.head))
    assert changes.listed == []
    assert "not on main" in pages[f"commits/{11:040x}.html"]


def test_the_feed_is_atom_with_identifiers_that_stay(series_of, long_history):
    """Parsed as XML: what RFC 4287 asks of a feed and its entries; made again later with more commits, the ids stay."""
    changes, pages = site_of([series_of(STEP[:17])], long_history, url="https://example.org/site/")
    feed = ET.fromstring(pages["feed.xml"])  # noqa: S314 - made in this test
    for name in ("id", "title", "updated"):
        assert len(feed.findall(ATOM + name)) == 1
    (entry,) = feed.findall(f"{ATOM}entry")
    assert {child.tag.removeprefix(ATOM) for child in entry} == {"id", "title", "updated", "link", "summary"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.find(f"{ATOM}updated").text)
    assert entry.find(f"{ATOM}link").get("href") == f"https://example.org/site/commits/{11:040x}.html"
    assert changes.listed[0].likeliest[:8] in entry.find(f"{ATOM}title").text
    _, later = site_of([series_of(STEP)], long_history)
    again = ET.fromstring(later["feed.xml"])  # noqa: S314 - made in this test
    assert again.find(f"{ATOM}id").text == feed.find(f"{ATOM}id").text
    assert again.find(f"{ATOM}entry/{ATOM}id").text == entry.find(f"{ATOM}id").text


def entries_of(changes, history, **more):
    """The feed of a site and its entries' texts by tag; no site, so no page is laid out."""
    told = {"links": {}, "made_ms": 86_400_000, "url": "", "project": "p"}
    feed = ET.fromstring(atom(changes.regressions, history, **{**told, **more}))  # noqa: S314 - made in this test
    texts = [{child.tag.removeprefix(ATOM): child.text for child in e} for e in feed.findall(f"{ATOM}entry")]
    return feed, texts


def test_a_feed_s_entry_says_what_is_known_of_the_regression(series_of, long_history):
    """Size with its interval, the low end first, state, commits and acceptance; improvements are none."""
    faster = series_of([1 / value for value in STEP], benchmark="suite.time_faster")
    changes = find_changes([series_of(STEP), faster], long_history, lambda *_: "needed for #7")
    feed, (entry,) = entries_of(changes, long_history)
    # The date of the commit, 1_789_000_000_011 ms, is that of the news; of the feed, that of its newest entry.
    assert feed.find(f"{ATOM}updated").text == entry["updated"]
    assert entry == snapshot(
        {
            "id": "urn:uuid:7c42f203-76f4-5de5-bc72-37b6a9480ddc",
            "title": "00000000 Commit 11: 1 line +30.0 % (waived)",
            "updated": "2026-09-10T00:26:40Z",
            "link": None,
            "summary": "bench.inference.cpu('b1-h3-q33'): +30.0 % (95 %: +29.6 % to +30.4 %) on box, py3.11-numpy2.4, "
            "waived after 9 points; accepted: needed for #7",
        }
    )
    undated = {sha: dataclasses.replace(info, date_ms=0) for sha, info in long_history.commits.items()}
    _, (entry,) = entries_of(changes, History(undated, "main", long_history.head))
    assert entry["updated"] == "2026-09-21T00:26:40Z"  # of the result: eleven days after the first


def test_a_feed_counts_the_commits_a_regression_may_come_from(series_of, long_history):
    """Commit 10 was not measured: it came with that one or with 11."""
    gap = series_of([*STEP[:10], None, *STEP[11:]])
    changes = find_changes([gap], long_history)
    (change,) = changes.listed
    assert (change.commits, change.since) == ([f"{10:040x}", f"{11:040x}"], f"{9:040x}")
    _, (entry,) = entries_of(changes, long_history)
    assert entry["summary"] == snapshot(
        "bench.inference.cpu('b1-h3-q33'): +30.0 % (95 %: +29.5 % to +30.4 %) on box, py3.11-numpy2.4, "
        "confirmed after 9 points; or from another of 2 commits"
    )
    (cause,) = changes.causes
    assert (cause.since, cause.among) == (change.since, 2)
    _, pages = site_of([gap], long_history)
    assert section(pages["index.html"], "Open regressions") == snapshot("""\
1 commit, 1 line; the largest change first. All changes · feed
+30.0 % 1 line confirmed 00000000 2026-09-21 Commit 11 or another of 2 commits since 00000000
benchmark | state | change 95 % interval | notes
bench.inference.cpu('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +30.0 % +29.5 % to +30.4 % | or from
  another of 2 commits, 00000000 to 00000000\
""")


def test_a_feed_has_one_entry_a_commit_the_newest_first(series_of, long_history, monkeypatch):
    """Two at most here, open or not. Its identifier is of the oldest commit; an empty one is as old as the site."""
    monkeypatch.setattr("rocattn_profiling.site.changes.ENTRIES", 2)
    back = [*wobble(1.0, 9), *wobble(1.4, 9), *wobble(1.0, 10)]
    late = [*wobble(1.0, 18), *wobble(1.4, 9)]
    series = [series_of(back, benchmark="s.time_back")]
    series += [series_of(late, benchmark=f"s.time_{n}") for n in range(30)]
    days = {
        sha: dataclasses.replace(info, date_ms=86_400_000 * info.order) for sha, info in long_history.commits.items()
    }
    changes = find_changes(series, long_history)
    feed, entries = entries_of(changes, History(days, "main", long_history.head), url="https://e.org/s")
    assert [entry["updated"] for entry in entries] == ["1970-01-19T00:00:00Z", "1970-01-10T00:00:00Z"]
    assert feed.find(f"{ATOM}updated").text == entries[0]["updated"]
    assert [entry["title"] for entry in entries] == snapshot(
        ["00000000 Commit 18: 30 lines +40.0 % (confirmed)", "00000000 Commit 9: 1 line +40.0 % (recovered)"]
    )
    assert entries[0]["summary"].endswith("\nand 10 more")
    assert {link.get("rel"): link.get("href") for link in feed.findall(f"{ATOM}link")} == {
        "self": "https://e.org/s/feed.xml", "alternate": "https://e.org/s/changes.html",
    }  # fmt: skip
    newer = series_of([*wobble(1.0, 22), *wobble(1.4, 8)], benchmark="s.time_one_more")
    more = find_changes([*series, newer], long_history)
    longer = dict(long_history.commits) | {"f" * 40: CommitInfo("f" * 40, 1, "Later", 30, on_branch=True)}
    later, told = entries_of(more, History(longer, "main", "f" * 40))
    assert ["Commit 22" in told[0]["title"], told[1]["id"]] == [True, entries[0]["id"]]
    assert later.find(f"{ATOM}id").text == feed.find(f"{ATOM}id").text
    empty, _ = entries_of(find_changes([], long_history), long_history)
    assert empty.find(f"{ATOM}updated").text == "1970-01-02T00:00:00Z"
    assert ENTRIES == 50


def test_hostile_text_stays_text_in_the_feed(series_of, long_history):
    """Subjects and branch names with markup and control characters neither break nor extend the XML."""
    evil = "</title></entry><script>alert(1)</script>]]>\x1b[31m\x00\ufffe"
    commits = {
        sha: CommitInfo(sha, info.date_ms, evil, info.order, on_branch=True)
        for sha, info in long_history.commits.items()
    }
    history = History(commits, "<b>&'\"main", long_history.head)
    _, pages = site_of([series_of(STEP, benchmark="a<b>.time_x")], history)
    feed = ET.fromstring(pages["feed.xml"])  # noqa: S314 - made in this test
    assert len(feed.findall(f"{ATOM}entry")) == 1
    assert {element.tag for element in feed.iter()} <= {
        ATOM + name for name in ("feed", "id", "title", "updated", "author", "name", "link", "entry", "summary")
    }
    assert "<script>" not in "".join(text for path, text in pages.items() if not path.endswith(".csv"))
    assert not any("\x1b" in text or "\0" in text for path, text in pages.items() if path.endswith(".csv"))


def test_unsearched_lines_are_counted_by_reason(series_of, long_history):
    """A line that flickers at 0 and a line of three points: the front page says so beside its zero, and which."""
    series = [
        series_of([0.0, 3.0] * 10, benchmark="suite.track_leaks", unit="leaks"),
        series_of(STEP[:3], benchmark="suite.time_young"),
        series_of(wobble(1.0, 20)),
    ]
    changes, pages = site_of(series, long_history)
    assert (changes.listed, changes.few, changes.zero) == ([], 1, [(series[0].label, where_of(series[0]))])
    assert card(pages, "history") == snapshot("""\
history of main
0 regressions open
3 benchmark lines over 20 commits on box; not looked at: 1 line of fewer than 8 points and 1 line with values
  of zero or less\
""")
    assert section(pages["changes.html"], "Open regressions") == snapshot("""\
None in the lines that were searched.
Not searched: 1 line of fewer than 8 points and 1 line with values of zero or less. A change needs several
  points before and after it, all above zero.
Lines with values of zero or less
suite.track_leaks('b1-h3-q33') box, py3.11-numpy2.4\
""")
    assert re.search(r'href="history/suite-track-leaks.html#line-\w+">suite', pages["changes.html"])
    _, pages = site_of(series[2:], long_history)
    assert card(pages, "history") == snapshot("""\
history of main
0 regressions open
1 benchmark line over 20 commits on box\
""")
    assert section(pages["changes.html"], "Open regressions") == "None."


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ([0.0] * 11 + [5.0] * 9, ["confirmed"]),
        ([0.0] * 11 + [5.0] * 3, ["new"]),
        ([0.0] * 11 + [5.0] * 2, []),
        ([0.0] * 9 + [7.0] + [0.0] * 5 + [5.0] * 6, ["confirmed"]),
        ([0.0] * 9 + [5.0] * 5 + [0.0] * 5, ["recovered"]),
        ([5.0] * 9 + [0.0] * 9, []),
        ([-1.0] + [0.0] * 9 + [5.0] * 9, []),
        ([None] * 2 + [0.0] * 9 + [None] + [5.0] * 9, ["confirmed"]),
    ],
)
def test_a_rise_from_zero_is_a_change(series_of, long_history, values, states):
    """It has no ratio, so it is named by its levels; two values are outliers, as anywhere."""
    line = series_of(values, benchmark="suite.track_leaks", unit="leaks")
    changes, pages = site_of([line], long_history)
    assert [change.state for change in changes.listed] == states
    assert ("0 → 5" in pages["changes.html"]) == bool(states)
    assert (changes.zero == []) == bool(states)
    assert ("1 regression open" in pages["index.html"]) == (states in (["new"], ["confirmed"]))
    if states == ["new"]:
        assert changes.listed[0].likeliest == f"{11:040x}"


@pytest.mark.parametrize(
    ("level", "places", "states"),
    [(2e-16, {}, ["small"]), (1e-9, {}, ["confirmed"]), (5.0, places_of("driver", ("6.8", 0), ("6.9", 11)), [])],
    ids=["a last bit, which would head every list", "an error", "zeros of the old driver, fives of the new one"],
)
def test_a_rise_from_zero_that_is_no_regression(series_of, long_history, level, places, states):
    """What was exact and is off by its last bit is not slower; nothing is sought across another driver."""
    line = series_of([0.0] * 11 + [level] * 9, benchmark="suite.track_error", unit="error", places=places)
    assert [change.state for change in find_changes([line], long_history).listed] == states


def test_what_asv_conf_accepts_is_waived_with_its_reason(series_of, long_history):
    """The rule gets asv's name of the line and where the commit stands."""
    asked = []

    def accepted(label, order):
        asked.append((label, order))
        return "regressions_first_commits: not watched"

    changes = find_changes([series_of(STEP)], long_history, accepted=accepted)
    (change,) = changes.listed
    assert (change.state, change.waived) == ("waived", "regressions_first_commits: not watched")
    assert (asked, changes.open) == ([(change.label, 11)], [])


def stepped(factor, at=11, count=20):
    """A quiet level that rises at a commit."""
    return [*wobble(1.0, at), *(factor * value for value in wobble(1.0, count - at, at))]


def test_a_change_below_the_limit_is_listed_and_not_announced(series_of, long_history):
    """asv's 5 % unless its configuration says otherwise; rises and falls alike."""
    small = [series_of(stepped(1.04), benchmark="s.time_a"), series_of(stepped(1 / 1.04), benchmark="s.time_b")]
    changes, pages = site_of(small, long_history)
    assert [(c.state, c.kind, c.tone) for c in changes.listed] == [("small", "small", "")] * 2
    assert card(pages, "history") == snapshot("""\
history of main
0 regressions open
2 benchmark lines over 20 commits on box; 2 changes of level in all\
""")
    assert re.findall(r"<summary>(Below.*?)</summary>", pages["changes.html"]) == ["Below the limit: 2 lines"]
    assert "<entry" not in pages["feed.xml"]
    for limit, still in ((0.02, 1), (0.2, 0)):
        assert len(find_changes(small, long_history, limit_of=lambda _, own=limit: own).open) == still
    assert find_changes([series_of(STEP)], long_history, limit_of=lambda _: 0.5).open == []


def test_a_cause_is_a_commit_with_its_lines_the_largest_first(series_of, long_history):
    """Three lines at commit 11, one of them named at 12 but not surely; another at 20 is larger and comes first."""
    unsure = [*wobble(1.0, 11), 1.25, *(1.3 * value for value in wobble(1.0, 17, 12))]
    unsure[11] = None
    series = [
        series_of(stepped(1.3, count=28), benchmark="a.time_x"),
        series_of(stepped(1.2, count=28), benchmark="b.time_x"),
        series_of(unsure, benchmark="c.time_x"), series_of(stepped(1 / 1.5, count=28), benchmark="d.time_x"),
        series_of(stepped(2.0, 20, 28), benchmark="e.time_x"),
    ]  # fmt: skip
    alone = find_changes(series[2:3], long_history).listed[0]
    assert (alone.likeliest, alone.commits) == (f"{12:040x}", [f"{11:040x}", f"{12:040x}"])
    changes, pages = site_of(series, long_history)
    found = [(int(cause.sha, 16), [c.benchmark[0] for c in cause.changes]) for cause in changes.of("open")]
    assert [(sha, sorted(own)) for sha, own in found] == [(20, ["e"]), (11, ["a", "b", "c"])]
    assert found[1][1][2] == "b"
    assert [[c.benchmark[0] for c in cause.changes] for cause in changes.of("better")] == [["d"]]
    assert card(pages, "history") == snapshot("""\
history of main
2 regressions open
5 benchmark lines over 29 commits on box; 2 commits made 4 lines worse; 5 changes of level in all\
""")
    assert section(pages["changes.html"], "Open regressions") == snapshot("""\
2 commits, 4 lines
+100 % 1 line confirmed 00000000 2026-09-30 Commit 20
benchmark | state | change 95 % interval | notes
e.time_x('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +100 % +99.4 % to +101 %
+20.0 % to +30.1 % 3 lines confirmed 00000000 2026-09-21 Commit 11
benchmark | state | change 95 % interval | notes
c.time_x('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +30.1 % +29.7 % to +30.4 % | or from another of 2
  commits, 00000000 to 00000000
a.time_x('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +30.0 % +29.6 % to +30.3 %
b.time_x('b1-h3-q33') box, py3.11-numpy2.4 | confirmed | +20.0 % +19.7 % to +20.3 %\
""")
    assert len(ET.fromstring(pages["feed.xml"]).findall(f"{ATOM}entry")) == 2  # noqa: S314 - made in this test
    assert f"commits/{12:040x}.html" in pages
    assert "What moved" not in pages[f"commits/{12:040x}.html"]


def crowd(series_of, lines=200, factor=1.09, unmoved=0, suites=20):
    """Lines of so many suites, all higher from commit 11 on, and some that are not."""
    wobbles = [[value * (1 + 0.001 * ((n + at) % 5)) for at, value in enumerate(stepped(factor))] for n in range(lines)]
    moved = [series_of(own, benchmark=f"suite{n % suites}.Bench.time_{n}") for n, own in enumerate(wobbles)]
    return [*moved, *(series_of(wobble(1.0, 20), benchmark=f"still.time_{n}") for n in range(unmoved))]


def test_an_event_is_listed_once_and_is_no_regression(series_of, long_history):
    """200 lines of unrelated suites at a commit that touched a README: not open, not in the feed, with its reason."""
    asked = []

    def excused(ranges):
        asked.extend(ranges)
        return ["only README.md changed, not what is built or measured"] * len(ranges)

    changes = find_changes(crowd(series_of), long_history, excused=excused)
    assert asked == [(f"{10:040x}", f"{11:040x}")]
    assert (changes.open, changes.regressions, {c.kind for c in changes.listed}) == ([], [], {"event"})
    (event,) = changes.of("event")
    assert event.event == (
        "only README.md changed, not what is built or measured; 200 of 200 lines on box, in 20 suites, moved at once"
    )
    pages = dict(pages_of(Site(crowd(series_of, 20), long_history, changes=changes, made_ms=1_790_000_000_000)))
    assert card(pages, "history") == snapshot("""\
history of main
0 regressions open
20 benchmark lines over 20 commits on box; 200 changes of level in all\
""")
    besides = re.search(r"<p[^>]*>Besides.*?</p>", pages["index.html"], re.DOTALL)[0]
    assert words(besides) == snapshot(
        "Besides, 1 event of the machine or the environment moved 200 lines: among all changes ."
    )
    assert pages["changes.html"].count("Not the commit's fault") == 1
    assert section(pages[f"commits/{11:040x}.html"], "What moved").partition("benchmark |")[0] == snapshot("""\
Not the commit's fault: only README.md changed, not what is built or measured; 200 of 200 lines on box, in 20
  suites, moved at once.
""")
    assert "<entry" not in pages["feed.xml"]
    assert ('<span class="tag">event</span>' in pages["commits.html"], " worse</span>" in pages["commits.html"]) == (
        True, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "unmoved", "suites", "doubted"),
    [(40, 0, 20, True), (40, 300, 20, True), (40, 500, 20, False), (19, 0, 20, False), (40, 0, 1, False)],
)
def test_many_lines_at_a_commit_of_code_are_in_doubt(series_of, long_history, lines, unmoved, suites, doubted):
    """A core function moves as many: it is open, and the page says where else to look. A suite shares its code."""
    changes, pages = site_of(crowd(series_of, lines, unmoved=unmoved, suites=suites), long_history)
    (cause,) = changes.of("open")
    assert (len(cause.changes), bool(cause.doubt), cause.event) == (lines, doubted, "")
    assert ("perhaps the machine" in pages["index.html"]) == doubted


@pytest.mark.parametrize(("lines", "found"), [(8, 8), (3, 0), (400, 400)])
def test_a_short_level_counts_when_lines_share_it(series_of, long_history, lines, found):
    """Three commits at -20 % are an accident in one line; in eight of 40, or 400 of 2,000, a fall and a rise."""
    short = [*wobble(1.0, 12), *wobble(0.8, 3, 12), *wobble(1.0, 13, 15)]
    series = [series_of(short, benchmark=f"suite.time_{n}") for n in range(lines)]
    series += [series_of(wobble(1.0 + n, 28), benchmark=f"other.time_{n}") for n in range(max(40, 5 * lines) - lines)]
    causes = {cause.sha: cause.changes for cause in find_changes(series, long_history).causes}
    assert {int(sha, 16): len(own) for sha, own in causes.items()} == ({12: found, 15: found} if found else {})
    for own in causes.values():
        assert {round(max(c.point.ratio, 1 / c.point.ratio), 1) for c in own} <= {1.2, 1.3}
    assert [change.state for change in causes.get(f"{12:040x}", [])] == ["recovered"] * found


@pytest.mark.parametrize(
    "places", [[(10, 13)] * 2 + [(17, 20)] * 2, [(10, 12), (11, 13), (12, 14), (13, 15), (10, 14)]]
)
def test_short_levels_of_other_commits_prove_nothing(series_of, long_history, places):
    """Lines that stray at different commits are noise."""
    series = []
    for n, (start, end) in enumerate(places):
        values = wobble(1.0, 28, n)
        values[start:end] = wobble(1.4, end - start)
        series.append(series_of(values, benchmark=f"suite.time_{n}"))
    assert find_changes(series, long_history).listed == []
