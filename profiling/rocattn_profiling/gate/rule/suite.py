"""Decides a session: pure functions from stored pairs to verdicts.

The unit is the process launch. Each interim p-value (`rocattn_profiling.gate.rule.interim`) is corrected for the
planned looks (alpha spending) and for the number of benchmarks (Holm). A session in which the machine changed speed
decides nothing. A pass is evidence of equivalence, not absence of evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import reasons
from rocattn_profiling.gate.rule.constants import (
    IMPROVEMENT_SHARE,
    LISTED,
    SESSION_AGREES,
    SESSION_BENCHMARKS,
    SESSION_CANARY,
    SESSION_WITHIN,
)
from rocattn_profiling.gate.rule.guards import canary_change
from rocattn_profiling.gate.rule.interim import Code, Interim, absolute_floor, by_rank, examine, has_zero, identical
from rocattn_profiling.gate.rule.launches import location
from rocattn_profiling.gate.rule.pairs import Decision, Pair
from rocattn_profiling.gate.rule.policy import Policy


class SuiteDecision(NamedTuple):
    """Decisions in the order of the pairs, and results for the suite as a whole.

    Attributes:
        decisions: One per pair.
        levels: Id -> the quoted values of base and head, in the pair's unit and the quantity that decided.
        undecided: Ids that more rounds could still decide.
        shift: Geometric mean of the ratios of all pairs; 1 without any.
        canary: Median ratio of the canary.
        invalid: Why no change in this session counts; empty if it is valid.
        listed: Ids of slowdowns worth showing, proven or not: at most one in ten is expected to be false (Benjamini
            and Hochberg 1995).
    """

    decisions: list[Decision]
    levels: dict[str, tuple[float, float]]
    undecided: list[str]
    shift: float
    canary: float
    invalid: str
    listed: Sequence[str] = ()


_UNTOUCHED = "no changed code runs in it: traced calls on both sides show it"
_SAME_CODE = "no changed code runs in it: only comments, docstrings and documents differ"


class PairSequence(Protocol):
    """Pairs by their index."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def __getitem__(self, index: int, /) -> Pair:
        """Return one pair."""


def decide(pair: Pair, policy: Policy | None = None) -> Decision:
    """Decide one stored pair alone, replaying the interim looks that its launches allow.

    Raises:
        PairError: A sample is not a measurement.
    """
    (benchmark,) = _analysed([pair], stored(policy or Policy(), pair.rounds), {})
    return benchmark.decision(None)  # one pair cannot tell whether the machine changed speed


def untouched(id_: str, *, traced: bool) -> Decision:
    """Return the decision on a benchmark that runs no changed code, by traced calls or because no code changed."""
    return Decision(id=id_, verdict="pass", reason=_UNTOUCHED if traced else _SAME_CODE)


def decide_value(pair: Pair, policy: Policy) -> Decision:
    """Decide a deterministic value by one launch per side: there is no noise to exceed.

    The sizes of the rule apply: the smallest relative change that is called, and the absolute floor.
    """
    base, head = (side.launches[0].samples[0] for side in (pair.a, pair.b))
    called = abs(head - base) >= max(absolute_floor(pair, policy), policy.called * min(base, head)) and base != head
    verdict = ("regression" if head > base else "improvement") if called else "pass"
    ratio = head / base if base and head else 1.0
    low = 0.0 if ratio == 1 and base != head else ratio  # 0 against 5 has no ratio
    change = f"{base:g} on both sides" if base == head else f"from {base:g} to {head:g}"
    size = "" if called or base == head else ", too small a change to matter"
    return Decision(
        id=pair.id, verdict=verdict, ratio=ratio, ratio_low=low, ratio_high=low or None, p=float(not called),
        rounds_used=1, reason=f"{change}{size}: a deterministic value",
    )  # fmt: skip


def stored(policy: Policy, rounds: int) -> Policy:
    """Return the rule for a complete set of launches: its last look is after all of them."""
    looks = (*(look for look in policy.looks[:-1] if look < rounds), max(1, rounds))
    return msgspec.structs.replace(policy, looks=looks)


def decide_suite(pairs: PairSequence, policy: Policy, policies: Mapping[str, Policy] | None = None) -> SuiteDecision:
    """Decide the pairs of one session; the same data always give the same verdicts, however often it is called.

    Args:
        pairs: One per benchmark. Each is requested for its analysis and not kept, so a sequence may decode them on
            demand: thousands of pairs take gigabytes.
        policy: The rule; its looks and levels are the suite's.
        policies: Pair id -> the rule of a pair whose sizes differ from the suite's.

    Raises:
        PairError: A sample is not a measurement.
    """
    benchmarks = _analysed(pairs, policy, policies or {})
    canary, invalid = _session(benchmarks, policy)
    last = policy.looks[-1]
    return SuiteDecision(
        decisions=[benchmark.decision(invalid) for benchmark in benchmarks],
        levels={benchmark.id: levels for benchmark in benchmarks if (levels := benchmark.levels())},
        undecided=[b.id for b in benchmarks if not b.verdict and b.stored < last and not b.constant],
        shift=_mean_ratio(benchmarks),
        canary=canary,
        invalid=invalid.text if invalid else "",
        listed=_listed(benchmarks),
    )


