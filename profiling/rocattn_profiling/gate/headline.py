"""The headline: the overall verdict of a session, with one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.base.markup import plain
from rocattn_profiling.gate.groups import causes_known
from rocattn_profiling.gate.model import EXACT, JUDGED, ORDER, Entry, Overall, Status, badness, coverage_of

if TYPE_CHECKING:
    from rocattn_profiling.base.reasons import NotCompared

_EXACT_NOUN = "result"
_NAME, _GAPS = 200, 400  # maximum characters: a label, and the list of what was not compared
# Metrics, the word for "worse", and the noun: a ratio of counts is not a slowdown and is not reported as one.
_WORSE = (
    (frozenset({"time"}), "slower", "benchmark"),
    (frozenset({"mem", "peakmem", "track"}), "larger", "benchmark"),
    (EXACT, "worse", "exact metric"),
)


def conclude(
    entries: Sequence[Entry], invalid: str, problems: Sequence[str] = (), *, tolerance: float, limit_s: float = 0.0,
    more: Sequence[NotCompared] = (),
) -> tuple[Overall, str]:  # fmt: skip
    """Return the overall verdict and its sentence. A gate that measured nothing never passes.

    Args:
        entries: Every benchmark and exact metric, waivers applied.
        invalid: Why the session as a whole does not count; empty if it does.
        problems: Why the gate fails besides its verdicts.
        tolerance: The run's tolerance, as a fraction.
        limit_s: The run's time limit in seconds; 0 for no limit.
        more: What was left out without an entry.
    """
    overall, sentence = _concluded(entries, invalid, problems, tolerance, limit_s)
    # Every sentence already gives the number of lost and unreached entries.
    aside = coverage_of([entry for entry in entries if not (entry.lost or entry.status == "unreached")], more)
    if overall in {"pass", "inconclusive"} and any(each.needed for each in more):
        overall = "not measured"
    gaps = msgspec.structs.replace(aside, undecided=0).gaps()
    return overall, "; ".join([sentence, *([plain(gaps, _GAPS)] if gaps else [])])


def _concluded(
    entries: Sequence[Entry], invalid: str, problems: Sequence[str], tolerance: float, limit_s: float
) -> tuple[Overall, str]:
    """Conclude from what was compared; arguments: see `conclude`."""
    late = f"not reached in {_duration(limit_s)}"
    count = {status: sum(entry.status == status for entry in entries) for status in ORDER}
    lost = [entry for entry in entries if entry.lost]
    # A proven regression is the stronger statement; its sentence also counts what could not be measured.
    if worse := [entry for entry in entries if entry.status == "regression"]:
        return "regression", _worse(worse, entries, lost, problems, late)
    if unmeasured := _unmeasured(entries, lost, count, tolerance, late):
        return "not measured", unmeasured
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        return "problem", f"No regression, but the waivers do not hold: {problems[0].rstrip('.')}{more}"
    if invalid:
        return "inconclusive", f"The session does not count: {invalid}"
    return _better(entries, count, tolerance)


def _unmeasured(
    entries: Sequence[Entry], lost: Sequence[Entry], count: dict[Status, int], tolerance: float, late: str
) -> str:
    """Return the sentence for a verdict with benchmarks missing; empty if none is."""
    if lost:
        why = f": {lost[0].reason.rstrip('.')}" if lost[0].reason else ""
        return f"{_lost(entries, lost)}: {plain(lost[0].label, _NAME)}{why}"
    if nothing := _nothing_judged(entries, count, late):
        return nothing
    if count["unreached"]:
        return f"{_better(entries, count, tolerance)[1]}; {count['unreached']} {late}"
    return ""


def _lost(entries: Sequence[Entry], lost: Sequence[Entry]) -> str:
    """Say how many of base's benchmarks were not compared."""
    number = _count(_existing(entries), "existing benchmark")
    return f"{len(lost)} of {number} {'was' if len(lost) == 1 else 'were'} not compared"


def _existing(entries: Sequence[Entry]) -> int:
    """Return the number of base's benchmarks: the denominator of every count in a sentence."""
    return sum(entry.metric not in EXACT and entry.status != "new" for entry in entries)


