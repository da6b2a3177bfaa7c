"""Compare two audits kernel by kernel: regressions, improvements, and changes without consequence.

Machine code yields exact numbers, so no statistics are needed: every change is reported, and its effect on the GPU
sets its severity. Each physical quantity has one finding: registers and LDS are judged by the waves they cost,
instructions by the issue cycles of the hot loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from rocattn.gpu.arch import has_kernels
from rocattn_profiling.base.gpus import architecture
from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason, counted
from rocattn_profiling.kernels import sentences
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.facts import CALLED, HOT_LOOP, OCCUPANCY, KernelFacts
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.model.cost import LoopCost, OtherLoop
from rocattn_profiling.kernels.pairs import AuditPairs, called, pairs_of
from rocattn_profiling.kernels.pins import LoopPin, Pin, Pins, pin_of
from rocattn_profiling.kernels.read.instructions import CALL, idioms_weight
from rocattn_profiling.kernels.shipped import natural
from rocattn_profiling.kernels.work import SAME_WORK, idioms_of, narrowing, why_apart, work_factor

Severity = Literal["worse", "better", "incomparable", "missing", "new", "note"]
SEVERITIES: tuple[Severity, ...] = ("worse", "better", "incomparable", "missing", "new", "note")
_IN_ORDER = (
    "idioms", "exposed latency", "load to wait", "read to wait", "barriers", "FLOP/B", "cache lines", "read conflicts",
    "write conflicts",
)  # fmt: skip
"""Metrics of instruction order in the hot loop, in the order of their findings."""
_PRECEDENCE = [name for name in METRICS if name != "kernel"][: list(METRICS).index("blocks")]
"""Metrics that decide a kernel's verdict: the first one that changed does, all others come after them."""
_EXPOSED = {"load to wait": 0, "loads in flight": 1}  # at or below this, all latency is exposed
_WHOEVER_COMPILED = {"spills", "scratch", "occupancy", "blocks", "registers", "LDS"}
"""Metrics that are compared with pins even across compilers; the others depend on the compiler."""
_OF_AN_UPGRADE = {*_WHOEVER_COMPILED, "matrix", "issue cycles"}
"""Metrics that judge a compiler upgrade; instruction order and code that runs once only give notes."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference.

    Attributes:
        severity: What it means.
        metric: The quantity, a key of `METRICS`; "kernel" where one side lacks the kernel.
        arch, kernel: Where it was found.
        before, after: The numbers, if any.
        text: The change and its cost, in a kernel engineer's words.
        file: The kernel's source, or the file it was read from.
        names_file: Whether the kernel's name is ambiguous without the file.
        lines: The costliest source lines of the hot loop, worst first; empty without a line table.
    """

    severity: Severity
    metric: str
    arch: str
    kernel: str
    before: float | None = None
    after: float | None = None
    text: str
    file: str = ""
    names_file: bool = False
    lines: list[str] = []

    @property
    def sentence(self) -> str:
        """The change, with the kernel's name."""
        where = f"{self.kernel} on {self.arch}" if self.kernel else self.arch
        return f"{where}{f' ({self.file})' if self.names_file else ''}: {self.text}"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a kernel that differs; those that one side does not state are equal on both."""

    arch: str
    kernel: str
    file: str
    before: Pin
    after: Pin


class SourceChange(msgspec.Struct, frozen=True, kw_only=True):
    """A changed line of the kernels' sources.

    Attributes:
        path: Relative to the checkout.
        line: Line number on the newer side, from 1.
        text: The line.
        kernels: The sources that contain or include it, as in `Finding.file`.
    """

    path: str
    line: int
    text: str
    kernels: list[str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of two audits, or of pins and an audit.

    Attributes:
        base, head: What was compared.
        compared: Number of kernels that both sides have and that were compiled.
        unchanged: Number of those without any difference.
        findings: Most severe first.
        changes: The numbers of every kernel that both sides have and that differs.
        sources: Changed source lines of kernels with findings; known only when comparing two revisions.
        alike: Number of kernels with the same sources and macros on both sides: they are not compiled.
        compilers: Compilers of a kernel before and now, where they differ.
        not_compared: Facts of common kernels that one side lacks, and what could not be audited in head.
    """

    base: str
    head: str
    compared: int
    unchanged: int
    findings: list[Finding]
    changes: list[Change] = []
    sources: list[SourceChange] = []
    alike: int = 0
    compilers: list[tuple[str, str]] = []
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def coverage(self) -> Coverage:
        """How much was compared; kernels whose cycles come from two different tables do not count."""
        apart = {(each.arch, each.kernel, each.file) for each in self.of("incomparable")}
        aside = Reason("incomparable", "computed with a different instruction-cost table")
        return Coverage(
            compared=self.compared + self.alike - len(apart),
            not_compared=(*self.not_compared, *counted([("# kernel", "# kernels", aside)] * len(apart), needed=True)),
        )

    def of(self, *severities: Severity) -> list[Finding]:
        """Return the findings with one of these severities."""
        return [finding for finding in self.findings if finding.severity in severities]


