"""The interval of all benchmarks together, on suites whose truth is known."""

import math

import numpy as np
import pytest

from rocattn_profiling.gate.rule import noise, together
from rocattn_profiling.gate.rule.decide import decide_suite
from rocattn_profiling.gate.rule.look import examine
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.measure.stats import mean_interval


def pairs_of(base, head):
    """A suite from locations in logs, shape [benchmark, round]."""

    def side(places):
        return Side(launches=[PairLaunch(round=i, samples=[1e6 * math.exp(x)]) for i, x in enumerate(places)])

    return [Pair(id=str(i), a=side(a), b=side(b)) for i, (a, b) in enumerate(zip(base, head, strict=True))]


def session(base, head):
    """What one look at all rounds says of a suite."""
    return decide_suite(pairs_of(base, head), Policy(looks=(base.shape[1],)))


@pytest.mark.parametrize(("rounds", "shared", "most"), [(10, 0.0, 1.35), (10, 0.02, 1.35), (4, 0.0, 2.0)])
def test_the_interval_is_as_wide_as_its_point_is_uncertain(rounds, shared, most):
    """It holds no change in 95 of 100 unchanged suites, and is little wider than the point scatters.

    Each round slows all launches of a side alike by ``shared``. Few rounds know little of their own noise: Student's t.
    """
    rng, count, sessions = np.random.default_rng(48), 4, 100
    found = []
    for _ in range(sessions):
        base, head = rng.normal(0, 0.02, (2, count, rounds)) + rng.normal(0, shared, (2, 1, rounds))
        found.append(session(base, head))
    points, lows, highs = np.log([(x.shift, x.shift_low, x.shift_high) for x in found]).T
    held = int(((lows <= 0) & (highs >= 0)).sum())
    ideal = 2 * 1.96 * math.sqrt(float(np.mean(points**2)))
    assert 90 <= held <= 99
    assert 0.9 < float(np.median(highs - lows)) / ideal < most


def test_the_interval_is_for_these_benchmarks():
    """Benchmarks that really changed by different amounts make their mean no less certain."""
    rng = np.random.default_rng(49)
    true = np.array([0.0, 0.0, 0.0, 0.3, -0.1, 0.02])
    base, head = rng.normal(0, 0.01, (2, 6, 10))
    seen = session(base, head + true[:, None])
    assert seen.shift_low < math.exp(true.mean()) < seen.shift_high < 1.02 * seen.shift_low
    assert seen.shift_low < seen.shift < seen.shift_high


def test_a_delayed_launch_does_not_widen_the_interval():
    """One launch of each benchmark that took half as long again says nothing of the others."""
    rng = np.random.default_rng(50)
    base, head = rng.normal(0, 0.01, (2, 5, 10))
    quiet = session(base, head)
    for benchmark in range(5):
        head[benchmark, 2 * benchmark] += 0.4
    late = session(base, head)
    assert math.log(late.shift_high / late.shift_low) < 1.5 * math.log(quiet.shift_high / quiet.shift_low)
    assert late.shift == pytest.approx(quiet.shift, abs=0.004)


def test_contributions_to_plain_means_make_the_interval_of_student():
    """Of launches that count alike: the t interval of the mean of the rounds, whatever benchmarks have in common."""
    rng = np.random.default_rng(51)
    sides = rng.normal(0, 0.02, (3, 2, 6)) + rng.normal(0, 0.03, 6)  # [benchmark, side, round]
    shares = [(x - x.mean(axis=1, keepdims=True)) / 6 for x in sides]
    _, low, high = mean_interval(sides.sum(axis=1).mean(axis=0).tolist())
    assert together.half_width(shares) == pytest.approx((high - low) / 2, rel=1e-9)


def test_a_benchmark_that_was_decided_early_has_fewer_rounds():
    """It counts with the rounds that it has, and the others with all of theirs."""
    rng = np.random.default_rng(52)
    base, head = rng.normal(0, 0.02, (2, 4, 20))
    looks = [examine(pair, Policy(), shares=True) for pair in pairs_of(base, head)]
    early = examine(pairs_of(base[:1, :5], head[:1, :5])[0], Policy(), shares=True)
    width = [math.log(high / low) for _, low, high in map(together.mean_change, (looks, [early, *looks[1:]]))]
    assert width[0] < width[1] < 3 * width[0]


def test_launches_that_do_not_count_have_no_share():
    """One in a slow spell of the machine, by its fixed work, contributes nothing; the rounds of the others stay."""
    sides = [
        Side(launches=[PairLaunch(round=i, samples=[x], canary=2.0 if i == late else 1.0) for i, x in enumerate(times)])
        for late, times in ((1, (1.0, 3.0, 1.01, 1.02, 0.99)), (9, (1.01, 0.99, 1.0, 1.02, 1.03)))
    ]
    shares = examine(Pair(id="x", a=sides[0], b=sides[1]), Policy(), shares=True).shares
    assert np.isnan(shares).tolist() == [[False, True, False, False, False], [False] * 5]
    assert np.nansum(shares, axis=1) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert examine(Pair(id="x", a=sides[0], b=sides[1]), Policy()).shares is None


def test_values_of_any_size_have_an_interval():
    """Rounds that are 1e30 and 1e-30 in turn are not too much for it."""
    head = np.array([[69.0, -69.0, 69.0]] * 2)
    seen = session(-head - math.log(1e6), head - math.log(1e6))
    assert 0.0 < seen.shift_low < seen.shift_high < math.inf


def test_contributions_are_what_the_change_moves_by():
    """Counted a little more, a launch moves the change by its contribution; a delayed one hardly does."""
    rng = np.random.default_rng(53)
    a, b = rng.normal(0, 0.02, (2, 12))
    b[3] += 0.5
    _, head = noise.influences(noise.read(a, b, 0.02, []))
    others = np.delete(np.arange(12), 3)
    assert abs(head[3]) < 0.3 * np.abs(head[others]).max()
    assert np.corrcoef(head[others], b[others])[0, 1] > 0.9
    plain = b[others] - b[others].mean()
    assert float(head @ head) == pytest.approx(float(plain @ plain) / 11**2, rel=0.3)
