"""A GPU that tinygrad's instruction-level emulator plays: waves, code objects, launches.

The emulator compiles every machine instruction to a small program for this CPU and keeps registers, LDS and memory as
arrays; memory is the process's own. What is done here in its place is what a packet processor does (the initial
registers are the emulator's), and the order of waves: each runs to its next barrier before the next one begins.
Registers, LDS and workspaces start as NaN, so that whatever is read before it is written shows.
"""

# ruff: noqa: SLF001 - the emulator has no public parts
from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.gpu.build import arg_layout, compile_for_device, pack_scalar
from rocattn.toolchain import choose_compiler
from rocattn.toolchain.code_object import DESCRIPTOR_BYTES
from rocattn.toolchain.elf import Elf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocattn.gpu.launch import KernelLaunch, LaunchPlan

COMMIT = "a9069c177a9da9cca18593edf55acd2e6073cca6"
"""Of github.com/tinygrad/tinygrad, 22 August 2026: what the corrections were made for."""
FAMILIES = {"gfx1100": "rdna3", "gfx1201": "rdna4", "gfx942": "cdna", "gfx950": "cdna"}
"""The emulator's name of each architecture that it knows and there are kernels for."""
POISON = 0x7FC0DEAD
"""A NaN in float32, and in each half of it, as float16 or bfloat16, an odd number."""
MAX_INSTRUCTIONS = 5_000_000
_LDS_GRANULE, _LDS_SHIFT = 512, 15
_PT_LOAD = 1
_ENABLE_BLOCK_IDS = 0x380


class EmulatorError(Exception):
    """Raised when the checkout does not fit, or the emulator cannot go on; its text says why."""


def open_emulator(checkout: Path, *, any_commit: bool) -> Any:
    """Import the emulator from a checkout of tinygrad and return its module.

    Raises:
        EmulatorError: When the folder is no checkout of the right commit.
    """
    if not (checkout / "test/mockgpu/amd/emu.py").is_file():
        raise EmulatorError(f"{checkout} is no checkout of tinygrad: it has no test/mockgpu/amd/emu.py")
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.stdout.strip() != COMMIT and not any_commit:
        found = head.stdout.strip() or "no git checkout"
        raise EmulatorError(f"{checkout} is {found}: check out {COMMIT}, or pass --any-commit")
    _bring_a_compiler()
    os.environ.setdefault("DEV", "CPU")
    sys.path.insert(0, str(checkout.resolve()))
    import test.mockgpu.amd.emu as emulator

    return emulator


def _bring_a_compiler() -> None:
    """Put the project's compiler on the path as "clang": tinygrad runs one of that name for the CPU."""
    folder = Path(tempfile.gettempdir(), f"rocattn-emulator-{os.getuid()}")
    folder.mkdir(exist_ok=True, mode=0o700)
    script = folder / "clang"
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{part}'" for part in choose_compiler().argv) + ' "$@"\n')
    script.chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


