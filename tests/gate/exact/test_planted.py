"""The gate on regressions planted in a clone of this project: built, measured and compiled for real, named with causes.

Three are planted in one commit, so that each has to be told from the others: a loop of cpu-flash that runs four times,
an attribute that makes one kernel spill, and a backend that refuses what it computed. The commit before it is the base.
"""

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict

ROOT = Path(__file__).resolve().parents[3]
LOOP, KERNEL, BACKEND = (
    "kernels/cpu/forward.cpp",
    "kernels/hip/flash_attention_causal.hip",
    "rocattn/backends/cpu_flash.py",
)
CAUSAL = "b1-h8-q128-k128-d64-causal-float32"
SLOWER = f"bench_forward.QuickForward.time_attention('cpu-flash', '{CAUSAL}')"
CONTROL = f"bench_forward.QuickForward.time_attention('cpu', '{CAUSAL}')"
LOST = "bench_backward.QuickBackward.time_attention_backward('cpu-flash', 'b1-h8-q128-k128-d64-causal-bwd-float32')"
pytestmark = pytest.mark.slow


def plant(root, file, old, new):
    """Put a change in the place of a text that occurs once; return the number of its first line."""
    path = root / file
    text = path.read_text()
    assert text.count(old) == 1, f"{file} has changed: plant elsewhere"
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


@pytest.fixture(scope="module")
def planted(tmp_path_factory, kernel_cache):
    """A repository of two commits, this project and the same with the three regressions; and the lines they are on."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("planted") / "rocattn"
    root.mkdir()

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout

    for name in subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0"):  # fmt: skip
        if name and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    git("init", "--quiet", "--initial-branch=main")
    git("config", "user.email", "tester@localhost")
    git("config", "user.name", "tester")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Base")
    items = "  run(f.items, used, run_item<T, Op>, &f);\n"
    lines = {
        LOOP: plant(root, LOOP, items, f"  for (int again = 0; again < 4; again++)\n  {items}"),
        KERNEL: plant(
            root, KERNEL, "\nROCATTN_KERNEL(flash_attention_causal,",
            "\n__attribute__((amdgpu_num_vgpr(96)))\nROCATTN_KERNEL(flash_attention_causal,",
        ) + 1,
        BACKEND: plant(
            root, BACKEND, '        if config.dtype == "float64":\n',
            '        if config.direction == "backward":\n'
            '            return Support(ok=False, reason="gradients are switched off")\n'
            '        if config.dtype == "float64":\n',
        ),
    }  # fmt: skip
    git("commit", "--quiet", "--all", "--message", "Plant three regressions")
    return root, lines


@pytest.fixture(scope="module")
def gated(planted, tmp_path_factory):
    """The exit status, the verdict by (label, architecture), and the lines of the gate on that repository."""
    root, lines = planted
    out = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCATTN_OFFLINE", "1")
        patch.chdir(root)
        chosen = ["--bench", r"QuickForward.*causal", "--bench", r"QuickBackward.*cpu-flash", "--rounds", "5"]
        status = main(["gate", "run", "--quick", "--out", str(out), "--base", "HEAD~1", "--head", "HEAD", *chosen])
    result = verdict.read(out / "verdict.json")
    return status, result, {(entry.label, entry.arch): entry for entry in result.entries}, lines


def places(entry, kind):
    """The (path, line) of an entry's causes of a kind."""
    return [(one.location.path, one.location.line) for one in entry.causes if one.kind == kind and one.location]


def test_the_gate_fails_and_says_which(gated):
    """Status 1; what is worse is what was planted, and nothing else: the numpy backend is not accused of anything.

    The attribute is on all variants of the kernel. On gfx1030 most of them need no more registers than it leaves.
    """
    status, result, entries, _ = gated
    assert (status, result.verdict) == (1, "regression")
    worse = {key for key, entry in entries.items() if entry.status in {"regression", "failed", "missing"}}
    variants = [f"flash_attention_causal{of} f16 D=128" for of in ("", "_paged")]
    expected = {
        (SLOWER, ""), (LOST, ""), ("select cpu-flash", ""),
        *product(variants, ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")),
    }  # fmt: skip
    assert expected <= worse
    assert worse - expected <= set(product(variants, ["gfx1030"]))
    assert entries[CONTROL, ""].status in {"pass", "inconclusive", "improvement"}
    assert entries[CONTROL, ""].causes == []


def test_the_slower_loop_is_measured_and_its_line_named(gated):
    """The planted line comes first; neither the kernel for GPUs nor the lost gradients are blamed for it."""
    _, _, entries, lines = gated
    entry = entries[SLOWER, ""]
    assert entry.decision.ratio > 1.2
    assert places(entry, "source")[0] == (LOOP, lines[LOOP])
    assert "for (int again = 0; again < 4; again++)" in "".join(entry.causes[0].diff)
    assert KERNEL not in {path for path, _ in places(entry, "source")}
    assert not [cause for cause in entry.causes if cause.kind in {"machine code", "backend"}]


def test_the_spill_is_found_without_a_gpu(gated):
    """One kernel spills; the cause is the attribute, and the other kernels pass."""
    _, _, entries, lines = gated
    entry = entries["flash_attention_causal f16 D=128", "gfx942"]
    assert (entry.metric, entry.base, entry.unit) == ("audit", 0, "spilled registers")
    assert entry.head > 0
    assert (entry.causes[0].kind, "spilled" in entry.causes[1].text) == ("source", True)
    path, line = places(entry, "machine code")[0]
    assert path.startswith("kernels/")
    assert line > 1
    assert places(entry, "source") == [(KERNEL, lines[KERNEL])]
    assert any("amdgpu_num_vgpr(96)" in "".join(cause.diff) for cause in entry.causes)
    rest = [one for one in entries.values() if one.metric == "audit" and one.status == "pass"]
    assert {one.arch for one in rest} == {"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"}


def test_the_refusing_backend_is_named_with_its_reason(gated):
    """Its benchmark is missing, its selection a regression; both give the backend's own reason and the line of it."""
    _, _, entries, lines = gated
    for entry in (entries[LOST, ""], entries["select cpu-flash", ""]):
        backend = next(cause.text for cause in entry.causes if cause.kind == "backend")
        assert "gradients are switched off" in backend
        assert places(entry, "source")[0] == (BACKEND, lines[BACKEND])
    chosen = entries["select cpu-flash", ""]
    assert chosen.base > chosen.head > 0  # forward still selects it
