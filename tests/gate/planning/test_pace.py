"""A run's promise of how long it takes: estimates, limits, and what a limit leaves unmeasured."""

import math

import msgspec
import pytest

from rocattn_profiling.asv.launch import Outcome, OutOfTimeError, Request
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.measure import PairedSession
from rocattn_profiling.gate.model import Design
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning import pace
from rocattn_profiling.gate.planning.pace import Pace, TimeLimit, Tracing
from rocattn_profiling.gate.result import budget_of
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.session.store import LaunchStore
from rocattn_profiling.measure.records import Launch

from ..conftest import case_of


class Clock:
    """A clock that launches move."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        """Return the time."""
        return self.now


class Taking:
    """Launches that take their time on a made-up clock; head's of the labels in ``slower`` are slower by half.

    From ``spells_from`` on every second launch meets a slow spell.
    """

    def __init__(self, clock, seconds, slower=(), spells_from=math.inf):
        self.clock, self.seconds, self.slower, self.ran = clock, seconds, slower, []
        self.spells_from = spells_from

    def run(self, case, _request, *, pos, within_s=math.inf, **_options):
        """Answer as a process would."""
        takes = self.seconds.get(case.label, 1.0)
        self.clock.now += min(takes, within_s)
        if within_s < takes:
            raise OutOfTimeError("ended")
        self.ran.append(case.label)
        factor = 1.5 if case.label in self.slower else 1.0
        samples = [factor * (5e6 + 1e3 * (len(self.ran) % 7) + index) for index in range(5)]
        launch = Launch(start_ns=len(self.ran), pos=pos, number=1, samples_ns=samples, cpu_ns=samples, nivcsw=[0] * 5)
        slow = len(self.ran) >= self.spells_from and not len(self.ran) % 2
        canary_ns = 3e5 if slow else 1.5e5
        return Outcome(status="ok", launch=launch, canary_ns=canary_ns, canary_of="3.13", seconds=takes)

    def end_server(self):
        """Nothing was forked."""


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Return a function that measures labels within a limit, and returns the session, launches, and the seconds."""
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)

    def measure(
        labels,
        limit_s,
        *,
        seconds=None,
        known=None,
        steps=None,
        slower=(),
        spells_from=math.inf,
        on_step=lambda _: None,
        runs_change=None,
        calls=True,
        shared=None,
    ):
        def traced(label):
            clock.now += 2.0 if calls else 0.0
            return runs_change(label)

        cases = [case_of(label) for label in labels]
        design = Design(
            cases=cases, policy=Options(quick=True).policy(), request=Request(), seed=3, steps=steps or {},
            pace=Pace(known if known is not None else dict.fromkeys(labels, 1.0), {"m": 1.0}, shared=shared),
            limit=TimeLimit.begin(limit_s),
            runs_change=runs_change and (lambda case: traced(case.label)),
            tracing=runs_change and Tracing([], [case for case in cases if case.label in (steps or {})], calls),
        )  # fmt: skip
        launchers = {"base": Taking(clock, seconds or {}), "head": Taking(clock, seconds or {}, slower, spells_from)}
        started = clock.now
        store = LaunchStore(tmp_path / "launches.jsonl", "key")
        found = PairedSession(launchers, design, store, on_step).run()
        return cases, found, launchers["head"].ran, clock.now - started

    return measure


def test_without_a_limit_everything_is_measured(session):
    """Nothing is left open for lack of time."""
    _, found, ran, _ = session("abc", 0)
    assert (found.stopped, sorted(set(ran))) == (False, ["a", "b", "c"])


def test_one_round_of_all_first_and_then_the_near_ones(session):
    """Forty benchmarks, time for 180 launches: all have one round, and the two near ones are decided."""
    labels = [f"b{n:02}" for n in range(40)]
    cases, found, ran, took = session(labels, 200, steps={"b07": 1, "b30": 4}, slower=("b07",))
    assert sorted(ran[:40]) == labels
    assert ran[0] == "b07"
    assert set(ran[40:48]) == {"b07", "b30"}
    assert not found.unreached
    assert took <= 200
    verdicts = {decision.id: decision.verdict for decision in found.decision.decisions}
    assert (verdicts["b07"], verdicts["b30"]) == ("regression", "pass")
    assert set(found.open) == {label for label, each in verdicts.items() if each == "inconclusive"}
    assert all(d.undecided.code == "no_time" for d in found.decision.decisions if d.id in found.open)
    assert len(verdict.entries_of(cases, found)) == 40


@pytest.mark.parametrize("shared", [False, True])
def test_those_that_look_slower_go_first_if_sources_name_none(session, shared):
    """As of C, whose calls are not followed: forty benchmarks, and time for a round of all and a look at a few.

    That all are forked from one short import is no reason to go on with all of them at once.
    """
    labels = [f"b{n:02}" for n in range(40)]
    _, found, ran, took = session(labels, 200, slower=("b07", "b30"), shared=shared and dict.fromkeys(labels, "m"))
    assert {"b07", "b30"} <= set(ran[40:48])
    assert len(set(ran[40:52])) <= 4
    assert took <= 200
    verdicts = {decision.id: decision.verdict for decision in found.decision.decisions}
    assert [label for label in labels if verdicts[label] == "regression"] == ["b07", "b30"]


