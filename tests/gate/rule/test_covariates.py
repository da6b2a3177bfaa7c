"""Covariate adjustment: the machine's speed, measured by the canary, and round effects are removed."""

import math

import msgspec
import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.gate.rule import covariates, guards, noise
from rocattn_profiling.gate.rule.interim import examine
from rocattn_profiling.gate.rule.launches import slow_share
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide


def launches(rng, clock, noise_of_code, noise_of_canary, *, slower=0.0, share=1.0):
    """Launches of 1 ms of CPU time whose code and fixed work share a clock (logs, one a launch)."""
    rows = []
    for round_, slow in enumerate(clock):
        level = share * slow + rng.normal(0, noise_of_code) + math.log1p(slower)
        samples = (1e6 * np.exp(level + np.abs(rng.normal(0, 0.004, 10)))).tolist()
        canary = 1.5e5 * math.exp(slow + rng.normal(0, noise_of_canary))
        start_us = 1e6 * (2 * round_ + rng.random())
        rows.append(
            PairLaunch(round=round_, start_us=start_us, samples=samples, cpu=samples, nivcsw=[0] * 10, canary=canary)
        )
    return rows


def pair_of(rng, rounds=5, *, clock=0.05, code=0.006, canary=0.004, slower=0.0, share=1.0):
    """A pair on a machine whose clock wanders by so much from launch to launch."""
    a, b = (launches(rng, rng.normal(0, clock, rounds), code, canary, slower=by, share=share) for by in (0.0, slower))
    return Pair(id="x", a=Side(launches=a), b=Side(launches=b))


def without_canary(pair):
    """The same launches, as stored by somebody who timed no fixed work."""
    a, b = (
        msgspec.structs.replace(side, launches=[msgspec.structs.replace(x, canary=0.0) for x in side.launches])
        for side in (pair.a, pair.b)
    )
    return msgspec.structs.replace(pair, a=a, b=b)


def verdicts(count, seed, **kwargs):
    """Counts of verdicts with the canary and without."""
    rng = np.random.default_rng(seed)
    pairs = [pair_of(rng, **kwargs) for _ in range(count)]
    return [[decide(shown).verdict for shown in part] for part in (pairs, [without_canary(pair) for pair in pairs])]


def test_a_wandering_clock_is_adjusted_for():
    """Launches scatter by 5 % with the clock: +5 % is found in most pairs, without fixed work in next to none."""
    adjusted, unadjusted = verdicts(30, 1, slower=0.05)
    assert adjusted.count("regression") >= 24
    assert unadjusted.count("regression") <= 3


def test_unchanged_code_under_a_wandering_clock_passes():
    """And unchanged code is shown to be unchanged, where nothing could be said before."""
    adjusted, unadjusted = verdicts(30, 2)
    assert adjusted.count("pass") >= 24
    assert "regression" not in adjusted
    assert unadjusted.count("pass") <= 3


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
def test_the_likeliest_slope_is_the_true_one(share):
    """With a dozen launches, the slope that explains them best is on average the one that they were made with."""
    rng = np.random.default_rng(3)
    chosen = []
    for _ in range(15):
        pair = pair_of(rng, 12, share=share)
        fits = covariates.candidates_of(pair, (pair.a.launches, pair.b.launches), "cpu", 0.02)
        best = int(noise.compare(fits).chances.argmax())
        chosen.append(list(covariates.CANARY_SLOPES)[covariates.slope_index(fits, best)])
    assert abs(np.mean(chosen) - share) < 0.12


def test_a_noisy_canary_does_no_harm():
    """Fixed work that scatters by 3 % on its own is not believed: launches of 0.6 % stay as sharp as they are."""
    rng = np.random.default_rng(4)
    pairs = [pair_of(rng, 8, clock=0.0, canary=0.03, slower=0.05) for _ in range(15)]
    adjusted = [examine(pair, Policy()).change for pair in pairs]
    unadjusted = [examine(without_canary(pair), Policy()).change for pair in pairs]
    assert np.mean([x.high - x.low for x in adjusted]) < 1.2 * np.mean([x.high - x.low for x in unadjusted])
    assert np.mean([x.shift for x in adjusted]) == pytest.approx(math.log(1.05), abs=0.005)


