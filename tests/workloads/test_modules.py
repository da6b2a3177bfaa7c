"""Attention modules: cached and whole computation agree, the check sees mistakes, the bench records them."""

import contextlib
import json

import numpy as np
import pytest

import rocattn
from rocattn.errors import ConfigError
from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench.launch import LaunchJob, perform
from rocattn_profiling.cli import main
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.measure.stats import summarize
from rocattn_profiling.workloads import modules
from rocattn_profiling.workloads.modules import (
    NAMES,
    WORKLOADS,
    CachedGemma,
    Projections,
    extra_work,
    of_module,
    prefix_lm_mask,
    prepare,
    rotate,
)

from ..bench.made_records import make_record, make_sides

CEILINGS = {"gemm_tflops": 0.1, "gemm_float64_tflops": 0.05, "memory_gbps": 10.0}


def small(suite, seq_q, seq_k, **more):
    """Return a workload's config at a small odd size."""
    config = WORKLOADS[suite].configs[0].replace(mask="none", mask_shape=None)
    masked = {"mask": "bool", "mask_shape": (1, 1, seq_q, seq_k)} if suite == "module-gemma" else {}
    return config.replace(seq_q=seq_q, seq_k=seq_k, **masked, **more)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    """Layers a few dozen dimensions wide: sizes do not matter here."""
    narrow = {
        suite: modules.Workload(w.module, suite, w.description, (48, 24)[: len(w.widths)], w.configs, w.quick)
        for suite, w in WORKLOADS.items()
    }
    monkeypatch.setattr(modules, "WORKLOADS", narrow)


@pytest.mark.parametrize("cache", [
    rocattn.KVCache(2, 1, 8, capacity=23, dtype=np.float64),
    rocattn.PagedKVCache(2, 1, 8, num_blocks=14, block_size=4, dtype=np.float64),
], ids=["reserved", "paged"])  # fmt: skip
def test_prefill_and_steps_give_what_all_tokens_at_once_give(cache):
    """A prompt of 14 tokens, then 9 one by one, against one pass under the prefix-LM mask."""
    rng = np.random.default_rng(1)
    gemma = CachedGemma(Projections.random(rng, 24, 4, 1, 8, np.dtype(np.float64)))
    x = rng.standard_normal((2, 23, 24))
    parts = [gemma.prefill(x[:, :14], cache, backend="cpu")]
    parts += [gemma.step(x[:, at : at + 1], at, cache, backend="cpu") for at in range(14, 23)]
    whole = gemma.whole(x, 14, lambda q, k, v, mask: rocattn.attention(q, k, v, mask=mask, backend="cpu"))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-11, atol=1e-12)


def test_the_prefix_sees_itself_and_the_rest_sees_back():
    """Prefix-LM: bidirectional in the prefix, causal after it."""
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(prefix_lm_mask(2, 4), np.array(expected, bool))


def test_rope_depends_on_distance_alone():
    """q.k of turned heads is the same wherever the pair stands, and turning keeps lengths."""
    rng = np.random.default_rng(2)
    q, k = rng.standard_normal((2, 1, 1, 1, 16))
    dots = [float((rotate(q, at + 5) * rotate(k, at)).sum()) for at in (0, 1, 77)]
    np.testing.assert_allclose(dots, dots[0], rtol=1e-12)
    assert float((rotate(q, 5) * rotate(k, 0)).sum()) != pytest.approx(float((q * k).sum()))
    np.testing.assert_allclose(np.linalg.norm(rotate(q, 9)), np.linalg.norm(q))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("suite", "seq_q"), [(s, n) for s in WORKLOADS for n in (37, 1) if n > 1 or "fast" in s])
def test_workloads_are_right_on_cpu_and_wrong_outputs_caught(suite, seq_q, dtype):
    """Within the rule of outputs; a part of a thousandth of the largest value too much is not."""
    config = small(suite, seq_q, 37, dtype=dtype)
    calls, check = prepare(suite, config, ["cpu"], seed=3)
    calls["cpu"]()
    outputs = calls["cpu"]()  # a cached call can be repeated
    assert check({"cpu": outputs})["cpu"].ok
    wrong = outputs[-1].copy()
    wrong[0, -1] *= 1.5
    assert not check({"cpu": (*outputs[:-1], wrong)})["cpu"].ok
    wrong[0, -1, 0] = np.nan
    assert not check({"cpu": (*outputs[:-1], wrong)})["cpu"].ok


