"""A sweep over jobs: every job's records come together once, whatever becomes of the jobs and of the submitter."""

import os
import re
import signal
from dataclasses import replace

import msgspec
import psutil
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.bench.fleet import cluster
from rocattn_profiling.bench.fleet import command as bench_fleet
from rocattn_profiling.bench.fleet.cluster import State
from rocattn_profiling.bench.fleet.session import FleetUnit, Task, perform, see_own_gpus
from rocattn_profiling.bench.parts import SuitePart
from rocattn_profiling.bench.session import BenchSession, SuiteFacts
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.measure.stats import speedup

from .fleets import CONFIGS, measured, session, settings, units

pytestmark = pytest.mark.usefixtures("fleet_environment")


def test_jobs_of_one_machine_come_together_and_are_kept(tmp_path):
    """Both backends of a config side by side in one job; the second time, nothing is submitted."""
    of = units("cpu", "odd-good")
    made, found = measured(tmp_path, of)
    assert made.jobs == 2
    assert list(found) == of
    for unit, records in found.items():
        assert [record.id for record in records] == unit.ids
        assert all(record.check.ok and record.launches and record.host == "" for record in records)
        assert speedup(*records).unit == "sample"
    stored = [*read_records(tmp_path / "records.jsonl")]
    assert sorted(record.id for record in stored) == sorted(each for unit in of for each in unit.ids)
    again, same = measured(tmp_path, of)
    assert (again.jobs, again.kept_configs) == (0, 2)
    assert same == found


def test_only_what_is_missing_is_submitted(tmp_path, inline):
    """A longer sweep into the same folder, a further backend, and --fresh."""
    measured(tmp_path, units("cpu", "odd-good"), **inline)
    for of, options, expected in (
        (units("cpu", "odd-good", configs=[*CONFIGS, CONFIGS[0].replace(seq_k=5)]), {}, (1, 2)),
        (units("cpu", "odd-good", "odd-scaled"), {}, (2, 0)),
        (units("cpu", "odd-good"), {"fresh": True}, (2, 0)),
    ):
        made, found = measured(tmp_path, of, **inline, **options)
        assert (made.jobs, made.kept_configs) == expected
        assert list(found) == of


def test_backends_measured_apart_are_not_finished(tmp_path, inline):
    """Each was measured alone on the same machine: together they are a job. What was once together stays comparable."""
    pairs = {}
    for names, jobs in (
        (("cpu",), 1),
        (("odd-good",), 1),
        (("cpu", "odd-good"), 1),
        (("cpu", "odd-unable"), 1),
        (("cpu", "odd-good"), 0),  # its job would find its own old records, and add none
        (("odd-good", "cpu"), 0),
    ):
        of = units(*names, configs=CONFIGS[:1])
        made, found = measured(tmp_path, of, **inline)
        assert (made.jobs, made.failures) == (jobs, [])
        records = found[of[0]]
        assert [record.backend for record in records] == list(names)
        assert len({record.pair for record in records if record.launches}) == 1
        pairs.setdefault(names, []).append(records[0].pair)
    assert pairs["cpu", "odd-good"][0] == pairs["cpu", "odd-good"][1]


def test_a_dead_job_is_named_and_submitted_again_alone(tmp_path):
    """The other job's records stay; the failure quotes what there is, and its log is kept."""
    (tmp_path / "flag").touch()
    of = units("cpu", "fleet-dies-once")
    made, found = measured(tmp_path / "out", of, max_jobs=1)
    (failure,) = made.failures
    assert failure.unit is of[0]
    assert list(found) == of[1:]
    assert "job " in failure.reason
    assert of[0].name in (tmp_path / "out" / "failures.log").read_text()
    again, found = measured(tmp_path / "out", of)
    assert (again.jobs, again.failures) == (1, [])
    assert list(found) == of


def test_a_job_that_takes_too_long_is_ended_and_says_so(tmp_path):
    """Its own signal names the reason; no backend is blamed for what the cluster did."""
    (tmp_path / "flag").touch()
    of = units("cpu", "fleet-hangs-once", configs=CONFIGS[:1])
    made, found = measured(tmp_path / "out", of, minutes=0.08)
    assert found == {}
    (failure,) = made.failures
    assert re.sub(r"\d+", "N", failure.reason, count=1) == snapshot(
        "job N ended: the job got SIGUSR2: it ran out of time or was cancelled"
    )
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_a_failed_backend_is_tried_again_a_skipped_one_not(tmp_path, inline):
    """What was left out on purpose is finished; what crashed is missing. More time asks again."""
    crashing, unable = units("cpu", "odd-crash", configs=CONFIGS[:1]), units("cpu", "odd-unable", configs=CONFIGS[1:])
    for expected in (2, 1):
        made, found = measured(tmp_path, [*crashing, *unable], **inline)
        assert made.jobs == expected
        assert found[crashing[0]][1].status == "failed"
        assert found[unable[0]][1].skipped == "not supported: needs a moon"
    assert "the last words" in (tmp_path / "failures.log").read_text()
    made, _ = measured(tmp_path, unable, time_limit_s=61.0, **inline)
    assert made.jobs == 1


