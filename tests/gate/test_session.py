"""A session of launches on its own: what is kept, what is given up, and in which order the sides run."""

import pytest

from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.measure import LaunchStore, Session, order_of
from rocattn_profiling.gate.options import Options
from rocattn_profiling.measure.asv_launch import Benchmark, Case, Outcome, Request
from rocattn_profiling.measure.records import Launch


def test_a_finished_run_is_not_gone_on_with(tmp_path):
    """Only an unfinished session with the same key is resumed: an old verdict is never handed out as a new one."""
    case = Case(
        benchmark=Benchmark(name="b", type="time", unit="seconds", version="1", params=[], param_names=[]),
        param=None,
        label="b",
    )
    path = tmp_path / "launches.jsonl"
    LaunchStore(path, "key").put(case, "base", 0, Outcome(status="failed", reason="kept"))
    assert LaunchStore(path, "key").get(case, "base", 0).reason == "kept"
    assert LaunchStore(path, "key", fresh=True).resumed == 0
    LaunchStore(path, "key").put(case, "base", 0, Outcome(status="failed"))
    assert LaunchStore(path, "other key").resumed == 0
    finished = LaunchStore(path, "key")
    finished.put(case, "base", 0, Outcome(status="failed"))
    finished.finish()
    assert LaunchStore(path, "key").resumed == 0


@pytest.mark.parametrize(("side", "expected"), [("head", "failed"), ("base", "broken")])
def test_a_benchmark_that_fails_in_a_later_round_is_given_up(tmp_path, side, expected):
    """A failure on head counts as the change's, one on base makes the benchmark unreliable; never a new benchmark."""
    benchmark = Benchmark(name="b", type="track", unit="bytes", version="1", params=[], param_names=[])
    case = Case(benchmark=benchmark, param=None, label="b")

    class Scripted:
        def __init__(self, name):
            self.name, self.runs = name, 0

        def run(self, _case, _request, *, pos, **_options):
            self.runs += 1
            if self.name == side and self.runs == 3:
                return Outcome(status="timeout", reason="no answer within 1 s")
            return Outcome(status="ok", launch=Launch(start_ns=1, pos=pos, number=1, samples_ns=[5.0]))

    launchers = {name: Scripted(name) for name in ("base", "head")}
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    session = Session(launchers, [case], Options().policy(), Request(), 3, store, lambda _: None)
    (entry,) = verdict.entries_of([case], session.run())
    assert (entry.status, entry.reason) == (expected, f"{side}, round 2: no answer within 1 s")


@pytest.mark.parametrize(("builds", "kept"), [(("3.11.7", "3.11.7"), True), (("3.11.7", "3.12.1"), False)])
def test_fixed_work_of_two_builds_of_python_is_not_compared(tmp_path, builds, kept):
    """The canary stays with the launches of a pair only where one interpreter ran it on both sides."""
    benchmark = Benchmark(name="b", type="time", unit="seconds", version="1", params=[], param_names=[])
    case = Case(benchmark=benchmark, param=None, label="b")

    class Scripted:
        def __init__(self, build):
            self.build = build

        def run(self, _case, _request, *, pos, **_options):
            launch = Launch(start_ns=1, pos=pos, number=1, samples_ns=[5e6, 5.1e6], cpu_ns=[5e6, 5.1e6], nivcsw=[0, 0])
            return Outcome(status="ok", launch=launch, canary_ns=1.5e5, canary_of=self.build)

    launchers = {name: Scripted(build) for name, build in zip(("base", "head"), builds, strict=True)}
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    (pair,) = Session(launchers, [case], Options().policy(), Request(), 3, store, lambda _: None).run().pairs
    assert {x.canary > 0 for side in (pair.a, pair.b) for x in side.launches} == {kept}


def test_orders_are_balanced_and_come_from_the_seed():
    """In each pair of rounds both sides run first once; the seed alone decides which."""
    for label in ("a", "b", "c"):
        for first in range(0, 20, 2):
            assert order_of(7, label, first) == order_of(7, label, first + 1)[::-1]
    orders = [tuple(order_of(seed, "a", r) for r in range(0, 20, 2)) for seed in range(5)]
    assert len(set(orders)) == 5
    firsts = [order_of(3, str(i), 0)[0] for i in range(400)]
    assert 160 < firsts.count("base") < 240