def test_averaging_over_one_candidate_is_that_candidate():
    """Two equal candidates with half the probability each give the same posterior as one."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 0.01, 6), rng.normal(0.03, 0.01, 6)
    one = noise.compare(noise.candidates(a, b, 0.02, []))
    two = noise.compare(noise.candidates(np.stack([a, a]), np.stack([b, b]), 0.02, [], (0.5, 0.5)))
    assert two.p_below(0.01) == pytest.approx(one.p_below(0.01))
    assert (two.shift, two.low, two.high) == pytest.approx((one.shift, one.low, one.high))
    assert two.noise == pytest.approx(one.noise)


def test_candidates_in_a_batch_are_what_they_are_alone():
    """In a batch each candidate has its own posterior, weighted by its prior and how well it explains the launches."""
    rng = np.random.default_rng(10)
    a, b, past = (rng.normal(0, 0.01, (2, count)) for count in (6, 5, 7))
    both = noise.compare(noise.candidates(a, b, 0.02, [past], (0.3, 0.7)), 0.6)
    alone = [noise.compare(noise.candidates(a[i], b[i], 0.02, [past[i]]), 0.6) for i in range(2)]
    for bound in (-0.01, 0.0, 0.02):
        mixed = both.chances @ [one.p_below(bound) for one in alone]
        assert both.p_below(bound) == pytest.approx(mixed, rel=1e-9)
    assert both.noise == pytest.approx(both.chances @ [one.noise for one in alone])


def test_only_cpu_time_is_adjusted():
    """Where code waits, or no CPU time is known, its wall time is taken as it is."""
    pair = pair_of(np.random.default_rng(6))
    kept = (pair.a.launches, pair.b.launches)
    adjusted, as_it_is = (covariates.candidates_of(pair, kept, column, 0.02) for column in ("cpu", "samples"))
    assert len(adjusted.chances) == 2 * len(covariates.CANARY_SLOPES)  # one by one, and by rounds
    assert len(as_it_is.chances) == 1
    np.testing.assert_allclose(as_it_is.base[0], np.log([min(x.samples) for x in pair.a.launches]), atol=0.01)
    waits = [msgspec.structs.replace(x, cpu=[value / 2 for value in x.cpu]) for x in pair.b.launches]
    assert not examine(msgspec.structs.replace(pair, b=Side(launches=waits)), Policy()).adjusted
    assert examine(pair, Policy()).adjusted


@pytest.mark.parametrize("canary", [0.0, 0.03])
def test_a_useless_canary_makes_no_look_lenient(canary):
    """Where it stands still, or scatters on its own, the last look is no more lenient than without it."""
    rng = np.random.default_rng(9)
    looks = [examine(pair_of(rng, clock=0.0, code=0.03, canary=canary), Policy()) for _ in range(20)]
    assert sum(look.adjusted for look in looks) <= 3


def test_the_reason_names_what_was_removed():
    """Head met a machine slower by 4 %: the reason says so, and no change is left."""
    rng = np.random.default_rng(7)
    a = launches(rng, rng.normal(0, 0.02, 8), 0.004, 0.003)
    b = launches(rng, 0.04 + rng.normal(0, 0.02, 8), 0.004, 0.003)
    found = decide(Pair(id="x", a=Side(launches=a), b=Side(launches=b)))
    assert found.reason == snapshot(
        "shown to be within 5 % (CPU time); corrected by 5.1 % because the machine was slower during head's launches "
        "(canary)"
    )
    assert found.ratio == pytest.approx(1.0, abs=0.02)


def test_history_is_adjusted_too():
    """Earlier sessions under a wandering clock tell the noise that is left, not the clock's."""
    rng = np.random.default_rng(8)
    past = [launches(rng, rng.normal(0, 0.05, 5), 0.004, 0.003) for _ in range(6)]
    pair = pair_of(rng, clock=0.0, code=0.004)
    with_history = msgspec.structs.replace(pair, a=msgspec.structs.replace(pair.a, history=past))
    slopes = np.array([[1.0], [0.0]])
    left, all_of_it = np.concatenate(covariates.history(with_history, "cpu", slopes), axis=1)
    assert 2 * np.std(left - np.median(left)) < np.std(all_of_it)