def _analysed(pairs: PairSequence, policy: Policy, policies: Mapping[str, Policy]) -> list[_Benchmark]:
    """Return the benchmarks after all interim looks; for arguments see `decide_suite`."""
    benchmarks = [_Benchmark(pairs, index, policies, policy) for index in range(len(pairs))]
    for index, rounds in enumerate(_looks(max((benchmark.stored for benchmark in benchmarks), default=0), policy)):
        for benchmark in benchmarks:
            benchmark.analyse(rounds, policy)
        _holm(benchmarks, policy)
        for benchmark in benchmarks:
            benchmark.settle_pass(policy.pass_alpha(index))
    return benchmarks


def _looks(most: int, policy: Policy) -> list[int]:
    """Return the rounds to look after: the planned looks that are reached, and the end of the data as the last one."""
    reached = [look for look in policy.looks if look <= most]
    if len(reached) == len(policy.looks):
        return [*reached[:-1], most]
    return reached if most in reached else [*reached, most]


class _Benchmark:
    """One pair during the interim looks.

    Attributes:
        id: The pair's id.
        stored: Number of stored rounds.
        suite, policy: The suite's rule, and the pair's.
        verdict: "regression", "improvement" or "pass"; "" while undecided.
        constant: A sentence if every sample is the same number; otherwise empty.
        p_regression, p_improvement: Smallest p-values so far, each divided by its look's leniency.
        leniency: Leniency of the last look.
        limits: Verdict -> the p-value that it needed at the last look.
        rounds: Launches per side at the last look.
        last: The last analysis, which the verdict is based on: nothing is analyzed after a decision.
    """

    def __init__(self, pairs: PairSequence, index: int, policies: Mapping[str, Policy], suite: Policy) -> None:
        self._pairs, self._index = pairs, index
        pair = self.pair
        pair.check()
        self.id, self.stored = pair.id, pair.rounds
        self.suite, self.policy = suite, policies.get(pair.id, suite)
        self.verdict = ""
        self.constant = ""
        self.p_regression = self.p_improvement = 1.0
        self.leniency = 1.0
        self.limits = {"regression": 0.0, "improvement": 0.0, "pass": 0.0}
        self.rounds = 0
        self.last: Interim | None = None

    @property
    def pair(self) -> Pair:
        """Its launches."""
        return self._pairs[self._index]

    def analyse(self, planned: int, suite: Policy) -> None:
        """Analyze the first launches, unless the pair is decided or has no further ones."""
        rounds = min(planned, self.stored)
        if self.verdict or self.constant or (rounds == self.rounds and self.last is not None):
            return
        self.rounds = rounds
        part = self.pair.first(rounds)
        self.constant = identical(part)
        if self.constant:
            return
        self.last = by_rank(part, self.policy) if has_zero(part) else examine(part, self.policy)
        self.leniency = suite.leniency(planned, adjusted=self.last.adjusted)
        self.p_regression = min(self.p_regression, self.last.p_regression / self.leniency)
        self.p_improvement = min(self.p_improvement, self.last.p_improvement / self.leniency)

    def settle_pass(self, limit: float) -> None:
        """Stop at a pass once the change is shown to be smaller than the tolerance."""
        self.limits["pass"] = limit
        if not self.verdict and self.last is not None and self.last.p_pass <= limit:
            self.verdict = "pass"

    def levels(self) -> tuple[float, float] | None:
        """Return the quoted values of base and head; None without launches."""
        if self.last is not None and self.last.change is not None:
            return self.last.base, self.last.base * math.exp(self.last.change.shift)
        pair = self.pair
        a, b = (location(side.launches) for side in (pair.a, pair.b))
        return None if a is None or b is None else (a, b)

    def decision(self, invalid: Reason[Code] | None) -> Decision:
        """Return the verdict with its numbers and reasons; ``invalid`` is why the session does not count."""
        interim = self.last
        if self.constant:
            return self._decided("pass", self.constant, ratio_low=1.0, ratio_high=1.0)
        if interim is None:
            return self._inconclusive(Reason("no_launches", "no launch on both sides"))
        if interim.change is None:
            return self._without_ratio(interim, invalid)
        numbers: dict[str, Any] = {
            "ratio": math.exp(interim.change.shift),
            "ratio_low": math.exp(interim.change.low),
            "ratio_high": math.exp(interim.change.high),
            "p": min(1.0, self.p_improvement if interim.change.shift < 0 else self.p_regression),
        }
        if not self.verdict:
            limits = self._limits(interim)
            why = interim.excuse or reasons.undecided(interim, self.policy, self.rounds, limits)
            if why.code == "few_rounds":
                needed = reasons.launches_needed(interim, self.policy, self.rounds, limits)
                numbers["rounds_needed"] = needed or 0
            return self._inconclusive(why, reasons.inconclusive(interim, why), **numbers)
        reason = reasons.decided(self.verdict, interim, self.policy)
        if invalid and self.verdict in {"regression", "improvement"}:
            return self._inconclusive(invalid, f"{invalid.text} (alone it reads: {reason})", **numbers)
        return self._decided(self.verdict, reason, **numbers)

    def _decided(self, verdict: str, reason: str, **numbers: Any) -> Decision:
        return Decision(id=self.id, verdict=verdict, rounds_used=self.rounds, reason=reason, **numbers)

    def _inconclusive(self, why: Reason[Code], reason: str = "", **numbers: Any) -> Decision:
        """Return the decision on an undecided pair; ``reason`` is the whole sentence, if it is more than ``why``."""
        return Decision(
            id=self.id, verdict="inconclusive", rounds_used=self.rounds, reason=reason or why.line, undecided=why,
            **numbers,
        )  # fmt: skip

    def _limits(self, interim: Interim) -> reasons.Limits:
        """Return the limits on the last look's p-values."""
        assert interim.change is not None
        verdict, share = ("improvement", IMPROVEMENT_SHARE) if interim.change.shift < 0 else ("regression", 1.0)
        alone = share * min(self.suite.level, self.suite.benchmark_level)
        return reasons.Limits(self.limits[verdict], alone, self.leniency, self.limits["pass"])

    def _without_ratio(self, interim: Interim, invalid: Reason[Code] | None) -> Decision:
        """Return the decision on a pair with zeros."""
        assert interim.excuse is not None
        p = min(self.p_regression, self.p_improvement, 1.0)
        levels = self.levels()
        if not self.verdict or levels is None:
            return self._inconclusive(interim.excuse, p=p)
        where = "above" if self.verdict == "regression" else "below"
        from_to = f"from {levels[0]:g} to {levels[1]:g}"
        reason = f"{from_to}: every launch of head is {where} every one of base; {interim.excuse.text}"
        if invalid:
            return self._inconclusive(invalid, f"{invalid.text} (alone it reads: {reason})", p=p)
        return self._decided(self.verdict, reason, p=p)


