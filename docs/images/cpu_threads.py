"""How `cpu-flash` and PyTorch scale with threads: a small chart for each row of docs/data/cpu-threads.tsv's work.

``research/peers/against_torch.py --scaling`` wrote the table; nothing is measured anew.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from html import escape
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "data" / "cpu-threads.tsv"
WIDTH, LEFT, COLUMNS, HEIGHT, PANEL = 416, 10, 2, 138, 62  # pixels
STYLE = """\
.page{fill:#fff}text{font:14px system-ui,sans-serif;fill:#14181f}.dim{fill:#545d6b}
path{fill:none;stroke-width:2}.grid{stroke:#d9dee6;stroke-width:1}.ours{stroke:#0b5cad}.torch{stroke:#c2410c}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e8ecf1}.dim{fill:#a3adba}
.grid{stroke:#2e3641}.ours{stroke:#6cb0f5}.torch{stroke:#ff9a5c}}"""


def read() -> dict[str, dict[int, tuple[float, float]]]:
    """Return microseconds of ours and PyTorch's by work and threads."""
    found: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    with TABLE.open() as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            found[row["work"]][int(row["threads"])] = (float(row["ours_us"]), float(row["torch_us"]))
    return found


def chart() -> str:
    """Return the charts as SVG: speed over threads, both logarithmic, PyTorch with all threads at 1."""
    works = read()
    column = (WIDTH - 2 * LEFT) / COLUMNS
    rows = math.ceil(len(works) / COLUMNS)
    height = 44 + rows * HEIGHT
    parts = [
        '<path class="ours" d="M10 20h22"/>', _text(38, 25, "cpu-flash"),
        '<path class="torch" d="M126 20h22"/>', _text(154, 25, "PyTorch"),
        _text(222, 25, "speed with 1 to 16 threads", "dim"),
    ]  # fmt: skip
    for number, (work, times) in enumerate(works.items()):
        x, y = LEFT + number % COLUMNS * column, 44 + number // COLUMNS * HEIGHT
        name, _, rest = work.partition(", ")
        parts += [_text(x, y + 16, name), _text(x, y + 34, rest, "dim"), *_panel(x, y + 46, column - 62, times)]
    title = "Speed of cpu-flash and PyTorch with 1 to 16 threads; the numbers are in docs/data/cpu-threads.tsv"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(x: float, y: float, width: float, times: dict[int, tuple[float, float]]) -> list[str]:
    """Return two lines, and how many times as fast as PyTorch with all threads each ends."""
    fastest = times[max(times)][1]
    speeds = [[fastest / pair[side] for pair in times.values()] for side in (0, 1)]
    least, most = (math.log(found(map(found, speeds))) for found in (min, max))
    steps = width / max(1, len(times) - 1)
    parts = [f'<path class="grid" d="M{x:g} {y + PANEL:g}h{width:g}"/>']
    for style, line in zip(("torch", "ours"), reversed(speeds), strict=True):
        heights = [y + PANEL * (most - math.log(speed)) / (most - least) for speed in line]
        points = "L".join(f"{x + at * steps:.1f} {height:.1f}" for at, height in enumerate(heights))
        parts.append(f'<path class="{style}" d="M{points}"/>')
    return [*parts, _text(x + width + 5, round(heights[-1] + 5, 1), f"{speeds[0][-1]:.2f}x")]


def _text(x: float, y: float, words: str, style: str = "") -> str:
    name = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{name}>{escape(words)}</text>'


PICTURES = {"cpu-threads.svg": chart}
