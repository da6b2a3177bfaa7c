"""What a memory study computes from its points, and how its report says it; nothing is measured."""

import json

import msgspec
import pytest

from rocattn import BACKENDS, AttentionConfig
from rocattn_profiling.bench.limits import PROCESS_BYTES
from rocattn_profiling.measure.worker import Reply
from rocattn_profiling.memory import measure as memory_measure
from rocattn_profiling.memory import page as memory_report
from rocattn_profiling.memory.measure import MemoryFit, MemoryPoint, MemoryResult, MemoryStudy, Reduction, reductions
from rocattn_profiling.memory.model import Growth, Theory, theory

CONFIG = AttentionConfig(batch=3, num_heads=4, num_kv_heads=2, seq_q=64, seq_k=64, head_dim=16)


def point(backend="cpu", length=64, counted=1000, *, workspace=600, scores=0, skipped="", failed=False):
    """A point whose tensors take 300 and 100 bytes."""
    status = "failed" if failed else "skipped" if skipped else "measured"
    made = Theory(inputs=300, outputs=100, workspace=workspace, scores=scores)
    return MemoryPoint(
        backend=backend, length=length, label="x", theory=made, matrix_bytes=1, skipped=skipped, status=status,
        allocated_bytes=0 if skipped else counted,
    )  # fmt: skip


def study(points=(), fits=(), **facts):
    """A study of these points."""
    values = {"keep_queries": False, "threads": 2, "budget_bytes": 1 << 30, "absent": {}, **facts}
    return MemoryStudy(
        config=CONFIG.to_dict(), points=list(points), fits=list(fits), reductions=reductions(points), **values
    )


def test_a_difference_is_of_the_theory_over_what_was_counted():
    """Theory says 1,000 where 1,250 were counted: a fifth too little. Scores are a share of what was counted."""
    low = point(counted=1250, scores=500)
    assert (low.difference_pct, low.scores_pct) == (pytest.approx(-20), pytest.approx(40))
    assert point(skipped="no").difference_pct == point(skipped="no").scores_pct == 0


def test_reductions_are_at_lengths_that_both_backends_have():
    """Half of the whole, but a quarter of the workspace: tensors are nobody's to save. The GPU is beside its own."""
    points = [
        point(counted=1000), point("cpu-flash", counted=550), point("cpu-flash", length=128),
        point("mine", counted=1600), point("gpu", counted=500), point("gpu-standard", counted=800),
        point("gpu", length=128),
        point("gpu-standard", length=128, skipped="x", failed=True),
    ]  # fmt: skip
    found = {one.backend: one for one in reductions(points)}
    assert {(name, one.standard, one.length) for name, one in found.items()} == {
        ("cpu-flash", "cpu", 64), ("mine", "cpu", 64), ("gpu", "gpu-standard", 64),
    }  # fmt: skip
    assert (found["cpu-flash"].total_pct, found["cpu-flash"].workspace_pct) == (pytest.approx(45), pytest.approx(75))
    assert (found["mine"].total_pct, found["mine"].workspace_pct) == (pytest.approx(-60), pytest.approx(-100))
    assert found["gpu"].total_pct == pytest.approx(37.5)
    (tensors_only,) = reductions([point(counted=400), point("cpu-flash", counted=400)])
    assert tensors_only.workspace_pct == 0


def test_a_theory_may_be_off_by_5_percent_and_64_kib():
    """One byte more than 5 % and 64 KiB is."""
    of = 1 << 26
    allowed = of * 5 // 100 + (1 << 16)
    counted = {0: of, 1: of}
    points = [
        point(str(n), counted=counted[n % 2], workspace=of - 400 + by)
        for n, by in enumerate((allowed - 1, allowed + 2, -allowed + 1, -allowed - 2))
    ]
    assert [one.backend for one in memory_measure.disagreements(study(points))] == ["1", "3"]


def test_the_attention_matrix_has_all_heads(monkeypatch):
    """B * H * Sq * Sk numbers of 4 bytes; 8 of float64. What the process says of a failure is the point's reason."""
    answers = iter([MemoryResult(allocated_bytes=7, rss_bytes=9), MemoryResult(failed="MemoryError: no")])
    asked = []

    def worker(_module, job, env, _timeout):
        asked.append((json.loads(job), env))
        return Reply(msgspec.json.encode(next(answers)), "")

    monkeypatch.setattr(memory_measure, "run_worker", worker)
    single = memory_measure._measure_point(BACKENDS.get("cpu"), 64, CONFIG, 3, "")
    assert (single.matrix_bytes, single.allocated_bytes, single.rss_bytes) == (4 * 3 * 4 * 64 * 64, 7, 9)
    double = memory_measure._measure_point(BACKENDS.get("cpu"), 64, CONFIG.replace(dtype="float64"), 3, "")
    assert (double.matrix_bytes, double.status, double.skipped) == (8 * 3 * 4 * 64 * 64, "failed", "MemoryError: no")
    env = asked[0][1]
    assert env["OMP_NUM_THREADS"] == "3"
    assert int(env["MALLOC_TRIM_THRESHOLD_"]) == int(env["MALLOC_MMAP_THRESHOLD_"]) == 1 << 17


