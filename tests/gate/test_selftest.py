"""The gate's test of itself: identical code measured, relabelled and reported."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import selftest
from rocattn_profiling.gate.model import EarlierNoise, Entry
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.constants import FULL_LOOKS, QUICK_LOOKS
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.session.store import LaunchStore
from rocattn_profiling.measure.machine import this_machine

TWO_LOOKS = Policy(looks=(5, 10))


@pytest.fixture
def run(project, offline, capsys):
    """Return a function that runs the command in the project: (status, stdout, stderr)."""

    def call(*arguments):
        here = Path.cwd()
        os.chdir(project.root)
        try:
            status = main(["gate", "selftest", *arguments])
        finally:
            os.chdir(here)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


@pytest.fixture
def result():
    """What is read of a run's verdict, without entries."""
    head = SimpleNamespace(revision=SimpleNamespace(sha="0" * 40))
    return SimpleNamespace(
        created_ms=1, head=head, machine=this_machine(), launches=20, entries=[], noise=None, policy=Policy()
    )


@pytest.mark.slow
def test_the_table_shows_what_the_gate_finds(varying, run):
    """Times with little noise: nothing is wrong, small changes are seen, and every benchmark gets all rounds."""
    status, out, err = run("--rounds", "6", "--draws", "4", "--seed", "3", "--json")
    assert status == 0
    found = msgspec.json.decode(out, type=selftest.Selftest)
    stored = (varying.root / "out/selftest/selftest.json").read_bytes()
    assert found == msgspec.json.decode(stored, type=selftest.Selftest)
    assert {s.id for s in found.benchmarks} == {f"bench_work.Exact.time_work({n})" for n in (100, 301)}
    assert (found.rounds, found.launches, found.wrong, found.false_alarm_rate, found.red_rate) == (6, 24, [], 0.0, 0.0)
    assert found.revision == varying.git("rev-parse", "HEAD")
    assert all(s.smallest_change[6] <= 0.1 for s in found.benchmarks)
    assert "false alarms 0.00 % per benchmark, 0.0 % of runs red (4 draws)" in err


@pytest.mark.slow
def test_exact_times_are_seen_through(project, run):
    """Times that never differ are named as exact, and that is fine."""
    status, out, err = run("--rounds", "3", "--draws", "3", "--json")
    assert status == 0
    assert json.loads(out)["exact"] == [f"bench_work.Exact.time_work({n})" for n in (100, 301)]
    assert "nothing to test: bench_work.Exact.time_work(100)" in err
    assert "no benchmark showed any noise, so there are no rates to report" in err
    assert "more than" not in err


@pytest.mark.slow
def test_an_interrupted_selftest_goes_on(varying, run, unfinish):
    """The launches that were finished are taken over, and the table is the same."""
    _, first, _ = run("--rounds", "5", "--draws", "3", "--seed", "3", "--json")
    stored = varying.root / "out/selftest/launches.jsonl"
    lines = stored.read_text().splitlines()
    unfinish(stored, lines[:9], lines[9][:30])  # killed while it wrote the tenth line
    _, second, err = run("--rounds", "5", "--draws", "3", "--seed", "3", "--json")
    assert "resuming an interrupted run: 8 launches are there" in err
    assert json.loads(first)["benchmarks"] == json.loads(second)["benchmarks"] != []


