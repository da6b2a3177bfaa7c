"""The decision on a session: pure functions from stored pairs to verdicts.

The unit is the process launch. What one look at a pair says (`rocattn_profiling.gate.look`) is paid for every look
that is planned and, by Holm's step-down, for every benchmark of the suite; a session in which the machine itself
changed speed decides nothing. A pass is a statement of equivalence, not absence of evidence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn_profiling.gate.look import Look, Policy, canary_shift, examine, location, without_ratio
from rocattn_profiling.gate.pairs import Decision, Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_SUITE = 5  # benchmarks that can tell the noise of a session


class SuiteDecision(NamedTuple):
    """Decisions in the order of the pairs, and what the suite as a whole did.

    Attributes:
        decisions: One a pair.
        levels: Id -> low ends of base and head in the quantity that decided, in the pair's unit.
        undecided: Ids that more rounds could still decide.
        shift: Median ratio of all pairs; ``canary`` the same of the fixed work.
        invalid: Why no regression of this session counts; empty if it is sound.
    """

    decisions: list[Decision]
    levels: dict[str, tuple[float, float]]
    undecided: list[str]
    shift: float
    canary: float
    invalid: str


def decide(pair: Pair, policy: Policy | None = None) -> Decision:
    """Judge one stored pair alone, replaying the looks its launches allow.

    Raises:
        PairError: When a sample is not a time.
    """
    return decide_suite([pair], policy or Policy()).decisions[0]


def decide_suite(pairs: Sequence[Pair], policy: Policy) -> SuiteDecision:
    """Judge the pairs of one session: the same data always give the same verdicts, however often it is asked.

    Raises:
        PairError: When a sample is not a time.
    """
    for pair in pairs:
        pair.check()
    most = max((pair.rounds for pair in pairs), default=0)
    # Rounds beyond the last look reached are looked at too, in place of a look that is not reached.
    looks = sorted({look for look in policy.looks if look <= most} | {min(most, policy.looks[-1])})
    states = [_State(pair) for pair in pairs]
    for look in looks:
        prior = _session_noise(states, look, policy)
        for state in states:
            state.look(look, policy, prior)
        _holm(states, policy)
        for state in states:
            state.settle_pass(policy)
    shift, canary, invalid = _session(states, policy)
    decisions = [state.decision(policy, invalid) for state in states]
    last = policy.looks[-1]
    undecided = [s.pair.id for s in states if not s.verdict and s.pair.rounds < last and not s.hopeless]
    levels = {state.pair.id: found for state in states if (found := state.levels())}
    return SuiteDecision(decisions, levels, undecided, shift, canary, invalid)


class _State:
    """One pair on its way through the looks."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.verdict = ""
        self.hopeless = ""
        self.p_up = self.p_down = 1.0
        self.rounds = 0
        self.last: Look | None = None
        self.said: Look | None = None

    def look(self, rounds: int, policy: Policy, prior: float) -> None:
        """Take the first launches into account, unless the pair is decided."""
        if self.verdict or self.hopeless:
            return
        self.rounds = min(rounds, self.pair.rounds)
        part = self.pair.first(self.rounds)
        if why := without_ratio(part):
            self.hopeless = why
            return
        self.last = examine(part, policy, prior)
        looks = len(policy.looks)  # the level is spent over all planned looks, used or not
        self.p_up = min(self.p_up, self.last.p_up * looks)
        self.p_down = min(self.p_down, self.last.p_down * looks)

    def settle(self, verdict: str) -> None:
        """Fix the verdict at what was last seen."""
        self.verdict, self.said = verdict, self.last

    def settle_pass(self, policy: Policy) -> None:
        """Stop at a pass once the change is shown to be smaller than matters."""
        if not self.verdict and self.last is not None and self.last.p_same * len(policy.looks) <= policy.level:
            self.settle("pass")

    def levels(self) -> tuple[float, float] | None:
        """Return what the sides are quoted as; None when nothing was seen."""
        seen = self.said or self.last
        if seen is not None and seen.difference is not None:
            return seen.base, seen.base * math.exp(seen.difference.shift)
        a, b = (location(side.launches) for side in (self.pair.a, self.pair.b))
        return None if a is None or b is None else (a, b)

    def decision(self, policy: Policy, invalid: str) -> Decision:
        """Put the verdict into words."""
        seen = self.said or self.last
        if self.hopeless:
            same = self.hopeless.startswith("identical")
            if same:
                return Decision(
                    id=self.pair.id,
                    verdict="pass",
                    ratio_low=1.0,
                    ratio_high=1.0,
                    rounds_used=self.rounds,
                    reason=self.hopeless,
                )
            return Decision(id=self.pair.id, verdict="inconclusive", rounds_used=self.rounds, reason=self.hopeless)
        if seen is None or seen.difference is None:
            reason = seen.reason if seen else "no launch on both sides"
            return Decision(id=self.pair.id, verdict="inconclusive", rounds_used=self.rounds, reason=reason)
        verdict = self.verdict or "inconclusive"
        reason = _words(verdict, seen, policy)
        if invalid and verdict in {"regression", "improvement"}:
            verdict, reason = "inconclusive", f"{invalid} (alone it reads: {reason})"
        low, high = seen.difference.interval()
        return Decision(
            id=self.pair.id,
            verdict=verdict,
            ratio=math.exp(seen.difference.shift),
            ratio_low=math.exp(low),
            ratio_high=math.exp(high),
            p=min(1.0, self.p_down if seen.difference.shift < 0 else self.p_up),
            rounds_used=self.rounds,
            reason=reason,
        )


