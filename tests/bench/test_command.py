"""``rocattn bench`` as a user runs it: exit statuses, JSON alone on stdout, one clear line when something is wrong."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv import store as asv_store
from rocattn_profiling.bench import command as bench
from rocattn_profiling.bench import limits
from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench import view as bench_view
from rocattn_profiling.cli import main
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.records import Commit, Launch, read_records

from .made_records import CEILINGS, CONFIG, make_record

HERE = Path(__file__).parent
SHAPE = ["--seq-q", "9", "--seq-k", "13", "--head-dim", "12", "--num-heads", "2", "--causal"]
# The command line in a process of its own; to measure the ceilings takes longer than what is tested.
WITHOUT_CEILINGS = f"""
import sys
from rocattn_profiling.bench import limits
from rocattn_profiling.cli import main
limits.measure_ceilings = lambda *_, **__: {CEILINGS}
sys.exit(main(sys.argv[1:]))
"""
SHORT = ["--launches", "1", "--samples", "3", "--threads", "1", "--no-store"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: dict(CEILINGS))


@pytest.fixture
def run_bench(tmp_path, capsys):
    """Return a function that runs the command and gives (status, stdout, stderr)."""

    def run(*words, out=tmp_path / "out"):
        try:
            status = main(["bench", *words, "--out", str(out)])
        except SystemExit as error:
            status = error.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def lines_with(words, text):
    """The lines of a text that have some words."""
    return [line for line in text.splitlines() if words in line]


def test_json_is_alone_on_stdout_and_whole(run_bench, tmp_path):
    """Every record has samples, percentiles, tokens/s and its error; the two backends have a speed-up."""
    status, out, err = run_bench(*SHAPE, *SHORT[:-1], "--launches", "2", "--no-store", "--json")
    value = json.loads(out)
    assert status == 0
    assert set(value) == {"machine", "commit", "settings", "ceilings", "path", "records", "speedups", "skipped",
                          "unmeasured", "not_compared", "winning_lengths"}  # fmt: skip
    assert [record["backend"] for record in value["records"]] == ["cpu", "cpu-flash"]
    for record in value["records"]:
        assert record["suite"] == "custom"
        assert record["config"]["causal"]
        assert record["check"]["ok"]
        assert record["check"]["max_abs_error"] > 0
        assert all(len(launch["samples_ns"]) == 3 for launch in record["launches"])
        summary = record["summary"]
        assert summary["min_ns"] <= summary["p50_ns"] <= summary["p95_ns"] <= summary["p99_ns"] <= summary["max_ns"]
        assert summary["tokens_per_s"] == pytest.approx(9e9 / summary["p50_ns"])
    (speedup,) = value["speedups"]
    assert (speedup["slow"], speedup["fast"], speedup["unit"]) == ("cpu", "cpu-flash", "launch")
    assert (speedup["ratio"] is None) == (speedup["undecided"] is not None)  # of two short launches it may be
    assert speedup["low"] <= speedup["high"]
    assert value["ceilings"] == CEILINGS
    assert value["path"] == str(tmp_path / "out" / "records.jsonl")
    assert "b1-h2-q9-k13-d12-causal" in err


@pytest.mark.parametrize(
    ("backend", "status", "line"),
    [
        ("odd-scaled", 1, r"WRONG.* custom/odd-scaled/b1-h2-q9-k13-d12-causal-float32: error of out is .*"),
        ("odd-writer", 1, r"WRONG.* custom/odd-writer/b1-h2-q9-k13-d12-causal-float32: the backend wrote into q.*"),
        ("odd-leave", 3, r".* on odd-leave: the process ended with exit status 7: the last words.*"),
    ],
)
def test_a_backend_that_fails_beside_a_right_one_is_named(run_bench, tmp_path, backend, status, line):
    """What is wrong is in one line; what a process printed is kept in a file that the last lines name."""
    found, out, err = run_bench(*SHAPE, *SHORT, "--backend", "cpu", backend, "--backend-module", "odd_backends")
    assert (found, out) == (status, "")
    assert len([each for each in err.splitlines() if re.fullmatch(line, each)]) == 1
    assert (" WROTE q " in err) == (backend == "odd-writer")
    assert (str(tmp_path / "out" / "failures.log") in err) == (backend == "odd-leave")


@pytest.mark.usefixtures("_instant")
@pytest.mark.parametrize("others", [["cpu"], []])
def test_a_named_backend_that_is_not_measured_is_status_3(run_bench, others):
    """Beside others that are, too; each line names the size."""
    words = ["--backend-module", "odd_backends", "--json", "--backend", "odd-large", *others]
    status, out, err = run_bench(*SHAPE, *SHORT, *words)
    value = json.loads(out)
    assert status == 3
    (skipped,) = value["skipped"]
    assert skipped["reason"].startswith("needs 137400.0 GB")
    assert skipped["failed"] is False
    assert value["unmeasured"] == [{"suite": "custom", "backend": "odd-large", "reason": skipped["reason"]}]
    told = f"not measured: odd-large in custom, requested with --backend (status 3): {skipped['reason']}"
    assert lines_with(told, err) == [told]


def test_a_backend_module_adds_its_backends(run_bench, tmp_path, monkeypatch):
    """Without --backend: the grid's, and those that importing the module registered."""
    (tmp_path / "my_backends.py").write_text(
        "from rocattn.backends import BACKENDS, CpuBackend\n"
        "class Mine(CpuBackend):\n    name = 'mine'\n    priority = -9\n"
        "BACKENDS.register(Mine())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, out, err = run_bench(*SHAPE, *SHORT, "--json", "--quick", "--backend-module", "my_backends")
    assert status == 0, err
    assert [r["backend"] for r in json.loads(out)["records"]] == ["cpu", "cpu-flash", "mine"]


def test_the_backend_module_may_come_from_the_environment(run_bench, tmp_path, monkeypatch):
    """ROCATTN_BACKEND_MODULE is the option's default."""
    monkeypatch.setenv("ROCATTN_BACKEND_MODULE", "odd_backends")
    status, _, _ = run_bench(*SHAPE, *SHORT, "--backend", "odd-unable")
    (record,) = read_records(tmp_path / "out" / "records.jsonl")
    assert (status, record.skipped) == (3, "not supported: needs a moon")


def test_options_change_every_config(run_bench, tmp_path):
    """dtype, layout, data and direction reach the records; the dtype's own rule accepts the backends."""
    words = ["--dtype", "bfloat16", "--layout", "BSE", "--data", "trig", "--seed", "3", "--direction", "backward"]
    status, _, _ = run_bench(*SHAPE, *SHORT, *words, "--backend", "cpu")
    (record,) = read_records(tmp_path / "out" / "records.jsonl")
    assert status == 0
    assert (record.config["dtype"], record.config["layout"], record.config["direction"]) == (
        "bfloat16", "BSE", "backward",
    )  # fmt: skip
    assert (record.data, record.seed, record.threads) == ("trig", 3, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "inferense"], "no grid is named 'inferense': choose from inference, square, gemma, decode"),
        (["--grid", "decode", "--direction", "backward"], "grid 'decode' has no backward direction"),
        (["--grid", "square", "--seq-q", "5", "--causal"], "--seq-q, --causal cannot be used with --grid"),
        (["--num-heads", "6", "--num-kv-heads", "4"], "6 query heads cannot share 4 KV heads"),
        (["--backend", "cpo"], "no backend is named 'cpo'; registered: "),
        (["--launches", "0"], "'0' is not a whole number, 1 or more"),
        (["--softcap", "-1"], "softcap is -1.0: it must be greater than 0"),
        (["--backend-module", "no_such_module"], "cannot import the backend module 'no_such_module'"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_status_4(run_bench, tmp_path, words, message):
    """Nothing is measured or written, and no traceback is shown."""
    status, out, err = run_bench(*words)
    assert status == 4
    assert out == ""
    (line,) = err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_a_folder_that_cannot_be_written_is_exit_status_4(run_bench, tmp_path):
    """One line with the path."""
    (tmp_path / "file").write_text("")
    status, _, err = run_bench(*SHAPE, *SHORT, out=tmp_path / "file" / "x")
    assert status == 4
    assert err.startswith(f"rocattn bench: cannot write to {tmp_path}/file/x: ")


def test_the_grids_are_listed(run_bench):
    """For people on stdout, or as JSON."""
    status, out, _ = run_bench("--list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["inference", "60"], ["square", "5"], ["gemma", "40"], ["decode", "8"], ["varlen", "9"],
        ["latent", "4"], ["odd", "13"],
    ]  # fmt: skip
    _, out, _ = run_bench("--list", "--json")
    assert [grid["configs"] for grid in json.loads(out)] == [60, 5, 40, 8, 9, 4, 13]


def test_sigterm_ends_the_command_and_its_worker(tmp_path):
    """Exit status 143, one line, and no worker stays: one that was only starting ends when it finds its parent gone."""
    psutil = pytest.importorskip("psutil")
    command = [sys.executable, "-c", WITHOUT_CEILINGS, "bench", *SHAPE, "--quick", "--no-store"]
    command += ["--backend", "odd-hang", "--backend-module", "odd_backends", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        workers = []
        while not workers and child.poll() is None:
            found = psutil.Process(child.pid).children()
            workers = [process for process in found if is_worker(process)]
            time.sleep(0.01)  # the CPU is for the child, and for tests beside this one
        child.terminate()
        _, err = child.communicate()
    assert child.returncode == 128 + signal.SIGTERM
    assert lines_with("terminated", err) == ["rocattn bench: terminated; nothing was finished yet"]
    assert workers
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def is_worker(process):
    """Whether a process is a sampling worker, and still there to be asked."""
    psutil = pytest.importorskip("psutil")
    try:
        return any("bench.launch" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def added(monkeypatch):
    """The records that reached asv's store, on a machine of one core whose commit is clean."""
    found = []

    class FakeStore:
        results_dir = "results"

        def __init__(self, root):
            self.root = root

        def add_records(self, records):
            found.extend(records)
            return len(found)

    monkeypatch.setattr(harness.machine, "measured_repo", lambda: HERE)
    monkeypatch.setattr(harness.machine, "this_commit", lambda _repo: Commit(sha="a" * 40, date_ms=1))
    monkeypatch.setattr(asv_store, "AsvStore", FakeStore)
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    return found


@pytest.mark.usefixtures("_instant")
@pytest.mark.parametrize(
    ("commit", "line"),
    [
        ("clean", snapshot("added 3 results of commit aaaaaaaaa to the asv store results")),
        ("dirty", snapshot("not added to the asv store: the working tree differs from its commit")),
        ("none", snapshot("not added to the asv store: this rocattn does not run from a git checkout")),
    ],
)
def test_only_a_clean_commit_goes_to_the_asv_store(run_bench, added, monkeypatch, commit, line):
    """A dirty tree, or a copy outside git, has no place in a history by commit: a line says so."""
    found = None if commit == "none" else Commit(sha="a" * 40, date_ms=1, dirty=commit == "dirty")
    monkeypatch.setattr(harness.machine, "this_commit", lambda _repo: found)
    status, _, err = run_bench("--grid", "square", "--quick", *SHORT[:-1], "--backend", "cpu")
    assert (status, len(added)) == (0, 3 * (commit == "clean"))
    assert lines_with("asv store", err) == [line]


UNUSUAL = "not added to the asv store: its history has only normal data, seed 0, all available cores and no --warm"


@pytest.mark.usefixtures("_instant")
@pytest.mark.parametrize(
    ("words", "switches", "count", "line"),
    [
        (
            ["--grid", "square", "--backend", "cpu", "odd-good"],
            0,
            3,
            snapshot(
                "added 3 results of commit aaaaaaaaa to the asv store results, "
                "but not 3 of a backend that is in no commit"
            ),
        ),
        (
            [*SHAPE, "--backend", "cpu"],
            0,
            0,
            snapshot("not added to the asv store: 1 of a shape or model that is not in the suites"),
        ),
        (
            ["--grid", "square", "--backend", "cpu"],
            10**6,
            0,
            snapshot("not added to the asv store: 3 with most launches disturbed by other processes"),
        ),
        ([*SHAPE, "--backend", "cpu", "--seed", "1"], 0, 0, UNUSUAL),
        ([*SHAPE, "--backend", "cpu", "--data", "trig"], 0, 0, UNUSUAL),
        ([*SHAPE, "--backend", "cpu", "--threads", "2"], 0, 0, UNUSUAL),
    ],
)
def test_what_is_not_of_the_commits_stays_out_of_the_store(run_bench, added, monkeypatch, words, switches, count, line):
    """A user's backend, shape, data or threads, and a busy machine's times would show steps that no commit made."""
    made = harness.measure_side_by_side

    def busy(*given, **more):
        sides = made(*given, **more)
        for side in sides.values():
            side.launches[:] = [
                msgspec.structs.replace(one, nivcsw=[switches] * len(one.samples_ns)) for one in side.launches
            ]
        return sides

    monkeypatch.setattr(harness, "measure_side_by_side", busy)
    status, _, err = run_bench("--quick", "--backend-module", "odd_backends", *SHORT[:-1], *words)
    assert (status, len(added)) == (0, count)
    assert lines_with("asv store", err) == [line]


@pytest.mark.parametrize(
    ("command", "option", "values", "why"),
    [
        # With that many threads it did not end; with NaN every config was skipped, and no timer takes inf.
        ("bench", "--threads", ["0", "4097", "2147483648", "two"], "is not a number of threads, 1 to 4096"),
        ("memory", "--threads", ["0", "4097", "2147483648", "two"], "is not a number of threads, 1 to 4096"),
        ("bench", "--time-limit", ["nan", "inf", "-1", "0", "1e9", "long"], "is not a number of seconds above 0"),
    ],
)
def test_a_number_that_no_run_can_be_held_to_is_refused(command, option, values, why, capsys):
    """Before anything is measured."""
    for value in values:
        with pytest.raises(SystemExit) as ended:
            main([command, f"{option}={value}"])
        assert ended.value.code == 4
        assert f"argument {option}: '{value}' {why}" in capsys.readouterr().err


def test_the_time_limit_that_is_named_is_enough():
    """Also where the ceilings, which each run measures anew, are a little lower; rounded down it was not."""
    text = limits.time_problem(60.4, 60.0)
    assert text == "would take about 60 s, the limit is 60 s: raise it with --time-limit 91"
    assert limits.time_problem(0.004, 0.001).startswith("would take about 0.004 s, the limit is 0.001 s")


@pytest.mark.usefixtures("_instant")
def test_a_second_run_says_what_it_kept(run_bench):
    """Nothing is measured twice, and the way to do so is named."""
    _, first, _ = run_bench(*SHAPE, *SHORT, "--json")
    status, second, err = run_bench(*SHAPE, *SHORT, "--json")
    assert status == 0
    assert json.loads(first)["records"] == json.loads(second)["records"]
    assert lines_with("earlier run", err) == ["1 config kept from an earlier run (--fresh measures all again)"]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0.5, "0.50 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 us"),
        (48_120, "48.1 us"),
        (9.996e6, "10.0 ms"),
        (2.5e9, "2.50 s"),
    ],
)
def test_durations_have_three_digits_and_the_right_unit(ns, text):
    """Also where rounding crosses a unit."""
    assert bench_view.duration(ns) == text


