"""`rocattn memory`: theory against allocators, the fit of growth, what fits in a budget, the command, its report."""

import json
import math
from types import SimpleNamespace

import msgspec
import pytest

from rocattn import BACKENDS, AttentionConfig
from rocattn_profiling.cli import main
from rocattn_profiling.measure.worker import Crash, Reply
from rocattn_profiling.memory import measure as memory_measure
from rocattn_profiling.memory import model as memory_model
from rocattn_profiling.memory import page as memory_report
from rocattn_profiling.memory.command import byte_count
from rocattn_profiling.memory.measure import MemoryResult, measure_call

CONFIG = AttentionConfig(batch=2, num_heads=4, num_kv_heads=2, seq_q=200, seq_k=200, head_dim=24, return_lse=True)
LENGTHS = [100, 141, 200, 283, 400, 566]


@pytest.mark.parametrize("name", ["cpu", "cpu-flash"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "dtype": "bfloat16", "layout": "BSE"},
        {"direction": "backward", "return_lse": False},
        {"mask": "bool", "mask_shape": (2, 1, 200, 200), "alibi": True, "sinks": True},
        {"head_dim_v": 40, "seq_q": 33, "dtype": "float16"},
    ],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
def test_theory_is_what_the_allocators_count(name, options):
    """Inputs, outputs and workspace of a public call, within 5 % and the 30 kB of small objects."""
    config, backend = CONFIG.replace(**options), BACKENDS.get(name)
    if not (answer := BACKENDS.supports(backend, config)):
        pytest.skip(answer.reason)
    found = measure_call(config, name)
    assert memory_model.theory(config, backend).total == pytest.approx(found.allocated_bytes, rel=0.05, abs=30_000)
    assert found.rss_bytes >= 0


def test_theory_counts_each_tensor_by_its_own_length():
    """One query of 8 heads and a thousand keys: q, out, dout and dq are of the query, the LSE is of it, too."""
    config = AttentionConfig(batch=1, num_heads=8, seq_q=1, seq_k=1000, head_dim=16, return_lse=True)
    q, kv, lse = 8 * 16 * 4, 2 * 8 * 1000 * 16 * 4, 8 * 4
    found = memory_model.theory(config, BACKENDS.get("cpu"))
    assert (found.inputs, found.outputs) == (q + kv, q + lse)
    found = memory_model.theory(config.replace(direction="backward", return_lse=False), BACKENDS.get("cpu"))
    assert (found.inputs, found.outputs) == (q + kv + 2 * q + lse, q + kv)


def test_theory_counts_options_and_what_the_backend_says():
    """Slopes and sinks are a number a query head, of 8 bytes beside float64 and else of 4; an LSE only if asked for."""
    said = SimpleNamespace(workspace_bytes=lambda _: 70, score_bytes=lambda _: 30)
    config = AttentionConfig(batch=2, num_heads=8, num_kv_heads=2, seq_q=3, seq_k=50, head_dim=16, alibi=True)
    for changes, q, kv, options in (
        ({"dtype": "bfloat16"}, 2 * 8 * 3 * 16 * 2, 2 * 2 * 2 * 50 * 16 * 2, 4 * 8),
        ({"sinks": True}, 2 * 8 * 3 * 16 * 4, 2 * 2 * 2 * 50 * 16 * 4, 2 * 4 * 8),
        ({"sinks": True, "dtype": "float64", "mask": "bool", "mask_shape": (2, 1, 1, 50)}, 2 * 8 * 3 * 16 * 8,
         2 * 2 * 2 * 50 * 16 * 8, 2 * 8 * 8 + 2 * 50),
    ):  # fmt: skip
        found = memory_model.theory(config.replace(**changes), said)
        assert (found.inputs, found.outputs) == (q + kv + options, q)
        assert (found.workspace, found.scores, found.total) == (70, 30, q + kv + options + q + 70)
        lse = memory_model.theory(config.replace(**changes, return_lse=True), said)
        assert lse.outputs == q + 4 * 2 * 8 * 3


def test_another_length_keeps_what_a_mask_broadcasts():
    """Only the axes that the mask has follow the sequence."""
    shapes = {(2, 1, 200, 200): (2, 1, 90, 90), (1, 4, 1, 200): (1, 4, 1, 90), (1, 1, 200, 1): (1, 1, 90, 1)}
    for shape, wanted in shapes.items():
        config = CONFIG.replace(mask="bool", mask_shape=shape)
        assert memory_model.at_length(config, 90).mask_shape == wanted
    kept = memory_model.at_length(CONFIG.replace(mask="bool", mask_shape=(1, 1, 200, 200)), 90, keep_queries=True)
    assert (kept.seq_q, kept.seq_k, kept.mask_shape) == (200, 90, (1, 1, 200, 90))