def test_slow_spells_that_the_canary_missed_raise_p_values(monkeypatch):
    """Identical code, recorded on a core that others shared: 10 % slower, if the canary were all there is to it."""
    recorded = [
        ([1914.5, 1384.1, 1958.6, 1191.0, 1241.4], [376.9, 301.4, 507.1, 239.3, 245.0]),
        ([1414.3, 1814.4, 1724.3, 1747.7, 1386.3], [260.6, 379.1, 296.6, 364.3, 273.2]),
    ]
    sides = []
    for times, canaries in recorded:
        rows = []
        for round_, (time, canary) in enumerate(zip(times, canaries, strict=True)):
            cpu = [time * (1 + 0.002 * place) for place in range(10)]
            rows.append(PairLaunch(round=round_, samples=cpu, cpu=cpu, nivcsw=[0] * 10, canary=canary))
        sides.append(Side(launches=rows, unit="us"))
    pair = Pair(id="x", a=sides[0], b=sides[1])
    assert slow_share(pair) == 0.5
    assert decide(pair).verdict == "inconclusive"
    monkeypatch.setattr(guards, "SPELL_FACTOR", 1.0)
    assert decide(pair).verdict == "regression"


def test_slow_spells_raise_the_p_value_of_a_pass_too(monkeypatch):
    """What a spell may have added to a launch of base may hide as much of a change."""
    pair = pair_of(np.random.default_rng(9), clock=0.0)
    alone = examine(pair, Policy()).p_pass
    monkeypatch.setattr(guards, "spell_factor", lambda *_: 3.0)
    assert examine(pair, Policy()).p_pass == pytest.approx(3 * alone)
    assert 0 < 3 * alone < 1


def test_slow_spells_that_the_canary_explains_cost_nothing():
    """Half of the launches are of a slow spell, and fixed work says by how much: the probabilities are as they were."""
    rng = np.random.default_rng(9)
    pair = pair_of(rng, clock=0.0, slower=0.1)

    def slowed(side):
        rows = []
        for index, x in enumerate(side.launches):
            factor = 1.2 if index % 2 else 1.0
            times = {name: [value * factor for value in getattr(x, name)] for name in ("samples", "cpu")}
            rows.append(msgspec.structs.replace(x, **times, canary=x.canary * factor))
        return Side(launches=rows)

    pair = Pair(id="x", a=slowed(pair.a), b=slowed(pair.b))
    assert slow_share(pair) == 0.4
    assert decide(pair).verdict == "regression"
    assert slow_share(without_canary(pair)) == 0.0


def of_rounds(rng, rounds, common, own, *, slower=0.0):
    """A pair without fixed work whose launches share so much noise in a round and have so much of their own."""
    shared = rng.normal(0, common, rounds)
    a, b = (launches(rng, shared + rng.normal(0, own, rounds), 0.0, 0.0, slower=by) for by in (0.0, slower))
    return without_canary(Pair(id="x", a=Side(launches=a), b=Side(launches=b)))


def regressions(pairs):
    """How many of the pairs are called a regression."""
    return sum(decide(pair).verdict == "regression" for pair in pairs)


