"""Exact metrics: what fails without a clock, what is only listed, and what is never compared."""

import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.sources import kernel_root
from rocattn_profiling.gate import exact, exact_plans
from rocattn_profiling.gate import explain as explaining
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.exact_sides import Answers, BackendAnswer, Launch, Plan, ProbeError, ask, usual_problems
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.pairs import Decision
from rocattn_profiling.gate.verdict import Cause, Entry
from rocattn_profiling.measure.asv_launch import Launcher
from rocattn_profiling.measure.workloads import GRIDS

ROOT = Path(__file__).resolve().parents[2]
ARCHS = ("gfx1100", "gfx942")
FLASH = Launch("flash_attention_causal", "hip/x.hip", "x", {"KEY_TILE": 32}, (2, 4, 1), (128, 1, 1))
PARTS = tuple(msgspec.structs.replace(FLASH, kernel=name) for name in ("qk_matmul", "softmax", "pv_matmul"))
TAKEN = Plan(path="flash", launches=(FLASH,), hash="a")
LEFT = Plan(path="standard", reason="windows are not allowed", launches=PARTS, workspaces={"scores": 8192}, hash="b")
CPU, TILED = BackendAnswer(True, True, 0, workspace_bytes=8192), BackendAnswer(True, True, 10, workspace_bytes=0)


def answers(**changes):
    """One side's answers to two problems, "p" and "q"; what is given is p's."""
    usual = {
        "selected": "cpu-flash",
        "backends": {"cpu": CPU, "cpu-flash": TILED},
        "plans": dict.fromkeys(ARCHS, TAKEN),
    }
    return {"p": Answers(**(usual | changes)), "q": Answers(**usual)}


def compared(**changes):
    """(label, architecture) -> entry, of a head that differs from base in the answers to p."""
    return {(one.label, one.arch): one for one in exact_plans.compare(answers(), answers(**changes), ARCHS)}


def judged(entries):
    """(label, architecture) -> status, but for what passes."""
    return {key: one.status for key, one in entries.items() if one.status != "pass"}


def test_what_is_as_in_base_passes_and_is_counted():
    """Six plans and choices of each problem, and workspaces; nothing else is said."""
    found = exact_plans.compare(answers(), answers(), ARCHS)
    assert {one.status for one in found} == {"pass"}
    assert {one.metric for one in found} == {"plan", "workspace"}
    assert all("2 problems" in one.reason for one in found)


def test_a_lost_flash_path_is_a_regression_with_its_reason():
    """On one architecture it is that one's; on all of them it is said once. The reason and both paths are named."""
    found = compared(plans={"gfx1100": LEFT, "gfx942": TAKEN})
    assert judged(found) == {("flash path", "gfx1100"): "regression"}
    entry = found["flash path", "gfx1100"]
    assert (entry.metric, entry.base, entry.head, entry.unit, entry.decision.ratio) == ("plan", 2, 1, "problems", 2)
    assert "qk_matmul + softmax + pv_matmul" in entry.reason
    assert "windows are not allowed" in entry.reason
    assert entry.causes[0].kind == "backend"
    everywhere = compared(plans=dict.fromkeys(ARCHS, LEFT))
    assert judged(everywhere) == {("flash path", ""): "regression"}


def test_a_won_flash_path_is_an_improvement():
    """The same the other way round."""
    found = exact_plans.compare(answers(plans=dict.fromkeys(ARCHS, LEFT)), answers(), ARCHS)
    assert [(one.label, one.status) for one in found if one.status != "pass"] == [("flash path", "improvement")]


def test_a_lost_plan_is_a_regression_and_a_won_one_is_new():
    """A problem that the kernels do not compute any more; the other way round base could not say anything."""
    none = Plan(problem="ConfigError: D = 300 is too large")
    assert judged(compared(plans=dict.fromkeys(ARCHS, none))) == {("plans", ""): "regression"}
    found = exact_plans.compare(answers(plans=dict.fromkeys(ARCHS, none)), answers(), ARCHS)
    assert [(one.label, one.status) for one in found if one.status != "pass"] == [("plans", "new")]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"grid": (4, 4, 1)}, "grid 2 x 4 x 1 -> 4 x 4 x 1"),
        ({"block": (64, 1, 1)}, "block 128 x 1 x 1 -> 64 x 1 x 1"),
        ({"defines": {"KEY_TILE": 64, "SLICES": 2}}, "KEY_TILE 32 -> 64, SLICES unset -> 2"),
        ({"kernel": "flash_decode"}, "launches flash_decode instead of flash_attention_causal"),
        ({}, "other arguments of the same launches"),
    ],
)
def test_another_geometry_is_listed_and_not_judged(changed, says):
    """A tile or a grid is for the clock to judge: it is shown with what changed."""
    other = msgspec.structs.replace(TAKEN, launches=(msgspec.structs.replace(FLASH, **changed),), hash="c")
    found = compared(plans=dict.fromkeys(ARCHS, other))
    assert judged(found) == {("changed plans or choices", ""): "ungated"}
    assert says in found["changed plans or choices", ""].causes[0].text


