# ruff: noqa: D102 - the stand-in clock's methods are those of the time module
"""Inside a launch: turns, sample sizes, poisoned memory, and outputs compared with float64 and with each other."""

import itertools
import math

import numpy as np
import pytest

import rocattn
from rocattn.backends import BACKENDS
from rocattn.config import AttentionConfig
from rocattn_profiling.bench import launch as bench_launch
from rocattn_profiling.bench.launch import Copies, LaunchJob, TurnSampler, check_outputs, register_named
from rocattn_profiling.measure.worker import describe
from rocattn_profiling.workloads import accuracy as evaluation
from rocattn_profiling.workloads.inputs import make_inputs

CONFIG = AttentionConfig(batch=2, num_heads=3, seq_q=40, seq_k=50, head_dim=16, causal=True, return_lse=True)


class Clock:
    """Stands in for ``time``: moves only when something is done."""

    def __init__(self):
        self.ns = 0
        self.rests = []

    def sleep(self, seconds):
        self.rests.append(self.ns)
        self.ns += round(seconds * 1e9)

    def perf_counter_ns(self):
        return self.ns

    def perf_counter(self):
        return self.ns / 1e9

    process_time_ns = time_ns = perf_counter_ns

    def get_clock_info(self, _name):
        class Info:
            resolution = 1e-9

        return Info


@pytest.fixture
def clock(monkeypatch):
    """A clock under the test's control."""
    clock = Clock()
    monkeypatch.setattr(bench_launch, "time", clock)
    return clock


def make_sampler(clock, durations_ns, **limits):
    """Return a sampler of calls that take these times, and the list of names in the order they ran."""
    order = []

    def call(name, duration):
        def run():
            order.append(name)
            clock.ns += duration
            return (np.zeros(3, np.float32),)

        return run

    values = {"warmup_s": 0.0, "budget_s": 0.0, "min_samples": 3, "max_samples": 8, "seed": 0, "pos": 0}
    job = LaunchJob(config={}, backends=list(durations_ns), data="normal", **(values | limits))
    calls = {name: call(name, duration) for name, duration in durations_ns.items()}
    return TurnSampler(calls, job, lambda _name: None), order


def test_short_calls_are_timed_together_and_long_ones_alone(clock):
    """A sample lasts at least a millisecond; what is recorded is the time of one call."""
    sampler, _ = make_sampler(clock, {"short": 30_000, "long": 4_000_000})
    sampler.warm_up()
    sampler.sample()
    short, long = sampler.series["short"].launch, sampler.series["long"].launch
    assert short.number == math.ceil(1e6 / 30_000)
    assert long.number == 1
    assert short.samples_ns == [30_000.0] * 3
    assert long.samples_ns == [4_000_000.0] * 3


def test_sampling_ends_with_the_budget_within_its_bounds(clock):
    """At least min_samples, at most max_samples, between them as many as the time allows."""
    for budget_s, expected in ((0.0, 3), (0.0095, 5), (1.0, 8)):
        sampler, _ = make_sampler(clock, {"a": 2_000_000, "b": 3_000_000}, budget_s=budget_s)
        sampler.warm_up()
        sampler.sample()
        assert len(sampler.series["a"].launch.samples_ns) == len(sampler.series["b"].launch.samples_ns) == expected


def test_each_round_samples_every_backend_in_random_order(clock):
    """Drift hits all alike; the order is set by seed and launch, so that a launch can be repeated."""
    sampler, order = make_sampler(clock, {"a": 2_000_000, "b": 2_000_000, "c": 2_000_000}, min_samples=8)
    sampler.warm_up()
    order.clear()
    sampler.sample()
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    again, order_again = make_sampler(clock, {"a": 2_000_000, "b": 2_000_000, "c": 2_000_000}, min_samples=8)
    again.warm_up()
    order_again.clear()
    again.sample()
    assert order_again == order


def test_a_rest_separates_the_samples_of_two_backends(clock):
    """Threads that one backend leaves spinning do not take the core of the next; a backend alone is not held up."""
    sampler, order = make_sampler(clock, {"a": 2_000_000, "b": 3_000_000}, min_samples=6)
    sampler.warm_up()
    order.clear()
    sampler.sample()
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert len(clock.rests) == changes > 0
    assert set(sampler.series["a"].launch.samples_ns) == {2_000_000.0}
    clock.rests.clear()
    alone, _ = make_sampler(clock, {"a": 2_000_000})
    alone.warm_up()
    alone.sample()
    assert not clock.rests


