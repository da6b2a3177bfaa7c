"""Benching in fresh processes survives whatever a backend does, and what is on disk is always true."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from filelock import FileLock

from rocattn.backends.gpu import GpuBackend
from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.bench import launch as bench_launch
from rocattn_profiling.bench import limits
from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench.session import BenchSession
from rocattn_profiling.measure import records
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.measure.settings import Settings, import_backends
from rocattn_profiling.measure.stats import speedup, summarize

from .made_records import CEILINGS, run_bench

HERE = Path(__file__).parent
MODULE = "odd_backends"
CONFIG = AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=13, head_dim=12, causal=True)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """The odd backends can be imported here and in the workers; ceilings are not measured each time."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: dict(CEILINGS))
    import_backends(MODULE)


def settings(**changes):
    """Return settings for one short launch."""
    short = {"launches": 1, "min_samples": 3, "max_samples": 4, "warmup_s": 0.0, "budget_s": 0.0, "threads": 1}
    return Settings(**(short | {"backend_module": MODULE} | changes))


def bench(out, backends, configs=(CONFIG,), **changes):
    """Bench into a folder, quickly."""
    return run_bench(configs, backends, out, settings(**changes), suite="t")


def test_a_record_has_samples_of_every_launch_and_a_check(tmp_path):
    """Raw samples with CPU time and switches, per launch; sizes, checks and the machine beside them."""
    found = bench(tmp_path, ["cpu", "odd-good"], launches=2, warmup_s=0.1)  # among many calls one is not disturbed
    assert found == list(read_records(tmp_path / "records.jsonl"))
    for record in found:
        assert [launch.pos for launch in record.launches] == [0, 1]
        assert record.launches[0].start_ns < record.launches[1].start_ns
        for launch in record.launches:
            assert 3 <= len(launch.samples_ns) <= 4
            assert len(launch.cpu_ns) == len(launch.nivcsw) == len(launch.samples_ns)
            assert launch.number > 1
        assert record.check.ok
        assert record.check.max_abs_error > 0
        assert record.peak_rss_bytes > 10_000_000
        assert (record.threads, record.data, record.seed, record.ceilings) == (1, "normal", 0, CEILINGS)
        assert AttentionConfig.from_dict(record.config) == CONFIG
        assert summarize(record).tokens_per_s > 0
    assert found[0].pair == found[1].pair != ""
    assert speedup(*found).unit == "launch"


def test_samples_are_long_enough_for_the_clock(tmp_path):
    """Calls of microseconds are timed many together, so that a sample is about a millisecond."""
    (record,) = bench(tmp_path, ["cpu"])
    launch = record.launches[0]
    assert max(launch.samples_ns) * launch.number > 200_000


@pytest.mark.parametrize(
    ("backend", "direction", "what"),
    [
        ("odd-scaled", "backward", "dk"),
        ("odd-scaled", "forward", "out"),
        ("odd-row", "forward", "out"),
        ("odd-idle", "forward", "out"),
    ],
)
def test_a_wrong_output_is_found_however_little_is_wrong(tmp_path, backend, direction, what):
    """1 % off, one row zero, or returning at once with whatever another backend left in memory; a wrong gradient."""
    right, wrong = bench(tmp_path, ["cpu", backend], [CONFIG.replace(direction=direction)])
    assert right.check.ok
    assert direction == "forward" or right.check.factor == 3
    assert (wrong.check.ok, wrong.check.what) == (False, what)


@pytest.mark.parametrize("order", [1, -1])
def test_a_backend_that_writes_into_its_inputs_is_found(tmp_path, order):
    """Its own output may be right; the others are measured and judged with the inputs as they were."""
    found = {record.backend: record.check for record in bench(tmp_path, ["cpu", "odd-writer"][::order])}
    assert (found["cpu"].ok, found["cpu"].written) == (True, ())
    assert (found["odd-writer"].ok, found["odd-writer"].written) == (False, ("q",))
    alone = bench(tmp_path / "alone", ["cpu"])[0].check
    assert found["cpu"].max_abs_error == alone.max_abs_error


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("odd-crash", "the process was killed by SIGSEGV"),
        ("odd-leave", "the process ended with exit status 7: the last words"),
        ("odd-raise", "ArithmeticError: the sum is odd"),
        ("odd-late", "MemoryError"),
    ],
)
def test_a_failing_backend_is_named_and_the_other_is_measured(tmp_path, backend, reason):
    """A crash takes the process down, not the bench: the launch is repeated without the culprit."""
    good, bad = bench(tmp_path, ["odd-good", backend], launches=2)
    assert (bad.status, bad.skipped) == ("failed", reason)
    assert not bad.launches
    assert len(good.launches) == 2
    assert good.check.ok
    assert f"t/{backend}/" in (tmp_path / "failures.log").read_text()


