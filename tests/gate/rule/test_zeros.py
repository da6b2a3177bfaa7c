"""Values of 0, of which there is no ratio: judged by the order of the launches, and said without one."""

import itertools

import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.gate.formats import card, markdown
from rocattn_profiling.gate.rule.interim import launch_noise
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import decide, decide_suite, decide_value

from ...screens import line


def pair_of(a, b, unit="misses", name="c"):
    """A pair of values, one for each launch."""
    sides = [[PairLaunch(round=r, samples=[float(value)]) for r, value in enumerate(values)] for values in (a, b)]
    return Pair(id=name, a=Side(launches=sides[0], unit=unit), b=Side(launches=sides[1], unit=unit))


def test_zero_on_both_sides_is_identical():
    """No noise, no change."""
    decision = decide(pair_of([0] * 5, [0] * 5))
    assert (decision.verdict, decision.reason) == ("pass", "identical: every sample of both sides is 0")


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0] * 5, [5] * 5, "regression"),
        ([5] * 5, [0] * 5, "improvement"),
        ([0, 1, 0, 0, 0], [7, 3, 9, 4, 5], "regression"),
        ([0, 1, 0, 3, 0], [7, 3, 9, 4, 5], "inconclusive"),  # one launch of head is not above all of base
        ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1], "inconclusive"),
        ([0] * 4, [5] * 4, "inconclusive"),  # 1 of 70 ways, and few launches are not treated leniently
    ],
)
def test_a_change_is_every_launch_beyond_every_other(a, b, verdict):
    """What grew from nothing to something must not stay open because it has no ratio."""
    decision = decide(pair_of(a, b))
    assert decision.verdict == verdict
    assert not decision.has_ratio
    assert decision.reason.endswith("a value of 0 has no ratio to compare")
    if verdict != "inconclusive":
        assert decision.p == pytest.approx(1 / 252 / 2.5)  # of the ways to choose five of ten; the last look is lenient
        assert decision.reason.startswith("from 0 to " if verdict == "regression" else "from 5 to 0: every launch")


@pytest.mark.parametrize(
    ("unit", "small", "large"), [("ns", 8, 8000), ("us", 0.2, 200), ("bytes", 9000, 9e6), ("bytes", 2**20 - 1, 2**20)]
)
def test_the_absolute_floor_holds_here_too(unit, small, large):
    """A timer that reads 8 ns saw nothing; nor do a few kilobytes count. The floor is the least change that matters."""
    assert decide(pair_of([0] * 5, [small] * 5, unit)).verdict == "inconclusive"
    assert decide(pair_of([0] * 5, [large] * 5, unit)).verdict == "regression"


def test_zeros_have_no_noise_in_logs():
    """The self-test asks for the noise of whatever was recorded."""
    assert launch_noise(pair_of([0, 7, 0, 9, 0], [7, 3, 9, 4, 5]), Policy()) == 0


def test_one_launch_at_zero_makes_no_small_change_count():
    """Where the middles of both sides have a ratio, the change must be as large as any other must."""
    a = [0, 100, 100, 100, 100]
    assert decide(pair_of(a, [101] * 5)).verdict == "inconclusive"
    assert decide(pair_of(a, [103] * 5)).verdict == "regression"


def test_a_large_suite_asks_for_more_rounds():
    """One of 252 is not enough among twenty benchmarks; ten launches a side are."""
    others = [pair_of([1] * 10, [1] * 10, name=str(i)) for i in range(19)]
    changed = pair_of([0] * 10, [5] * 10)
    early = decide_suite([*others, changed.first(5)], Policy())
    assert (early.decisions[-1].verdict, early.undecided) == ("inconclusive", ["c"])
    assert decide_suite([*others, changed], Policy()).decisions[-1].verdict == "regression"


def test_slowdowns_that_are_certain_ask_less_of_the_rest():
    """Holm's step-down: each of twenty is judged among the twenty, not among the twelve as well."""
    certain = [pair_of([0] * 10, [5] * 10, name=f"certain{i}") for i in range(12)]
    others = [pair_of([0] * 5, [5] * 5, name=f"other{i}") for i in range(20)]
    found = decide_suite([*certain, *others], Policy(looks=(10,)))
    assert {decision.verdict for decision in found.decisions} == {"regression"}


