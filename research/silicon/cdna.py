"""The simulation of a CU of CDNA 3 and 4: the waves of the blocks that fit, in the hot loop of a kernel.

Each number is a published one (`TIMING`, `Cdna`), or it is said that it is not known. Loads, of spilled registers too,
are answered in one time. What is known of silicon is in `published`.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from engine import Memory, Simulation, Step, Timing, operands_of

from rocattn.toolchain.code_object import KernelInfo
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.lds import LdsConflicts, lds_conflicts
from rocattn_profiling.kernels.model.loops import Loop, find_loops, hot_loop, usual_path
from rocattn_profiling.kernels.model.occupancy import occupancy
from rocattn_profiling.kernels.model.rates import rates
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction, parse_assembly
from rocattn_profiling.kernels.read.code_objects import read_objects
from rocattn_profiling.kernels.read.disassembly import disassemble
from rocattn_profiling.kernels.read.instructions import Access, Pipe

LATENCY = 790  # cycles from a load to its answer: what Triton's TLX takes for gfx950, not measured
TIMING = Timing(
    dependent=5,  # 8 cycles from one v_fma_f32 to the next that needs it: TLX, measured on gfx950 (GCN had 4)
    vector_done=0, scalar_after_vector=0, scalar_done=0, memory_after_scalar=0, carry_after_scalar=0, sent=0,
    vector_after_memory=0, after_store=0, clause=0, scalar_queue=0, lds_wide=1,
    lds_load=60, lds_store=60,  # 68 from one ds_read_b32 to the next: TLX, the same (stores: not known)
    branch_after_scalar=4, branch_after_mask=8, taken=16, not_taken=4, barrier=16,  # not known
)  # fmt: skip
TRACED = replace(TIMING, dependent=1, lds_load=36, lds_store=36)
"""With what run 0 of tinygrad's gfx950 gemm shows instead: v_add_f32 4 cycles behind the one that it needs, and waits
for LDS that end 40 to 44 cycles behind an access."""
_PACKED = "v_pk_add_f32", "v_pk_fma_f32", "v_pk_mul_f32", "v_pk_mov_b32", "v_dot"
_WARM, _ITERATIONS = 4, 16


class Cdna(Simulation):
    """A CU of CDNA 3 and 4: four SIMDs, each of which takes an instruction of every kind in four cycles.

    Vector and matrix instructions are of one kind, and registers are waited for in the wave. What may follow a matrix
    instruction on its SIMD is from traces of MI308X and MI350X (LLVM's pull request 233721): the vector unit goes on
    after a slot, and one more for each 16 bytes of its widest source; packed arithmetic in single precision, two slots
    after its end, and one more with sources of 16 bytes. Its result is read four slots after its end, on gfx950 five,
    as LLVM has it (GCNHazardRecognizer), and by a product that adds to it at once.

    Attributes:
        lost: Wave, step, cycles and the time at which they end, for each pause between two instructions, and its cause.
    """

    lanes, simds, slot = 64, 4, 4

    def __init__(self, arch: str, memory: Memory, timing: Timing = TIMING) -> None:
        super().__init__(arch, memory, timing)
        self._result = (5 if arch == "gfx950" else 4) * self.slot
        self._matrix_free = [0] * self.simds
        self._packed_free = [0] * self.simds
        self._chained: dict[tuple[int, tuple[str, int]], int] = {}
        self.lost: list[tuple[int, int, int, int, str]] = []

    def _earliest(self, wave) -> int:
        time = max(super()._earliest(wave), max(self._needed(wave).values(), default=0))
        return -(-time // self.slot) * self.slot

    def _needed(self, wave) -> dict[tuple[str, int], int]:
        """Return when the registers of a wave's next instruction are there."""
        instruction = wave.step.instruction
        operands = operands_of(instruction.mnemonic, instruction.operands)
        summed = operands.writes if instruction.unit is Pipe.MATRIX else frozenset()
        needed = {each: wave.ready.get(each, 0) for each in operands.reads | operands.writes}
        return {
            each: self._chained.get((wave.place, each), at) if each in summed else at for each, at in needed.items()
        }

    def _issue(self, wave, time: int) -> None:
        if wave.times:
            begun = wave.times[-1] + self.slot
            for cycles, cause in ((wave.next - begun, self._cause_before(wave)), (time - wave.next, "")):
                if cycles > 0:
                    self.lost.append((wave.place, wave.at, cycles, time, cause or self._cause(wave, time)))
        super()._issue(wave, time)

    @staticmethod
    def _cause_before(wave) -> str:
        """Return why a wave could not go on behind its last instruction."""
        last = wave.steps[wave.at - 1].instruction
        return "barrier" if "barrier" in last.mnemonic else "branch" if last.unit is Pipe.BRANCH else "issue"

    def _cause(self, wave, time: int) -> str:
        """Return what the next instruction waited for until now."""
        instruction, now = wave.step.instruction, time - self.slot
        late = [each for each, at in self._needed(wave).items() if at > now]
        if instruction.unit is Pipe.WAIT:
            left = self._counters.left_by(instruction)
            ends = {name: queue[-1 - left[name]] for name, queue in wave.outstanding.items()
                    if name in left and len(queue) > left[name]}  # fmt: skip
            return "LDS" if ends and max(ends, key=ends.__getitem__) == "ds" else "memory"
        if late:
            return "matrix result" if any((wave.place, each) in self._chained for each in late) else "vector result"
        if instruction.unit is Pipe.MATRIX and self._matrix_free[wave.simd.number] > now:
            return "matrix unit"
        return "issue"

    def _vector_limits(self, wave, instruction: Instruction) -> list[int]:
        simd = wave.simd
        times = [simd.port.get(Pipe.VECTOR, 0)]
        if instruction.unit is Pipe.MATRIX:
            times.append(self._matrix_free[simd.number])
        elif instruction.mnemonic.startswith(_PACKED):
            times.append(self._packed_free[simd.number])
        return times

    def _begin_vector(self, wave, instruction: Instruction, time: int) -> None:
        simd, cost = wave.simd, self._rates.cost(instruction)
        operands = operands_of(instruction.mnemonic, instruction.operands)
        done = time + int(cost.cycles)
        if instruction.unit is Pipe.MATRIX:
            wide = _widest(instruction) // 16
            simd.port[Pipe.VECTOR] = time + self.slot * (1 + wide)
            self._matrix_free[simd.number] = done
            self._packed_free[simd.number] = done + self.slot * (2 + wide)
            self._chained.update(((wave.place, each), done) for each in operands.writes)
            ready = done + self._result
        else:
            simd.port[Pipe.VECTOR] = time + int(cost.issue)
            for each in operands.writes:
                self._chained.pop((wave.place, each), None)
            ready = time + int(cost.issue) - 1 + self._timing.dependent
        wave.ready.update(dict.fromkeys(operands.writes, ready))
        wave.vector_begun = time
        if instruction.mnemonic.startswith("v_cmp"):
            wave.mask = time


def _widest(instruction: Instruction) -> int:
    """Return the bytes a lane of the wider one of a matrix instruction's factors."""
    factors = instruction.operands.replace(" ", "").split(",")[1:3]
    return max(4 * len(operands_of("s_nop", factor).reads) for factor in factors)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a code object, and what a CU has of it.

    Attributes:
        arch: Its GPU ("gfx942").
        function: Its code.
        loops: Those that its waves are in, the first ones of a block in the first.
        waves, blocks: Of a block, and blocks of a CU.
    """

    arch: str
    function: AssemblyFunction
    loops: tuple[Loop, ...]
    waves: int
    blocks: int

    def steps(self, loop: Loop) -> tuple[Step, ...]:
        """Return one iteration on the usual path of a loop."""
        path = usual_path(self.function, loop)
        steps = []
        for block, following in pairwise((*path, path[0])):
            steps += self._of_blocks([block], path)
            if steps and steps[-1].instruction.unit is Pipe.BRANCH:
                steps[-1] = replace(steps[-1], taken=following != block + 1)
        return tuple(steps)

    def product_loops(self) -> list[Loop]:
        """Return the innermost loops with matrix instructions."""
        return [each for each in find_loops(self.function) if not each.inner and _products(self.function, each)]

    def outside(self) -> tuple[Step, ...]:
        """Return what is in no loop with products, each instruction once and no branch taken."""
        hot = {block for loop in self.product_loops() for block in loop.own}
        blocks = [block for block in range(len(self.function.blocks)) if block not in hot]
        steps = self._of_blocks(blocks, blocks)
        return tuple(step for step in steps[:-1] if step.instruction.mnemonic != "s_endpgm") + tuple(steps[-1:])

    def _of_blocks(self, blocks: Iterable[int], path: Sequence[int]) -> list[Step]:
        conflicts = _conflicts(self.function, tuple(path), self.arch, 64 * self.waves)
        reads, writes = (conflicts.read_factor or 1, conflicts.write_factor or 1) if conflicts else (1, 1)
        instructions = [each for block in blocks for each in self.function.blocks[block].instructions]
        stores = [each.operations[0].access is Access.STORE for each in instructions]
        return [
            Step(each, conflicts=writes if store else reads) for each, store in zip(instructions, stores, strict=True)
        ]


@lru_cache(maxsize=4)
def _conflicts(function: AssemblyFunction, path: tuple[int, ...], arch: str, threads: int) -> LdsConflicts | None:
    return lds_conflicts(function, path, arch, LaneValues(function, threads))


def read_kernel(path: Path, *, groups: int = 1) -> Kernel:
    """Return the kernel of a code object, with source lines where its assembly text lies beside it.

    Args:
        path: The file; what Triton says of its launch is in the JSON beside it.
        groups: How many loops its waves are in at once: the first ones with as many matrix instructions as the hot one.
    """
    (device,) = read_objects(path.read_bytes(), path.name)
    said, text = path.with_suffix(".json"), path.with_suffix(".amdgcn")
    lds = json.loads(said.read_text())["shared"] if said.is_file() else 0
    assembly = text.read_text() if text.is_file() else disassemble(device)
    return kernel_of(assembly, device.processor, device.kernels[0], groups=groups, lds_bytes=lds)


def kernel_of(assembly: str, arch: str, info: KernelInfo, *, groups: int = 1, lds_bytes: int = 0) -> Kernel:
    """Return a kernel by its assembly; ``lds_bytes`` is what a launch adds to the LDS that it declares."""
    function = next(each for each in parse_assembly(assembly) if each.name == info.symbol)
    fits = occupancy(
        arch, wave_size=64, vgprs=info.vgprs, sgprs=info.sgprs, lds_bytes=info.lds_bytes + lds_bytes, block=info.block
    )
    loops = [hot_loop(function)]
    if groups > 1:
        products = _products(function, loops[0])
        loops = [each for each in find_loops(function) if not each.inner and _products(function, each) == products]
    return Kernel(arch, function, tuple(loops[:groups]), info.block // 64, fits.blocks or 1)


def _products(function: AssemblyFunction, loop: Loop) -> int:
    body = (each for block in usual_path(function, loop) for each in function.blocks[block].instructions)
    return sum(each.unit is Pipe.MATRIX for each in body)


@dataclass(frozen=True)
class Steady:
    """A CU in the middle of a kernel's work.

    Attributes:
        busy: Per cent of the cycles in which its matrix units work.
        cycles: Of an iteration of a wave, over the waves of a SIMD.
        products: Cycles of the matrix unit in an iteration.
        outside, outside_products: Of what is in no loop, simulated once by all waves of a CU: when the last one is
            through, and cycles of the matrix unit of a block. Where waves are in several loops, each has its own ends.
        lost: Per cent of the waves' time by cause and by the source line (or instruction) that waits.
    """

    busy: float
    cycles: float
    products: float
    outside: float
    outside_products: float
    lost: dict[tuple[str, str], float]

    def causes(self, most: int = 3) -> str:
        """Return the largest causes, each with its costliest line."""
        whole: Counter[str] = Counter()
        for (cause, _), share in self.lost.items():
            whole[cause] += share
        lines = {cause: max((share, line) for (each, line), share in self.lost.items() if each == cause)[1]
                 for cause in whole}  # fmt: skip
        return ", ".join(f"{cause} {share:.0f} ({lines[cause]})" for cause, share in whole.most_common(most))


def steady(kernel: Kernel, latency: int = LATENCY, timing: Timing = TIMING) -> Steady:
    """Simulate iterations of all waves of a CU, and count until the first wave is through with its own."""
    memory = Memory(latency, latency, latency)
    simulation = Cdna(kernel.arch, memory, timing)
    bodies = [kernel.steps(loop) for loop in kernel.loops]
    waves = _add(simulation, kernel, [body * _ITERATIONS for body in bodies])
    times = simulation.run()
    first = min(range(len(times)), key=lambda number: times[number][-1])
    begin, end = times[first][_WARM * len(waves[first]) // _ITERATIONS], times[first][-1]
    work = iterations = 0.0
    for issued, steps in zip(times, waves, strict=True):
        within = [step for step, time in zip(steps, issued, strict=True) if begin <= time < end]
        iterations += len(within) * _ITERATIONS / len(steps)
        work += _matrix_cycles(kernel.arch, within)
    lost: Counter[tuple[str, str]] = Counter()
    for place, step, cycles, at, cause in simulation.lost:
        if begin < at <= end:
            instruction = waves[place][step].instruction
            lost[cause, instruction.source or instruction.mnemonic] += cycles
    whole = (end - begin) * len(waves)
    simulation = Cdna(kernel.arch, memory, timing)
    (ends, *_) = _add(simulation, kernel, [kernel.outside()])
    return Steady(
        100 * work / (4 * (end - begin)), (end - begin) / iterations * 4, work / iterations,
        max(issued[-1] for issued in simulation.run()) / len(kernel.loops),
        _matrix_cycles(kernel.arch, ends) * kernel.waves / len(kernel.loops),
        {key: 100 * cycles / whole for key, cycles in lost.items()},
    )  # fmt: skip


def _add(simulation: Cdna, kernel: Kernel, paths: Sequence[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
    """Add the waves of a CU, the first ones of a block on the first path; return the path of each."""
    waves = []
    for block in range(kernel.blocks):
        for number in range(kernel.waves):
            waves.append(paths[number * len(paths) // kernel.waves])
            simulation.add(waves[-1], 0, simd=len(waves) % 4, block=block)
    return waves


def _matrix_cycles(arch: str, steps: Iterable[Step]) -> float:
    costs = rates(arch, 64)
    return sum(costs.cost(step.instruction).cycles for step in steps if step.instruction.unit is Pipe.MATRIX)


@dataclass(frozen=True)
class Launch:
    """What a kernel works through.

    Attributes:
        tokens, head: Of its sequences, and features.
        sequences: How many there are: batch times heads.
        rows: Queries of a tile.
        pairs: Whether a block takes the first and the last tile of a sequence, then the next two, and so on.
    """

    tokens: int
    head: int
    sequences: int
    rows: int
    pairs: bool = False

    def tiles(self) -> list[tuple[int, ...]]:
        """Return the tiles of a sequence by block, the first tile has the fewest keys."""
        number = -(-self.tokens // self.rows)
        return [(n, number - 1 - n) for n in range(number // 2)] if self.pairs else [(n,) for n in range(number)]


def whole(kernel: Kernel, state: Steady, launch: Launch, cus: int) -> tuple[float, int]:
    """Return the matrix share of a causal launch from begin to end, in per cent, and its cycles.

    Blocks go to the CU that is free first, in order. A tile takes what is in no loop, and as many steady iterations as
    its products need; tiles on the diagonal cost as others do, and a CU that has fewer blocks than fit is no faster.
    What a launch takes before its first block is not in it.
    """
    resident = kernel.waves * kernel.blocks / 4
    peak = {"gfx942": 512, "gfx950": 1024}[kernel.arch]  # FLOPs of a matrix unit in a cycle, half precision
    free = [0.0] * (cus * kernel.blocks)
    work = 0.0
    for tiles in launch.tiles() * launch.sequences:
        begun = heapq.heappop(free)
        for tile in tiles:
            needed = 4 * launch.rows * launch.head * min((tile + 1) * launch.rows, launch.tokens) / peak
            iterations = max(0.0, needed - state.outside_products) / (state.products * kernel.waves)
            begun += state.outside + iterations * state.cycles * resident
            work += needed
        heapq.heappush(free, begun)
    return 100 * work / (4 * cus * max(free)), int(max(free))
