"""Interim analysis of one benchmark: p-values from the launches so far, uncorrected for repeated looks and the suite.

To call a change, the p-value against the hypothesis that it is within the margin or has an alternative explanation must
be below the level, and the estimate must reach the smallest size that is called and the absolute floor. To call a pass,
the p-value against the hypothesis that the change is as large as the tolerance must be below the level. `examine`
chooses launches, estimates the change and applies the guards (`rocattn_profiling.gate.rule.guards`).
"""

from __future__ import annotations

import math
from statistics import median
from typing import Literal, NamedTuple

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import covariates, guards, noise
from rocattn_profiling.gate.rule.constants import CONSIDERED, FULL_LOOKS, MIN_LAUNCHES, UNKNOWN_INTERRUPTIONS
from rocattn_profiling.gate.rule.covariates import Fit
from rocattn_profiling.gate.rule.launches import Selection, choose
from rocattn_profiling.gate.rule.noise import ChangePosterior
from rocattn_profiling.gate.rule.pairs import TIMES, Pair
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.measure.stats import low_quantile

Quantity = Literal["wall time", "CPU time", "value"]
Guard = Literal[
    "drift", "wall_time", "rounds", "small", "floor", "canary", "slow_states", "two_modes", "slow_spells",
    "interruptions_unknown", "always_interrupted", "clock",
]  # fmt: skip
"""Guards that can block a decision; `rocattn_profiling.gate.rule.reasons` has their sentences."""
Code = Literal[
    Guard, "busy_machine", "few_launches", "few_rounds", "machine_changed_speed", "machine_speed", "many_benchmarks",
    "no_launches", "no_time", "noise", "zero",
]  # fmt: skip
"""Why a pair is undecided, or what else a reader must know: machine-readable."""
Steps = tuple[tuple[Guard | None, float], ...]
"""How a p-value came about: from the launches alone (None), then after each guard."""


class ChangeSummary(NamedTuple):
    """Summary of a `noise.ChangePosterior`, in logs; the posterior itself (up to 200 kB per pair) is dropped."""

    shift: float
    low: float
    high: float
    noise: float


class Interim(NamedTuple):
    """The analysis of one pair's launches so far.

    Attributes:
        p_regression, p_improvement: P-values of a change beyond the margin, up and down; 1 after a veto.
        p_pass: P-value of equivalence: probability that the change is as large as the tolerance.
        base: Base's quoted value, in the pair's unit, of ``quantity``.
        change: The change; None if it cannot be estimated, or there is no ratio (`by_rank`).
        quantity: The quantity that was compared.
        excuse: Why nothing can be decided; None if something can.
        note: What else a reader must know.
        clock: Whether time changed, but the GPU's cycles do not confirm it.
        adjusted: Whether the launches follow the canary, and the slowdown that they share with it was removed.
        change_steps: How the p-value in the change's direction came about; empty with an excuse.
        pass_steps: The same for ``p_pass``.
    """

    p_regression: float
    p_improvement: float
    p_pass: float
    base: float
    change: ChangeSummary | None
    quantity: Quantity
    excuse: Reason[Code] | None = None
    note: Reason[Code] | None = None
    clock: bool = False
    adjusted: bool = False
    change_steps: Steps = ()
    pass_steps: Steps = ()

    @property
    def p_change(self) -> float:
        """The p-value in the direction of the estimate."""
        down = self.change is not None and self.change.shift < 0
        return self.p_improvement if down else self.p_regression

    def guarded(self, guard: Guard, p_regression: float, p_improvement: float) -> Interim:
        """Return the analysis with the p-values after a guard."""
        interim = self._replace(p_regression=p_regression, p_improvement=p_improvement)
        return interim._replace(change_steps=(*self.change_steps, (guard, interim.p_change)))


class _Disturbance(NamedTuple):
    """The machine's possible effect on every p-value: ``drift`` in logs, and a factor for slow spells."""

    drift: float
    spells: float


def identical(pair: Pair) -> str:
    """Return a sentence if every sample of both sides is the same number; otherwise an empty string."""
    values = {value for side in (pair.a, pair.b) for launch in side.launches for value in launch.samples}
    return f"identical: every sample of both sides is {next(iter(values)):g}" if len(values) == 1 else ""


def has_zero(pair: Pair) -> bool:
    """Whether a sample is 0, which has no ratio and no logarithm."""
    return any(0.0 in launch.samples for side in (pair.a, pair.b) for launch in side.launches)


