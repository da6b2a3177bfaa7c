"""What earlier sessions do to a decision: they sharpen it where they are right, and cannot make it wrong."""

import msgspec
import numpy as np
import pytest

from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide

FIVE = Policy(looks=(5,))


def sessions(make_pair, rng, noise, count, launches):
    """Sessions of identical code under so much noise."""
    return [make_pair(rng, launches, noise=noise).a.launches for _ in range(count)]


def share(make_pair, draws, now, change=0.0, past=None, count=8, launches=24):
    """Share of pairs of five launches called slower under the noise ``now``; ``past`` is the noise of the history."""
    rng = np.random.default_rng(3)
    history = [sessions(make_pair, np.random.default_rng(s), past, count, launches) for s in range(8)] if past else [[]]
    called = 0
    for draw in range(draws):
        pair = make_pair(rng, 5, slowdown=change, noise=now)
        known = msgspec.structs.replace(pair.a, history=history[draw % len(history)])
        called += decide(msgspec.structs.replace(pair, a=known), FIVE).verdict == "regression"
    return called / draws


def test_history_sets_the_noise_of_a_benchmark(make_pair):
    """The same ambiguous five rounds are open for a benchmark known to be noisy and decided for a quiet one."""
    pair = make_pair(np.random.default_rng(32), 5, slowdown=0.045, noise=0.012)

    def known(noise):
        past = sessions(make_pair, np.random.default_rng(1), noise, 6, 5)
        return decide(msgspec.structs.replace(pair, a=msgspec.structs.replace(pair.a, history=past)), FIVE)

    quiet, noisy = known(0.01), known(0.05)
    assert (quiet.verdict, noisy.verdict) == ("regression", "inconclusive")
    assert quiet.ratio_high - quiet.ratio_low < noisy.ratio_high - noisy.ratio_low


@pytest.mark.parametrize(("count", "launches"), [(8, 24), (8, 5)])
@pytest.mark.parametrize("past", [0.003, 0.01, 0.02])
def test_a_machine_noisier_than_it_was_makes_no_false_alarms(make_pair, past, count, launches):
    """Known to scatter by up to 2 %, by 5 % today: of unchanged pairs at most the documented 2 % are called slower."""
    assert share(make_pair, 400, now=0.05, past=past, count=count, launches=launches) <= 0.02


def test_a_machine_quieter_than_it_was_finds_as_much(make_pair):
    """Known to scatter by 5 %, by 1 % today: +5 % is found in five rounds about as often as without a history."""
    without, with_ = (share(make_pair, 150, now=0.01, change=0.05, past=past) for past in (None, 0.05))
    assert without > 0.75
    assert with_ >= without - 0.05


def test_a_machine_as_noisy_as_it_was_finds_more(make_pair):
    """At the noise that is known (1.5 %), +5 % is found in five rounds far more often, and nothing wrong is."""
    without, with_ = (share(make_pair, 150, now=0.015, change=0.05, past=past) for past in (None, 0.015))
    assert with_ >= without + 0.2
    assert share(make_pair, 300, now=0.015, past=0.015) <= 0.005


def test_what_agrees_with_today_is_believed():
    """Launches that scatter as the sessions did are read more sharply; those that do not as if nothing were known."""
    rng = np.random.default_rng(5)
    past = [rng.normal(0, 0.01, 20) for _ in range(8)]
    widths = {}
    for today in (0.01, 0.1):
        a, b = rng.normal(0, today, 5), rng.normal(0, today, 5)
        known, unknown = (noise.compare(noise.candidates(a, b, 0.02, sessions)) for sessions in (past, []))
        widths[today] = (known.high - known.low) / (unknown.high - unknown.low)
    assert widths[0.01] < 0.9
    assert widths[0.1] == pytest.approx(1.0, abs=0.02)
