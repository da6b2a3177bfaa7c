"""Verdicts with everything that a form of output has to show, and with foreign text in every place."""

import msgspec
import pytest

from rocattn_profiling.gate.model import ORDER, Cause, Location

from ...made_reports import verdict  # noqa: F401 - a fixture

HOSTILE = (
    "]]>|`</code></details><img src=x onerror=alert(1)>@org/team #12 https://evil.example\n\n# x\n::error::"
    "\x1b\u202e\x00"
)
CAUSE = Cause(
    kind="machine code", text="12 VGPRs spilled", location=Location(path="kernels/hip/flash attention.hip", line=118)
)


@pytest.fixture
def rich(entry, result_of):
    """A verdict with an entry of every kind, two of them of machine code."""
    return result_of(
        [
            entry("bench_a.Class.time_slow(1, 'cpu')", "regression", 1.31, causes=[CAUSE]),
            entry("flash f16", "regression", decision=None, metric="audit", arch="gfx942", base=0.0, head=43.0,
                  unit="registers", reason="43 registers are spilled", causes=[CAUSE]),
            entry("bench_a.Class.time_lost", "failed", reason="ValueError: x", traceback="Traceback\n  line"),
            entry("bench_a.Class.time_gone", "missing", reason="not there"),
            entry("bench_a.Class.time_open", "inconclusive", 1.04),
            entry("bench_a.Class.time_known", "waived", 1.08, waiver="costs a compare (#41, up to x1.1)"),
            entry("bench_a.Class.time_both", "broken", reason="no"),
            entry("bench_a.Class.time_fast", "improvement", 0.7),
            entry("flash f32", "improvement", 0.9, metric="audit", arch="gfx942"),
            entry("bench_a.Class.time_rate", "ungated", reason="shown"),
            entry("bench_a.Class.time_new", "new", reason="base: x"),
            entry("bench_a.Class.time_old", "removed", reason="gone"),
            entry("bench_a.Class.time_skip", "skipped", reason="no GPU"),
            entry("bench_a.Class.time_fine", "pass"),
        ],
        problems=[".rocattn/waivers.toml:12: the waiver of x time expired on 2026-01-01"], notes=["a note"],
        environment_differences={"numpy": ("2.4.5", "2.4.6")},
    )  # fmt: skip


@pytest.fixture
def hostile(entry, result_of):
    """Return a function that makes a verdict in which every text is foreign: ``hostile(text, entries=…, after=…)``."""

    def make(text=None, entries=12, after=""):
        text = HOSTILE if text is None else text
        text += after
        cause = Cause(kind="source", text=text, location=Location(path=text, line=1))
        facts = {"reason": text, "waiver": text, "causes": [cause] * 3, "unit": text, "traceback": text}
        statuses = [s for s in ORDER if s in {"regression", "failed", "inconclusive", "waived", "new", "pass"}]
        made = result_of(
            [entry(f"{text}{n}", statuses[n % len(statuses)], 1.2, name=text, metric="audit" if n % 5 == 4 else "time",
                   arch=text if n % 5 == 4 else "", **facts) for n in range(entries)],
            notes=[text] * 3, problems=[text] * 3, environment_differences={text: (text, text)}, suite=text,
            patterns=[text],
        )  # fmt: skip
        revision = msgspec.structs.replace(made.base.revision, subject=text, name=text)
        side = msgspec.structs.replace(made.base, revision=revision, python=text)
        machine = msgspec.structs.replace(made.machine, name=text, cpu=text, os=text, gpu=text, gfx=text, driver=text)
        return msgspec.structs.replace(made, base=side, head=side, machine=machine)

    return make