def test_a_backend_that_hangs_is_killed(tmp_path, monkeypatch):
    """It is named, with the time it was given; the other one is measured."""
    monkeypatch.setattr(bench_launch, "_START_AND_CHECK_S", 1.5)
    good, bad = bench(tmp_path, ["odd-good", "odd-hang"], time_limit_s=0.75)
    assert (bad.status, bad.skipped) == ("failed", "the process took more than 3 s")
    assert good.launches


def test_what_a_backend_prints_is_not_taken_for_a_result(tmp_path):
    """Prints on stdout, even in the protocol's own words, go to the log."""
    (record,) = bench(tmp_path, ["odd-chatter"])
    assert record.check.ok


def test_what_does_not_fit_is_skipped_with_its_size(tmp_path, monkeypatch):
    """The other backend is measured all the same. Tensors, outputs, check and process count, not the workspace only."""
    good, large = bench(tmp_path / "large", ["odd-good", "odd-large"])
    assert good.launches
    assert re.fullmatch(r"needs 137400\.0 GB of workspace and .* GB available", large.skipped)
    monkeypatch.setattr(harness.machine, "available_memory_bytes", lambda: 250_000_000)
    (record,) = bench(tmp_path / "little", ["cpu"])
    pattern = r"needs \d+\.\d MB of workspace and \d+\.\d MB for tensors, 250\.0 MB available"
    assert re.fullmatch(pattern, record.skipped)


class Card(GpuBackend):
    """A GPU of a gigabyte whose plans need a given workspace."""

    def __init__(self, workspace):
        super().__init__()
        self.workspace = workspace

    def workspace_bytes(self, _):
        """Whatever the config."""
        return self.workspace

    def runtime(self, _=0):
        """What is asked of it."""
        return SimpleNamespace(device=SimpleNamespace(memory_bytes=10**9))


@pytest.mark.parametrize(
    ("workspace", "here", "says"),
    [
        (900_000_000, 300_000_000, ""),  # not in this machine's memory
        (1_000_000_000, 10**12, r"needs 1\.0 GB of workspace and 0\.0 MB for tensors on the GPU, which has 1\.0 GB"),
        (0, 1000, r"needs 0\.0 MB of pinned memory and 0\.0 MB for tensors, 0\.0 MB available"),
    ],
)
def test_a_gpus_workspace_is_counted_in_its_own_memory(workspace, here, says):
    """Where it does not fit the reason is the device's size; this machine needs room for a pinned copy instead."""
    assert re.fullmatch(says, limits.memory_problem(CONFIG, Card(workspace), 1, here))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_tensors_counted_are_at_least_those_that_exist(direction):
    """Inputs, an output of each backend and one in the making; grouped KV heads are not counted as query heads."""
    config = CONFIG.replace(num_heads=6, num_kv_heads=2, seq_q=100, seq_k=70, direction=direction)
    q, kv, out = 6 * 100 * 12 * 4, 2 * 70 * 24 * 4, 6 * 100 * 12 * 4
    forward, backward = q + kv + 3 * out, q + kv + out + 3 * (q + kv)
    least = forward if direction == "forward" else backward
    assert least < limits.tensor_bytes(config, 2) < 2 * least + 8 * (q + kv + out)


def test_the_estimate_follows_the_work_and_the_machine():
    """Twice the length is four times the pairs; a machine twice as fast takes half the time."""
    longer = CONFIG.replace(seq_q=18, seq_k=26)
    one = limits.estimate_call_s(CONFIG, CEILINGS)
    assert limits.estimate_call_s(longer, CEILINGS) == pytest.approx(4 * one)
    assert limits.estimate_call_s(CONFIG, {k: 2 * v for k, v in CEILINGS.items()}) == pytest.approx(one / 2)
    assert limits.estimate_call_s(CONFIG.replace(direction="backward"), CEILINGS) > one
    # The machine's speed says nothing of a GPU's, only of the projections that are timed with it.
    assert limits.estimate_call_s(longer, CEILINGS, on_gpu=True) == 0
    assert limits.estimate_call_s(longer, CEILINGS, 10**9, on_gpu=True) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("backend", "length", "reason"),
    [
        ("odd-unable", 9, "not supported: needs a moon"),
        ("odd-good", 20_000, r"would take about .*the limit is 1 s: raise it with --time-limit .*"),
    ],
)
def test_what_is_not_tried_is_skipped_with_its_reason(tmp_path, backend, length, reason):
    """No process is started for it."""
    (record,) = bench(tmp_path, [backend], [CONFIG.replace(seq_q=length, seq_k=length)], time_limit_s=1.0)
    assert re.fullmatch(reason, record.skipped)


