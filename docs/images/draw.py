"""Draw the diagrams of the documents as SVG: ``python3 docs/images/draw.py`` writes them beside this file.

They are read in GitHub's light and dark pages and on phones: text is at least 13 px at a width of 390 px, and colors
follow ``prefers-color-scheme`` where a viewer honors it.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
STYLE = """\
.page{fill:#fff}.box{fill:#f3f5f8;stroke:#8892a0}.yes{fill:#e3f2e6;stroke:#3c8d4f}.line{stroke:#6b7684;fill:none}
text{font:13px system-ui,sans-serif;fill:#1b222b}
.code{font-family:ui-monospace,monospace;font-weight:600;font-size:12.5px}
.small{font-size:13px;fill:#4a5562}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.box{fill:#1b222c;stroke:#5c6775}.yes{fill:#12301b;stroke:#4fae66}
.line{stroke:#8b96a5}text{fill:#e6ebf1}.small{fill:#a9b4c2}}"""


@dataclass
class Drawing:
    """An SVG of a fixed size in pixels, to which shapes are added."""

    width: int
    height: int
    title: str

    def __post_init__(self) -> None:
        """Begin with the page's background."""
        self.parts = [f'<rect class="page" width="{self.width}" height="{self.height}"/>']

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        """Add a line of text whose baseline begins (or, by ``anchor``, has its middle) at (x, y)."""
        name = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}"{name}>{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, lines: list[tuple[str, str]], style: str = "box", height: float = 74
    ) -> None:
        """Add a box with lines of (words, style), centered both ways."""
        self.parts.append(f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + height / 2 - 19 * len(lines) / 2 + 14
        for number, (words, face) in enumerate(lines):
            self.text(x + width / 2, top + 19 * number, words, face, "middle")

    def arrow(self, *points: tuple[float, float], label: str = "") -> None:
        """Add an arrow along points, with a label beside the middle of its first stretch."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')
        if label:
            (x0, y0), (x1, y1) = points[:2]
            beside = (x0 + 6, (y0 + y1) / 2 + 5) if x0 == x1 else ((x0 + x1) / 2, y0 - 5)
            self.text(*beside, label, "small", "start" if x0 == x1 else "middle")

    def svg(self) -> str:
        """Return the whole file."""
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        head += '<path class="line" d="M0 0L7 4L0 8"/></marker>'
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        return "\n".join([opening, f"<style>{STYLE}</style><defs>{head}</defs>", *self.parts, "</svg>", ""])


def backends() -> str:
    """Return the decision tree of docs/backends.md: which backend, and within ``gpu`` which kernels."""
    tree = Drawing(390, 606, "How a backend and its kernels are chosen")
    code, small = "code", "small"
    steps = [  # question, the answer that ends it, the answer's words
        (["A GPU that is able to do", "what the call asks for?"], "no", [("cpu-flash", code), ("else cpu", small)]),
        (["The backward pass?"], "yes", [("backward kernels", code), ("flash", small)]),
        (["Flash kernels off, D above", "256, or huge strides?"], "yes", [("standard path", code)]),
        (["Up to 32 queries, 128 rows", "a KV head; 512 keys or more?"], "yes", [("flash_decode", code)]),
        (["Only causal, no option?"], "yes", [("flash_attention", code), ("_causal", code)]),
        (["No mask, band or option?"], "yes", [("flash_attention", code), ("_nocausal", code)]),
    ]  # fmt: skip
    y = 10
    for question, ending, answer in steps:
        tree.box(10, y, 185, [(line, "") for line in question], height=54)
        tree.box(246, y, 134, answer, "yes", height=54)
        tree.arrow((195, y + 27), (244, y + 27), label=ending)
        tree.arrow((102, y + 54), (102, y + 84), label="yes" if ending == "no" else "no")
        y += 86
    options = [("masks, windows, softcap,", small), ("ALiBi, sinks", small)]
    tree.box(10, y, 185, [("flash_attention", code), *options], "yes")
    return tree.svg()


def badge() -> str:
    """Return the README's badge."""
    left, right = "AMD GPU", "not measured yet"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="196" height="22" role="img" '
        f'aria-label="{left}: {right}"><rect width="196" height="22" rx="4" fill="#8a5a00"/>'
        '<path d="M0 4a4 4 0 0 1 4-4h68v22H4a4 4 0 0 1-4-4z" fill="#444d56"/>'
        '<g fill="#fff" font-family="system-ui,sans-serif" font-size="12" text-anchor="middle">'
        f'<text x="36" y="15">{left}</text><text x="134" y="15">{right}</text></g></svg>\n'
    )


PICTURES = {"backends.svg": backends, "badge-no-amd-gpu.svg": badge}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (HERE / name).write_text(picture())
