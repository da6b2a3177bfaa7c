"""Our forward kernels beside Triton's, counted in the machine code: the table of docs/machine-code.md.

No GPU is needed: Triton compiles for AMD GPUs without one. Run it with a Python that has both this project and Triton::

    python -m venv tritonenv && tritonenv/bin/pip install -e '.[toolchain]' triton==3.9.0
    tritonenv/bin/python research/peers/against_triton.py --json counts.json --update docs/machine-code.md

Both sides compute the same problem: fp16, D = Dv, long sequences, causal or not, with the LSE. Triton's kernel is the
flash attention of its tutorial 06 on plain pointers (`triton_flash.py`), which takes whole tiles only. Of its builds
(tiles of 64x32 and 128x64, 4 and 8 warps, 1 and 2 stages, buffers known to be below 2 GiB or not) the one with the
fewest vector and scratch instructions per score tile is shown.

A score tile is 16 query rows times 16 keys. What is counted is one iteration of the hot loop as `usual_path` finds it,
of one wave, divided by the score tiles that the wave contributes in it. Triton's compiler sometimes computes a tile in
several waves; such a tile counts once, and ``products_per_tile`` of the JSON shows the surplus.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
from triton.backends.amd.compiler import get_amd_codegen_revision
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_flash import flash_forward

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import choose_compiler, compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.kernels.model.loops import counts_of, hot_loop, longest_path, matrix_loops, usual_path
from rocattn_profiling.kernels.read.assembly import Counts, parse_assembly
from rocattn_profiling.kernels.read.instructions import Access, Pipe, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn.toolchain.code_object import KernelInfo
    from rocattn_profiling.kernels.model.loops import Loop
    from rocattn_profiling.kernels.read.assembly import AssemblyFunction

ARCHS, HEAD_DIMS, TILES = ("gfx1100", "gfx942"), (64, 128), ((64, 32), (128, 64))
WARPS, STAGES = (4, 8), (1, 2)
SEQUENCE = 4096  # only our choice of kernel depends on it
PRODUCT_FLOPS = 2 * 16**3  # of one 16x16x16 matrix product
MARKS = ("<!-- table -->", "<!-- end of table -->")


@dataclass(frozen=True)
class Case:
    """What is compiled."""

    arch: str
    head_dim: int
    causal: bool


@dataclass(frozen=True)
class Row:
    """One build, counted; ``*_per_tile`` are of one wave and one score tile.

    Attributes:
        who: "rocattn" or "triton".
        rows, keys: Of the block's tile.
        waves: Of a block.
        build: What Triton was asked for beyond the tile and the waves.
        vgprs, agprs, sgprs, spills, scratch_bytes: From the code object's metadata; vgprs count the agprs.
        lds_bytes: Of a block; Triton's is given at launch.
        wave_size: Lanes.
        tiles: Score tiles that a wave contributes in one iteration.
        products_per_tile: Matrix products of 16x16x16 size; 2 * D / 16 are needed.
        lane_operations_per_score: Vector operations of all lanes, so that waves of 32 and 64 compare.
        scratch_per_tile: Loads and stores of scratch memory.
        scalar_per_tile: Scalar instructions and branches.
        rescaling_vector_per_tile: Vector instructions where the iteration rescales the output, too: ours has a branch
            round that, Triton's always does it.
        longest_vector_per_tile: Vector instructions of the iteration with the most instructions: all that can be
            masked, checked and rescaled at once, inner loops run through once.
    """

    case: Case
    who: str
    rows: int
    keys: int
    waves: int
    build: str
    vgprs: int
    agprs: int
    sgprs: int
    spills: int
    scratch_bytes: int
    lds_bytes: int
    wave_size: int
    tiles: float
    products_per_tile: float
    vector_per_tile: float
    vector_operations_per_tile: float
    packed_per_tile: float
    transcendental_per_tile: float
    move_per_tile: float
    lane_operations_per_score: float
    cross_lane_per_tile: float
    lds_per_tile: float
    global_per_tile: float
    scratch_per_tile: float
    scalar_per_tile: float
    rescaling_vector_per_tile: float
    longest_vector_per_tile: float

    @property
    def cost(self) -> float:
        """What the best of Triton's builds is chosen by."""
        return self.vector_per_tile + self.scratch_per_tile


