"""The noise model under the decision: densities, calibration against simulation, history, two modes."""

import math

import numpy as np
import pytest

from rocattn_profiling.gate.rule import guards, noise

PLAIN = noise.prior_after(0.015, [])


def contaminated(rng, count, tau=0.015, share=0.2, delay=0.15):
    """Launch locations as the model has them."""
    return rng.normal(0, tau, count) + (rng.random(count) < share) * rng.exponential(delay, count)


def test_densities_are_densities():
    """Each row of the table sums to one, up to what lies outside of the tabulated places."""
    table = noise._table()
    sums = np.exp(table.log_density).reshape(len(table.taus), table.residuals, -1).sum(axis=1) * noise._STEP
    assert np.all((sums > 0.96) & (sums < 1.01))


def test_the_delay_moves_launches_up_only():
    """The mean of a row is share times delay above its level: the exponential is on the slow side."""
    places = np.arange(noise._LEFT, noise._RIGHT, noise._STEP)
    third = np.exp(noise._table().log_density[2 * len(places) : 3 * len(places)]) * noise._STEP
    row, short = third[:, -1], third[:, 1]  # delays of 0.5, cut off at the table's edge, and 0.04
    assert (row * places).sum() > 0.1
    assert (short * places).sum() == pytest.approx(noise.DELAYED_SHARES[1] * noise.DELAYS[0], rel=0.02)


@pytest.mark.parametrize("true", [0.0, 0.03, -0.1, 0.7])
def test_a_shift_is_found_where_it_is(true):
    """The median of the posterior is the shift that was put in, however large."""
    rng = np.random.default_rng(1)
    posterior = noise.compare_plain(rng.normal(0, 0.005, 9), true + rng.normal(0, 0.005, 9), PLAIN)
    assert posterior.shift == pytest.approx(true, abs=0.006)
    assert posterior.low < true < posterior.high
    assert posterior.p_below(true - 0.05) < 1e-3
    assert posterior.p_below(true + 0.05) > 0.99
    assert posterior.p_below(true) + posterior.p_above(true) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("count", "share"), [(5, 0.0), (5, 0.2), (12, 0.35)])
def test_the_interval_covers_the_truth(count, share):
    """Of 250 draws, disturbed launches included, 91.5 % or more of the 95 % intervals hold the true 3 %."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(250):
        a, b = (contaminated(rng, count, share=share) for _ in range(2))
        posterior = noise.compare_plain(a, b + 0.03, PLAIN)
        hits += posterior.low <= 0.03 <= posterior.high
    assert hits / 250 >= 0.915


@pytest.mark.parametrize("tau", [0.003, 0.02, 0.08, 0.3])
def test_a_probability_is_not_smaller_than_it_should_be(tau):
    """Without a change, P(change <= 1 %) is below 1 % in at most 2.5 % of 200 draws of five launches, quiet or wild."""
    rng = np.random.default_rng(3)
    low = [
        noise.compare_plain(contaminated(rng, 5, tau), contaminated(rng, 5, tau), PLAIN).p_below(0.01) < 0.01
        for _ in range(200)
    ]
    assert sum(low) <= 5


def test_disturbed_launches_do_not_hide_a_change():
    """Two of five base launches 30 % late: +10 % is still all but certain, and estimated within 2 %."""
    a = np.array([0.0, 0.31, 0.006, 0.28, -0.004])
    b = 0.095 + np.array([0.003, -0.005, 0.001, 0.21, 0.0])
    posterior = noise.compare_plain(a, b, PLAIN)
    assert posterior.p_below(0.01) < 0.005
    assert posterior.shift == pytest.approx(0.095, abs=0.02)


def test_noise_is_learned_from_history():
    """Sessions of a quiet benchmark narrow the interval of the same five launches, those of a noisy one widen it."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(0, 0.01, 5), rng.normal(0, 0.01, 5)
    widths = []
    for tau in (0.004, 0.015, 0.06):
        posterior = noise.compare_plain(a, b, noise.prior_after(0.015, [rng.normal(0.3, tau, 5) for _ in range(8)]))
        widths.append(posterior.high - posterior.low)
    assert widths[0] < widths[1] < widths[2]


def test_only_the_newest_sessions_count():
    """Sessions before the last eight change nothing."""
    rng = np.random.default_rng(5)
    new = [rng.normal(0, 0.01, 5) for _ in range(8)]
    old = [rng.normal(0, 0.2, 5) for _ in range(20)]
    np.testing.assert_array_equal(noise.prior_after(0.015, new), noise.prior_after(0.015, [*old, *new]))


