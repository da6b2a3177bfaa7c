"""Why a pair is undecided: the first guard across a limit, in every form of the verdict, and no word of it decides."""

import json
import math
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import card, junit, markdown
from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule import covariates, interim, reasons, suite
from rocattn_profiling.gate.rule.constants import TOLERANCE
from rocattn_profiling.gate.rule.interim import ChangeSummary, Interim
from rocattn_profiling.gate.rule.pairs import Decision, Pair
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.reasons import GUARDS, Limits, launches_needed, undecided
from rocattn_profiling.gate.rule.suite import decide, decide_suite

from ...screens import line
from ..conftest import fold

LIMITS = Limits(change=0.005, alone=0.025, leniency=1.0, equivalence=0.0125)


def analysis(shift=0.03, error=0.01, change=((None, 0.5),), same=((None, 0.5),), **facts):
    """A look whose probabilities came about by these steps."""
    estimate = ChangeSummary(shift, shift - 1.96 * error, shift + 1.96 * error, 0.02)
    return Interim(
        change[-1][1], 1.0, same[-1][1], 1e6, estimate, "CPU time", change_steps=change, pass_steps=same, **facts
    )


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_the_guard_that_crosses_the_limit_is_the_reason(guard):
    """It is named, not one before it that left the probability below, nor one after it."""
    steps = ((None, 0.001), ("rounds" if guard != "rounds" else "two_modes", 0.02), (guard, 0.2), ("clock", 0.9))
    found = undecided(analysis(change=steps), Policy(), 5, LIMITS)
    assert found == Reason(guard, *GUARDS[guard])
    assert found.remedy


DRIFT = Reason("drift", "it drifted", "take turns")


@pytest.mark.parametrize(
    ("facts", "code", "line"),
    [
        # The change is nothing, and would pass without the guard.
        *(({"shift": 0.001, "same": ((None, 0.001), ("drift", 0.001), (guard, 0.3))}, guard, ": ".join(GUARDS[guard]))
          for guard in ("always_interrupted", "slow_spells")),
        # That it is small is no reason by itself: such a change may pass, so what a pass lacks is told.
        ({"shift": 0.015, "change": ((None, 0.001), ("small", 1.0))}, "few_rounds", snapshot("""\
a pass needs the probability of 5 % or more to fall to 1.25 % (now 50 %): about 6 rounds would decide, if the noise
    stays the same\
""")),
        # Below 2.5 %, and above what Holm's step-down leaves of it.
        ({"change": ((None, 0.01), ("clock", 0.012))}, "many_benchmarks", snapshot(
            "p = 1.2 % would be enough alone; among these benchmarks it must be 0.5 %: measure it alone"
        )),
        # More rounds would mend neither sides in sequence nor a moving clock: they come first.
        ({"note": DRIFT}, "drift", "it drifted: take turns"),
        ({"clock": True}, "clock", ": ".join(GUARDS["clock"])),
        # A projection above the most rounds that the gate takes; or an estimate between the sizes of both verdicts.
        ({"shift": 0.0, "error": 0.025}, "few_rounds", snapshot("""\
a pass needs the probability of 5 % or more to fall to 1.25 % (now 50 %): about 7 rounds would decide, if the noise
    stays the same\
""")),
        ({"shift": 0.0, "error": 0.5}, "noise", snapshot("""\
a pass needs the probability of 5 % or more to fall to 1.25 % (now 50 %): more than 200 rounds would be needed:
    make the benchmark less noisy\
""")),
    ],
)  # fmt: skip
def test_an_undecided_pair_says_why(facts, code, line):
    """What kept it from a verdict, and what would decide it."""
    found = undecided(analysis(**facts), Policy(), 5, LIMITS)
    assert (found.code, fold(f"{found.text}: {found.remedy}")) == (code, line)


@pytest.mark.parametrize("same", [0.001, 0.0125, 0.05])
def test_the_projection_is_that_of_the_normal_distribution(same):
    """After that many launches the bound of a pass lies inside of the tolerance, and not after one fewer."""
    policy, limits = Policy(), LIMITS._replace(equivalence=same)
    rounds, error, shift = 5, 0.03, 0.01
    needed = launches_needed(analysis(shift=shift, error=error), policy, rounds, limits)
    z = reasons.NormalDist().inv_cdf(1 - same)

    def reach(count):
        return shift + z * error * math.sqrt(rounds / count)

    assert reach(needed) <= policy.log_tolerance < reach(needed - 1)