@pytest.mark.parametrize(
    ("backend", "module", "why"),
    [
        ("cpo", MODULE, "no backend is named 'cpo'"),  # a typing mistake is not a skipped measurement
        ("cpu", "no_such_module", "cannot import the backend module 'no_such_module'"),
    ],
)
def test_what_cannot_be_found_is_an_error(tmp_path, backend, module, why):
    """The name and the cause are in one line."""
    with pytest.raises(RocattnError, match=why):
        bench(tmp_path, [backend], backend_module=module)


@pytest.mark.usefixtures("_instant")
def test_a_second_run_measures_only_what_is_missing(tmp_path):
    """Finished records stay as they are; a new config is added to them. Half a pair could not be compared."""
    other = CONFIG.replace(seq_q=7)
    (alone,) = bench(tmp_path, ["cpu"])
    before = bench(tmp_path, ["cpu", "odd-good"])
    assert before[0].pair == before[1].pair != alone.pair
    steps = []
    with BenchSession(tmp_path, settings(), on_step=lambda label, count: steps.append((label, count))) as session:
        kept = session.measure("t", CONFIG, ["cpu", "odd-good"])
        added = session.measure("t", other, ["cpu", "odd-good"])
    assert kept == before
    assert list(read_records(tmp_path / "records.jsonl"))[-4:] == before + added
    assert steps == [(CONFIG.label, 1), (other.label, 1)]


def test_a_restart_repeats_failures_and_no_skipped_lines(tmp_path):
    """A restart lists what does not fit without measuring its partner anew, and gives what crashed another chance."""
    for _ in range(2):
        bench(tmp_path / "large", ["odd-good", "odd-large"])
        bench(tmp_path / "raise", ["odd-raise"])
    assert len(list(read_records(tmp_path / "large" / "records.jsonl"))) == 2
    assert len(list(read_records(tmp_path / "raise" / "records.jsonl"))) == 2


@pytest.mark.usefixtures("_instant")
@pytest.mark.parametrize("change", ["settings", "commit", "source", "machine", "fresh"])
def test_records_of_another_identity_are_put_aside_and_named(tmp_path, monkeypatch, change):
    """Nothing is mixed and nothing is lost: the old file is moved, and a line says why."""
    monkeypatch.setattr(harness.machine, "load_average", lambda: 0.0)
    before = bench(tmp_path, ["cpu"])
    notes, changes = [], {}
    if change == "settings":
        changes = {"seed": 5}
    elif change == "commit":
        other = records.Commit(sha="f" * 40, date_ms=0)
        monkeypatch.setattr(harness.machine, "this_commit", lambda _repo: other)
    elif change == "source":
        monkeypatch.setattr("rocattn_profiling.measure.settings.code_hash", lambda _module: "other")
    elif change == "machine":
        monkeypatch.setenv("ROCATTN_MACHINE", "elsewhere")
    after = run_bench(
        [CONFIG], ["cpu"], tmp_path, settings(**changes), suite="t", fresh=change == "fresh", on_note=notes.append
    )
    (aside,) = (tmp_path / "older").iterdir()
    assert list(read_records(aside)) == before
    assert list(read_records(tmp_path / "records.jsonl")) == after != before
    (note,) = notes
    words = {"settings": "seed 0", "source": "state of the source", "machine": "machine", "fresh": "--fresh"}
    assert words.get(change, "commit" if harness.machine.measured_repo() else "outside git") in note


@pytest.mark.usefixtures("_instant")
@pytest.mark.parametrize("lost", [None, "no identity"])
def test_records_whose_identity_is_not_known_are_put_aside(tmp_path, lost):
    """session.json is gone or holds something else: whose the records are cannot be told."""
    before, notes = bench(tmp_path, ["cpu"]), []
    (tmp_path / "session.json").unlink() if lost is None else (tmp_path / "session.json").write_text(lost)
    run_bench([CONFIG], ["cpu"], tmp_path, settings(), suite="t", on_note=notes.append)
    (aside,) = (tmp_path / "older").iterdir()
    assert list(read_records(aside)) == before
    assert any(note.endswith("they come from an unknown commit and machine") for note in notes)


