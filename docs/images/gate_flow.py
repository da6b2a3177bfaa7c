"""Diagrams of how the gate comes to a verdict, and of what runs where in the GPU workflow."""

from __future__ import annotations

from diagram import Diagram, Lines


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
        lanes.rectangle((x, 5), 124, 630, "lane", rounding=6)
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