def pairs(make_pair):
    """Pairs of many kinds, with every verdict among them."""
    rng = np.random.default_rng(7)
    kinds = ["normal", "skewed", "bimodal", "contaminated", "drift", "quantised"]
    drawn = [
        make_pair(rng, rounds, slowdown=slowdown, name=f"{kind}{rounds}{slowdown}{cpu}", kind=kind, cpu=cpu)
        for kind in kinds for rounds in (2, 5, 12) for slowdown in (-0.1, 0.0, 0.03, 0.2) for cpu in (False, True)
    ]  # fmt: skip
    zero = msgspec.structs.replace(drawn[0].a.launches[0], samples=[0.0])
    return [*drawn, Pair(id="zero", a=msgspec.structs.replace(drawn[0].a, launches=[zero] * 5), b=drawn[5].b)]


def test_no_verdict_hangs_on_a_word(make_pair, monkeypatch):
    """Every reason replaced by "x": the same verdicts, numbers and codes, alone and as a suite."""
    drawn = pairs(make_pair)
    policy = Policy(looks=(5, 12))

    def outcome():
        found = [*(decide(pair) for pair in drawn), *decide_suite(drawn, policy).decisions]
        numbers = [(d.verdict, d.ratio, d.ratio_low, d.ratio_high, d.p, d.rounds_used) for d in found]
        return numbers, [d.undecided.code if d.undecided else "" for d in found], {d.reason for d in found}

    before = outcome()
    assert {numbers[0] for numbers in before[0]} == {"regression", "improvement", "pass", "inconclusive"}
    assert len(set(before[1])) > 5
    for module in (suite, interim, covariates, reasons):
        monkeypatch.setattr(module, "Reason", lambda code, *_: Reason(code, "x"))
    monkeypatch.setattr(reasons, "_verdict_words", lambda *_: "x")
    monkeypatch.setattr(reasons, "GUARDS", dict.fromkeys(GUARDS, ("x", "x")))
    after = outcome()
    assert after[:2] == before[:2]
    assert all("needs" not in text for text in after[2])


def test_an_inconclusive_pair_always_has_a_reason(make_pair):
    """With a text, and a code in one word; what is decided has none."""
    for found in map(decide, pairs(make_pair)):
        if found.verdict != "inconclusive":
            assert found.undecided is None
            continue
        assert found.undecided.code.replace("_", "").isalpha()
        assert found.undecided.text in found.reason
        assert found.undecided.remedy in found.reason


def test_every_form_of_a_verdict_says_why(entry, result_of):
    """Terminal, Markdown, JUnit and page have the words; the JSON the code as well, and it reads back."""
    reason = Reason("few_rounds", "a pass needs more", "about 9 rounds would decide")
    decision = Decision(
        id="a", verdict="inconclusive", ratio=0.99, ratio_low=0.958, ratio_high=1.017, rounds_used=5,
        reason=f"undecided: -1.0 %: {reason.line}", undecided=reason,
    )  # fmt: skip
    result = result_of([entry("a", "inconclusive", decision=decision)])
    (case,) = [case for case in ET.fromstring(junit.to_xml(result)).iter("testcase") if case.get("name") == "a"]  # noqa: S314 - our own
    (part,) = gate_view.view(result).parts
    shown = [card.text(result), markdown.comment(result), case.find("skipped").get("message"), part.why]
    assert [line(each, "9 rounds") for each in shown] == snapshot(
        [
            "1 undecided: a pass needs more; about 9 rounds would decide",
            "- **1 undecided:** a pass needs more; about 9 rounds would decide (<code>a</code>)",
            "inconclusive: undecided: -1.0 %: a pass needs more; about 9 rounds would decide",
            "a pass needs more; about 9 rounds would decide",
        ]
    )
    stored = json.loads(verdict.to_json(result))["entries"][0]["decision"]["undecided"]
    assert stored == {"code": "few_rounds", "text": reason.text, "remedy": reason.remedy}


def test_help_and_reports_state_the_sizes_of_the_rule(capsys, result_of):
    """One default for both commands; help and Markdown name the tolerance and the size a change is called from."""
    assert Policy().tolerance == Options().policy().tolerance == TOLERANCE
    assert (round(100 * TOLERANCE, 6), round(100 * math.expm1(Policy().log_called), 6)) == (5.0, 2.0)
    for verb in ("run", "judge", "selftest"):
        with pytest.raises(SystemExit):
            main(["gate", verb, "--help"])
        assert "(default 5: called from 2)" in " ".join(capsys.readouterr().out.split())
    text = markdown.comment(result_of([], policy=Policy(tolerance=0.1)))
    assert "within 10 %" in text
    assert line(text, "significantly") == snapshot(
        "- a pass shows the change to be within 10 %; a change is called when its estimate is 4 % or more and "
        "significantly beyond 2 %; at most 5 % chance of a false alarm over the whole suite"
    )