@pytest.mark.parametrize(
    ("options", "scores"),
    [({}, 1), ({"direction": "backward"}, 2), ({"direction": "backward", "softcap": 3.0}, 3)],
    ids=["forward", "backward", "softcap"],
)
def test_standard_attention_reports_its_score_bytes(options, scores):
    """One chunk's scores in float32: once, twice, three times; flash attention holds none."""
    config = CONFIG.replace(dtype="bfloat16", return_lse=False, **options)
    assert BACKENDS.get("cpu").score_bytes(config) == scores * 4 * 2 * 4 * 200 * 200
    assert BACKENDS.get("cpu-flash").score_bytes(config) == 0


@pytest.mark.parametrize(
    ("power", "factor", "fixed"), [(1.0, 4608.0, 6e5), (2.0, 32.0, 0.0), (1.52, 7.0, 12345.0), (1.98, 7.0, 0.0)]
)
def test_the_fit_recovers_a_power_and_what_is_fixed(power, factor, fixed):
    """Exact sizes give the exponent to four digits, and an interval around it that is next to nothing wide."""
    growth = memory_model.fit_growth(LENGTHS, [fixed + factor * n**power for n in LENGTHS])
    assert growth.exponent == pytest.approx(power, abs=1e-4)
    assert growth.low <= growth.exponent <= growth.high
    assert growth.high - growth.low < 1e-3
    assert growth.fixed_bytes == pytest.approx(fixed, rel=1e-3, abs=10)
    assert growth.factor == pytest.approx(factor, rel=1e-3)
    assert growth.lengths == len(LENGTHS)


def test_the_interval_of_an_exponent_has_its_coverage():
    """Sizes with 2 % of noise: the true exponent is inside in about 95 of 100 fits, and the interval is not wide."""
    import numpy as np

    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        sizes = [(1e6 + 50 * n**2) * (1 + 0.02 * rng.standard_normal()) for n in [*LENGTHS, 800]]
        found.append(memory_model.fit_growth([*LENGTHS, 800], sizes))
    covered = sum(growth.low <= 2 <= growth.high for growth in found)
    assert 184 <= covered <= 197
    assert sorted(growth.high - growth.low for growth in found)[100] < 0.25


def test_the_interval_ends_where_the_f_distribution_says():
    """Of a profile of the sum of squares with three parameters: both ends, against scipy."""
    import numpy as np
    from scipy import stats

    noise = [1.01, 0.98, 1.02, 0.99, 1.0, 1.015, 0.985]
    lengths = np.array([*LENGTHS, 800.0])
    sizes = (1e6 + 50 * lengths**2) * noise
    growth = memory_model.fit_growth(lengths.astype(int).tolist(), sizes.tolist())

    def squares(power):
        basis = np.stack([np.ones_like(sizes), (lengths / 800) ** power], axis=1) / sizes[:, None]
        return np.linalg.lstsq(basis, np.ones_like(sizes), rcond=None)[1].item()

    limit = squares(growth.exponent) * (1 + stats.f.ppf(0.95, 1, 4) / 4)
    assert [squares(end) for end in (growth.low, growth.high)] == pytest.approx([limit, limit], rel=1e-6)
    assert growth.misfit_pct == pytest.approx(100 * math.sqrt(squares(growth.exponent) / 7))


def test_what_is_fixed_is_never_less_than_nothing():
    """Sizes that begin late: the best power through the origin, not one with memory given back."""
    growth = memory_model.fit_growth(LENGTHS, [1000 * n - 90_000 for n in LENGTHS])
    assert growth.fixed_bytes == 0
    assert growth.exponent > 1
    assert growth.factor > 0


def test_a_linear_part_shows_in_the_exponent_and_its_interval():
    """Quadratic scores beside linear tensors are less than 2 at short lengths, and nearer to 2 at long ones."""
    short, long = ([n * scale for n in LENGTHS] for scale in (1, 16))
    fits = [memory_model.fit_growth(x, [32 * n**2 + 7000 * n for n in x]) for x in (short, long)]
    assert fits[0].exponent < fits[1].exponent < 2
    assert fits[1].exponent > 1.9
    assert fits[0].high - fits[0].low > fits[1].high - fits[1].low > 1e-3


