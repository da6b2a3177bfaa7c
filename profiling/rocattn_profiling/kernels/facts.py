"""Facts about one kernel's machine code: registers, spills, LDS, occupancy, and the cost of its hot loop."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.kernels.model.cost import LoopCost, loop_cost
from rocattn_profiling.kernels.model.loops import hot_loop
from rocattn_profiling.kernels.model.occupancy import Occupancy, OccupancyError, occupancy
from rocattn_profiling.kernels.model.rates import NoRatesError
from rocattn_profiling.kernels.read.assembly import AssemblyFunction
from rocattn_profiling.kernels.read.instructions import is_call
from rocattn_profiling.kernels.read.text_files import number

if TYPE_CHECKING:
    from rocattn.toolchain.code_object import KernelInfo

OCCUPANCY, HOT_LOOP, CALLED = "occupancy", "hot loop", "called code"
"""Facts that are compared, and that a kernel may lack (`KernelFacts.lacks`)."""
_DESCRIPTOR_GRANULE = 16  # largest step in which a descriptor counts VGPRs
_LOAD = re.compile(r"global_load_(\d+)B")


class Spills(msgspec.Struct, frozen=True, kw_only=True):
    """Spilled registers of a kernel.

    Attributes:
        vgprs, sgprs: How many; VGPRs spill to memory or AGPRs, SGPRs to lanes of a VGPR or to memory.
        instructions: Scratch accesses per iteration of the hot loop; None where the code is unknown.
    """

    vgprs: int
    sgprs: int
    instructions: int | None = None


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, as compiled for one architecture.

    Attributes:
        kernel: Name of a shipped kernel, or the symbol of another one.
        variant: The problem it is compiled for ("f16 D=128"); "" for other people's kernels.
        choices: The macros it is compiled with ("WAVES=4 KEYS_PER_TILE=32"), which may differ between revisions.
        config: What else distinguishes kernels of the same name: trait -> value, for Triton "num_warps", "tile", ….
        arch, target: The processor without and with its features ("gfx942", "gfx942:xnack-").
        symbol: Its name in the code object.
        file: Its source below ``kernels/``; for other people's kernels, the file that was read.
        compiler: Its compiler; "" where the file does not say.
        defined: "FILE:LINE" of its source; "" where the file does not say.
        wave_size, block: Lanes per wave, and threads per block that the occupancy assumes.
        vgprs, agprs, sgprs: Registers per wave; on gfx90a and later, ``vgprs`` includes the AGPRs.
        spills: Spilled registers.
        scratch_bytes: Private memory per lane.
        lds_bytes: LDS per block, including dynamic LDS.
        kernarg_bytes: Size of the argument block.
        code_bytes: Size of its machine code; 0 if unknown.
        instructions: Instructions in all of its code; None where only the code object could be read.
        occupancy: Waves that fit, and the binding limit; None where the processor or the block is unknown.
        loop: Cost of the hot loop; None where the code could not be read.
        loop_bytes: Approximate code size of the hot loop, including code that an iteration usually skips; None if
            there is no loop or the size is unknown.
        unknown: Facts that could not be determined, one line each. Missing metadata is in `unsaid`.
        unsaid: Numbers that its file does not state ("vgpr_spills"); they are 0 here.
        simplified: Functions of ROCm's device library that were replaced by simpler ones when compiling its source.
        lacks: Why `OCCUPANCY`, `HOT_LOOP` or `CALLED` (the code of functions that it calls) is unknown.
    """

    kernel: str
    variant: str = ""
    choices: str = ""
    config: dict[str, str] = {}
    arch: str
    target: str
    symbol: str
    file: str
    compiler: str = ""
    defined: str = ""
    wave_size: int
    block: int
    vgprs: int
    agprs: int
    sgprs: int
    spills: Spills
    scratch_bytes: int
    lds_bytes: int
    kernarg_bytes: int
    code_bytes: int
    instructions: int | None = None
    occupancy: Occupancy | None = None
    loop: LoopCost | None = None
    loop_bytes: int | None = None
    unknown: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    simplified: tuple[str, ...] = ()
    lacks: dict[str, Reason[str]] = {}

    @property
    def name(self) -> str:
        """The kernel's name and variant."""
        return f"{self.kernel} {self.variant}".rstrip()

    def says(self, number: str) -> bool:
        """Return whether the file states this number."""
        return number not in self.unsaid

    @property
    def gaps(self) -> tuple[str, ...]:
        """All unknown facts, one line each."""
        return (*(f"the file does not state its {number}" for number in self.unsaid), *self.unknown)

    @property
    def lost_wave_slots(self) -> float | None:
        """Empty wave slots per SIMD."""
        return self.occupancy.lost_wave_slots if self.occupancy else None

    @property
    def cycles_for_work(self) -> float | None:
        """Issue cycles of the hot loop per 1e6 FLOP: iterations with different tiles do different work."""
        return self.loop.cycles_per(1e6) if self.loop else None

    @property
    def global_loads(self) -> dict[int, int]:
        """Bytes per lane -> global loads of that width per iteration."""
        kinds = self.loop.kinds if self.loop else {}
        matches = {kind: _LOAD.fullmatch(kind) for kind in kinds}
        return {int(match[1]): kinds[kind].instructions for kind, match in matches.items() if match}


