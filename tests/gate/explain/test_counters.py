"""Counters as causes: on a pretend ROCm machine, collected by the real collector and compared by the real report."""

import json
import os
import re
import sys

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain import causes as explain_causes
from rocattn_profiling.gate.explain.causes import add_causes
from rocattn_profiling.gate.model import Entry
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.plugin import Plugin
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.profile.collect import find, hardware

from ...profile.collect.conftest import Machine

LABEL = "bench_work.time_work"


@pytest.fixture
def project(tmp_path):
    """A context of two equal trees with one benchmark."""
    sides = {side: tmp_path / side for side in ("base", "head")}
    launchers = {}
    for side, tree in sides.items():
        (tree / "benchmarks").mkdir(parents=True)
        (tree / "benchmarks/__init__.py").write_text("")
        (tree / "benchmarks/bench_work.py").write_text("def time_work():\n    sum(range(100))\n")
        suite = sides["head"] / "benchmarks"
        launchers[side] = Launcher(sys.executable, suite, tmp_path / "scratch" / side, {"PYTHONPATH": str(tree)})
    return Context(
        repo=sides["head"], out=tmp_path / "out", trees=sides, revisions={}, launchers=launchers, differing={},
        say=[].append, options=Options(quick=True),
    )  # fmt: skip


def explained(context, **values):
    """The regressed benchmark, explained."""
    decision = Decision(id=LABEL, verdict="regression", ratio=2.0)
    entry = Entry(
        label=LABEL,
        name=LABEL,
        unit="ns",
        metric="time",
        status="regression",
        decision=decision,
        base=10,
        head=20,
        **values,
    )
    return add_causes([entry], context, Plugin(context))[0]


REPORT = {
    "kernels": [{"kernel": "attn", "label": "p", "findings": [{"sentence": "LDS bank conflicts cost 40 %"}]}],
    "against": [
        {"kernel": "attn", "label": "p", "only_in": None, "time_ratio": 1.5, "moved": [
            {"metric": "lds_bank_conflict", "before": 1.0, "after": 9.25, "unit": "%"},
        ]},
        {"kernel": "same", "label": "", "only_in": None, "time_ratio": 1.001, "moved": []},
        {"kernel": "extra", "label": "", "only_in": "after", "time_ratio": None, "moved": []},
        {"kernel": "gone", "label": "", "only_in": "before", "time_ratio": None, "moved": []},
    ],
}  # fmt: skip


def test_counters_name_slower_kernels_what_moved_and_what_to_do():
    """Kernels that are not slower, and those that base alone ran, are no causes."""
    found = [one.text for one in explain_causes.causes_of(REPORT)]
    assert found == [
        "the kernel p takes 1.50 times as long: lds_bank_conflict 1 -> 9.25 %; LDS bank conflicts cost 40 %",
        "the kernel extra runs on head only",
    ]


def test_no_more_than_three_metrics_of_a_kernel_are_told():
    """The report has them in order, what moved most first."""
    moves = [{"metric": name, "before": 1.0, "after": 2.0, "unit": ""} for name in "abcd"]
    pair = {"kernel": "attn", "label": "", "only_in": None, "time_ratio": 1.021, "moved": moves}
    (cause,) = explain_causes.causes_of({"kernels": [], "against": [pair, pair | {"time_ratio": 1.02}]})
    assert cause.text == "the kernel attn takes 1.02 times as long: a 1 -> 2, b 1 -> 2, c 1 -> 2"


def test_the_three_worst_that_may_use_the_gpu_are_profiled(project, machine):
    """The one that names another backend has no kernel there; what passed or has no ratio is not asked for."""

    def slower(label, ratio, status="regression", **params):
        decision = Decision(id=label, verdict=status, ratio=ratio) if ratio else None
        return Entry(label=label, name=label, unit="ns", metric="time", status=status, decision=decision, params=params)

    entries = [
        slower("least", 1.1), slower("third", 1.3, backend="'gpu'"), slower("cpu", 9.0, backend="'cpu-flash'"),
        slower("first", 3.0, backend="gpu"), slower("second", 2.0, config="'x'"), slower("fine", 9.0, "pass"),
        slower("exact", None),
    ]  # fmt: skip
    assert explain_causes.Counters(project, entries)._chosen == ["first", "second", "third"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The pretend ROCm machine of the profilers' own tests, with one GPU and a rocprofv3."""
    made = Machine(tmp_path / "machine")
    made.gpus("gfx942")
    made.install("rocprofv3")
    monkeypatch.setattr(find, "_places", lambda: [str(made.bin)])
    monkeypatch.setattr(hardware, "examine", made.examine)
    for name in list(os.environ):
        if name.startswith(("ROC", "HSA_", "HIP_")):
            monkeypatch.delenv(name)
    return made


def test_just_the_regressed_benchmark_is_profiled_on_both_sides(project, machine, monkeypatch):
    """By each side's interpreter and with its variables; a kernel that takes longer is a cause with its metrics."""
    seen = []
    monkeypatch.setattr(
        explain_causes, "_compared", lambda folder: seen.append(sorted(one.name for one in folder.iterdir())) or REPORT
    )
    found = explained(project)
    assert seen == [["base", "head"]]
    assert sum("takes 1.50 times" in one.text for one in found.causes if one.kind == "counters") == 1
    calls = machine.called()
    trees = {call["env"]["PYTHONPATH"] for call in calls}
    assert trees == {str(tree) for tree in project.trees.values()}
    for call in calls:
        command = call["argv"][call["argv"].index("--") + 1 :]
        assert command[0] == sys.executable
        assert json.loads(command[2])["label"] == LABEL
    folders = [project.out / "explain" / "0" / side for side in ("base", "head")]
    assert all(json.loads((folder / "profile.json").read_text())["complete"] for folder in folders)


@pytest.mark.parametrize("factor", [1, 2])
def test_kernels_are_compared_by_the_real_report(project, machine, monkeypatch, factor):
    """Equal profiles accuse nobody; where head's kernels take twice as long, each is named with that ratio."""
    real = explain_causes.Counters._profile

    def slowed(counters, entry, side, out):
        real(counters, entry, side, out)
        for path in out.rglob("*_kernel_trace.csv") if side == "head" else ():
            times = re.compile(r"(\d{15}),(\d{15})")
            longer = times.sub(lambda m: f"{m[1]},{int(m[1]) + factor * (int(m[2]) - int(m[1]))}", path.read_text())
            assert (longer != path.read_text()) == (factor != 1)
            path.write_text(longer)

    monkeypatch.setattr(explain_causes.Counters, "_profile", slowed)
    found = explained(project)
    told = {one.text.split(":")[0] for one in found.causes if one.kind == "counters"}
    assert told == (
        set()
        if factor == 1
        else snapshot(
            {
                "the kernel __amd_rocclr_fillBufferAligned takes 2.00 times as long",
                "the kernel attn_combine(float*, int) takes 2.00 times as long",
                'the kernel void attn_fwd<64, true>(float const*, "tile", Args<int, 3>) takes 2.00 times as long',
            }
        )
    )


def test_without_a_profiler_nothing_is_said(project, machine):
    """Nor where the benchmark names a backend that is not the GPU's."""
    found = explained(project, params={"backend": "'cpu'", "config": "'x'"})
    assert machine.called() == []
    assert [one for one in found.causes if one.kind == "counters"] == []
