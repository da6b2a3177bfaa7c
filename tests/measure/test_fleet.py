"""A sweep over a cluster: every job's records come together once, whatever becomes of jobs, nodes and the submitter."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.cli import bench_fleet, main
from rocattn_profiling.cli.bench_parts import Part
from rocattn_profiling.measure import cluster, fleet, harness
from rocattn_profiling.measure.cluster import ClusterError, State, Wanted, open_cluster
from rocattn_profiling.measure.fleet import FleetSession, Unit
from rocattn_profiling.measure.fleet_worker import Task, perform, see_own_gpus
from rocattn_profiling.measure.harness import FAILED, BenchSession, Facts
from rocattn_profiling.measure.places import by_place
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.measure.settings import Settings, import_backends
from rocattn_profiling.measure.side_by_side import Side
from rocattn_profiling.measure.stats import speedup

from .factory import make_sides

HERE = Path(__file__).parent
MODULE = "fleet_backends"
CONFIGS = [AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=n, head_dim=12) for n in (13, 17)]
MINUTES = 5.0


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("FLEET_FLAG", str(tmp_path / "flag"))
    import_backends(MODULE)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():  # a job catches them, and some tests do a job's work themselves
        signal.signal(number, handler)


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    """Return the folder of a fake Slurm whose commands are first on the path."""
    root, commands = tmp_path / "slurm", tmp_path / "bin"
    root.mkdir()
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct", "srun"):
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE / "fake_slurm.py"} {name} "$@"\n')
        path.chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(root))
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setattr(cluster.SlurmCluster, "pause_s", 0.05)
    return root


def settings(**changes):
    """Return settings for one short launch."""
    short = {"launches": 1, "min_samples": 3, "max_samples": 3, "warmup_s": 0.0, "budget_s": 0.0, "threads": 1}
    return Settings(**(short | {"backend_module": MODULE} | changes))


class Inline(cluster.Cluster):
    """Jobs that are over when they have been submitted: for what is done with jobs, not how they run."""

    pause_s, same_machine = 0.0, True

    def __init__(self, *_):
        self.count = 0

    def submit(self, function, argument):
        """Do the job at once."""
        function(argument)
        self.count += 1
        return str(self.count)

    def poll(self, ids):
        """Say that all are over."""
        return {job: State("COMPLETED", over=True) for job in ids}


@pytest.fixture
def inline(monkeypatch):
    """Return what to give a session for `Inline` jobs, in which "odd-crash" fails and nothing is measured."""

    def sides(config, backends, *rest, **more):
        made = make_sides(config, backends, *rest, **more)
        return made | {"odd-crash": Side(failed="it crashed", log="the last words")} if "odd-crash" in made else made

    monkeypatch.setattr(harness, "measure_side_by_side", sides)
    monkeypatch.setattr(harness.ceilings, "measure_ceilings", lambda *_, **__: {"gemm_tflops": 1.0, "memory_gbps": 1.0})
    return {"cluster": Inline}


def units(*backends, configs=CONFIGS, layers=0):
    """Return a unit a config."""
    return [Unit("t", (config,), backends, (Facts(layers=layers),)) for config in configs]


def session(out, *, kind="local", minutes=MINUTES, max_jobs=2, **changes):
    """Return a session of a fleet; what it says of jobs and notes is in its ``said``."""
    said = []
    opened = changes.pop("cluster", functools.partial(open_cluster, kind, wanted=Wanted(minutes)))
    extra = {"on_state": said.append, "on_note": said.append}
    extra |= {name: changes.pop(name) for name in ("fresh", "gpus", "on_state") if name in changes}
    made = FleetSession(out, settings(**changes), opened, kind=kind, max_jobs=max_jobs, **extra)
    made.said = said
    return made


def measured(out, of, **changes):
    """Measure units; returns the session, and the records by unit."""
    with session(out, **changes) as made:
        return made, made.measure(of)


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


def test_a_job_that_dies_is_named_and_the_same_command_submits_it_alone(tmp_path):
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
    assert "its time was over" in failure.reason
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_a_backend_that_fails_is_tried_again_and_a_skipped_one_is_not(tmp_path, inline):
    """What was left out on purpose is finished; what crashed is missing. More time asks again."""
    crashing, unable = units("cpu", "odd-crash", configs=CONFIGS[:1]), units("cpu", "odd-unable", configs=CONFIGS[1:])
    for expected in (2, 1):
        made, found = measured(tmp_path, [*crashing, *unable], **inline)
        assert made.jobs == expected
        assert found[crashing[0]][1].skipped.startswith(FAILED)
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
    assert "waiting for 1 jobs that an earlier run submitted" in made.said

    late = units("cpu", configs=CONFIGS[1:])
    with session(tmp_path) as gone:
        job = gone._submit(late[0], {})
        gone._cluster._job(job)._process.wait()
    made, found = measured(tmp_path, late)
    assert (made.jobs, made.kept_configs, list(found)) == (0, 1, late)


def test_an_interrupt_ends_the_jobs_and_keeps_what_is_finished(tmp_path):
    """No process is left; the next run measures only the rest."""
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


def test_nodes_of_a_cluster_never_meet_in_one_comparison(tmp_path, slurm):
    """Two jobs on two nodes of one type: one store, two places, each with its own pair and speed-up."""
    of = units("cpu", "odd-good")
    made, found = measured(tmp_path / "out", of, kind="slurm")
    assert made.failures == []
    records = [*read_records(tmp_path / "out" / "records.jsonl")]
    assert {place.host: len(members) for place, members in by_place(records).items()} == {"n2": 2, "n1": 2}
    assert all(len({(record.host, record.pair) for record in own}) == 1 for own in found.values())
    script = (slurm / "job-1" / "script").read_text()
    assert "#SBATCH --time=5\n" in script
    assert "srun" not in script
    again, _ = measured(tmp_path / "out", of, kind="slurm")
    assert again.jobs == 0


def test_a_job_that_starts_again_on_another_node_measures_everything_there(tmp_path, monkeypatch, inline):
    """Half of a model's pass was measured on n1 before it was preempted: its sum on n2 has all layers of n2."""
    unit = Unit("model-x", tuple(CONFIGS), ("cpu",), (Facts(layers=2),) * 2)
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


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("TIMEOUT|None", "job 1 ended as TIMEOUT"),
        ("PREEMPTED|None", "job 1 ended as PREEMPTED"),
        ("OUT_OF_MEMORY|None", "job 1 ended as OUT_OF_MEMORY: it wrote nothing"),
        ("gone", "job 1 ended: it wrote nothing"),  # purged, and no accounting database
    ],
)
def test_how_a_job_ended_is_said(tmp_path, slurm, monkeypatch, state, reason):
    """Slurm's own word; a preempted job that is not queued again is over."""
    monkeypatch.setattr(fleet, "_ARRIVAL_S", 0.0)
    (slurm / "plan.json").write_text(json.dumps({"1": state}))
    made, found = measured(tmp_path / "out", units("cpu", configs=CONFIGS[:1]), kind="slurm")
    assert found == {}
    assert [failure.reason for failure in made.failures] == [reason]


