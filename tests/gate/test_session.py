"""A session of launches on its own: what is kept, what is given up, and in which order the sides run."""

import math
import re

import msgspec
import pytest

from rocattn_profiling.asv.launch import Outcome, Request
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.measure import PairedSession, order_of
from rocattn_profiling.gate.model import Design
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning.pace import Pace
from rocattn_profiling.gate.session.state import with_ratio
from rocattn_profiling.gate.session.store import LaunchStore
from rocattn_profiling.measure.records import Launch

from .conftest import case_of


def design(cases, options=None):
    """A design of these cases by the usual rule."""
    return Design(cases=cases, policy=(options or Options()).policy(), request=Request(), seed=3)


def test_a_finished_run_is_not_gone_on_with(tmp_path):
    """Only an unfinished session with the same key is resumed, and each one's launches stay until it is finished."""
    case = case_of("b")
    path = tmp_path / "launches.jsonl"
    LaunchStore(path, "key").put(case, "base", 0, Outcome(status="failed", reason="kept"))
    assert LaunchStore(path, "key").get(case, "base", 0).reason == "kept"
    assert LaunchStore(path, "key", fresh=True).resumed == 0
    LaunchStore(path, "key").put(case, "base", 0, Outcome(status="failed"))
    assert LaunchStore(path, "other").resumed == 0
    assert not path.exists()
    finished = LaunchStore(path, "key")
    assert finished.resumed == 1
    finished.finish()
    launches = path.read_bytes()
    assert launches.count(b"\n") == 2
    assert LaunchStore(path, "key").resumed == 0
    assert path.read_bytes() == launches


@pytest.mark.parametrize(("side", "expected"), [("head", "failed"), ("base", "broken")])
def test_a_benchmark_that_fails_in_a_later_round_is_given_up(tmp_path, side, expected):
    """A failure on head counts as the change's, one on base makes the benchmark unreliable; never a new benchmark."""
    case = case_of("b", "track", "bytes")

    class Scripted:
        def __init__(self, name):
            self.name, self.runs = name, 0

        def run(self, _case, _request, *, pos, **_options):
            self.runs += 1
            if self.name == side and self.runs == 2:
                return Outcome(status="timeout", reason="no answer within 1 s")
            return Outcome(status="ok", launch=Launch(start_ns=1, pos=pos, number=1, samples_ns=[5.0]))

    launchers = {name: Scripted(name) for name in ("base", "head")}
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    session = PairedSession(launchers, design([case]), store, lambda _: None)
    (entry,) = verdict.entries_of([case], session.run())
    assert (entry.status, entry.reason) == (expected, f"{side}, round 2: no answer within 1 s")


@pytest.mark.parametrize(("builds", "kept"), [(("3.11.7", "3.11.7"), True), (("3.11.7", "3.12.1"), False)])
def test_fixed_work_of_two_builds_of_python_is_not_compared(tmp_path, builds, kept):
    """The canary stays with the launches of a pair only where one interpreter ran it on both sides."""

    class Scripted:
        def __init__(self, build):
            self.build = build

        def run(self, _case, _request, *, pos, **_options):
            launch = Launch(start_ns=1, pos=pos, number=1, samples_ns=[5e6, 5.1e6], cpu_ns=[5e6, 5.1e6], nivcsw=[0, 0])
            return Outcome(status="ok", launch=launch, canary_ns=1.5e5, canary_of=self.build)

    launchers = {name: Scripted(build) for name, build in zip(("base", "head"), builds, strict=True)}
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    (pair,) = PairedSession(launchers, design([case_of("b")]), store, lambda _: None).run().pairs
    assert {x.canary > 0 for side in (pair.a, pair.b) for x in side.launches} == {kept}


class Spells:
    """Launches whose fixed work takes what a script says, and whose samples follow it."""

    def __init__(self, slow, slowness=1.4):
        self.slow, self.slowness, self.runs = slow, slowness, 0

    def run(self, case, _request, *, pos, **_options):
        """Answer as a process would."""
        factor = self.slowness if self.runs in self.slow else 1.0
        self.runs += 1
        samples = [factor * 5e6, factor * 5.1e6]
        own_timer = case.label == "own timer"
        launch = Launch(start_ns=self.runs, pos=pos, number=1, samples_ns=samples, cpu_ns=samples, nivcsw=[0, 0])
        return Outcome(status="ok", launch=launch, canary_ns=0.0 if own_timer else 1.5e5 * factor, canary_of="3.13")


