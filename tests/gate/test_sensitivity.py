"""What the gate can see: false alarms and smallest changes from launches of identical code."""

import numpy as np
import pytest

from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.selftest import relabelled, sensitivity

POLICY = Policy(looks=(5, 10))


def test_small_changes_are_found_where_noise_is_low(make_pair):
    """Under 0.5 % launch noise five rounds find 5 % and no more are needed; under 8 % ten rounds do not find 10 %."""
    quiet = sensitivity(make_pair(np.random.default_rng(1), 10, noise=0.005), POLICY, draws=20)
    noisy = sensitivity(make_pair(np.random.default_rng(1), 10, noise=0.08), POLICY, draws=20)
    assert quiet.smallest_change[5] <= 0.05
    assert quiet.smallest_change[10] <= quiet.smallest_change[5]
    assert quiet.rounds == 5
    assert quiet.false_alarm_rate == noisy.false_alarm_rate == 0.0
    assert noisy.smallest_change[10] is None or noisy.smallest_change[10] > 0.1
    assert noisy.rounds is None
    assert quiet.noise < 0.015
    assert noisy.noise > 0.04


def test_relabelling_keeps_rounds_together(make_pair):
    """A drawn pair has the launches of its rounds, one on each side; only head's times change, CPU time as well."""
    pair = make_pair(np.random.default_rng(2), 8, cpu=True)
    originals = {tuple(x.samples): i for side in (pair.a, pair.b) for i, x in enumerate(side.launches)}
    for drawn in relabelled(pair, 5, 0.5, 10, seed=3):
        assert [x.round for x in drawn.a.launches] == [x.round for x in drawn.b.launches] == list(range(5))
        for a, b in zip(drawn.a.launches, drawn.b.launches, strict=True):
            back = [round(value / 1.5, 3) for value in b.samples]
            (partner,) = [i for key, i in originals.items() if [round(value, 3) for value in key] == back]
            assert originals[tuple(a.samples)] == partner
            assert b.cpu == pytest.approx(b.samples)


def test_too_few_rounds_say_so(make_pair):
    """With fewer rounds than the first look there is no size to tell."""
    seen = sensitivity(make_pair(np.random.default_rng(4), 3), POLICY, draws=5)
    assert (seen.smallest_change, seen.rounds) == ({}, None)