@pytest.mark.usefixtures("_instant")
def test_another_time_limit_keeps_what_is_finished(tmp_path):
    """As the sentence of a skipped config says, --time-limit is raised: that changes no sample that there is."""
    before = bench(tmp_path, ["cpu"], time_limit_s=50.0)
    assert bench(tmp_path, ["cpu"], time_limit_s=70.0) == before
    assert not (tmp_path / "older").exists()


def test_two_runs_into_one_folder_are_refused(tmp_path):
    """The second one says so at once."""
    with FileLock(tmp_path / ".lock"), pytest.raises(RocattnError, match="another bench is writing to"):
        bench(tmp_path, ["cpu"])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    """The path and the cause are named, before anything is measured."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RocattnError, match=r"cannot write to .*/file/out: Not a directory"):
        bench(tmp_path / "file" / "out", ["cpu"])


@pytest.mark.usefixtures("_instant")
def test_a_full_disk_is_one_line_and_keeps_what_was_measured(tmp_path, monkeypatch):
    """The record that found no room is taken back whole, and the restart measures just that."""
    other = CONFIG.replace(seq_q=7)
    real, room = os.write, [1]

    def write(descriptor, data):
        """Have room for one record, and for half a line of the next."""
        if b'"schema"' not in data:
            return real(descriptor, data)
        return real(descriptor, data if room and room.pop() else data[:50])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(RocattnError, match="No space left on device; what was measured before is kept"):
        bench(tmp_path, ["cpu"], [CONFIG, other])
    monkeypatch.setattr(os, "write", real)
    (kept,) = read_records(tmp_path / "records.jsonl")
    assert bench(tmp_path, ["cpu"], [CONFIG, other])[0] == kept


CHILD = """
import json, sys
from pathlib import Path
import msgspec
from rocattn.config import AttentionConfig
from rocattn_profiling.bench import session as harness
from rocattn_profiling.measure.settings import Settings
out, ceilings, settings, config = sys.argv[1:]
harness.limits.measure_ceilings = lambda *_, **__: json.loads(ceilings)
config = AttentionConfig.from_dict(json.loads(config))
with harness.BenchSession(Path(out), msgspec.json.decode(settings, type=Settings)) as session:
    session.measure("t", config, ["cpu"])
    print("first", flush=True)
    session.measure("t", config, ["odd-hang"])
"""


def test_sigkill_keeps_what_was_finished_and_leaves_no_process(tmp_path):
    """Killed in the middle of the second measurement: a restart takes only that one, and no worker is left behind."""
    values = [CEILINGS, msgspec.to_builtins(settings()), CONFIG.to_dict()]
    command = [sys.executable, "-c", CHILD, str(tmp_path), *map(json.dumps, values)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "first\n"
            worker = wait_for_child(child.pid)
        finally:
            child.send_signal(signal.SIGKILL)
    (kept,) = read_records(tmp_path / "records.jsonl")
    other = CONFIG.replace(seq_q=7)
    assert bench(tmp_path, ["cpu"], [CONFIG, other])[0] == kept
    assert len(list(read_records(tmp_path / "records.jsonl"))) == 2
    assert not is_sampling(worker)


def wait_for_child(pid):
    """Return the process id of a process's child, as soon as it has one."""
    psutil = pytest.importorskip("psutil")
    while True:
        children = psutil.Process(pid).children()
        if children:
            return children[0].pid


def is_sampling(pid):
    """Whether a sampling worker of that process id is running."""
    psutil = pytest.importorskip("psutil")
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "bench.launch" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_a_worker_that_imports_another_rocattn_is_refused(tmp_path, monkeypatch):
    """Measuring an installed copy instead of the checkout would be a wrong answer, not an error."""
    ours, other = Path(bench_launch.rocattn.__file__).resolve().parent, tmp_path / "rocattn"
    monkeypatch.setattr(bench_launch.rocattn, "__file__", str(other / "__init__.py"))
    sides = bench_launch.measure_side_by_side(CONFIG, ["cpu"], settings(), 1)
    assert sides["cpu"].failed == f"outside any backend: the worker imported rocattn from {ours}, not from {other}"