@pytest.mark.parametrize(("value", "text"), [(12.34, "12.3"), (999_600, "1.00M"), (45_600, "45.6k"), (3e12, "3000G")])
def test_counts_have_three_digits_and_a_suffix(value, text):
    """For tokens per second."""
    assert bench_view.count(value) == text


def test_the_exit_status_is_the_worst_of_what_happened():
    """Wrong before not measured before fine; a grid of which nothing was measured counts."""
    good, wrong = make_record([[1.0]]), make_record([[1.0]])
    check = wrong.check
    wrong = make_record(
        [[1.0]], check=type(check)(**{f: getattr(check, f) for f in check.__struct_fields__} | {"ok": False})
    )
    crashed = make_record([], status="failed", skipped="it was killed", check=None)
    large = make_record([], status="skipped", skipped="needs 9 GB", check=None)
    refused = make_record([], status="failed", skipped="not supported: x", check=None)
    named_so = make_record([], status="skipped", skipped="failed: x", check=None)

    def status(**suites):
        records = [record for of_suite in suites.values() for record in of_suite]
        coverage = bench_view.coverage(SimpleNamespace(failures=()), list(suites.items()), ())
        return bench._status(coverage, records)

    assert status(a=[good, large]) == 0
    assert status(a=[good], b=[large]) == 3
    assert status(a=[good, crashed]) == 3
    assert status(a=[good, refused]) == 3
    assert status(a=[good, named_so]) == 0
    assert status(a=[wrong, crashed]) == 1
    assert math.isfinite(bench_view.speedups([good, make_record([[2.0]], backend="b")])[0][1].ratio)


