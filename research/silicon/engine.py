"""A timing simulation of half a WGP of RDNA 3 and 4: two SIMDs, the LDS between them, and the waves on them.

Each wave issues its instructions in order; the waves of a SIMD take turns at its units, the oldest first. What happens
when was read off captures of real GPUs (`captures`); `Timing` says of each number which code shows it ("older": of the
same repository's history). Times are of issue, as a trace has them: the cycle in which an instruction leaves its wave,
or a wait ends. What a wave executes is given (`Step`), since no values are computed; memory answers in a given time.
The cycles that a unit is busy, what counts as outstanding and what is written to are the product's tables. What CDNA
does otherwise is in `cdna`.

Nothing here is known of RDNA's waves of 64 lanes, of WMMA on RDNA 3, of s_sleep and priorities, of atomics, of LDS
loads of 8 bytes a lane, and of bank conflicts in LDS.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from rocattn_profiling.kernels.model.lanes import registers_of, written_by
from rocattn_profiling.kernels.model.rates import Rates, rates
from rocattn_profiling.kernels.model.schedule import WaitCounters
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.kernels.read.instructions import Access, Pipe, Role, integer


@dataclass(frozen=True, slots=True)
class Memory:
    """Cycles in which memory answers: scalar loads, vector loads, stores before s_endpgm, and code that is fetched."""

    scalar: int
    vector: int
    store: int
    code: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Cycles from an instruction's issue to that of one which depends on it, and sizes of queues.

    Attributes:
        dependent: From a vector instruction to the next in its unit that reads what it writes (gemm: v_add_f32). The
            unit sees to it; an s_delay_alu keeps the instruction in its wave for so long.
        vector_done: To a memory instruction, or a wait for it, s_wait_alu (all captures).
        scalar_after_vector: To a scalar instruction behind vector ones that use scalar registers (gemm: s_mov_b32).
        scalar_done: From a scalar instruction to one of another unit that must see it: s_load, s_wait_alu (gemm).
        branch_after_scalar: The same to a branch on SCC (handwritten).
        memory_after_scalar: The same to a load, or a vector instruction that reads a scalar register (gemm).
        branch_after_mask: From a vector comparison to a branch on its mask (gemm: v_cmpx).
        carry_after_scalar: To a vector instruction with a second, scalar result (handwritten: v_mad_co_u64_u32).
        taken, not_taken: From a branch to the next instruction (handwritten, gemm; RDNA 3: older gemm).
        sent: From a memory instruction to its start, if nothing is in its way; a wait behind it ends no sooner.
        vector_after_memory: From that start to a vector instruction of the same wave (gemm: v_add_f32).
        after_store: From the start of a store to memory to what no unit gets (plus, gemm: s_nop).
        clause: From an instruction that a unit gets to s_clause (gemm).
        lds_load, lds_store: From the end of service in LDS to the end of the wait.
        lds_wide, lds_wide_more: How often as long as its bytes need a load of more than 4 bytes a lane is served, and
            how much longer it is then under way (gemm: ds_load_b128, the only one that there is).
        lds_queue: Accesses that LDS holds; behind them others wait to start.
        barrier: From the last wave's arrival to the next instruction (sync).
        vector_queue: Vector instructions of a SIMD that wait for the unit; with more, waves stop (handwritten).
        scalar_queue: How far the scalar unit may be behind (handwritten).
        matrix_fill: What the first of several matrix instructions takes longer (handwritten).
        matrix_leaves: How long one keeps its place in the queue behind its end (handwritten).
        end: From the last vector instruction's end to the wave's.
        code_bytes: What is fetched at once; the next so many bytes are asked for when the wave enters these.
    """

    dependent: int = 5
    vector_done: int = 17
    scalar_after_vector: int = 7
    scalar_done: int = 9
    branch_after_scalar: int = 10
    branch_after_mask: int = 16
    memory_after_scalar: int = 10
    carry_after_scalar: int = 11
    taken: int = 27
    not_taken: int = 3
    sent: int = 3
    vector_after_memory: int = 4
    after_store: int = 5
    clause: int = 3
    lds_load: int = 28
    lds_store: int = 29
    lds_queue: int = 12
    lds_wide: float = 1.5
    lds_wide_more: int = 0
    barrier: int = 14
    vector_queue: int = 8
    scalar_queue: int = 3
    matrix_fill: int = 6
    matrix_leaves: int = 7
    end: int = 13
    code_bytes: int = 256


