"""Thresholds by benchmark: which one counts, what it changes in the rule, what is said about a malformed file."""

import numpy as np
import pytest

from rocattn_profiling.gate import thresholds
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide_suite
from rocattn_profiling.gate.thresholds import FILE, ThresholdError

POLICY = Policy(looks=(5, 10, 15, 20))


def load(tree, text, **options):
    """Read a file with this text."""
    path = tree / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return thresholds.load(tree, **options)


def test_without_a_file_the_rule_stays(tmp_path):
    """Nothing matches, nothing is told; an existing environment has no tree."""
    for found in (thresholds.load(tmp_path), thresholds.load(None)):
        assert found.policy_for("x", "time", POLICY) is POLICY
        assert found.notes([]) == []


FIRST = '[[threshold]]\nbenchmark = "bench_a.*"\nrounds = 12\n[[threshold]]\nbenchmark = "*"\n'
ALL = '[[threshold]]\nbenchmark = "*"\n'


@pytest.mark.parametrize(
    ("text", "label", "metric", "unit", "changed"),
    [
        # In the file's order; what a table leaves out stays as the run has it, not as a later table has it.
        (f'{FIRST}tolerance = 0.2\nfloor = "3 us"', "bench_a.C.time_x(1)", "time", "", {"looks": (5, 10, 12)}),
        (f'{FIRST}tolerance = 0.2\nfloor = "3 us"', "b.time_x(1)", "time", "", {"tolerance": 0.2, "floor": 3000.0}),
        (f'{ALL}metric = "peakmem"\nfloor = "2 MiB"', "x", "time", "", {}),
        (f'{ALL}metric = "peakmem"\nfloor = "2 MiB"', "x", "peakmem", "", {"floor": 2.0 * 2**20}),
        # A benchmark may stop earlier; it cannot make the whole suite longer.
        *((f"{ALL}rounds = {rounds}", "x", "time", "", {"looks": looks}) for rounds, looks in (
            (5, (5,)), (7, (5, 7)), (20, (5, 10, 15, 20)), (200, (5, 10, 15, 20)), (2, (2,)))),
        # Times are in ns, memory in bytes, tracked values in their own unit.
        (f'{ALL}floor = "5 us"', "x", "time", "", {"floor": 5000.0}),
        (f'{ALL}floor = "5 us"', "x", "track", "seconds", {"floor": 5000.0}),
        (f'{ALL}floor = "3.5 ulp"', "x", "track", "ulp", {"floor": 3.5}),
    ],
)  # fmt: skip
def test_the_first_match_counts(tmp_path, text, label, metric, unit, changed):
    """It changes what it says of the run's policy, and nothing else."""
    expected = {"looks": POLICY.looks, "tolerance": 0.05, "floor": 0.0, **changed}
    policy = load(tmp_path, text).policy_for(label, metric, POLICY, unit)
    assert {name: getattr(policy, name) for name in expected} == expected
    assert (policy is POLICY) == (not changed)


@pytest.mark.parametrize(
    ("pattern", "label", "matches"),
    [
        ("b.C.time_x([1, 2], 'a*b')", "b.C.time_x([1, 2], 'a*b')", True),  # as a pattern, [1, 2] would be one character
        ("b.C.time_x(*)", "b.C.time_x([1, 2], 'a')", True),
        ("b.C.time_x", "b.C.time_x(1)", False),
        ("b.c.*", "b.C.time_x(1)", False),
        ("b.C.time_?", "b.C.time_x", True),
        ("b.C.time_x([1, 2], *)", "b.C.time_x([1, 2], 'a')", True),
        ("b.C.time_x([1]*", "b.C.time_x(1, 'a')", False),
        ("b.[C].*", "b.C.time_x", False),
    ],
)
def test_a_label_matches_itself_and_patterns_match_whole_labels(tmp_path, pattern, label, matches):
    """Brackets in a label are the label's; case counts; a prefix needs its star."""
    found = load(tmp_path, f'[[threshold]]\nbenchmark = "{pattern}"\ngate = false\n')
    assert (found.find(label, "time") is not None) is matches


