"""The verdict as an HTML page: verdict, evidence with one dot per process launch, cause, next command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocattn_profiling.gate.formats import render
from rocattn_profiling.gate.groups import acceptance, by_cause, by_reason, common_part, deciding, repeats
from rocattn_profiling.gate.model import Cause, Entry, GateResult
from rocattn_profiling.gate.rule.launches import Column, choose
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side
from rocattn_profiling.measure.stats import low_quantile
from rocattn_profiling.pages.charts import Strip, strip
from rocattn_profiling.pages.quantities import quantity
from rocattn_profiling.pages.render import standalone

FILE = "index.html"
TONES = {
    "pass": "good", "improvement": "good", "regression": "bad", "failed": "bad", "missing": "bad", "void": "warn",
    "removed": "warn", "problem": "bad", "not measured": "warn", "inconclusive": "warn", "waived": "warn",
    "broken": "warn", "unreached": "warn",
}  # fmt: skip
_LISTED = ("unreached", "new", "removed", "skipped")  # shown by name and reason, without numbers
MOST_OPEN = 8
"""Benchmarks per cause that are shown unfolded; the others are folded below them."""


class Piece(NamedTuple):
    """A part of a sentence: plain words, or code from between backticks."""

    text: str
    is_code: bool


def pieces(text: str) -> list[Piece]:
    """Split a sentence into words and code; an unpaired backtick makes all of it words."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [Piece(text, is_code=False)]
    return [Piece(part, is_code=place % 2 == 1) for place, part in enumerate(parts) if part]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One benchmark or exact metric: numbers as text, reasons, and a dot for each launch of both sides."""

    label: str
    base: str
    head: str
    ratio: str
    interval: str
    rounds: int
    reasons: list[str]
    traceback: str
    waiver: str
    rule: str
    strip: Strip | None


@dataclass(frozen=True, slots=True)
class GatePart:
    """Rows that belong together: of one cause, undecided for one reason, or of one status.

    Attributes:
        word: Their status in words ("slower", "undecided").
        tone: "good", "bad", "warn" or "".
        rows: Worst first; their labels without ``title``.
        title: The common beginning of their names; "" if there is none.
        why: The reason for their status, and what would help; "" if the rows show it.
        causes: Causes and their text in pieces, most likely first.
        command: The command that measures them again; ``accept``: the line that accepts the worst; "" for none.
        is_open: Whether it is shown unfolded.
    """

    word: str
    tone: str
    rows: list[GateRow]
    title: str = ""
    why: str = ""
    causes: Sequence[tuple[Cause, list[Piece]]] = ()
    command: str = ""
    accept: str = ""
    is_open: bool = False

    @property
    def shown(self) -> list[GateRow]:
        """The rows that are shown unfolded."""
        return self.rows if len(self.rows) <= MOST_OPEN + 1 else self.rows[:MOST_OPEN]

    @property
    def folded(self) -> list[GateRow]:
        """The rows that are folded."""
        return self.rows[len(self.shown) :]


@dataclass(frozen=True, slots=True)
class GateView:
    """The verdict page.

    Attributes:
        result: The verdict.
        tone: Its color.
        word: Its name.
        counted: The number of entries per status, in words.
        parts: Parts that need attention, worst first: causes, undecided, waived, improved, broken.
        listed: Parts without numbers.
        quiet: Passes and entries that are not judged: folded, with small charts.
    """

    result: GateResult
    tone: str
    word: str
    counted: str
    parts: list[GatePart]
    listed: list[GatePart]
    quiet: list[GatePart]


def html(result: GateResult) -> str:
    """Return the verdict as a self-contained page, which opens from disk."""
    title = f"{render.headline(result)}: {result.head.short} against {result.base.short}"
    return standalone("gate.html.j2", title, result.created_ms, gate=view(result))


def view(result: GateResult) -> GateView:
    """Lay out a verdict."""
    return GateView(
        result=result,
        tone=TONES[result.verdict],
        word=render.headline(result),
        counted=render.counted(result),
        parts=[
            *_causes(result),
            *_undecided(result),
            *_of(result, "waived", is_open=True),
            *_of(result, "improvement", is_open=True),
            *(
                GatePart(render.word("broken"), "warn", _rows(group.entries), why=group.reason.line)
                for group in by_reason(result.entries, "broken")
            ),
        ],
        listed=[part for status in _LISTED for part in _of(result, status)],
        quiet=[*_passes(result), *_of(result, "ungated")],
    )


def _causes(result: GateResult) -> Iterable[GatePart]:
    groups = by_cause(result.entries)
    commands, command = repeats(result, groups)
    if command:
        commands[-1] = command
    for group, own in zip(groups, commands, strict=True):
        common = common_part([render.title(entry) for entry in group.entries])
        yield GatePart(
            word=render.word(group.status, group.entries[0].metric),
            tone="bad",
            rows=_rows(group.entries, len(common) if len(group.entries) > 1 else 0),
            title=common.removesuffix("::").removesuffix(".") if len(group.entries) > 1 else "",
            causes=[(cause, pieces(cause.text)) for cause in group.causes],
            command=own,
            accept=acceptance(result, group),
            is_open=True,
        )


def _undecided(result: GateResult) -> Iterable[GatePart]:
    for group in by_reason(result.entries, "inconclusive"):
        yield GatePart(
            word=f"undecided{', likely slower' if group.suspect else ''}",
            tone="warn",
            rows=_rows(group.entries),
            why=group.reason.line,
            command=deciding(result, group),
            is_open=group.suspect,
        )


def _of(result: GateResult, status: str, *, is_open: bool = False) -> Iterable[GatePart]:
    entries = [entry for entry in result.entries if entry.status == status and not entry.worse]
    if entries:
        yield GatePart(render.word(status), TONES.get(status, ""), _rows(entries), is_open=is_open)


def _passes(result: GateResult) -> Iterable[GatePart]:
    """Yield the measured passes, then those that run no changed code."""
    passed = [(entry, entry.decision) for entry in result.entries if entry.status == "pass"]
    untouched = [entry for entry, decision in passed if decision is not None and decision.untouched]
    shown = [entry for entry, decision in passed if decision is None or not decision.untouched]
    for entries, why in ((shown, ""), (untouched, render.UNTOUCHED)):
        if entries:
            yield GatePart(render.word("pass"), TONES["pass"], _rows(entries), why=why)


def _rows(entries: Sequence[Entry], common: int = 0) -> list[GateRow]:
    return [_row(entry, common) for entry in entries]


def _row(entry: Entry, common: int) -> GateRow:
    unit, factor = ("seconds", 1e-9) if entry.unit == "ns" else (entry.unit, 1.0)
    decision = entry.decision
    sides = [("base", entry.base_launches), ("head", entry.head_launches)]
    column = _column(entry)
    return GateRow(
        label=render.title(entry)[common:] or render.title(entry),
        base=_value(entry, entry.base),
        head=_value(entry, entry.head),
        ratio=_ratio(decision),
        interval=render.interval(entry),
        rounds=decision.rounds_used if decision else 0,
        reasons=render.reasons(entry),
        traceback=entry.traceback,
        waiver=entry.waiver,
        rule=entry.rule,
        strip=strip([(name, [v * factor for v in _locations(launches, column)]) for name, launches in sides], unit),
    )


def _ratio(decision: Decision | None) -> str:
    if decision is None or decision.untouched:
        return ""
    return render.ratio(decision.ratio) if decision.has_ratio else "ratio unknown"


def _column(entry: Entry) -> Column:
    """Return the quantity of an entry's numbers: on a busy machine wall times may be several times CPU times."""
    decision = entry.decision
    if decision is None or not decision.rounds_used or not decision.has_ratio:
        return "samples"
    a, b = Side(launches=entry.base_launches), Side(launches=entry.head_launches)
    pair = Pair(id=entry.label, a=a, b=b).first(decision.rounds_used)
    return choose(pair).column if pair.rounds else "samples"


def _locations(launches: Iterable[PairLaunch], column: Column) -> list[float]:
    """Return each launch's location, as used in the decision."""
    return [low_quantile(values) for launch in launches if (values := getattr(launch, column))]


def _value(entry: Entry, value: float | None) -> str:
    if value is None:
        return ""
    if entry.unit == "ns":
        return quantity(value * 1e-9, "seconds")
    # Counts have no decimals: 43 registers, not 43.0.
    return quantity(value, entry.unit) if entry.unit == "bytes" or value % 1 else f"{value:.0f} {entry.unit}".rstrip()