def compare(base: Audit, head: Audit, *, partial: bool = False, foreign: bool = False) -> Comparison:
    """Compare two audits.

    Kernels with the same architecture and name are a pair (`pairs_of`); in other people's files the symbol is the name.

    Args:
        base: The earlier audit.
        head: The later audit.
        partial: Whether ``head`` covers only some kernels, so that none counts as missing.
        foreign: Whether the files are other people's: a kernel that is gone may then have been renamed.
    """
    pairs = pairs_of(base, head)
    compared = [_compared(pin_of(before), facts, before.compiler, before) for before, facts in pairs.both]
    findings = [finding for each in compared for finding in each.findings]
    for facts in pairs.new:
        problem = problem_of(base, facts.name, facts.arch)
        why = f"it does not compile in {base.subject}: {problem}" if problem else f"only {head.subject} has it"
        findings.append(_new(facts, why))
    if not partial:
        findings += [
            _missing(facts.arch, facts.name, head, f"{head.subject} no longer has it", file=facts.file)
            for facts in pairs.missing
        ]
    findings = [
        msgspec.structs.replace(finding, names_file=(finding.arch, finding.kernel) in pairs.several)
        for finding in findings
    ]
    if base.rates != head.rates:
        findings = _without_cycles(findings)
    unclear: list[Gap] = [
        (f"# kernel {name} on {arch}", f"# kernels {name} on {arch}", _UNCLEAR)
        for name, arch in ((facts.name, facts.arch) for facts in pairs.unclear)
    ]
    if not partial:
        unclear += _unpaired(pairs, head if foreign else None)
    compilers = sorted({(before.compiler, facts.compiler) for before, facts in pairs.both})
    comparison = _sorted(base.subject, head, compared, findings, unclear)
    return msgspec.structs.replace(comparison, compilers=[(old, new) for old, new in compilers if old != new])


def _unpaired(pairs: AuditPairs, foreign: Audit | None) -> Iterator[Gap]:
    """Yield missing variants of kernels that have new variants, and missing foreign kernels."""
    new = {called(facts) for facts in pairs.new}
    for facts in pairs.missing:
        if (key := called(facts)) in new:
            yield f"# variant of {key[1]} on {key[0]}", f"# variants of {key[1]} on {key[0]}", _UNPAIRED
        elif foreign and not problem_of(foreign, facts.name, facts.arch):
            yield f"# kernel of base on {key[0]}", f"# kernels of base on {key[0]}", _GONE


