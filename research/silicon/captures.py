"""What tinygrad's captures of real GPUs hold: the instructions that a wave executed, and when each was issued.

A capture is a thread trace of one kernel (``extra/sqtt/examples``); tinygrad's own decoder reads it, of the waves on
one SIMD. Times are those of the trace: the cycle in which an instruction leaves the wave, of a wait the cycle in which
it ends. The pickles name classes of other versions, so those are replaced by empty ones here.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Any

from engine import Step

from rocattn.toolchain import choose_compiler
from rocattn_profiling.kernels.read.assembly import Instruction, parse_assembly
from rocattn_profiling.kernels.read.code_objects import DeviceObject
from rocattn_profiling.kernels.read.disassembly import DisassemblyError, disassemble
from rocattn_profiling.kernels.read.instructions import Pipe

COMMIT = "a9069c177a9da9cca18593edf55acd2e6073cca6"
"""Of github.com/tinygrad/tinygrad: what the numbers in the documents are of."""
_MAGIC = b"\x7fELF\x02\x01\x01"  # which older captures of hand-made code lack
ARCHITECTURES = ("gfx1100", "gfx1200", "gfx950")
_SLOT = 4  # cycles: the resolution of gfx950's traces
_KINDS = {"SMEM": {Pipe.SCALAR}, "SALU": {Pipe.SCALAR}, "VALU": {Pipe.VECTOR, Pipe.MATRIX}, "NEXT": {Pipe.BRANCH},
          "LDS": {Pipe.LDS}, "FLAT": {Pipe.GLOBAL}, "VMEM": {Pipe.GLOBAL}}  # fmt: skip


@dataclass(frozen=True)
class Wave:
    """A wave of a capture.

    Attributes:
        steps: What it executed, s_endpgm last.
        times: When each step was issued, in cycles of the trace; None for what the trace leaves out.
    """

    steps: tuple[Step, ...]
    times: tuple[int | None, ...]

    @property
    def start(self) -> int:
        """When its first instruction was issued."""
        return next(time for time in self.times if time is not None)


@dataclass(frozen=True)
class Capture:
    """The traced waves of one shader engine, by their place on the SIMD.

    Attributes:
        arch, kernel, program, run, engine: Which it is; a kernel may launch several programs.
        waves: Those on the traced SIMD; of gfx950 those of the traced CU, one on each SIMD.
        beside: Those on the other SIMD that shares LDS with it, of which a trace has the accesses to memory only: what
            they executed is taken from the waves of the first, and the times in between are theirs, moved.
    """

    arch: str
    kernel: str
    program: str
    run: int
    engine: int
    waves: tuple[Wave, ...]
    beside: tuple[Wave, ...]


class _Empty:
    def __new__(cls, *_, **__):
        return object.__new__(cls)

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else state[1] or state[0])


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        known = module in {"builtins", "collections"}
        return super().find_class(module, name) if known else type(name, (_Empty,), {})


def read_captures(checkout: Path, folder: Path | None = None) -> Iterator[Capture]:
    """Yield the captures of a checkout of tinygrad, or of another folder, for `ARCHITECTURES`.

    Left out, and named on stderr, are those that cannot be read or judged: of code that no disassembler here reads in
    full, and of more waves than have places at once, as nothing says which of them meet at a barrier.
    """
    sys.path.insert(0, str(checkout.resolve()))
    from tinygrad.renderer.amd import sqtt

    for arch in ARCHITECTURES:
        for path in sorted(((folder or checkout / "extra/sqtt/examples") / arch).glob("profile_*.pkl")):
            _, kernel, _, run = path.stem.split("_")
            with path.open("rb") as file:
                events = _Reader(file).load()
            found = [each for each in events if type(each).__name__ == "ProfileProgramEvent"]
            programs = {each.tag: (each.name, _MAGIC + each.lib[len(_MAGIC) :]) for each in found}
            for event in events:
                if type(event).__name__ != "ProfileSQTTEvent" or not event.itrace or event.kern not in programs:
                    continue
                name, program = programs[event.kern]
                read = _waves_of_cu if arch == "gfx950" else _waves
                try:
                    waves = read(sqtt, event.blob, program, arch)
                except (DisassemblyError, LookupError) as error:
                    print(f"{path}, shader engine {event.se}: {error}", file=sys.stderr)
                    continue
                if any(len(wave.steps) > 1 for wave in waves):
                    yield Capture(
                        arch, kernel, name, int(run), event.se, waves, tuple(_beside(sqtt, event.blob, waves))
                    )


def _beside(sqtt: Any, trace: bytes, waves: Sequence[Wave]) -> Iterator[Wave]:
    """Yield the waves on the other SIMD, those that access no memory left out."""
    accesses: dict[int, list[int]] = {}
    for packet in sqtt.decode(trace):
        if getattr(getattr(packet, "op", None), "name", "").startswith("OTHER_"):
            accesses.setdefault(packet.wave, []).append(packet._time)  # noqa: SLF001
    for place, known in sorted(accesses.items()):
        twin = waves[min(place, len(waves) - 1)]
        units = [step.instruction.unit in {Pipe.LDS, Pipe.GLOBAL} for step in twin.steps]
        moved = [time - at for time, at in zip(known, compress(twin.times, units), strict=False)]
        behind = accumulate(units, initial=0)
        yield Wave(
            twin.steps,
            tuple(
                None if time is None else time + moved[min(access, len(moved) - 1)]
                for time, access in zip(twin.times, behind, strict=False)
            ),
        )


def _waves(sqtt: Any, trace: bytes, program: bytes, arch: str) -> tuple[Wave, ...]:
    """Return the waves of a trace in order of their places, with what it leaves out put back."""
    text: dict[int, Instruction] = {}
    following: dict[int, int] = {}
    steps: dict[int, list[Step]] = {}
    times: dict[int, list[int | None]] = {}
    expected: dict[int, int] = {}
    for packet, info in sqtt.map_insts(trace, program, arch):
        if info is None:
            continue
        text = text or _instructions(program, arch)
        following = following or dict(pairwise(text))
        executed, issued = steps.setdefault(info.wave, []), times.setdefault(info.wave, [])
        at = expected.get(info.wave, info.pc)
        if executed and executed[-1].instruction.mnemonic == "s_endpgm":
            raise LookupError("several waves have one place, one after the other")
        while at != info.pc:
            executed.append(Step(text[at], at))
            issued.append(None)
            at = following[at]
        taken = getattr(getattr(packet, "op", None), "name", "") == "JUMP"
        executed.append(Step(text[at], at, taken=taken))
        issued.append(packet._time)  # noqa: SLF001 - the decoder has no other name for it
        words = info.inst.simm16 & 0xFFFF if taken else 0
        expected[info.wave] = following.get(at, at) + 4 * (words - 0x10000 * (words >> 15))
    return tuple(Wave(tuple(steps[wave]), tuple(times[wave])) for wave in sorted(steps))


def _waves_of_cu(sqtt: Any, trace: bytes, program: bytes, arch: str) -> tuple[Wave, ...]:
    """Return the waves of a CU of gfx950, of whose packets the decoder does not say which instruction each is.

    They come in order and have kinds, so code without loops tells. A wait is not traced; it ends a slot before what is
    behind it begins.
    """
    ended, packets = {}, {}
    for packet in sqtt.decode(trace):
        name = type(packet).__name__
        if name == "CDNA_INST" and not packet.op.name.startswith("OTHER"):
            packets.setdefault(packet.simd, []).append(packet)
        elif name == "CDNA_WAVEEND" and packet.cu == 0:
            ended[packet.simd] = packet._time  # noqa: SLF001
    if not packets:
        return ()
    text, waves = _instructions(program, arch), []
    for simd, traced in sorted(packets.items()):
        steps: list[Step] = []
        times: list[int | None] = []
        following = iter(text.items())
        for packet in traced:
            for address, instruction in following:
                steps.append(Step(instruction, address))
                times.append(None)
                if instruction.unit in _KINDS.get(packet.op.name.partition("_")[0], ()):
                    break
                if instruction.unit is Pipe.WAIT:
                    times[-1] = packet._time - _SLOT  # noqa: SLF001
                elif instruction.mnemonic != "s_nop":
                    raise LookupError(f"{instruction.mnemonic} is traced as {packet.op.name}")
            times[-1] = packet._time  # noqa: SLF001
        address, instruction = next(following)
        waves.append(Wave((*steps, Step(instruction, address)), (*times, ended[simd])))
    return tuple(waves)


def _instructions(program: bytes, arch: str) -> dict[int, Instruction]:
    """Return a code object's instructions by address.

    The small ones have no symbols, without which no disassembler reads them: their code is put into one that has.
    """
    from tinygrad.viz.serve import amd_decode

    decoded = amd_decode(program, arch)
    compiler = choose_compiler()
    with tempfile.TemporaryDirectory() as folder:
        source, assembled, linked = (str(Path(folder, f"code.{suffix}")) for suffix in ("s", "o", "hsaco"))
        lines = [f".byte {', '.join(map(str, each.to_bytes()))}" for each in decoded.values()]
        Path(source).write_text("\n".join([".type k,@function", "k:", *lines, ".size k, .-k", ""]))
        target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "-x", "assembler"]
        subprocess.run([*compiler.argv, *target, source, "-o", assembled], check=True)
        subprocess.run([*compiler.linker, "-shared", assembled, "-o", linked], check=True)
        (function,) = parse_assembly(disassemble(DeviceObject("", arch, 5, (), Path(linked).read_bytes())))
    instructions = [instruction for block in function.blocks for instruction in block.instructions]
    return dict(zip(decoded, instructions, strict=False))  # what lies behind the last s_endpgm is padding
