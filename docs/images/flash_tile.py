"""The diagram of how a block of the flash kernel divides its work, and of one iteration of a wave's loop."""

from __future__ import annotations

import sys
from pathlib import Path

from diagram import Diagram, Point

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rocattn.gpu.tiles import flash_tile as tile_of

ARCH, HEAD_DIM, FRAGMENT = "gfx1100", 64, 16
REGISTERS = 8  # of a lane: a 16 x 16 fragment of C or, on gfx11, of B
CELL, PIXELS = (37, 26), 2  # of a wave's part of a key tile; of an element


def flash_tile() -> str:
    """Return the key tiles of a causal block by wave, and a wave's two products (docs/kernels.md)."""
    tile = tile_of(ARCH, HEAD_DIM, HEAD_DIM, "float16")
    rows, keys = FRAGMENT * tile.query_fragments, tile.keys_per_tile
    picture = Diagram(390, 508, "The tiles of a flash attention block, and the two products of a wave")
    picture.text((10, 24), f"Query rows {tile.rows} to {2 * tile.rows - 1}, causal", "bold")
    _key_tiles(picture, (76, 54), tile.waves, rows, keys)
    picture.text((10, 224), "A wave's loop: one tile of keys", "bold")
    query_registers = REGISTERS * tile.query_fragments * HEAD_DIM // FRAGMENT
    score_registers = REGISTERS * tile.query_fragments * keys // FRAGMENT
    for y, style, words in ((242, "good", "VGPRs: number"), (266, "box", "LDS, shared")):
        picture.rectangle((10, y), 14, 14, style)
        picture.text((30, y + 12), words, "small")
    _matrix(picture, (10, 378), (keys, HEAD_DIM), "box", "K")
    picture.text((10 + HEAD_DIM, 462), f"{keys} keys x {HEAD_DIM}", "small", "middle")
    _matrix(picture, (146, 242), (HEAD_DIM, rows), "good", "Qᵀ", str(query_registers))
    _matrix(picture, (146, 378), (keys, rows), "good", "Sᵀ", str(score_registers))
    picture.text((146 + rows, 462), f"{rows} queries", "small", "middle")
    picture.arrow((210, 410), (226, 410), (226, 274), (314, 274))
    picture.text((270, 266), "P = 2^(S-r)", "small", "middle")
    _matrix(picture, (316, 242), (keys, rows), "good", "Pᵀ", "16 bits")
    _matrix(picture, (242, 314), (HEAD_DIM, keys), "box", "Vᵀ")
    _matrix(picture, (316, 314), (HEAD_DIM, rows), "good", "Oᵀ", str(query_registers))
    picture.text((10, 486), f"{ARCH}, D = {HEAD_DIM}, 16 bits; fragments of {FRAGMENT} x {FRAGMENT}", "small")
    return picture.svg()


def _key_tiles(picture: Diagram, corner: Point, waves: int, rows: int, keys: int) -> None:
    """Add the key tiles of the block's waves: computed, masked along the diagonal, or skipped."""
    left, top = corner
    first, (wide, high) = waves * rows, CELL
    tiles = -(-2 * first // keys)
    picture.text((left, top - 8), f"{tiles} tiles of {keys} keys", "small")
    for wave in range(waves):
        y = top + wave * high
        lowest = first + wave * rows
        picture.text((10, y + 18), f"wave {wave}", "small")
        for number in range(tiles):
            start, stop = number * keys, number * keys + keys - 1
            style = "good" if stop <= lowest else "warn" if start < lowest + rows else "lane"
            picture.rectangle((left + number * wide, y), wide, high, style)
    y, x = top + waves * high + 12, 10.0
    for style, words in (("good", "no masking code"), ("warn", "masked"), ("lane", "skipped")):
        picture.rectangle((x, y), 14, 14, style)
        picture.text((x + 20, y + 12), words, "small")
        x += 40 + 7.2 * len(words)


def _matrix(picture: Diagram, at: Point, shape: tuple[int, int], style: str, name: str, place: str = "") -> None:
    """Add a matrix to scale, cut into fragments."""
    x, y = at
    high, wide = (PIXELS * size for size in shape)
    picture.rectangle(at, wide, high, style)
    step = PIXELS * FRAGMENT
    lines = [f"M{x + cut} {y}v{high}" for cut in range(step, wide, step)]
    lines += [f"M{x} {y + cut}h{wide}" for cut in range(step, high, step)]
    picture.parts.append(f'<path class="lane" d="{"".join(lines)}"/>')
    picture.text((x + wide / 2, y + high / 2 + (-3 if place else 5)), name, "bold", "middle")
    if place:
        picture.text((x + wide / 2, y + high / 2 + 14), place, "small", "middle")


PICTURES = {"flash-tile.svg": flash_tile}
