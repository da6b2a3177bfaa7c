"""Stored pairs that hold no measurement are refused, with what is wrong."""

import math

import msgspec
import pytest

from rocattn_profiling.gate.rule.pairs import Pair, PairError, PairLaunch, Side
from rocattn_profiling.gate.rule.suite import decide


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        *(({"samples": [1.0, bad]}, "has a sample that is not a time") for bad in (math.nan, math.inf, -1.0)),
        *(({"cpu": [1.0, bad]}, "has a sample that is not a time") for bad in (math.nan, math.inf, -1.0)),
        ({"samples": [], "cpu": []}, "has no samples"),
        ({"cpu": [1.0]}, "has columns of unequal length"),  # CPU times belong to samples one by one
    ],
)
def test_what_is_no_measurement_is_refused(launch, why):
    """An error that names the pair, not a verdict."""
    good = PairLaunch(round=0, samples=[1.0, 2.0], cpu=[1.0, 2.0])
    broken = msgspec.structs.replace(good, **launch)
    with pytest.raises(PairError, match=f"p1: round 0 of side b {why}"):
        decide(Pair(id="p1", a=Side(launches=[good]), b=Side(launches=[broken])))


def test_two_units_are_refused_and_two_spellings_are_one():
    """`us` beside the micro sign's spelling is compared; ms beside ns is a mistake of whoever stored it."""
    a, b = (Side(launches=[PairLaunch(round=0, samples=[1.0, 1.0])], unit=unit) for unit in ("us", "\u00b5s"))
    assert decide(Pair(id="p", a=a, b=b)).rounds_used == 1
    with pytest.raises(PairError, match="p: the sides are in 'us' and 'ms'"):
        decide(Pair(id="p", a=a, b=msgspec.structs.replace(b, unit="ms")))
