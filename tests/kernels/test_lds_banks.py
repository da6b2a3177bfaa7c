"""The bank conflicts in docs/kernels.md, calculated again from the tiles' strides and the measured lane groups.

Sources of the groups: ROCm's blog on CK-Tile and tingqli/pyhip for MI300X, HipKittens f09e968 for MI355X.
"""

import re
from pathlib import Path

import pytest

from rocattn.sources import kernel_root

PADDING = 8  # 16-bit elements: `PADDING` and `transposed_offset` of fragments.h


def groups(*starts, run=4):
    """Return groups of lanes made of runs, and the same of the upper half of a wave."""
    low = [[start + lane for start in group for lane in range(run)] for group in starts]
    return low + [[32 + lane for lane in group] for group in low]


READ_B128 = {
    "gfx942": (groups((0, 20), (4, 16), (8, 28), (12, 24)), 32),
    "gfx950": (groups((0, 12, 20, 24), (4, 8, 16, 28)), 64),
}
WRITE_B64 = ([list(range(at, at + 16)) for at in range(0, 64, 16)], 32)
WRITE_B128 = ([list(range(at, at + 8)) for at in range(0, 64, 8)], 32)


def cycles(access, words, address):
    """Return the LDS cycles of a wave's access, and without conflicts; `address` is in bytes, of a lane."""
    lanes_served, banks = access
    taken = 0
    for lanes in lanes_served:
        hit = [set() for _ in range(banks)]
        for word in (address(lane) // 4 + n for lane in lanes for n in range(words)):
            hit[word % banks].add(word)
        taken += max(map(len, hit))
    return taken, len(lanes_served)


def transposed(feature, keys):
    """Return where a feature's row starts, in bytes."""
    return 2 * (feature * (keys + PADDING) + feature // 8 * PADDING)


def found(what, arch):
    """Return every (cycles, least) of an access, over head dimensions, tiles and parts of it."""
    if what.startswith("fragments of K"):
        return {cycles(READ_B128[arch], 4, lambda x, d=d: x % 16 * 2 * (d + PADDING) + x // 16 * 16) for d in (64, 128)}
    if what.startswith("fragments of V"):
        keys = int(re.search(r"tile of (\d+) keys", what)[1])
        return {cycles(READ_B128[arch], 4, lambda x: transposed(x % 16, keys) + x // 16 * 16)}
    if what.startswith("V^T, `ds_write_b64`"):
        return {
            cycles(WRITE_B64, 2, lambda x, d=d, n=n, e=e: transposed(x % (d // 4) * 4 + e, n) + x // (d // 4) * 8)
            for d, n in ((64, 64), (128, 32))
            for e in range(4)
        }
    assert what.startswith("K, `ds_write_b128`")
    return {
        cycles(WRITE_B128, 4, lambda x, d=d: x // (d // 8) * 2 * (d + PADDING) + x % (d // 8) * 16) for d in (64, 128)
    }


def rows():
    """Return the rows of the page's table."""
    page = (Path(__file__).parents[2] / "docs/kernels.md").read_text()
    table = page.partition("| access of a wave |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_page_has_the_calculated_conflicts(row):
    """The padding of the headers, under the lane groups of each GPU."""
    header = (kernel_root() / "include/rocattn/fragments.h").read_text()
    assert "PADDING = VECTOR_BYTES / sizeof(Element)" in header
    for arch, said in zip(("gfx942", "gfx950"), row[1:], strict=True):
        ((taken, least),) = found(row[0], arch)
        assert said.startswith(f"{taken}, " + (f"not {least}" if taken != least else "no conflict"))