def test_round_effects_are_removed(monkeypatch):
    """Rounds are 4 % apart, the launches of one 2 %: +5 % is found in 20 rounds, and unchanged code is never slower."""
    rng = np.random.default_rng(21)
    slower = [of_rounds(rng, 20, 0.04, 0.02, slower=0.05) for _ in range(15)]
    assert regressions(slower) >= 14
    assert regressions(of_rounds(rng, 5, 0.04, 0.02) for _ in range(60)) == 0
    monkeypatch.setattr(covariates, "_round_effects", lambda *_: None)
    assert regressions(slower) <= 13


def test_launches_without_round_effects_are_not_changed():
    """Without round effects an interval is hardly narrower than without that candidate."""
    rng = np.random.default_rng(22)
    widths = []
    for _ in range(60):
        pair = of_rounds(rng, 5, 0.0, 0.03)
        fits = covariates.candidates_of(pair, (pair.a.launches, pair.b.launches), "cpu", 0.02)
        alone = noise.compare(noise.candidates(fits.base[0], fits.head[0], 0.02, []))
        both = noise.compare(fits)
        widths.append((both.high - both.low) / (alone.high - alone.low))
    assert 0.9 < np.mean(widths) <= 1.0


def test_shrinking_launches_is_no_evidence():
    """Subtracting round effects moves launches closer, which is no evidence for them: only a common effect is."""
    rng = np.random.default_rng(23)
    odds = []
    for common in (0.0, 0.03):
        chances = []
        for _ in range(40):
            pair = of_rounds(rng, 10, common, 0.02)
            fits = covariates.candidates_of(pair, (pair.a.launches, pair.b.launches), "cpu", 0.02)
            chances.append(noise.compare(fits).chances[1] if len(fits.chances) > 1 else 0.0)
        odds.append(np.mean(chances))
    assert odds[0] < covariates.ROUND_EFFECT / 2
    assert odds[1] > 2 * covariates.ROUND_EFFECT


def test_a_delayed_launch_does_not_move_the_other_of_its_round():
    """One launch of base is late by 40 %, in a pair whose others agree: head is not called faster or slower for it."""
    rng = np.random.default_rng(24)
    pair = of_rounds(rng, 6, 0.02, 0.003)
    late = [value * 1.4 for value in pair.a.launches[2].samples]
    rows = [x if i != 2 else msgspec.structs.replace(x, samples=late, cpu=late) for i, x in enumerate(pair.a.launches)]
    after = examine(msgspec.structs.replace(pair, a=Side(launches=rows)), Policy()).change
    before = examine(pair, Policy()).change
    assert abs(after.shift - before.shift) < 0.006


@pytest.mark.parametrize("how", ["one after the other", "other rounds"])
def test_only_launches_side_by_side_have_round_effects(how):
    """Rounds of the same number in sessions one after the other, or of other numbers, have nothing in common."""
    pair = of_rounds(np.random.default_rng(25), 8, 0.05, 0.002)
    late = [
        msgspec.structs.replace(x, start_us=x.start_us + 1e9)
        if how == "one after the other"
        else msgspec.structs.replace(x, round=x.round + 100)
        for x in pair.b.launches
    ]
    for head, count in ((pair.b.launches, 2), (late, 1)):
        assert len(covariates.candidates_of(pair, (pair.a.launches, head), "cpu", 0.02).chances) == count


def test_history_without_round_effects_is_quieter():
    """Earlier sessions, whose rounds are not known, inform both priors: without round effects there is less noise."""
    pair = of_rounds(np.random.default_rng(26), 8, 0.03, 0.01)
    past = of_rounds(np.random.default_rng(27), 8, 0.03, 0.01).a.launches
    with_history = msgspec.structs.replace(pair, a=msgspec.structs.replace(pair.a, history=[past] * 6))
    fits = covariates.candidates_of(with_history, (pair.a.launches, pair.b.launches), "cpu", 0.02)
    taus = np.exp(fits.prior).sum(axis=2) @ np.log(noise._table().taus)
    assert len(taus) == 2
    assert math.exp(taus[1] - taus[0]) < 0.85