def test_a_workspace_that_grows_by_a_page_is_a_regression():
    """With its ratio; less than a page is listed; of a workspace out of nothing there is no ratio."""
    grown = msgspec.structs.replace(TAKEN, workspaces={"partials": 4096}, hash="c")
    found = compared(plans=dict.fromkeys(ARCHS, grown))
    entry = found["workspace gpu", ""]
    assert (entry.status, entry.base, entry.head, entry.decision) == ("regression", 0, 4096, None)
    bigger = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=12288), "cpu-flash": TILED}
    entry = compared(backends=bigger)["workspace cpu", ""]
    assert (entry.status, entry.decision.ratio, entry.unit) == ("regression", 1.5, "bytes")
    little = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=8200), "cpu-flash": TILED}
    assert judged(compared(backends=little)) == {("changed workspaces", ""): "ungated"}
    smaller = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=0), "cpu-flash": TILED}
    assert judged(compared(backends=smaller)) == {("workspace cpu", ""): "improvement"}


def test_a_backend_that_stops_being_selected_is_a_regression():
    """Because it cannot any more, because it is gone, or because a slower one is preferred; each says which."""
    unable = msgspec.structs.replace(TILED, supports=False, why="no causal masks")
    found = compared(selected="cpu", backends={"cpu": CPU, "cpu-flash": unable})
    assert judged(found) == {("select cpu-flash", ""): "regression"}
    assert "no causal masks" in found["select cpu-flash", ""].reason
    gone = compared(selected="cpu", backends={"cpu": CPU})
    assert "is not there any more" in gone["select cpu-flash", ""].reason
    slower = compared(selected="cpu")
    assert "base holds for slower" in slower["select cpu-flash", ""].reason
    away = {"cpu": CPU, "cpu-flash": msgspec.structs.replace(TILED, available=False, why="no compiler")}
    assert "cannot any more: no compiler" in compared(selected="cpu", backends=away)["select cpu-flash", ""].reason
    nobody = compared(selected="", backends={"cpu": msgspec.structs.replace(CPU, available=False), "cpu-flash": unable})
    assert "no backend is selected" in nobody["select cpu-flash", ""].reason


def test_another_backend_that_base_does_not_hold_for_slower_is_listed():
    """A backend that base does not know may be the faster one: the clock decides."""
    newer = {"cpu": CPU, "cpu-flash": TILED, "npu": msgspec.structs.replace(TILED, priority=5)}
    assert judged(compared(selected="npu", backends=newer)) == {("changed plans or choices", ""): "ungated"}
    both = {"cpu": msgspec.structs.replace(CPU, priority=TILED.priority), "cpu-flash": TILED}
    found = exact_plans.compare(answers(backends=both), answers(selected="cpu", backends=both), ARCHS)
    assert [one.label for one in found if one.status != "pass"] == ["changed plans or choices"]


def test_a_backend_that_is_not_selected_must_go_on_computing_a_problem():
    """Who names it in a call needs it, selected or not; that it does not run on this machine is no loss."""
    unable = msgspec.structs.replace(CPU, supports=False, why="no windows")
    assert judged(compared(backends={"cpu": unable, "cpu-flash": TILED})) == {("support cpu", ""): "regression"}
    away = msgspec.structs.replace(CPU, available=False, why="no device")
    assert judged(compared(backends={"cpu": away, "cpu-flash": TILED})) == {}
    found = exact_plans.compare(
        answers(backends={"cpu": away, "cpu-flash": TILED}),
        answers(backends={"cpu": msgspec.structs.replace(away, supports=False), "cpu-flash": TILED}), ARCHS,
    )  # fmt: skip
    assert "support cpu" in {one.label for one in found if one.status == "regression"}


