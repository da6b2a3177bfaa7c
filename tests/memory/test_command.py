"""`rocattn memory`: theory against allocators, the fit of growth, what fits in a budget, the command, its report."""

import json
import math
import re
from argparse import ArgumentTypeError
from types import SimpleNamespace

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn import BACKENDS, AttentionConfig
from rocattn_profiling.cli import main
from rocattn_profiling.measure.worker import Crash, Reply
from rocattn_profiling.memory import measure as memory_measure
from rocattn_profiling.memory import model as memory_model
from rocattn_profiling.memory import page as memory_report
from rocattn_profiling.memory.command import byte_count
from rocattn_profiling.memory.measure import MemoryResult, measure_call

from ..screens import screen

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


@pytest.mark.parametrize(
    ("shape", "keep_queries", "wanted"),
    [
        ((2, 1, 200, 200), False, (2, 1, 90, 90)),
        ((1, 4, 1, 200), False, (1, 4, 1, 90)),
        ((1, 1, 200, 1), False, (1, 1, 90, 1)),
        ((1, 1, 200, 200), True, (1, 1, 200, 90)),
        ((1, 1, 1, 200), True, (1, 1, 1, 90)),
    ],
)
def test_another_length_keeps_what_a_mask_broadcasts(shape, keep_queries, wanted):
    """Only the axes that the mask has follow the sequence; decode keeps its query tokens."""
    found = memory_model.at_length(CONFIG.replace(mask="bool", mask_shape=shape), 90, keep_queries=keep_queries)
    assert (found.seq_q, found.seq_k, found.mask_shape) == (200 if keep_queries else 90, 90, wanted)


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
    assert memory_model.fit_growth([1, 2, 3, 4, 4], [1, 2, 3, 4, 4]) is None
    assert memory_model.extrapolate([1, 2, 3, 4], [1, 2, 3, 4], 9) is None


@pytest.mark.parametrize(
    ("sizes", "at", "wanted"),
    [
        ([600_000 + 4608 * n + (n % 7) * 64 for n in LENGTHS], 1_000_000, pytest.approx(4608e6, rel=0.01)),
        ([1000 + 7000 * n + 32 * n**2 for n in LENGTHS], 20_000, pytest.approx(7000 * 2e4 + 32 * 4e8, rel=1e-3)),
        ([n**2 * (1 - (-1) ** i * 0.02) for i, n in enumerate(LENGTHS)], 9000, pytest.approx(9000**2, rel=0.05)),
        ([n**2 * (1 - (-1) ** i * 0.2) for i, n in enumerate(LENGTHS)], 9000, None),
        ([size << 10 for size in (1440, 1900, 2840, 3770, 5090)], 1_864_003, None),
    ],
    ids=["bytes off a line", "parabola", "2 % off a parabola", "20 % off a parabola", "steps of a workspace"],
)
def test_what_follows_no_curve_is_not_continued(sizes, at, wanted):
    """A line does not grow into a parabola a thousand lengths away, nor one that bends down below nothing."""
    lengths = LENGTHS if len(sizes) == len(LENGTHS) else (256, 362, 512, 724, 1024)
    assert memory_model.extrapolate(lengths, sizes, at) == wanted


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
    assert "no power law" in err
    assert "no fit" in err


@pytest.mark.parametrize("budget", [142, 604, 716, 700, 999, 10**6, 123_456_789, 8 << 30])
def test_the_longest_sequence_fits_and_one_token_more_does_not(budget):
    """By the theory itself, at any budget, also one that 1, 7 or 8 tokens fill to the byte, or that is too small."""

    def total(length):
        return 100 + 37 * length + 5 * length**2

    found = memory_model.largest_sequence(total, budget)
    assert total(found) <= budget < total(found + 1)
    assert {142: 1, 604: 7, 716: 8}.get(budget, found) == found
    assert memory_model.largest_sequence(lambda n: (budget + 1) * n, budget) == 0
    assert memory_model.largest_sequence(lambda _: 1, budget) == 2**30 - 1  # where positions end


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 << 30), ("500MB", 500_000_000), ("1.5 GiB", 3 << 29), ("64k", 64_000), ("4096", 4096),
        ("1TIB", 1 << 40),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text, count):
    """Powers of 1000 and of 1024, with and without B."""
    assert byte_count(text) == count