@pytest.mark.slow
def test_any_suite_can_be_tested_in_an_existing_environment(tmp_path, run):
    """A suite outside of any repository runs in the Python that is named; its path stands for the revision."""
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "__init__.py").touch()
    (suite / "bench_text.py").write_text("class Text:\n    def track_length(self):\n        return 1 + hash('x') % 3\n")
    options = ("--existing-python", sys.executable, "--suite", str(suite), "--rounds", "4", "--draws", "3")
    # The seed decides the hashes: one that follows from the folder's name gave four equal values one time in 27.
    status, out, _ = run(*options, "--seed", "3", "--json")
    found = msgspec.json.decode(out, type=selftest.Selftest)
    assert status == 0
    assert [s.id for s in found.benchmarks] == ["bench_text.Text.track_length"]
    assert Path(found.revision) == Path(sys.executable)


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (("--draws", "1"), "--draws 1"),
        (("--rounds", "-1"), "--rounds -1"),
        (("--rev", "HEAD", "--existing-python", "python3"), "give one of them"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(run, options, needed):
    """A usage error is one line and status 4."""
    status, _, err = run(*options)
    assert status == 4
    assert needed in err


@pytest.mark.parametrize("quick", [False, True])
def test_every_benchmark_gets_all_rounds(quick):
    """The measuring looks once, after all rounds; the judging looks as often as the gate does."""
    options = selftest.SelftestOptions(quick=quick, tolerance=0.1)
    looks = QUICK_LOOKS if quick else FULL_LOOKS
    assert options.policy().looks == (looks[-1],)
    assert options.judging() == Options(quick=quick, tolerance=0.1).policy()


@pytest.mark.parametrize(("count", "said"), [(1, "1 benchmark"), (2, "2 benchmarks")])
def test_what_is_relabelled_is_counted(tmp_path, monkeypatch, result, make_pair, count, said):
    """One benchmark is not "1 benchmarks"."""
    pairs = [make_pair(np.random.default_rng(i), 3, name=str(i)) for i in range(count)]
    monkeypatch.setattr(selftest, "run_gate", lambda *_, also, **__: also(result, LaunchStore(tmp_path / "x", "key")))
    monkeypatch.setattr(selftest, "stored_with", lambda _: ({}, EarlierNoise()))
    monkeypatch.setattr(selftest, "pairs_of", lambda *_: pairs)
    messages = []
    selftest.run_selftest(tmp_path, tmp_path, selftest.SelftestOptions(rounds=3), draws=3, say=messages.append)
    assert messages == [f"relabelling the launches of {said}"]


@pytest.mark.slow
def test_a_pattern_without_matches_is_reported(project, run):
    """A typo in one --bench of two must not look like a benchmark that was measured."""
    status, _, err = run("--rounds", "3", "--draws", "3", "--bench", "100", "--bench", "z z")
    assert status == 0
    assert "--bench 'z z' matches no benchmark" in err
    assert "--bench 100" not in err


def test_identical_code_that_is_called_slower_is_reported(result, make_pair):
    """A side that is slower throughout, as a biased machine makes it, is listed as wrong."""
    rng = np.random.default_rng(3)
    pairs = [make_pair(rng, 5, name="fine"), make_pair(rng, 5, slowdown=0.3, name="biased")]
    found = selftest.judge_gate(result, pairs, Options(rounds=5).policy(), draws=10)
    assert found.wrong == ["biased"]
    assert {s.id for s in found.benchmarks} == {"fine", "biased"}


def test_the_suite_is_red_more_often_than_a_benchmark(result, make_pair):
    """With every benchmark's sides far apart by chance, relabelled runs of the whole suite share no luck."""
    rng = np.random.default_rng(4)
    pairs = [make_pair(rng, 10, name=str(i), noise=0.02) for i in range(4)]
    found = selftest.judge_gate(result, pairs, Options(rounds=10).policy(), draws=20)
    assert found.false_alarm_rate <= found.red_rate <= 4 * found.false_alarm_rate + 1e-12
    assert found.rounds == 10


def test_too_noisy_benchmarks_have_no_recommended_rounds(result, make_pair):
    """When ten rounds do not show what counts, more are needed than were measured."""
    pair = make_pair(np.random.default_rng(5), 10, noise=0.1)
    assert selftest.judge_gate(result, [pair], Options(rounds=10).policy(), draws=10).recommended_rounds is None


def test_nothing_measured_is_nothing_found(result):
    """Without a pair there is no rate, and no recommendation."""
    found = selftest.judge_gate(result, [], Options().policy(), draws=5)
    assert (found.benchmarks, found.recommended_rounds, found.red_rate, found.rounds) == ([], None, 0.0, 0)


def test_values_that_never_differ_have_nothing_to_test(result):
    """A register count, and a count of zero, are listed as exact and left out of the rates."""
    same = [Side(launches=[PairLaunch(round=i, samples=[value]) for i in range(5)], unit="") for value in (96.0, 0.0)]
    pairs = [Pair(id=str(side.launches[0].samples[0]), a=side, b=side) for side in same]
    found = selftest.judge_gate(result, pairs, Options(rounds=5).policy(), draws=5)
    assert (found.exact, found.benchmarks, found.wrong) == (["96.0", "0.0"], [], [])


def test_pairs_keep_the_calls_of_a_sample(result, make_pair):
    """The absolute floor of one call is that of a timed sample over its calls; what was not judged is left out."""
    pair = make_pair(np.random.default_rng(6), 3)
    entries = [
        Entry(
            label=label, name="x", unit="ns", status=status,
            base_launches=pair.a.launches, head_launches=pair.b.launches,
        )
        for label, status in (("judged", "pass"), ("rate", "ungated"))
    ]  # fmt: skip
    result.entries = entries
    (pair,) = selftest.pairs_of(result, {"judged": 100})
    assert (pair.id, pair.a.number, pair.floor) == ("judged", 100, 3.0)


def test_small_changes_are_found_where_noise_is_low(make_pair):
    """Under 0.5 % launch noise five rounds find 5 % and no more are needed; under 8 % ten rounds do not find 10 %."""
    quiet = selftest.sensitivity(make_pair(np.random.default_rng(1), 10, noise=0.005), TWO_LOOKS, draws=20)
    noisy = selftest.sensitivity(make_pair(np.random.default_rng(1), 10, noise=0.08), TWO_LOOKS, draws=20)
    assert quiet.smallest_change[5] <= 0.05
    assert quiet.smallest_change[10] <= quiet.smallest_change[5]
    assert quiet.rounds == 5
    assert quiet.false_alarm_rate == noisy.false_alarm_rate == 0.0
    assert noisy.smallest_change[10] is None or noisy.smallest_change[10] > 0.1
    assert noisy.rounds is None
    assert quiet.noise < 0.015
    assert noisy.noise > 0.04


def test_relabelling_keeps_rounds_together(make_pair):
    """A drawn pair has the launches of its rounds, one on each side; only head's times change, CPU time as well."""
    pair = make_pair(np.random.default_rng(2), 8, cpu=True)
    originals = {tuple(x.samples): i for side in (pair.a, pair.b) for i, x in enumerate(side.launches)}
    for drawn in selftest.relabelled(pair, 5, 0.5, 10, seed=3):
        assert [x.round for x in drawn.a.launches] == [x.round for x in drawn.b.launches] == list(range(5))
        for a, b in zip(drawn.a.launches, drawn.b.launches, strict=True):
            back = [round(value / 1.5, 3) for value in b.samples]
            (partner,) = [i for key, i in originals.items() if [round(value, 3) for value in key] == back]
            assert originals[tuple(a.samples)] == partner
            assert b.cpu == pytest.approx(b.samples)


def test_too_few_rounds_say_so(make_pair):
    """With fewer rounds than the first look there is no size to tell."""
    seen = selftest.sensitivity(make_pair(np.random.default_rng(4), 3), TWO_LOOKS, draws=5)
    assert (seen.smallest_change, seen.rounds) == ({}, None)
