"""Causes that rocattn's plug-in names: launches, machine code and sources of the GPU backend, refusals, CPU kernels."""

import sys

import own_gate
import pytest
from own_gate import machine_code
from own_gate.answers import Answers, BackendAnswer, PlanAnswer, PlannedLaunch

from rocattn_profiling.asv.launch import Benchmark, Case, Launcher
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.machine_code.compare import Compared
from rocattn_profiling.gate.model import Entry
from rocattn_profiling.gate.rule.pairs import Decision
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
    launch = PlannedLaunch(
        kernel="attn",
        source="hip/attn.hip",
        symbol="attn",
        defines={"KEYS_PER_TILE": keys},
        grid=(8, 1, 1),
        block=(64, 1, 1),
    )
    return PlanAnswer(path="flash", launches=(launch,), hash=hash_)


@pytest.fixture
def trees(tmp_path):
    """Return a function that makes a context of both sides, of which head has other files."""

    def make(changed):
        sides = {side: tmp_path / side for side in ("base", "head")}
        for side, files in (("base", FILES), ("head", FILES | changed)):
            for path, text in files.items():
                (sides[side] / path).parent.mkdir(parents=True, exist_ok=True)
                (sides[side] / path).write_text(text)
        suite = sides["head"] / "benchmarks"
        launchers = {side: Launcher(sys.executable, suite, tmp_path / f"scratch-{side}") for side in sides}
        return Context(repo=sides["head"], out=tmp_path / "out", trees=sides, launchers=launchers)

    return make


def slower(label, status="regression", **params):
    """A worse benchmark with these parameters, which are strings."""
    return Entry(
        label=label, name=label.partition("(")[0], unit="ns", status=status, base=1000, head=2000,
        params={name: f"'{value}'" for name, value in params.items()},
        decision=Decision(id=label, verdict="regression", ratio=2.0) if status == "regression" else None,
    )  # fmt: skip


@pytest.fixture
def causes(trees, monkeypatch):
    """Return a function that gives the causes of a slower GPU benchmark: of head's other files, plan, and findings."""

    def made(changed, new=None, findings=()):
        plans = {"base": plan(64, "a"), "head": new or plan(64, "a")}
        monkeypatch.setattr(own_gate, "gpu_archs", lambda: ["gfx942"])
        monkeypatch.setattr(
            own_gate, "ask", lambda _, side, *__: {CONFIG: Answers(selected="gpu", plans={"gfx942": plans[side]})}
        )
        comparison = Comparison(findings=[
            Finding(severity=severity, metric=metric, arch="gfx942", kernel="attn", text=text, file="hip/attn.hip")
            for severity, metric, text in findings
        ], base="base", head="head", compared=1, unchanged=0)  # fmt: skip
        monkeypatch.setattr(machine_code, "compare_kernels", lambda *_: Compared({}, comparison, {}, {}, []))
        label = f"bench_gpu.QuickEvents.time_attention('{CONFIG}', 'warm')"
        return own_gate.Plugin(trees(changed)).causes(slower(label, config=CONFIG, cache="warm"))

    return made


HEADER = {"kernels/include/rocattn/tile.h": "#define TILE 2\n", "kernels/include/rocattn/other.h": "#define OTHER 2\n"}


def test_the_source_of_a_launched_kernel_is_named(causes):
    """Also where the audit finds nothing worse; a header that the kernel does not include is no cause."""
    assert [one.text for one in causes(HEADER)] == ["kernels/include/rocattn/tile.h:1 changed (+1 -1)"]


def test_what_plans_is_named_where_the_plan_differs(causes):
    """The launch first, then the line that chose it; where the plans are equal, what plans has no say."""
    tiles = {"rocattn/gpu/tiles.py": "KEYS = 32\n"}
    assert [(one.kind, one.text) for one in causes(tiles, plan(32, "b"))] == [
        ("launch", "On gfx942, attn: KEYS_PER_TILE 64 -> 32"),
        ("source", "rocattn/gpu/tiles.py:1 changed (+1 -1)"),
    ]
    assert causes(tiles) == []