def check_pins(pins: Sequence[Pins], audit: Audit, *, partial: bool = False) -> Comparison:
    """Compare an audit with pinned numbers.

    Args:
        pins: Pins for every architecture in the audit, and for others that have a pin file.
        audit: The audit of this revision.
        partial: See `compare`.
    """
    by_arch = {pinned.arch: pinned for pinned in pins}
    findings: list[Finding] = []
    compared: list[_Compared] = []
    for facts in audit.kernels:
        pinned = by_arch[facts.arch]
        if (pin := pinned.kernels.get(facts.name)) is None:
            findings.append(_new(facts, "it has no pin yet"))
            continue
        each = _compared(pin, facts, pinned.compiler)
        if lacking := lacking_in(pin, pin_of(facts)):
            findings.append(_new(facts, f"its pin lacks {', '.join(lacking)}"))
        compared.append(each._replace(unchanged=each.unchanged and not lacking))
        findings += _without_cycles(each.findings) if pinned.rates != audit.rates else each.findings
    have = {(facts.arch, facts.name) for facts in audit.kernels}
    for pinned_arch in pins:
        if not has_kernels(pinned_arch.arch):
            text = f"it has pins, but no kernels are shipped for it: delete {pinned_arch.arch}.json"
            findings.append(_missing(pinned_arch.arch, "", audit, text))
            continue
        for name in pinned_arch.kernels if not partial else ():
            if (pinned_arch.arch, name) not in have:
                findings.append(_missing(pinned_arch.arch, name, audit, "it is pinned, but no longer built"))
    return _sorted("the pins", audit, compared, findings)


class _Compared(NamedTuple):
    """The comparison of one kernel: its part of a `Comparison`."""

    findings: list[Finding]
    changes: list[Change]
    gaps: list[Gap]
    unchanged: bool


def _compared(pin: Pin, facts: KernelFacts, compiler: str, before: KernelFacts | None = None) -> _Compared:
    """Compare one kernel; see `differences` for the arguments. ``compiler`` compiled it before."""
    now, found, gaps = pin_of(facts), list(differences(pin, facts, before)), list(_gaps(pin, facts, before))
    if compiler != facts.compiler and before is not None:
        judged = _OF_AN_UPGRADE if facts.loop and facts.loop.has_loop else _WHOEVER_COMPILED
        found = [each if each.metric in judged else msgspec.structs.replace(each, severity="note") for each in found]
    elif compiler != facts.compiler and any(finding.metric not in _WHOEVER_COMPILED for finding in found):
        found = [finding for finding in found if finding.metric in _WHOEVER_COMPILED]
        gaps.append((*_LOOPS, Reason("another_compiler", sentences.compiled_by(compiler, facts.compiler))))
    if any(gap[:2] == _LOOPS for gap in gaps):  # more waves do not make up for a lost prefetch
        found = [
            msgspec.structs.replace(each, severity="note") if (each.severity, each.metric) in _UNSEEN else each
            for each in found
        ]
    if any(gap[2] is _UNTOLD for gap in gaps):
        found = [each for each in found if each.metric != "cache lines"]
    behind = {"occupancy"} if _fills_its_waits(pin, now, facts) else set[str]()
    if before is not None and before.spills.instructions == facts.spills.instructions == 0:
        behind.add("spills")
    findings = _weighed(found, behind)
    known = _as_known(pin, now, [facts, *([before] if before else [])])
    change = Change(arch=facts.arch, kernel=facts.name, file=facts.file, before=known, after=now)
    changes = [change] if findings else []
    return _Compared(findings, changes, gaps, not findings)


Gap = tuple[str, str, Reason[str]]
"""A fact of one kernel that was not compared, in the form that `counted` takes."""
_LOOPS = ("hot loop of # kernel", "hot loops of # kernels")
_UNSEEN = {("better", "occupancy"), ("better", "blocks")}
_UNREAD = Reason("unread", "it was not read")
_UNCLEAR = Reason("unclear", "each side has several with the same name and configuration", "keep one on each side")
_UNPAIRED = Reason("unpaired", "the other side lacks it, but has new ones")
_GONE = Reason("gone", "no kernel here has its name")
_UNSAID = Reason("unsaid", "the file does not say")
_UNTOLD = Reason("addresses", "fewer of its accesses can be derived from the code than on the other side")
_MORE_LOOPS = Reason("more_loops", "one side has more of them, or unrolls them")
_NUMBERS = {
    "vgprs": "VGPRs", "agprs": "AGPRs", "sgprs": "SGPRs", "vgpr_spills": "spilled VGPRs",
    "sgpr_spills": "spilled SGPRs", "scratch_bytes": "scratch memory", "lds_bytes": "LDS",
}  # fmt: skip


