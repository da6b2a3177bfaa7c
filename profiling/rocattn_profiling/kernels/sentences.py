"""Describe findings in a kernel engineer's words: what changed, and what it costs on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.model.occupancy import LDS, Need, Occupancy

if TYPE_CHECKING:
    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.model.cost import LoopCost, Work
    from rocattn_profiling.kernels.pins import LoopPin, Pin

_OF = {name: METRICS[metric.advice_of or name] for name, metric in METRICS.items()}
ADVICE = {name: metric.advice_ours or metric.advice for name, metric in _OF.items()}
"""Metric of a finding -> what to try, for the kernels that rocattn ships."""
_ASKED = "VGPRs asked for"
_SHOWN = 3  # most instruction kinds named in one sentence


def advice(metric: str, waves: Occupancy | None, *, ours: bool) -> str:
    """Return advice on a metric, with the numbers of the next occupancy step; "" if there is none.

    Args:
        metric: The finding's metric.
        waves: The kernel's occupancy; None if unknown.
        ours: Whether rocattn ships the kernel.
    """
    if _OF[metric] is not METRICS["occupancy"] or waves is None:
        return ADVICE[metric] if ours else _OF[metric].advice
    if waves.bound_by == (_ASKED,):
        return "drop or raise amdgpu_waves_per_eu: nothing else limits the waves"
    if (step := waves.next_step) is None:
        return "try another block size: fewer registers or less LDS would add no wave"
    parts = [f"{need.resource} by {_bytes(need)}" for need in step.needs]
    more = step.waves > waves.waves_per_simd or step.blocks is None
    won = f"{step.waves:g} waves per SIMD" if more else f"{step.blocks} blocks per {waves.unit}"
    return f"reduce {' and '.join(parts)} to fit {won}"


def _bytes(need: Need) -> str:
    return f"{need.now - need.at_most:,}{' bytes' * (need.resource == LDS)}"


def compiled_by(before: str, now: str) -> str:
    """Name the compilers of both sides."""
    unknown = "an unknown compiler"
    return f"compiled by {before or unknown} before and by {now or unknown} now"


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences about one kernel.

    Attributes:
        old, new: Its numbers before and now.
        facts: All its facts now.
        before: All its facts before; None if only the numbers are known.
    """

    old: Pin
    new: Pin
    facts: KernelFacts
    before: KernelFacts | None

    def spills(self) -> str:
        """Describe spilled registers."""
        parts = []
        in_agprs = bool(self.new.vgpr_spills and self.new.agprs and not self.new.scratch_bytes)
        if self.old.vgpr_spills != self.new.vgpr_spills:
            where = " (into AGPRs)" if in_agprs else ""
            parts.append(_count(self.old.vgpr_spills, self.new.vgpr_spills, "VGPR") + where)
        if self.old.sgpr_spills != self.new.sgpr_spills:
            where = " (into lanes of a VGPR)" if self.new.sgpr_spills and not self.new.scratch_bytes else ""
            parts.append(_count(self.old.sgpr_spills, self.new.sgpr_spills, "SGPR") + where)
        text = " and ".join(parts)
        if self.old.scratch_bytes != self.new.scratch_bytes:
            text += f", {_arrow(self.old.scratch_bytes, self.new.scratch_bytes)} bytes of scratch per lane"
        if self.new.vgpr_spills:
            count = None if in_agprs else self.facts.spills.instructions
            if count:
                text += f"; its hot loop accesses scratch with {count} instructions per iteration"
            elif count == 0:
                text += "; none is in its hot loop"
            if self.new.vgprs:
                text += f"; it has {self.new.vgprs} VGPRs"
        return text

    def scratch(self) -> str:
        """Describe scratch memory not caused by spills."""
        change = f"{_arrow(self.old.scratch_bytes, self.new.scratch_bytes)} bytes of scratch per lane"
        if not all(side.says("vgpr_spills") for side in (self.facts, self.before) if side):
            return f"{change}; whether spills use it is unknown"
        change += " without new spills"
        if self.new.scratch_bytes > self.old.scratch_bytes:
            return f"{change}: an array has an index unknown at compile time, or a call was not inlined"
        return change

    def occupancy(self) -> str:
        """Describe waves gained or lost, and the cause."""
        now = self.facts.occupancy
        assert now is not None
        before = now.max_waves_per_simd - (self.old.lost_wave_slots or 0)
        waves = f"{_arrow(before, now.waves_per_simd)} of {now.max_waves_per_simd} waves per SIMD"
        causes = [text for text in (self._registers(), self._lds(), self._block()) if text]
        other = "amdgpu_waves_per_eu" if _ASKED in now.bound_by else "other limits apply"
        return f"{waves}: {', '.join(causes) or other} ({now.sentence})"

    def blocks(self) -> str:
        """Describe blocks gained or lost while the waves stay the same."""
        now = self.facts.occupancy
        assert now is not None
        causes = [text for text in (self._registers(), self._lds()) if text]
        return f"{_arrow(self.old.blocks, self.new.blocks)} blocks per {now.unit}: {', '.join(causes)} ({now.sentence})"

    def registers(self) -> str:
        """Describe register changes that cost no wave."""
        if self.old.lost_wave_slots is None or self.new.lost_wave_slots is None:
            return f"{self._registers()}; whether this costs a wave is unknown"
        text = f"{self._registers()}, with no wave lost or gained"
        slack = self.facts.occupancy.slack if self.facts.occupancy else {}
        if "VGPRs" in slack and self.old.vgprs != self.new.vgprs:
            text += f" ({slack['VGPRs']} more before one is lost)"
        return text

    def lds(self) -> str:
        """Describe LDS changes that cost no block."""
        if self.old.blocks is None or self.new.blocks is None:
            return f"{self._lds()}; whether this costs a block is unknown"
        text = f"{self._lds()}, with no block lost or gained"
        slack = self.facts.occupancy.slack if self.facts.occupancy else {}
        return text + (f" ({slack['LDS']} bytes more before one is lost)" if "LDS" in slack else "")

    def matrix(self) -> str:
        """Describe matrix instructions added or removed."""
        if self.old.loop and self.old.loop.matrix_flops:
            return f"{self._loop()} no longer has matrix instructions: the products run on the vector unit"
        return f"{self._loop()} has matrix instructions now"

    def cycles(self, change: float, factor: float) -> str:
        """Describe the hot loop's issue cycles."""
        old, new = self._loops()
        text = f"{self._loop()} issues {_arrow(old.cycles['all'], new.cycles['all'])} cycles"
        each = " per iteration" if self.facts.loop and self.facts.loop.has_loop else ""
        text += each if factor == 1 else f"{each}, which does {factor:.3g} times the work"
        sign = "+" if change > 0 else ""
        text += f" ({sign}{100 * change:.1f} %{'' if factor == 1 else ' for the same work'})"
        what = self._kinds(factor) or self._parts(factor)
        return f"{text}: {what}" if what else text

    def loads(self, factor: float) -> str:
        """Describe wider or narrower loads."""
        old, new = self._loops()
        verb = "narrower" if (new.load_width or 0) < (old.load_width or 0) else "wider"
        change = f"{_loads(old)} -> {_loads(new)}{_per(factor)}"
        return f"global loads in {self._loop()} are {verb}: {change}"

    def order(self, name: str, numbers: tuple[float | None, float | None], factor: float) -> str:
        """Describe the order of the hot loop's instructions, by a metric that has a sentence."""
        orders = [loop.order for loop in self._loops()]
        named = [set(order.idioms) if order else set() for order in orders]
        return METRICS[name].sentence.format(
            change=_arrow(*numbers), short=_arrow(*map(_short, numbers)), loop=self._loop(),
            per=_per(factor),
            lanes=self._lanes(numbers),
            idioms=", ".join([*sorted(named[1] - named[0]), *(f"no {name}" for name in sorted(named[0] - named[1]))]),
            lane_bytes=_arrow(*(order.bytes_in_flight if order else 0 for order in orders)),
        )  # fmt: skip

    def _lanes(self, numbers: tuple[float | None, float | None]) -> str:
        """Describe the lanes' global addresses on the side with the worse access pattern."""
        side = self.facts if (numbers[1] or 0) > (numbers[0] or 0) else self.before
        lines = side.loop.cache_lines if side and side.loop else None
        if lines is None or lines.worst_lines < 2:
            return ""
        stride = lines.worst_stride
        apart = "a variable stride" if stride is None else f"a stride of {stride} bytes"
        if lines.own_lines:
            return f": each lane accesses its own {lines.line_bytes}-byte line ({apart})"
        return f": at worst {lines.worst_lines} lines of {lines.line_bytes} bytes per wave ({apart})"

    def instruction_cache(self, size: int) -> str:
        """Compare the hot loop's code with the instruction cache."""
        old, new = self._loops()
        fits = "fits the" if new.bytes <= size else "does not fit the"
        change = _arrow(_kib(old.bytes), _kib(new.bytes))
        return f"the code of the hot loop is about {change} and {fits} instruction cache of {_kib(size)}"

    def loop_code(self) -> str:
        """Describe hot-loop code that grew without saving cycles."""
        old, new = self._loops()
        change = _arrow(_kib(old.bytes), _kib(new.bytes))
        times = new.bytes / old.bytes
        return f"the code of the hot loop is about {change}, {times:.2g} times as much, but saves no issue cycles"

    def code(self) -> str:
        """Describe the size of the code."""
        return f"{_arrow(self.old.code_bytes, self.new.code_bytes)} bytes of code"

    def _loops(self) -> tuple[LoopPin, LoopPin]:
        assert self.old.loop
        assert self.new.loop
        return self.old.loop, self.new.loop

    def _loop(self) -> str:
        return "the hot loop" if self.facts.loop is None or self.facts.loop.has_loop else "its code, which has no loop,"

    def _registers(self) -> str:
        names = ("VGPRs", "AGPRs", "SGPRs")
        before = (self.old.vgprs, self.old.agprs, self.old.sgprs)
        after = (self.new.vgprs, self.new.agprs, self.new.sgprs)
        changed = zip(names, before, after, strict=True)
        return ", ".join(f"{name} {_arrow(old, new)}" for name, old, new in changed if old != new)

    def _lds(self) -> str:
        if self.old.lds_bytes == self.new.lds_bytes:
            return ""
        return f"LDS {_arrow(self.old.lds_bytes, self.new.lds_bytes)} bytes per block"

    def _block(self) -> str:
        return "" if self.old.block == self.new.block else f"blocks of {_arrow(self.old.block, self.new.block)} threads"

    def _kinds(self, factor: float) -> str:
        """Return the instruction kinds that changed most; "" unless both loops are known."""
        if self.before is None or self.before.loop is None or self.facts.loop is None:
            return ""
        old, new = _work(self.before.loop), _work(self.facts.loop)
        changed = []
        for kind in old.keys() | new.keys():
            (count, cycles), (now, now_cycles) = old.get(kind, (0, 0.0)), new.get(kind, (0, 0.0))
            if difference := now_cycles - cycles * factor:
                changed.append((abs(difference), f"{kind} {_arrow(count, now)} ({_signed(difference)} cycles)"))
        return ", ".join(text for _, text in sorted(changed, reverse=True)[:_SHOWN])

    def _parts(self, factor: float) -> str:
        """Return the change of the cycles by unit."""
        old, new = (loop.cycles for loop in self._loops())
        changes = {name: new.get(name, 0) - old.get(name, 0) * factor for name in old.keys() | new.keys()}
        del changes["all"]
        named = sorted(((abs(change), name, change) for name, change in changes.items() if change), reverse=True)
        return ", ".join(f"{name} {_signed(change)}" for _, name, change in named)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _per(factor: float) -> str:
    return "" if factor == 1 else f" (for {factor:.3g} times the work)"


def _work(loop: LoopCost) -> dict[str, tuple[int, float]]:
    def pair(work: Work) -> tuple[int, float]:
        return work.instructions, work.cycles

    return {kind: pair(work) for kind, work in loop.kinds.items()}


def _loads(loop: LoopPin) -> str:
    return " + ".join(f"{count} of {width} bytes per lane" for width, count in sorted(loop.loads.items(), reverse=True))


def _count(old: int, new: int, what: str) -> str:
    if not old:
        return f"{new} {what}{'s are' if new > 1 else ' is'} spilled"
    return f"{what}s spilled: {_arrow(old, new)}" if new else f"{what}s are no longer spilled ({old} before)"


def _arrow(old: object, new: object) -> str:
    return f"{_number(old)} -> {_number(new)}"


def _number(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _signed(value: float) -> str:
    return f"{value:+.4g}"


def _kib(size: int) -> str:
    return f"{size / 1024:.3g} KiB"
