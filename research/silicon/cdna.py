"""Judges the simulation on CDNA: the share of busy matrix units and the speeds that others measured, against hot loops.

    git clone https://github.com/ROCm/aiter AITER                       # e4048607
    git clone https://github.com/midiareshadi/attn-dsl-bench BENCH      # 94ea7f3, of MI300X; it names Triton's source
    python research/silicon/cdna.py --aiter AITER --bench BENCH --triton CACHES

``CACHES/gfx942/128`` is the cache (``TRITON_CACHE_DIR``) into which Triton 3.4.0 compiled each configuration of that
source for head dimension 128. Nothing is fetched.

A CU runs the usual path of a kernel's hot loop, with the blocks that fit; loads, of spilled registers too, are answered
in one time. Each number is a published one (`TIMING`, `Cdna`), or it is said that it is not known. Triton's rows are
means over all configurations that its tuner launched, so simulated ones are, too.

Not judged: rows of fewer tokens, of AITER at D = 64 (CK's) and of AOTriton; speeds on MI355X, as no clock is published
with them; and kernels that Triton 3.7 spills, whose code does not come out here with the spills that were reported.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from engine import Memory, Simulation, Step, Timing, operands_of

from rocattn.toolchain.code_object import KernelInfo
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.lds import lds_conflicts
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
_PACKED = "v_pk_add_f32", "v_pk_fma_f32", "v_pk_mul_f32", "v_pk_mov_b32", "v_dot"
_WARM, _ITERATIONS = 4, 16


class Cdna(Simulation):
    """A CU of CDNA 3 and 4: four SIMDs, each of which takes an instruction of every kind in four cycles.

    Vector and matrix instructions are of one kind, and registers are waited for in the wave. What may follow a matrix
    instruction on its SIMD is from traces of MI308X and MI350X (LLVM's pull request 233721): the vector unit goes on
    after a slot, and one more for each 16 bytes of its widest source; packed arithmetic in single precision, two slots
    after its end, and one more with sources of 16 bytes. Its result is read four slots after its end, on gfx950 five,
    as LLVM has it (GCNHazardRecognizer), and by a product that adds to it at once.
    """

    lanes, simds, slot = 64, 4, 4

    def __init__(self, arch: str, memory: Memory, timing: Timing = TIMING) -> None:
        super().__init__(arch, memory, timing)
        self._result = (5 if arch == "gfx950" else 4) * self.slot
        self._matrix_free = [0] * self.simds
        self._packed_free = [0] * self.simds
        self._chained: dict[tuple[int, tuple[str, int]], int] = {}

    def _earliest(self, wave) -> int:
        time = super()._earliest(wave)
        operands = operands_of(wave.step.instruction.mnemonic, wave.step.instruction.operands)
        summed = operands.writes if wave.step.instruction.unit is Pipe.MATRIX else frozenset()
        needed = [wave.ready.get(each, 0) for each in (operands.reads | operands.writes) - summed]
        needed += [self._chained.get((wave.place, each), wave.ready.get(each, 0)) for each in summed]
        time = max([time, *needed])
        return -(-time // self.slot) * self.slot

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
        conflicts = lds_conflicts(self.function, path, self.arch, LaneValues(self.function, 64 * self.waves))
        reads, writes = (conflicts.read_factor or 1, conflicts.write_factor or 1) if conflicts else (1, 1)
        steps = []
        for block, following in pairwise((*path, path[0])):
            for instruction in self.function.blocks[block].instructions:
                stores = instruction.operations[0].access is Access.STORE
                steps.append(Step(instruction, conflicts=writes if stores else reads))
            if steps and steps[-1].instruction.unit is Pipe.BRANCH:
                steps[-1] = replace(steps[-1], taken=following != block + 1)
        return tuple(steps)


def read_kernel(path: Path, *, groups: int = 1, lds_bytes: int = 0) -> Kernel:
    """Return the kernel of a code object.

    Args:
        path: The file.
        groups: How many loops its waves are in at once: the first ones with as many matrix instructions as the hot one.
        lds_bytes: What a launch adds to the LDS that it declares.
    """
    (device,) = read_objects(path.read_bytes(), path.name)
    info: KernelInfo = device.kernels[0]
    functions = parse_assembly(disassemble(device))
    function = next(each for each in functions if each.name == info.symbol)
    arch = device.processor
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
    """

    busy: float
    cycles: float


def steady(kernel: Kernel, latency: int = LATENCY, timing: Timing = TIMING) -> Steady:
    """Simulate iterations of all waves of a CU, and count until the first wave is through with its own."""
    simulation = Cdna(kernel.arch, Memory(latency, latency, latency), timing)
    bodies = [kernel.steps(loop) for loop in kernel.loops]
    waves = []
    for block in range(kernel.blocks):
        for number in range(kernel.waves):
            waves.append(bodies[number * len(bodies) // kernel.waves])
            simulation.add(waves[-1] * _ITERATIONS, 0, simd=len(waves) % 4, block=block)
    times = simulation.run()
    first = min(range(len(times)), key=lambda number: times[number][-1])
    begin, end = times[first][_WARM * len(waves[first])], times[first][-1]
    costs = rates(kernel.arch, 64)
    work = iterations = 0.0
    for issued, body in zip(times, waves, strict=True):
        for step, time in zip(body * _ITERATIONS, issued, strict=True):
            if begin <= time < end:
                iterations += 1 / len(body)
                if step.instruction.unit is Pipe.MATRIX:
                    work += costs.cost(step.instruction).cycles
    return Steady(100 * work / (4 * (end - begin)), (end - begin) / iterations * 4)


MI300X_ROWS = ("aiter", "128"), ("triton", "128"), ("triton", "64")
"""Of attn-dsl-bench: whose machine code is at hand."""
_LONGEST = "16384"  # tokens, of the rows that a steady state is of; shorter ones are mostly beginning and end
_POINTS, _RATIO = 8, 8  # points of matrix share, and per cent of a ratio, that a number may be off
_ROUNDING = 522 / 449  # TFLOP/s of AITER with bf16 rounded by rtz and by rtne on MI300X: moonmath-ai/amd-kernels
_PUBLISHED = {"": 1283 / 2517, "_causal": 1247 / 2517}  # of MI355X's peak, AITER at D = 128: HipKittens f09e968


def main() -> int:
    """Print the table; 1 if an aim is missed, 2 if there is nothing to judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--aiter", type=Path, metavar="FOLDER", help="checkout of github.com/ROCm/aiter")
    parser.add_argument("--bench", type=Path, metavar="FOLDER", help="checkout of midiareshadi/attn-dsl-bench")
    parser.add_argument("--triton", type=Path, metavar="FOLDER", help="Triton's caches by GPU and head dimension")
    parser.add_argument("--latency", type=int, default=LATENCY, metavar="CYCLES", help=f"of loads ({LATENCY})")
    options = parser.parse_args()
    rows = list(_rows(options.aiter, options.bench, options.triton, options.latency))
    print(f"{'':50} {'measured':>9} {'simulated':>9} {'off by':>9}")
    for row in rows:
        print(row.text())
    return 2 if not rows else int(any(row.met is False for row in rows))


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: What was measured.
        measured, simulated: The numbers.
        met: Whether they are close enough; None if nothing says how close they ought to be.
        note: What they are of.
    """

    name: str
    measured: float
    simulated: float
    met: bool | None
    note: str = ""

    def text(self) -> str:
        """Return it as a line."""
        word = {True: "meets the aim", False: "misses the aim", None: "not judged"}[self.met]
        off = "" if self.met is None else f"{self.simulated - self.measured:+.2f}"
        return f"{self.name:50} {self.measured:9.2f} {self.simulated:9.2f} {off:>9} {word:14} {self.note}".rstrip()


def _rows(assembly: Path | None, bench: Path | None, triton: Path | None, latency: int) -> Iterator[Row]:
    simulated: dict[tuple[str, str], tuple[float, str]] = {}
    if assembly:
        code = assembly / "hsa/gfx942/fmha_v3_fwd/MI300"
        simulated["aiter", "128"] = steady(_of_aiter(code / "fwd_hd128_bf16_causal_rtna.co"), latency).busy, ""
    for folder in sorted((triton / "gfx942").iterdir()) if triton else ():
        shares = sorted(steady(kernel, latency).busy for kernel in _of_triton(folder))
        each = " ".join(f"{share:.1f}" for share in shares)
        simulated["triton", folder.name] = sum(shares) / len(shares), f"mean of {each}"
    if bench:
        measured = dict(_measured(bench))
        for key in MI300X_ROWS:
            if key in simulated:
                share, note = simulated[key]
                close = abs(share - measured[key]) <= _POINTS
                yield Row(f"MI300X, matrix share %, {key[0]} D={key[1]}", measured[key], share, close, note)
        keys = [key for key in MI300X_ROWS if key in simulated]
        if len(keys) > 1:
            pairs = [(a, b) for a in keys for b in keys if measured[a] > measured[b]]
            right = sum(simulated[a][0] > simulated[b][0] for a, b in pairs)
            yield Row("MI300X, pairs of these in order", len(pairs), right, right == len(pairs))
    if assembly:
        rtz, rtne = (steady(_of_aiter(code / f"fwd_hd128_bf16_{name}.co"), latency) for name in ("rtz", "rtne"))
        ratio = rtne.cycles / rtz.cycles
        close = abs(ratio / _ROUNDING - 1) <= _RATIO / 100
        yield Row("MI300X, speed of AITER's rtz over rtne", _ROUNDING, ratio, close)
        for name, share in _PUBLISHED.items():
            kernel = _of_aiter(assembly / f"hsa/gfx950/fmha_v3_fwd/fwd_hd128_bf16{name}.co")
            note = "measured: of the peak at 2.4 GHz, simulated: of cycles"
            yield Row(f"MI355X, AITER D=128{name} %", 100 * share, steady(kernel, latency).busy, None, note)


def _of_aiter(path: Path) -> Kernel:
    """Return one of AITER's kernels for attention: of a block's eight waves four are in each of two loops."""
    return read_kernel(path, groups=2)


def _of_triton(cache: Path) -> Iterator[Kernel]:
    """Yield the kernels of a cache."""
    for path in sorted(cache.rglob("*.hsaco")):
        yield read_kernel(path, lds_bytes=json.loads(path.with_suffix(".json").read_text())["shared"])


def _measured(bench: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield implementation and head dimension, and the share of the longest sequences."""
    with (bench / "results/raw/counters_v1.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["seq_len"] == _LONGEST:
                yield (row["implementation"], row["head_dim"]), float(row["mfma_util"])


if __name__ == "__main__":
    sys.exit(main())