def test_the_near_ones_go_before_a_round_that_is_too_long(session):
    """What nothing was launched of is unreached, and does not count in the correction for many benchmarks."""
    labels = [f"b{n:02}" for n in range(40)]
    cases, found, ran, took = session(labels, 40, steps={"b07": 1}, slower=("b07",))
    assert ran[:5] == ["b07"] * 5
    assert took <= 40
    statuses = [entry.status for entry in verdict.entries_of(cases, found)]
    assert statuses.count("regression") == 1
    assert statuses.count("unreached") == len(found.unreached) == 40 - len(set(ran))
    assert [decision.id for decision in found.decision.decisions] == [pair.id for pair in found.pairs]


def test_traced_calls_take_their_part_of_the_limit(session):
    """Forty benchmarks, one of which runs the change: all have a round and a call, and only that one has more."""
    labels = [f"b{n:02}" for n in range(40)]
    one = {"runs_change": "b07".__eq__, "steps": {"b07": 1}, "slower": ("b07",)}
    _, found, ran, took = session(labels, 200, **one)
    assert (found.stopped, ran[40:], took) == (False, ["b07"] * 4, 40 * 4 + 8)
    verdicts = {decision.id: decision.verdict for decision in found.decision.decisions}
    assert verdicts == dict.fromkeys(labels, "pass") | {"b07": "regression"}


def test_what_the_limit_leaves_untraced_is_undecided(session):
    """Time for a round and a call of some: they pass, and nothing else does."""
    labels = [f"c{n:02}" for n in range(40)]
    traced = []

    def runs_change(label):
        traced.append(label)
        return False

    _, found, _, took = session(labels, 110, runs_change=runs_change)
    assert took <= 110
    assert 20 < len(traced) < 40
    passed = {decision.id for decision in found.decision.decisions if decision.verdict == "pass"}
    assert passed == set(traced)
    assert sorted([*passed, *found.open, *found.unreached]) == labels


def test_equal_code_passes_though_the_first_round_is_cut_off(session):
    """Where both sides have the same code there is nothing to call: each that ran on both sides is decided."""
    labels = [f"d{n:02}" for n in range(40)]
    _, found, ran, _ = session(labels, 40, runs_change=lambda _: False, calls=False)
    assert 10 < len(ran) < 40
    assert not found.open
    assert {decision.verdict for decision in found.decision.decisions} == {"pass"}
    assert len(found.unreached) == 40 - len(found.decision.decisions)


def test_a_limit_makes_no_looks_of_its_own(session):
    """After three of five rounds a tripled time is no verdict: the next look is after five."""
    _, found, ran, _ = session("ab", 8, slower=("a", "b"))
    assert len(ran) < 10
    assert {decision.verdict for decision in found.decision.decisions} <= {"inconclusive"}


def test_the_time_left_follows_the_launches(session):
    """Ten benchmarks whose launches take 20 s where half a second was guessed: known after the first, in its round."""
    steps = []
    labels = [f"b{n}" for n in range(10)]
    session(labels, 0, seconds=dict.fromkeys(labels, 20.0), known={}, on_step=steps.append)
    first = [step.left_s for step in steps if step.what == "first try"]
    assert first[0] < 100
    assert 2000 <= first[1] <= 2600  # 99 of 100 launches, and a tenth of the benchmarks goes on
    assert first[1:] == sorted(first[1:], reverse=True)


def test_a_run_says_what_would_decide_the_rest(session):
    """By the launches that are needed, in whole rounds of the undecided ones."""
    cases, found, _, _ = session("ab", 0)
    decision = Decision(id="a", verdict="inconclusive", rounds_needed=13)
    found = msgspec.structs.replace(found, decision=found.decision._replace(decisions=[decision]))
    design = Design(
        cases=cases, policy=Options(quick=True).policy(), request=Request(), seed=3, pace=Pace({"a": 1.0, "b": 1.0})
    )
    assert budget_of(design, found, (1.0, 2.0)).remedy == (
        "about 1 more round would decide 1 of the undecided: --rounds 13, about 26 s for it alone (--bench)"
    )


def test_what_is_left_needs_few_rounds_beside_the_change(session):
    """Of two benchmarks that were not reached: a round and a traced call each, and the rest of the rounds of one."""
    cases, found, _, _ = session("ab", 0)
    found = msgspec.structs.replace(found, unreached=["a", "b"], open=[], pairs=[])
    said = []
    for most in ([], cases[:1]):
        design = Design(
            cases=cases, policy=Options(quick=True).policy(), request=Request(), seed=3,
            pace=Pace({"a": 1.0, "b": 1.0}), runs_change=lambda _: None, tracing=Tracing([], most, calls=True),
        )  # fmt: skip
        said.append(budget_of(design, found, (1.0, 2.0)).remedy)
    assert said[0] == "2 not measured: the same command continues where it stopped (about 8 s more)"
    assert 8 + 2 * 4 <= int(said[1].split("about ")[1].split(" s")[0]) <= 8 + 2 * 11