TIMINGS = {"rdna3": Timing(), "rdna4": Timing(branch_after_mask=17, taken=9, lds_wide_more=2)}


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that a wave executes.

    Attributes:
        instruction: It.
        address: Where it lies.
        taken: Whether it is a branch that is taken.
        answer: Cycles in which memory answers it, if they are known.
        conflicts: How often as long LDS takes over it because of bank conflicts.
    """

    instruction: Instruction
    address: int = 0
    taken: bool = False
    answer: int | None = None
    conflicts: float = 1


@dataclass(frozen=True, slots=True)
class Operands:
    """Registers of an instruction.

    Attributes:
        reads, writes: Those that it reads and writes.
        sources: Vector registers that it reads, in the order of its operands; one that it also writes is the last.
        second: Whether it has a second result, be it thrown away.
    """

    reads: frozenset[tuple[str, int]]
    writes: frozenset[tuple[str, int]]
    sources: tuple[int, ...]
    second: bool


@lru_cache(maxsize=1 << 14)
def operands_of(mnemonic: str, operands: str) -> Operands:
    """Return the registers of an instruction, those that it names and VCC where its name says so."""
    writes = frozenset(written_by(Instruction(mnemonic, operands)))
    named = [register for text in _REGISTERS.findall(operands) for register in registers_of(text)]
    first = len(registers_of(_REGISTERS.search(operands)[0])) if writes and named else 0
    ordered = named[first:] + (named[:first] if _KEEPS.search(mnemonic) else [])
    sources = tuple(number for kind, number in ordered if kind == "v")
    return Operands(frozenset(ordered), writes, sources, bool(_SECOND.match(mnemonic)))


_REGISTERS = re.compile(r"\b[vsa](?:\d+\b|\[\d+:\d+\])|\b(?:vcc|exec)(?:_lo|_hi)?\b")
_KEEPS = re.compile(r"fmac|mac_|dot\dc|v_dual|v_swap")
_SECOND = re.compile(r"v_mad_(?:co_)?[iu]64|v_\w+_co_")
_DELAY = re.compile(r"instid([01])\((VALU_DEP|TRANS32_DEP|SALU_CYCLE)_(\d)\)")
_SKIP = re.compile(r"instskip\((SAME|NEXT|SKIP_(\d))\)")
_SCALAR_LOAD = re.compile(r"s_(?:buffer_)?load|s_scratch_load")
_ALU_WAITS = {"sa_sdst": (0, 1), "va_vcc": (1, 1), "va_ssrc": (8, 1), "va_sdst": (9, 7), "va_vdst": (12, 15)}
_SILENT = {"s_delay_alu", "s_wait_alu", "s_barrier_wait"}
_VECTORS, _MEMORIES = {Pipe.VECTOR, Pipe.MATRIX}, {Pipe.LDS, Pipe.GLOBAL, Pipe.SCRATCH}
_SCALARS = {"s", "vcc", "exec"}
_BANKS = 4
_LONG_AGO, _NEVER = -1000, 1 << 40


@dataclass(slots=True)
class _Simd:
    """What the waves of a SIMD share.

    Attributes:
        number: Its own.
        port: When the scalar and the vector unit take their next instruction.
        scalar_free, vector_free: When they are done with what they have.
        transcendental_free: When the unit for those takes the next.
        queue: When each vector instruction leaves its queue, in order.
        in_matrix: Whether the last one was a matrix instruction.
        matrix: Of which wave each of those is that are in the queue, and when it leaves.
        reader, sources: Which wave the last vector instruction is of, and the vector registers that it reads.
    """

    number: int = 0
    port: dict[Pipe, int] = field(default_factory=dict)
    scalar_free: int = 0
    vector_free: int = 0
    transcendental_free: int = 0
    queue: deque[int] = field(default_factory=deque)
    in_matrix: bool = False
    matrix: list[tuple[int, int]] = field(default_factory=list)
    reader: int = -1
    sources: tuple[int, ...] = ()


@dataclass(slots=True)
class _Wave:
    """A wave under way.

    Attributes:
        place: Its number: the lower, the older.
        at: The step that is next.
        next: Before when it issues nothing.
        internal: Whether the last instruction was one that no unit gets.
        times: When it issued each step so far.
        ready: When the vector unit can read what is written to a register.
        vector, transcendental: When s_delay_alu takes each such instruction to have begun.
        delays: What s_delay_alu asks for, by step.
        vector_begun, vector_ended: Of the last vector instruction.
        mask, scalars: When the last vector instruction began that writes a mask; that uses a scalar register.
        scalar: When it issued its last scalar instruction.
        memory, sent, stores: When it issued its last memory instruction, when that began, and whether it is a store.
        priority: What s_setprio gave it.
        issued: When it issued its last instruction that a unit gets.
        outstanding: When each access ends, by counter.
        arrived: At how many barriers.
    """

    place: int
    simd: _Simd
    block: int
    steps: Sequence[Step]
    next: int
    at: int = 0
    internal: bool = False
    times: list[int] = field(default_factory=list)
    ready: dict[tuple[str, int], int] = field(default_factory=dict)
    vector: list[int] = field(default_factory=list)
    transcendental: list[int] = field(default_factory=list)
    delays: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    vector_begun: int = _LONG_AGO
    vector_ended: int = _LONG_AGO
    mask: int = _LONG_AGO
    scalars: int = _LONG_AGO
    scalar: int = _LONG_AGO
    memory: int = _LONG_AGO
    stores: bool = False
    issued: int = _LONG_AGO
    sent: int = _LONG_AGO
    outstanding: dict[str, deque[int]] = field(default_factory=dict)
    arrived: int = 0
    priority: int = 0

    @property
    def step(self) -> Step:
        """The next one."""
        return self.steps[self.at]


class Simulation:
    """The waves of one block or of several, on the two SIMDs that share LDS.

    Args:
        arch: The GPU ("gfx1100").
        memory: When its memory answers.
        timing: What is known of its units.

    Attributes:
        lanes, simds: Of a wave, and how many SIMDs there are.
        slot: Cycles from one instruction of a wave, or of a unit that takes one at a time, to the next.
    """

    lanes, simds, slot = 32, 2, 1

    def __init__(self, arch: str, memory: Memory, timing: Timing | None = None) -> None:
        self._rates: Rates = rates(arch, self.lanes)
        self._counters = WaitCounters(arch)
        self._memory, self._timing = memory, timing or TIMINGS[self._rates.family]
        self._waves: list[_Wave] = []
        self._simds = [_Simd(number) for number in range(self.simds)]
        self._lds: defaultdict[int, deque[int]] = defaultdict(deque)
        self._global_free = 0
        self._code: dict[int, int] = {}
        self._met: dict[tuple[int, int], int] = {}

    def add(self, steps: Sequence[Step], start: int, *, simd: int = 0, block: int = 0) -> None:
        """Add a wave that begins at a time; waves of one block meet at its barriers."""
        self._waves.append(_Wave(len(self._waves), self._simds[simd], block, steps, start))

    def run(self) -> list[list[int]]:
        """Return when each wave issued each of its steps, s_endpgm when the wave ends.

        Raises:
            ValueError: When waves wait at a barrier for one that does not come.
        """
        waiting = list(self._waves)
        while waiting:
            order = ((self._earliest(wave), -wave.priority, wave.place, wave) for wave in waiting)
            time, _, _, wave = min(order, key=lambda each: each[:3])
            if time >= _NEVER:
                raise ValueError("waves wait at a barrier for one that has ended")
            self._issue(wave, time)
            if wave.at == len(wave.steps):
                waiting.remove(wave)
        return [wave.times for wave in self._waves]

    # ---- when ---------------------------------------------------------------------------------------------------

    def _earliest(self, wave: _Wave) -> int:
        """Return when a wave can issue its next instruction if no other comes before it."""
        known, instruction = self._timing, wave.step.instruction
        unit, times = instruction.unit, [wave.next, self._fetched(wave)]
        if unit in _VECTORS:
            times += self._vector_limits(wave, instruction)
        elif unit in _MEMORIES:
            times += [wave.vector_begun + known.vector_done, wave.scalar + known.memory_after_scalar]
            times.append(wave.simd.port.get(unit, 0))
        elif unit is Pipe.SCALAR:
            times.append(wave.simd.port.get(unit, 0))
            if _SCALAR_LOAD.match(instruction.mnemonic):
                times.append(wave.scalar + known.scalar_done)
            else:
                times += [wave.scalars + known.scalar_after_vector, wave.simd.scalar_free - known.scalar_queue]
        else:
            times += self._internal_limits(wave, instruction)
        times += self._asked_delays(wave)
        return max(times)

    def _fetched(self, wave: _Wave) -> int:
        """Return when all of the next instruction is there."""
        step, size = wave.step, self._timing.code_bytes
        after = wave.steps[wave.at + 1].address if wave.at + 1 < len(wave.steps) and not step.taken else 0
        last = max(step.address, after - 1) // size
        return max(self._code.get(step.address // size, 0), self._code.get(last, 0))

    def _vector_limits(self, wave: _Wave, instruction: Instruction) -> list[int]:
        known, simd = self._timing, wave.simd
        operands = operands_of(instruction.mnemonic, instruction.operands)
        times = [simd.port.get(Pipe.VECTOR, 0), wave.sent + known.vector_after_memory, self._room(simd)]
        if instruction.operations[0].role is Role.TRANSCENDENTAL:
            times.append(simd.transcendental_free)
        if instruction.unit is Pipe.MATRIX and not simd.in_matrix:
            own = [leaves for place, leaves in simd.matrix if place == wave.place]
            times += [leaves for place, leaves in simd.matrix if place != wave.place] + own[:-1]
        if any(kind == "s" for kind, _ in operands.reads):
            times.append(wave.scalar + known.memory_after_scalar)
        if operands.second or any(kind in _SCALARS for kind, _ in operands.writes):
            times.append(wave.scalar + known.carry_after_scalar)
        return times

    def _room(self, simd: _Simd) -> int:
        """Return when the queue of vector instructions has room."""
        size = self._timing.vector_queue
        return simd.queue[-size] if len(simd.queue) >= size else 0

    def _internal_limits(self, wave: _Wave, instruction: Instruction) -> list[int]:
        """Return what holds up a wait, a branch or the end, which no unit gets."""
        known, name = self._timing, instruction.mnemonic
        if instruction.unit is Pipe.WAIT:
            left = self._counters.left_by(instruction)
            queues = [(wave.outstanding.get(counter, ()), number) for counter, number in left.items()]
            ended = [queue[-1 - number] for queue, number in queues if len(queue) > number]
            return [wave.memory + known.sent, *ended]
        if name == "s_endpgm":
            return [wave.vector_ended + known.end, *(max(queue, default=0) for queue in wave.outstanding.values())]
        if "scc" in name:
            return [wave.scalar + known.branch_after_scalar]
        if "vcc" in name or "exec" in name:
            return [wave.mask + known.branch_after_mask, wave.scalar + known.branch_after_scalar]
        stored = wave.sent + known.after_store if wave.stores else 0
        return [wave.memory + known.sent, stored, wave.issued + known.clause * (name == "s_clause")]

    def _asked_delays(self, wave: _Wave) -> list[int]:
        times = []
        for kind, number in wave.delays.get(wave.at, ()):
            begun = {"VALU_DEP": wave.vector, "TRANS32_DEP": wave.transcendental}.get(kind)
            if begun is None:
                times.append(wave.scalar + number + 1)
            elif len(begun) >= number:
                times.append(begun[-number] + self._timing.dependent)
        return times

    # ---- what then ----------------------------------------------------------------------------------------------

    def _issue(self, wave: _Wave, time: int) -> None:
        instruction, known = wave.step.instruction, self._timing
        unit = instruction.unit
        group = wave.step.address // known.code_bytes
        self._code.setdefault(group, time)
        self._code.setdefault(group + 1, time + self._memory.code)
        wave.next, wave.internal = time + self.slot, False
        if unit in _VECTORS:
            self._begin_vector(wave, instruction, time)
        elif unit in _MEMORIES:
            self._begin_memory(wave, instruction, time)
        elif unit is Pipe.SCALAR:
            wave.simd.port[unit] = time + self.slot
            if _SCALAR_LOAD.match(instruction.mnemonic):
                self._count(wave, instruction, time + (wave.step.answer or self._memory.scalar))
            else:
                wave.scalar = time
                cycles = 2 if instruction.mnemonic.startswith("s_mul") else 1
                wave.simd.scalar_free = max(time, wave.simd.scalar_free) + cycles
        elif unit is Pipe.BRANCH:
            wave.next = time + (known.taken if wave.step.taken else known.not_taken)
        else:
            wave.internal = True
            if instruction.mnemonic in {"s_barrier", "s_barrier_signal"}:
                self._arrive(wave, time)
                if instruction.mnemonic == "s_barrier":
                    self._wait_for_others(wave)
            elif instruction.mnemonic == "s_nop":
                wave.next = time + self.slot * (1 + int(instruction.operands, 0))
            elif instruction.mnemonic == "s_setprio":
                wave.priority = int(instruction.operands, 0)
        if not wave.internal:
            wave.issued = time
        wave.times.append(time)
        wave.at += 1
        self._pass_silent(wave)

    def _begin_vector(self, wave: _Wave, instruction: Instruction, time: int) -> None:
        known, simd, cost = self._timing, wave.simd, self._rates.cost(instruction)
        operands = operands_of(instruction.mnemonic, instruction.operands)
        matrix, cycles = instruction.unit is Pipe.MATRIX, int(cost.issue)
        begun = max([time, simd.vector_free, *(wave.ready.get(each, 0) for each in operands.reads)])
        if matrix:
            ended = begun + cycles + known.matrix_fill * (not simd.in_matrix)
        else:
            before = simd.sources if simd.reader == wave.place else ()
            halves = [operands_of(*half).sources for half in instruction.halves]
            ended = begun + cycles + max(_conflicts(half, before) for half in halves)
        simd.reader, simd.sources = wave.place, operands.sources
        simd.port[Pipe.VECTOR] = time + (1 if matrix else cycles)
        simd.vector_free, simd.in_matrix = ended, matrix
        simd.queue.append(ended + known.matrix_leaves if matrix else ended)
        if matrix:
            simd.matrix = [each for each in simd.matrix if each[1] > time] + [(wave.place, simd.queue[-1])]
        wave.next = max(wave.next, self._room(simd))
        done = ended - 1 + int(cost.cycles - cost.issue)
        wave.ready.update((each, done + known.dependent) for each in operands.writes if each[0] == "v")
        wave.vector.append(time)
        if instruction.operations[0].role is Role.TRANSCENDENTAL:
            wave.transcendental.append(time + int(cost.cycles - cost.issue))
            simd.transcendental_free = time + int(cost.cycles)
        wave.vector_begun, wave.vector_ended = begun, ended
        if instruction.mnemonic.startswith("v_cmp"):
            wave.mask = begun
        if operands.second or any(kind in _SCALARS for kind, _ in operands.reads | operands.writes):
            wave.scalars = begun

    def _begin_memory(self, wave: _Wave, instruction: Instruction, time: int) -> None:
        known, cost = self._timing, self._rates.cost(instruction)
        stores = instruction.operations[0].access is Access.STORE
        wave.simd.port[instruction.unit] = time + self.slot
        wave.memory = time
        if instruction.unit is Pipe.LDS:
            queue = self._lds[wave.simd.number // self._rates.shared_by("lds")]
            wave.sent = max(time + known.sent, queue[-known.lds_queue] if len(queue) >= known.lds_queue else 0)
            wide = cost.cycles > 1 and not stores
            cycles = cost.cycles * wave.step.conflicts * (known.lds_wide if wide else 1)
            queue.append(max(wave.sent, queue[-1] if queue else 0) + int(cycles))
            done = queue[-1] + (known.lds_store if stores else known.lds_load + known.lds_wide_more * wide)
        else:
            wave.sent = max(time + known.sent, self._global_free)
            self._global_free = wave.sent + int(cost.issue)
            latency = self._memory.store if stores else self._memory.vector
            done = time + wave.step.answer if wave.step.answer else wave.sent + latency - known.sent
            wave.stores = stores
        self._count(wave, instruction, done)

    def _count(self, wave: _Wave, instruction: Instruction, done: int) -> None:
        for name in self._counters.of(instruction.mnemonic, instruction.operations[0]):
            queue = wave.outstanding.setdefault(name, deque())
            queue.append(max(done, queue[-1] if queue else 0))

    def _arrive(self, wave: _Wave, time: int) -> None:
        """Count a wave in at its block's next barrier; the last one lets those go on that wait there."""
        wave.arrived += 1
        block = [each for each in self._waves if each.block == wave.block]
        if all(each.arrived >= wave.arrived for each in block):
            self._met[wave.block, wave.arrived] = time
            for each in block:
                if each.next >= _NEVER:
                    each.next = max(each.next - _NEVER, time + self._timing.barrier)

    def _wait_for_others(self, wave: _Wave) -> None:
        met = self._met.get((wave.block, wave.arrived))
        wave.next = wave.next + _NEVER if met is None else max(wave.next, met + self._timing.barrier)

    def _pass_silent(self, wave: _Wave) -> None:
        """Go over instructions that a trace leaves out: they hold up the next one, if anything."""
        known = self._timing
        while wave.at < len(wave.steps) and wave.step.instruction.mnemonic in _SILENT:
            instruction = wave.step.instruction
            name, operands = instruction.mnemonic, instruction.operands
            if name != "s_barrier_wait":
                wave.next += wave.internal  # else it passes beside the one before it
            if name == "s_delay_alu":
                behind = _SKIP.search(operands)
                skipped = {"SAME": 0, "NEXT": 1}.get(behind[1], int(behind[2] or 0) + 1) if behind else 0
                for which, kind, number in _DELAY.findall(operands):
                    at = self._following(wave, skipped if which == "1" else 0)
                    wave.delays.setdefault(at, []).append((kind, int(number)))
            elif name == "s_barrier_wait":
                self._wait_for_others(wave)
            else:
                asked = _alu_wait(operands)
                if "sa_sdst" in asked:
                    wave.next = max(wave.next, wave.scalar + known.scalar_done)
                if asked - {"sa_sdst"}:
                    wave.next = max(wave.next, wave.vector_begun + known.vector_done)
            wave.times.append(wave.next % _NEVER)
            wave.at += 1

    @staticmethod
    def _following(wave: _Wave, skipped: int) -> int:
        """Return the step so many behind the next one, those left out that a trace leaves out."""
        at = wave.at
        for _ in range(skipped + 1):
            at += 1
            while at < len(wave.steps) and wave.steps[at].instruction.mnemonic == "s_delay_alu":
                at += 1
        return at


def _conflicts(sources: Sequence[int], before: Sequence[int]) -> int:
    """Return the cycles in which the vector unit reads again: of each bank one register at once.

    Args:
        sources: The registers that an instruction reads.
        before: Those of the one before it: one that stands in the same place is still there.
    """
    read = {number for number, other in zip_longest(sources, before) if number is not None and number != other}
    return len(read) - len({number % _BANKS for number in read})


@lru_cache(maxsize=1 << 8)
def _alu_wait(operands: str) -> frozenset[str]:
    """Return the counters that an s_wait_alu waits for until they are zero."""
    named = re.findall(r"depctr_(\w+)\((\d+)\)", operands)
    if named:
        return frozenset(name for name, number in named if number == "0" and name in _ALU_WAITS)
    number = integer(operands) or 0
    return frozenset(name for name, (low, mask) in _ALU_WAITS.items() if not number >> low & mask)
