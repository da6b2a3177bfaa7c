"""Why a pair is undecided, and what would decide it.

Every decision has a limit on a probability (`decide`), and guards raise the probabilities (`look`). The reason is the
first guard that takes a probability across its limit; where none does, it is the launches: too few for their noise.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.base.reasons import Reason

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.look import Guard, Look, Steps
    from rocattn_profiling.gate.rule.policy import Policy

MOST_LAUNCHES = 200
"""A side; `rocattn gate run` takes no more rounds."""
_INTERVAL_Z = 2 * 1.959964  # width of a 95 % interval, in standard errors
_QUIET = "measure on a machine at rest"
_MORE = "measure more rounds"
GUARDS: dict[Guard, tuple[str, str]] = {
    "wall_time": ("wall time of undisturbed launches contradicts it", _QUIET),
    "rounds": ("too many rounds show the opposite", _MORE),
    "fixed_work": ("fixed work in the same processes changed with it", _QUIET),
    "slow_states": ("a slow state that lasts for several launches may explain it", _MORE),
    "two_modes": ("unchanged code that runs at two speeds may explain it", _MORE),
    "slow_spells": ("many launches met a slow spell of the machine", _QUIET),
    "interruptions_unknown": (
        "nothing tells which launches were interrupted", "store CPU time and context switches with the samples",
    ),
    "always_interrupted": ("every sample was interrupted, which may hide a wait of the code's own", _QUIET),
    "clock": ("the GPU's cycles do not bear it out", "fix the GPU's clock, or measure more rounds"),
}  # fmt: skip


_TOO_SMALL: frozenset[Guard] = frozenset({"small", "floor"})  # such a change is real, and may still pass
_LASTING: frozenset[Guard] = frozenset({"wall_time", "fixed_work", "slow_spells"})  # more launches would not lift them


class Limits(NamedTuple):
    """What the probabilities of one pair had to reach at its last look.

    Attributes:
        change: Of a change in the direction of the estimate, corrected for the number of benchmarks.
        alone: The same if this were the only benchmark.
        leniency: What a change's probability is divided by before it is compared.
        same: Of a pass.
    """

    change: float
    alone: float
    leniency: float
    same: float


def why(look: Look, policy: Policy, rounds: int, limits: Limits) -> Reason:
    """Return why a pair is undecided.

    Args:
        look: The last one; without an excuse.
        policy: The rule.
        rounds: Launches a side.
        limits: What would have decided.
    """
    if look.note is not None and look.note.code == "drift":
        return look.note
    if look.clock:
        return _guard("clock")
    change = tuple((guard, p / limits.leniency) for guard, p in look.against_change)
    guard = _veto(look.against_change) or _crossing(change, limits.alone)
    if guard is not None and guard not in _TOO_SMALL:
        return _guard(guard)
    if guard is None and change[-1][1] <= limits.alone:
        text = (
            f"p = {_percent(change[-1][1])} would do alone; among these benchmarks it must be {_percent(limits.change)}"
        )
        return Reason("many_benchmarks", text, "measure it alone")
    if blocker := _crossing(look.against_pass, limits.same):
        return _guard(blocker)
    return _unsure(look, policy, rounds, limits, change[0][1])


def _guard(guard: Guard) -> Reason:
    return Reason(guard, *GUARDS[guard])


def _veto(steps: Steps) -> Guard | None:
    """Return the guard that rules a likely change out, however many launches there are."""
    return next((guard for guard, p in steps if guard in _LASTING and p >= 1), None)


def _crossing(steps: Steps, limit: float) -> Guard | None:
    """Return the guard that takes a probability across a limit; None where it was never below, or stays there."""
    if steps[0][1] > limit:
        return None
    return next((guard for guard, p in steps if p > limit), None)


def _unsure(look: Look, policy: Policy, rounds: int, limits: Limits, p_change: float) -> Reason:
    """Return the reason where the launches themselves are not sure enough."""
    assert look.change is not None
    p_same = look.against_pass[0][1]
    text = (
        f"a pass needs the probability of {100 * policy.tolerance:g} % or more to fall to {_percent(limits.same)} "
        f"(now {_percent(p_same)})"
    )
    if abs(look.change.shift) >= policy.log_called:
        word = "a regression" if look.change.shift > 0 else "an improvement"
        text += f"; {word} needs p = {_percent(limits.change)} (now {_percent(p_change)})"
    needed = launches_needed(look, policy, rounds, limits)
    if needed is None:
        return Reason("noise", text, f"more than {MOST_LAUNCHES} rounds would be needed: make the benchmark less noisy")
    return Reason("few_rounds", text, f"about {needed} rounds would decide, if the noise stays the same")


def _percent(p: float) -> str:
    return f"{100 * min(p, 1.0):.3g} %"


def launches_needed(look: Look, policy: Policy, rounds: int, limits: Limits) -> int | None:
    """Estimate how many launches a side would decide a pair whose estimate and noise stay as they are.

    The standard error falls with the square root of the launches. A pass needs the distance to the tolerance, a change
    the distance to the margin, to be as many standard errors as the limit asks for.

    Returns:
        More than ``rounds``; None where it is more than `MOST_LAUNCHES`.
    """
    assert look.change is not None
    error, shift = (look.change.high - look.change.low) / _INTERVAL_Z, abs(look.change.shift)
    gaps = [(policy.log_tolerance - shift, limits.same)]
    if shift >= policy.log_called:
        gaps.append((shift - policy.log_margin, min(limits.change * limits.leniency, 0.5)))
    needed = [
        rounds * (NormalDist().inv_cdf(1 - limit) * error / gap) ** 2 for gap, limit in gaps if gap > 0 and limit > 0
    ]
    most = math.ceil(max(min(needed, default=math.inf), rounds + 1)) if needed else MOST_LAUNCHES + 1
    return most if most <= MOST_LAUNCHES else None
