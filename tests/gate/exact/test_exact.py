"""Exact metrics: what fails without a clock, what is only listed, and what is never compared."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import own_gate
import pytest
from own_gate import machine_code
from own_gate import plans as exact_plans
from own_gate.answers import ProbeError, ask, usual_problems

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.sources import kernel_root
from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import SIDES, Cause, Entry
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.plugin import Plugin as NoPlugin
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.run import plugin_of
from rocattn_profiling.workloads.grids import GRIDS

ROOT = Path(__file__).resolve().parents[3]


def context(tmp_path, base, head, said=None, quick=True):
    """A context of two checkouts whose code is imported by this interpreter."""
    trees = {"base": base, "head": head}
    launchers = {
        side: Launcher(
            sys.executable, ROOT / "benchmarks", tmp_path / "scratch" / side,
            {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "profiling")])},
        )
        for side, tree in trees.items()
    }  # fmt: skip
    say = (said if said is not None else []).append
    return Context(
        repo=head,
        out=tmp_path / "out",
        trees=trees,
        revisions={},
        launchers=launchers,
        differing={},
        options=Options(quick=quick),
        say=say,
    )


@pytest.fixture
def checkout(tmp_path):
    """Return a function that makes a checkout with the library, the kernels, and what lists them."""

    def make(name):
        tree = tmp_path / name
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "rocattn", tree / "rocattn", ignore=leave)
        shutil.copytree(kernel_root(), tree / "kernels")
        inside = Path("profiling", "rocattn_profiling")
        (tree / inside).mkdir(parents=True)
        for part in ("kernels", "base", "__init__.py"):
            source = ROOT / inside / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / inside / part)
        return tree

    return make


def test_equal_checkouts_are_told_by_their_bytes(tmp_path, checkout, monkeypatch):
    """Nothing is started or compiled for them; what was looked at is still listed as passed."""
    monkeypatch.setattr(own_gate, "ask", None)
    monkeypatch.setattr(machine_code, "list_kernels", None)
    found = own_gate.Plugin(context(tmp_path, checkout("base"), checkout("head"))).entries()
    assert [(one.metric, one.status) for one in found] == [("plan", "pass"), ("workspace", "pass"), ("audit", "pass")]


def test_other_projects_have_no_exact_metrics(tmp_path):
    """A tree without a plug-in gives nothing."""
    (tmp_path / "base").mkdir()
    (tmp_path / "head").mkdir()
    said = []
    made = context(tmp_path, tmp_path / "base", tmp_path / "head", said)
    assert type(plugin_of(made)) is NoPlugin
    assert (plugin_of(made).entries(), said) == ([], [])


def test_an_environment_has_the_plugin_beside_its_suite(tmp_path):
    """It still prepares and names causes; without trees nothing is read off."""
    without = replace(context(tmp_path, ROOT, ROOT), trees={})
    assert type(plugin_of(without)).__module__ == "rocattn_gate_plugin"


def test_a_head_without_kernels_fails(tmp_path):
    """There is nothing to compare with an old base; what head threw away is not passed."""
    for name in ("rocattn/gpu/plan.py", "kernels/hip/x.hip"):
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / name).write_text("")
    (tmp_path / "old").mkdir()
    said = []
    assert own_gate.Plugin(context(tmp_path, tmp_path / "old", tmp_path / "new", said)).entries() == []
    assert said == ["exact metrics are left out: base is too old to have plans and kernels"]
    (lost,) = own_gate.Plugin(context(tmp_path, tmp_path / "new", tmp_path / "old")).entries()
    assert (lost.status, lost.metric) == ("failed", "plan")


def test_each_sides_own_code_is_asked(tmp_path, checkout):
    """What head's registry and plans say is head's: base still answers as it is."""
    base, head = checkout("base"), checkout("head")
    flash = head / "rocattn/gpu/flash.py"
    text = flash.read_text()
    start = text.index("def can_use_flash_attention(")
    body = text.index('"""\n', text.index('"""', start) + 3) + 4
    flash.write_text(
        f'{text[:body]}    if config.causal:\n        return Support(ok=False, reason="planted")\n{text[body:]}'
    )
    made = context(tmp_path, base, head)
    causal = AttentionConfig(batch=1, num_heads=2, seq_q=100, seq_k=130, head_dim=64, dtype="float16", causal=True)
    problems = {"causal": causal, "free": causal.replace(causal=False)}
    old, new = (ask(made, side, problems, ["gfx1100"]) for side in SIDES)
    here = plan(causal, "gfx1100")
    assert old["causal"].plans["gfx1100"].launches[0].grid == here.launches[0].grid
    assert old["causal"].plans["gfx1100"].path == "flash"
    assert (new["causal"].plans["gfx1100"].path, new["causal"].plans["gfx1100"].reason) == ("standard", "planted")
    assert old["free"] == new["free"]
    found = exact_plans.compare(old, new, ["gfx1100"])
    assert [one.label for one in found if one.status == "regression"] == ["flash path"]


def test_a_head_that_cannot_be_asked_is_not_passed(tmp_path, checkout, monkeypatch):
    """Its plans count as failed; a base that cannot be asked is said and leaves nothing to compare."""
    for module in (own_gate, machine_code):
        monkeypatch.setattr(module, "TESTED", ("gfx1100",))
    base, head = checkout("base"), checkout("head")
    (head / "rocattn/config.py").write_text("this is no Python\n")
    said = []
    made = context(tmp_path, base, head, said)
    with pytest.raises(ProbeError, match="head does not report its plans: SyntaxError"):
        ask(made, "head", {}, [])
    assert {(one.metric, one.status) for one in own_gate.Plugin(made).entries()} == {
        ("plan", "failed"),
        ("audit", "failed"),
    }
    turned = context(tmp_path, head, base, said)
    assert own_gate.Plugin(turned).entries() == []
    assert [line.partition(":")[0] for line in said] == [
        "plans and workspaces are left out", "the machine code is not compared",
    ]  # fmt: skip
    assert turned.notes == said  # readers of the verdict did not see the run


def break_listing(tree, arch):
    """Let a checkout's build grid fail on one architecture."""
    grid = tree / "profiling/rocattn_profiling/kernels/build.py"
    text, line = grid.read_text(), "        signatures = _signatures(arch)\n"
    assert text.count(line) == 1
    grid.write_text(text.replace(line, f'        if arch == "{arch}":\n            raise KeyError("planted")\n{line}'))


