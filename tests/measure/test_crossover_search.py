"""Where one of two backends begins to be the faster one: bisection over lengths, on ratios that are known."""

import math

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.bench import crossover
from rocattn_profiling.measure.stats import Speedup

PAIR = ("a", "b")


def speedup(ratio, width=0.05, launches=5):
    """A speed-up of b over a with its interval."""
    low, high = ratio * (1 - width), ratio * (1 + width)
    return Speedup(slow="a", fast="b", ratio=ratio, low=low, high=high, launches=launches, unit="launch")


def ranges_of(ratio_at, shortest=8, longest=512, width=0.05):
    """The ranges and measured lengths for a ratio that depends on length."""
    ranges, known = crossover.find_ranges(lambda n: speedup(ratio_at(n), width), PAIR, shortest, longest)
    return [(r.from_length, r.to_length, r.winner) for r in ranges], sorted(known)


@pytest.mark.parametrize("step", [9, 13, 40, 64, 65, 100, 300, 511])
def test_a_step_is_found_from_both_sides(step):
    """a is twice as fast below the step, b from it on: the two thresholds enclose it, a fifth apart at most."""
    found, measured = ranges_of(lambda n: 2.0 if n >= step else 0.5)
    (first, to, a), (start, last, b) = found
    assert (first, a, last, b) == (1, "a", None, "b")
    assert to < step <= start
    assert start <= max(1.2 * to, to + 1)
    assert {to, start} <= set(measured)
    assert len(measured) <= 3 + 2 * math.ceil(math.log2(math.log(8, 1.2)) + 1)


def test_between_the_thresholds_nothing_is_claimed():
    """A ratio that creeps up with the length is undecided while its interval holds 1."""
    found, _ = ranges_of(lambda n: (n / 64) ** 0.5, width=0.2)
    (_, to, a), (start, _, b) = found
    assert (a, b) == ("a", "b")
    assert (to / 64) ** 0.5 * 1.2 < 1 < (start / 64) ** 0.5 * 0.8
    assert (to * 1.2 / 64) ** 0.5 * 1.2 >= 1
    assert (start / 1.2 / 64) ** 0.5 * 0.8 <= 1


@pytest.mark.parametrize(
    ("ratio", "ranges"), [(2.0, [(1, None, "b")]), (0.5, [(1, None, "a")]), (1.01, [])], ids=["b", "a", "undecided"]
)
def test_what_is_the_same_everywhere_takes_three_measurements(ratio, ranges):
    """Both ends and the middle; where nothing is proven nothing is claimed."""
    found, measured = ranges_of(lambda _: ratio)
    assert found == ranges
    assert measured == [8, 64, 512]


def test_only_one_end_may_be_decided():
    """b wins long sequences, short ones are undecided; and the other way round."""
    found, _ = ranges_of(lambda n: 2.0 if n >= 100 else 1.0)
    assert [(r[1], r[2]) for r in found] == [(None, "b")]
    assert 100 <= found[0][0] <= 120
    found, _ = ranges_of(lambda n: 0.5 if n < 100 else 1.0)
    assert [(r[0], r[2]) for r in found] == [(1, "a")]
    assert 99 / 1.2 <= found[0][1] <= 99


def test_a_change_there_and_back_is_seen():
    """a wins at both ends, b in the middle: three ranges, each ending next to the change."""
    (first, to, a), (start, stop, b), (again, last, c) = ranges_of(lambda n: 2.0 if 30 <= n <= 200 else 0.5)[0]
    assert (first, a, b, last, c) == (1, "a", "b", None, "a")
    assert to < 30 <= start <= 1.2 * to
    assert stop <= 200 < again <= 1.2 * stop


@pytest.mark.parametrize(("length", "shortest", "longest"), [(8, 8, 9), (1, 1, 8), (3, 1, 8)])
def test_neighbouring_lengths_end_the_search(length, shortest, longest):
    """There is no length between 8 and 9, nor between 1 and 2, which are further apart than a fifth."""
    found, _ = ranges_of(lambda n: 2.0 if n > length else 0.5, shortest, longest)
    assert found == [(1, length, "a"), (length + 1, None, "b")]


def test_the_search_goes_on_in_the_middle_of_two_lengths_by_their_ratio():
    """Of 8 and 64 that is 23, the root of 512, and so on: as many lengths as a ratio of 64 needs, not a distance."""
    assert ranges_of(lambda n: 2.0 if n >= 9 else 0.5)[1] == [8, 9, 11, 14, 23, 64, 512]


@pytest.mark.parametrize(("low", "high", "sign"), [(1.0, 1.2, 0), (1.001, 1.2, 1), (0.8, 1.0, 0), (0.8, 0.999, -1)])
def test_an_interval_that_reaches_1_proves_nothing(low, high, sign):
    """Its end counts as within."""
    assert crossover.verdict(msgspec.structs.replace(speedup(1.0), low=low, high=high)) == sign


@pytest.mark.parametrize(("shortest", "longest"), [(8, 512), (8, 9)])
def test_each_length_is_measured_once(shortest, longest):
    """However often bisection asks for it, and where the middle is one of the ends."""
    asked = []

    def compare(length):
        asked.append(length)
        return speedup(2.0 if length >= 50 else 0.5)

    crossover.find_ranges(compare, PAIR, shortest, longest)
    assert len(asked) == len(set(asked))


def test_an_error_of_a_measurement_is_no_threshold():
    """An error that is not about one cell ends the search."""

    def compare(_):
        raise RocattnError("the disk is full")

    with pytest.raises(RocattnError, match="the disk is full"):
        crossover.find_ranges(compare, PAIR, 8, 64)