def _better(entries: Sequence[Entry], count: dict[Status, int], tolerance: float) -> tuple[Overall, str]:
    """Conclude when nothing is worse: pass if most are decided and no undecided one is likely slower."""
    judged, left = sum(count[status] for status in JUDGED), count["inconclusive"]
    suspects = sum(entry.suspect for entry in entries if entry.status == "inconclusive")
    parts, better = [], count["improvement"]
    if count["pass"] or not better:
        parts = [_passing(entries, count["pass"], judged, tolerance)]
    if better:
        parts += [f"{better} improved" if parts else f"{better} of {_count(judged, _noun(entries))} improved"]
    sentence = ", ".join(parts)
    sentence += f"; {left} undecided" if left else ""
    sentence += f", {'' if suspects == left else f'{suspects} of them '}likely slower" if suspects else ""
    sentence += f"; {count['waived']} waived" if count["waived"] else ""
    return ("inconclusive" if suspects or (2 * left >= judged and left) else "pass"), sentence


def _passing(entries: Sequence[Entry], passed: int, judged: int, tolerance: float) -> str:
    """Say how many pass, and what passing means for them."""
    untouched = sum(
        entry.status == "pass" and entry.decision is not None and entry.decision.untouched for entry in entries
    )
    noun = _noun(entries)
    what = "no worse" if noun == _EXACT_NOUN else "within their tolerance" if any(e.rule for e in entries) else ""
    what = what or f"within {100 * tolerance:g} %"
    every = f"all {judged} {noun}s" if judged > 1 else f"1 {noun}"
    if untouched and untouched < passed:
        who = f"{every} pass" if passed == judged else f"{passed} of {_count(judged, noun)} pass"
        return f"{who}: {passed - untouched} {what}, {untouched} run no changed code"
    if untouched:
        who = _count(judged, noun) if passed == judged else f"{passed} of {_count(judged, noun)}"
        return f"{who} run{'s' if passed == 1 else ''} no changed code"
    if passed == judged:
        return f"{every} {'are' if judged > 1 else 'is'} {what}"
    return f"{passed} of {_count(judged, noun)} {what}"


def _noun(entries: Sequence[Entry]) -> str:
    return _EXACT_NOUN if any(entry.metric in EXACT for entry in entries) else "benchmark"


def _worse(
    worse: list[Entry], entries: Sequence[Entry], lost: Sequence[Entry], problems: Sequence[str], late: str
) -> str:
    parts = []
    for metrics, how, noun in _WORSE:
        exact = metrics == EXACT
        judged = sum(entry.status in JUDGED and entry.metric in EXACT for entry in entries)
        judged = judged if exact else _existing(entries)
        if alike := [entry for entry in worse if entry.metric in metrics]:
            is_worse = f"{'is' if len(alike) == 1 else 'are'} {how}{'' if exact else _by(alike)}"
            parts.append(f"{len(alike)} of {_count(judged, noun)} {is_worse}")
    causes = causes_known(entries)
    known = _count(causes, "cause") if causes else "cause not found"
    beside = [_lost(entries, lost)] if lost else []
    unreached = sum(entry.status == "unreached" for entry in entries)
    beside += [f"{unreached} {late}"] if unreached else []
    beside += [f"{_count(len(problems), 'waiver')} did not hold"] if problems else []
    more = f"; {', '.join(beside)}" if beside else ""
    return f"{', '.join(parts)} ({known}){more}"


def _by(worse: Sequence[Entry]) -> str:
    """Say how much slower or larger the worst is; empty if it has no ratio."""
    first = max(worse, key=badness).decision
    if first is None or not first.has_ratio:
        return ""
    most = (first.ratio - 1) * 100
    return f" by {'up to ' if len(worse) > 1 else ''}{most:.{0 if most >= 10 else 1}f} %"


def _nothing_judged(entries: Sequence[Entry], count: dict[Status, int], late: str) -> str:
    """Return the sentence for a verdict that judged nothing; empty if something was judged."""
    # Unchanged machine code does not stand in for benchmarks that did not run.
    gone = [entry for entry in entries if entry.status == "waived" and entry.decision is None]  # waived removals
    timed = [entry for entry in entries if entry.metric not in EXACT and entry not in gone]
    if any(entry.status in JUDGED for entry in timed or entries):
        return ""
    if count["unreached"]:
        return f"nothing was decided: {_count(count['unreached'], 'benchmark')} {late}"
    if aside := [f"{count[status]} {status}" for status in ("waived", "ungated") if count[status]]:
        return f"nothing was judged: {', '.join(aside)}, and no other benchmark ran on both sides"
    return "nothing was compared: no benchmark ran on both sides"


def _duration(seconds: float) -> str:
    if not seconds:
        return "time"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