def test_unlisted_kernels_of_an_architecture_do_not_pass(tmp_path, checkout, monkeypatch):
    """They are not removed: nobody knows. Of a base that does not list them it is noted, also in the verdict."""
    for module in (own_gate, machine_code):
        monkeypatch.setattr(module, "TESTED", ("gfx1100", "gfx942"))
    monkeypatch.setattr(machine_code, "is_quick", lambda one: one.kernel == "scale")
    base, head = checkout("base"), checkout("head")
    break_listing(head, "gfx942")
    found = [one for one in own_gate.Plugin(context(tmp_path, base, head)).entries() if one.metric == "audit"]
    assert [(one.label, one.arch, one.status) for one in found] == [
        ("kernels", "gfx942", "failed"), ("1 kernels", "gfx1100", "pass"),
    ]  # fmt: skip
    assert found[0].reason == "head does not list its kernels for gfx942: 'planted'"
    said = []
    turned = context(tmp_path, head, base, said)
    found = [one for one in own_gate.Plugin(turned).entries() if one.metric == "audit"]
    assert [(one.label, one.arch, one.status) for one in found] == [("1 kernels", "gfx1100", "pass")]
    assert turned.notes == ["base's machine code for gfx942 is not compared: 'planted'"]
    assert set(turned.notes) <= set(said)


def test_other_compiler_options_are_noted(tmp_path, checkout, monkeypatch):
    """Both sides are compiled with those of the rocattn that runs: only the pins tell."""
    for module in (own_gate, machine_code):
        monkeypatch.setattr(module, "TESTED", ("gfx1100",))
    base, head = checkout("base"), checkout("head")
    options = head / machine_code.OPTIONS_FROM
    assert '"-O3"' in options.read_text()
    options.write_text(options.read_text().replace('"-O3"', '"-O1"'))
    made = context(tmp_path, base, head)
    assert {one.status for one in own_gate.Plugin(made).entries()} == {"pass"}
    assert [note.partition(",")[0] for note in made.notes] == [f"{machine_code.OPTIONS_FROM} differs"]
    assert "--check-pins" in made.notes[0]


