"""Bank conflicts of machine code: known layouts, and the ways in which accesses are written."""

import pytest

from rocattn.toolchain.hip import compile_hip
from rocattn_profiling.base.lds_banks import lds_groups_text
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.lds import lds_conflicts
from rocattn_profiling.kernels.read.assembly import parse_assembly

from ...hostgpu.standin import KERNELS, SUCCESS, StandIn
from .test_lanes import KERNEL


def conflicts(body, arch="gfx942", threads=64):
    """Return the conflicts of a kernel's code, run through once."""
    lines = "\n".join(f"\t{line}" for line in body.splitlines())
    (function,) = parse_assembly(KERNEL.format(arch=arch, body=lines, half=int(arch.startswith("gfx1"))))
    return lds_conflicts(function, range(len(function.blocks)), arch, LaneValues(function, threads))


def fragment(stride):
    """Return the address of a fragment of 16 rows of this many bytes, as MFMA takes them: 16 bytes a lane."""
    row = f"v_and_b32_e32 v1, 15, v0\nv_mul_u32_u24_e32 v1, {stride}, v1\n"
    return f"{row}v_lshrrev_b32_e32 v2, 4, v0\nv_lshl_add_u32 v8, v2, 4, v1\n"


@pytest.mark.parametrize(
    ("arch", "stride", "factor"),
    [("gfx942", 272, 2), ("gfx942", 288, 1), ("gfx950", 272, 2), ("gfx950", 288, 1), ("gfx942", 256, 4)],
)
def test_fragments_of_16_rows(arch, stride, factor):
    """Padding of 16 bytes a row costs a factor of 2 under the measured groups, one of 32 none (docs/kernels.md)."""
    found = conflicts(fragment(stride) + "ds_read_b128 v[4:7], v8 offset:64", arch)
    assert (found.reads, found.writes, found.unknown) == (1, 0, 0)
    assert (found.read_factor, found.read_basis) == (factor, "measured")


def test_an_unknown_base_changes_nothing():
    """Where the tile lies in LDS moves all lanes alike."""
    base = "s_load_dword s4, s[0:1], 0x0\n"
    found = conflicts(f"{base}{fragment(272)}v_add_u32_e32 v8, s4, v8\nds_read_b128 v[4:7], v8")
    assert found.read_factor == 2


def test_two_addresses_are_two_accesses():
    """ds_read2 counts each half at its own address; with st64 offsets count 64 times as much."""
    for name in ("ds_read2_b64", "ds_read2st64_b64"):
        found = conflicts(f"v_lshlrev_b32_e32 v8, 7, v0\n{name} v[4:7], v8 offset0:1 offset1:3")
        assert (found.reads, found.read_factor) == (1, 16)
    found = conflicts("v_lshlrev_b32_e32 v8, 3, v0\nds_store_2addr_b64 v8, v[2:3], v[4:5] offset1:64", "gfx1201", 32)
    assert (found.writes, found.write_factor) == (1, 1)


def test_addresses_that_nothing_says_are_counted_as_such():
    """They are no part of the factor; without LDS accesses there is nothing to say."""
    found = conflicts("global_load_dword v8, v0, s[0:1]\nds_write_b32 v8, v0\nds_write_b32 v0, v0")
    assert (found.writes, found.unknown, found.write_factor) == (2, 1, 1.0)
    assert conflicts("v_mov_b32_e32 v1, v0") is None
    assert conflicts("ds_read_b32 v1, v0", "gfx803") is None


@pytest.mark.parametrize(("arch", "wave"), [("gfx942", 64), ("gfx950", 64), ("gfx1100", 32)])
def test_the_code_and_the_stand_in_agree(tmp_path, kernel_cache, arch, wave):
    """What the machine code says is what the stand-in counts when it executes the source."""
    assert kernel_cache
    defines = {"WIDTH": 1, "DTYPE": "f16"}
    device = StandIn(tmp_path, arch, lds_groups=lds_groups_text(arch, wave))
    assert device.run("lds.hip", "strided", (1,), (wave,), device.empty(4 * wave), **defines) == (SUCCESS, "")
    code = compile_hip(KERNELS / "lds.hip", arch, defines=defines)
    (function,) = (each for each in parse_assembly(code.assembly) if each.name == "strided")
    counted = device.lds_cycles()
    found = lds_conflicts(function, range(len(function.blocks)), arch, LaneValues(function, wave))
    assert found.unknown == 0
    for direction, factor in (("read", found.read_factor), ("write", found.write_factor)):
        rows = [row for row in counted if row[1] == direction]
        assert factor == pytest.approx(sum(row[4] for row in rows) / sum(row[5] for row in rows))
        assert factor > 1