def _row(
    case: Case,
    who: str,
    tile: tuple[int, int],
    waves: int,
    build: str,
    info: KernelInfo,
    function: AssemblyFunction,
    lds: int,
) -> Row:
    """Count the hot loop of a build.

    Raises:
        SystemExit: When the loop is not what the comparison takes it for.
    """
    rows, keys = tile
    loops = sorted(matrix_loops(function), key=lambda loop: _usual(function, loop).units[Pipe.VECTOR])
    hot = hot_loop(function)
    if hot is None or not loops:
        raise SystemExit(f"{who} {case}: no loop with matrix products")
    loop = loops[0] if who == "triton" else hot
    counts = _usual(function, loop)
    step_bytes = 2 * 2 * case.head_dim * keys  # of K and V in fp16
    loaded = counts.lane_bytes(Pipe.GLOBAL, Access.LOAD) * waves * info.wave_size
    steps = loaded // step_bytes
    if not steps or (who == "triton" and loaded % step_bytes):
        raise SystemExit(f"{who} {case}: an iteration loads {loaded} bytes, a tile of K and V has {step_bytes}")
    # Each of our waves computes its own rows and nothing twice. Triton's need not: what a step yields is known.
    computed = counts.flops / (4 * 256 * case.head_dim)
    tiles = computed if who == "rocattn" else steps * rows * keys / 256 / waves
    path = usual_path(function, loop)
    rare = [function.blocks[block].counts for block in loop.own.difference(path)]
    # Of what a branch may skip only the rescaling has exponentials.
    rescaling = sum(block.units[Pipe.VECTOR] for block in rare if block.roles[Role.TRANSCENDENTAL])
    longest = counts_of(function, longest_path(function, loop))
    roles = counts.roles
    return Row(
        case=case, who=who, rows=rows, keys=keys, waves=waves, build=build, vgprs=info.vgprs, agprs=info.agprs,
        sgprs=info.sgprs, spills=info.vgpr_spills + info.sgpr_spills, scratch_bytes=info.scratch_bytes,
        lds_bytes=lds, wave_size=info.wave_size, tiles=tiles,
        products_per_tile=counts.flops / PRODUCT_FLOPS / tiles,
        vector_per_tile=counts.units[Pipe.VECTOR] / tiles,
        vector_operations_per_tile=counts.vector_operations / tiles,
        packed_per_tile=roles[Role.PACKED] / tiles, transcendental_per_tile=roles[Role.TRANSCENDENTAL] / tiles,
        move_per_tile=roles[Role.MOVE] / tiles,
        lane_operations_per_score=counts.vector_operations * info.wave_size / tiles / 256,
        cross_lane_per_tile=roles[Role.CROSS_LANE] / tiles, lds_per_tile=counts.units[Pipe.LDS] / tiles,
        global_per_tile=counts.units[Pipe.GLOBAL] / tiles, scratch_per_tile=counts.units[Pipe.SCRATCH] / tiles,
        scalar_per_tile=(counts.units[Pipe.SCALAR] + counts.units[Pipe.BRANCH]) / tiles,
        rescaling_vector_per_tile=(counts.units[Pipe.VECTOR] + rescaling) / tiles,
        longest_vector_per_tile=longest.units[Pipe.VECTOR] / tiles,
    )  # fmt: skip


def _usual(function: AssemblyFunction, loop: Loop) -> Counts:
    return counts_of(function, usual_path(function, loop))