@pytest.mark.parametrize(("limit_s", "repeated"), [(16, 2), (11, 0)])
def test_the_next_look_goes_before_repeats(session, limit_s, repeated):
    """A launch that met a slow spell is repeated only where the rounds until the look still fit."""
    _, found, ran, _ = session("a", limit_s, slower=("a",), spells_from=4)
    assert (found.repeated, len(ran)) == (repeated, 5 + repeated)
    assert [decision.rounds_used for decision in found.decision.decisions] == [5]


def test_a_long_launch_does_not_overshoot(session):
    """Known to be long, it is not begun; unknown, it is ended."""
    _, found, _, took = session("ab", 20, seconds={"a": 500.0}, known={"a": 500.0, "b": 1.0})
    assert (found.unreached, took <= 20) == (["a"], True)
    _, found, _, took = session("cd", 20, seconds={"c": 500.0, "d": 500.0}, known={})
    assert sorted(found.unreached) == ["c", "d"]
    assert took <= 20


def test_a_stopped_run_goes_on_with_the_rest(session):
    """It repeats no launch, and ends as if it had never been stopped."""
    labels = [f"b{n}" for n in range(8)]
    _, first, ran, _ = session(labels, 30)
    assert first.stopped
    _, second, rest, _ = session(labels, 0)
    assert not second.stopped
    assert len(ran) + len(rest) <= 8 * 12
    assert first.launches + 2 * len(rest) - 1 <= second.launches <= first.launches + 2 * len(rest) + 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600), ("90s", 90), ("1h30m", 5400), ("45", 45), ("1.5h", 5400), ("10min", 600), ("1h 5m", 3900),
        # NaN, which the command turns into one line.
        *((text, math.nan) for text in ("", "soon", "-5m", "0", "10 m x", "m", "1d", "nan", "1e3", "5m3", "\u0663m")),
    ],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    """The forms that people write, and what is none of them."""
    assert pace.parsed_limit(text) == pytest.approx(seconds, abs=0, nan_ok=True)


def test_estimates_follow_imports_records_and_launches():
    """An import makes launches long, or rounds where they share it; a record is believed more, this run's most."""
    slow, fast = case_of("slow.time_x"), case_of("fast.time_x")
    guessed = Pace(imports={"slow": 3.0, "fast": 0.1, "": 1.0})
    assert guessed.launch_s(slow) == pytest.approx(guessed.launch_s(fast) + 2.9)
    shared = Pace(imports={"slow": 20.0, "fast": 0.1, "": 1.0})
    assert (shared.shared_module(slow), shared.shared_module(fast)) == ("slow", "")
    assert shared.launch_s(slow) < 5
    assert shared.round_s([slow, slow, fast]) == pytest.approx(
        40 + 4 * shared.launch_s(slow) + 2 * shared.launch_s(fast)
    )
    known = Pace({"slow.time_x": 3.0}, {"slow": 2.0})
    assert known.launch_s(slow) == 3.0
    known.saw(slow, 2.0)
    assert known.launch_s(slow) == 2.0
    low, high = guessed.estimate_s([slow, fast], (5, 8, 12))
    assert 0 < low < high
    looks = (5, 8, 12)
    nothing, some = Tracing([], [], calls=False), Tracing([fast], [fast, slow], calls=True)
    both = guessed.round_s([slow, fast])
    assert guessed.estimate_s([slow, fast], looks, traced=nothing) == pytest.approx((0.6 * both, 1.8 * both))
    few, many = guessed.rest_s([fast], 1, looks, 0.1), guessed.rest_s([fast, slow], 1, looks, 0.5)
    assert guessed.estimate_s([slow, fast], looks, traced=some) == pytest.approx(
        (0.6 * (2 * both + few), 1.8 * (2 * both + many))
    )
    forked = Pace(imports={"slow": 3.0}, shared={"slow.time_x": "slow"})
    assert (forked.shared_module(slow), forked.launch_s(slow) < 1) == ("slow", True)
    assert forked.round_s([slow, slow]) == pytest.approx(6 + 4 * forked.launch_s(slow))
    low, high = known.estimate_s([slow], (5, 8, 12))
    assert low <= 2 * 5 * 2.0 * 1.2 <= high


def test_times_are_recorded(tmp_path):
    """One run's launches are the next one's plan; a damaged record is none."""
    path = tmp_path / "times/x.json"
    first = Pace()
    first.saw(case_of("b"), 2.0)
    first.record(path)
    assert pace.recorded(path) == {"b": 2.0}
    path.write_text("{")
    assert pace.recorded(path) == {}
