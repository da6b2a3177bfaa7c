"""The memory chart of one kernel: waves, LDS, caches and DRAM as boxes, with the traffic between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.profile.report.limits import NEAR
from rocattn_profiling.profile.report.records import KernelProfile, ReasonCode
from rocattn_profiling.profile.report.speed_of_light import alike, memory_name, missing, rate_text
from rocattn_profiling.profile.report.verdict import NOT_COUNTABLE

if TYPE_CHECKING:
    from rocattn_profiling.base.reasons import Reason

WIDTH, HEIGHT = 360.0, 392.0  # small, so that text of size 11.5 stays legible on a phone
BUSY = 25.0
"""Percent of the peak from which an edge is marked as busy; from `NEAR` on it bounds the kernel."""
_ROW = 46.0  # height of a box
_SMALL = ("scalar_l1_hit_pct", "instruction_l1_hit_pct")
_COLUMNS = ((4.0, 112.0), (124.0, 116.0), (248.0, 108.0))  # left edge and width of LDS, vector L1, small caches


@dataclass(frozen=True, slots=True)
class MemoryBox:
    """A box: its position, its name and one line of facts, or a note that nothing was collected.

    Attributes:
        tone: As for an edge, by the level's share of its peak.
    """

    x: float
    y: float
    width: float
    height: float
    name: str
    facts: str
    is_known: bool
    title: str
    tone: str = "calm"


@dataclass(frozen=True, slots=True)
class MemoryEdge:
    """The traffic between two boxes: an arrow down, up or both ways.

    Attributes:
        x, top, bottom: Its position.
        width: Line width; grows with the share of the peak.
        tone: "unknown", "calm", "busy" or "near".
        lines: Its label: rate, share of the peak.
        is_read, is_write: Which ends have an arrowhead: reads point up to the waves, writes down.
    """

    x: float
    top: float
    bottom: float
    width: float
    tone: str
    lines: tuple[str, ...]
    title: str
    is_read: bool = True
    is_write: bool = True


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Everything that the template needs; lengths are in units of the view box."""

    description: str
    width: float
    height: float
    boxes: list[MemoryBox]
    edges: list[MemoryEdge]
    lacking: list[tuple[str, Reason[ReasonCode]]]


def memory_chart(kernel: KernelProfile, counted: Mapping[str, object]) -> MemoryChart | None:
    """Lay out the memory chart of a kernel; None if none of its traffic is known.

    Args:
        kernel: The kernel.
        counted: The profile's counters.
    """
    chart = _Chart(kernel, counted)
    return chart.made() if chart.is_worth_it else None