@pytest.mark.parametrize("text", [" ", "8 apples", "0", "0.9", "9" * 400, "GiB", "8iB", "1e3"])
def test_a_size_that_is_none_is_refused(text):
    """With how to write one."""
    with pytest.raises(ArgumentTypeError, match=f"^'{text}' is not a size: write it as 8GiB or 500MB$"):
        byte_count(text)


@pytest.fixture
def run_memory(tmp_path, capsys):
    """Return a function that runs the command and gives (status, stdout, stderr), as `screen` gives it."""

    def run(*words):
        try:
            status = main(["memory", *words, "--out", str(tmp_path / "out")])
        except SystemExit as error:
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, screen(captured.err, OUT=tmp_path / "out")

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


@pytest.mark.parametrize(
    ("words", "factor", "expected"),
    [
        (
            ["cpu", "--quick", "--lengths", "64", "96", "128", "160", "256", "16384"],
            1.0,
            snapshot("""\
memory: batch 1, 8 heads with 1 KV head, D 64, float32, forward, 2 threads
 backend   tokens       peak     theory   difference   workspace   scores, % of peak      RSS
 ────────────────────────────────────────────────────────────────────────────────────────────
 cpu       64        684 KiB    684 KiB      +0.00 %     396 KiB              18.7 %   5.00 B
 cpu       96       1.10 MiB   1.10 MiB      +0.00 %     690 KiB              25.7 %   5.00 B
 cpu       128      1.59 MiB   1.59 MiB      +0.00 %    1.02 MiB              31.5 %   5.00 B
 cpu       160      2.14 MiB   2.14 MiB      +0.00 %    1.44 MiB              36.5 %   5.00 B
 cpu       256      4.17 MiB   4.17 MiB      +0.00 %    3.05 MiB              47.9 %   5.00 B
growth, and a budget of 1.00 GiB
 backend     exponent (95 %)     fixed   less than standard   tokens in budget        extrapolated
 ─────────────────────────────────────────────────────────────────────────────────────────────────
 cpu       1.49 [1.41, 1.57]   165 KiB                                   5,655   1.00 GiB (+0.0 %)
skipped cpu b1-h8x1-q16384-k16384-d64-float32: needs 8.7 GB by theory, 1.0 GB available; its process may take 17.7 GB
The report is at OUT/memory.html
memory: 5 of 6 lengths measured; not measured: 1 length on cpu (needs 8.7 GB by theory, 1.0 GB available; its process may …)
status 0\
"""),  # noqa: E501
        ),
        # A backend that allocates a tenth more than it says is found.
        (
            ["cpu", "--lengths", "256"],
            1.1,
            snapshot("""\
memory: batch 1, 8 heads with 1 KV head, D 64, float32, forward, 2 threads
 backend   tokens       peak     theory   difference   workspace   scores, % of peak      RSS
 ────────────────────────────────────────────────────────────────────────────────────────────
 cpu       256      4.59 MiB   4.17 MiB      -9.09 %    3.46 MiB              43.6 %   5.00 B
growth, and a budget of 1.00 GiB
 backend   exponent (95 %)   fixed   less than standard   tokens in budget   extrapolated
 ────────────────────────────────────────────────────────────────────────────────────────
 cpu       too few lengths                                           5,655
WRONG theory of cpu b1-h8x1-q256-k256-d64-float32: 4.17 MiB by theory, 4.59 MiB counted
The report is at OUT/memory.html
memory: 1 of 1 lengths measured
status 1\
"""),
        ),
        (
            ["cpu", "--lengths", "64"],
            Crash("cpu", "it was killed by SIGKILL <b>"),
            snapshot("""\
failed cpu b1-h8x1-q64-k64-d64-float32: it was killed by SIGKILL <b>
cpu was requested with --backend and was not measured: status 3
nothing was measured, so no report was written
memory: 0 of 1 lengths measured; not measured: 1 length on cpu (it was killed by SIGKILL <b>)
status 3\
"""),
        ),
        (
            ["cpu-flash", "--lengths", "64", "--dtype", "float64"],
            1.0,
            snapshot("""\
not measured: cpu-flash: float64 is not computed in tiles: its sums are float32; use cpu
cpu-flash was requested with --backend and was not measured: status 3
nothing was measured, so no report was written
memory: 0 of 0 lengths measured; not measured: cpu-flash (float64 is not computed in tiles: its sums are float32; …)
status 3\
"""),
        ),
    ],
    ids=["all but what is too large for the machine", "wrong theory", "crash", "unsupported"],
)
def test_the_screen_of_each_end(run_memory, counted, monkeypatch, words, factor, expected):
    """What is known is in two tables; what is not has its line with the reason, and the status."""
    counted["cpu"] = factor
    monkeypatch.setattr(memory_measure, "available_memory_bytes", lambda: 1_000_000_000)
    status, _, err = run_memory("--budget", "1GiB", "--threads", "2", "--backend", *words)
    assert f"{err}\nstatus {status}" == expected


