"""The stand-in's count of LDS cycles against the table's own, and CDNA 4's ways into and out of LDS."""

import numpy as np
import pytest

from rocattn_profiling.base.lds_banks import READ, WRITE, lds_access, lds_groups_text

from .standin import LAUNCH_FAILURE, SUCCESS

WAVES = {"gfx942": 64, "gfx950": 64, "gfx1100": 32}


def counted(standin, arch, symbol, *arrays, out, **defines):
    """Run a kernel of lds.hip; return its output and (direction, bytes, instructions, cycles, least) of each place."""
    device = standin(arch, lds_groups=lds_groups_text(arch, WAVES[arch]))
    device.lds_cycles()
    pointers = [*map(device.upload, arrays), device.empty(out.nbytes)]
    ran = device.run("lds.hip", symbol, (1,), (WAVES[arch],), *pointers, **{"WIDTH": 1, "DTYPE": "f16"} | defines)
    assert ran == (SUCCESS, "")
    return device.download(pointers[-1], out.shape, out.dtype), [row[1:6] for row in device.lds_cycles()]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("arch", WAVES)
def test_cycles_are_those_of_the_lanes_served_together(standin, arch, width):
    """Rows of many lengths, written and read by every width: executed addresses cost what the table says."""
    wave = WAVES[arch]
    for stride in (4, 5, 8, 16, 17, 18, 32):
        offsets = (np.arange(wave) % 16 * stride + np.arange(wave) // 16) * 4 * width
        _, rows = counted(standin, arch, "conflicts", offsets.astype(np.uint32), out=np.empty(wave * width, np.uint32),
                          WIDTH=width)  # fmt: skip
        by_lane = dict(enumerate(offsets.tolist()))
        assert rows == [
            [direction, 4 * width, 1, *lds_access(arch, wave, direction, 4 * width).cycles(by_lane)]
            for direction in (WRITE, READ)
        ]


def test_lanes_that_skip_a_read_are_no_part_of_it(standin):
    """Three reads, the last of even lanes alone."""
    out, rows = counted(standin, "gfx1100", "divergent", out=np.empty(32, np.uint32))
    assert out.tolist() == [lane * (3 - lane % 2) for lane in range(32)]
    assert rows == [[WRITE, 4, 1, 1, 1], [READ, 4, 3, 3, 3]]


def test_a_transposing_read_gives_columns(standin):
    """Of each 16 lanes, lane i gets column i of the four rows that their addresses name (CDNA 4 ISA)."""
    tile = np.arange(256, dtype=np.float16).reshape(16, 16)
    out, rows = counted(standin, "gfx950", "transposed", tile, out=np.empty((4, 16, 4), np.float16))
    assert (out == tile.reshape(4, 4, 16).swapaxes(1, 2)).all()
    assert ["transposing read", 8, 1, 2, 2] in rows


@pytest.mark.parametrize(("arch", "width"), [("gfx942", 1), ("gfx950", 1), ("gfx950", 4)])
def test_loads_to_lds_arrive_when_waited_for(standin, arch, width):
    """Lane l's bytes, 4 or 16, are at that many times l then; before that they may be anywhere, so they are nowhere."""
    device, words = standin(arch), np.arange(64 * width, dtype=np.uint32)
    pointers = [device.upload(words), device.empty(words.nbytes)]
    ran = device.run("lds.hip", "direct", (1,), (64,), *pointers, ARRIVED=1, WIDTH=width, DTYPE="f16")
    assert ran == (SUCCESS, "")
    assert (device.download(pointers[1], (64, width), np.uint32) == words.reshape(64, width)[::-1]).all()
    status, report = device.run("lds.hip", "direct", (1,), (64,), *pointers, WIDTH=width, DTYPE="f16")
    assert status == LAUNCH_FAILURE
    assert report.startswith("rocattn hostgpu: uninitialised LDS read")


def test_nothing_is_counted_unless_asked_for(standin):
    """Without the groups there are no lines; groups that make no sense are a finding."""
    assert standin("gfx942").lds_cycles() == []
    assert "ROCATTN_HOSTGPU_LDS_GROUPS" in standin("gfx942", lds_groups="read all").report()
