"""Change points over history: rare in stable series, found soon after a step, and told with what is not known."""

import itertools
import math

import numpy as np
import pytest

from rocattn_profiling.asv.series import Point, Series
from rocattn_profiling.site import changepoints, changes
from rocattn_profiling.site.changepoints import change_points, changes_of


def autocorrelated(rng, count, coefficient=0.5, scale=0.03):
    """AR(1) noise."""
    y = rng.normal(0, scale, count)
    for i in range(1, count):
        y[i] = coefficient * y[i - 1] + math.sqrt(1 - coefficient**2) * y[i]
    return y


NOISE = {
    "normal": lambda rng, n: rng.normal(0, 0.03, n),
    "skewed": lambda rng, n: rng.exponential(0.03, n),
    "bimodal": lambda rng, n: 0.06 * (rng.random(n) < 0.4) + rng.normal(0, 0.01, n),
    "outliers": lambda rng, n: rng.normal(0, 0.02, n) + (rng.random(n) < 0.03) * 0.4,
    "autocorrelated": autocorrelated,
    "constant": lambda _, n: np.zeros(n),
    "quantised": lambda rng, n: np.round(rng.normal(0, 0.01, n) / 0.02) * 0.02,
}


def stepped(rng, before, after, size=0.1, scale=0.03):
    """A step between two levels under normal noise."""
    y = rng.normal(0, scale, before + after)
    y[before:] += math.log1p(size)
    return 0.002 * np.exp(y)


@pytest.mark.parametrize("kind", NOISE)
def test_stable_series_have_hardly_any_change(kind):
    """Of 30 series of 100 stable commits at most one has a change, whatever the noise looks like."""
    rng = np.random.default_rng(1)
    found = [change_points(np.exp(NOISE[kind](rng, 100)).tolist()) for _ in range(30)]
    assert sum(bool(changes) for changes in found) <= 1