def test_few_lengths_have_no_fit():
    """Three parameters through four points say nothing; a length measured twice counts once."""
    assert memory_model.fit_growth([1, 2, 3, 4], [1, 2, 3, 4]) is None
    assert memory_model.fit_growth([1, 2, 3, 4, 4], [1, 2, 3, 4, 4]) is None
    assert memory_model.extrapolate([1, 2, 3, 4], [1, 2, 3, 4], 9) is None


def test_extrapolation_keeps_what_is_straight_straight():
    """Bytes off a line do not grow into a parabola a thousand lengths away; a real parabola is followed."""
    line = [600_000 + 4608 * n + (n % 7) * 64 for n in LENGTHS]
    assert memory_model.extrapolate(LENGTHS, line, 1_000_000) == pytest.approx(4608e6, rel=0.01)
    parabola = [1000 + 7000 * n + 32 * n**2 for n in LENGTHS]
    assert memory_model.extrapolate(LENGTHS, parabola, 20_000) == pytest.approx(7000 * 2e4 + 32 * 4e8, rel=1e-3)


def test_what_bends_down_is_not_continued():
    """Steps of a workspace over short lengths: their parabola is below nothing a thousand lengths away."""
    stepped = [1440 << 10, 1900 << 10, 2840 << 10, 3770 << 10, 5090 << 10]
    assert memory_model.extrapolate((256, 362, 512, 724, 1024), stepped, 1_864_003) is None
    for off, known in ((0.02, True), (0.2, False)):  # nor what a parabola misses by more than 5 %
        zigzag = [n**2 * (1 - (-1) ** i * off) for i, n in enumerate(LENGTHS)]
        assert (memory_model.extrapolate(LENGTHS, zigzag, 9000) is not None) == known


def test_an_empty_batch_takes_no_memory():
    """As the allocators count it: there is no chunk of scores."""
    config = AttentionConfig(batch=0, num_heads=8, num_kv_heads=1, seq_q=64, seq_k=64, head_dim=64, causal=True)
    for direction in ("forward", "backward"):
        empty = config.replace(direction=direction)
        assert (BACKENDS.get("cpu").workspace_bytes(empty), BACKENDS.get("cpu").score_bytes(empty)) == (0, 0)


def test_sizes_on_no_curve_are_not_continued(run_memory, counted):
    """Where cpu works through heads in chunks, memory stands still for a while: no power and no parabola is claimed."""
    words = ["--num-heads", "8", "--lengths", "300", "600", "1200", "1700", "2400", "--backend", "cpu", "--json"]
    status, out, err = run_memory(*words)
    (fit,) = json.loads(out)["fits"]
    assert status == 0
    assert fit["longest_measured_bytes"] is None
    assert fit["growth"]["high"] - fit["growth"]["low"] > 1
    assert "no power of length" in err
    assert "no such curve" in err


@pytest.mark.parametrize("budget", [142, 604, 716, 700, 999, 10**6, 123_456_789, 8 << 30])
def test_the_longest_sequence_fits_and_one_token_more_does_not(budget):
    """By the theory itself, at any budget, also one that 1, 7 or 8 tokens fill to the byte."""

    def total(length):
        return 100 + 37 * length + 5 * length**2

    found = memory_model.largest_sequence(total, budget)
    assert total(found) <= budget < total(found + 1)
    assert {142: 1, 604: 7, 716: 8}.get(budget, found) == found


def test_budgets_at_the_ends_of_the_scale():
    """One that is too small for a token gives 0; one that no sequence fills stops where positions do."""
    assert memory_model.largest_sequence(lambda n: 1000 * n, 999) == 0
    assert memory_model.largest_sequence(lambda _: 1, 10) == 2**30 - 1


def test_lengths_change_the_mask_and_may_leave_queries_alone():
    """Broadcast axes stay; decode keeps its query tokens."""
    masked = CONFIG.replace(mask="bool", mask_shape=(2, 1, 200, 200))
    assert memory_model.at_length(masked, 77).mask_shape == (2, 1, 77, 77)
    kept = memory_model.at_length(masked.replace(mask_shape=(1, 1, 1, 200)), 77, keep_queries=True)
    assert (kept.seq_q, kept.seq_k, kept.mask_shape) == (200, 77, (1, 1, 1, 77))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5 GiB", 3 << 29),
        ("64k", 64_000),
        ("4096", 4096),
        ("1TIB", 1 << 40),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    """Powers of 1000 and of 1024, with and without B."""
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "8 apples", "-1GiB", "0", "0.9", "9" * 400, "GiB", "8iB", "1e3"])
def test_a_size_that_is_none_is_refused_in_one_line(run_memory, text):
    """Exit status 4, and how to write one."""
    status, _, err = run_memory("--budget", text or " ")
    assert status == 4
    assert "is not a size: write it as 8GiB or 500MB" in err or "expected one argument" in err