def kernel_facts(
    info: KernelInfo,
    target: str,
    function: AssemblyFunction | None,
    *,
    file: str,
    kernel: str = "",
    variant: str = "",
    choices: str = "",
    config: dict[str, str] | None = None,
    compiler: str = "",
    defined: str = "",
    block: int = 0,
    dynamic_lds_bytes: int = 0,
    unknown: tuple[str, ...] = (),
    no_code: str = "",
) -> KernelFacts:
    """Assemble the facts of a kernel.

    Args:
        info: Metadata from its code object.
        target: Processor with features; "" if the file does not say.
        function: Its code; None if it could not be read.
        file: Its source, or the file it was read from.
        kernel: Its name; by default, the symbol.
        variant: The problem it is compiled for.
        choices: See `KernelFacts`.
        config: See `KernelFacts`.
        compiler: Its compiler.
        defined: See `KernelFacts`.
        block: Threads per block; by default, the largest that the kernel may be launched with.
        dynamic_lds_bytes: LDS requested at launch.
        unknown: Facts about its file that could not be determined.
        no_code: Why its code could not be read.
    """
    missing = [*([f"no instructions: {no_code}"] if no_code else []), *unknown]
    lacks: dict[str, Reason[str]] = {HOT_LOOP: Reason("no_instructions", no_code)} if no_code else {}

    def lack(fact: str, code: str, why: str) -> None:
        lacks[fact] = Reason(code, why)
        missing.append(f"no {'cost of the ' * (fact == HOT_LOOP)}{fact}: {why}")

    arch = target.partition(":")[0]
    processor = arch or "code without a target"
    threads, lds = block or info.block, info.lds_bytes + dynamic_lds_bytes
    waves = None
    try:
        if not info.vgprs and "vgprs" in info.unknown:
            raise OccupancyError("its number of VGPRs is unknown")
        if 0 < info.block < threads:
            raise OccupancyError(f"blocks of {threads} threads are impossible: it is compiled for at most {info.block}")
        waves = _waves(arch, info, function, lds, block)
    except ArchError:
        lack(OCCUPANCY, "unknown_processor", f"nothing is known about {processor}")
    except RocattnError as error:
        lack(OCCUPANCY, "unknown_numbers", str(error))
    if _stack_grows(info, function):
        least = f"at least {info.scratch_bytes} bytes"
        missing.append(f"scratch: its stack grows as it runs (recursion, calls through pointers), {least}")
    loop = instructions = loop_bytes = None
    if function is not None:
        missing += _undeclared(info, function)
        instructions = function.instructions.total()
        try:
            loop = loop_cost(function, arch, threads)
        except NoRatesError:
            lack(HOT_LOOP, "unknown_processor", f"no instruction rates are known for {processor}")
        except RocattnError as error:
            lack(HOT_LOOP, "unknown_rates", str(error))
        if any(is_call(each.mnemonic) for each in function.instructions):
            lacks[CALLED] = Reason("called", "functions that are not inlined are not followed")
        hot = hot_loop(function)
        if hot and info.code_bytes and instructions:
            in_loop = sum(len(function.blocks[block].instructions) for block in hot.blocks)
            loop_bytes = round(info.code_bytes * in_loop / instructions)
    return KernelFacts(
        kernel=kernel or info.symbol, variant=variant, choices=choices, config=config or {}, arch=arch, target=target,
        symbol=info.symbol, file=file, compiler=compiler, defined=defined, wave_size=info.wave_size, block=threads,
        vgprs=info.vgprs, agprs=info.agprs, sgprs=info.sgprs,
        spills=Spills(vgprs=info.vgpr_spills, sgprs=info.sgpr_spills, instructions=_scratch_accesses(loop)),
        scratch_bytes=info.scratch_bytes, lds_bytes=lds, kernarg_bytes=info.kernarg_bytes, code_bytes=info.code_bytes,
        instructions=instructions, occupancy=waves, loop=loop, loop_bytes=loop_bytes,
        unknown=tuple(missing), unsaid=tuple(info.unknown), lacks=lacks,
    )  # fmt: skip