def test_a_step_is_found_within_five_commits():
    """A 10 % step under 3 % noise after 60 commits is told in 38 of 40 series by its fifth commit, about in place."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(40):
        y = stepped(rng, 60, 5).tolist()
        seen = [c for m in (3, 4, 5) for c in change_points(y[: 60 + m])]
        hits += any(abs(change.index - 60) <= 2 and change.ratio > 1.05 for change in seen)
    assert hits >= 38


def test_size_and_place_come_with_intervals():
    """In 90 % of 60 series the interval of commits holds the true one, and that of the ratio the true 15 %."""
    rng = np.random.default_rng(3)
    placed = sized = 0
    for _ in range(60):
        (change,) = change_points(stepped(rng, 40, 30, 0.15).tolist())[:1]
        placed += change.first <= 40 <= change.last
        sized += change.ratio_low <= 1.15 <= change.ratio_high
    assert placed >= 54
    assert sized >= 54


def test_new_confirmed_and_recovered_are_told_apart():
    """Three points make a change new, ten confirm it, and a return to the old level makes it recovered."""
    rng = np.random.default_rng(4)
    y = stepped(rng, 40, 20, 0.3, 0.01)
    assert [c.state for c in change_points(y[:43].tolist())] == ["new"]
    assert [c.state for c in change_points(y[:50].tolist())] == ["confirmed"]
    back = np.concatenate([y, 0.002 * np.exp(rng.normal(0, 0.01, 12))])
    states = [(c.state, c.ratio > 1) for c in change_points(back.tolist())]
    assert states == [("recovered", True), ("confirmed", False)]


@pytest.mark.parametrize("second", [0.1, 0.3, 3.0])
def test_a_step_undone_or_overshot_later_is_recovered(second):
    """Up by a quarter, then to or below the level before it: no regression is open in a line that got faster."""
    rng = np.random.default_rng(13)
    y = stepped(rng, 40, 60, 0.25, 0.01)
    y[70:] /= 1 + second
    assert [(c.state, c.ratio > 1) for c in change_points(y.tolist())] == [
        ("recovered" if second > 0.1 else "confirmed", True),
        ("confirmed", False),
    ]


@pytest.mark.parametrize("noisy", [slice(100, 200), slice(0)])
def test_the_interval_of_a_size_is_of_the_noise_around_it(noisy):
    """Where a line is noisy elsewhere, a step in its quiet part keeps an interval that holds 5 % and is narrow."""
    rng = np.random.default_rng(14)
    sized = 0
    for _ in range(20):
        y = rng.normal(0, 0.01, 200)
        y[noisy] *= 12
        y += math.log(1.05) * (np.arange(200) >= 50) - 0.3 * (np.arange(200) >= 100)
        change = min(change_points(np.exp(y).tolist()), key=lambda c: abs(c.index - 50))
        sized += change.ratio_low <= 1.05 <= change.ratio_high < change.ratio_low + 0.02
    assert sized >= 18


@pytest.mark.parametrize("at", [0, 90])
@pytest.mark.parametrize("size", [0.4, -7.0])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_outliers_that_came_together_hide_no_step(at, size, count):
    """Two to four points far off, at the beginning or in the middle, leave a 10 % step elsewhere where it was."""
    rng = np.random.default_rng(15)
    for _ in range(10):
        y = np.log(stepped(rng, 60, 60, 0.1, 0.02))
        y[at : at + count] += size
        assert any(abs(change.index - 60) <= 2 for change in change_points(np.exp(y).tolist()))


@pytest.mark.parametrize("at", [0, 50, 90, 94])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [3, 4])
def test_outliers_that_came_together_are_no_change(at, sign, count):
    """Three or four points 20 to 40 % off, followed by two or more of the old level, in one series of 20 at most."""
    rng = np.random.default_rng(16)
    found = 0
    for _ in range(20):
        y = rng.normal(0, 0.03, 100)
        y[at : at + count] += sign * rng.uniform(0.2, 0.4, count)
        found += bool(change_points(np.exp(y).tolist()))
    assert found <= 1


def test_outliers_that_came_together_are_no_noise():
    """Of 40 lines with four points in a row 20 to 40 % up, a later 10 % step is told in 30 by its fifth commit."""
    rng = np.random.default_rng(19)
    hits = 0
    for _ in range(40):
        y = np.log(stepped(rng, 100, 5))
        at = rng.integers(0, 90)
        y[at : at + 4] += rng.uniform(0.2, 0.4, 4)
        hits += any(abs(c.index - 100) <= 2 for m in (3, 4, 5) for c in change_points(np.exp(y[: 100 + m]).tolist()))
    assert hits >= 30


@pytest.mark.parametrize("near", [0.05, 0.35])
def test_outliers_beside_a_step_leave_it(near):
    """Four outliers directly before a step, whichever level they are nearer to, leave one change about there."""
    rng = np.random.default_rng(17)
    for _ in range(10):
        y = rng.normal(0, 0.02, 100)
        y[50:] += 0.3
        y[46:50] += 0.3 + near
        assert [abs(change.index - 50) <= 4 for change in change_points(np.exp(y).tolist())] == [True]


def test_five_points_that_a_later_change_took_back_are_a_level():
    """Five points 30 % up in the middle of a line went up and came back."""
    rng = np.random.default_rng(18)
    for _ in range(10):
        y = rng.normal(0, 0.03, 100)
        y[50:55] += 0.3
        assert [(c.index, c.state) for c in change_points(np.exp(y).tolist())] == [(50, "recovered"), (55, "confirmed")]


def test_a_single_outlier_is_no_change():
    """One commit at twice the time, in the middle or at the end, changes nothing."""
    rng = np.random.default_rng(5)
    for place in (20, 39):
        y = 0.002 * np.exp(rng.normal(0, 0.02, 40))
        y[place] *= 2
        assert change_points(y.tolist()) == []


def test_a_declared_boundary_is_no_change():
    """A new machine that is 40 % slower is no regression when it is declared; a step after it is found all the same."""
    rng = np.random.default_rng(6)
    y = np.concatenate([stepped(rng, 30, 0), 1.4 * stepped(rng, 30, 20, 0.2)])
    assert any(abs(c.index - 30) <= 1 for c in change_points(y.tolist()))
    (only,) = change_points(y.tolist(), boundaries=[30])
    assert abs(only.index - 60) <= 2
    assert only.first > 30


def test_commits_that_were_not_measured_are_suspects_too():
    """When the five commits before the step failed, the interval names them as well."""
    rng = np.random.default_rng(7)
    y = stepped(rng, 30, 20, 0.5, 0.01).tolist()
    y[25:30] = [None, math.nan, None, None, None]
    (change,) = change_points(y)
    assert (change.first, change.last, change.index) == (25, 30, 30)


def test_a_constant_series_steps_at_once():
    """Exact values (bytes, registers) need three points on the new level and no more; nothing divides by zero."""
    assert change_points([64.0] * 20) == []
    (change,) = change_points([64.0] * 20 + [80.0] * 3)
    assert (change.first, change.index, change.last, change.state) == (20, 20, 20, "new")
    assert change.ratio == pytest.approx(1.25)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0] * 2, [None] * 30, [0.0] * 30, [1.0] * 10 + [0.0] * 10])
def test_too_little_or_no_ratio_is_no_change(values):
    """Short, empty and zero series have no change points, and no error."""
    assert change_points(values) == []


def test_changes_of_a_stored_series_name_commits():
    """The commits of the interval are hashes, oldest first, and boundaries are given as hashes."""
    rng = np.random.default_rng(8)
    values = stepped(rng, 25, 15, 0.4, 0.01)
    points = [Point(sha=f"c{i:02}", date_ms=i, value=float(v)) for i, v in enumerate(values)]
    series = Series(benchmark="b", params={}, unit="seconds", machine="m", env_name="e", points=points)
    (found,) = changes_of(series)
    assert found.likeliest == "c25"
    assert found.commits == ["c25"]
    assert changes_of(series, boundaries={"c25"}) == []


def test_a_long_history_is_searched_as_a_short_one_is():
    """Of 2,000 commits with a step of 10 % every 250, all seven are found in place, and stable ones have none."""
    rng = np.random.default_rng(9)
    steps = 0.1 * (np.arange(2000) // 250)
    found = change_points(np.exp(steps + rng.normal(0, 0.03, 2000)).tolist())
    assert [round(change.index / 250) for change in found] == list(range(1, 8))
    assert all(abs(change.index - 250 * number) <= 3 for number, change in enumerate(found, start=1))
    assert change_points(np.exp(rng.normal(0, 0.03, 2000)).tolist()) == []


@pytest.mark.parametrize("size", [0.04, 0.1, 0.5])
def test_plain_steps_are_those_that_drawing_would_find(monkeypatch, size):
    """A step too large to need a simulation of stable series is the one that the simulation bears out."""
    rng = np.random.default_rng(10)
    series = [stepped(rng, 60, 40, size).tolist() for _ in range(4)]
    fast = [change_points(values) for values in series]
    monkeypatch.setattr(changepoints, "_PLAIN", math.inf)
    assert [change_points(values) for values in series] == fast


@pytest.mark.parametrize("points", [8, 15, 20])
@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    "levels",
    [(4, 8, 4, 9), (4, 8, 4, 8), (1, 1.3, 1, 1.3, 1), (4, 8, 16, 32), (1, 1.1, 1, 1.1, 1, 1.1), (1, 1.2, 1.1, 1.3)],
)
def test_levels_that_come_and_go_are_all_found(levels, noise, points):
    """A regression that was reverted and came back: each level is noise to the others, and each is named."""
    values = np.repeat(np.array(levels, dtype=float), points)
    found = change_points((values * np.exp(np.random.default_rng(21).normal(0, noise, len(values)))).tolist())
    assert [change.index for change in found] == list(range(points, len(values), points))
    for number, change in enumerate(found):
        true = levels[number + 1] / levels[number]
        assert change.ratio_low <= true * 1.01
        assert change.ratio_high >= true * 0.99
        # A rise is over once a later level is back at the one before it, and a fall likewise.
        left = [(level - levels[number]) * (true - 1) for level in levels[number + 2 :]]
        assert (change.state == "recovered") == any(rest <= 0 for rest in left)


def test_outliers_are_held_at_the_median_of_their_window():
    """The running median is that of the points that there are, at both ends as well."""
    y = np.random.default_rng(11).normal(0, 0.01, 60)
    y[[0, 30, 59]] += 3.0
    held = changepoints.winsorised(y)
    assert np.abs(held).max() < 0.1
    untouched = [i for i in range(60) if i not in {0, 30, 59}]
    assert np.abs(held[untouched] - y[untouched]).max() < 0.02


def test_any_short_series_is_searched():
    """Series of 0 to 40 points with runs of any length have an answer, whose segments are long enough."""
    rng = np.random.default_rng(12)
    for _ in range(300):
        y = rng.normal(0, rng.choice([0.0, 0.01, 0.1]), rng.integers(0, 41))
        for start in rng.integers(0, 40, 3):
            y[start : start + rng.integers(1, 9)] += rng.choice([-1.0, 0.3, 2.0])
        found = [change.index for change in change_points(np.exp(y).tolist())]
        assert found == sorted(set(found))
        assert all(5 <= index <= len(y) - 3 for index in found[:1])


def test_all_draws_at_once_surprise_as_each_alone():
    """The search over many series gives what the search over one gives, as far as single precision goes."""
    rng = np.random.default_rng(11)
    for count in (8, 13, 41, 100, 333):
        rows = rng.normal(0, 0.03, (7, count))
        alone = [changepoints._surprise(row)[0] for row in rows]
        assert changepoints._surprises(rows.T).tolist() == pytest.approx(alone, rel=1e-5)


def test_helper_processes_find_the_same():
    """Lines that other processes look through have the changes that this one finds, in the same order."""
    rng = np.random.default_rng(12)
    lined, starts = [], []
    for number in range(20):
        values = [*stepped(rng, 30, 20, size=0.1 * (number % 3)).tolist(), None, math.nan]
        points = [Point(sha=f"c{i}", date_ms=i, value=value) for i, value in enumerate(values)]
        lined.append(Series(benchmark=f"b{number}", params={}, unit="s", machine="m", env_name="e", points=points))
        starts.append({"c25"} if number % 4 == 0 else set())
    here = list(map(changes._search, lined, starts))
    assert sum(len(found.changes) for found in here) >= 8
    assert list(changes.in_processes(changes._search, lined, starts, jobs=2)) == here


def levels(*parts, noise=0.02, seed=0):
    """Levels (value, points) under normal noise."""
    rng = np.random.default_rng(seed)
    return [float(x) for level, count in parts for x in level * np.exp(noise * rng.standard_normal(count))]


@pytest.mark.parametrize("factor", [0.4, 1.4, 3.0])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    "parts",
    [[(10, 60), (11.5, 30)], [(16, 60), (13, 30), (10, 30), (13, 8)], [(10, 40), (12, 12), (11.6, 4)]],
    ids=["step", "staircase", "new level"],
)
def test_a_few_far_values_at_the_end_hide_no_change(parts, count, factor):
    """What was found before they came is found, at its commit; three of them may be a change of their own."""
    line = levels(*parts)
    before = change_points(line)
    after = change_points([*line, *levels((parts[-1][0] * factor, count), seed=1)])
    places = [change.index for change in after]
    assert [change.index for change in before] == places[: len(before)]
    assert places[len(before) :] == [len(line)] * (count == 3)


@pytest.mark.parametrize("seed", range(3))
def test_short_levels_at_the_beginning_hide_no_step(seed):
    """Three points of an old level and three of the next, then a step of +18 % after seven more."""
    line = levels((100, 3), (59.8, 3), (50.9, 7), (60.1, 128), (67, 36), noise=0.005, seed=seed)
    assert [change.index for change in change_points(line)] == [13, 141]


@pytest.mark.parametrize("kind", ["bimodal later", "bimodal before", "scattered end"])
def test_noise_of_one_stretch_hides_no_step_of_another(kind):
    """A step between quiet levels is found in 19 of 20 lines, however the line scatters a good way off."""
    hits = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = rng.normal(0, 0.01, 240) + 0.06 * (np.arange(240) >= 110)
        if kind == "scattered end":
            y[228:] += rng.normal(0, 0.3, 12)
        else:
            noisy = slice(160, 240) if kind == "bimodal later" else slice(0, 60)
            y[noisy] += 0.4 * (rng.random(240)[noisy] < 0.4)
        hits += any(abs(change.index - 110) <= 2 for change in change_points(np.exp(y).tolist()))
    assert hits >= 19


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_an_open_regression_stays_while_a_history_grows(noise, seed):
    """Announced with three points, or with five, it is in every later build, whatever levels and outliers follow."""
    parts = [(10, 40), (11.5, 25), (14, 7), (14, 20), (9, 30), (12, 12)]
    line = [*levels(*parts, noise=noise, seed=seed), *levels((30, 2), seed=seed)]
    builds = [{change.index for change in change_points(line[:n])} for n in range(46, len(line) + 1)]
    for before, after in itertools.pairwise(builds):
        settled = {at for at in before if at != max(before)}
        assert settled <= after
    assert sorted(builds[-1]) == [40, 65, 92, 122]


@pytest.mark.parametrize("seed", [17])
def test_a_marginal_change_stays_while_a_later_level_grows(seed):
    """What was told before the newest level began goes only when that level goes: its own points say no more."""
    line = levels((3.4, 15), (2.6, 5), (3.1, 9), (4.4, 12), noise=0.07, seed=seed)
    line += levels((6, 25), noise=0.05, seed=seed + 100)
    builds = [[change.index for change in change_points(line[:n])] for n in range(46, len(line) + 1)]
    for before, after in itertools.pairwise(builds):
        if max(before) in after:
            assert set(before) <= set(after)
