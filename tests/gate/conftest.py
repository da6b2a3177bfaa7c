"""Synthetic launches, entries and verdicts, and sessions cut short, for the tests of the gate."""

import contextlib
import importlib.util
import math
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rocattn_profiling.asv.launch import Benchmark, Case
from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import JUDGED, ORDER, Entry, GateResult, SideFacts, badness
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.measure.records import Machine
from rocattn_profiling.revisions.git import Revision

# This repository's own plug-in, `.rocattn/gate/`, as the package `own_gate`.
_SPEC = importlib.util.spec_from_file_location("own_gate", Path(__file__).parents[2] / ".rocattn/gate/__init__.py")
sys.modules["own_gate"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sys.modules["own_gate"])


def gate_run(root, *arguments, out="out"):
    """Run ``rocattn gate run`` in a folder; return its exit status and the verdict."""
    with contextlib.chdir(root):
        status = main(["gate", "run", "--out", out, *arguments])
    path = Path(root, out, "verdict.json")
    return status, verdict.read(path) if path.exists() else None


def statuses(result):
    """Label -> status."""
    return {entry.label: entry.status for entry in result.entries}


def case_of(label, kind="time", unit="seconds", name="", **facts):
    """One benchmark without parameters."""
    facts = {"version": "1", "params": [], "param_names": [], **facts}
    return Case(benchmark=Benchmark(name=name or label, type=kind, unit=unit, **facts), param=None, label=label)


def fold(text, width=115):
    """Return text for a snapshot: what is longer than a line of code goes on, indented."""
    return "\n".join(
        "\n    ".join(textwrap.wrap(line, width, break_on_hyphens=False)) if len(line) > width else line
        for line in text.split("\n")
    )


@pytest.fixture
def unfinish():
    """Return a function that makes a finished session look killed: these lines are left, and a part of the next."""

    def cut(stored, kept, rest=""):
        key = msgspec.json.decode(kept[0])["key"]
        stored.rename(stored.with_name(f"launches-{key}.jsonl")).write_text("\n".join(kept) + "\n" + rest)

    return cut


@pytest.fixture
def varying(project):
    """The project with times that differ by up to two percent from round to round: by the hash seed, on both sides."""
    library = project.root / "tinylib/__init__.py"
    text = library.read_text().replace("TICKS += n", "TICKS += n + n * (hash('round') % 3) // 100")
    project.commit("noise of rounds", **{"tinylib/__init__.py": text})
    return project


def launches(rng, rounds, slowdown, noise, kind, samples, cpu, drift):
    """Launches of a 1 ms benchmark: noise between launches, jitter within, and what the kind adds."""
    made = []
    for round_ in range(rounds):
        level = math.log1p(slowdown) + rng.normal(0, noise) + drift[round_]
        extra = 0.0
        if kind == "contaminated" and rng.random() < 0.3:
            extra = rng.exponential(0.2)
        if kind == "bimodal" and rng.random() < 0.5:
            extra = 0.06
        if kind == "skewed":
            extra = rng.gamma(1.0, 0.03)
        wall = 1e6 * np.exp(level + extra + np.abs(rng.normal(0, 0.01, samples)))
        wall = wall * np.where(rng.random(samples) < 0.2, 1 + rng.exponential(0.5, samples), 1)
        if kind == "quantised":
            wall = np.maximum(np.round(wall / 2e4), 1) * 2e4
        made.append(PairLaunch(
            round=round_, samples=wall.tolist(), cpu=wall.tolist() if cpu else [], nivcsw=[0] * samples if cpu else []
        ))  # fmt: skip
    return made


@pytest.fixture
def make_pair():
    """Return a function that draws a pair: ``make_pair(rng, rounds, slowdown, kind=…)``."""

    def make(rng, rounds, slowdown=0.0, name="x", noise=0.015, kind="normal", samples=10, cpu=False):
        # The sides run side by side, so the machine's drift is common to them.
        drift = np.cumsum(rng.normal(0, 0.02, rounds)) if kind == "drift" else np.zeros(rounds)
        a = launches(rng, rounds, 0.0, noise, kind, samples, cpu, drift)
        b = launches(rng, rounds, slowdown, noise, kind, samples, cpu, drift)
        return Pair(id=name, a=Side(launches=a, side="base"), b=Side(launches=b, side="head"))

    return make


def make_entry(label, status, ratio=1.0, **facts):
    """One entry with a decision if its status is one (or a waived one)."""
    decision = None
    if status in {*JUDGED, "waived"}:
        decision = Decision(
            id=label,
            verdict="regression" if status == "waived" else status,
            ratio=ratio,
            ratio_low=ratio * 0.97,
            ratio_high=ratio * 1.03,
            rounds_used=5,
            reason="why",
        )
        facts = {"base": 2.0e6, "head": 2.0e6 * ratio, "unit": "ns", **facts}
    return Entry(**{"label": label, "name": label, "status": status, "decision": decision, **facts})


@pytest.fixture
def entry():
    """`make_entry`."""
    return make_entry


@pytest.fixture
def result_of():
    """Return a function that makes a whole verdict around entries."""

    def make(entries, **facts):
        overall, sentence = conclude(entries, facts.get("invalid", ""), facts.get("problems", ()), tolerance=0.05)
        side = SideFacts(
            revision=Revision(name="HEAD", sha="ab" * 20, tree="cd" * 20, date_ms=0, subject="a subject"),
            python="3.11",
            packages={},
        )
        machine = Machine(name="m", cpu="c", cores=2, memory_bytes=1, os="o", python="3", numpy="2")
        ordered = sorted(entries, key=lambda e: (ORDER.index(e.status), -badness(e)))
        made = {
            "verdict": overall, "sentence": sentence, "created_ms": 1, "base": side, "head": side, "machine": machine,
            "policy": Policy(), "quick": True, "seed": 1, "launches": 10, "suite": "benchmarks", "entries": ordered,
            "counts": {s: n for s in ORDER if (n := sum(e.status == s for e in entries))},
        }  # fmt: skip
        return GateResult(**{**made, **facts})

    return make
