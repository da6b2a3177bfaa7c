"""Deliberately broken copies of the kernels: each mistake is caught, by the stand-in's name for it or a wrong result.

A mistake is one line of the sources, replaced in a copy; the copy without a mistake gives the right result, so what is
caught is the mistake.
"""

import shutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest

import rocattn.toolchain.hostgpu as hostgpu_toolchain
from rocattn.config import AttentionConfig
from rocattn.gpu.backward import backward_launches
from rocattn.gpu.flash import flash_launches
from rocattn.gpu.standard import standard_launches
from rocattn.sources import kernel_root
from rocattn_profiling.workloads.accuracy import check_gradients, check_output
from rocattn_profiling.workloads.inputs import make_inputs

from . import launching
from .launching import backward_arrays, forward_arrays

SIZES = {"batch": 1, "num_heads": 2, "num_kv_heads": 1, "seq_q": 67, "seq_k": 109, "dtype": "float16"}
LAUNCHES = {"flash": flash_launches, "standard": standard_launches, "backward": backward_launches}
WRONG = "a wrong result"
STEP = """
    static constexpr __device__ u32 row_step(u32 r) { return r; }
    static ROCATTN_INLINE A a_from_lds("""
WHOLE = """
            k.template fetch<true>"""
DONE = """
            block_barrier();  // for all waves, and all are done with the previous tile in `next`"""
MOVE = """
            k_rows = k_rows.from(S::TILE_KEYS);
            v_rows = v_rows.from(S::TILE_KEYS);"""
FETCH = """
            if (key + S::TILE_KEYS < end) fetch_tile(next, key + S::TILE_KEYS, k_rows, v_rows);"""
HALFWAY = """
        const auto halfway = [&] {
            """
LOAD = """            part[n] = load_columns<T, VECTOR>(from.data + row * from.row_stride, column,
                                              """
# Problems whose K and V are loaded to LDS directly on gfx950: of the generic kernel, and where waves are staggered.
DIRECT = {"head_dim": 128, "seq_k": 209, "softcap": 20.0}
STAGGERED = {"head_dim": 128, "seq_q": 256, "seq_k": 337}


class Mistake(NamedTuple):
    """One line of a kernel source, what replaces it, and how that is caught."""

    file: str
    right: str
    broken: str
    caught: str
    arch: str = "gfx1100"
    path: str = "flash"
    changes: Mapping[str, object] = MappingProxyType({"head_dim": 64})