def triton_row(case: Case, tile: tuple[int, int], warps: int, stages: int, small: bool) -> Row:
    """Compile Triton's kernel and count it.

    Args:
        case: What to compute.
        tile: Rows and keys of a block.
        warps: Of a block.
        stages: Of Triton's software pipelining.
        small: Whether buffers are known to be below 2 GiB, as Triton's launcher finds for PyTorch tensors.
    """
    names = flash_forward.arg_names
    constants = {"D": case.head_dim, "BLOCK_M": tile[0], "BLOCK_N": tile[1], "CAUSAL": case.causal}
    types = {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp16", "lse": "*fp32", "scale": "fp32"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    attributes = {}
    for i, name in enumerate(names):
        if name.endswith(("_b", "_h", "_s")) or name == "seq" or signature[name].startswith("*"):
            attributes[i,] = [["tt.divisibility", 16]]
        if small and signature[name].startswith("*"):
            attributes[i,].append(["tt.pointer_range", 32])
    source = ASTSource(
        flash_forward, signature, {(names.index(n),): value for n, value in constants.items()}, attributes
    )
    target = GPUTarget("hip", case.arch, 64 if case.arch.startswith("gfx9") else 32)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=target, options=options)
    (function,) = (each for each in parse_assembly(made.asm["amdgcn"]) if each.is_kernel)
    (info,) = kernels_of(made.asm["hsaco"])
    build = f"{stages} stage{'s' if stages > 1 else ''}{', < 2 GiB' if small else ''}"
    return _row(case, "triton", tile, warps, build, info, function, made.metadata.shared)


