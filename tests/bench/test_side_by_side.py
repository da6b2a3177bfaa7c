"""Which process measures which backends, and whose fault it is when one ends; no process is started."""

import pytest

from rocattn.config import AttentionConfig
from rocattn_profiling.bench import launch as bench_launch
from rocattn_profiling.bench.launch import BackendSamples, Result
from rocattn_profiling.measure.records import Check, Launch
from rocattn_profiling.measure.settings import Settings
from rocattn_profiling.measure.worker import Crash

CONFIG = AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=13, head_dim=12)
RIGHT = Check(
    ok=True, max_abs_error=0.0, max_rel_error=0.0, rms_error=0.0, naive_max_abs_error=0.0, factor=2.0, rows_checked=1,
    rows=1,
)  # fmt: skip


@pytest.fixture
def measure(monkeypatch):
    """Measure "a", "b" and "c" in three launches whose processes answer as told; returns sides and what was asked."""

    def run(answer, **changes):
        asked = []

        def launch(job, env, patience_s):
            asked.append((job, env, patience_s))
            found = answer(job)
            if found is not None:
                return found
            series = [
                BackendSamples(
                    backend=name, launch=Launch(start_ns=7, pos=job.pos, number=1 + job.pos, samples_ns=[1.0, 2.0]),
                    peak_rss_bytes=100 - job.pos, check=RIGHT if job.check else None,
                )
                for name in job.backends
            ]  # fmt: skip
            return Result(series=series)

        monkeypatch.setattr(bench_launch, "launch", launch)
        done = []
        settings = Settings(launches=3, time_limit_s=20.0, **changes)
        sides = bench_launch.measure_side_by_side(
            CONFIG, ["a", "b", "c"], settings, 2, lambda: done.append(1), module="GQA"
        )
        assert len(done) == 3
        return sides, asked

    return run


def test_every_launch_is_a_process_of_its_own_with_its_number(measure):
    """The first one checks outputs, and the check stays; memory is the most of any; threads are held everywhere."""
    sides, asked = measure(lambda _: None)
    assert [(job.pos, job.check, job.module, job.backends) for job, _, _ in asked] == [
        (0, True, "GQA", ["a", "b", "c"]), (1, False, "GQA", ["a", "b", "c"]), (2, False, "GQA", ["a", "b", "c"]),
    ]  # fmt: skip
    assert {env["OMP_NUM_THREADS"] for _, env, _ in asked} == {"2"}
    assert {patience for *_, patience in asked} == {2 * 20.0 + 30.0}
    for side in sides.values():
        assert [(launch.pos, launch.number) for launch in side.launches] == [(0, 1), (1, 2), (2, 3)]
        assert (side.check, side.peak_rss_bytes, side.failed) == (RIGHT, 100, "")


def test_a_crashing_backend_is_dropped_and_its_launch_repeated(measure):
    """Only it; what the process had said is kept with it, and launches of the others are complete."""

    def answer(job):
        return Crash("b", "it was killed by SIGSEGV", "last words") if job.pos == 1 and "b" in job.backends else None

    sides, asked = measure(answer)
    assert [(job.pos, job.backends) for job, _, _ in asked] == [
        (0, ["a", "b", "c"]), (1, ["a", "b", "c"]), (1, ["a", "c"]), (2, ["a", "c"]),
    ]  # fmt: skip
    assert (sides["b"].failed, sides["b"].log) == ("it was killed by SIGSEGV", "last words")
    assert {name: [launch.pos for launch in side.launches] for name, side in sides.items()} == {
        "a": [0, 1, 2], "b": [0], "c": [0, 1, 2],
    }  # fmt: skip
    assert (sides["a"].failed, sides["a"].log) == ("", "")


def test_a_backend_that_raises_does_not_repeat_the_launch(measure):
    """The others were measured in it; from then on it is not asked again."""

    def answer(job):
        if job.pos or "b" not in job.backends:
            return None
        series = [
            BackendSamples(backend=name, failed="ValueError: no")
            if name == "b"
            else BackendSamples(backend=name, launch=Launch(start_ns=7, pos=0, number=1, samples_ns=[1.0]))
            for name in job.backends
        ]
        return Result(series=series, log="a warning")

    sides, asked = measure(answer)
    assert [job.backends for job, _, _ in asked] == [["a", "b", "c"], ["a", "c"], ["a", "c"]]
    assert (sides["b"].failed, sides["b"].log, sides["b"].launches) == ("ValueError: no", "a warning", [])
    assert len(sides["a"].launches) == 3


@pytest.mark.parametrize(
    "outcome", [Crash("", "it ended with status 3", "words"), Result(failed="no module named x", log="words")]
)
def test_a_crash_outside_of_any_backend_fails_all_of_them(measure, outcome):
    """All that were to run have failed then, and say that it was outside; nothing is tried for ever."""
    sides, asked = measure(lambda _: outcome)
    assert len(asked) == 1
    why = outcome.reason if isinstance(outcome, Crash) else outcome.failed
    assert {(side.failed, side.log) for side in sides.values()} == {(f"outside any backend: {why}", "words")}