def test_a_backend_module_may_be_named_by_its_file(run_bench, tmp_path, monkeypatch):
    """A file elsewhere is found; one that another module hides is refused in a line."""
    words = ["--backend", "odd-good", "--backend-module"]
    monkeypatch.chdir(tmp_path)
    status, _, _ = run_bench(*SHAPE, *SHORT, *words, str(HERE / "odd_backends.py"))
    assert status == 0
    for hiding in ("json.py", "sys.py"):  # a built-in module has no file
        (tmp_path / hiding).write_text("")
        status, _, err = run_bench(*SHAPE, *SHORT, *words, f"./{hiding}")
        assert status == 4
        assert lines_with("hidden by", err)


def test_a_gpus_host_time_stands_below_the_table(capfd):
    """Medians of the launches that have it, beside its kernels' time; nothing of a record without."""
    launches = [
        Launch(start_ns=i, pos=i, number=1, samples_ns=[1e6], host_ns=host, kernels_ns=8000.0)
        for i, host in enumerate((14e3, 12e3, 13e3, 0.0))
    ]
    bench_view.print_tables([("s", [make_record([], backend="gpu", launches=launches)])])
    said = capfd.readouterr().err
    line = f"gpu, {CONFIG.label}, arrays on the GPU: host 13.0 us per call, kernels 8.00 us"
    assert line in " ".join(said.split())
    bench_view.print_tables([("s", [make_record([[1e6]])])])
    assert "host" not in capfd.readouterr().err