def test_what_is_not_judged_is_shown_after_the_first_look(tmp_path, entry):
    """gate = false: the verdict becomes "ungated" and says where that stands; what failed stays failed."""
    found = load(tmp_path, '[[threshold]]\nbenchmark = "noisy.*"\ngate = false\n')
    assert found.policy_for("noisy.x", "time", POLICY).looks == (5,)
    made = [entry("noisy.x", "regression", 1.4), entry("noisy.y", "failed"), entry("other", "regression", 1.4)]
    after = found.apply(made)
    assert [e.status for e in after] == ["ungated", "failed", "regression"]
    assert f"{FILE}:1 has gate = false" in after[0].reason


def test_the_rule_that_was_used_stands_in_the_entry(tmp_path, entry):
    """A reader of the verdict sees what was asked of this benchmark, and where that is written."""
    text = '[[threshold]]\nbenchmark = "a*"\ntolerance = 0.03\nfloor = "5 us"\nrounds = 9\n'
    found = load(tmp_path, text + '[[threshold]]\nbenchmark = "b"\ngate = true\n')
    rules = [
        e.rule for e in found.apply([entry("a", "pass"), entry("a2", "failed"), entry("b", "pass"), entry("c", "pass")])
    ]
    assert rules == [
        f"tolerance 3 % (a change: 1.2 %), floor 5 us, 9 rounds at most ({FILE}:1)", "",
        f"the same rule as all others ({FILE}:6)", ""
    ]  # fmt: skip


def test_an_exact_metric_has_no_rule_but_that_it_is_judged(tmp_path, entry):
    """Nothing of it is a matter of size: a pattern for all benchmarks must not be shown as if it had been used."""
    found = load(tmp_path, '[[threshold]]\nbenchmark = "*"\ntolerance = 0.3\n')
    exact, timed = entry("flash", "regression", metric="audit", arch="gfx942"), entry("b", "pass")
    assert [one.rule for one in found.apply([exact, timed])] == ["", f"tolerance 30 % (a change: 12 %) ({FILE}:1)"]
    found = load(tmp_path, '[[threshold]]\nbenchmark = "*"\nmetric = "audit"\ngate = false\n')
    assert [one.status for one in found.apply([exact, timed])] == ["ungated", "pass"]


def test_units_of_a_floor_are_the_benchmarks(tmp_path):
    """Any other would be a limit of another size; a larger floor of the run's stays."""
    found = load(tmp_path, '[[threshold]]\nbenchmark = "*"\nfloor = "5 us"\n')
    assert found.policy_for("x", "time", Policy(floor=9000.0)).floor == 9000.0
    for metric, unit in (("peakmem", ""), ("mem", ""), ("track", "ulp")):
        with pytest.raises(ThresholdError, match=f"{FILE}:1: its floor is in us, but x is in"):
            found.policy_for("x", metric, POLICY, unit)


def test_a_floor_lets_small_changes_pass(tmp_path, make_pair):
    """A real change of 30 % of 1 ms is a regression; below a floor of 2 ms it is none."""
    pair = make_pair(np.random.default_rng(7), 20, 0.3, name="x")
    assert decide_suite([pair], POLICY).decisions[0].verdict == "regression"
    floor = load(tmp_path, '[[threshold]]\nbenchmark = "x"\nfloor = "2 ms"\n').policy_for("x", "time", POLICY)
    assert decide_suite([pair], floor).decisions[0].verdict == "pass"