def _gaps(pin: Pin, facts: KernelFacts, before: KernelFacts | None = None) -> Iterator[Gap]:
    """Yield compared facts that are unknown on one side; see `differences` for the arguments."""
    now, sides = pin_of(facts), [facts, *([before] if before else [])]

    def gap(what: str, many: str, fact: str) -> Gap:
        reason: Reason[str] | None = facts.lacks.get(fact)
        if reason is None:
            reason = before.lacks.get(fact, _UNREAD) if before else _UNREAD
            reason = Reason(reason.code, f"in the earlier audit, {reason.text}", reason.remedy)
        return f"{what} of # kernel", f"{many} of # kernels", reason

    if pin.loop is None or now.loop is None:
        yield gap("hot loop", "hot loops", HOT_LOOP)
    elif why := why_apart(pin.loop, now.loop):
        yield *_LOOPS, Reason("another_loop", why)
    elif (pin.loop.order is None) != (now.loop.order is None):
        yield gap("order of the hot loop", "order of the hot loops", "order")
    elif len(told := {_told(side.loop) for side in sides if side.loop}) > 1 or (told == {0} and _lines(pin.loop)):
        yield "addresses of # kernel", "addresses of # kernels", _UNTOLD
    if before is not None and _more_loops(pin, now, before, facts):
        yield "loops other than the hot one of # kernel", "loops other than the hot ones of # kernels", _MORE_LOOPS
    if pin.lost_wave_slots is None or now.lost_wave_slots is None:
        yield gap("occupancy", "occupancy", OCCUPANCY)
    if before is not None and (of_one := set(before.simplified) ^ set(facts.simplified)):
        why = f"only one side's {', '.join(sorted(of_one))} is simpler than ROCm's"
        yield "library functions of # kernel", "library functions of # kernels", Reason("simplified", why)
    if any(CALLED in side.lacks for side in sides):
        yield gap("code called", "code called", CALLED)
    for name in _unsaid(pin, now, sides):
        yield f"{_NUMBERS[name]} of # kernel", f"{_NUMBERS[name]} of # kernels", _UNSAID


def _more_loops(pin: Pin, now: Pin, before: KernelFacts, facts: KernelFacts) -> bool:
    """Return whether one side has more loops next to the hot one, other than remainders of unrolling it."""
    same = before.loop and facts.loop and len(before.loop.others) == len(facts.loop.others)
    if same or before.compiler != facts.compiler or not (pin.loop and now.loop) or why_apart(pin.loop, now.loop):
        return False
    return work_factor(pin, now, division_known=bool(facts.variant)) == 1


def _told(loop: LoopCost) -> int:
    """Return 0 if no global address can be derived from the code, 1 for some, 2 for all."""
    lines = loop.cache_lines
    if lines is None:  # no accesses, or an audit older than this field
        return 0 if loop.global_bytes else 2
    return 2 if not lines.unknown else 1 if lines.factor else 0


def _lines(loop: LoopPin) -> float | None:
    return loop.order.cache_lines if loop.order else None


def lacking_in(pin: Pin, now: Pin) -> list[str]:
    """Return what a kernel has and its pin lacks: it would never be compared.

    Numbers of blocks are compared for the same block size, FLOPs and code of the loop for the same choices.
    """
    old, new = pin.loop, now.loop
    lacking = [f"choices ({now.choices})"] if pin.choices != now.choices else []
    lacking += [f"block of {now.block} threads"] if pin.block != now.block else []
    pairs: dict[str, tuple[object, object]] = {
        "lost wave slots": (pin.lost_wave_slots, now.lost_wave_slots),
        "blocks": (pin.blocks, now.blocks),
        "hot loop": (old, new),
    }
    if old and new:
        pairs["hot loop's bytes"] = (old.bytes or None, new.bytes or None)
        pairs["hot loop's loads"] = (old.load_width, new.load_width)
        pairs["hot loop's order"] = (old.order, new.order)
        pairs["cache lines"] = (_lines(old), _lines(new))
        pairs["bank conflicts"] = (_conflicts(old), _conflicts(new))
    return lacking + [what for what, (was, has) in pairs.items() if was is None and has is not None]