def test_an_old_revision_without_plans_is_no_error(tmp_path):
    """What it does not have is left out of its answers, and then of the comparison."""
    old = tmp_path / "old" / "rocattn"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("")
    shutil.copy(ROOT / "rocattn/errors.py", old)
    shutil.copy(ROOT / "rocattn/config.py", old)
    made = context(tmp_path, old.parent, ROOT)
    causal = AttentionConfig(batch=1, num_heads=2, seq_q=10, seq_k=10, head_dim=64)
    base, head = (ask(made, side, {"p": causal}, ["gfx1100"]) for side in SIDES)
    assert "rocattn.gpu" in base["p"].plans["gfx1100"].absent
    assert base["p"].backends == {}
    assert head["p"].plans["gfx1100"].path == "flash"
    assert [one.status for one in exact_plans.compare(base, head, ["gfx1100"])] == ["new"]


def test_the_fixed_list_covers_types_directions_and_options():
    """Each option of a problem is in it once at least; labels are unique."""
    found = list(usual_problems().values())
    for name in ("causal", "window", "softcap", "alibi", "sinks", "return_lse", "mask_shape"):
        assert {bool(getattr(config, name)) for config in found} == {True, False}, name
    assert {config.dtype for config in found} == {"float32", "float16", "bfloat16"}
    assert {config.direction for config in found} == {"forward", "backward"}
    assert {config.layout for config in found} == {"BSHD", "BHSD", "BSE"}
    assert any(config.head_dim != config.head_dim_v for config in found)


def worse(label, params, metric="time"):
    """A benchmark that got slower."""
    decision = Decision(id=label, verdict="regression", ratio=1.5)
    return Entry(
        label=label, name=label.partition("(")[0], params=params, unit="ns", metric=metric, status="regression",
        decision=decision, base=10.0, head=15.0,
    )  # fmt: skip


def test_a_gpu_benchmark_has_launches_and_machine_code(tmp_path, checkout, monkeypatch):
    """On the machine's own architecture: the kernel that its plan launches there, compiled from both sides' sources."""
    monkeypatch.setattr(own_gate, "gpu_archs", lambda: ["gfx1100"])
    base, head = checkout("base"), checkout("head")
    made = context(tmp_path, base, head)
    # The sides find the CPU kernels where all tests have them; what is planted is compiled into a cache of its own.
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    decode = head / "kernels/hip/flash_decode_combine.hip"
    text = decode.read_text()
    decode.write_text(text.replace("ROCATTN_KERNEL(", "__attribute__((amdgpu_num_vgpr(16)))\nROCATTN_KERNEL("))
    flash = head / "rocattn/gpu/flash.py"
    old = "MIN_SPLIT_KEYS = 128"
    assert old in flash.read_text()
    flash.write_text(flash.read_text().replace(old, "MIN_SPLIT_KEYS = 1024"))
    config = GRIDS["decode"].configs(quick=True)[-1]
    entry = worse("bench_gpu.Decode.time_decode('x', 'warm')", {"config": f"'{config.label}'", "cache": "'warm'"})
    causes = own_gate.Plugin(made).causes(entry)
    kinds = {one.kind: one for one in causes if one.kind in {"launch", "machine code"}}
    assert kinds["launch"].text.startswith("On gfx1100, flash_decode: grid ")
    assert "flash_decode_combine" in kinds["machine code"].text
    assert kinds["machine code"].location.path == "kernels/hip/flash_decode_combine.hip"


def test_a_tracked_kernel_takes_the_causes_of_its_audit(tmp_path, checkout, monkeypatch):
    """`bench_audit` names architecture and kernel: what the audit says of them is why."""
    cause = Cause(kind="machine code", about="spills", text="43 VGPRs are spilled")
    audit = Entry(
        label="softmax f16",
        name="softmax",
        metric="audit",
        arch="gfx942",
        status="regression",
        reason="spills",
        causes=[cause],
    )
    names = {"arch": "'gfx942'", "kernel": "'softmax f16'"}
    other = names | {"arch": "'gfx90a'"}
    tracked = [worse(f"bench_audit.Kernels.track_spills({one})", one, "track") for one in (names, other)]
    plugin = own_gate.Plugin(context(tmp_path, checkout("base"), checkout("head")))
    monkeypatch.setattr(own_gate, "_compare_plans", lambda _: [])
    monkeypatch.setattr(own_gate, "_compare_kernels", lambda *_: [audit])
    (found,) = plugin.entries()
    assert [one.text for one in found.causes] == [f"43 VGPRs are spilled; {own_gate.ADVICE['spills']}"]
    assert [plugin.causes(entry) for entry in tracked] == [found.causes, []]
