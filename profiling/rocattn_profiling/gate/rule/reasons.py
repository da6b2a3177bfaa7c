"""The sentences of a decision: why a benchmark was decided, or why not and what would decide it.

Every verdict has a limit on a p-value (`rocattn_profiling.gate.rule.suite`), and guards raise the p-values. The reason
of an undecided pair is the first guard that takes a p-value across its limit; if none does, it is that there are too
few launches for their noise. Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.measure import stats

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.interim import Code, Guard, Interim, Steps

MOST_LAUNCHES = 200
"""Most launches per side; `rocattn gate run` accepts no more rounds."""
_INTERVAL_Z = 2 * 1.959964  # width of a 95 % interval, in standard errors
_QUIET = "measure on an idle machine"
_MORE = "measure more rounds"
GUARDS: dict[Guard, tuple[str, str]] = {
    "wall_time": ("wall time of undisturbed launches contradicts it", _QUIET),
    "rounds": ("too many rounds show the opposite", _MORE),
    "canary": ("the canary changed with it, so the machine may have changed speed", _QUIET),
    "slow_states": ("a slow state that lasts for several launches may explain it", _MORE),
    "two_modes": ("unchanged code that runs at two speeds may explain it", _MORE),
    "slow_spells": ("many launches met a slow spell of the machine", _QUIET),
    "interruptions_unknown": (
        "it is unknown which launches were interrupted", "store CPU time and context switches with the samples",
    ),
    "always_interrupted": ("every sample was interrupted, which may hide a wait of the code's own", _QUIET),
    "clock": ("the GPU's cycles do not bear it out", "fix the GPU's clock, or measure more rounds"),
}  # fmt: skip
"""Guard -> why the pair is undecided, and what would decide it."""
_SHARED = {
    "few_rounds": "so few rounds can neither show nor rule out a change as large as the tolerance",
    "noise": "their launches differ too much from each other",
    "many_benchmarks": "a change would be proven if each were measured alone, but not among so many",
    "few_launches": "too few launches to tell anything from noise",
}
"""Code -> the sentence for several benchmarks, where single ones have numbers in theirs."""
_TOO_SMALL: frozenset[Guard] = frozenset({"small", "floor"})  # the change is real, but may still pass
_LASTING: frozenset[Guard] = frozenset({"wall_time", "canary", "slow_spells"})  # more launches do not lift them


class Limits(NamedTuple):
    """The limits on one pair's p-values at its last look.

    Attributes:
        change: For a change in the direction of the estimate, corrected for the number of benchmarks.
        alone: The same if this were the only benchmark.
        leniency: Divisor of the p-value of a change before the comparison.
        equivalence: For a pass.
    """

    change: float
    alone: float
    leniency: float
    equivalence: float


def decided(verdict: str, interim: Interim, policy: Policy) -> str:
    """Return why a pair was decided, with the analysis's note."""
    return _verdict_words(verdict, interim, policy) + (f"; {interim.note.text}" if interim.note else "")


def _verdict_words(verdict: str, interim: Interim, policy: Policy) -> str:
    assert interim.change is not None
    shift, quantity = interim.change.shift, interim.quantity
    change = math.expm1(shift) * 100
    if interim.clock:
        return f"clock, not code: the time changed by {change:+.1f} %, and the GPU's cycles do not bear it out"
    if verdict == "pass":
        if abs(shift) >= policy.log_tolerance:  # it can only pass due to the absolute floor
            return f"{change:+.1f} % in {quantity}, but too small in absolute terms to matter"
        return f"shown to be within {policy.tolerance * 100:g} % ({quantity})"
    words = ("smaller", "larger") if quantity == "value" else ("faster", "slower")
    word = words[verdict == "regression"]
    return f"{word} by {abs(change):.1f} % in {quantity}, beyond the noise of its launches"


def inconclusive(interim: Interim, why: Reason[Code]) -> str:
    """Return the whole sentence of an undecided pair: its estimate, the reason, and the analysis's note."""
    note = f"; {interim.note.text}" if interim.note and why is not interim.note else ""
    if interim.excuse:
        return why.line + note
    assert interim.change is not None
    change, low, high = (
        math.expm1(edge) * 100 for edge in (interim.change.shift, interim.change.low, interim.change.high)
    )
    estimate = f"{change:+.1f} % in {interim.quantity} (95 % interval {low:+.1f} % to {high:+.1f} %)"
    if stats.undecided(math.exp(interim.change.low), math.exp(interim.change.high)):
        estimate = f"no estimate of the change in {interim.quantity}, as {stats.WIDE_INTERVAL.text}"
    return f"undecided: {estimate}: {why.line}{note}"