def _conflicts(loop: LoopPin) -> float | None:
    return (loop.order.read_conflicts or loop.order.write_conflicts) if loop.order else None


def differences(pin: Pin, facts: KernelFacts, before: KernelFacts | None = None) -> Iterator[Finding]:
    """Find the differences of one kernel.

    Args:
        pin: Its numbers before.
        facts: Its facts now.
        before: All its facts before; None if only the numbers are known.
    """
    now = pin_of(facts)
    pin = _as_known(pin, now, [facts, *([before] if before else [])])
    words = sentences.Words(pin, now, facts, before)

    def finding(metric: str, change: float, numbers: tuple[float | None, float | None], text: str) -> Finding:
        severity: Severity = "worse" if change > 0 else "better" if change < 0 else "note"
        return Finding(
            severity=severity, metric=metric, arch=facts.arch, kernel=facts.name, before=numbers[0], after=numbers[1],
            text=text, file=facts.file,
        )  # fmt: skip

    if (spills := _spills(pin, now)) is not None:
        yield finding("spills", *spills, words.spills())
    spilled = now.vgpr_spills - pin.vgpr_spills
    scratch = now.scratch_bytes - pin.scratch_bytes
    if scratch and (not spilled or scratch > 0 > spilled):  # otherwise the spills explain it
        yield finding("scratch", scratch, (pin.scratch_bytes, now.scratch_bytes), words.scratch())
    lost = _change(pin.lost_wave_slots, now.lost_wave_slots)
    blocks = -_change(pin.blocks, now.blocks) if pin.block == now.block else 0.0
    if lost:
        yield finding("occupancy", lost, (pin.lost_wave_slots, now.lost_wave_slots), words.occupancy())
    elif blocks:
        yield finding("blocks", blocks, (pin.blocks, now.blocks), words.blocks())
    else:
        if (pin.vgprs, pin.agprs, pin.sgprs) != (now.vgprs, now.agprs, now.sgprs):
            yield finding("registers", 0, (pin.vgprs, now.vgprs), words.registers())
        if pin.lds_bytes != now.lds_bytes:
            yield finding("LDS", 0, (pin.lds_bytes, now.lds_bytes), words.lds())
    if pin.loop and now.loop:
        for metric, change, numbers, sentence in _in_loop(pin, now, facts, words):
            yield finding(metric, change, numbers, sentence)
    if before and before.loop and facts.loop and (changed := _elsewhere(before.loop, facts.loop)):
        yield finding("other loops", *changed)
    if pin.code_bytes != now.code_bytes:
        yield finding("code", 0, (pin.code_bytes, now.code_bytes), words.code())


def _weighed(findings: Iterable[Finding], behind: Collection[str] = ()) -> list[Finding]:
    """Let a kernel's most important quantity decide: findings that contradict it, and instruction order, become notes.

    A removed spill or a saved cycle outweighs a lost wave. Metrics in ``behind`` come last: spills that are all outside
    the hot loop, waves that it does not need. The precedence, and the limits for exposed latency and few waves, are
    judgment calls: they were not measured on a GPU.
    """
    found = list(findings)
    voting = [each for each in found if each.severity in {"worse", "better"} and METRICS[each.metric].worse]

    def rank(finding: Finding) -> float:
        return len(_PRECEDENCE) if finding.metric in behind else _rank(finding)

    verdict = min(voting, key=rank).severity if voting else "note"
    return [
        msgspec.structs.replace(each, severity="note")
        if each.severity in {"worse", "better"} and (not METRICS[each.metric].worse or each.severity != verdict)
        else each
        for each in found
    ]