def _scratch_accesses(loop: LoopCost | None) -> int | None:
    """Count scratch accesses by unit: LLVM marks spills only at the first instruction of a bundle."""
    if loop is None:
        return None
    return sum(work.instructions for kind, work in loop.kinds.items() if kind.startswith("scratch_"))


def _waves(arch: str, info: KernelInfo, function: AssemblyFunction | None, lds_bytes: int, block: int) -> Occupancy:
    """Return the occupancy of a launch; if the block is unknown, of the largest block that the kernel allows.

    Where LDS limits the waves, the compiler pads the VGPR count to match. That padding is not a limit: with less LDS
    it shrinks. Only registers taken to limit the waves further (amdgpu_waves_per_eu) are a limit of their own, and
    named as such: no change of the code adds a wave.
    """
    used, taken = (
        occupancy(
            arch, wave_size=info.wave_size, vgprs=vgprs, sgprs=info.sgprs, lds_bytes=lds_bytes,
            block=block or info.block or None, wgp_mode=_wgp_mode(info, function),
        )
        for vgprs in (info.vgprs, _allocated(info, function))
    )  # fmt: skip
    if not (block or taken.waves_per_simd):
        raise OccupancyError(f"its block is unknown, and blocks of {info.block} threads, its limit, do not fit")
    if taken.waves_per_simd >= used.waves_per_simd:
        return used
    bound_by = tuple("VGPRs asked for" if name == "VGPRs" else name for name in taken.bound_by)
    asked = f", of {taken.vgprs} requested by amdgpu_waves_per_eu; the code uses {used.vgprs}"
    return replace(taken, bound_by=bound_by, sentence=f"{taken.sentence}{asked}")


def _allocated(info: KernelInfo, function: AssemblyFunction | None) -> int:
    """Return the VGPRs that a launch allocates: those used, or more if the compiler wants fewer waves."""
    if info.descriptor is None:
        asked = number(function.descriptor.get("next_free_vgpr", "")) if function else None
        return max(asked or 0, info.vgprs)
    asked = info.descriptor.vgprs
    return asked if asked - info.vgprs >= _DESCRIPTOR_GRANULE else info.vgprs


def _undeclared(info: KernelInfo, function: AssemblyFunction) -> list[str]:
    """Return a note if code uses VGPRs beyond all that a launch allocates; AITER's code does, with an offset."""
    said = number(function.descriptor.get("next_free_vgpr", ""))
    declared = info.descriptor.vgprs if info.descriptor else said or 0
    text = "\n".join({each.operands for each in function.instructions})
    digits = len(str(declared))  # shorter numbers are smaller
    named = re.findall(rf"\bv\[?(?:\d{{1,4}}:)?(\d{{{digits},4}})\b", text)
    last = max(map(int, set(named)), default=-1)
    return [f"registers: its code uses v{last}, but declares only {declared} VGPRs"] if last >= declared > 0 else []


def _stack_grows(info: KernelInfo, function: AssemblyFunction | None) -> bool:
    """Whether the scratch size is only a lower bound."""
    if info.descriptor is not None:
        return info.descriptor.dynamic_stack
    return function is not None and function.descriptor.get("uses_dynamic_stack") == "1"


def _wgp_mode(info: KernelInfo, function: AssemblyFunction | None) -> bool:
    """Return whether a block may use both CUs of a WGP: what the descriptor says, or else LLVM's default, yes."""
    if info.descriptor is not None and info.descriptor.wgp_mode is not None:
        return info.descriptor.wgp_mode
    return function is None or function.descriptor.get("workgroup_processor_mode", "1") != "0"