def test_a_call_that_raises_is_dropped_and_the_others_go_on(clock):
    """Its samples go too: half a series is not a measurement."""
    sampler, _ = make_sampler(clock, {"a": 2_000_000, "b": 2_000_000})
    good, calls = sampler._calls["b"], []

    def fails_in_round_two():
        calls.append(1)
        if len(calls) == 6:
            raise ValueError("odd")
        return good()

    sampler._calls["b"] = fails_in_round_two
    sampler.warm_up()
    sampler.sample()
    assert sampler.series["b"].failed == "ValueError: odd"
    assert sampler.series["b"].launch is None
    assert len(sampler.series["a"].launch.samples_ns) == 3
    assert "b" not in sampler.outputs


@pytest.fixture
def outputs():
    """Inputs of a small problem and right outputs for it."""
    inputs = make_inputs(CONFIG)
    out, lse = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="cpu", **inputs.options(CONFIG))
    return inputs, out, lse


@pytest.fixture
def _sampled(monkeypatch):
    """Compare just the first row with float64, as if the problem were huge, unless all rows are asked for."""

    def first_row(config, max_flops, _seed):
        every = max_flops >= bench_launch._ALL_ROWS
        rows = np.arange(config.seq_q if every else 1)
        return [(b, h, rows) for b in range(config.batch) for h in range(config.num_kv_heads)]

    monkeypatch.setattr(evaluation, "sample_rows", first_row)


@pytest.mark.usefixtures("_sampled")
def test_comparing_backends_finds_errors_in_unsampled_rows(outputs):
    """One wrong row of a sampled problem: the other backend reveals it, float64 says whose it is."""
    inputs, out, lse = outputs
    wrong = out.copy()
    wrong[1, 33, 2] *= 1.001
    assert check_outputs(CONFIG, inputs, {"b": (wrong, lse)}, 0)["b"].ok
    found = check_outputs(CONFIG, inputs, {"a": (out, lse), "b": (wrong, lse), "c": (out, lse)}, 0)
    assert {name: check.ok for name, check in found.items()} == {"a": True, "b": False, "c": True}
    assert found["b"].rows_checked == found["b"].rows
    assert found["c"].rows_checked < found["c"].rows


@pytest.mark.usefixtures("_sampled")
def test_a_wrong_first_backend_is_not_blamed_on_the_others(outputs):
    """Being first does not make an output right."""
    inputs, out, lse = outputs
    wrong = lse.copy()
    wrong[0, 1, 20] += 1e-3
    found = check_outputs(CONFIG, inputs, {"a": (out, wrong), "b": (out, lse)}, 0)
    assert {name: check.ok for name, check in found.items()} == {"a": False, "b": True}
    assert found["a"].what == "lse"


def test_free_memory_holds_nan_before_the_checked_call():
    """A block of an output's size that is allocated next is not what another backend left there."""
    right = np.ones((37, 5), np.float32)
    left_behind = right.copy()
    del left_behind
    bench_launch._poison((right,))
    assert not (np.empty_like(right) == 1).all()


def test_errors_are_described_in_one_line():
    """With their type, and without line breaks."""
    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(MemoryError()) == "MemoryError"


def test_calls_take_copies_in_turns():
    """The inputs' own first, then copies that lie elsewhere and hold the same, whatever was written into them."""
    inputs = make_inputs(AttentionConfig(batch=1, num_heads=2, seq_q=1, seq_k=5, head_dim=4))
    copies = Copies(inputs, 3)
    turns = [next(turn) for turn in [copies.turns()] for _ in range(4)]
    assert [turns[at][1] is inputs.k for at in range(4)] == [True, False, False, True]
    assert not np.shares_memory(turns[1][1], turns[2][1])
    turns[2][2][...] = np.nan
    copies.refill()
    for _, k, v in turns:
        assert np.array_equal(k, inputs.k)
        assert np.array_equal(v, inputs.v)


def test_the_gpus_standard_path_is_a_backend_by_name():
    """Registered once, when it is asked for; no problem chooses it by itself."""
    try:
        register_named(["cpu", "gpu"])
        assert all(backend.name != "gpu-standard" for backend in BACKENDS)
        register_named(["gpu-standard"])
        register_named(["gpu-standard"])
        standard = BACKENDS.get("gpu-standard")
        assert not standard.use_flash_attention
        assert standard.priority < min(backend.priority for backend in BACKENDS if backend is not standard)
    finally:
        BACKENDS.unregister("gpu-standard")
