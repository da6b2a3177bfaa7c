"""Scratch memory of targets that reach it with buffer instructions (gfx90a, gfx1030): told from global memory."""

import pytest

from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.instructions import Access, Pipe

from ..counting import Counts

# As LLVM begins such a kernel: the buffer comes in s[0:3], or is moved out of the way; the wave's offset is added.
IN_PLACE = "\ts_add_u32 s0, s0, s7\n\ts_addc_u32 s1, s1, 0\n"
MOVED = (
    "\ts_mov_b64 s[26:27], s[2:3]\n\ts_mov_b64 s[24:25], s[0:1]\n\ts_add_u32 s24, s24, s18\n"
    "\ts_load_dwordx2 s[4:5], s[8:9], 0x0\n\ts_addc_u32 s25, s25, 0\n"
)
ACCESSES = "\tbuffer_store_dword v1, off, {0}, 0 offset:4\n\tbuffer_load_dword v2, v3, {0}, 0 offen\n"
GLOBAL = "\tbuffer_load_dwordx4 v[4:7], v9, s[12:15], 0 offen\n"


def read(start, accesses, *, arch="gfx90a", scratch=16):
    """Return a kernel whose loop has these accesses, as a disassembler shows it: without notes on spills."""
    (kernel,) = parse_assembly(
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n\t.type k,@function\nk:\n{start}.L1:\n{accesses}'
        f"\ts_cbranch_scc1 .L1\n\ts_endpgm\n.Lend:\n\t.size k, .Lend-k\n"
        f"\t.amdhsa_kernel k\n\t\t.amdhsa_private_segment_fixed_size {scratch}\n\t.end_amdhsa_kernel\n"
    )
    return kernel


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1030", "gfx9-generic", "gfx10-3-generic"])
@pytest.mark.parametrize(("start", "buffer"), [(IN_PLACE, "s[0:3]"), (MOVED, "s[24:27]")])
def test_the_stack_of_a_kernel_is_found_by_its_buffer(arch, start, buffer):
    """Spills and arrays are scratch, whatever registers the buffer is in; other buffers are global memory."""
    memory = Counts(read(start, ACCESSES.format(buffer) + GLOBAL, arch=arch).blocks[1].instructions).memory
    assert memory == {
        (Pipe.SCRATCH, Access.STORE, 4): 1,
        (Pipe.SCRATCH, Access.LOAD, 4): 1,
        (Pipe.GLOBAL, Access.LOAD, 16): 1,
    }


@pytest.mark.parametrize(
    ("start", "arch", "scratch"),
    [
        (IN_PLACE, "gfx90a", 0),  # the same instructions, adding to a pointer
        (IN_PLACE, "gfx942", 16),  # has scratch instructions
        (IN_PLACE, "gfx9-4-generic", 16),
        ("\ts_add_u32 s0, s0, s7\n\ts_addc_u32 s1, s1, s8\n", "gfx90a", 16),
    ],
)
def test_a_buffer_that_is_not_the_stack_stays_global_memory(start, arch, scratch):
    """Without scratch memory, or where other instructions reach it, s[0:3] is a buffer like any."""
    counts = Counts(read(start, ACCESSES.format("s[0:3]"), arch=arch, scratch=scratch).blocks[1].instructions)
    assert counts.units[Pipe.SCRATCH] == 0


def test_counts_do_not_depend_on_earlier_texts():
    """The same text of an instruction is the stack in one kernel and a buffer in another."""
    plain = read("", ACCESSES.format("s[24:27]"))
    stack = read(MOVED, ACCESSES.format("s[24:27]"))
    assert [sorted(loop_cost(one, "gfx90a").kinds)[1:] for one in (plain, stack, plain)] == [
        ["global_load_4B", "global_store_4B"],
        ["scratch_load_4B", "scratch_store_4B"],
        ["global_load_4B", "global_store_4B"],
    ]