def test_a_problem_that_base_does_not_know_is_not_compared():
    """An old revision lacks an option, or plans: nothing follows from that."""
    found = exact_plans.compare({"p": Answers(unknown="ConfigError")} | {"q": answers()["q"]}, answers(), ARCHS)
    assert {one.status for one in found} == {"pass"}
    assert all("1 problems" in one.reason for one in found)
    absent = dict.fromkeys(ARCHS, Plan(absent="ImportError"))
    assert {one.status for one in exact_plans.compare(answers(plans=absent), answers(), ARCHS)} == {"pass"}


def test_what_head_alone_cannot_be_asked_is_a_regression():
    """A configuration that it refuses, or a planner that cannot be imported any more: not measured is never passed."""
    found = compared(plans=dict.fromkeys(ARCHS, Plan(absent="ImportError: no tiles")))
    assert judged(found) == {("plans", ""): "regression"}
    assert "no tiles" in found["plans", ""].reason
    found = exact_plans.compare(answers(), {"p": Answers(unknown="ConfigError: D"), "q": answers()["q"]}, ARCHS)
    assert [(one.label, one.status) for one in found if one.status != "pass"] == [("plans", "regression")]
    assert "the library refuses the problem: ConfigError: D" in found[0].reason
    none = dict.fromkeys(ARCHS, Plan(problem="ConfigError: D = 300 is too large"))
    assert {one.status for one in exact_plans.compare(answers(plans=none), answers(plans=none), ARCHS)} == {"pass"}


def test_what_is_gained_makes_up_for_no_loss():
    """Of three problems one loses the flash path and one wins it: a regression, by what base had and has lost."""
    one, won, lost = (dict.fromkeys(ARCHS, plan) for plan in (TAKEN, TAKEN, LEFT))
    base = {"r": answers(plans=lost)["p"], **answers(plans=one)}
    head = {"r": answers(plans=won)["p"], **answers(plans=lost)}
    (entry,) = (one for one in exact_plans.compare(base, head, ARCHS) if one.label == "flash path")
    assert (entry.status, entry.base, entry.head, entry.decision.ratio) == ("regression", 2, 2, 2)


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
        quick=quick,
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
        for part in ("audit", "metrics", "__init__.py", "files.py"):
            source = ROOT / inside / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / inside / part)
        return tree

    return make


def test_equal_checkouts_are_told_by_their_bytes(tmp_path, checkout, monkeypatch):
    """Nothing is started or compiled for them; what was looked at is still listed as passed."""
    monkeypatch.setattr(exact, "ask", None)
    monkeypatch.setattr(exact, "list_kernels", None)
    found = exact.entries(context(tmp_path, checkout("base"), checkout("head")))
    assert [(one.metric, one.status) for one in found] == [("plan", "pass"), ("workspace", "pass"), ("audit", "pass")]


def test_other_projects_and_existing_environments_have_no_exact_metrics(tmp_path):
    """A tree without our kernels gives nothing; two environments without trees give nothing, and that is said."""
    (tmp_path / "base").mkdir()
    (tmp_path / "head").mkdir()
    said = []
    made = context(tmp_path, tmp_path / "base", tmp_path / "head", said)
    assert exact.entries(made) == []
    assert said == []
    without = Context(**{name: getattr(made, name) for name in made.__slots__} | {"trees": {}})
    assert exact.entries(without) == []
    assert "no sources" in said[0]


def test_a_base_without_kernels_is_said_and_a_head_without_them_fails(tmp_path):
    """There is nothing to compare with an old base; what head threw away is not passed."""
    for name in ("rocattn/gpu/plan.py", "kernels/hip/x.hip"):
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / name).write_text("")
    (tmp_path / "old").mkdir()
    said = []
    assert exact.entries(context(tmp_path, tmp_path / "old", tmp_path / "new", said)) == []
    assert said == ["exact metrics are left out: base is too old to have plans and kernels"]
    (lost,) = exact.entries(context(tmp_path, tmp_path / "new", tmp_path / "old"))
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
    monkeypatch.setattr(exact, "TESTED", ("gfx1100",))
    base, head = checkout("base"), checkout("head")
    (head / "rocattn/config.py").write_text("this is no Python\n")
    said = []
    made = context(tmp_path, base, head, said)
    with pytest.raises(ProbeError, match="head does not say what it plans: SyntaxError"):
        ask(made, "head", {}, [])
    assert {(one.metric, one.status) for one in exact.entries(made)} == {("plan", "failed"), ("audit", "failed")}
    turned = context(tmp_path, head, base, said)
    assert exact.entries(turned) == []
    assert [line.partition(":")[0] for line in said] == [
        "plans and workspaces are left out", "the machine code is not compared",
    ]  # fmt: skip
    assert turned.notes == said  # readers of the verdict did not see the run


