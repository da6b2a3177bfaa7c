"""Which block has which query tile and head, where a GPU deals its blocks to several compute dies (XCDs)."""

import ctypes

import numpy as np
import pytest

SOURCE = """
#include <rocattn/flash_prefill.h>
using namespace rocattn;
ROCATTN_KERNEL(places, ROCATTN_WAVE, (u32* out, u32 tiles, u32 heads, u32 batches)) {
    const BlockPlace place(tiles, heads, batches);
    u32* mine = out + ((block_z() * heads + block_y()) * tiles + block_x()) * 3;
    if (thread_id() != 0) return;
    store(mine, place.tile);
    store(mine + 1, place.head);
    store(mine + 2, place.batch);
}
"""


@pytest.mark.parametrize(("tiles", "heads", "group", "batches", "most"), [
    (5, 32, 4, 1, 1), (5, 8, 8, 8, 1), (3, 12, 1, 4, 1), (7, 6, 3, 4, 1), (1, 71, 71, 2, 8), (9, 40, 5, 1, 1),
    # 3 of 11 heads are left over: their blocks are dealt in the order of the grid.
    (4, 11, 1, 1, 4), (6, 2, 2, 1, 8),
])  # fmt: skip
def test_the_blocks_of_a_head_go_to_one_die(standin, tmp_path, tiles, heads, group, batches, most):
    """Every place is taken once; the K and V of a KV head enter the L2 of one die in the place of all eight."""
    device = standin("gfx942")
    source = tmp_path / "places.hip"
    source.write_text(SOURCE)
    blocks = tiles * heads * batches
    out = device.upload(np.zeros((blocks, 3), np.uint32))
    counts = [ctypes.c_uint32(n) for n in (tiles, heads, batches)]
    assert device.run(source, "places", (tiles, heads, batches), (64, 1, 1), out, *counts, XCDS=8) == (0, "")
    places = device.download(out, (blocks, 3), np.dtype(np.uint32))
    device.free(out)
    assert len(np.unique(places, axis=0)) == blocks
    assert (places.max(axis=0) + 1 == (tiles, heads, batches)).all()
    dies = {}
    for number, (_, head, batch) in enumerate(places.tolist()):
        dies.setdefault((batch, head // group), set()).add(number % 8)
    assert max(map(len, dies.values())) <= most
    in_grid_order = {}
    for number in range(blocks):
        in_grid_order.setdefault(number // tiles // group, set()).add(number % 8)
    assert max(map(len, dies.values())) <= max(map(len, in_grid_order.values()))
