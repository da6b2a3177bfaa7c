"""Results of analyzing a history: changes of level, the commits behind them, and non-code changes (boundaries)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from rocattn_profiling.pages.quantities import percent, quantity
from rocattn_profiling.site.changepoints import FEWEST, ChangePoint

State = Literal["new", "confirmed", "recovered", "waived", "event", "small"]
Kind = Literal["open", "better", "other", "recovered", "waived", "event", "small"]
OPEN: tuple[State, ...] = ("new", "confirmed")
ROUNDING = 2.0**-40
"""A rise from 0 to less than this means that the last bits of a result changed: an error of 1e-16, not a time."""
LIMIT = 0.05
"""Relative change above which it is announced: asv's default for ``regressions_thresholds``, which overrides it."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first commit measured with a different machine, driver or compiler; where (`where_of`), and what changed."""

    sha: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level in one series.

    Attributes:
        label: The benchmark with its parameters; ``where`` is its machine and environment.
        benchmark: Its name.
        point: Size, interval and state, from the statistics.
        commits: Hashes of the commits that may have caused it, oldest first; ``likeliest`` is the most likely one, by
            the evidence of all lines that moved with it.
        lower_is_better: False for rates; None for numbers that are neither good nor bad.
        waived: Why a regression is accepted; "" if it is not.
        since: The last commit before ``commits`` with a value.
        limit: The relative change above which it is announced.
        rise: The new level of a line that was zero before, whose ratio is infinite; None for others.
        event: Why the machine or environment is to blame; "" if it is not.
    """

    label: str
    benchmark: str
    where: str
    unit: str
    point: ChangePoint
    commits: list[str]
    likeliest: str
    date_ms: int
    lower_is_better: bool | None = True
    waived: str = ""
    since: str = ""
    limit: float = LIMIT
    rise: float | None = None
    event: str = ""

    @property
    def id(self) -> str:
        """A name that is the same in every build of the site: for anchors and the feed."""
        return hashlib.sha256(f"{self.label}\n{self.where}\n{self.likeliest}".encode()).hexdigest()[:16]

    @property
    def worse(self) -> bool:
        """Whether it got slower or larger (of a rate: smaller)."""
        return self.lower_is_better is not None and (self.point.ratio > 1) == self.lower_is_better

    @property
    def better(self) -> bool:
        """Whether it got faster or smaller (of a rate: larger)."""
        return self.lower_is_better is not None and not self.worse

    @property
    def weight(self) -> float:
        """Its size in logs, up or down."""
        return abs(math.log(self.point.ratio))

    @property
    def slight(self) -> bool:
        """Whether it is below the limit, or a rise from 0 by a rounding error."""
        return self.rise < ROUNDING if self.rise is not None else self.weight <= math.log1p(self.limit)

    @property
    def size(self) -> str:
        """Its size as text: "+3.1 %", or "0 → 5" for a line that was zero."""
        return percent(self.point.ratio) if self.rise is None else f"0 → {quantity(self.rise, self.unit)}"

    @property
    def state(self) -> State:
        """The state of the change; excuses apply unless it recovered by itself."""
        if self.point.state not in OPEN:
            return self.point.state
        return "waived" if self.waived else "small" if self.slight else "event" if self.event else self.point.state

    @property
    def kind(self) -> Kind:
        """The heading that it is listed under."""
        state = self.state
        if state == "new" or state == "confirmed":  # noqa: PLR1714 - mypy narrows by it
            return "other" if self.lower_is_better is None else "open" if self.worse else "better"
        return state

    @property
    def open(self) -> bool:
        """Whether it is an announced regression: not recovered, waived, slight, or due to an event."""
        return self.kind == "open"

    @property
    def tone(self) -> str:
        """Its color class on a page."""
        tones: dict[Kind, str] = {"open": "bad", "better": "good", "waived": "warn"}
        return tones.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class CommitCause:
    """A commit with the changes that most likely came with it, at most one per line, largest first.

    Attributes:
        since: The last commit measured before it, "" if there is none; ``among`` commits lie between that one and the
            last suspect, which is included.
        event: Why the machine or environment is to blame instead; "" if it is not.
        doubt: Why the machine or environment may be to blame, although the commit touched code.
    """

    sha: str
    date_ms: int
    changes: list[LevelChange]
    since: str = ""
    among: int = 1
    event: str = ""
    doubt: str = ""

    @property
    def sizes(self) -> str:
        """Its smallest and largest change as text."""
        ordered = sorted(self.changes, key=lambda change: change.point.ratio)
        return " to ".join(dict.fromkeys((ordered[0].size, ordered[-1].size)))

    @property
    def states(self) -> list[LevelChange]:
        """One change of each state."""
        return list({change.state: change for change in self.changes}.values())


@dataclass(slots=True)
class Changes:
    """All changes, newest first, and which series were not searched.

    Attributes:
        listed: The changes.
        causes: The same by commit; as in Perfherder and rust-perf, the commit with the largest change comes first.
        boundaries: Commits across which no levels are compared.
        few: Number of series with too few points on the branch.
        zero: (label, where) of the series with values of zero or less, which have no ratios.
    """

    listed: list[LevelChange] = field(default_factory=list)
    causes: list[CommitCause] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    few: int = 0
    zero: list[tuple[str, str]] = field(default_factory=list)
    fewest: ClassVar[int] = FEWEST
    limit: ClassVar[float] = 1 + LIMIT

    @property
    def open(self) -> list[LevelChange]:
        """The open regressions, newest first."""
        return [change for change in self.listed if change.open]

    def of(self, *kinds: Kind) -> list[CommitCause]:
        """Return the causes with changes of the given kinds, reduced to those changes, largest first."""
        own = [replace(cause, changes=[c for c in cause.changes if c.kind in kinds]) for cause in self.causes]
        return sorted((cause for cause in own if cause.changes), key=lambda cause: -cause.changes[0].weight)

    @property
    def regressions(self) -> list[CommitCause]:
        """Return the causes that made lines worse and were announced at some time."""
        own = self.of("open", "waived", "recovered")
        worse = [replace(cause, changes=[c for c in cause.changes if c.worse and not c.slight]) for cause in own]
        return [cause for cause in worse if cause.changes]

    def by_series(self) -> dict[tuple[str, str], list[LevelChange]]:
        """Return the changes of each series, by its label and where it was measured."""
        by_series: dict[tuple[str, str], list[LevelChange]] = {}
        for change in self.listed:
            by_series.setdefault((change.label, change.where), []).append(change)
        return by_series
