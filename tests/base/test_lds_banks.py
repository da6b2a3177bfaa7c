"""The lanes that LDS serves together, and the cycles that follow from them."""

import pytest

from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.gpus import architecture, architectures
from rocattn_profiling.base.lds_banks import READ, WRITE, lds_access, lds_accesses, lds_groups_text


@pytest.mark.parametrize("arch", architectures())
def test_each_lane_is_served_once(arch):
    """Every access has every lane in one group, and a source that the file names."""
    for wave_size in architecture(arch).wave_sizes:
        accesses = lds_accesses(arch, wave_size)
        assert {(one.direction, one.bytes) for one in accesses} >= {
            (d, n) for d in (READ, WRITE) for n in (4, 8, 12, 16)
        }
        for one in accesses:
            assert sorted(lane for group in one.groups for lane in group) == list(range(wave_size))
            assert one.basis in {"measured", "documented", "assumed"}


def test_conflicts_take_turns():
    """Rows of 256 bytes are 8 words in one bank of MI300X; the same word costs nothing, nor do absent lanes."""
    read = lds_access("gfx942", 64, READ, 16)
    assert read.cycles({lane: 16 * lane for lane in range(64)}) == (8, 8)
    assert read.cycles({lane: 256 * lane for lane in range(64)}) == (64, 8)
    assert read.cycles(dict.fromkeys(range(64), 0)) == (8, 8)
    assert read.cycles({0: 0, 20: 256}) == (2, 1)
    assert read.cycles({0: 0, 4: 256}) == (2, 2)


def test_wider_accesses_stand_for_narrow_ones():
    """Two bytes are served as four; nothing is known of 32, nor of an unknown GPU."""
    assert lds_access("gfx1100", 32, WRITE, 2).bytes == 4
    with pytest.raises(ValueError, match="32"):
        lds_access("gfx1100", 32, WRITE, 32)
    with pytest.raises(ArchError):
        lds_access("gfx1", 32, READ, 4)


def test_text_for_the_stand_in():
    """A line of direction, bytes, banks, and each group as a mask of lanes."""
    assert "read 16 64 0xff0f00f 0xf00f0ff0 0xff0f00f00000000 0xf00f0ff000000000\n" in lds_groups_text("gfx950", 64)