def measured(folder, head, kind="time", labels=("b",), base=None):
    """A session of benchmarks of which head is scripted."""
    cases = [case_of(label, kind, name="b") for label in labels]
    launchers = {"base": base or Spells(()), "head": head}
    store = LaunchStore(folder / "launches.jsonl", "key")
    return PairedSession(launchers, design(cases, Options(quick=True)), store, lambda _: None).run()


def test_sides_of_a_round_share_hash_seed_and_layout(tmp_path):
    """A repeat, too; another round or benchmark has another."""
    seen = {"base": [], "head": []}

    class Noting(Spells):
        def __init__(self, name, slow=()):
            super().__init__(slow)
            self.name = name

        def run(self, case, request, **options):
            seen[self.name].append((case.label, options["seed"], options["layout"]))
            return super().run(case, request, **options)

    measured(tmp_path, Noting("head", slow=(7,)), labels=("a", "b"), base=Noting("base"))
    assert len(seen["head"]) == len(seen["base"]) + 1
    assert set(seen["head"]) == set(seen["base"])
    assert len({seed for _, seed, _ in seen["base"]}) == len(seen["base"]) == 10  # five rounds of two benchmarks
    for label in ("a", "b"):
        layouts = [layout for at, _, layout in seen["base"] if at == label]
        assert [each - layouts[0] for each in layouts] == list(range(5))


def test_a_launch_that_met_a_slow_spell_is_repeated(tmp_path):
    """The one that met none counts, in the place of the first; the pair is as if there had been no spell."""
    still, spelt = (measured(tmp_path / str(n), Spells(slow)) for n, slow in enumerate([(), (3, 5, 6)]))
    (quiet,), (pair,) = still.pairs, spelt.pairs
    assert [(x.round, x.samples) for x in pair.b.launches] == [(x.round, x.samples) for x in quiet.b.launches]
    assert (still.repeated, still.launches, spelt.repeated, spelt.launches) == (0, 10, 3, 13)
    assert [d.verdict for d in spelt.decision.decisions] == ["pass"]


def test_a_lasting_slow_spell_ends_the_repeats(tmp_path):
    """Three processes in one place, no more; where all were slow, the one of least fixed work is kept."""

    class Easing(Spells):
        def run(self, case, request, **options):
            self.slowness = 1.2 if self.runs == 4 else 1.4
            return super().run(case, request, **options)

    found = measured(tmp_path, Easing((3, 4, 5)))
    assert found.repeated == 2
    assert [x.canary for x in found.pairs[0].b.launches] == pytest.approx([1.5e5, 1.5e5, 1.5e5, 1.8e5, 1.5e5])


@pytest.mark.parametrize(("kind", "labels"), [("track", ("b",)), ("time", ("own timer",))])
def test_what_the_machine_does_not_slow_is_not_repeated(tmp_path, kind, labels):
    """Values, and timers of a benchmark's own (a GPU's), have nothing of the fixed work."""
    assert measured(tmp_path, Spells((3, 4, 5)), kind, labels).repeated == 0


def test_benchmarks_with_own_timers_have_no_canary(tmp_path):
    """Only the launch of the one that has it is repeated."""
    seen = []

    class Mixed(Spells):
        def run(self, case, request, **options):
            seen.append(case.label)
            slow = seen.count("b") == 3 and case.label == "b"
            outcome = super().run(case, request, **options)
            return msgspec.structs.replace(outcome, canary_ns=outcome.canary_ns * (1.5 if slow else 1.0))

    found = measured(tmp_path, Mixed(()), labels=("a", "own timer", "b", "c"))
    assert (found.repeated, len(found.pairs)) == (1, 4)
    assert [seen.count(label) for label in ("a", "own timer", "b", "c")] == [5, 5, 6, 5]


def test_code_that_slows_its_canary_is_not_repeated(tmp_path):
    """One benchmark of three has slower fixed work in all of its launches, on both sides: that is no spell."""

    class Wide(Spells):
        def run(self, case, request, **options):
            outcome = super().run(case, request, **options)
            return msgspec.structs.replace(outcome, canary_ns=(1.3 if case.label == "wide" else 1.0) * 1.5e5)

    assert measured(tmp_path, Wide(()), labels=("a", "wide", "c"), base=Wide(())).repeated == 0