def _rank(finding: Finding) -> float:
    metric, sides = finding.metric, [each for each in (finding.before, finding.after) if each is not None]
    if metric == "barriers" and finding.severity == "better":  # fewer barriers do not make up for more cycles
        return _PRECEDENCE.index("issue cycles") + 0.5
    if metric in _EXPOSED and sides and min(sides) <= _EXPOSED[metric]:  # exposed latency outweighs saved cycles
        return _PRECEDENCE.index("matrix")
    if metric == "cache lines" and max(sides) >= 2 * min(sides):  # so do twice the cache lines
        return _PRECEDENCE.index("matrix")
    if metric == "occupancy" and len(sides) == 2:
        waves = [architecture(finding.arch).waves_per_simd - lost for lost in sides]
        if min(waves) <= max(waves) / 2:  # half the waves hide less latency than a better loop saves
            return _PRECEDENCE.index("matrix")
    return _PRECEDENCE.index(metric) if metric in _PRECEDENCE else len(_PRECEDENCE)


def _fills_its_waits(pin: Pin, now: Pin, facts: KernelFacts) -> bool:
    """Return whether lost waves do not raise the SIMD's cycles for the same work, and gained waves do not lower them.

    Waves fill each other's memory waits, until their own issue cycles take all of the SIMD's time.
    """
    taken = []
    for side in (pin, now):
        order = side.loop.order if side.loop else None
        if side.loop is None or order is None or order.exposed_cycles is None or side.lost_wave_slots is None:
            return False
        waves = max(architecture(facts.arch).waves_per_simd - side.lost_wave_slots, 1)
        cycles = side.loop.cycles["all"]
        taken.append(max(cycles, (cycles + order.exposed_cycles) / waves))
    factor = work_factor(pin, now, division_known=bool(facts.variant))
    return (taken[1] - taken[0] * factor) * _change(pin.lost_wave_slots, now.lost_wave_slots) <= 0


def _as_known(pin: Pin, now: Pin, sides: Sequence[KernelFacts]) -> Pin:
    """Return the pin with today's numbers where a side does not state its own: their change is unknown."""
    names = _unsaid(pin, now, sides)
    names += [] if pin.code_bytes and now.code_bytes else ["code_bytes"]
    return msgspec.structs.replace(pin, **{name: getattr(now, name) for name in names})


def _unsaid(pin: Pin, now: Pin, sides: Sequence[KernelFacts]) -> list[str]:
    """Return the names of numbers that a side does not state."""
    names = [name for name in _NUMBERS if not all(facts.says(name) for facts in sides)]
    return [name for name in names if not (getattr(pin, name) and getattr(now, name))]


def _spills(pin: Pin, now: Pin) -> tuple[float, tuple[int, int]] | None:
    """Return the change (above 0 is worse) and the numbers behind it; None if no spill count changed."""
    vgprs, sgprs = (pin.vgpr_spills, now.vgpr_spills), (pin.sgpr_spills, now.sgpr_spills)
    change = vgprs[1] - vgprs[0]
    if sgprs[1] > -change >= 0 and not sgprs[0]:  # worse, even if fewer VGPRs are spilled
        return 1, sgprs
    if change:
        return change, vgprs
    if sgprs[0] == sgprs[1]:
        return None
    return (0 if sgprs[1] else -1), sgprs  # changed counts are judged by their cycles


_LoopChange = tuple[str, float, tuple[float | None, float | None], str]