MISTAKES = {
    "a tile too few": Mistake(
        "hip/flash_attention_nocausal.hip", "0, ceil_div(seq_k, KEYS_PER_TILE), -INF",
        "0, seq_k / KEYS_PER_TILE, -INF", WRONG,
    ),
    "the last keys not hidden": Mistake(
        "hip/flash_attention_nocausal.hip", "hide_after<S>(s, key, static_cast<i32>(seq_k) - 1);",
        "hide_after<S>(s, key, static_cast<i32>(seq_k));", WRONG,
    ),
    "no barrier before LDS is written again": Mistake(
        "include/rocattn/flash.h", "block_barrier();  // all waves are done with what LDS held before", "", "LDS race"
    ),
    "no barrier before LDS is read": Mistake(
        "include/rocattn/flash.h", "            block_barrier();\n            if constexpr (S::TILE_SLICES == 1)",
        "            if constexpr (S::TILE_SLICES == 1)", "LDS race",
    ),
    "V not put into LDS": Mistake(
        "include/rocattn/flash.h",
        "put_chained<typename S::VLayout>(v, block.lds + S::K_ELEMENTS, slice * S::V_COLUMNS);", "",
        "uninitialised LDS read",
    ),
    "loads to LDS that are not waited for": Mistake(
        "include/rocattn/flash_direct.h", "S::KLayout::arrived();" + DONE, DONE, "LDS race", arch="gfx950",
        changes=DIRECT,
    ),
    "loads to LDS before all have read what it holds": Mistake(
        "include/rocattn/flash_direct.h", DONE + MOVE + FETCH, MOVE + FETCH + DONE, "LDS race", arch="gfx950",
        changes=DIRECT,
    ),
    "loads to LDS that staggered waves do not wait for": Mistake(
        "include/rocattn/flash_direct.h", HALFWAY + "S::KLayout::arrived();", HALFWAY, "LDS race", arch="gfx950",
        changes=STAGGERED,
    ),
    "loads to LDS before all staggered waves have read what it holds": Mistake(
        "include/rocattn/flash_direct.h", "{}, halfway, fetch);", "{}, fetch, halfway);", "LDS race",
        arch="gfx950", changes=STAGGERED,
    ),
    "loads to LDS of a single tile of K": Mistake(
        "include/rocattn/direct_tile.h", "next = before;", "(void)before;", "LDS race", arch="gfx942",
        changes={"head_dim": 128},
    ),
    "a read past the end": Mistake(
        "include/rocattn/flash_loads.h", "if (key + S::TILE_KEYS <= block.seq_k) {" + WHOLE,
        "if (key < block.seq_k) {" + WHOLE,
        "out-of-bounds global read",
    ),
    "a swapped fragment index": Mistake(
        "include/rocattn/matrix.h", "return 2 * r + lane / 16;", "return lane / 16 * 8 + r;", WRONG
    ),
    "fragments of another architecture": Mistake(
        "include/rocattn/matrix.h", "return lane / 16 * C_ROWS + r; }" + STEP + "const T*",
        "return r * 4 + lane / 16; }" + STEP + "const T*", WRONG, arch="gfx942",
    ),
    "half of a fragment": Mistake(
        "include/rocattn/matrix.h", "const T* row = tile + lane_id() % 16 * stride + (SPLIT",
        "const T* row = tile + lane_id() % 16 * stride + (lane_id() >= 16 ? 8 : 0) + (SPLIT", "fragment halves differ",
    ),
    "an exchange in one half of the wave": Mistake(
        "include/rocattn/matrix.h", "other[i] = exchange_halves(mine[i], where);",
        "other[i] = lane_id() < 16 ? exchange_halves(mine[i], where) : mine[i];", "divergent shuffle",
    ),
    "no barrier in the backward pass": Mistake(
        "include/rocattn/backward.h", "block_barrier();  // all waves are done with the previous content of LDS", "",
        "LDS race", path="backward",
    ),
    "no barrier between the phases": Mistake(
        "include/rocattn/backward.h", "block_barrier();  // all waves are done with the rows", "", "LDS race",
        path="backward", changes={"head_dim": 192},
    ),
    "scores of one wave of a team": Mistake(
        "include/rocattn/backward.h", "mine[i % M::C_ROWS] += others[n][e];",
        "mine[i % M::C_ROWS] = others[n][e];", WRONG, path="backward", changes={"head_dim": 128},
    ),
    "a row too many in the products": Mistake(
        "include/rocattn/matmul.h", LOAD + "row < from.rows ?", LOAD + "row <= from.rows ?",
        "out-of-bounds global read", path="standard",
    ),
}  # fmt: skip


@pytest.fixture
def broken_root(tmp_path, monkeypatch):
    """Return a copy of the kernel sources that launches take instead of the project's own."""
    root = tmp_path / "kernels"
    for part in ("hip", "include", "hostgpu"):
        shutil.copytree(kernel_root() / part, root / part)
    monkeypatch.setattr(hostgpu_toolchain, "kernel_root", lambda: root)
    monkeypatch.setattr(launching, "kernel_root", lambda: root)
    return root


def outcome(device, path, changes):
    """Run a problem; return the stand-in's finding, "a wrong result", or "" if all is well."""
    direction = "backward" if path == "backward" else "forward"
    config = AttentionConfig(**SIZES | changes, return_lse=direction == "forward", direction=direction)
    inputs = make_inputs(config)
    if path == "backward":
        forward = config.replace(direction="forward", return_lse=True)
        arrays = forward_arrays(device, forward, inputs)
        arrays.run(flash_launches(forward, device.arch, arrays.buffers))
        arrays = backward_arrays(device, config, inputs, arrays.result("out"), arrays.result("lse"))
    else:
        arrays = forward_arrays(device, config, inputs)
    try:
        arrays.run(LAUNCHES[path](config, device.arch, arrays.buffers))
    except AssertionError as finding:
        return str(finding)
    with np.errstate(all="ignore"):
        if path == "backward":
            check = check_gradients(config, inputs, *(arrays.result(f"d{name}") for name in "qkv"))
        else:
            check = check_output(config, inputs, arrays.result("out"), arrays.result("lse"))
    return "" if check.ok else WRONG


@pytest.mark.parametrize("path", LAUNCHES)
def test_a_copy_without_a_mistake_is_right(standin, broken_root, path):
    """So the other tests catch their mistakes, and not the copying."""
    assert broken_root.is_dir()
    assert outcome(standin("gfx1100"), path, {"head_dim": 64}) == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught(standin, broken_root, name):
    """The report names it; where nothing forbidden was done the result is wrong."""
    mistake = MISTAKES[name]
    file = broken_root / mistake.file
    text = file.read_text()
    assert text.count(mistake.right) == 1, f"{mistake.file} has changed: this mistake can no longer be made"
    file.write_text(text.replace(mistake.right, mistake.broken))
    assert mistake.caught in outcome(standin(mistake.arch), mistake.path, mistake.changes)
