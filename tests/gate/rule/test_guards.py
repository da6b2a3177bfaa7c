"""What the machine did is no change of the code: order, slow states, clocks, spells; and what a suite says together."""

import math

import msgspec
import numpy as np
import pytest

from rocattn_profiling.gate.rule.guards import drift, in_cycles
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide, decide_suite


def in_sequence(pair, gap_us=1e6):
    """The same launches, all of base before all of head."""
    sides = []
    for number, side in enumerate((pair.a, pair.b)):
        first = number * len(side.launches) * gap_us
        launches = [msgspec.structs.replace(x, start_us=first + i * gap_us) for i, x in enumerate(side.launches)]
        sides.append(msgspec.structs.replace(side, launches=launches))
    return Pair(id=pair.id, a=sides[0], b=sides[1])


def drifting(rng, rounds, step, slowdown=0.0):
    """A pair measured in sequence while everything becomes slower by ``step`` from launch to launch."""
    levels = step * np.arange(2 * rounds) + rng.normal(0, 0.004, 2 * rounds)
    levels[rounds:] += math.log1p(slowdown)
    sides = []
    for part in (levels[:rounds], levels[rounds:]):
        samples = [(1e6 * np.exp(level + np.abs(rng.normal(0, 0.005, 10)))).tolist() for level in part]
        sides.append(Side(launches=[PairLaunch(round=i, samples=x) for i, x in enumerate(samples)]))
    return in_sequence(Pair(id="x", a=sides[0], b=sides[1]))


@pytest.mark.parametrize("rounds", [5, 10, 20])
def test_a_drift_from_one_side_to_the_other_is_no_regression(rounds):
    """Sides in sequence while the machine slows by 1 % a launch: none of 40 is called slower, and it is said why."""
    rng = np.random.default_rng(40)
    found = [decide(drifting(rng, rounds, 0.01)) for _ in range(40)]
    assert {(each.verdict, each.undecided.code) for each in found} == {("inconclusive", "drift")}


def test_a_drift_that_may_hide_a_change_is_no_pass():
    """Head is as fast as base was, after a drift of 5 %: without it head would have been faster."""
    found = decide(drifting(np.random.default_rng(40), 10, 0.005, -0.05))
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert found.verdict == "inconclusive"


def test_a_drift_is_the_extrapolated_trend_and_its_error():
    """Two straight lines carry their slope alone; what scatters around them adds two standard errors of it."""
    starts = [np.arange(5.0), np.arange(10.0, 15.0)]
    sides = [[PairLaunch(round=i, start_us=t, samples=[1.0]) for i, t in enumerate(side)] for side in starts]
    straight = [0.01 * side for side in starts]
    assert drift(sides, straight) == pytest.approx(10 * 0.01)
    bumps = np.array([1.0, -2.0, 2.0, -2.0, 1.0]) * 1e-3  # orthogonal to the line
    error = math.sqrt(2 * 14e-6 / 7 / 20)  # 7 degrees of freedom, 20 = the sum of squared times
    assert drift(sides, [side + bumps for side in straight]) == pytest.approx(10 * (0.01 + 2 * error))
    assert drift(sides[::-1], straight[::-1]) == pytest.approx(0.1)
    assert drift([sides[0], sides[0]], straight) == 0.0


def test_sides_in_sequence_are_judged_where_nothing_drifts():
    """Without a trend within the sides, +25 % is found, and unchanged code is not called slower."""
    rng = np.random.default_rng(41)
    assert [decide(drifting(rng, 10, 0.0, 0.25)).verdict for _ in range(20)].count("regression") >= 19
    assert "regression" not in {decide(drifting(rng, 10, 0.0)).verdict for _ in range(20)}


@pytest.mark.parametrize("rounds", [10, 20])
def test_slow_states_are_seldom_called_a_change(rounds):
    """Sides with noise of their own that lasts (AR(1), 0.7): of 150 unchanged pairs at most 9 are called slower."""
    rng = np.random.default_rng(42)

    def side():
        y = rng.normal(0, 0.02, rounds)
        for i in range(1, rounds):
            y[i] = 0.7 * y[i - 1] + math.sqrt(1 - 0.49) * y[i]
        samples = [(1e6 * np.exp(level + np.abs(rng.normal(0, 0.01, 10)))).tolist() for level in y]
        return Side(launches=[PairLaunch(round=i, samples=x) for i, x in enumerate(samples)])

    found = [decide(Pair(id="x", a=side(), b=side())).verdict for _ in range(150)]
    assert found.count("regression") <= 9


def with_clock(pair, base_mhz, head_mhz, *, scaled):
    """The pair as a GPU's, whose clock differs between the sides; ``scaled`` times are those of equal cycles."""
    sides = []
    for side, clock in ((pair.a, base_mhz), (pair.b, head_mhz)):
        factor = base_mhz / clock if scaled else 1.0
        launches = [
            msgspec.structs.replace(x, samples=[v * factor for v in x.samples], sclk_mhz=[clock] * len(x.samples))
            for x in side.launches
        ]
        sides.append(msgspec.structs.replace(side, launches=launches))
    return Pair(id=pair.id, a=sides[0], b=sides[1])


def test_more_gpu_time_in_equal_cycles_is_the_clock(make_pair):
    """A clock lower by 12 % is no regression and says so; the same times at one clock are one, and more cycles are."""
    rng = np.random.default_rng(43)
    same, slower = make_pair(rng, 5, noise=0.004), make_pair(rng, 5, slowdown=0.15, noise=0.004)
    throttled = decide(with_clock(same, 2100.0, 1850.0, scaled=True))
    assert throttled.verdict == "pass"
    assert throttled.reason.startswith("clock, not code: the time changed by +1")
    assert decide(with_clock(slower, 2100.0, 2100.0, scaled=False)).verdict == "regression"
    assert decide(with_clock(slower, 2100.0, 1850.0, scaled=True)).verdict == "regression"


