"""Draw how the gate comes to a verdict, and what runs where in the GPU workflow.

    .venv/bin/python docs/images/gate_flow.py       # writes gate-flow.svg and runner.svg

Text is at least 13 px at a width of 390 px; colors follow ``prefers-color-scheme``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
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

    def box(self, at: Point, width: float, lines: Lines, style: str = "box") -> float:
        """Add a box with centered lines, ``at`` its top left corner, and return the y of its lower edge."""
        x, y = at
        height = 2 * PADDING + LINE * len(lines)
        self.parts.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="6"/>')
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


def gate_flow() -> str:
    """Return the gate's way from two commits to one of four verdicts (docs/gate.md)."""
    flow = Diagram(390, 660, "How the gate decides: build, rounds, interim looks, four verdicts")
    left, width, middle, right = 10, 228, 124, 264

    def question(y: float, first: str, second: str, outcome: Lines, style: str) -> float:
        end = flow.box((left, y), width, ((first, ""), (second, "")))
        flow.box((right, y), 112, outcome, style)
        flow.arrow((left + width, y + 27), (right - 2, y + 27), label="yes")
        return end

    end = flow.box((left, 10), width, (("Build base and head", "bold"), ("an environment for each", "small")))
    flow.arrow((middle, end), (middle, 90))
    end = flow.box(
        (left, 92), width,
        (("One round", "bold"), ("each benchmark on both sides,", "small"), ("fresh processes, random order", "small")),
    )  # fmt: skip
    flow.arrow((middle, end), (middle, 191))
    end = flow.box(
        (left, 193), width,
        (("Interim look", "bold"), ("after 5, 10, 15, 20 rounds", "small"), ("(--quick: 5, 8, 12)", "small")),
    )  # fmt: skip
    flow.arrow((middle, end), (middle, 292))
    end = question(
        294, "Slower, significantly", "and by at least 2 %?", (("regression", "bold"), ("status 1", "small")), "bad"
    )
    flow.arrow((middle, end), (middle, 378), label="no")
    end = question(
        380, "Faster, significantly", "and by at least 2 %?", (("improvement", "bold"), ("status 0", "small")), "good"
    )
    flow.arrow((middle, end), (middle, 464), label="no")
    end = question(
        466, "Within 5 %, or no changed", "function runs in it?", (("pass", "bold"), ("status 0", "small")), "good"
    )
    flow.arrow((middle, end), (middle, 550), label="no")
    end = question(
        552, "Was this the", "last look?", (("inconclusive", "bold"), ("0, or --strict: 2", "small")), "warn"
    )
    flow.arrow((middle, end), (middle, 640), (384, 640), (384, 128), (left + width + 2, 128))
    flow.text((middle + 8, 632), "no: measure what is undecided", "small")
    return flow.svg()


def runner() -> str:
    """Return the jobs of the GPU workflow in three lanes by what is trusted there (docs/runner.md)."""
    lanes = Diagram(390, 640, "The GPU workflow: what runs where, and with which rights")
    heads = (
        ("Job admit", "main's scripts,", "write token"),
        ("Job gpu", "the PR's code,", "no write token"),
        ("Job comment", "main's scripts,", "write token"),
    )
    for number, (name, code, rights) in enumerate(heads):
        x = 5 + 128 * number
        lanes.parts.append(f'<rect class="lane" x="{x}" y="5" width="124" height="630" rx="6"/>')
        for line, (words, style) in enumerate(((name, "bold"), (code, "small"), (rights, "small"))):
            lanes.text((x + 62, 26 + 18 * line), words, style, "middle")
    middles = (67, 195, 323)

    def step(lane: int, y: float, *lines: tuple[str, str], style: str = "box") -> float:
        return lanes.box((10 + 128 * lane, y), 114, lines, style)

    small = "small"
    end = step(0, 76, ("Label gpu", ""), ("by a writer?", small))
    lanes.arrow((middles[0], end), (middles[0], 158), label="yes")
    step(0, 160, ("Remove it:", ""), ("it counts for", small), ("one commit", small))
    lanes.arrow((124, 197), (middles[1], 197), (middles[1], 222))
    end = step(1, 224, ("A reviewer", ""), ("lets it start", small))
    lanes.arrow((middles[1], end), (middles[1], 296))
    end = step(1, 298, ("Owner's hook:", ""), ("this repository?", small))
    lanes.arrow((middles[1], end), (middles[1], 370))
    end = step(1, 372, ("Clean, doctor,", ""), ("GPU clock", small))
    lanes.arrow((middles[1], end), (middles[1], 444))
    end = step(1, 446, ("rocattn ci", "code"), ("measures the", small), ("change", small), style="warn")
    lanes.arrow((middles[1], end), (middles[1], 537))
    step(1, 539, ("Always: reset", ""), ("clock, clean up,", small), ("keep the files", small))
    lanes.arrow((252, 575), (middles[2], 575), (middles[2], 473))
    lanes.text((middles[2], 594), "verdict.json", "small", "middle")
    step(2, 398, ("Verdict anew", ""), ("from numbers;", small), ("text is escaped", small))
    lanes.arrow((middles[2], 398), (middles[2], 357))
    step(2, 282, ("Comment", ""), ("where GitHub's", small), ("API points", small), style="good")
    return lanes.svg()


PICTURES = {"gate-flow.svg": gate_flow, "runner.svg": runner}

if __name__ == "__main__":
    for file, picture in PICTURES.items():
        (HERE / file).write_text(picture())