def test_a_new_submitter_waits_for_the_jobs_of_one_that_is_gone(tmp_path):
    """Nothing is submitted twice, whether the old job still runs or has ended meanwhile."""
    of = units("cpu", configs=CONFIGS[:1])
    with session(tmp_path) as gone:
        running = gone._cluster._job(gone._submit(of[0], {}))._process
    made, found = measured(tmp_path, of)
    assert (made.jobs, list(found)) == (0, of)
    running.wait()
    assert made.said[0] == snapshot("waiting for 1 job that an earlier run submitted")

    late = units("cpu", configs=CONFIGS[1:])
    with session(tmp_path) as gone:
        job = gone._submit(late[0], {})
        gone._cluster._job(job)._process.wait()
    made, found = measured(tmp_path, late)
    assert (made.jobs, made.kept_configs, list(found)) == (0, 1, late)


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def sigint(request):
    """What this process does at SIGINT, and so what it starts: a script's background job ignores it."""
    former = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("sigint")
def test_an_interrupt_ends_the_jobs_and_keeps_what_is_finished(tmp_path, monkeypatch):
    """No process is left, none had to be killed; the next run measures only the rest."""
    monkeypatch.setattr(cluster, "_ENDING_S", 300.0)
    monkeypatch.setattr(psutil.Process, "kill", pytest.fail)
    of = units("cpu", configs=CONFIGS[:1])
    measured(tmp_path, of)
    rest = units("odd-hang", configs=CONFIGS[1:])
    jobs = []

    def interrupt(line):
        if "RUNNING" in line:
            raise KeyboardInterrupt

    with session(tmp_path, on_state=interrupt) as made:
        submit = made._cluster.submit
        made._cluster.submit = lambda *call: jobs.append(submit(*call)) or jobs[-1]
        with pytest.raises(KeyboardInterrupt):
            made.measure([*of, *rest])
    assert not any(
        psutil.pid_exists(int(job)) and psutil.Process(int(job)).status() != psutil.STATUS_ZOMBIE for job in jobs
    )
    assert not any(str(tmp_path) in " ".join(process.cmdline()) for process in descendants())
    again, found = measured(tmp_path, of)
    assert (again.jobs, list(found)) == (0, of)


def test_a_job_that_has_only_just_begun_is_cancelled(tmp_path, monkeypatch):
    """Between a process's start and its first instruction its command line is empty: not a sign of another's number."""
    unit = units("odd-hang", configs=CONFIGS[1:])[0]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: [])
    with session(tmp_path) as made:
        job = made._submit(unit, {})
        process = made._cluster._job(job)._process
        made._cluster.cancel(job)
        assert process.poll() is not None
        made._cluster.cancel("1")  # no job of ours
    assert psutil.pid_exists(1)


def descendants():
    """Return the living processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_job_requeued_to_another_node_starts_over(tmp_path, monkeypatch, inline):
    """Half of a model's pass was measured on n1 before it was preempted: its sum on n2 has all layers of n2."""
    unit = FleetUnit("model-x", tuple(CONFIGS), ("cpu",), (SuiteFacts(layers=2),) * 2)
    with session(tmp_path, **inline) as made:
        made._cluster.submit = lambda *_: "1"
        made._cluster.same_machine = False
        made._submit(unit, {})
        folder = made._folder / unit.name
        task = msgspec.json.decode((folder / "task.json").read_bytes(), type=Task)
        with monkeypatch.context() as patched:
            patched.setenv("SLURMD_NODENAME", "n1")
            half = msgspec.structs.replace(task, configs=task.configs[:1], facts=task.facts[:1])
            (folder / "task.json").write_bytes(msgspec.json.encode(half))
            perform(str(folder))
            (folder / "task.json").write_bytes(msgspec.json.encode(task))
            patched.setenv("SLURMD_NODENAME", "n2")
            perform(str(folder))
        made._collect(unit, "1", State("COMPLETED", over=True))
    assert [record.host for record in read_records(tmp_path / "records.jsonl")] == ["n2", "n2"]