def test_why_jobs_wait_is_said_and_an_interrupt_cancels_them(tmp_path, slurm):
    """A job that can never start is seen to wait, with Slurm's reason."""
    (slurm / "plan.json").write_text(json.dumps({"1": "PENDING|PartitionTimeLimit"}))
    said = []

    def listen(line):
        said.append(line)
        if "PENDING" in line:
            raise KeyboardInterrupt

    with session(tmp_path / "out", kind="slurm", max_jobs=1, on_state=listen) as made, pytest.raises(KeyboardInterrupt):
        made.measure(units("cpu"))
    assert said == ["jobs: 1 PENDING (PartitionTimeLimit), 1 not submitted yet", "cancelling 1 jobs"]
    assert "scancel 1" in (slurm / "asked").read_text().splitlines()


def test_a_controller_that_does_not_answer_is_waited_for(tmp_path, slurm, monkeypatch):
    """The last known states stand for half an hour; then one line says that the jobs go on."""
    made = open_cluster("slurm", tmp_path, Wanted(MINUTES))
    (slurm / "plan.json").write_text(json.dumps({"1": "PENDING|Priority"}))
    (slurm / "job-1").mkdir()
    assert made.poll(["1"]) == {"1": State("PENDING", why="Priority")}
    (slurm / "plan.json").write_text(json.dumps({"silent": ""}))
    assert made.poll(["1", "2"]) == {"1": State("PENDING", why="Priority"), "2": State("UNKNOWN")}
    monkeypatch.setattr(cluster, "_PATIENCE_S", -1.0)
    with pytest.raises(ClusterError, match="the jobs go on"):
        made.poll(["1"])


def test_a_refused_job_is_one_line(tmp_path, slurm, capsys):
    """What sbatch said, without a traceback, and nothing else on stderr."""
    (slurm / "plan.json").write_text(json.dumps({"refuse": ""}))
    with session(tmp_path / "out", kind="slurm") as made, pytest.raises(ClusterError) as caught:
        made.measure(units("cpu"))
    assert "invalid partition specified: nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().err == ""


def test_jobs_of_another_state_of_the_code_are_ended_and_their_records_put_aside(tmp_path, slurm):
    """A new session of other settings has nothing of the old one, and its job is cancelled."""
    (slurm / "plan.json").write_text(json.dumps({"2": "RUNNING|None"}))
    of = units("cpu")
    measured(tmp_path / "out", of[:1], kind="slurm")
    with session(tmp_path / "out", kind="slurm") as gone:
        gone._submit(of[1], {})
    made, found = measured(tmp_path / "out", of[:1], kind="slurm", seed=1)
    assert "cancelled 1 jobs of the older run" in made.said
    assert made.jobs == 1
    assert [record.seed for record in found[of[0]]] == [1]
    assert len([*(tmp_path / "out" / "older").glob("records-*.jsonl")]) == 1