@pytest.mark.parametrize(("base", "head", "verdict", "others"), [(0, 5, "regression", 11), (5, 0, "improvement", 5)])
def test_what_an_early_look_found_counts_at_a_later_one(base, head, verdict, others):
    """Five launches that were just not enough are so once another is certain, whatever the next five say."""
    policy = Policy(looks=(5, 10, 15))
    same = [pair_of([1] * 10, [1] * 10, name=str(i)) for i in range(others)]
    early = pair_of([base] * 10, [head] * 5 + [base] * 5)
    assert decide_suite([early, *same, pair_of([1] * 10, [1] * 10)], policy).undecided == ["c"]
    certain = pair_of([base] * 10, [head] * 10)
    assert [each.verdict for each in decide_suite([early, certain, *same], policy).decisions[:2]] == [verdict] * 2


def test_slowdowns_vouch_for_each_other_in_the_list():
    """Benjamini and Hochberg: what chance does to one of a hundred benchmarks is worth showing if it befalls two."""
    same = [pair_of([1] * 5, [1] * 5, name=str(i)) for i in range(98)]
    one, two = (pair_of([0] * 5, [5] * 5, name=name) for name in ("one", "two"))
    assert decide_suite([one, *same, pair_of([1] * 5, [1] * 5)], Policy(looks=(5,))).listed == []
    assert decide_suite([one, *same, two], Policy(looks=(5,))).listed == ["one", "two"]


def test_equal_counts_are_rarely_called_changed():
    """Of all ways to deal ten different launches, one in 252 is called up and one down, and no other."""
    values = np.arange(10)
    verdicts = []
    for chosen in itertools.combinations(range(10), 5):
        rest = [v for v in values if v not in chosen]
        verdicts.append(decide(pair_of(list(chosen), rest)).verdict)
    assert (verdicts.count("regression"), verdicts.count("improvement"), len(verdicts)) == (1, 1, 252)


def test_the_verdict_says_it_without_a_ratio(entry, result_of):
    """No "by 0 %", and the worst comes first: what grew from nothing has no bound."""
    grown = entry("a", "regression", unit="things", base=0.0, head=5.0, decision=decide(pair_of([0] * 5, [5] * 5)))
    result = result_of([entry("b", "regression", 1.5), grown])
    assert result.sentence == "2 of 2 benchmarks are slower (cause not found)"
    assert line(card.text(result), "unknown") == snapshot("a  0 things -> 5 things  ratio unknown")
    rows = [line for line in markdown.comment(result).splitlines() if line.startswith("| <code>")]
    assert rows[0].startswith("| <code>a</code> | **regression** | 0 things | 5 things | unknown |  |")


@pytest.mark.parametrize(
    ("base", "head", "unit", "verdict", "ratio"),
    [
        (43, 43, "registers", "pass", 1.0),
        (0, 0, "registers", "pass", 1.0),
        (100, 103, "registers", "regression", 1.03),
        (100, 101, "registers", "pass", 1.01),
        (100, 90, "registers", "improvement", 0.9),
        (5000, 4901, "registers", "improvement", 0.9802),  # more than 2 % of the smaller value, less of the larger
        (0, 5, "registers", "regression", None),
        (5, 0, "registers", "improvement", None),
        (2**20, 2**20 + 9000, "bytes", "pass", (2**20 + 9000) / 2**20),
        (2**20, 2**21, "bytes", "regression", 2.0),  # just the floor
        (2**20, 2**22, "bytes", "regression", 4.0),
    ],
)
def test_a_deterministic_value_is_decided_by_one_launch(base, head, unit, verdict, ratio):
    """It has no noise: the sizes of the rule decide, and the ratio is exact."""
    decision = decide_value(pair_of([base], [head], unit), Policy())
    assert (decision.verdict, decision.rounds_used, decision.untouched) == (verdict, 1, False)
    assert decision.p == float(verdict == "pass")
    assert decision.has_ratio == (ratio is not None)
    if ratio is not None:
        assert decision.ratio == decision.ratio_low == decision.ratio_high == pytest.approx(ratio)
