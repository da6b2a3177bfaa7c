"""The page that compares two commits: which two, what of each line, and that its data stays small and is data."""

import itertools
import json

import msgspec

from rocattn_profiling.site import compare
from rocattn_profiling.site.commits import CommitInfo
from rocattn_profiling.site.history import families, tree_of
from rocattn_profiling.site.history_charts import Around

COMMITS = {f"{n:040x}": CommitInfo(f"{n:040x}", 1 + n, f"Commit {n}", n, on_branch=n != 11) for n in range(12)}


def compared(series, tags=()):
    """The page of series, tags being (name, number of the commit)."""
    lines = [line for family in families(series) for line in family.lines]
    places = {(line.label, line.where): f"history/x.html#{line.anchor}" for line in lines}
    around = Around(COMMITS, tags=[(name, f"{n:040x}") for name, n in tags])
    chosen = compare.compared_commits(lines, around)
    return chosen and compare.compare_page(chosen, lines, places, around)


def rising(series_of, **about):
    """A line of 1, 2, 3 s and so on."""
    return series_of([1.0 + n for n in range(12)], **about)


def test_the_newest_commit_is_against_the_last_release(series_of):
    """Or the commit before; an experiment of another branch and a later tag are neither."""
    numbers = {(): 9, (("v1", 3),): 3, (("v2", 7), ("v1", 3)): 7, (("v3", 10), ("v2", 7)): 7, (("v4", 11),): 9}
    for tags, before in numbers.items():
        page = compared([rising(series_of)], tags)
        assert (int(page.old, 16), int(page.new, 16)) == (before, 10)
        assert page.rows[0].before == f"{before + 1}.00 s" if before < 9 else "10.0 s"
    sparse = [msgspec.structs.replace(one := rising(series_of), points=[p for p in one.points if p.sha[-1] != "7"])]
    assert int(compared(sparse, [("v2", 7)]).old, 16) == 6  # the last measured one before it
    assert compared(sparse, [("v2", 7)]).old_name == "before v2, 1970-01-01 Commit 6"
    assert compared([series_of([1.0])]) is None
    assert compared([series_of([1.0]), series_of([None, 1.0], benchmark="a.other")]) is None
    last = [rising(series_of), series_of([None] * 10 + [1.0], benchmark="a.new", params={})]
    last[0] = msgspec.structs.replace(last[0], points=last[0].points[:9])
    assert int(compared(last).new, 16) == 8  # at the newest commit only what is new was measured
    few = [rising(series_of, benchmark=f"a.b{n}", params={}) for n in range(3)]
    few[1:] = [msgspec.structs.replace(one, points=[p for p in one.points if p.sha[-1] != "7"]) for one in few[1:]]
    assert int(compared(few, [("v2", 7), ("v1", 3)]).old, 16) == 3  # of the other release a third was measured


def test_the_largest_difference_comes_first_with_its_interval(series_of):
    """In colour where the intervals are apart; a rate that falls is worse; what failed or was zero is left out."""
    flat = [1.0] * 9
    page = compared([
        series_of([*flat, 1.0, 1.005], benchmark="a.near"),
        series_of([*flat, 1.0, 2.0], benchmark="a.slower"),
        series_of([*flat, 1.0, 0.7], benchmark="a.rate", unit="GB/s"),
        series_of([*flat, 1.0, 0.9], benchmark="a.faster"),
        series_of([*flat, None, 1.0], benchmark="a.failed"),
        series_of([*flat, 0.0, 1.0], benchmark="a.zero"),
    ])  # fmt: skip
    named = [(row.label.partition("(")[0], row.tone, row.change) for row in page.rows]
    assert named == [
        ("a.slower", "bad", "+100 %"), ("a.rate", "bad", "-30.0 %"), ("a.faster", "good", "-10.0 %"),
        ("a.near", "", "+0.5 %"),
    ]  # fmt: skip
    assert page.rows[0].interval == "+96.0 % to +104 %"
    assert (page.lines, page.apart, page.unknown) == (4, 3, 0)
    points = [msgspec.structs.replace(point, low=None, high=None) for point in series_of([1.0, 2.0]).points]
    page = compared([msgspec.structs.replace(series_of([1.0, 2.0]), points=points)])
    assert (page.lines, page.apart, page.unknown, page.rows[0].interval) == (1, 0, 1, "")


def test_odd_intervals_and_sizes_are_no_trouble(series_of):
    """An end at or below zero is no interval; the smallest and the largest numbers have a place in the data."""
    ends = [(1e-310, 1e-310, 1.0), (1e300, 1e299, 1e300), (1.0, -5.0, 3.0), (1.0, 1.2, 1.3), (1.0, 0.5, 0.0)]
    for old, new in itertools.product(ends, ends):
        points = [
            msgspec.structs.replace(point, value=value, low=low, high=high)
            for point, (value, low, high) in zip(series_of([1.0, 1.0]).points, (old, new), strict=True)
        ]
        page = compared([msgspec.structs.replace(series_of([1.0, 1.0]), points=points)])
        (row,) = page.rows
        assert (row.interval == "") == (page.unknown == 1) == (min(*old, *new) <= 0)
        assert row.apart == (new[1] > old[2] or new[2] < old[1]) or page.unknown
        json.loads(page.island)


def test_the_data_is_bounded_and_keeps_releases(series_of, monkeypatch):
    """Of eleven commits five fit: the two compared, the tagged one, and the newest; the page says how many."""
    monkeypatch.setattr(compare, "VALUES", 10)
    page = compared([rising(series_of), rising(series_of, env="py3.12")], [("v1", 2)])
    data = json.loads(page.island)
    assert (page.commits, page.measured) == (5, 12)
    assert [int(sha, 16) for sha, *_ in data["commits"]] == [2, 8, 9, 10, 11]
    assert data["commits"][0][2:] == ["v1", "Commit 2"]
    assert [line[6] for line in data["lines"]] == ["3:100:100 9:100:100 10:100:100 11:100:100 12:100:100"] * 2
    assert data["places"] == ["box, py3.11-numpy2.4", "box, py3.12"]


def test_hostile_names_do_not_end_the_data(series_of):
    """They are what they were once it is read."""
    evil = "</script><script>alert(1)</script><!--"
    page = compared([rising(series_of, benchmark=evil, params={})])
    assert "<" not in page.island
    assert json.loads(page.island)["lines"][0][0] == evil
    page.island.encode()


def test_benchmarks_are_a_tree(series_of):
    """Modules with few benchmarks are no branches, chains are one; nothing is lost, however names look."""
    names = [f"big.Class.time_{n}" for n in range(5)] + [f"big.time_{n}" for n in range(5)] + ["small.time_a"]
    names += [f"a.b.c.time_{n}" for n in range(4)] + ["." * 500, "..", "x" * 300]
    tree = tree_of(families([series_of([1.0], benchmark=name, params={}) for name in names]))
    assert sorted(page.name for page in tree.every) == sorted(names)
    assert {branch.name: len(branch.every) for branch in tree.branches} == {"big": 10, "a.b.c": 4}
    (big,) = (branch for branch in tree.branches if branch.name == "big")
    assert [branch.name for branch in big.branches] == ["big.Class"]