def test_a_slower_change_is_no_slow_spell(tmp_path):
    """What a launch measured does not decide whether it counts: only the fixed work does."""

    class Slower(Spells):
        def run(self, case, request, **options):
            outcome = super().run(case, request, **options)
            slow = [2 * x for x in outcome.launch.samples_ns]
            launch = msgspec.structs.replace(outcome.launch, samples_ns=slow, cpu_ns=slow)
            return msgspec.structs.replace(outcome, launch=launch)

    found = measured(tmp_path, Slower(()))
    assert (found.repeated, [d.verdict for d in found.decision.decisions]) == (0, ["regression"])


def test_a_run_that_was_stopped_among_repeats_goes_on_with_them(tmp_path):
    """Cut off after any line, it ends with the same launches kept, and repeats none that is there."""
    whole = measured(tmp_path, Spells((3, 5, 6)))
    lines = (tmp_path / "launches-key.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + whole.launches
    for kept in range(8, len(lines)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / "launches-key.jsonl").write_bytes(b"".join(lines[:kept]))
        of_head = sum(b'"side":"head"' in line for line in lines[:kept])
        rest = Spells((3, 5, 6))
        rest.runs = of_head
        again = measured(folder, rest)
        assert (again.repeated, again.launches) == (whole.repeated, whole.launches)
        samples = [[x.samples for x in found.pairs[0].b.launches] for found in (whole, again)]
        assert samples[0] == samples[1]


def test_a_damaged_launch_is_measured_again(tmp_path):
    """A flipped digit is still JSON, and would be a measurement that nobody made; older versions' lines had no sum."""
    whole = measured(tmp_path, Spells((3, 5, 6)))
    path = tmp_path / "launches-key.jsonl"
    lines = path.read_bytes().splitlines()
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    assert store.resumed == whole.launches
    at = lines[3].index(b'"samples_ns":[') + len(b'"samples_ns":[')
    lines[3] = lines[3][:at] + b"%d" % (9 - int(lines[3][at : at + 1])) + lines[3][at + 1 :]
    lines[4] = re.sub(rb',"checksum":\d+', b"", lines[4])
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert LaunchStore(tmp_path / "launches.jsonl", "key").resumed == whole.launches - 1


def test_orders_are_balanced_and_come_from_the_seed():
    """In each pair of rounds both sides run first once; the seed alone decides which."""
    for label in ("a", "b", "c"):
        for first in range(0, 20, 2):
            assert order_of(7, label, first) == order_of(7, label, first + 1)[::-1]
    orders = [tuple(order_of(seed, "a", r) for r in range(0, 20, 2)) for seed in range(5)]
    assert len(set(orders)) == 5
    firsts = [order_of(3, str(i), 0)[0] for i in range(400)]
    assert 160 < firsts.count("base") < 240


class Scattering(Spells):
    """Launches that scatter so much that they decide nothing."""

    def run(self, case, request, **options):
        """Answer as a process would."""
        self.slow, self.slowness = range(1000), (1.0, 1.4, 1.1, 1.3)[self.runs % 4]
        outcome = super().run(case, request, **options)
        return msgspec.structs.replace(outcome, canary_ns=1.5e5)

    def end_server(self):
        """Nothing was forked."""


def traced_session(folder, shown, import_s=0.0, launchers=None, fresh=True):
    """Measure scattering benchmarks, of which a trace shows what it is told; return the traced ones, steps, result."""
    cases = [case_of(label, name="m.b") for label in shown]
    traced, steps = [], []

    def runs_change(case):
        traced.append(case.label)
        return shown[case.label]

    asked = Design(
        cases=cases, policy=Options(quick=True).policy(), request=Request(), seed=3, pace=Pace({}, {"m": import_s}),
        runs_change=runs_change,
    )  # fmt: skip
    store = LaunchStore(folder / "launches.jsonl", "key", fresh=fresh)
    sides = launchers or {"base": Scattering(()), "head": Scattering(())}
    return traced, steps, PairedSession(sides, asked, store, steps.append).run()


@pytest.mark.parametrize("ran", [False, True, None])
@pytest.mark.parametrize("import_s", [0.0, 30.0], ids=["imported fast", "imported slowly"])
def test_what_runs_nothing_that_differs_needs_one_round(tmp_path, ran, import_s):
    """Launches that scatter leave it undecided; a traced call settles it, and only where it says that nothing ran."""
    traced, _, session = traced_session(tmp_path, {"b": ran}, import_s)
    (decision,) = session.decision.decisions
    rounds = {launch.round for launch in session.pairs[0].a.launches}
    assert traced == ["b"]
    if ran is False:
        assert (decision.verdict, decision.untouched, decision.undecided, len(rounds)) == ("pass", True, None, 1)
    else:
        assert (decision.verdict, decision.untouched) == ("inconclusive", False)
        assert len(rounds) == Options(quick=True).policy().looks[-1]


def test_what_a_trace_settles_is_no_part_of_the_family(tmp_path):
    """A change among three that a trace settled needs what a single benchmark needs, and all are in the result."""

    class Slower(Scattering):
        def run(self, case, request, **options):
            outcome = super().run(case, request, **options)
            if case.label != "changed":
                return outcome
            launch = msgspec.structs.replace(outcome.launch, samples_ns=[8e6, 8.1e6], cpu_ns=[8e6, 8.1e6])
            return msgspec.structs.replace(outcome, launch=launch)

    class Steady(Slower):
        def run(self, case, request, **options):
            return Spells.run(self, case, request, **options)

    shown = {"x": False, "changed": True, "y": False, "z": False}
    sides = {"base": Steady(()), "head": Slower(())}
    traced, steps, session = traced_session(tmp_path, shown, launchers=sides)
    assert sorted(traced) == sorted(shown)
    assert {each.id: (each.verdict, each.untouched) for each in session.decision.decisions} == {
        "x": ("pass", True), "changed": ("regression", False), "y": ("pass", True), "z": ("pass", True),
    }  # fmt: skip
    assert [pair.rounds for pair in session.pairs] == [1, 5, 1, 1]
    assert set(session.decision.levels) == set(shown)
    assert session.decision.shift == pytest.approx(1.6, rel=0.02)  # of what was compared alone
    tracing = [step for step in steps if step.what.startswith("tracing")]
    assert [(step.done, step.total) for step in tracing] == [(n, 4) for n in range(4)]
    assert all(step.left_s > 0 for step in tracing)


def test_a_resumed_run_traces_nothing_twice(tmp_path):
    """Hundreds of traced calls take minutes; what was shown is stored with the launches, unless it was nothing."""
    shown = {"x": False, "y": True, "z": None}
    traced_session(tmp_path, shown)
    again, _, session = traced_session(tmp_path, shown, fresh=False)
    assert again == ["z"]
    assert [decision.untouched for decision in session.decision.decisions] == [True, False, False]


def test_what_a_trace_settles_is_not_repeated(tmp_path):
    """A launch that met a slow spell in the first round is repeated only of what goes on."""

    class Slow(Spells):
        def end_server(self):
            """Nothing was forked."""

    labels = [f"b{n}" for n in range(8)]
    for shown, repeats in ((False, 0), (True, 2)):
        sides = {"base": Slow(range(6, 8)), "head": Slow(())}
        _, _, session = traced_session(tmp_path / str(shown), dict.fromkeys(labels, shown), launchers=sides)
        assert session.repeated == repeats


def test_without_a_tracer_everything_is_measured(tmp_path):
    """One commit against itself, and a run that is to learn the noise."""
    assert [pair.rounds for pair in measured(tmp_path, Spells(()), labels=("a", "b")).pairs] == [5, 5]


@pytest.mark.parametrize(("head", "verdict"), [(43.0, "pass"), (44.0, "regression")])
def test_a_deterministic_value_needs_one_round(tmp_path, head, verdict):
    """Whether it differs or not; the others go on."""

    class Counting:
        def __init__(self, value):
            self.value = value

        def run(self, case, _request, *, pos, **_options):
            value = self.value if case.benchmark.deterministic else 7.0
            return Outcome(status="ok", launch=Launch(start_ns=1, pos=pos, number=1, samples_ns=[value]))

    cases = [case_of(name, "track", "registers", deterministic=name == "exact") for name in ("exact", "any")]
    sides = {"base": Counting(43.0), "head": Counting(head)}
    store = LaunchStore(tmp_path / "launches.jsonl", "key")
    session = PairedSession(sides, design(cases, Options(quick=True)), store, lambda _: None).run()
    assert [(each.id, each.verdict) for each in session.decision.decisions] == [("exact", verdict), ("any", "pass")]
    assert [pair.rounds for pair in session.pairs] == [1, 5]


def test_a_value_that_is_not_a_number_is_not_available():
    """As asv has it: skipped, not broken; a negative value stays a failure."""
    launches = {value: Launch(start_ns=1, pos=0, number=1, samples_ns=[value]) for value in (math.nan, -1.0)}
    outcomes = {value: with_ratio(Outcome(status="ok", launch=launch)).status for value, launch in launches.items()}
    assert list(outcomes.values()) == ["skipped", "failed"]
