"""A sweep over a Slurm cluster: nodes are kept apart, and what Slurm does with a job is said in its own words."""

import json

import pytest

from rocattn_profiling.measure import cluster, fleet
from rocattn_profiling.measure.cluster import ClusterError, State, Wanted, open_cluster
from rocattn_profiling.measure.places import by_place
from rocattn_profiling.measure.records import read_records

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
