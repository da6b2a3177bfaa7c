"""The decision on a session: pure functions from stored pairs to verdicts.

The unit is the process launch. What one look at a pair says (`rocattn_profiling.gate.rule.look`) is paid for every look
that is planned and, by Holm's step-down, for every benchmark of the suite; a session in which the machine itself
changed speed decides nothing. A pass is a statement of equivalence, not absence of evidence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import undecided
from rocattn_profiling.gate.rule.launches import location
from rocattn_profiling.gate.rule.look import Look, by_rank, examine, has_zero, identical
from rocattn_profiling.gate.rule.pairs import Decision, Pair
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.vetoes import canary_change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PASS = 0.5  # of the level, for a pass: a change passed over is not looked for again
_IMPROVEMENT = 0.5  # of the level, for an improvement: a wrong one hides a slowdown, a missed one hides nothing
_LISTED = 0.1  # share of false ones among what a comment lists


class SuiteDecision(NamedTuple):
    """Decisions in the order of the pairs, and what the suite as a whole did.

    Attributes:
        decisions: One a pair.
        levels: Id -> low ends of base and head in the quantity that decided, in the pair's unit.
        undecided: Ids that more rounds could still decide.
        shift: Geometric mean of the ratios of all pairs.
        canary: Median ratio of the fixed work.
        invalid: Why no regression of this session counts; empty if it is sound.
        listed: Ids of slowdowns that are worth showing, proven or not: at most one in ten of them is expected to be
            none (Benjamini and Hochberg 1995).
    """

    decisions: list[Decision]
    levels: dict[str, tuple[float, float]]
    undecided: list[str]
    shift: float
    canary: float
    invalid: str
    listed: Sequence[str] = ()


def decide(pair: Pair, policy: Policy | None = None) -> Decision:
    """Judge one stored pair alone, replaying the looks its launches allow.

    Raises:
        PairError: When a sample is not a time.
    """
    states = _looked_at([pair], stored(policy or Policy(), pair.rounds), {})
    return states[0].decision(None)  # one pair is no suite that drifts


def stored(policy: Policy, rounds: int) -> Policy:
    """Return the rule for launches of which there will be no more: their end is its last look."""
    looks = (*(look for look in policy.looks[:-1] if look < rounds), max(1, rounds))
    return msgspec.structs.replace(policy, looks=looks)


class Pairs(Protocol):
    """Pairs by their place."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: int, /) -> Pair:
        """Return one of them."""


def decide_suite(pairs: Pairs, policy: Policy, policies: Mapping[str, Policy] | None = None) -> SuiteDecision:
    """Judge the pairs of one session: the same data always give the same verdicts, however often it is asked.

    Args:
        pairs: One a benchmark. Each is asked for when it is looked at and not kept, so that they may be made anew then:
            thousands of them take gigabytes.
        policy: The rule; its looks and levels are the suite's.
        policies: Pair id -> the sizes that count for this pair, where they are its own.

    Raises:
        PairError: When a sample is not a time.
    """
    states = _looked_at(pairs, policy, policies or {})
    canary, invalid = _session(states, policy)
    decisions = [state.decision(invalid) for state in states]
    last = policy.looks[-1]
    open_ = [s.id for s in states if not s.verdict and s.stored < last and not s.constant]
    levels = {state.id: found for state in states if (found := state.levels())}
    void = invalid.text if invalid else ""
    return SuiteDecision(decisions, levels, open_, _mean_ratio(states), canary, void, _listed(states))


def _looked_at(pairs: Pairs, policy: Policy, policies: Mapping[str, Policy]) -> list[_State]:
    """Return the pairs after all looks; arguments as `decide_suite`."""
    states = [_State(pairs, index, policies, policy) for index in range(len(pairs))]
    for index, look in enumerate(_looks(max((state.stored for state in states), default=0), policy)):
        for state in states:
            state.look(look, policy)
        _holm(states, policy)
        for state in states:
            state.settle_pass(_PASS * policy.level * policy.pass_share(index))
    return states


def _looks(most: int, policy: Policy) -> list[int]:
    """Return the rounds to look after: those planned that are reached, and the end of the data as one of the others."""
    reached = [look for look in policy.looks if look <= most]
    if len(reached) == len(policy.looks):
        return [*reached[:-1], most]
    return reached if most in reached else [*reached, most]