@pytest.fixture
def run_memory(tmp_path, capsys):
    """Return a function that runs the command and gives (status, stdout, stderr)."""

    def run(*words):
        try:
            status = main(["memory", *words, "--out", str(tmp_path / "out")])
        except SystemExit as error:
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def counted(monkeypatch):
    """No processes: what the theory says is counted, times a factor that a test may change."""
    factors = {"cpu": 1.0, "cpu-flash": 1.0}

    def answer(_module, job, _env, _timeout):
        asked = json.loads(job)
        config = AttentionConfig.from_dict(asked["config"])
        total = memory_model.theory(config, BACKENDS.get(asked["backend"])).total
        factor = factors[asked["backend"]]
        if isinstance(factor, Crash):
            return factor
        result = MemoryResult(allocated_bytes=int(factor * total), rss_bytes=5)
        return Reply(msgspec.json.encode(result), "")

    monkeypatch.setattr(memory_measure, "run_worker", answer)
    return factors


def test_the_command_measures_in_fresh_processes(run_memory, tmp_path):
    """Real processes, real counts: JSON alone on stdout, three files, theory within 5 % of every count."""
    words = ["--lengths", "130", "67", "--head-dim", "24", "--threads", "1", "--json", "--backend", "cpu"]
    status, out, err = run_memory(*words)
    value = json.loads(out)
    assert status == 0
    assert [point["length"] for point in value["points"]] == [67, 130]
    for point in value["points"]:
        assert abs(point["difference_pct"]) < 5
        assert 0 < point["scores_pct"] < 100
        assert point["matrix_bytes"] == 4 * 8 * point["length"] ** 2
    assert value["fits"][0]["growth"] is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"memory.json", "memory.md", "memory.html"}
    assert json.loads((tmp_path / "out" / "memory.json").read_text()) == value
    assert "too few lengths" in err


def test_the_default_shape_shows_two_and_one(run_memory, counted):
    """Exponents of 2 and 1, flash far below standard at 4096, and the budget met by theory and by what was measured."""
    status, out, err = run_memory("--budget", "8GiB", "--threads", "2", "--json")
    value = json.loads(out)
    assert status == 0
    fits = {fit["backend"]: fit for fit in value["fits"]}
    assert abs(fits["cpu"]["growth"]["exponent"] - 2) < 0.1
    assert abs(fits["cpu-flash"]["growth"]["exponent"] - 1) < 0.1
    (saved,) = [r for r in value["reductions"] if r["length"] == 4096]
    assert (saved["backend"], saved["standard"]) == ("cpu-flash", "cpu")
    assert saved["total_pct"] > 90
    for fit in fits.values():
        assert fit["longest_theory_bytes"] <= 8 << 30
        assert fit["longest_measured_bytes"] == pytest.approx(8 << 30, rel=0.02)
    assert f"{saved['total_pct']:.1f} % at 4096" in err


def test_a_wrong_theory_is_exit_status_1_and_named(run_memory, counted):
    """A backend that allocates a tenth more than it says is found; the other one is not blamed."""
    counted["cpu"] = 1.1
    status, _, err = run_memory("--quick")
    wrong = [line for line in err.splitlines() if line.startswith("WRONG")]
    assert status == 1
    assert len(wrong) == 5
    assert all("theory of cpu b1" in line for line in wrong)


def test_a_backend_that_dies_is_named_and_exit_status_3(run_memory, counted, tmp_path):
    """The rest is measured, and the report says what was not."""
    counted["cpu"] = Crash("cpu", "it was killed by SIGKILL <b>")
    status, _, err = run_memory("--quick")
    assert status == 3
    assert "failed cpu b1-h8x1-q256-k256-d64-float32: it was killed by SIGKILL" in err
    assert "cpu-flash" in err
    page = (tmp_path / "out" / "memory.html").read_text()
    assert "float32: failed: it was killed by SIGKILL &lt;b&gt;" in page
    assert "failed: cpu b1-h8x1" in (tmp_path / "out" / "memory.md").read_text()


@pytest.mark.parametrize("text", ["", "Failed: x", "not supported: x"])
def test_the_exit_status_is_not_read_off_the_text(run_memory, counted, text):
    """A crash is one whatever it says of itself, nothing included."""
    counted["cpu"] = Crash("cpu", text)
    assert run_memory("--quick")[0] == 3