def undecided(interim: Interim, policy: Policy, rounds: int, limits: Limits) -> Reason[Code]:
    """Return why a pair is undecided.

    Args:
        interim: The last analysis, without an excuse.
        policy: The rule.
        rounds: Launches per side.
        limits: The limits at its last look.
    """
    if interim.note is not None and interim.note.code == "drift":
        return interim.note
    if interim.clock:
        return _of_guard("clock")
    change = tuple((guard, p / limits.leniency) for guard, p in interim.change_steps)
    guard = _lasting_veto(interim.change_steps) or _crossing(change, limits.alone)
    if guard is not None and guard not in _TOO_SMALL:
        return _of_guard(guard)
    if guard is None and change[-1][1] <= limits.alone:
        p, limit = _percent(change[-1][1]), _percent(limits.change)
        text = f"p = {p} would be enough alone; among these benchmarks it must be {limit}"
        return Reason("many_benchmarks", text, "measure it alone")
    if blocker := _crossing(interim.pass_steps, limits.equivalence):
        return _of_guard(blocker)
    return _too_noisy(interim, policy, rounds, limits, change[0][1])


def _of_guard(guard: Guard) -> Reason[Code]:
    return Reason(guard, *GUARDS[guard])


def _lasting_veto(steps: Steps) -> Guard | None:
    """Return the guard that rules out a likely change, however many launches there are."""
    return next((guard for guard, p in steps if guard in _LASTING and p >= 1), None)


def _crossing(steps: Steps, limit: float) -> Guard | None:
    """Return the guard that takes a p-value across a limit; None if it never was below, or stays below."""
    if steps[0][1] > limit:
        return None
    return next((guard for guard, p in steps if p > limit), None)


def _too_noisy(interim: Interim, policy: Policy, rounds: int, limits: Limits, p_change: float) -> Reason[Code]:
    """Return the reason if there are too few launches for their noise."""
    assert interim.change is not None
    p_pass = interim.pass_steps[0][1]
    text = (
        f"a pass needs the probability of {100 * policy.tolerance:g} % or more to fall to "
        f"{_percent(limits.equivalence)} (now {_percent(p_pass)})"
    )
    if abs(interim.change.shift) >= policy.log_called:
        word = "a regression" if interim.change.shift > 0 else "an improvement"
        text += f"; {word} needs p = {_percent(limits.change)} (now {_percent(p_change)})"
    needed = launches_needed(interim, policy, rounds, limits)
    if needed is None:
        return Reason("noise", text, f"more than {MOST_LAUNCHES} rounds would be needed: make the benchmark less noisy")
    return Reason("few_rounds", text, f"about {needed} rounds would decide, if the noise stays the same")


def _percent(p: float) -> str:
    return f"{100 * min(p, 1.0):.3g} %"


def shared(reasons: Sequence[Reason[str]], rounds: Sequence[int]) -> Reason[str]:
    """Return the common reason of several undecided benchmarks, with a remedy for all of them.

    Args:
        reasons: Their reasons, all with the same code.
        rounds: How many rounds would decide each, fewest first; 0 if unknown.
    """
    first = reasons[0]
    if len(set(reasons)) == 1:
        return first
    half, most = rounds[(len(rounds) - 1) // 2], rounds[-1]
    some = f"{half} rounds would decide half of them, {most} all" if half < most else f"{most} rounds would decide"
    remedy = f"about {some}, if the noise stays the same" if rounds[0] else first.remedy
    return Reason(first.code, _SHARED.get(first.code, first.text), remedy)


def launches_needed(interim: Interim, policy: Policy, rounds: int, limits: Limits) -> int | None:
    """Estimate how many launches per side would decide a pair whose estimate and noise stay the same.

    The standard error falls with the square root of the launches. The distance to the tolerance (for a pass) or to the
    margin (for a change) must be as many standard errors as the limit requires.

    Returns:
        More than ``rounds``; None if it exceeds `MOST_LAUNCHES`.
    """
    assert interim.change is not None
    error, shift = (interim.change.high - interim.change.low) / _INTERVAL_Z, abs(interim.change.shift)
    gaps = [(policy.log_tolerance - shift, limits.equivalence)]
    if shift >= policy.log_called:
        gaps.append((shift - policy.log_margin, min(limits.change * limits.leniency, 0.5)))
    needed = [
        rounds * (NormalDist().inv_cdf(1 - limit) * error / gap) ** 2 for gap, limit in gaps if gap > 0 and limit > 0
    ]
    most = math.ceil(max(min(needed, default=math.inf), rounds + 1)) if needed else MOST_LAUNCHES + 1
    return most if most <= MOST_LAUNCHES else None