class Machine:
    """One emulated GPU.

    Attributes:
        arch: Its target.
        emulator: The emulator's module.
        executed: How often each instruction was executed, by its name.
    """

    def __init__(self, emulator: Any, arch: str) -> None:
        self.emulator, self.arch, self.family = emulator, arch, FAMILIES[arch]
        self.executed: Counter[str] = Counter()
        self._decoded: dict[bytes, tuple[Any, list[int], str]] = {}
        self._images: dict[str, _Image] = {}
        self._memory = self._buffer(1 << 40, "uint32", external=0)

    def _buffer(self, count: int, dtype: str, external: int | None = None) -> Any:
        e = self.emulator
        options = None if external is None else e.BufferSpec(external_ptr=external)
        return e.Buffer("CPU", count, getattr(e.dtypes, dtype), options=options).ensure_allocated()

    def loaded(self, launch: KernelLaunch, entry: int) -> None:
        """Take notice of a kernel before its first launch; `lockstep.Lockstep` does."""

    def size_at(self, at: int) -> int:
        """Return the bytes of the instruction at an address."""
        return int(self.emulator.decode_inst(ctypes.string_at(at, 16), self.family).size())

    # ---- single waves --------------------------------------------------------------------------------------------

    def wave(self, lanes: int | None = None) -> Any:
        """Return a wave whose vector registers are poisoned, all of its lanes active unless told otherwise."""
        size = self.emulator._wave_size(self.family)
        state = self.emulator.WaveState(lanes or size, size)
        for memory in (state.vgpr_buf, state.accvgpr_buf):
            _fill(memory, POISON)
        return state

    def step(self, state: Any, lds: Any, scratch: Any = None) -> str:
        """Execute one instruction of a wave; returns its name."""
        at = state.pc
        program, takes, name = self._decode(at)
        places = (state.sgpr_buf, state.vgpr_buf, self._memory, lds, scratch, state.accvgpr_buf)
        program(*[ctypes.c_uint64(places[index]._buf.va_addr if places[index] else 0) for index in takes])
        self.executed[name] += 1
        return name

    def _decode(self, at: int) -> tuple[Any, list[int], str]:
        text = ctypes.string_at(at, 16)
        if text not in self._decoded:
            (program, runtime), instruction = self.emulator._decode_at(at, self.family)
            self._decoded[text] = runtime.fxn, program.arg.globals, self.emulator._op_name(instruction)
        return self._decoded[text]

    def execute(self, assembly: str, vectors: Mapping[int, Any], scalars: Mapping[int, int] | None = None) -> Any:
        """Assemble instructions and execute them in one wave of given registers; returns the wave.

        Args:
            assembly: One or more instructions.
            vectors: Values of each lane, as uint32, by VGPR.
            scalars: Values by SGPR; 126 and 127 are EXEC. s[2:3] is the address of 4096 bytes of memory.
        """
        code = _Image(assemble(assembly + "\ns_nop 0\ns_endpgm\n", self.arch), flat=True)
        state, lds = self.wave(), self._buffer(16384, "uint32")
        _fill(lds, POISON)
        registers = np.frombuffer(state._vgpr_mv, np.uint32).reshape(-1, state.wave_size)
        for register, values in vectors.items():
            registers[register] = np.asarray(values, np.uint32)
        memory = np.full(1024, POISON, np.uint32)
        given = {2: memory.ctypes.data & 0xFFFFFFFF, 3: memory.ctypes.data >> 32}
        for register, value in (given | dict(scalars or {})).items():
            state._write_sgpr(register, value)
        state.pc = code.address
        with self.emulator._MXCSRContext():
            while state.pc != self.emulator.ENDPGM_PC:
                self.step(state, lds)
        return state

    # ---- launches ------------------------------------------------------------------------------------------------

    def run(self, plan: LaunchPlan, addresses: Mapping[str, int]) -> None:
        """Execute all launches of a plan.

        Args:
            plan: The plan.
            addresses: Of each buffer that a launch takes.
        """
        spaces = {name: np.full(-(-max(size, 4) // 4), POISON, np.uint32) for name, size in plan.workspaces.items()}
        known = {**addresses, **{name: space.ctypes.data for name, space in spaces.items()}}
        for launch in plan.launches:
            self._launch(launch, known)

    def _launch(self, launch: KernelLaunch, addresses: Mapping[str, int]) -> None:
        if launch.code_object not in self._images:
            code = compile_for_device(launch.source, self.arch, launch.defines, stand_in=False)
            self._images[launch.code_object] = _Image(code)
            self.loaded(launch, self._images[launch.code_object].kernel(launch.symbol)[0])
        image = self._images[launch.code_object]
        arguments = _argument_block(launch, addresses)
        block = ctypes.create_string_buffer(arguments, len(arguments) + 64)
        for grid in itertools.product(*(range(extent) for extent in reversed(launch.grid))):
            self._block(image, launch, tuple(reversed(grid)), ctypes.addressof(block))

    def _block(self, image: _Image, launch: KernelLaunch, block: tuple[int, ...], arguments: int) -> None:
        e, threads = self.emulator, launch.block[0] * launch.block[1] * launch.block[2]
        entry, lds_bytes, scratch_bytes, rsrc2 = image.kernel(launch.symbol)
        lds_bytes += launch.dynamic_lds_bytes
        rsrc2 |= -(-lds_bytes // _LDS_GRANULE) << _LDS_SHIFT
        size = e._wave_size(self.family)
        lds = self._buffer(max(1, lds_bytes // 4), "uint32")
        _fill(lds, POISON)
        scratch = self._buffer(scratch_bytes * size, "uint8") if scratch_bytes else None
        waves = []
        for start in range(0, threads, size):
            state = e._init_wave(entry, start, threads, *launch.block, arguments, rsrc2, scratch_bytes, self.family,
                                 *block, None, size)  # fmt: skip
            registers = np.frombuffer(state._vgpr_mv, np.uint32)
            registers[size:] = POISON
            if size == 64:
                _fill(state.accvgpr_buf, POISON)
            waves.append(state)
        with e._MXCSRContext():
            while waves:
                waves = [state for state in waves if self._to_barrier(state, lds, scratch)]

    def _to_barrier(self, state: Any, lds: Any, scratch: Any) -> bool:
        """Execute a wave up to its next barrier; returns whether it stands at one, rather than at its end."""
        for _ in range(MAX_INSTRUCTIONS):
            if state.pc == self.emulator.ENDPGM_PC:
                return False
            if self.step(state, lds, scratch) in {"S_BARRIER", "S_BARRIER_WAIT"}:
                return True
        raise EmulatorError(f"a wave is not done after {MAX_INSTRUCTIONS:,} instructions")


class _Image:
    """A code object in memory, or, if flat, an object file's instructions alone."""

    def __init__(self, data: bytes, *, flat: bool = False) -> None:
        self.elf = Elf.read(data)
        (text,) = self.elf.named(".text")
        self._segments = [(0, self.elf.content(text))] if flat else list(_segments(data))
        self._map = mmap.mmap(-1, max(at + len(part) for at, part in self._segments) + mmap.PAGESIZE)
        for at, part in self._segments:
            self._map[at : at + len(part)] = part
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def kernel(self, symbol: str) -> tuple[int, int, int, int]:
        """Return a kernel's entry, LDS and scratch bytes, and COMPUTE_PGM_RSRC2."""
        where = self.elf.symbols[f"{symbol}.kd"]
        descriptor = self.elf.at_symbol(where, DESCRIPTOR_BYTES)
        lds, scratch = struct.unpack_from("<II", descriptor, 0)
        (entry,) = struct.unpack_from("<q", descriptor, 16)
        (rsrc2,) = struct.unpack_from("<I", descriptor, 52)
        return self.address + where.value + entry, lds, scratch, rsrc2


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + index * size)
        if kind == _PT_LOAD:
            yield address, data[offset : offset + length]


def assemble(text: str, arch: str) -> bytes:
    """Return the object file of assembly text, by the project's compiler.

    Raises:
        EmulatorError: When it does not assemble.
    """
    with tempfile.TemporaryDirectory(prefix="rocattn-emulator-") as folder:
        source, target = Path(folder, "code.s"), Path(folder, "code.o")
        source.write_text(text)
        options = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "-x", "assembler", str(source)]
        done = subprocess.run(
            [*choose_compiler().argv, *options, "-o", str(target)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmulatorError(f"this does not assemble for {arch}: {text}\n{done.stderr}")
        return target.read_bytes()


def _argument_block(launch: KernelLaunch, addresses: Mapping[str, int]) -> bytes:
    packed = bytearray()
    for arg, (offset, _) in zip(launch.args, arg_layout(launch.args), strict=True):
        packed += b"\0" * (offset - len(packed))
        packed += pack_scalar(arg) if arg.kind == "scalar" else struct.pack("<Q", addresses[arg.name])
    return bytes(packed)


def _fill(buffer: Any, value: int) -> None:
    np.frombuffer(buffer.as_memoryview(force_zero_copy=True).cast("I"), np.uint32)[:] = value