def _in_loop(pin: Pin, now: Pin, facts: KernelFacts, words: sentences.Words) -> Iterator[_LoopChange]:
    """Find the differences of the hot loop."""
    old, new = pin.loop, now.loop
    assert old is not None
    assert new is not None
    if why_apart(old, new):
        named = idioms_of(old), idioms_of(new)
        if CALL in named[0] ^ named[1]:
            numbers = (len(named[0]), len(named[1]))
            yield "idioms", 1 if CALL in named[1] else -1, numbers, words.order("idioms", numbers, 1)
        return
    if bool(old.matrix_flops) != bool(new.matrix_flops):
        yield "matrix", 1 if old.matrix_flops else -1, (old.matrix_flops, new.matrix_flops), words.matrix()
        return
    division_known = bool(facts.variant)
    factor = work_factor(pin, now, division_known=division_known)
    expected, limit = old.cycles["all"] * factor, METRICS["issue cycles"].percent / 100
    change = new.cycles["all"] / expected - 1 if expected else 0.0
    if new.cycles != old.cycles or factor != 1:
        judged = change if abs(change) > limit else 0
        if _outwaited(old, new, factor, new.cycles["all"] - expected, facts):
            judged = 0
        if judged or new.cycles != old.cycles:
            yield "issue cycles", judged, (old.cycles["all"], new.cycles["all"]), words.cycles(change, factor)
    if narrowed := narrowing(old, new, factor):
        yield "global loads", narrowed, (old.load_width, new.load_width), words.loads(factor)
    yield from _in_order(old, new, factor, words)
    if not old.bytes or not new.bytes:
        return
    cache, sizes = architecture(facts.arch).instruction_cache_bytes, (old.bytes, new.bytes)
    larger = 1 if old.bytes <= cache else 1 + METRICS["instruction cache"].percent / 100
    if old.bytes > cache >= new.bytes or new.bytes > max(cache, old.bytes * larger):
        yield "instruction cache", new.bytes - old.bytes, sizes, words.instruction_cache(cache)
        return
    unrolled = pin.choices == now.choices and METRICS["loop code"].growth(*sizes) > 0  # or copied
    if unrolled and (division_known or factor == 1) and abs(change) <= limit:
        yield "loop code", 1, sizes, words.loop_code()


def _in_order(old: LoopPin, new: LoopPin, factor: float, words: sentences.Words) -> Iterator[_LoopChange]:
    """Find differences in instruction order; ``factor`` is how many times the work an iteration does now."""
    before, after = old.order, new.order
    if before is None or after is None:
        return
    for name in _IN_ORDER:
        metric = METRICS[name]
        shown, judged = attrgetter(metric.value), attrgetter(metric.judged or metric.value)
        if growth := metric.growth(judged(old), judged(new), factor):
            numbers = (shown(old), shown(new))
            yield name, growth, numbers, words.order(name, numbers, factor)
    fewer, narrower = before.loads_in_flight - after.loads_in_flight, before.bytes_in_flight - after.bytes_in_flight
    more = sum(new.loads.values()) / (sum(old.loads.values()) * factor or 1) or 1  # by more loads, not by earlier ones
    fewer_of_them = before.loads_in_flight * more - after.loads_in_flight
    if min(fewer * narrower, fewer * fewer_of_them, before.loads_in_flight, after.loads_in_flight) > 0:
        loads = (before.loads_in_flight, after.loads_in_flight)
        yield "loads in flight", fewer, loads, words.order("loads in flight", loads, factor)


def _outwaited(old: LoopPin, new: LoopPin, factor: float, cycles: float, facts: KernelFacts) -> bool:
    """Return whether a wave's memory waits changed in the opposite direction by more than its issue cycles.

    Waits count per wave of the SIMD, because other waves fill them. They count in full if one side has none at all: a
    prefetch was added or removed. Extra cycles hide latency, too: a loop that merely takes longer waits less, by at
    most those cycles.
    """
    waits = tuple(loop.order.exposed_cycles if loop.order else None for loop in (old, new))
    waited = METRICS["exposed latency"].growth(waits[0], waits[1], factor)
    waves = (facts.occupancy.waves_per_simd if facts.occupancy else 0) or 1
    hidden = min(wait or 0 for wait in waits) < METRICS["exposed latency"].points
    return waited * cycles < 0 and abs(waited) / (1 if hidden else waves) > abs(cycles)