def test_what_does_not_fit_is_not_tried(run_memory, counted, monkeypatch):
    """The size that the theory needs is in the line."""
    monkeypatch.setattr(memory_measure, "available_memory_bytes", lambda: 1_000_000_000)
    status, _, err = run_memory("--lengths", "64", "16384", "--backend", "cpu")
    assert status == 0
    assert "skipped cpu b1-h8x1-q16384-k16384-d64-float32: needs 8.7 GB by theory, 1.0 GB available" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seq-k", "9"], "name the numbers with --lengths"),
        (["--backend", "nope"], "no backend is named 'nope'"),
        (["--lengths", "0"], "is not a whole number, 1 or more"),
    ],
)
def test_a_usage_error_is_one_line(run_memory, words, message):
    """Exit status 4, and what to do."""
    status, out, err = run_memory(*words)
    assert (status, out) == (4, "")
    assert message in err.splitlines()[-1]


def test_its_folder_in_a_repository_ignores_itself(run_memory, counted, tmp_path):
    """Though whether it takes files is tried before anything is written there."""
    (tmp_path / ".git").mkdir()
    run_memory("--quick")
    assert (tmp_path / "out/.gitignore").read_text() == "*\n"


def test_an_unwritable_folder_ends_it_before_measuring(run_memory, monkeypatch, tmp_path):
    """What would be lost at its end is not begun."""
    monkeypatch.setattr(memory_measure, "run_worker", lambda *_: pytest.fail("it measured"))
    (tmp_path / "out").write_text("a file")
    status, out, err = run_memory("--quick")
    assert (status, out) == (4, "")
    assert err == f"rocattn memory: cannot write to {tmp_path / 'out'}: File exists\n"


def test_an_unsupported_problem_is_said_and_not_measured(run_memory, counted):
    """float64 has no flash attention: cpu alone is measured, with the reason of the other."""
    status, _, err = run_memory("--quick", "--dtype", "float64")
    assert status == 0
    assert "not measured: cpu-flash: float64" in err


def test_the_page_is_one_file_without_scripts(run_memory, counted, tmp_path):
    """Charts are inline; nothing is loaded; each line of the chart goes through every length."""
    run_memory("--quick", "--seq-q", "1", "--num-heads", "4")
    page, text = ((tmp_path / "out" / f"memory.{kind}").read_text() for kind in ("html", "md"))
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<svg") == 2
    assert page.count('class="dot"') == 2 * 2 * 5
    assert "1 query token," in page
    assert "| cpu-flash | 1024 |" in text


def test_a_study_of_nothing_is_still_a_page():
    """Absent backends are listed where there is nothing to draw."""
    study = memory_measure.MemoryStudy(
        config=CONFIG.to_dict(), keep_queries=False, threads=1, budget_bytes=1, points=[], fits=[], reductions=[],
        absent={"gpu": "there is no <device>"},
    )  # fmt: skip
    report = memory_report.build(study, 0)
    assert "there is no &lt;device&gt;" in memory_report.html(report)
    assert "not measured: gpu" in memory_report.markdown(report)
    assert math.isclose(memory_report.to_json(report)["budget_bytes"], 1)


def test_an_interrupted_study_goes_on(tmp_path, capsys, monkeypatch):
    """The line counts the lengths on disk; the same command measures the rest, and leaves the journal of none."""
    measured, measure_point = [], memory_measure._measure_point

    def interrupted(subject, length, *rest):
        if len(measured) == 2:
            raise KeyboardInterrupt
        return once(subject, length, *rest)

    def once(subject, length, *rest):
        measured.append(length)
        return measure_point(subject, length, *rest)

    monkeypatch.setattr(memory_measure, "_measure_point", interrupted)
    words = ["memory", "--backend", "cpu", "--lengths", "64", "96", "128", "--out", str(tmp_path)]
    assert main(words) == 130
    journal = tmp_path / "points.jsonl"
    line = f"rocattn memory: interrupted; kept 2 of 3 in {journal}; the same command continues\n"
    assert capsys.readouterr().err.endswith(line)
    assert not (tmp_path / "memory.json").exists()
    monkeypatch.setattr(memory_measure, "_measure_point", once)
    assert main(words) == 0
    assert measured == [64, 96, 128]
    assert len(json.loads((tmp_path / "memory.json").read_text())["points"]) == 3
    assert not journal.exists()