def test_a_fleets_records_and_a_machines_own_are_not_mixed(tmp_path, inline):
    """`rocattn bench` into a fleet's folder puts its records aside, and the other way round."""
    measured(tmp_path, units("cpu", configs=CONFIGS[:1]), **inline)
    said = []
    with BenchSession(tmp_path, settings(), on_note=said.append) as own:
        own.measure("t", CONFIGS[0], ["cpu"])
    assert re.search("(?<=jsonl: ).*", said[-1])[0] == snapshot("they come from a fleet")
    made, _ = measured(tmp_path, units("cpu", configs=CONFIGS[:1]), **inline)
    assert made.jobs == 1
    assert re.search(r"(?<=jsonl: )[^(]*", made.said[0])[0] == snapshot("they come from another machine ")


def test_code_that_changed_after_the_submission_is_not_measured(tmp_path):
    """The job refuses: its records would name a commit that it did not run."""
    unit = units("cpu", configs=CONFIGS[:1])[0]
    with session(tmp_path) as made:
        made._cluster.submit = lambda *_: "1"
        made._code = "0" * 16
        made._submit(unit, {})
    with pytest.raises(RocattnError, match="the source changed after the job was submitted"):
        perform(str(made._folder / unit.name))


def test_each_job_of_a_machine_sees_other_gpus(tmp_path, monkeypatch):
    """Two jobs of two GPUs share none; a third has to wait for one of them, or is refused."""
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,5,6,7")
    of = units("cpu", configs=[CONFIGS[0].replace(seq_k=n) for n in (3, 4, 5)])
    with session(tmp_path, gpus=2) as made:
        numbers = iter("123")
        made._cluster.submit = lambda *_: next(numbers)
        running = {}
        for unit in of[:2]:
            running[made._submit(unit, running)] = unit
        tasks = [msgspec.json.decode((made._folder / u.name / "task.json").read_bytes(), type=Task) for u in of[:2]]
        assert [task.gpus for task in tasks] == ["4,5", "6,7"]
        with pytest.raises(RocattnError, match="too few GPUs"):
            made._submit(of[2], running)


def test_one_filter_of_gpus_is_left(monkeypatch):
    """ROCR_VISIBLE_DEVICES renumbers: a second filter with the old number would hide the GPU that was given."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        monkeypatch.setenv(name, "3")
    see_own_gpus("")
    assert {name: value for name, value in os.environ.items() if "VISIBLE" in name or "ORDINAL" in name} == {
        "ROCR_VISIBLE_DEVICES": "3"
    }
    see_own_gpus("5")
    assert os.environ["ROCR_VISIBLE_DEVICES"] == "5"
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    see_own_gpus("")
    assert os.environ["HIP_VISIBLE_DEVICES"] == "1"


def test_a_unit_is_what_is_compared_or_added_up():
    """One config of a grid; all layers of a pass of a model, prompt and step apart, which one machine must measure."""
    grid = bench_fleet._units(SuitePart("t", CONFIGS, ["cpu", "odd-good"]))
    assert [(unit.configs, unit.backends) for unit in grid] == [((c,), ("cpu", "odd-good")) for c in CONFIGS]
    layers = [CONFIGS[0].replace(head_dim=dim, seq_q=seq_q) for seq_q in (13, 1) for dim in (12, 24)]
    model = bench_fleet._units(SuitePart("model-x", layers, ["cpu"], lambda _: SuiteFacts(layers=3)))
    assert [unit.configs for unit in model] == [tuple(layers[:2]), tuple(layers[2:])]
    assert all(unit.facts == (SuiteFacts(layers=3),) * 2 for unit in model)
    assert len({unit.name for unit in [*grid, *model]}) == 4
    first = grid[0]
    changes = (
        {"suite": "u"},
        {"configs": (CONFIGS[0], CONFIGS[1])},
        {"backends": ("cpu",)},
        {"facts": (SuiteFacts(1),)},
    )
    others = {replace(first, **changed).name for changed in changes}
    assert len({first.name} | others) == 5
    assert replace(first, suite="s" * 400).name.startswith("s" * 120 + "-")
    assert len(replace(first, suite="s" * 400).name) < 255


def test_a_job_has_time_for_all_configs_of_the_largest_unit():
    """Three launches, each killed after twice 60 s and half a minute, a config; and five minutes to begin."""
    layers = [CONFIGS[0].replace(head_dim=dim, seq_q=seq_q) for seq_q in (13, 1) for dim in (12, 24)]
    model = SuitePart("model-x", layers, [], lambda _: SuiteFacts(layers=3))
    taken = settings(launches=3, time_limit_s=60.0)
    assert bench_fleet.job_minutes(taken, [SuitePart("t", CONFIGS, [])]) == 5 + 8
    assert bench_fleet.job_minutes(taken, [SuitePart("t", CONFIGS, []), model]) == 5 + 15
