"""A sweep over a Slurm cluster: nodes are kept apart, and what Slurm does with a job is said in its own words."""

import json

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.bench.fleet import cluster
from rocattn_profiling.bench.fleet import session as fleet
from rocattn_profiling.bench.fleet.cluster import ClusterError, State, Wanted, open_cluster
from rocattn_profiling.measure.records import by_place, read_records

from .fleets import CONFIGS, MINUTES, measured, session, units

pytestmark = pytest.mark.usefixtures("fleet_environment")


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


def test_how_a_job_ended_is_said(tmp_path, slurm, monkeypatch):
    """Slurm's own word; a preempted job that is not queued again is over. What an end wrote is not why it came."""
    monkeypatch.setattr(fleet, "_ARRIVAL_S", 0.0)
    taken = ("TIMEOUT", "PREEMPTED", "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED")
    planned = {str(n): f"{word}|None" for n, word in enumerate((*taken, "OUT_OF_MEMORY"), start=1)} | {"9": "gone"}
    (slurm / "plan.json").write_text(json.dumps(planned))
    of = units("cpu", configs=[CONFIGS[0].replace(seq_k=n) for n in range(1, 10)])
    made, found = measured(tmp_path / "out", of, kind="slurm", max_jobs=9)
    assert found == {}
    assert [failure.reason for failure in made.failures] == [
        *(f"job {n} ended as {word}" for n, word in enumerate(taken, start=1)),
        "job 8 ended as OUT_OF_MEMORY: it wrote nothing",
        "job 9 ended: it wrote nothing",  # purged, and no accounting database
    ]


@pytest.mark.parametrize(("here", "waited"), [(True, 0), (False, 2)])
def test_what_a_node_wrote_may_arrive_late(tmp_path, inline, monkeypatch, here, waited):
    """A network file system shows it in the second look after the job's end; of this machine nothing is waited for."""
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            (tmp_path / fleet.DONE).write_text('{"host": "n1", "records": 1}')

    monkeypatch.setattr(fleet.time, "sleep", sleep)
    with session(tmp_path / "out", **inline) as made:
        made._cluster.same_machine = here
        found = made._arrived(tmp_path)
    assert len(slept) == waited
    assert (found and found.host) == (None if here else "n1")


def test_a_job_is_over_when_slurm_or_its_accounting_says_so(tmp_path, slurm):
    """Held, suspended, being cleaned up or queued again is not over; who cancelled a job is no part of its state."""
    live = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "STOPPED", "SPECIAL_EXIT")
    over = ("COMPLETED", "FAILED", "NODE_FAIL", "DEADLINE", "BOOT_FAIL", "PREEMPTED")
    planned = {str(n): f"{word}|None" for n, word in enumerate((*live, *over), start=1)}
    planned |= {"98": "PENDING|(ReqNodeNotAvail, UnavailableNodes:n[1|2])", "99": "gone"}
    for number in planned:
        (slurm / f"job-{number}").mkdir()
    (slurm / "plan.json").write_text(json.dumps(planned | {"accounts": "CANCELLED by 1000\nCANCELLED\n"}))
    made = open_cluster("slurm", tmp_path, Wanted(MINUTES))
    found = made.poll(planned)
    assert found.pop("99") == State("CANCELLED", over=True)
    assert found.pop("98") == State("PENDING", why="(ReqNodeNotAvail, UnavailableNodes:n[1|2])")
    assert [*found.values()] == [*(State(word) for word in live), *(State(word, over=True) for word in over)]
    (slurm / "plan.json").write_text(json.dumps({"99": "gone"}))
    assert made.poll(["99"]) == {"99": State(cluster.ENDED, over=True)}


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
    assert said == ["jobs: 1 PENDING (PartitionTimeLimit), 1 not submitted yet", "cancelling 1 job"]
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
    assert str(caught.value) == snapshot(
        "the cluster rejected the job: sbatch: error: invalid partition specified: nowhere "
        "sbatch: error: Batch job submission failed"
    )
    assert capsys.readouterr().err == ""


def test_jobs_of_another_source_are_cancelled(tmp_path, slurm):
    """A new session of other settings has nothing of the old one, and its job is cancelled."""
    (slurm / "plan.json").write_text(json.dumps({"2": "RUNNING|None"}))
    of = units("cpu")
    measured(tmp_path / "out", of[:1], kind="slurm")
    with session(tmp_path / "out", kind="slurm") as gone:
        gone._submit(of[1], {})
    made, found = measured(tmp_path / "out", of[:1], kind="slurm", seed=1)
    assert made.said[1] == snapshot("cancelled 1 job of the older run")
    assert made.jobs == 1
    assert [record.seed for record in found[of[0]]] == [1]
    assert len([*(tmp_path / "out" / "older").glob("records-*.jsonl")]) == 1