class _State:
    """One pair on its way through the looks; ``stored`` are the rounds that there are of it."""

    def __init__(self, pairs: Pairs, index: int, policies: Mapping[str, Policy], otherwise: Policy) -> None:
        self._pairs, self._index = pairs, index
        pair = self.pair
        pair.check()
        self.id, self.stored = pair.id, pair.rounds
        self.suite, self.policy = otherwise, policies.get(pair.id, otherwise)
        self.verdict = ""
        self.constant = ""
        self.p_up = self.p_down = 1.0
        self.leniency = 1.0
        self.limits = {"regression": 0.0, "improvement": 0.0, "pass": 0.0}
        self.rounds = 0
        self.last: Look | None = None
        self.said: Look | None = None

    @property
    def pair(self) -> Pair:
        """Its launches."""
        return self._pairs[self._index]

    def look(self, planned: int, suite: Policy) -> None:
        """Take the first launches into account, unless the pair is decided or has no more of them."""
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
        self.p_up = min(self.p_up, self.last.p_up / self.leniency)
        self.p_down = min(self.p_down, self.last.p_down / self.leniency)

    def settle(self, verdict: str) -> None:
        """Fix the verdict at what was last seen."""
        self.verdict, self.said = verdict, self.last

    def settle_pass(self, limit: float) -> None:
        """Stop at a pass once the change is shown to be smaller than matters."""
        self.limits["pass"] = limit
        if not self.verdict and self.last is not None and self.last.p_same <= limit:
            self.settle("pass")

    def levels(self) -> tuple[float, float] | None:
        """Return what the sides are quoted as; None when nothing was seen."""
        seen = self.said or self.last
        if seen is not None and seen.change is not None:
            return seen.base, seen.base * math.exp(seen.change.shift)
        pair = self.pair
        a, b = (location(side.launches) for side in (pair.a, pair.b))
        return None if a is None or b is None else (a, b)

    def decision(self, invalid: Reason | None) -> Decision:
        """Return the verdict with its numbers and reasons; ``invalid`` says why the session does not count."""
        seen = self.said or self.last
        if self.constant:
            return Decision(
                id=self.id,
                verdict="pass",
                ratio_low=1.0,
                ratio_high=1.0,
                rounds_used=self.rounds,
                reason=self.constant,
            )
        if seen is None:
            return self._inconclusive(Reason("no_launches", "no launch on both sides"))
        if seen.change is None:
            return self._without_ratio(seen, invalid)
        ratios: dict[str, Any] = {
            "ratio": math.exp(seen.change.shift),
            "ratio_low": math.exp(seen.change.low),
            "ratio_high": math.exp(seen.change.high),
            "p": min(1.0, self.p_down if seen.change.shift < 0 else self.p_up),
        }
        note = f"; {seen.note.text}" if seen.note else ""
        if not self.verdict:
            why = seen.excuse or undecided.why(seen, self.policy, self.rounds, self._limits(seen))
            opening = "" if seen.excuse else f"undecided: {_between(seen)}: "
            return self._inconclusive(why, f"{opening}{why.line}{'' if why is seen.note else note}", **ratios)
        reason = _words(self.verdict, seen, self.policy) + note
        if invalid and self.verdict in {"regression", "improvement"}:
            return self._inconclusive(invalid, f"{invalid.text} (alone it reads: {reason})", **ratios)
        return Decision(id=self.id, verdict=self.verdict, rounds_used=self.rounds, reason=reason, **ratios)

    def _inconclusive(self, why: Reason, reason: str = "", **ratios: Any) -> Decision:
        """Return that nothing is decided; ``reason`` is the whole sentence, if it is more than the reason's line."""
        return Decision(
            id=self.id, verdict="inconclusive", rounds_used=self.rounds, reason=reason or why.line, undecided=why,
            **ratios,
        )  # fmt: skip

    def _limits(self, seen: Look) -> undecided.Limits:
        """Return what the last look's probabilities were compared with."""
        assert seen.change is not None
        verdict, part = ("improvement", _IMPROVEMENT) if seen.change.shift < 0 else ("regression", 1.0)
        alone = part * min(self.suite.level, self.suite.benchmark_level)
        return undecided.Limits(self.limits[verdict], alone, self.leniency, self.limits["pass"])

    def _without_ratio(self, seen: Look, invalid: Reason | None) -> Decision:
        assert seen.excuse is not None
        p = min(self.p_up, self.p_down, 1.0)
        levels = self.levels()
        if not self.verdict or levels is None:
            return self._inconclusive(seen.excuse, p=p)
        where = "above" if self.verdict == "regression" else "below"
        from_to = f"from {levels[0]:g} to {levels[1]:g}"
        reason = f"{from_to}: every launch of head is {where} every one of base; {seen.excuse.text}"
        if invalid:
            return self._inconclusive(invalid, f"{invalid.text} (alone it reads: {reason})", p=p)
        return Decision(id=self.id, verdict=self.verdict, p=p, rounds_used=self.rounds, reason=reason)


