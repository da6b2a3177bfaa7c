"""Stored pairs that hold no measurement are refused, with what is wrong."""

import math

import msgspec
import pytest

from rocattn_profiling.gate.rule.pairs import Pair, PairError, PairLaunch, Side
from rocattn_profiling.gate.rule.suite import decide


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("column", ["samples", "cpu"])
def test_what_is_no_time_is_refused(bad, column):
    """NaN, infinity and negative times are an error that names the pair, not a verdict."""
    good = PairLaunch(round=0, samples=[1.0, 2.0], cpu=[1.0, 2.0])
    broken = msgspec.structs.replace(good, **{column: [1.0, bad]})
    with pytest.raises(PairError, match="p1: round 0 of side b has a sample that is not a time"):
        decide(Pair(id="p1", a=Side(launches=[good]), b=Side(launches=[broken])))


def test_a_launch_without_samples_is_refused():
    """An empty launch is an error, not a fast one."""
    with pytest.raises(PairError, match="no samples"):
        decide(Pair(id="p", a=Side(launches=[PairLaunch(round=0, samples=[])]), b=Side(launches=[])))


def test_columns_of_unequal_length_are_refused():
    """CPU times belong to samples one by one."""
    odd = PairLaunch(round=0, samples=[1.0, 2.0], cpu=[1.0])
    with pytest.raises(PairError, match="unequal length"):
        decide(Pair(id="p", a=Side(launches=[odd]), b=Side(launches=[odd])))


def test_two_units_are_refused_and_two_spellings_are_one():
    """`us` beside the micro sign's spelling is compared; ms beside ns is a mistake of whoever stored it."""
    a, b = (Side(launches=[PairLaunch(round=0, samples=[1.0, 1.0])], unit=unit) for unit in ("us", "\u00b5s"))
    assert decide(Pair(id="p", a=a, b=b)).rounds_used == 1
    with pytest.raises(PairError, match="p: the sides are in 'us' and 'ms'"):
        decide(Pair(id="p", a=a, b=msgspec.structs.replace(b, unit="ms")))
