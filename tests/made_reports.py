"""Synthetic records, series and verdicts: reports are pure functions, so no test here measures anything."""

import random

import pytest

from rocattn.config import AttentionConfig
from rocattn_profiling.gate.model import Entry, GateResult, SideFacts
from rocattn_profiling.gate.rule.pairs import Decision, PairLaunch
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.measure.records import Check, Commit, Launch, Machine, Record
from rocattn_profiling.revisions.git import Revision

HOSTILE = "<script>alert('x')</script>\"'&{{ 7*7 }}"
MACHINE = Machine(
    name="box", cpu="CPU 3000", cores=3, memory_bytes=9 << 30, os="Linux 6", python="3.11.7", numpy="2.4.6",
    gpu="GPU 1", gfx="gfx1100", driver="6.4",
)  # fmt: skip
COMMIT = Commit(sha="ab" * 20, date_ms=1_789_000_000_000, subject="Make it faster")


def make_record(config, backend="cpu", *, time_ns=1e6, suite="inference", **changes):
    """A record whose three launches of five samples lie around ``time_ns``."""
    rng = random.Random(f"{backend}{config.label}")  # noqa: S311 - test data, not secrets
    launches = [
        Launch(start_ns=10**18, pos=pos, number=1, samples_ns=[time_ns * rng.uniform(1.0, 1.02) for _ in range(5)])
        for pos in range(3)
    ]
    check = Check(
        ok=True, max_abs_error=3e-7, max_rel_error=4e-7, rms_error=5e-8, naive_max_abs_error=6e-7, factor=2.0,
        rows_checked=config.seq_q, rows=config.seq_q,
    )  # fmt: skip
    values = {
        "suite": suite, "backend": backend, "config": config.to_dict(), "label": config.label, "machine": MACHINE,
        "commit": COMMIT, "launches": launches, "check": check, "threads": 1, "pair": f"{suite}/{config.key}",
        "ceilings": {"gemm_tflops": 0.08, "memory_gbps": 12.0},
    }  # fmt: skip
    return Record(**{**values, **changes})


@pytest.fixture
def record_of():
    """`make_record`."""
    return make_record


@pytest.fixture(scope="module")
def records():
    """Two backends on three lengths, one config skipped by one backend."""
    configs = [
        AttentionConfig(batch=1, num_heads=3, seq_q=s, seq_k=s, head_dim=24, causal=True) for s in (33, 129, 257)
    ]
    made = [make_record(c, b, time_ns=c.flops * f) for c in configs for b, f in (("cpu", 2.0), ("cpu-flash", 1.0))]
    large = configs[0].replace(seq_q=8191, seq_k=8191)
    skipped = make_record(
        large, "cpu", launches=[], check=None, status="skipped", skipped="needs 90.1 GiB, 7 GiB are free"
    )
    return [*made, skipped, make_record(large, "cpu-flash", time_ns=5e8)]


@pytest.fixture(scope="module")
def verdict():
    """A verdict with one entry of most kinds, hostile text in one."""

    def side(sha):
        revision = Revision(name="x", sha=sha * 20, tree="t" * 40, date_ms=1_789_000_000_000, subject=HOSTILE)
        return SideFacts(revision=revision, python="3.11.7", packages={"numpy": "2.4.6"})

    def launches(middle):
        return [PairLaunch(round=n, samples=[middle * (1 + 0.001 * n), middle * 1.1]) for n in range(5)]

    def judged(label, status, ratio, high=...):
        decision = Decision(
            id=label, verdict=status, ratio=ratio, ratio_low=ratio * 0.98,
            ratio_high=ratio * 1.02 if high is ... else high, p=0.001, rounds_used=5, reason=f"because {status}",
        )  # fmt: skip
        return Entry(
            label=label, name=label, unit="ns", status=status, decision=decision, base=2e6, head=2e6 * ratio,
            base_launches=launches(2e6), head_launches=launches(2e6 * ratio),
        )  # fmt: skip

    entries = [
        judged("suite.Class.time_slower('cpu', 'b1')", "regression", 1.3),
        Entry(label=HOSTILE, name="n", status="failed", reason=HOSTILE, traceback=HOSTILE),
        judged("suite.Class.time_unclear('cpu', 'b1')", "inconclusive", 1.04, high=None),
        judged("suite.Class.time_same('cpu', 'b1')", "pass", 1.001),
    ]
    return GateResult(
        verdict="regression", sentence=f"1 of 3 became slower, {HOSTILE}.",
        created_ms=1_789_000_000_000,
        base=side("0a"), head=side("0b"), machine=MACHINE, policy=Policy(), quick=True, seed=1, launches=30,
        suite="benchmarks", counts={"regression": 1, "failed": 1, "inconclusive": 1, "pass": 1}, entries=entries,
        notes=[HOSTILE],
    )  # fmt: skip