def by_rank(pair: Pair, policy: Policy) -> Interim:
    """Analyze a pair with zeros: it changed if every launch of one side is above every launch of the other.

    For launches in random order, that probability is 1 over the number of ways to choose one side's launches from all.
    The sizes apply too: the absolute floor, and the smallest relative change if neither median is 0.

    Args:
        pair: Finite samples, none below 0.
        policy: The rule.
    """
    a, b = ([low_quantile(launch.samples) for launch in side.launches] for side in (pair.a, pair.b))
    medians = (median(a), median(b))
    least = max(absolute_floor(pair, policy), math.expm1(policy.log_called) * min(medians))
    p_value = 1 / math.comb(len(a) + len(b), len(a)) if abs(medians[1] - medians[0]) >= least else 1.0
    up, down = (p_value if apart else 1.0 for apart in (min(b) > max(a), max(b) < min(a)))
    excuse: Reason[Code] = Reason("zero", "a value of 0 has no ratio to compare")
    return Interim(up, down, 1.0, medians[0], None, _quantity(pair, cpu=False), excuse)


def examine(pair: Pair, policy: Policy) -> Interim:
    """Analyze one pair's launches.

    Args:
        pair: Positive, finite samples.
        policy: The rule.
    """
    if pair.rounds < MIN_LAUNCHES:
        return Interim(1.0, 1.0, 1.0, 0.0, None, _quantity(pair, cpu=False), _too_few(pair.rounds))
    selection = choose(pair)
    fitted = covariates.fit(pair, selection, policy.prior_noise)
    if selection.disturbed:
        excuse: Reason[Code] = Reason(
            "busy_machine", "too noisy: the machine was busy or slow in most launches of a side",
            "measure again on an idle machine",
        )  # fmt: skip
        summary = _summary(fitted.posterior)
        return Interim(1.0, 1.0, 1.0, fitted.level, summary, _quantity(pair, cpu=False), excuse)
    disturbance = _Disturbance(
        guards.drift(selection.kept, (fitted.base, fitted.head)), guards.spell_factor(pair, fitted.posterior.noise)
    )
    interim = _estimated(pair, selection, fitted, disturbance, policy)
    return _guarded(pair, selection, fitted, disturbance, interim, policy)


def launch_noise(pair: Pair, policy: Policy) -> float:
    """Return the launch-to-launch noise of a pair in the quantity that decides it, in logs.

    It is the prior's if there are too few launches, and 0 for a value that is always the same or has no ratio.
    """
    if identical(pair) or has_zero(pair):
        return 0.0
    change = examine(pair, policy).change
    return policy.prior_noise if change is None else change.noise


def _too_few(rounds: int) -> Reason[Code]:
    few = "1 launch a side is" if rounds == 1 else f"{rounds} launches a side are"
    return Reason("few_launches", f"{few} too few to tell anything from noise", f"measure {FULL_LOOKS[0]} or more")


def _summary(posterior: ChangePosterior) -> ChangeSummary:
    return ChangeSummary(posterior.shift, posterior.low, posterior.high, posterior.noise)


def _quantity(pair: Pair, *, cpu: bool) -> Quantity:
    """Return the quantity that is compared; ``cpu`` is whether it is CPU time."""
    if cpu:
        return "CPU time"
    return "wall time" if pair.a.unit in TIMES else "value"


def absolute_floor(pair: Pair, policy: Policy) -> float:
    """Return the absolute change of one call that is too small to matter, in the pair's unit."""
    return max(pair.floor, policy.floor / TIMES.get(pair.a.unit, 1.0))


def _estimated(pair: Pair, selection: Selection, fitted: Fit, disturbance: _Disturbance, policy: Policy) -> Interim:
    """Return the p-values of a change from the launches alone, and of a pass after its guards."""
    posterior, drifted = fitted.posterior, disturbance.drift
    pass_steps = _pass_steps(pair, selection, fitted, disturbance, policy)
    note = _drift_note(drifted) if drifted else covariates.removed(fitted, policy.log_margin)
    interim = Interim(
        posterior.p_below(policy.log_margin), posterior.p_above(-policy.log_margin), pass_steps[-1][1], fitted.level,
        _summary(posterior), _quantity(pair, cpu=selection.column == "cpu"), note=note,
        adjusted=fitted.follows_canary, pass_steps=pass_steps,
    )  # fmt: skip
    return interim._replace(change_steps=((None, interim.p_change),))


def _drift_note(drifted: float) -> Reason[Code]:
    text = f"all launches of one side ran before the other's, and the machine may have drifted by {drifted * 100:.1f} %"
    return Reason("drift", text, "alternate the two sides")