def our_row(case: Case) -> Row:
    """Compile what a plan launches and count it."""
    config = AttentionConfig(
        batch=1, num_heads=8, seq_q=SEQUENCE, seq_k=SEQUENCE, head_dim=case.head_dim, dtype="float16",
        causal=case.causal, return_lse=True,
    )  # fmt: skip
    (launch,) = plan(config, case.arch).launches
    code = compile_hip(launch.source, case.arch, defines=launch.defines)
    (info,) = (each for each in kernels_of(code.data) if each.symbol == launch.symbol)
    (function,) = (each for each in parse_assembly(code.assembly) if each.name == launch.symbol)
    waves, fragments, keys = (int(launch.defines[name]) for name in ("WAVES", "QUERY_FRAGMENTS", "KEYS_PER_TILE"))
    tile = 16 * waves * fragments, keys
    return _row(case, "rocattn", tile, launch.block[0] // info.wave_size, "", info, function, info.lds_bytes)


def all_rows(cases: list[Case]) -> Iterator[Row]:
    """Yield of each case Triton's builds, then ours."""
    for case in cases:
        for tile, warps, stages, small in product(TILES, WARPS, STAGES, (False, True)):
            if tile[0] >= 16 * warps:  # else waves have less than one row of tiles
                yield triton_row(case, tile, warps, stages, small)
        yield our_row(case)


def chosen(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield what is compared: Triton's best build of each case, and ours."""
    for case in dict.fromkeys(row.case for row in rows):
        ours = next(row for row in rows if row.case == case and row.who == "rocattn")
        theirs = [row for row in rows if row.case == case and row.who == "triton"]
        yield min(theirs, key=lambda row: row.cost), ours


_HEAD = (
    "GPU", "D", "causal", "kernel", "tile", "waves", "VGPRs", "spills", "vector", "ratio", "if it rescales",
    "cross-lane", "LDS", "scalar",
)  # fmt: skip


def markdown(rows: list[Row]) -> str:
    """Return the table; the ratio is Triton's vector instructions over ours."""
    lines = [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    for theirs, ours in chosen(rows):
        lines += [f"| {' | '.join(_cells(row, ours))} |" for row in (theirs, ours)]
    return "\n".join(lines)


def _cells(row: Row, ours: Row) -> list[str]:
    name = "rocattn" if row is ours else f"Triton, {row.build}"
    ratio = "" if row is ours else f"{row.vector_per_tile / ours.vector_per_tile:.2f}"
    return [
        row.case.arch, str(row.case.head_dim), "yes" if row.case.causal else "no", name, f"{row.rows}x{row.keys}",
        str(row.waves), str(row.vgprs), str(row.spills), f"{row.vector_per_tile:.1f}", ratio,
        f"{row.rescaling_vector_per_tile:.1f}", f"{row.cross_lane_per_tile:.1f}", f"{row.lds_per_tile:.1f}",
        f"{row.scalar_per_tile:.1f}",
    ]  # fmt: skip


def rescaling_share(deviation: float, head_dim: int = 128, slack: float = 8.0) -> float:
    """Return the share of iterations that rescale in our loop, for normally distributed scores.

    Args:
        deviation: Standard deviation of the scores in natural units.
        head_dim: D.
        slack: How far a score may exceed its row's reference before it moves, as kernels/include/rocattn/flash.h says.
    """
    rng, rows, keys = np.random.default_rng(0), 32, 32
    moved = iterations = 0
    for _ in range(64):  # waves
        q, k = (rng.standard_normal((n, head_dim), np.float32) for n in (rows, SEQUENCE))
        scores = q @ k.T * (deviation * math.log2(math.e) / math.sqrt(head_dim))
        reference = np.full(rows, -np.inf, np.float32)
        for tops in scores.reshape(rows, -1, keys).max(2).T:
            moves = bool((tops > reference + slack).any())
            reference = np.maximum(reference, tops) if moves else reference
            moved, iterations = moved + moves, iterations + 1
    return moved / iterations


def rescaling_table() -> str:
    """Return how often our loop rescales."""
    lines = ["| standard deviation of the scores | iterations that rescale |", "|---|---|"]
    return "\n".join(lines + [f"| {deviation} | {rescaling_share(deviation):.1%} |" for deviation in (1, 2, 4)])


def versions() -> dict[str, str]:
    """Return what was compared."""
    import rocattn

    return {
        "triton": triton.__version__, "triton_llvm": get_amd_codegen_revision(), "rocattn": rocattn.__version__,
        "compiler": choose_compiler().version,
    }  # fmt: skip


def update(page: Path, text: str) -> None:
    """Replace what lies between the marks of a page.

    Raises:
        SystemExit: When the page has no marks.
    """
    content = page.read_text()
    before, first, rest = content.partition(MARKS[0])
    _, second, after = rest.partition(MARKS[1])
    if not first or not second:
        raise SystemExit(f"{page} has no {MARKS[0]} … {MARKS[1]}")
    page.write_text(f"{before}{first}\n{text}\n{second}{after}")


def main() -> int:
    """Compile, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--archs", default=",".join(ARCHS), help="gfx1100, gfx942 or both")
    parser.add_argument("--json", type=Path, help="also write every build here")
    parser.add_argument("--update", type=Path, help="also put the table between the marks of this page")
    options = parser.parse_args()
    cases = [Case(*case) for case in product(options.archs.split(","), HEAD_DIMS, (False, True))]
    rows = list(all_rows(cases))
    known = versions()
    head = (
        f"Triton {known['triton']} (LLVM {known['triton_llvm'][:10]}); rocattn {known['rocattn']}, {known['compiler']}."
    )
    table = f"{markdown(rows)}\n\n{rescaling_table()}"
    print(f"{head}\n\n{table}")
    if options.json:
        content: dict[str, Any] = {"versions": known, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.update:
        update(options.update, f"{head}\n\n{table}")
    behind = [(theirs, ours) for theirs, ours in chosen(rows) if ours.vector_per_tile >= theirs.vector_per_tile]
    for theirs, ours in behind:
        print(f"{ours.case}: {ours.vector_per_tile:.1f}, Triton {theirs.vector_per_tile:.1f}", file=sys.stderr)
    return int(bool(behind))


if __name__ == "__main__":
    raise SystemExit(main())