def test_a_module_that_attends_to_the_wrong_keys_is_seen(monkeypatch):
    """An attention that drops its last key fails the check of a decode step."""
    config = small("module-gemma_fast", 1, 37)
    calls, check = prepare("module-gemma_fast", config, ["cpu"], seed=4)
    right = rocattn.kv_cache.attention
    monkeypatch.setattr(rocattn.kv_cache, "attention", lambda q, k, v, **o: right(q, k[:, :-1], v[:, :-1], **o))
    assert not check({"cpu": calls["cpu"]()})["cpu"].ok


def test_a_launch_times_and_checks_a_module():
    """A sampling process does a module's job as it does attention's."""
    config = small("module-gemma_fast-paged", 1, 37)
    job = LaunchJob(
        config=config.to_dict(), backends=["cpu"], data="normal", seed=0, pos=0, warmup_s=0, budget_s=0, min_samples=2,
        max_samples=2, min_sample_ns=1, check=True, module="module-gemma_fast-paged",
    )  # fmt: skip
    (series,) = perform(job, lambda _: None).series
    assert series.failed == ""
    assert len(series.launch.samples_ns) == 2
    assert series.check is not None
    assert series.check.ok
    assert series.check.rows_checked == config.batch


def test_projections_count_as_work():
    """2 N (2 H + 2 Hkv) D FLOPs a token, and their weights are read once."""
    config = small("module-standard", 37, 37)
    flops, size = extra_work("module-standard", config)
    weights = 48 * (8 + 8 + 8 + 8) * 64
    assert flops == 2 * weights * 37
    assert size == 4 * weights + 2 * 37 * 48 * 4
    plain, more = (make_record([[1e6]], config=config, extra_flops=n) for n in (0, flops))
    assert summarize(more).tflops == pytest.approx(summarize(plain).tflops + flops / 1e6 / 1e3)


def test_module_records_and_the_reports_command(monkeypatch, tmp_path, capsys):
    """``bench --modules standard gemma gemma_fast --quick``: records of four suites, with their projections' work."""
    monkeypatch.setattr(harness, "measure_side_by_side", make_sides)
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: CEILINGS)
    words = ["--modules", *NAMES, "--quick", "--backend", "cpu", "--no-store", "--json", "--out", str(tmp_path)]
    assert main(["bench", *words, "--threads", "2"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert {record["suite"] for record in value["records"]} == set(WORKLOADS)
    records = list(read_records(tmp_path / "records.jsonl"))
    assert all(record.extra_flops > 0 for record in records)
    report = bench_report.build(records)
    assert report.command == f"rocattn bench --modules {' '.join(NAMES)} --quick --backend cpu --threads 2"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nine"], "no module is named 'nine': choose from standard, gemma, gemma_fast"),
        (["gemma", "--grid", "square"], "--grid: not allowed with argument --modules"),
        (["gemma", "--seq-q", "9"], "--seq-q cannot be used with --modules"),
        (["gemma", "--direction", "backward"], "forward only"),
        (["gemma", "--data", "trig"], "normal tokens"),
        (["gemma", "--layout", "BHSD"], "leave out --layout"),
        (["gemma", "--model", "x.gguf"], "--model: not allowed with argument --modules"),
    ],
)
def test_options_that_modules_do_not_have_are_refused(words, told, tmp_path, capsys):
    """One line, status 4."""
    with contextlib.suppress(SystemExit):  # of the parser, whose statuses are in test_exit_status
        assert main(["bench", "--modules", *words, "--out", str(tmp_path)]) == 4
    assert told in capsys.readouterr().err


def test_an_unknown_module_is_an_error_for_callers_too():
    """The library's error names what there is."""
    with pytest.raises(ConfigError, match="choose from standard"):
        of_module("x")