def test_the_noise_of_a_benchmark_is_estimated():
    """The posterior mean of the launch noise is within a factor of 1.6 of the truth after twenty launches."""
    rng = np.random.default_rng(6)
    for tau in (0.005, 0.02, 0.08):
        noise_scale = noise.compare_plain(rng.normal(0, tau, 20), rng.normal(0, tau, 20), PLAIN).noise
        assert tau / 1.6 < noise_scale < tau * 1.6


def test_a_bimodal_benchmark_differs_from_a_change():
    """A base launch just where head is speaks for two modes; one that was disturbed far above does not."""
    low, high = np.array([0.0, 0.004, -0.003, 0.002]), 0.1 + np.array([0.002, -0.004, 0.0, 0.003, 0.001])
    factors = []
    for fifth in (0.101, 0.001, 0.3):
        a = np.append(low, fifth)
        factors.append(guards.bayes_factor(a, high, noise.compare_plain(a, high, PLAIN), PLAIN))
    assert factors[0] < 30 < factors[2] < factors[1]


def test_sides_of_one_launch_have_a_wide_answer():
    """A single launch a side leaves tens of percent open, and nothing overflows at a factor of a thousand."""
    posterior = noise.compare_plain(np.array([0.0]), np.array([math.log(1000)]), PLAIN)
    assert posterior.low < math.log(1000) < posterior.high
    assert posterior.high - posterior.low > 0.1


def slow_states(rng, count, coefficient=0.7):
    """Noise that lasts from launch to launch."""
    y = rng.normal(0, 0.02, count)
    for i in range(1, count):
        y[i] = coefficient * y[i - 1] + math.sqrt(1 - coefficient**2) * y[i]
    return y


@pytest.mark.parametrize("count", [10, 20, 50])
def test_slow_states_differ_from_independent_launches(count):
    """The median probability of slow states is above even odds where there are some, else below a third."""
    rng = np.random.default_rng(7)
    own = [guards.slow_states(slow_states(rng, count), slow_states(rng, count))[0] for _ in range(60)]
    none = [guards.slow_states(rng.normal(0, 0.02, count), rng.normal(0, 0.02, count))[0] for _ in range(60)]
    assert np.median(own) > 0.5
    assert np.median(none) < 1 / 3


def test_a_drift_of_both_sides_is_no_slow_state():
    """A drift of the machine that head and base follow side by side leaves the odds where independent launches do."""
    rng = np.random.default_rng(8)
    held = []
    for _ in range(60):
        common = np.cumsum(rng.normal(0, 0.03, 20))
        held.append(guards.slow_states(common + rng.normal(0, 0.01, 20), common + rng.normal(0, 0.01, 20))[0])
    assert np.median(held) < 1 / 3


def test_correlated_launches_count_for_fewer():
    """Five launches count like 1.6 independent ones, fifty like about a fifth of them; a single one is itself."""
    parts = {count: guards.slow_states(np.arange(float(count)), np.zeros(count))[1] for count in (5, 50)}
    assert 5 * parts[5] == pytest.approx(1.62, abs=0.01)
    assert parts[50] == pytest.approx(0.19, abs=0.01)


def test_fewer_launches_make_a_wider_answer():
    """With a part of the launches counted, the same ones leave more open around the same shift."""
    rng = np.random.default_rng(9)
    a, b = rng.normal(0, 0.01, 8), 0.1 + rng.normal(0, 0.01, 8)
    whole, part = noise.compare_plain(a, b, PLAIN), noise.compare(noise.candidates(a, b, 0.015, []), 0.25)
    assert part.high - part.low > 1.5 * (whole.high - whole.low)
    assert part.shift == pytest.approx(whole.shift, abs=0.01)


@pytest.mark.parametrize("apart", [0.1, 0.3])
def test_one_launch_in_the_other_mode_suggests_two(apart):
    """However far the modes are apart; sides that are apart in every launch are hardly doubted."""
    core = np.array([0.0, 0.004, -0.003, 0.002, 0.001])
    low, high = core.copy(), apart + core[::-1]
    clean = guards.bimodal(low, high, noise.compare_plain(low, high, PLAIN), PLAIN)
    low[4] = apart + 0.001
    mixed = guards.bimodal(low, high, noise.compare_plain(low, high, PLAIN), PLAIN)
    assert clean < 0.001
    assert 0.02 < mixed < 1