def _pass_steps(pair: Pair, selection: Selection, fitted: Fit, disturbance: _Disturbance, policy: Policy) -> Steps:
    """Return how the p-value of a pass came about.

    If every sample was interrupted nothing passes, since a wait in the code looks the same as an interruption.
    """
    alone, drifted = (_p_pass(pair, fitted, policy, by) for by in (0.0, disturbance.drift))
    proven = drifted if selection.proven else 1.0
    return (
        (None, alone), ("drift", drifted), ("always_interrupted", proven),
        ("slow_spells", min(1.0, disturbance.spells * proven)),
    )  # fmt: skip


def _p_pass(pair: Pair, fitted: Fit, policy: Policy, drifted: float) -> float:
    """Return the probability that the change, up or down, is large enough to matter."""
    least = max(policy.log_tolerance, math.log1p(absolute_floor(pair, policy) / fitted.level)) - drifted
    return max(fitted.posterior.p_above(least), fitted.posterior.p_below(-least)) if least > 0 else 1.0


def _guarded(
    pair: Pair, selection: Selection, fitted: Fit, disturbance: _Disturbance, interim: Interim, policy: Policy
) -> Interim:
    """Return the analysis after all guards on a change."""
    posterior, bound = fitted.posterior, policy.log_margin + disturbance.drift
    interim = interim.guarded("drift", posterior.p_below(bound), posterior.p_above(-bound))
    if min(interim.p_regression, interim.p_improvement) > CONSIDERED:
        return interim
    if veto := _veto(pair, selection, fitted, interim, policy):
        return interim.guarded(veto, 1.0, 1.0)
    interim = _with_alternatives(fitted, interim, bound)
    unknown = not selection.interruptions_known and selection.column == "samples" and pair.a.unit in TIMES
    factor = UNKNOWN_INTERRUPTIONS if unknown else 1.0
    guard: Guard = "interruptions_unknown" if factor > disturbance.spells else "slow_spells"
    factor = max(disturbance.spells, factor)
    interim = interim.guarded(guard, *(min(1.0, factor * p) for p in (interim.p_regression, interim.p_improvement)))
    return _confirmed_in_cycles(pair, interim, policy)


def _veto(pair: Pair, selection: Selection, fitted: Fit, interim: Interim, policy: Policy) -> Guard | None:
    """Return the guard that rules out a significant change as too small or not due to the code; None if none does."""
    shift = fitted.posterior.shift
    if abs(shift) < policy.log_called:
        return "small"
    if abs(math.expm1(shift)) * interim.base < absolute_floor(pair, policy):
        return "floor"
    if selection.wall and guards.wall_contradicts(selection.wall, shift, policy.log_margin):
        return "wall_time"
    if guards.rounds_contradict(fitted.base, fitted.head, shift):
        return "rounds"
    return "canary" if guards.canary_moved_along(pair, shift) else None


def _with_alternatives(fitted: Fit, interim: Interim, bound: float) -> Interim:
    """Return the analysis with the alternative explanations averaged into the p-value of the change.

    Args:
        fitted: The launches.
        interim: The analysis, with p-values for independent launches.
        bound: What a change must exceed, in logs.
    """
    up = fitted.posterior.shift > 0
    states, weight = guards.slow_states(fitted.base, fitted.head)
    correlated = noise.compare(fitted.candidates, weight)
    modes = guards.bimodal(fitted.base, fitted.head, fitted.posterior, fitted.prior)
    alternatives: tuple[tuple[Guard, float, float], ...] = (
        ("slow_states", correlated.p_below(bound) if up else correlated.p_above(-bound), states),
        ("two_modes", 1.0, modes),
    )
    for guard, p_alternative, probability in alternatives:
        p_value = interim.p_change
        p_value += probability * (p_alternative - p_value)
        up_down = (p_value, interim.p_improvement) if up else (interim.p_regression, p_value)
        interim = interim.guarded(guard, *up_down)
    return interim


def _confirmed_in_cycles(pair: Pair, interim: Interim, policy: Policy) -> Interim:
    """Return the analysis of GPU time, checked against its cycles: more time in equal cycles is due to the clock."""
    cycles = guards.in_cycles(pair)
    if cycles is None:
        return interim
    other = examine(cycles, policy)
    if min(other.p_regression, other.p_improvement) > CONSIDERED:
        interim = interim._replace(p_pass=other.p_pass, clock=True, pass_steps=other.pass_steps)
        return interim.guarded("clock", 1.0, 1.0)
    return interim.guarded(
        "clock", max(interim.p_regression, other.p_regression), max(interim.p_improvement, other.p_improvement)
    )
