"""Counters of one kernel spread over its launches are brought together, and values made of them say so."""

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.metrics.aggregate import by_kernel
from rocattn_profiling.profile.metrics.devices import devices_of
from rocattn_profiling.profile.metrics.evaluate import evaluate
from rocattn_profiling.profile.metrics.multiplexing import BORROWED

from .test_evaluate import MI300X, profile

SETS = (
    {"TCC_EA0_RDREQ_sum": 1000, "SQ_INSTS_VALU": 512},
    {"TCC_EA0_RDREQ_32B_sum": 0, "TCC_EA0_WRREQ_sum": 500},
    {"TCC_BUBBLE_sum": 0, "TCC_EA0_WRREQ_64B_sum": 500},
)


def found(launches):
    """Return the values of each kernel, and the problems."""
    made = profile([launches], MI300X)
    evaluation = evaluate(made, devices_of(made))
    return {group.name: group.values for group in by_kernel(evaluation)}, evaluation.launches.problems


def turns(count, kernel="k", sets=SETS):
    """Return launches of a kernel that count one set each, in turn."""
    return [(kernel, 1000, sets[number % len(sets)]) for number in range(count)]


@pytest.mark.parametrize("count", [3, 4, 6, 11])
def test_what_a_launch_lacks_is_taken_from_its_neighbors(count):
    """As if each had all of it, also in a round that was cut off; every value that borrowed something says so."""
    whole = [("k", 1000, SETS[0] | SETS[1] | SETS[2])] * count
    (values, problems), (expected, _) = found(turns(count)), found(whole)
    for key, value in expected["k"].items():
        assert values["k"][key].value == pytest.approx(value.value)
    assert any(BORROWED in flag for flag in values["k"]["read_gbps"].flags)
    assert not any(BORROWED in flag for value in expected["k"].values() for flag in value.flags)
    assert problems == []


def test_rounds_keep_their_own_numbers():
    """The nearest launch of the same round, not the mean: what changes over the run is still seen to."""
    later = tuple({name: 2 * value for name, value in each.items()} for each in SETS)
    made = profile([turns(3) + turns(3, sets=later)], MI300X)
    values = evaluate(made, devices_of(made)).values["read_bytes"]
    assert values.tolist() == [64_000.0] * 3 + [128_000.0] * 3


def test_other_shapes_lend_nothing():
    """A launch of another grid, block or LDS is another launch; those that lack a set are named."""
    made = profile([turns(5)], MI300X)
    made.dispatches["lds_bytes"] = pd.array([0, 0, 0, 512, 512], dtype=made.dispatches["lds_bytes"].dtype)
    evaluation = evaluate(made, devices_of(made))
    assert evaluation.values["read_bytes"][:3].tolist() == [64_000.0] * 3
    assert all(evaluation.values["read_bytes"][3:] != evaluation.values["read_bytes"][3:])
    assert evaluation.launches.problems[0] == snapshot(
        "pass pass_0: iteration multiplexing spread the counters over 3 launches, too many for k (2 of 3): run more "
        "iterations, or collect without it"
    )


def test_kernels_with_fewer_launches_than_sets_are_named():
    """Their metrics are of what one launch counted, and no more."""
    values, (problem,) = found(turns(6) + turns(2, "rare") + turns(1, "once"))
    assert "read_bytes" in values["k"]
    assert "read_bytes" not in values["rare"]
    assert problem == snapshot(
        "pass pass_0: iteration multiplexing spread the counters over 3 launches, too many for once (1 of 3), rare "
        "(2 of 3): run more iterations, or collect without it"
    )
    assert all(each in problem for each in ("rare (2 of 3)", "once (1 of 3)"))


def test_a_counter_that_one_launch_lacks_is_not_made_up():
    """A value that the profiler could not write is missing, not spread."""
    whole = SETS[0] | SETS[1] | SETS[2]
    part = {name: value for name, value in whole.items() if name != "TCC_BUBBLE_sum"}
    values, _ = found([("k", 1000, whole), ("k", 1000, part), ("other", 1000, SETS[0])])
    assert values["k"]["read_bytes"].launches == 1
    assert not any(BORROWED in flag for each in values.values() for value in each.values() for flag in value.flags)
