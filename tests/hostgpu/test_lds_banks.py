"""The stand-in's count of LDS cycles against the table's own, and CDNA 4's ways into and out of LDS."""

import numpy as np
import pytest

from rocattn_profiling.base.lds_banks import READ, WRITE, lds_access, lds_groups_text

from .standin import KERNELS, LAUNCH_FAILURE, SUCCESS

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
    """Lane l's bytes, 4 or 16, are at that many times l then; before that nobody knows whether they are there."""
    device, words = standin(arch), np.arange(64 * width, dtype=np.uint32)
    pointers = [device.upload(words), device.empty(words.nbytes)]
    ran = device.run("lds.hip", "direct", (1,), (64,), *pointers, ARRIVED=1, WIDTH=width, DTYPE="f16")
    assert ran == (SUCCESS, "")
    assert (device.download(pointers[1], (64, width), np.uint32) == words.reshape(64, width)[::-1]).all()
    status, report = device.run("lds.hip", "direct", (1,), (64,), *pointers, WIDTH=width, DTYPE="f16")
    assert status == LAUNCH_FAILURE
    assert report.startswith("rocattn hostgpu: LDS race at lds.hip:")
    assert " and has not waited for" in report


def turns(device, **changes):
    """Run `turns` of lds.hip in two blocks; return the status, the findings and the sums."""
    defines = {"STEPS": 5, "TILES": 2, "WAITS": 5, "LOADER": 0, "READS_FIRST": 0, "LEFT": 0} | changes
    pointers = [device.upload(np.arange(6 * 64, dtype=np.uint32)), device.empty(4 * 128)]
    ran = device.run("lds.hip", "turns", (2,), (128,), *pointers, WIDTH=1, DTYPE="f16", **defines)
    return *ran, device.download(pointers[1], (2, 64), np.uint32)


def line_of(place):
    """The line of lds.hip that is marked so."""
    lines = (KERNELS / "lds.hip").read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"// HERE {place}"))
    return number


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("loader", "reads_first", "place", "thread", "why"),
    [
        (0, 0, "read", 0, "reads byte 0 of words, which thread 0 loads at {load} and has not waited for"),
        (0, 1, "read", 64, "reads byte 0 of words, which thread 0 loads at {load} and has not waited for"),
        (1, 0, "load", 64, "writes byte 0 of words, which thread 0 read at {read}, with no barrier"),
        (1, 1, "load", 64, "writes byte 0 of words, which thread 64 and others read at {read}, with no barrier"),
    ],
)
def test_loads_to_lds_may_arrive_early(standin, arch, loader, reads_first, place, thread, why):
    """With a tile too few they come to one that is still read, though all have read it when the wave waits."""
    status, report, sums = turns(standin(arch), LOADER=loader, READS_FIRST=reads_first)
    assert (status, report) == (SUCCESS, "")
    assert (sums == np.arange(5 * 64).reshape(5, 64).sum(0)).all()
    status, report, _ = turns(standin(arch), LOADER=loader, READS_FIRST=reads_first, TILES=1)
    assert status == LAUNCH_FAILURE
    at = {name: f"lds.hip:{line_of(name)}" for name in ("load", "read")}
    who = f"block (0, 0, 0), thread {thread} (wave {thread // 64}, lane 0)"
    assert f"LDS race at {at[place]}, kernel turns, {who}: {why.format(**at)}" in report


@pytest.mark.parametrize("waits", [0, 1, 2, 4])
def test_a_missing_wait_for_a_load_to_lds_is_found_in_any_turn(standin, waits):
    """Also where LDS holds an older tile, so that what is read is not uninitialised."""
    status, report, _ = turns(standin("gfx942"), WAITS=waits)
    assert status == LAUNCH_FAILURE
    assert f"LDS race at lds.hip:{line_of('read')}, " in report
    assert f" loads at lds.hip:{line_of('load')} and has not waited for" in report


def test_a_load_to_lds_does_not_outlive_its_block(standin):
    """One that nobody waits for, in an array that the next block writes."""
    assert turns(standin("gfx942"), LEFT=1)[:2] == (SUCCESS, "")


def test_nothing_is_counted_unless_asked_for(standin):
    """Without the groups there are no lines; groups that make no sense are a finding."""
    assert standin("gfx942").lds_cycles() == []
    assert "ROCATTN_HOSTGPU_LDS_GROUPS" in standin("gfx942", lds_groups="read all").report()
