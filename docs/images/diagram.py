"""Boxes, arrows and text as SVG, for the diagrams of the documents.

Text is at least 13 px at a width of 390 px; colors follow ``prefers-color-scheme``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

LINE, PADDING = 19, 8
STYLE = """\
.page{fill:#fff}.box{fill:#f3f5f8;stroke:#8892a0}.good{fill:#e2f4e9;stroke:#0a6b3b}.bad{fill:#fde8e8;stroke:#a8161f}
.warn{fill:#fdf1d8;stroke:#8a5a00}.lane{fill:none;stroke:#c6cdd6}.line{fill:none;stroke:#6b7684}
text{font:14px system-ui,sans-serif;fill:#14181f}.small{font-size:13px;fill:#4a5562}.bold{font-weight:700}
.code{font-family:ui-monospace,monospace;font-weight:600}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.box{fill:#1b222c;stroke:#5c6775}
.good{fill:#12301f;stroke:#6fd49b}.bad{fill:#3a1a1c;stroke:#ff9a9a}.warn{fill:#33270f;stroke:#f0c068}
.lane{stroke:#3a4450}.line{stroke:#8b96a5}text{fill:#e8ecf1}.small{fill:#a9b4c2}}"""
Point = tuple[float, float]
Lines = tuple[tuple[str, str], ...]
"""Lines of text, each with its class: "", "small", "bold" or "code"."""


@dataclass
class Diagram:
    """An SVG of a fixed size in pixels, to which boxes and arrows are added."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, at: Point, words: str, style: str = "", anchor: str = "start") -> None:
        """Add a line of text: ``at`` is the start of its baseline, or its middle or end by ``anchor``."""
        x, y = at
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>')

    def rectangle(self, at: Point, width: float, height: float, style: str, rounding: int = 0) -> None:
        """Add a rectangle, ``at`` its top left corner."""
        x, y = at
        corners = f' rx="{rounding}"' if rounding else ""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect class="{style}" {place}{corners}/>')

    def box(self, at: Point, width: float, lines: Lines, style: str = "box") -> float:
        """Add a box with centered lines, ``at`` its top left corner, and return the y of its lower edge."""
        x, y = at
        height = 2 * PADDING + LINE * len(lines)
        self.rectangle(at, width, height, style, rounding=6)
        for number, (words, face) in enumerate(lines):
            self.text((x + width / 2, y + PADDING + 14 + LINE * number), words, face, "middle")
        return y + height

    def arrow(self, *points: Point, label: str = "") -> None:
        """Add an arrow along points; a label stands right of its first stretch, or above it if that is level."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')
        (x, y), (to_x, to_y) = points[:2]
        if label and x == to_x:
            self.text((x + 6, (y + to_y) / 2 + 3), label, "small")
        elif label:
            self.text(((x + to_x) / 2, y - 5), label, "small", "middle")

    def svg(self) -> str:
        """Return the whole file."""
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        head += '<path class="line" d="M0 0L7 4L0 8"/></marker>'
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        page = f'<rect class="page" width="{self.width}" height="{self.height}" rx="6"/>'
        return "\n".join([opening, f"<style>{STYLE}</style><defs>{head}</defs>", page, *self.parts, "</svg>", ""])