def test_improvements_are_no_cause_and_give_no_advice(causes):
    """More waves do not slow a kernel down: the advice is about the cycles, and given once."""
    findings = [
        ("worse", "issue cycles", "800 -> 900 cycles"), ("worse", "issue cycles", "80 -> 90 cycles"),
        ("better", "occupancy", "more"), ("note", "code", "code"),
    ]  # fmt: skip
    assert [one.text for one in causes(HEADER, findings=findings) if one.kind == "machine code"] == [
        f"attn on gfx942: 800 -> 900 cycles; {own_gate.ADVICE['issue cycles']}", "attn on gfx942: 80 -> 90 cycles",
    ]  # fmt: skip


def test_notes_are_causes_where_nothing_is_worse(causes):
    """They are the only trace of a change then."""
    found = causes(HEADER, findings=[("better", "occupancy", "more"), ("note", "code", "800 -> 900 bytes of code")])
    assert [one.text for one in found if one.kind == "machine code"] == ["attn on gfx942: 800 -> 900 bytes of code"]


@pytest.mark.parametrize("status", ["failed", "missing"])
@pytest.mark.parametrize("refused", [False, True])
def test_cpu_kernels_are_causes_of_what_fails_in_them(trees, monkeypatch, status, refused):
    """One that crashes, hangs or does not compile; not where the backend says no before any kernel runs."""

    def answered(_, side, problems, archs):
        answer = BackendAnswer(
            available=True, supports=side == "base" or not refused, priority=1, why="no more" if refused else ""
        )
        return {label: Answers(backends={"cpu-flash": answer}) for label in problems}

    monkeypatch.setattr(own_gate, "ask", answered)
    context = trees({"kernels/cpu/forward.cpp": "int x;\n", "kernels/cpu/abi.h": "int y;\n"})
    config = "b1-h8-q128-k128-d64-float32"
    found = own_gate.Plugin(context).causes(slower("b.time_x", status, backend="cpu-flash", config=config))
    if refused:
        text = f"cpu-flash computes {config} on base and not on head: it says: no more"
        assert [(one.kind, one.text) for one in found] == [("backend", text)]
    else:
        assert [one.location.path for one in found] == ["kernels/cpu/forward.cpp", "kernels/cpu/abi.h"]


def test_both_sides_are_asked_once_about_a_run(trees, monkeypatch):
    """About all problems that its benchmarks name, and about one that none of them names."""
    asked, compiled = [], []
    monkeypatch.setattr(own_gate, "ask", lambda _, side, problems, __: asked.append((side, sorted(problems))) or {})
    monkeypatch.setattr(own_gate, "ready", compiled.append)
    plugin = own_gate.Plugin(trees({}))
    configs = [f"b1-h8-q128-k128-d64-{end}" for end in ("causal-float32", "float32", "float16")]
    params = [["'cpu'", "'cpu-flash'"], [repr(config) for config in configs[:2]]]
    names = {
        "name": "b.time_x",
        "type": "time",
        "unit": "seconds",
        "version": "1",
        "param_names": ["backend", "config"],
    }
    benchmark = Benchmark(**names, params=params)
    plugin.prepare([Case(benchmark=benchmark, param=param, label="of nobody's business") for param in (0, 1)])
    assert compiled == []  # none of these runs the compiled kernels
    plugin.prepare([Case(benchmark=benchmark, param=param, label="of nobody's business") for param in (1, 2)])
    assert compiled == [plugin.context]
    for config in (*configs, *configs):
        assert plugin.causes(slower("b.time_x", backend="cpu", config=config)) == []
    assert asked == [(side, known) for known in (configs[:2], configs[2:]) for side in ("base", "head")]
