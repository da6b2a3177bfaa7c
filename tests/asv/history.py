"""A git repository of twelve commits and an asv store about it: made once, copied by tests that change it."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from rocattn.config import AttentionConfig
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.measure.records import Check, Commit, Launch, Machine, Record

STEP_AT = 8
"""The commit (from 0) from which the synthetic cpu-flash timings are 30 % slower."""
CONFIGS = [
    AttentionConfig(batch=1, num_heads=4, seq_q=s, seq_k=s, head_dim=64, causal=c)
    for s in (128, 257)
    for c in (False, True)
]
MACHINE = Machine(
    name="testbox", cpu="Test CPU 3000", cores=2, memory_bytes=8 << 30, os="Linux 6.1", python="3.11.7", numpy="2.4.6",
    gpu="Test GPU", gfx="gfx942", driver="6.4",
)  # fmt: skip


def git(cwd, *arguments, **env):
    """Run git; returns its output."""
    names = {
        f"GIT_{who}_{what}": f"t{'@t' if what == 'EMAIL' else ''}"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    command = ["git", "-c", "init.defaultBranch=trunk", *arguments]
    done = subprocess.run(command, cwd=cwd, env=os.environ | names | env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_record(commit, config, backend="cpu", *, seed=0, slow=1.0, suite="inference", **changes):
    """A plausible record: three launches of seven samples around a time that follows from the FLOPs."""
    rng = random.Random(f"{seed}{backend}{config.label}{commit.sha if commit else ''}")  # noqa: S311 - test data, not secrets
    base = config.flops / (4.0 if backend == "cpu" else 6.0) * slow
    launches = []
    for pos in range(3):
        drift = rng.gauss(1, 0.004)
        samples = [base * drift * rng.gauss(1, 0.006) for _ in range(7)]
        launches.append(Launch(start_ns=1_790_000_000_000_000_000, pos=pos, number=1, samples_ns=samples))
    check = Check(
        ok=True, max_abs_error=3.1e-7, max_rel_error=4.2e-7, rms_error=5.3e-8, naive_max_abs_error=4.4e-7, factor=2.0,
        rows_checked=config.seq_q, rows=config.seq_q,
    )  # fmt: skip
    values = {
        "suite": suite, "backend": backend, "config": config.to_dict(), "label": config.label, "machine": MACHINE,
        "commit": commit, "launches": launches, "check": check, "threads": 1, "peak_rss_bytes": 120 << 20,
        "ceilings": {"gemm_tflops": 0.09, "memory_gbps": 11.0}, "pair": f"{suite}/{config.key}",
    }  # fmt: skip
    return Record(**{**values, **changes})


@pytest.fixture(scope="session")
def record_of():
    """`make_record`, for tests that need records of their own."""
    return make_record


@pytest.fixture(scope="session")
def made_history(tmp_path_factory):
    """(repository, commits oldest first): twelve commits on a branch named trunk, and bench results of each."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("history") / "repo"
    root.mkdir()
    shutil.copy(Path(__file__).parents[2] / "asv.conf.json", root)
    (root / ".gitignore").write_text(".asv/\nout/\n")
    git(root, "init", "--quiet")
    commits = []
    for number in range(12):
        when = 1_789_000_000 + number * 86_400
        (root / "notes.txt").write_text(f"{number}\n")
        git(root, "add", ".")
        subject = f"Change <b>{number}</b> & go on"
        git(
            root,
            "commit",
            "--quiet",
            "-m",
            subject,
            GIT_AUTHOR_DATE=f"{when} +0000",
            GIT_COMMITTER_DATE=f"{when} +0000",
        )
        commits.append(Commit(sha=git(root, "rev-parse", "HEAD"), date_ms=when * 1000, subject=subject))
    store = AsvStore(root)
    for number, commit in enumerate(commits):
        slow = {"cpu": 1.0, "cpu-flash": 1.3 if number >= STEP_AT else 1.0}
        store.add_records(make_record(commit, c, b, seed=number, slow=slow[b]) for c in CONFIGS for b in slow)
    return root, commits


@pytest.fixture
def history(made_history, tmp_path):
    """A copy of `made_history` that a test may change."""
    root, commits = made_history
    copy = tmp_path / "repo"
    shutil.copytree(root, copy)
    return copy, commits
