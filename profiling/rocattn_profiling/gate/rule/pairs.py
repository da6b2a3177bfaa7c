"""Stored pairs: the launches of one benchmark on two sides, as used by the rule and stored in JSON Lines."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule.constants import FLOOR_BYTES, FLOOR_NS
from rocattn_profiling.measure import stats

_TIME_NAMES = {
    1.0: ("ns", "nsec", "nanosecond", "nanoseconds"),
    1e3: ("us", "usec", "\u00b5s", "\u03bcs", "microsecond", "microseconds"),  # the micro sign, and the Greek letter
    1e6: ("ms", "msec", "millisecond", "milliseconds"),
    1e9: ("s", "sec", "second", "seconds"),
}
TIMES = {name: factor for factor, names in _TIME_NAMES.items() for name in names}  # unit -> ns
_SMALLEST, _LARGEST = 1e-30, 1e30  # nonzero values; no unit comes near these, and ratios stay finite
Number = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
"""A number in a verdict: decoding rejects any other."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NAME = 60  # characters of an id in a message


class PairError(RocattnError):
    """Raised when a pair contains a value that is not a measurement: NaN, infinity, a negative time."""


def no_measurement(value: float) -> str:
    """Return why a value cannot be compared by ratio; empty if it can (or is 0, which the rule handles)."""
    if not math.isfinite(value) or value < 0:
        return f"{value:g}"
    if value == 0 or _SMALLEST <= value <= _LARGEST:
        return ""
    return f"{value:g}, beyond {_SMALLEST:g} to {_LARGEST:g}"


class PairLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One process launch.

    Attributes:
        round: Index of its round, from 0; the two launches of a round ran back to back.
        pos: 0 if it ran first in its round, 1 if second.
        start_us: When it began, in microseconds on any clock.
        samples: Wall time (or value) per call of each sample, in the pair's unit.
        cpu: CPU time of the same samples; empty if unknown.
        nivcsw: Involuntary context switches during each sample; empty if unknown.
        canary: Time of the canary in the same process; 0 if there was none.
        load: Load average when it began.
        steal_pct: Percentage of CPU time taken by other virtual machines while it ran.
        sclk_mhz: GPU core clock during each sample; empty if unknown.
        mclk_mhz, power_w, temperature_c: Medians of the GPU's memory clock, power and temperature; 0 if unknown.
    """

    round: int
    pos: int = 0
    start_us: float = 0.0
    samples: list[float]
    cpu: list[float] = []
    nivcsw: list[int] = []
    canary: float = 0.0
    load: float = 0.0
    steal_pct: float = 0.0
    sclk_mhz: list[float] = []
    mclk_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one side; ``history`` has launches of earlier sessions with the same code and machine."""

    benchmark: str = ""
    side: str = ""
    unit: str = "ns"
    number: int = 1
    launches: list[PairLaunch]
    history: list[list[PairLaunch]] = []


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two sides of one benchmark: ``a`` is the base, ``b`` the head; a smaller value is better."""

    id: str
    a: Side
    b: Side

    @property
    def rounds(self) -> int:
        """The number of launches that both sides have."""
        return min(len(self.a.launches), len(self.b.launches))

    @property
    def floor(self) -> float:
        """The absolute change of one call that is too small to matter, in the pair's unit."""
        if self.a.unit in TIMES:
            return FLOOR_NS / TIMES[self.a.unit] / min(self.a.number, self.b.number)
        return FLOOR_BYTES if self.a.unit == "bytes" else 0.0

    def first(self, rounds: int) -> Pair:
        """Return the pair with only the first launches of each side, ordered by round."""
        a, b = (msgspec.structs.replace(s, launches=sorted(s.launches, key=_order)[:rounds]) for s in (self.a, self.b))
        return Pair(id=self.id, a=a, b=b)

    def check(self) -> None:
        """Reject values that are not measurements.

        Raises:
            PairError: A sample has no calls; a launch has no samples, a negative number of switches, or a sample that
                is NaN, infinite, negative or beyond any time or size in any unit.
        """
        id_ = self.id if len(self.id) <= _NAME else f"{self.id[: _NAME - 1]}…"
        if TIMES.get(self.a.unit, self.a.unit) != TIMES.get(self.b.unit, self.b.unit):  # `us` and `µs` are one unit
            raise PairError(f"{id_}: the sides are in {self.a.unit!r} and {self.b.unit!r}")
        for side, name in ((self.a, "a"), (self.b, "b")):
            if side.number < 1:
                raise PairError(f"{id_}: side {name} has number {side.number}: a sample is of 1 call or more")
            for launch in (*side.launches, *(past for session in side.history for past in session)):
                if why := _malformed(launch):
                    raise PairError(f"{id_}: round {launch.round} of side {name} has {why}")


def _order(launch: PairLaunch) -> tuple[int, int, float]:
    return launch.round, launch.pos, launch.start_us


def _malformed(launch: PairLaunch) -> str:
    """Return what is wrong with a launch; empty if nothing is."""
    if not launch.samples:
        return "no samples"
    values = (*launch.samples, *launch.cpu, *launch.sclk_mhz, launch.canary or 1.0)
    # The fast path for valid launches. NaN passes comparisons with min and max, but shows in the sum.
    sound = math.isfinite(sum(values)) and min(values) >= _SMALLEST and max(values) <= _LARGEST
    if not sound and (wrong := next(filter(None, map(no_measurement, values)), "")):
        return f"a sample that is not a time: {wrong}"
    columns = (launch.cpu, launch.nivcsw, launch.sclk_mhz)  # one value per sample, if known
    if any(column and len(column) != len(launch.samples) for column in columns):
        return "columns of unequal length"
    if launch.nivcsw and min(launch.nivcsw) < 0:
        return f"a count in nivcsw that is negative: {min(launch.nivcsw)}"
    return ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one pair.

    Attributes:
        id: The pair's id.
        verdict: "regression", "improvement", "pass" (the change is shown to be too small to matter) or
            "inconclusive".
        ratio, ratio_low, ratio_high: Head over base, with a 95 % interval; 1, 0 and infinity (as null) if unknown.
        p: P-value of the change in the direction of the estimate: the smallest over the looks, each divided by its
            look's leniency.
        rounds_used: Launches per side behind the verdict.
        reason: Why, in plain words.
        undecided: Why an inconclusive pair is not decided, and what would decide it; None for other verdicts.
        rounds_needed: About how many rounds would decide an inconclusive pair; 0 if more rounds alone would not.
    """

    id: str
    verdict: str
    ratio: Number = 1.0
    ratio_low: Number = 0.0
    ratio_high: Number | None = None
    p: Number = 1.0
    rounds_used: Count = 0
    reason: str = ""
    undecided: Reason[str] | None = None
    rounds_needed: Count = 0

    @property
    def has_ratio(self) -> bool:
        """Whether a ratio is known: 0 against 5 has none, and 1 would read as "no change".

        An inconclusive pair whose interval is too wide for a number has none either.
        """
        known = (self.ratio, self.ratio_low, self.ratio_high) != (1.0, 0.0, None)
        exact = self.ratio_low == self.ratio_high
        return known and (
            exact or self.verdict != "inconclusive" or not stats.undecided(self.ratio_low, self.ratio_high)
        )

    @property
    def untouched(self) -> bool:
        """Whether it passes because the benchmark runs no changed code; it was launched once, to check that it runs."""
        return self.verdict == "pass" and not self.rounds_used and not self.has_ratio