def _between(seen: Look) -> str:
    """Return the estimate and its interval."""
    assert seen.change is not None
    change, low, high = (math.expm1(edge) * 100 for edge in (seen.change.shift, seen.change.low, seen.change.high))
    return f"{change:+.1f} % in {seen.quantity} (95 % interval {low:+.1f} % to {high:+.1f} %)"


def _words(verdict: str, seen: Look, policy: Policy) -> str:
    """Return why a pair was decided."""
    assert seen.change is not None
    change = math.expm1(seen.change.shift) * 100
    if seen.clock:
        return f"clock, not code: the time changed by {change:+.1f} %, and the GPU's cycles do not bear it out"
    if verdict == "pass":
        if (
            not -policy.log_tolerance < seen.change.shift < policy.log_tolerance
        ):  # only the absolute floor can have passed it
            return f"{change:+.1f} % in {seen.quantity}, of so little that the change is below what can matter"
        return f"shown to be within {policy.tolerance * 100:g} % ({seen.quantity})"
    words = ("smaller", "larger") if seen.quantity == "value" else ("faster", "slower")
    word = words[verdict == "regression"]
    return f"{word} by {abs(change):.1f} % in {seen.quantity}, beyond the noise of its launches"


def _holm(states: list[_State], policy: Policy) -> None:
    """Settle regressions and improvements by Holm's step-down over the whole suite, a family each."""
    for verdict, key, part in (("regression", "p_up", 1.0), ("improvement", "p_down", _IMPROVEMENT)):
        ordered = sorted(states, key=lambda state: getattr(state, key))
        for passed, state in enumerate(ordered):
            limit = part * min(policy.level / (len(states) - passed), policy.benchmark_level)
            if getattr(state, key) > limit:
                for left in ordered[passed:]:
                    left.limits[verdict] = limit
                break
            if not state.verdict:
                state.settle(verdict)


def _mean_ratio(states: Sequence[_State]) -> float:
    """Return the geometric mean of the ratios of the pairs that have one; 1 without any."""
    shifts = [
        s.last.change.shift for s in states if not s.constant and s.last is not None and s.last.change is not None
    ]
    return math.exp(math.fsum(shifts) / len(shifts)) if shifts else 1.0


def _session(states: list[_State], policy: Policy) -> tuple[float, Reason | None]:
    """Return the median shift of the canary as a ratio, and why the session is invalid (the machine moved).

    The median of the suite says that: a few benchmarks that really changed do not move it.
    """
    shifts = [s.last.change.shift for s in states if s.last is not None and s.last.change is not None]
    if not shifts:
        return 1.0, None
    shift = float(np.median(shifts))
    fixed = [found.shift for s in states if (found := canary_change(s.pair)) is not None]
    canary = float(np.median(fixed)) if fixed else 0.0
    together = float(np.mean(np.abs(np.array(shifts) - shift) < 0.5 * abs(shift)))
    moved = len(shifts) >= 4 and abs(shift) > policy.log_margin and together >= 0.6
    if moved and canary * shift > 0 and abs(canary) > 0.4 * abs(shift):
        what = f"the machine, not the code, changed speed: all benchmarks moved by {math.expm1(shift) * 100:+.1f} %"
        text = f"{what} and fixed work by {math.expm1(canary) * 100:+.1f} %"
        return math.exp(canary), Reason("machine_changed_speed", text, "measure again on a machine at rest")
    return math.exp(canary), None


def _listed(states: Sequence[_State]) -> list[str]:
    """Return the slowdowns that a comment should show."""
    chances = sorted(state.p_up for state in states)
    limit = max((p for rank, p in enumerate(chances, start=1) if p <= _LISTED * rank / len(states)), default=0.0)
    return [s.id for s in states if s.verdict == "regression" or (s.p_up <= limit and s.verdict != "pass")]