def test_cycles_must_bear_a_change_out(make_pair):
    """Fewer cycles are an improvement; 5 % more time in 2.5 % more cycles is as uncertain as the cycles are."""
    faster = make_pair(np.random.default_rng(43), 5, slowdown=-0.15, noise=0.004)
    assert decide(with_clock(faster, 2100.0, 2100.0, scaled=False)).verdict == "improvement"
    slower = make_pair(np.random.default_rng(29), 5, slowdown=0.05, noise=0.014)
    assert decide(with_clock(slower, 2100.0, 2100.0, scaled=False)).verdict == "regression"
    assert decide(with_clock(slower, 2100.0, 2050.0, scaled=False)).verdict == "inconclusive"


def test_a_clock_that_reads_zero_gives_no_cycles(make_pair):
    """A sensor that fails now and then must not turn times into nothing: the pair is judged by its times."""
    slower = with_clock(
        make_pair(np.random.default_rng(43), 5, slowdown=0.15, noise=0.004), 2100.0, 2100.0, scaled=False
    )
    assert in_cycles(slower) is not None
    slower.b.launches[0].sclk_mhz[0] = 0.0
    assert in_cycles(slower) is None
    assert decide(slower).verdict == "regression"


def test_an_unknown_clock_decides_nothing(make_pair):
    """Where a sample's clock was not read, time alone decides."""
    pair = make_pair(np.random.default_rng(44), 5, slowdown=0.2, noise=0.004)
    known = with_clock(pair, 2000.0, 1667.0, scaled=False)
    first = msgspec.structs.replace(known.a.launches[0], sclk_mhz=[])
    partly = Pair(id="x", a=Side(launches=[first, *known.a.launches[1:]]), b=known.b)
    assert decide(known).verdict != "regression"
    assert decide(partly).verdict == "regression"


def test_a_benchmark_can_have_sizes_of_its_own(make_pair):
    """A policy for one id changes what counts for it, and nothing for the others."""
    rng = np.random.default_rng(45)
    pairs = [make_pair(rng, 5, slowdown=0.12, name=name, noise=0.004) for name in ("strict", "lenient")]
    found = decide_suite(pairs, Policy(looks=(5,)), {"lenient": Policy(looks=(5,), tolerance=0.5)})
    assert [decision.verdict for decision in found.decisions] == ["regression", "pass"]
    absolute = decide_suite(pairs, Policy(looks=(5,)), {"lenient": Policy(looks=(5,), floor=2e5)})
    assert [decision.verdict for decision in absolute.decisions] == ["regression", "pass"]


def test_slowdowns_worth_showing_are_listed(make_pair):
    """A slowdown that Holm leaves open among many is listed; unchanged benchmarks are not."""
    rng = np.random.default_rng(46)
    slow = [make_pair(rng, 5, slowdown=0.07, name=f"slow{i}", noise=0.015) for i in range(8)]
    quiet = [make_pair(rng, 5, name=f"same{i}", noise=0.012) for i in range(16)]
    found = decide_suite([*slow, *quiet], Policy(looks=(5,)))
    named = [decision.id for decision in found.decisions if decision.verdict == "regression"]
    assert set(named) < set(found.listed)
    assert not any(name.startswith("same") for name in found.listed)


def test_the_suite_has_the_mean_of_its_ratios(make_pair):
    """It is geometric; a pair that is always the same has no ratio of its own, and no pair at all is no change."""
    rng = np.random.default_rng(47)
    pairs = [make_pair(rng, 8, slowdown=0.02 * i, name=str(i)) for i in range(6)]
    constant = Side(launches=[PairLaunch(round=i, samples=[1.0]) for i in range(8)])
    found = decide_suite([*pairs, Pair(id="constant", a=constant, b=constant)], Policy(looks=(8,)))
    ratios = [decision.ratio for decision in found.decisions[:6]]
    assert found.shift == pytest.approx(math.exp(np.mean(np.log(ratios))))
    assert decide_suite([], Policy()).shift == 1.0


def test_a_spell_that_fits_by_chance_is_no_change():
    """Both sides go through the same long spells and head misses the lowest: no change round by round, no verdict."""
    spells = [0.13, 0.23, 0.16, 0.25, 0.08, 0.06, 0.10, 0.03, 0.02, 0.01, 0.0, 0.06, 0.02, 0.08, 0.0, 0.04, 0.35, 0.25]
    head = [0.13, 0.14, 0.18, 0.13, 0.09, 0.09, 0.05, 0.05, 0.05, 0.05, 0.06, 0.05, 0.06, 0.06, 0.05, 0.06, 0.32, 0.36]
    sides = [
        Side(launches=[PairLaunch(round=i, samples=[1e6 * math.exp(x)] * 3) for i, x in enumerate(levels)])
        for levels in (spells, head)
    ]
    assert decide(Pair(id="x", a=sides[0], b=sides[1])).verdict not in {"regression", "improvement"}


def test_an_improvement_takes_more_than_a_regression(make_pair):
    """The same ambiguous launches are a slowdown in one direction and left open in the other."""
    pair = make_pair(np.random.default_rng(29), 5, slowdown=0.04, noise=0.014)
    there, back = decide(pair), decide(Pair(id="x", a=pair.b, b=pair.a))
    assert there.verdict == "regression"
    assert there.p == pytest.approx(back.p, rel=0.5)
    assert back.verdict == "inconclusive"