def test_a_crash_is_text_on_the_page(run_memory, counted, tmp_path):
    """The rest is measured, and page and Markdown say what was not."""
    counted["cpu"] = Crash("cpu", "it was killed by SIGKILL <b>")
    assert run_memory("--quick")[0] == 3
    page, text = ((tmp_path / "out" / f"memory.{kind}").read_text() for kind in ("html", "md"))
    labels = [f"cpu b1-h8x1-q{n}-k{n}-d64-float32" for n in (256, 362, 512, 724, 1024)]
    why = "it was killed by SIGKILL"
    told = re.findall(r"<li>(cpu.*?)</li>", page.replace("<wbr>", ""))
    assert told == [f"{label}: failed: {why} &lt;b&gt;" for label in labels]
    assert re.findall(r"^- (.*)$", text, re.MULTILINE) == [f"failed: {label}: {why} &#60;b>" for label in labels]
    assert len(re.findall(r"^\| cpu-flash ", text, re.MULTILINE)) == 5 + 1


@pytest.mark.parametrize("text", ["", "Failed: x", "not supported: x"])
def test_the_exit_status_is_not_read_off_the_text(run_memory, counted, text):
    """A crash is one whatever it says of itself, nothing included."""
    counted["cpu"] = Crash("cpu", text)
    assert run_memory("--quick")[0] == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--seq-k", "9"],
            snapshot("rocattn memory: the number of keys varies: list the numbers with --lengths, not --seq-k"),
        ),
        (
            ["--backend", "nope"],
            snapshot("rocattn memory: no backend is named 'nope'; registered: cpu-flash, cpu, gpu"),
        ),
        (
            ["--lengths", "0"],
            snapshot(
                "rocattn memory: argument --lengths: '0' is not a whole number, 1 or more (see rocattn memory --help)"
            ),
        ),
        (
            ["--budget", "8 apples"],
            snapshot(
                "rocattn memory: argument --budget: '8 apples' is not a size: write it as 8GiB or 500MB "
                "(see rocattn memory --help)"
            ),
        ),
        (
            ["--budget", "-1GiB"],
            snapshot("rocattn memory: argument --budget: expected one argument (see rocattn memory --help)"),
        ),
    ],
)
def test_a_usage_error_is_one_line(run_memory, words, line):
    """Exit status 4, and what to do."""
    status, out, err = run_memory(*words)
    assert (status, out) == (4, "")
    assert err.splitlines()[-1] == line


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
    assert err == "rocattn memory: cannot write to OUT: File exists"


def test_the_page_is_one_file_without_scripts(run_memory, counted, tmp_path):
    """Charts are inline; nothing is loaded; each line of the chart goes through every length."""
    run_memory("--quick", "--seq-q", "1", "--num-heads", "4")
    page, text = ((tmp_path / "out" / f"memory.{kind}").read_text() for kind in ("html", "md"))
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<svg") == 2
    assert page.count('class="dot"') == 2 * 2 * 5
    assert "1 query token," in page
    assert len(re.findall(r"^\| cpu-flash ", text, re.MULTILINE)) == 5 + 1


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