def test_patterns_that_match_nothing_are_named(tmp_path, entry):
    """Also those that an earlier one always wins over; not in a run that left out benchmarks."""
    found = load(tmp_path, "".join(f'[[threshold]]\nbenchmark = "{p}"\nrounds = 9\n' for p in ("a.*", "a.x", "gone")))
    entries = [entry("a.x", "pass"), entry("b", "pass")]
    assert found.notes(entries) == [
        f"{FILE}:4: 'a.x' applies to no benchmark", f"{FILE}:7: 'gone' applies to no benchmark"
    ]  # fmt: skip
    assert found.notes(entries, narrowed=True) == []
    exact = load(tmp_path, '[[threshold]]\nbenchmark = "flash *"\nmetric = "audit"\ngate = false\n')
    assert exact.notes(entries) == []


def test_a_change_of_the_thresholds_is_named(tmp_path):
    """A change may move its own limits, and the output says so; a moved line is no change."""
    text = '[[threshold]]\nbenchmark = "a"\nrounds = 9\n'
    base = tmp_path / "base"
    load(base, text)
    head = load(tmp_path / "head", "# a comment\n" + text, base=base)
    assert head.notes([], narrowed=True) == []
    for other in (text.replace("9", "8"), text + text.replace('"a"', '"b"')):
        moved = load(tmp_path / "head", other, base=base)
        assert moved.notes([], narrowed=True) == [f"this change edits {FILE}: the thresholds in it are head's"]
    (base / FILE).write_text("nonsense")
    assert thresholds.load(tmp_path / "head", base=base).changed


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("", "'benchmark' is missing|benchmark is missing"),
        ('benchmark = "a"', "it sets nothing"),
        ('benchmark = "a"\nmetric = "time"', "it sets nothing"),
        ('benchmark = ""\nrounds = 3', "benchmark must be non-empty text"),
        ('benchmark = "a"\nround = 3', "'round' is unknown; known are"),
        ('benchmark = "a"\nrounds = 3\nmetric = "tme"', "metric 'tme' is unknown; known are time, mem, peakmem"),
        ('benchmark = "a"\nrounds = 3\nmetric = ""', "metric must be non-empty text"),
        ('benchmark = "a"\ntolerance = 0.1\nmetric = "audit"', "tolerance is for what is measured: audit is exact"),
        ('benchmark = "a"\nfloor = "1 MiB"\nmetric = "workspace"', "floor is for what is measured: workspace is exact"),
        ('benchmark = "a"\nrounds = 3\nmetric = "plan"\ngate = true', "rounds is for what is measured: plan is exact"),
        ('benchmark = "a"\ntolerance = 5', "tolerance must be a fraction from 0.005 to 1"),
        ('benchmark = "a"\ntolerance = 0', "tolerance must be"),
        ('benchmark = "a"\ntolerance = nan', "tolerance must be"),
        ('benchmark = "a"\ntolerance = true', "tolerance must be"),
        (f'benchmark = "a"\ntolerance = 1{"0" * 400}', "tolerance must be"),
        ('benchmark = "a"\nrounds = 0', "rounds must be a whole number from 1 to 200"),
        ('benchmark = "a"\nrounds = 201', "rounds must be"),
        ('benchmark = "a"\nrounds = 3.5', "rounds must be"),
        ('benchmark = "a"\nrounds = true', "rounds must be"),
        ('benchmark = "a"\ngate = 0', "gate must be true or false"),
        ('benchmark = "a"\nfloor = 5', 'floor must be a number with its unit in quotes, as in floor = "5 us"'),
        ('benchmark = "a"\nfloor = "5"', "floor must be"),
        ('benchmark = "a"\nfloor = "-5 us"', "floor must be"),
        ('benchmark = "a"\nfloor = "0 us"', "floor must be"),
        ('benchmark = "a"\nfloor = "1.2.3 us"', "floor must be"),
    ],
)
def test_a_malformed_file_is_one_line_with_its_place(tmp_path, row, said):
    """A limit with a typo is no limit: it must not be ignored."""
    with pytest.raises(ThresholdError, match=said) as error:
        load(tmp_path, f"\n[[threshold]]\n{row}\n")
    assert str(error.value).startswith(f"{FILE}:2: ")
    assert "\n" not in str(error.value)
