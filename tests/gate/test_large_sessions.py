"""Sessions of thousands of pairs: what is there at once is a small part of what is judged."""

import tracemalloc

import msgspec
import numpy as np

from rocattn_profiling.gate.judge import judge


def peak_bytes(function, *arguments, **options):
    """Return the most bytes that a call held at once, arrays included, and what it returned."""
    tracemalloc.start()
    try:
        returned = function(*arguments, **options)
        return tracemalloc.get_traced_memory()[1], returned
    finally:
        tracemalloc.stop()


def with_canary(pair):
    """The pair with a fixed piece of work in every launch, so that it is read in five ways."""
    a, b = (
        msgspec.structs.replace(side, launches=[msgspec.structs.replace(x, canary=1e5) for x in side.launches])
        for side in (pair.a, pair.b)
    )
    return msgspec.structs.replace(pair, a=a, b=b)


def test_a_session_is_judged_without_all_of_it_in_memory(make_pair):
    """Neither the launches of all pairs nor the posteriors of their changes: those alone are 12 MB of 60 pairs."""
    rng = np.random.default_rng(36)
    pairs = [with_canary(make_pair(rng, 5, name=str(n), cpu=True)) for n in range(60)]
    lines = [msgspec.json.encode(pair) for pair in pairs]
    judge(lines[:2], session=True)  # makes the tables that all sessions share
    peak, judged = peak_bytes(judge, lines, session=True)
    assert (len(judged.lines), judged.problems) == (60, [])
    assert peak < 6e6
