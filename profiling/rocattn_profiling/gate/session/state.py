"""The state of one case of a session: its launches so far, which of them count, and whether it is decided."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from rocattn_profiling.asv.launch import Case, Outcome, Request
from rocattn_profiling.gate.model import SIDES, EarlierNoise, SideName
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side, no_measurement
from rocattn_profiling.gate.rule.policy import Policy

TIME_UNITS = {"seconds": "ns"}
_GPU_MEDIANS = ("mclk_mhz", "power_w", "temperature_c")


@dataclass(eq=False)
class CaseState:
    """A session's data on one case.

    Attributes:
        case, policy: The case, and the rule that decides it.
        module: The module whose import its launches share; "" if each launch imports it.
        sampling: How its launches sample: as requested, then as chosen by the first launch that ran.
        first: The first launch of each side, or the failed one.
        kept: For each side, round -> the launch that counts.
        canaries: Build of Python -> canaries in the order of launches.
        decided: Whether a look has decided it.
        settled: The decision, if one round sufficed.
    """

    case: Case
    policy: Policy
    module: str
    sampling: Request
    first: dict[SideName, Outcome] = field(default_factory=dict)
    kept: dict[SideName, dict[int, Outcome]] = field(default_factory=lambda: {side: {} for side in SIDES})
    canaries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    decided: bool = False
    settled: Decision | None = None

    @property
    def stage(self) -> Literal["unreached", "failed", "open", "settled"]:
        """How far the case is: not launched on both sides, failed, open, or settled by one round."""
        if len(self.first) < len(SIDES):
            return "unreached"
        if any(outcome.status != "ok" for outcome in self.first.values()):
            return "failed"
        return "open" if self.settled is None else "settled"

    @property
    def importing(self) -> str:
        """The module whose import it shares, or else its own label."""
        return self.module or self.case.label

    def add(self, side: SideName, round_: int, outcome: Outcome) -> None:
        """Add a finished launch; it counts unless an earlier one of the same round and side had a faster canary.

        If earlier launches ran, a failure on head is blamed on the change; one on base means the case is unreliable.
        """
        if side not in self.first:
            self.first[side] = outcome
        elif outcome.status != "ok":
            reason = f"{side}, round {round_ + 1}: {outcome.reason}"
            failure = msgspec.structs.replace(outcome, status="failed", reason=reason)
            self.first |= {"head": failure, side: failure}
        if outcome.launch is None:
            return
        if not self.sampling.count:
            launch = outcome.launch
            self.sampling = Request(number=launch.number, count=len(launch.samples_ns), primed=outcome.primed)
        if outcome.canary_ns > 0:
            self.canaries[outcome.canary_of].append(outcome.canary_ns)
        before = self.kept[side].get(round_)
        if before is None or outcome.canary_ns < before.canary_ns:
            self.kept[side][round_] = outcome

    def pair(self, earlier: EarlierNoise) -> Pair:
        """Return the launches that count, in the rounds of its policy, with its earlier noise."""
        label, benchmark, most = self.case.label, self.case.benchmark, self.policy.looks[-1]
        kept = {side: {r: o for r, o in self.kept[side].items() if r < most} for side in SIDES}
        # Canaries of two builds of Python are not comparable, and only times depend on the machine's speed.
        canary = benchmark.type == "time" and len({o.canary_of for side in SIDES for o in kept[side].values()}) <= 1
        unit, number = TIME_UNITS.get(benchmark.unit, benchmark.unit), self.sampling.number or 1
        launches = {side: [pair_launch(r, o, canary=canary) for r, o in kept[side].items()] for side in SIDES}
        base, head = (
            Side(benchmark=label, side=side, unit=unit, number=number, launches=launches[side]) for side in SIDES
        )
        history = earlier.history(label, self.sampling.count)
        return Pair(id=label, a=msgspec.structs.replace(base, history=history), b=head)


def pair_launch(round_: int, outcome: Outcome, *, canary: bool = True) -> PairLaunch:
    """Return a launch in the rule's form; ``canary`` is whether its canary applies to it."""
    launch = outcome.launch
    assert launch is not None
    return PairLaunch(
        round=round_,
        pos=launch.pos,
        start_us=launch.start_ns / 1e3,
        samples=launch.samples_ns,
        cpu=launch.cpu_ns,
        nivcsw=launch.nivcsw,
        canary=outcome.canary_ns if canary else 0.0,
        load=launch.load,
        steal_pct=outcome.steal_pct,
        sclk_mhz=[state.sclk_mhz for state in outcome.gpu] if all(state.sclk_mhz for state in outcome.gpu) else [],
        **{name: _median([getattr(state, name) for state in outcome.gpu]) for name in _GPU_MEDIANS},
    )


def _median(values: Sequence[float]) -> float:
    """Return the median of the known values; 0 if none is known."""
    return statistics.median([value for value in values if value] or [0.0])


def with_ratio(outcome: Outcome) -> Outcome:
    """Turn a negative or absurd value (of a ``track_`` benchmark) into a failure, since it has no ratio."""
    values = outcome.launch.samples_ns if outcome.launch is not None else []
    wrong = next((value for value in values if no_measurement(value)), None)
    if wrong is None:
        return outcome
    if math.isnan(wrong):
        return msgspec.structs.replace(outcome, status="skipped", launch=None, reason="n/a: the benchmark returned NaN")
    kind = "a negative" if wrong < 0 else "so large a" if wrong > 1 else "so small a"
    reason = f"the benchmark returned {wrong:g}: {kind} value has no ratio to judge"
    return msgspec.structs.replace(outcome, status="failed", launch=None, reason=reason)