def _words(verdict: str, seen: Look, policy: Policy) -> str:
    assert seen.difference is not None
    change = math.expm1(seen.difference.shift) * 100
    if verdict == "regression":
        return f"slower by {change:.1f} % in {seen.reason}, beyond the noise of its launches"
    if verdict == "improvement":
        return f"faster by {-change:.1f} % in {seen.reason}, beyond the noise of its launches"
    if verdict == "pass":
        return f"shown to be within {policy.min_effect * 100:g} % ({seen.reason})"
    if seen.reason in {"wall time", "CPU time", "its value"}:
        low, high = (math.expm1(edge) * 100 for edge in seen.difference.interval())
        return f"undecided: the change in {seen.reason} is between {low:+.1f} % and {high:+.1f} %"
    return seen.reason


def _holm(states: list[_State], policy: Policy) -> None:
    """Settle regressions and improvements by Holm's step-down over the whole suite, a family each."""
    for verdict, key in (("regression", "p_up"), ("improvement", "p_down")):
        ordered = sorted(states, key=lambda state: getattr(state, key))
        for passed, state in enumerate(ordered):
            if getattr(state, key) > min(policy.level / (len(states) - passed), policy.benchmark_level):
                break
            if not state.verdict:
                state.settle(verdict)


def _session_noise(states: list[_State], look: int, policy: Policy) -> float:
    """Return the prior noise of a look: what half of the suite shows, when the suite is large enough to tell."""
    if len(states) < _LEAST_SUITE:
        return policy.prior_noise
    noises = []
    for state in states:
        part = state.pair.first(min(look, state.pair.rounds))
        if not without_ratio(part):
            seen = examine(part, policy, policy.prior_noise).difference
            noises += [seen.noise] if seen is not None else []
    if len(noises) < _LEAST_SUITE:
        return policy.prior_noise
    return max(policy.prior_noise, min(float(np.median(noises)), 2 * policy.prior_noise))


def _session(states: list[_State], policy: Policy) -> tuple[float, float, str]:
    """Return median shift of suite and canary as ratios, and why the session is invalid (the machine moved)."""
    shifts = [s.last.difference.shift for s in states if s.last is not None and s.last.difference is not None]
    if not shifts:
        return 1.0, 1.0, ""
    shift = float(np.median(shifts))
    canary = float(np.median([canary_shift(s.pair) for s in states]))
    together = float(np.mean(np.abs(np.array(shifts) - shift) < 0.5 * abs(shift)))
    moved = len(shifts) >= 4 and abs(shift) > math.log1p(policy.margin) and together >= 0.6
    if moved and canary * shift > 0 and abs(canary) > 0.4 * abs(shift):
        what = f"the machine, not the code, changed speed: all benchmarks moved by {math.expm1(shift) * 100:+.1f} %"
        return math.exp(shift), math.exp(canary), f"{what} and fixed work by {math.expm1(canary) * 100:+.1f} %"
    return math.exp(shift), math.exp(canary), ""