def _elsewhere(was: LoopCost, now: LoopCost) -> tuple[float, tuple[float | None, float | None], str] | None:
    """Return how the other loops changed: a number (above 0 is worse), the cycles, and a description.

    If their number changed, one of them may be the remainder loop of an unrolled hot loop, with a copy of its code.
    """
    sides = was.others, now.others
    cycles = sum(each.cycles for each in was.others), sum(each.cycles for each in now.others)
    named = [{name for loop in side for name in loop.idioms} for side in sides]
    hot = [loop.schedule.idioms if loop.schedule else () for loop in (was, now)]
    came, went = named[1].difference(named[0], hot[0]), named[0].difference(named[1], hot[1])
    parts = [*(f"{name} added" for name in sorted(came)), *(f"{name} removed" for name in sorted(went))]
    barriers, grown = 0, [0.0]
    if len(was.others) == len(now.others):
        barriers = sum(new.barriers - old.barriers for old, new in zip(*sides, strict=True))
        parts += [f"{barriers:+} barriers"] if barriers else []
        for old, new in zip(*sides, strict=True):
            work = [b / a for a, b in ((old.flops, new.flops), (old.global_bytes, new.global_bytes)) if a and b]
            factor = work[0] if work and max(work) / min(work) - 1 < SAME_WORK else 1.0
            change = new.cycles / (old.cycles * factor) - 1 if old.cycles else 0.0
            if abs(change) > METRICS["other loops"].percent / 100:
                grown.append(change)
                parts.append(f"{old.cycles:.4g} -> {new.cycles:.4g} issue cycles{_at(new)} ({100 * change:+.1f} %)")
    if not parts:
        return None
    change = idioms_weight(came) - idioms_weight(went) or barriers or max(grown) or min(grown)
    return change, cycles, f"outside the hot loop: {', '.join(parts)}"


def _at(loop: OtherLoop) -> str:
    return f" at {loop.source}" if loop.source else ""


def _change(before: float | None, after: float | None) -> float:
    return 0 if before is None or after is None else after - before


def _new(facts: KernelFacts, why: str) -> Finding:
    return Finding(severity="new", metric="kernel", arch=facts.arch, kernel=facts.name, text=why, file=facts.file)


def _missing(arch: str, name: str, audit: Audit, why: str, *, file: str = "") -> Finding:
    """Report a missing kernel: "worse" if it exists but no longer compiles."""
    problem = problem_of(audit, name, arch)
    severity: Severity = "worse" if problem else "missing"
    text = f"it no longer compiles: {problem}" if problem else why
    return Finding(severity=severity, metric="kernel", arch=arch, kernel=name, text=text, file=file)


def problem_of(audit: Audit, name: str, arch: str) -> str:
    """Return why an audit failed for a kernel; "" if it did not."""
    return next((problem.text for problem in audit.problems if (problem.kernel, problem.arch) == (name, arch)), "")


def _without_cycles(findings: list[Finding]) -> list[Finding]:
    """Mark findings that depend on issue cycles as incomparable, since the two sides use different cost tables."""
    why = "not comparable: the instruction-cost table has changed"
    return [
        msgspec.structs.replace(finding, severity="incomparable", text=f"{finding.text} ({why})")
        if METRICS[finding.metric].of_rates and finding.severity != "note"
        else finding
        for finding in findings
    ]


def _sorted(
    base: str, head: Audit, compared: Sequence[_Compared], findings: list[Finding], unclear: Sequence[Gap] = ()
) -> Comparison:
    def gravity(finding: Finding) -> tuple[Any, ...]:
        return SEVERITIES.index(finding.severity), finding.arch, natural(finding.kernel)

    return Comparison(
        base=base, head=head.subject, compared=len(compared), unchanged=sum(each.unchanged for each in compared),
        findings=sorted(findings, key=gravity), changes=[change for each in compared for change in each.changes],
        not_compared=(
            *counted([*unclear, *(gap for each in compared for gap in each.gaps)], needed=True), *head.not_audited,
        ),
    )  # fmt: skip