def test_what_may_not_fit_beside_its_own_process_says_so(monkeypatch):
    """The need is below what is available, so the line also has what the process may take: twice that, and itself."""
    monkeypatch.setattr(memory_measure, "run_worker", lambda *_: pytest.fail("it measured"))
    need = theory(CONFIG, BACKENDS.get("cpu")).total
    monkeypatch.setattr(memory_measure, "available_memory_bytes", lambda: 2 * need + PROCESS_BYTES - 1)
    found = memory_measure._measure_point(BACKENDS.get("cpu"), 64, CONFIG, 1, "")
    assert found.skipped.startswith("needs ")
    assert found.skipped.endswith(f"; its process may take {(2 * need + PROCESS_BYTES) / 1e6:.1f} MB")


def test_the_worst_difference_counts_in_either_direction():
    """-20 % is worse than +5 %; what was skipped is in no fit."""
    points = [point(counted=1250), point(length=128, counted=952), point(length=256, skipped="x")]
    fit = memory_measure._fit(BACKENDS.get("cpu"), points, CONFIG, 1, keep_queries=False)
    assert fit.worst_difference_pct == pytest.approx(20)
    assert (fit.longest, fit.longest_theory_bytes, fit.longest_measured_bytes) == (0, 0, None)


def test_usable_backends_begin_with_standard_attention(monkeypatch):
    """Both paths of a GPU, and what is able here; colours of the charts follow that order."""

    class Some:
        def __init__(self, name, *, able=True, is_stand_in=False):
            self.name, self.able, self.is_stand_in = name, able, is_stand_in

        def available(self):
            return self.able

    here = [Some("gpu"), Some("cpu-flash"), Some("cpu"), Some("absent", able=False)]
    monkeypatch.setattr(memory_measure, "BACKENDS", here)
    assert memory_measure.usable_backends() == ["gpu-standard", "cpu", "gpu", "cpu-flash"]
    monkeypatch.setattr(memory_measure, "BACKENDS", [Some("gpu", is_stand_in=True), Some("cpu")])
    assert memory_measure.usable_backends() == ["cpu"]


def test_a_report_says_what_was_asked_and_what_sizes_let_expect():
    """The options of the problem in words; what extrapolated against the theory; the saving at the longest."""
    asked = CONFIG.replace(causal=True, window=(64, 0), softcap=30.0, seq_q=1, head_dim_v=24)
    made = msgspec.structs.replace(study(), config=asked.to_dict(), keep_queries=True, threads=1)
    assert memory_report.describe(made) == (
        "batch 3, 4 heads with 2 KV heads, D 16/24, float32, forward, 1 query token, causal, window 64, 0, softcap 30, "
        "1 thread"
    )
    assert memory_report.describe(study()) == ("batch 3, 4 heads with 2 KV heads, D 16, float32, forward, 2 threads")
    growth = Growth(exponent=1.5, low=1.25, high=1.75, fixed_bytes=0, factor=1, misfit_pct=0, lengths=5)
    assert memory_report.exponent_text(growth) == "1.50 [1.25, 1.75]"
    assert memory_report.exponent_text(msgspec.structs.replace(growth, low=0.7)) == "no power law"
    fit = MemoryFit(
        backend="cpu", growth=growth, longest=9, longest_theory_bytes=1000, longest_measured_bytes=1250.0,
        worst_difference_pct=0,
    )  # fmt: skip
    assert memory_report.model_text(fit) == "1.22 KiB (+25.0 %)"
    assert memory_report.model_text(msgspec.structs.replace(fit, longest_measured_bytes=None)) == "no fit"
    saved = [
        Reduction(backend=name, standard="cpu", length=length, total_pct=float(length), workspace_pct=0)
        for name, length in (("cpu-flash", 64), ("cpu-flash", 512), ("cpu-flash", 128), ("other", 4096))
    ]
    found = memory_report.reduction_of(msgspec.structs.replace(study(), reductions=saved), "cpu-flash")
    assert found.length == 512


def test_a_power_is_a_straight_line_in_the_chart():
    """Both axes are logarithmic: lengths of 64, 256 and 1024 stand at equal distances, and so do their squares."""
    points = [point(length=n, counted=n * n, scores=n) for n in (64, 256, 1024)]
    fits = [
        MemoryFit(
            backend="cpu", growth=None, longest=0, longest_theory_bytes=0, longest_measured_bytes=None,
            worst_difference_pct=None,
        )
    ]  # fmt: skip
    chart = memory_report.build(study(points, fits, keep_queries=True), 0).charts["wide"]
    a, b, c = chart.lines[0].marks
    assert b.x - a.x == pytest.approx(c.x - b.x, abs=0.3)
    assert b.y - a.y == pytest.approx(c.y - b.y, abs=0.3)
    assert a.y > c.y
    assert "cpu, 64: 4.00 KiB (1.56 % scores)" in a.title
    assert chart.x_label == "keys"
    none = memory_report.build(study([point()], fits), 0).charts["wide"]
    assert none.x_label == "tokens"
    assert "no scores kept" in none.lines[0].marks[0].title