class _Chart:
    """Collects the boxes and edges of one kernel."""

    def __init__(self, kernel: KernelProfile, counted: Mapping[str, object]) -> None:
        self._kernel, self._counted = kernel, counted
        self._lacking: dict[str, Reason[ReasonCode]] = {}
        self._near = {bound.key: bound.pct for bound in kernel.bounds.known} if kernel.bounds else {}

    @property
    def is_worth_it(self) -> bool:
        """Whether any traffic below the waves is known."""
        return any(
            self._value(key) is not None
            for key in ("read_gbps", "write_gbps", "l2_hit_pct", "l2_gbps", "l1_gbps", "lds_busy_pct", "lds_time_pct")
        )

    def made(self) -> MemoryChart:
        """Return the chart."""
        gap = (HEIGHT - 2 - 5 * _ROW) / 4
        rows = [1 + n * (_ROW + gap) for n in range(5)]
        (lds, lds_wide), (l1, l1_wide), (small, small_wide) = _COLUMNS
        inner = small + small_wide - l1
        memory = memory_name(self._kernel)
        boxes = [
            self._box((lds, rows[0], WIDTH - 8), "Waves", self._waves(), ("achieved_occupancy_pct",)),
            self._box((lds, rows[1], lds_wide), "LDS", self._lds(), ("lds_busy_pct", "lds_time_pct"), "lds"),
            self._box((l1, rows[1], l1_wide), "Vector L1", self._hits("l1_hit_pct"), ("l1_hit_pct",), "l1"),
            self._box((small, rows[1], small_wide), "Scalar, instr.", self._small(), _SMALL),
            self._box((l1, rows[2], inner), "L2", self._hits("l2_hit_pct"), ("l2_hit_pct",), "l2"),
            self._box((l1, rows[3], inner), "Fabric, Infinity Cache", self._fabric(), ("read_latency_cycles",)),
            self._box((l1, rows[4], inner), memory, self._memory(), ("memory_pct", "read_gbps"), "memory"),
        ]
        below = [row + _ROW for row in rows]
        left, right = l1 + 18, l1 + 132
        lds_share = self._near.get("lds", self._value("lds_time_pct"))
        edges = [
            self._edge("LDS traffic", "lds_moved_gbps", lds_share, (lds + 18, below[0], rows[1])),
            self._edge("vector L1 traffic", "l1_gbps", self._value("l1_pct"), (l1 + 18, below[0], rows[1])),
            self._edge("L2 traffic", "l2_gbps", self._value("l2_pct"), (l1 + 18, below[1], rows[2])),
            self._edge("reads by L2", "read_gbps", self._of_fabric("read_gbps"), (left, below[2], rows[3]), "up"),
            self._edge("writes by L2", "write_gbps", self._of_fabric("write_gbps"), (right, below[2], rows[3]), "down"),
            self._dram("read_gbps", "dram_read_pct", (left, below[3], rows[4]), "up"),
            self._dram("write_gbps", "dram_write_pct", (right, below[3], rows[4]), "down"),
        ]
        known = [f"{box.name}: {box.facts}" for box in boxes if box.is_known]
        known += [edge.title for edge in edges if edge.tone != "unknown"]
        return MemoryChart(
            f"Memory chart. {'; '.join(known)}", WIDTH, HEIGHT, boxes, edges, alike([*self._lacking.items()])
        )

    def _value(self, key: str) -> float | None:
        metric = self._kernel.values.get(key)
        return metric.value if metric else None

    def _constant(self, name: str) -> float | None:
        return self._kernel.device.constants.get(name) if self._kernel.device else None

    def _box(
        self, place: tuple[float, float, float], name: str, facts: str, metrics: Sequence[str], limit: str = ""
    ) -> MemoryBox:
        x, y, width = place
        if facts:
            return MemoryBox(x, y, width, _ROW, name, facts, True, f"{name}: {facts}", _tone(self._near.get(limit)))
        reason = missing(self._kernel, metrics, self._counted)
        self._lacking.setdefault(name, reason)
        said = "no counter here" if reason.code == NOT_COUNTABLE else "not collected"
        return MemoryBox(x, y, width, _ROW, name, said, False, f"{name}: {reason.line}")

    def _edge(
        self, name: str, key: str, pct: float | None, place: tuple[float, float, float], towards: str = ""
    ) -> MemoryEdge:
        rate = self._value(key)
        is_read, is_write = towards != "down", towards != "up"
        if rate is None:
            reason = missing(self._kernel, (key,), self._counted)
            self._lacking.setdefault(name, reason)
            return MemoryEdge(*place, 1.5, "unknown", (), f"{name}: {reason.line}", is_read, is_write)
        if not rate:
            return MemoryEdge(*place, 1.5, "calm", ("none",), f"{name}: none", is_read, is_write)
        most = "≤ " if key == "lds_moved_gbps" else ""
        unit = "busy" if key == "lds_moved_gbps" else "of peak"
        lines = (f"{most}{rate_text(rate)}", f"{_percent(pct)} % {unit}" if pct is not None else "")
        title = f"{name}: {' '.join(line for line in lines if line)}{self._bytes(rate)}"
        return MemoryEdge(*place, _width(pct), _tone(pct), tuple(filter(None, lines)), title, is_read, is_write)

    def _bytes(self, gbps: float) -> str:
        """Return the bytes that a rate amounts to in a launch of median time."""
        median = self._kernel.time_ns.get(50)
        return f", {quantity(gbps * median, 'bytes')} per launch" if median else ""

    def _dram(self, key: str, share: str, place: tuple[float, float, float], towards: str) -> MemoryEdge:
        """Return the part of the fabric's traffic that reached the GPU's own memory."""
        rate, part, peak = self._value(key), self._value(share), self._constant("peak_gbps")
        name = f"memory {key.partition('_')[0]}s"
        if rate is None or part is None:
            return self._edge(name, share if part is None else key, None, place, towards)
        own = rate * part / 100
        pct = 100 * own / peak if peak else None
        title = f"{name}: {rate_text(own)}, {_percent(part)} % of the requests{self._bytes(own)}"
        lines = (rate_text(own), f"{_percent(part)} % of them")
        return MemoryEdge(*place, _width(pct), _tone(pct), lines, title, towards != "down", towards != "up")

    def _of_fabric(self, key: str) -> float | None:
        """Return one direction's share of the bandwidth from L2 to the fabric; `fabric_pct` is the larger of both."""
        rates = [self._value(each) for each in ("read_gbps", "write_gbps")]
        own, whole, known = self._value(key), self._value("fabric_pct"), [each for each in rates if each]
        return whole * own / max(known) if own is not None and whole is not None and known else None

    def _waves(self) -> str:
        occupancy, vector, matrix = (
            self._value(key) for key in ("achieved_occupancy_pct", "valu_busy_pct", "matrix_busy_pct")
        )
        facts = [
            f"{_percent(occupancy)} % of wave slots" if occupancy is not None else "",
            f"VALU {_percent(vector)} %" if vector is not None else "",
            f"matrix {_percent(matrix)} %" if matrix else "",
        ]
        return ", ".join(filter(None, facts))

    def _lds(self) -> str:
        conflicts, unaligned = self._value("lds_conflict_pct"), self._value("lds_unaligned_pct")
        if unaligned and unaligned > (conflicts or 0):
            return f"{_percent(unaligned)} % unaligned"
        if conflicts is not None:
            return f"{_percent(conflicts)} % conflicts"
        busy = next((each for key in ("lds_time_pct", "lds_busy_pct") if (each := self._value(key)) is not None), None)
        return "" if busy is None else f"{_percent(busy)} % busy" if busy else "not used"

    def _hits(self, key: str) -> str:
        hits = self._value(key)
        return f"{_percent(hits)} % hits" if hits is not None else ""

    def _small(self) -> str:
        scalar, code = self._value("scalar_l1_hit_pct"), self._value("instruction_l1_hit_pct")
        known = [_percent(each) for each in (scalar, code) if each is not None]
        return f"{', '.join(known)} % hits" if known else ""

    def _fabric(self) -> str:
        read, write = self._value("read_latency_cycles"), self._value("write_latency_cycles")
        both = (("read", read), ("write", write))
        known = [f"{word} {each:,.0f}" for word, each in both if each is not None]
        return f"{', '.join(known)} cycles" if known else ""

    def _memory(self) -> str:
        share, peak = self._value("memory_pct"), self._constant("peak_gbps")
        if share is not None:
            return f"{_percent(share)} % of {rate_text(peak)}"
        known = [each for key in ("read_gbps", "write_gbps") if (each := self._value(key)) is not None]
        return rate_text(sum(known)) if known else ""


def _percent(pct: float) -> str:
    """Return a percentage, rounded to useful digits."""
    return f"{pct:.0f}" if pct >= 9.5 or not pct else digits(pct, 2) if pct >= 0.05 else "<0.1"


def _width(pct: float | None) -> float:
    return 2.0 if pct is None else round(2 + 10 * min(pct, 100) / 100, 1)


def _tone(pct: float | None) -> str:
    return "calm" if pct is None or pct < BUSY else "busy" if pct < NEAR else "near"
