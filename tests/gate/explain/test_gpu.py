"""Explanations of benchmarks of the GPU backend, with plans and machine code made up: no GPU is needed."""

import sys

import pytest

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.exact.audit import Compared
from rocattn_profiling.gate.exact.sides import Answers, Launch, Plan
from rocattn_profiling.gate.explain import explain
from rocattn_profiling.gate.explain import gpu as explain_gpu
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.sides import Context
from rocattn_profiling.gate.verdict import Entry
from rocattn_profiling.kernels.compare import Comparison, Finding

CONFIG = "b1-h8-q128-k128-d64-causal-float16"
FILES = {
    "kernels/hip/attn.hip": "#include <rocattn/tile.h>\n",
    "kernels/hip/other.hip": "#include <rocattn/other.h>\n",
    "kernels/include/rocattn/tile.h": "#define TILE 1\n",
    "kernels/include/rocattn/other.h": "#define OTHER 1\n",
    "rocattn/gpu/plan.py": "from rocattn.gpu.tiles import KEYS\n",
    "rocattn/gpu/tiles.py": "KEYS = 64\n",
    "benchmarks/bench_gpu.py": "",
}


def plan(keys, hash_):
    """A plan of one launch."""
    launch = Launch(
        kernel="attn",
        source="hip/attn.hip",
        symbol="attn",
        defines={"KEYS_PER_TILE": keys},
        grid=(8, 1, 1),
        block=(64, 1, 1),
    )
    return Plan(path="flash", launches=(launch,), hash=hash_)


@pytest.fixture
def explained(tmp_path, monkeypatch):
    """Return a function that explains a slower benchmark: of head's other files and plan, and of findings."""

    def made(changed, new=None, findings=()):
        trees = {side: tmp_path / side for side in ("base", "head")}
        for side, files in (("base", FILES), ("head", FILES | changed)):
            for path, text in files.items():
                (trees[side] / path).parent.mkdir(parents=True, exist_ok=True)
                (trees[side] / path).write_text(text)
        suite = trees["head"] / "benchmarks"
        launchers = {side: Launcher(sys.executable, suite, tmp_path / f"scratch-{side}") for side in trees}
        plans = {"base": plan(64, "a"), "head": new or plan(64, "a")}
        monkeypatch.setattr(explain, "gpu_archs", lambda: ["gfx942"])
        monkeypatch.setattr(
            explain, "ask", lambda _, side, *__: {CONFIG: Answers(selected="gpu", plans={"gfx942": plans[side]})}
        )
        comparison = Comparison(findings=[
            Finding(severity=severity, metric=metric, arch="gfx942", kernel="attn", text=text, file="hip/attn.hip")
            for severity, metric, text in findings
        ], base="base", head="head", compared=1, unchanged=0)  # fmt: skip
        monkeypatch.setattr(explain_gpu, "compare_kernels", lambda *_: Compared({}, comparison, {}, {}, []))
        context = Context(
            repo=trees["head"], out=tmp_path / "out", trees=trees, revisions={}, launchers=launchers, differing={},
            say=[].append, options=Options(quick=True),
        )  # fmt: skip
        label = f"bench_gpu.QuickEvents.time_attention('{CONFIG}', 'warm')"
        entry = Entry(
            label=label, name=label.partition("(")[0], unit="ns", status="regression", base=1000, head=2000,
            params={"config": f"'{CONFIG}'", "cache": "'warm'"},
            decision=Decision(id=label, verdict="regression", ratio=2.0),
        )  # fmt: skip
        return explain.explain([entry], context)[0]

    return made


HEADER = {"kernels/include/rocattn/tile.h": "#define TILE 2\n", "kernels/include/rocattn/other.h": "#define OTHER 2\n"}


def test_the_source_of_a_kernel_that_is_launched_is_named(explained):
    """Also where the audit finds nothing worse; a header that the kernel does not include is no cause."""
    found = explained(HEADER)
    assert [one.text for one in found.causes] == [
        "kernels/include/rocattn/tile.h changed (+1 -1), line 1: `#define TILE 2`"
    ]
    assert "On its path, kernels/include/rocattn/tile.h changed" in found.explanation


def test_what_plans_is_named_where_the_plan_is_another_one(explained):
    """The launch first, then the line that chose it; where the plans are equal, what plans has no say."""
    tiles = {"rocattn/gpu/tiles.py": "KEYS = 32\n"}
    found = explained(tiles, plan(32, "b"))
    assert [(one.kind, one.text) for one in found.causes] == [
        ("launch", "On gfx942, attn: KEYS_PER_TILE 64 -> 32"),
        ("source", "rocattn/gpu/tiles.py changed (+1 -1), line 1: `KEYS = 32`"),
    ]
    assert explained(tiles).causes == []


def test_what_got_better_is_no_cause_and_gives_no_advice(explained):
    """More waves do not slow a kernel down: the advice is about the cycles."""
    made = [("worse", "issue cycles", "800 -> 900 cycles"), ("better", "occupancy", "more"), ("note", "code", "code")]
    found = explained(HEADER, findings=made)
    assert [one.text for one in found.causes if one.kind == "machine code"] == ["attn on gfx942: 800 -> 900 cycles"]
    assert explain.ADVICE["occupancy"] not in found.explanation
    assert explain.ADVICE["issue cycles"] in found.explanation


def test_notes_are_told_where_nothing_is_worse(explained):
    """They are the only trace of a change then."""
    found = explained(HEADER, findings=[("better", "occupancy", "more"), ("note", "code", "800 -> 900 bytes of code")])
    assert [one.text for one in found.causes if one.kind == "machine code"] == [
        "attn on gfx942: 800 -> 900 bytes of code"
    ]


def test_each_kind_of_cause_is_in_the_paragraph_before_a_second_of_one(explained, monkeypatch):
    """Counters come last and are not left out for a third sentence on machine code; they bring their own advice."""
    counters = explain.Cause(kind="counters", text="the kernel attn takes 1.5 times as long: scratch 1 -> 2")
    monkeypatch.setattr(explain.explain_counters.Counters, "of", lambda *_: [counters])
    found = explained(
        HEADER, plan(32, "b"), [("worse", "x", "10 -> 20 bytes of X"), ("worse", "y", "30 -> 40 bytes of Y")]
    )
    told = found.explanation
    assert told.index("KEYS_PER_TILE") < told.index("10 -> 20") < told.index("1.5 times as long")
    assert "30 -> 40" not in told
    assert explain.ADVICE["scratch"] not in told
