"""The statistics under the decision, against scipy, enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rocattn_profiling.gate import lowend


@pytest.mark.parametrize("freedom", [0.7, 1.0, 3.0, 4.6, 11.3, 60.0, 1500.0])
def test_student_tail_agrees_with_scipy_far_into_the_tail(freedom):
    """The tail is right to nine digits where verdicts are made, fractional degrees of freedom included."""
    for t in (-8.0, -1.0, 0.0, 0.3, 1.0, 2.5, 7.0, 25.0):
        assert lowend.student_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("tail", [0.3, 0.025, 1e-4])
def test_student_quantile_inverts_the_tail(tail):
    """A quantile has just the asked-for tail above it."""
    assert lowend.student_quantile(tail, 5.3) == pytest.approx(stats.t.isf(tail, 5.3), rel=1e-9)


def test_low_end_is_the_interpolated_quantile():
    """The location of a launch is numpy's 10 % quantile, whatever the order and count of samples."""
    rng = np.random.default_rng(4)
    for count in (1, 2, 3, 7, 10, 13):
        samples = rng.exponential(1.0, count).tolist()
        assert lowend.low_end(samples) == pytest.approx(np.quantile(samples, lowend.LOW_QUANTILE))


@pytest.mark.parametrize("count", [3, 5, 7, 20])
def test_order_facts_describe_normal_noise(count):
    """Mean and spread of the lowest launches are calibrated: on other draws the error estimate is unbiased."""
    draws = np.sort(np.random.default_rng(99).standard_normal((20_000, count)), axis=1)[:, : lowend.lowest(count)]
    facts = lowend.order_facts(count)
    assert facts.mean_variance == pytest.approx(draws.mean(axis=1).var(), rel=0.05)
    assert facts.spread == pytest.approx(draws.var(axis=1, ddof=1).mean(), rel=0.05)


def test_permutation_p_is_exact_for_few_launches():
    """With 3 + 4 launches it is the share of all 35 deals with as large a shift, counted here one by one."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 1, 3), rng.normal(0.8, 1, 4)

    def shift(x, y):
        return np.sort(y)[: lowend.lowest(len(y))].mean() - np.sort(x)[: lowend.lowest(len(x))].mean()

    both = np.concatenate([a, b])
    deals = [shift(both[list(chosen)], np.delete(both, list(chosen))) for chosen in itertools.combinations(range(7), 3)]
    expected = sum(value >= shift(a, b) - 1e-12 for value in deals) / 35
    assert lowend.permutation_p(a, b) == pytest.approx(expected)


def test_complete_separation_has_the_smallest_permutation_p():
    """5 + 5 launches that do not overlap give 1 / 252; reversed they give 1."""
    low, high = np.arange(5.0), np.arange(5.0) + 10
    assert lowend.permutation_p(low, high) == pytest.approx(1 / 252)
    assert lowend.permutation_p(high, low) == 1.0


def test_interval_covers_the_true_shift():
    """The 95 % interval covers a true shift of 3 % in 93 to 98.5 % of 600 draws of 7 + 7 normal launches."""
    rng = np.random.default_rng(6)
    hits = 0
    for _ in range(600):
        seen = lowend.difference(rng.normal(0, 0.02, 7), rng.normal(0.03, 0.02, 7), 0.02, 4.0)
        low, high = seen.interval()
        hits += low <= 0.03 <= high
    assert 0.93 <= hits / 600 <= 0.985


def test_a_shift_is_reported_in_logs():
    """Sides a factor of 1.25 apart, noise-free, differ by log 1.25 with only the prior's error."""
    seen = lowend.difference(np.zeros(5), np.full(5, math.log(1.25)), 0.015, 4.0)
    assert seen.shift == pytest.approx(math.log(1.25))
    assert seen.noise == pytest.approx(0.0, abs=1e-12)
    assert seen.error > 0