def _holm(benchmarks: list[_Benchmark], policy: Policy) -> None:
    """Settle regressions and improvements by Holm's step-down over the whole suite; each is one family."""
    for verdict, share in (("regression", 1.0), ("improvement", IMPROVEMENT_SHARE)):
        key = f"p_{verdict}"
        ordered = sorted(benchmarks, key=lambda benchmark: getattr(benchmark, key))
        for rejected, benchmark in enumerate(ordered):
            limit = share * min(policy.level / (len(benchmarks) - rejected), policy.benchmark_level)
            if getattr(benchmark, key) > limit:
                for remaining in ordered[rejected:]:
                    remaining.limits[verdict] = limit
                break
            if not benchmark.verdict:
                benchmark.verdict = verdict


def _mean_ratio(benchmarks: Sequence[_Benchmark]) -> float:
    """Return the geometric mean of the ratios of the pairs that have one; 1 without any."""
    lasts = (benchmark.last for benchmark in benchmarks)
    shifts = [last.change.shift for last in lasts if last is not None and last.change is not None]
    return math.exp(math.fsum(shifts) / len(shifts)) if shifts else 1.0


def _session(benchmarks: list[_Benchmark], policy: Policy) -> tuple[float, Reason[Code] | None]:
    """Return the median shift of the canary as a ratio, and why the session is invalid (the machine changed speed).

    It is invalid if most benchmarks and the canary moved by about the suite's median shift, which a few benchmarks that
    really changed do not affect.
    """
    shifts = [b.last.change.shift for b in benchmarks if b.last is not None and b.last.change is not None]
    if not shifts:
        return 1.0, None
    shift = float(np.median(shifts))
    canaries = [change.shift for b in benchmarks if (change := canary_change(b.pair)) is not None]
    canary = float(np.median(canaries)) if canaries else 0.0
    agreeing = float(np.mean(np.abs(np.array(shifts) - shift) < SESSION_WITHIN * abs(shift)))
    moved = len(shifts) >= SESSION_BENCHMARKS and abs(shift) > policy.log_margin and agreeing >= SESSION_AGREES
    if moved and canary * shift > 0 and abs(canary) > SESSION_CANARY * abs(shift):
        text = (
            f"the machine, not the code, changed speed: all benchmarks moved by {math.expm1(shift) * 100:+.1f} % and "
            f"the canary by {math.expm1(canary) * 100:+.1f} %"
        )
        return math.exp(canary), Reason("machine_changed_speed", text, "measure again on an idle machine")
    return math.exp(canary), None


def _listed(benchmarks: Sequence[_Benchmark]) -> list[str]:
    """Return the slowdowns that a comment should show."""
    p_values = sorted(benchmark.p_regression for benchmark in benchmarks)
    limit = max((p for rank, p in enumerate(p_values, start=1) if p <= LISTED * rank / len(benchmarks)), default=0.0)
    return [b.id for b in benchmarks if b.verdict == "regression" or (b.p_regression <= limit and b.verdict != "pass")]