def break_listing(tree, arch):
    """Let a checkout's build grid fail on one architecture."""
    grid = tree / "profiling/rocattn_profiling/audit/kernel_build.py"
    text, line = grid.read_text(), "        signatures = _signatures(arch)\n"
    assert text.count(line) == 1
    grid.write_text(text.replace(line, f'        if arch == "{arch}":\n            raise KeyError("planted")\n{line}'))


def test_an_architecture_whose_kernels_head_does_not_list_is_not_passed(tmp_path, checkout, monkeypatch):
    """They are not removed: nobody knows. Of a base that does not list them it is noted, also in the verdict."""
    monkeypatch.setattr(exact, "TESTED", ("gfx1100", "gfx942"))
    monkeypatch.setattr(exact, "is_quick", lambda one: one.kernel == "scale")
    base, head = checkout("base"), checkout("head")
    break_listing(head, "gfx942")
    found = [one for one in exact.entries(context(tmp_path, base, head)) if one.metric == "audit"]
    assert [(one.label, one.arch, one.status) for one in found] == [
        ("kernels", "gfx942", "failed"), ("1 kernels", "gfx1100", "pass"),
    ]  # fmt: skip
    assert found[0].reason == "head does not list its kernels for gfx942: 'planted'"
    said = []
    turned = context(tmp_path, head, base, said)
    assert "failed" not in {one.status for one in exact.entries(turned)}
    assert turned.notes == ["base's machine code for gfx942 is not compared: 'planted'"]
    assert set(turned.notes) <= set(said)


def test_other_compiler_options_are_not_compared_and_that_is_said(tmp_path, checkout, monkeypatch):
    """Both sides are compiled with those of the rocattn that runs: only the pins tell."""
    monkeypatch.setattr(exact, "TESTED", ("gfx1100",))
    base, head = checkout("base"), checkout("head")
    options = head / exact.OPTIONS_FROM
    assert '"-O3"' in options.read_text()
    options.write_text(options.read_text().replace('"-O3"', '"-O1"'))
    made = context(tmp_path, base, head)
    assert {one.status for one in exact.entries(made)} == {"pass"}
    assert [note.partition(",")[0] for note in made.notes] == [f"{exact.OPTIONS_FROM} differs"]
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


def test_a_slower_gpu_benchmark_is_explained_by_its_launches_and_its_machine_code(tmp_path, checkout, monkeypatch):
    """On the machine's own architecture: the kernel that its plan launches there, compiled from both sides' sources."""
    monkeypatch.setattr(explaining, "gpu_archs", lambda: ["gfx1100"])
    base, head = checkout("base"), checkout("head")
    made = context(tmp_path, base, head)
    # The sides find the CPU kernels where all tests have them; what is planted is compiled into a cache of its own.
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    decode = head / "kernels/hip/flash_decode_combine.hip"
    text = decode.read_text()
    decode.write_text(text.replace("ROCATTN_KERNEL(", "__attribute__((amdgpu_num_vgpr(16)))\nROCATTN_KERNEL("))
    flash = head / "rocattn/gpu/flash.py"
    old = "DECODE_BLOCKS = 768"
    assert old in flash.read_text()
    flash.write_text(flash.read_text().replace(old, "DECODE_BLOCKS = 96"))
    config = GRIDS["decode"].configs(quick=True)[-1]
    entry = worse("bench_gpu.Decode.time_decode('x', 'warm')", {"config": f"'{config.label}'", "cache": "'warm'"})
    (found,) = explaining.explain([entry], made)
    kinds = {one.kind: one for one in found.causes if one.kind in {"launch", "machine code"}}
    assert kinds["launch"].text.startswith("on gfx1100, flash_decode: grid ")
    assert "flash_decode_combine" in kinds["machine code"].text
    assert kinds["machine code"].location.path == "kernels/hip/flash_decode_combine.hip"
    assert kinds["launch"].text in found.explanation


def test_a_tracked_number_of_a_kernel_takes_the_causes_of_its_audit(tmp_path, checkout):
    """`bench_audit` names architecture and kernel: what the audit says of them is why."""
    cause = Cause(kind="machine code", text="43 VGPRs are spilled")
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
    found = explaining.explain([audit, *tracked], context(tmp_path, checkout("base"), checkout("head")))
    assert found[1].causes == [cause]
    assert "43 VGPRs are spilled. Fewer registers avoid it" in found[1].explanation
    assert cause not in found[2].causes