def test_a_fleets_records_and_a_machines_own_are_not_mixed(tmp_path, inline):
    """`rocattn bench` into a fleet's folder puts its records aside, and the other way round."""
    measured(tmp_path, units("cpu", configs=CONFIGS[:1]), **inline)
    said = []
    with BenchSession(tmp_path, settings(), on_note=said.append) as own:
        own.measure("t", CONFIGS[0], ["cpu"])
    assert any("they are of a fleet" in line for line in said)
    made, _ = measured(tmp_path, units("cpu", configs=CONFIGS[:1]), **inline)
    assert made.jobs == 1
    assert any("they are of another machine" in line for line in made.said)


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
    grid = bench_fleet._units(Part("t", CONFIGS, ["cpu", "odd-good"]))
    assert [(unit.configs, unit.backends) for unit in grid] == [((c,), ("cpu", "odd-good")) for c in CONFIGS]
    layers = [CONFIGS[0].replace(head_dim=dim, seq_q=seq_q) for seq_q in (13, 1) for dim in (12, 24)]
    model = bench_fleet._units(Part("model-x", layers, ["cpu"], lambda _: Facts(layers=3)))
    assert [unit.configs for unit in model] == [tuple(layers[:2]), tuple(layers[2:])]
    assert all(unit.facts == (Facts(layers=3),) * 2 for unit in model)
    assert len({unit.name for unit in [*grid, *model]}) == 4


SWEEP = ["bench", "--seq-q", "9", "--head-dim", "12", "--num-heads", "2", "--launches", "1", "--samples", "3",
         "--threads", "1", "--no-store", "--backend-module", MODULE, "--engine", "slurm"]  # fmt: skip


def test_the_command_gives_the_same_json_as_a_bench_here(tmp_path, capsys):
    """JSON alone on stdout; machines in a list, each with its ceilings; a job that died is exit status 3."""
    words = [
        *SWEEP,
        "--cluster",
        "local",
        "--out",
        str(tmp_path / "out"),
        "--backend",
        "cpu",
        "fleet-dies-once",
        "--json",
    ]
    (tmp_path / "flag").touch()
    assert main(words) == 3
    shown = capsys.readouterr()
    assert [skip["failed"] for skip in json.loads(shown.out)["skipped"]] == [True, True]
    assert "the same command submits them again" in shown.err
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["machine"] is None
    assert [(m["host"], m["ceilings"]["memory_gbps"]) for m in value["machines"]] == [("", 10.0)]
    assert [record["backend"] for record in value["records"]] == ["cpu", "fleet-dies-once"]
    assert len(value["speedups"]) == 1


def test_options_reach_sbatch(tmp_path, slurm, capsys):
    """A node to itself unless it has a GPU or may be shared; further options as they are; whatever sbatch knows."""
    (slurm / "plan.json").write_text(json.dumps({"1": "TIMEOUT|None", "2": "TIMEOUT|None"}))
    words = [*SWEEP, "--out", str(tmp_path / "out"), "--backend", "cpu"]
    assert main([*words, "--partition", "mi300", "--job-minutes", "2.5", "--slurm-option", "account=a b"]) == 3
    script = (slurm / "job-1" / "script").read_text()
    for line in ("--partition=mi300", "--time=3", "--account='a b'", "--exclusive", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in script
    assert main([*words, "--gpus", "1", "--slurm-option", "hold"]) == 3
    script = (slurm / "job-2" / "script").read_text()
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert "#SBATCH --hold\n" in script
    assert "exclusive" not in script
    assert "job 2 ended as TIMEOUT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "here", "--gpus", "1", "--max-jobs", "2"], "--gpus, --max-jobs: only with --engine slurm"),
        (["--crossover"], "--crossover is of one machine: run it there"),
        (["--use-thresholds", "x.json"], "--use-thresholds is of one machine"),
        (["--history", "3"], "--history goes with this machine's own results"),
        (["--cluster", "local", "--partition", "p"], "--cluster local has no nodes"),
        (["--slurm-option", "=x"], "write NAME=VALUE"),
        (["--job-minutes", "0"], "'0' is not a number of minutes above 0"),
        ([], "this machine knows no Slurm"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_status_4(tmp_path, capsys, monkeypatch, words, message):
    """A contradiction, or no cluster, is told before anything is submitted."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    try:
        status = main([*SWEEP, "--out", str(tmp_path), *words])
    except SystemExit as error:
        status = error.code
    shown = capsys.readouterr()
    assert status == 4
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


def test_without_the_extra_one_line_says_what_to_install(tmp_path):
    """submitit is no dependency of the rest."""
    code = "import sys; sys.modules['submitit'] = None; from rocattn_profiling.cli import main; sys.exit(main())"
    words = [*SWEEP, "--cluster", "local", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "rocattn bench: --engine slurm needs the package submitit: pip install 'rocattn[slurm]'\n"
