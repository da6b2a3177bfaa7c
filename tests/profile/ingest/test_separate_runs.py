"""Separate runs are told apart, so that no kernel gets the numbers of two: passes and ranks of one run are joined."""

import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.cli import main
from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.collect.passes import PASSES, STATE
from rocattn_profiling.profile.ingest.runs import several
from rocattn_profiling.profile.report.report import build

from ...screens import screen
from . import generators as g
from . import older_generators as older
from . import sample_generators as samples

NAMES = ("SQ_WAVES",)


def runs(*paths):
    """Return the names of the runs in these paths; nothing if they are of one."""
    return [run.name for run in ingest.read(paths).runs]


def workload(folder, generation="3", counters=NAMES):
    """Write a small workload folder of rocprof-compute."""
    older.sysinfo(folder, generation)
    return older.compute_long(folder / "pmc_perf.csv", g.launches(2, counters=counters)).parent


def test_workloads_below_one_folder_are_separate_runs(tmp_path, capsys):
    """Two products with the same kernel: one's finding stood above the other's counters."""
    for name in ("bmm1", "bmm2"):
        workload(tmp_path / name / "MI300X_A1")
    assert runs(tmp_path) == runs(tmp_path / "bmm1", tmp_path / "bmm2") == ["bmm1", "bmm2"]
    assert runs(tmp_path / "bmm1") == []
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 4
    assert capsys.readouterr().err == (
        f"rocattn report: these are 2 separate runs: bmm1, bmm2. Report one (rocattn report {tmp_path}/bmm1) "
        f"or compare two (rocattn report {tmp_path}/bmm2 --against {tmp_path}/bmm1)\n"
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(RocattnError, match="these are 2 separate runs"):
        build(ingest.read([tmp_path]))
    assert main(["report", str(tmp_path / "bmm2"), "--against", str(tmp_path), "--out", str(tmp_path / "out")]) == 4


def test_workloads_with_nothing_in_common_are_separate_runs(tmp_path):
    """What they have in common does not matter: each folder is a run."""
    workload(tmp_path / "a", "2")
    workload(tmp_path / "b", "3", ("TCC_HIT_sum",))
    assert runs(tmp_path / "b", tmp_path / "a") == ["b", "a"]


def test_files_that_counted_the_same_are_separate_runs(tmp_path):
    """Three sizes of one attention kernel in three files of rocprof v1, whatever the grids; those are to be named."""
    for number, name in enumerate(("b1", "b16", "b256"), 1):
        made = [g.Launch(1, "mla", (64 * number, 1, 1), counters={"SQ_WAVES": 1.0})]
        older.v1(tmp_path / f"{name}_counters.csv", made)
    found = ingest.read([tmp_path]).runs
    assert [run.name for run in found] == ["b1_counters", "b16_counters", "b256_counters"]
    assert [run.paths for run in found] == [(f"{tmp_path}/{run.name}.csv",) for run in found]


def test_one_counter_of_both_tells_runs_apart(tmp_path):
    """Someone counted more the second time; what every pass counts for its shares tells nothing."""
    anchors = ("GRBM_GUI_ACTIVE", "SQ_WAVES")
    for name, counters in (("before", ("A", "B")), ("after", ("B", "C")), ("pass", ("D",))):
        made = g.launches(1, counters=(*anchors, *counters))
        g.v3_counters(tmp_path / name / "r_counter_collection.csv", made)
    assert runs(tmp_path / "before", tmp_path / "after") == ["before", "after"]
    assert runs(tmp_path / "before", tmp_path / "pass") == []


def test_a_run_of_several_files_is_named_with_a_star(tmp_path):
    """Counters and GPUs of one name stand side by side; a shell expands what is printed."""
    for name in ("bank", "phase"):
        g.v3_counters(tmp_path / f"{name}_counter_collection.csv", g.launches(1))
        g.v3_agents(tmp_path / f"{name}_agent_info.csv")
    found = ingest.read([tmp_path]).runs
    assert screen(several(found), tmp=tmp_path) == snapshot(
        "these are 2 separate runs: bank, phase. Report one (rocattn report tmp/bank_*) or compare two (rocattn "
        "report tmp/phase_* --against tmp/bank_*)"
    )


def test_a_run_is_the_folder_in_which_the_paths_part(tmp_path):
    """Passes in folders of any name are one run; beside it are others, one of them as long as its folder."""
    for place in ("size1/reads", "size2/reads", "size3"):
        g.v3_counters(tmp_path / place / "r_counter_collection.csv", g.launches(1, counters=NAMES))
    g.v3_counters(tmp_path / "size1/writes/r_counter_collection.csv", g.launches(1, counters=("TCC_HIT_sum",)))
    assert runs(tmp_path) == ["size1", "size2", "size3"]
    assert runs(tmp_path / "size1") == []


def test_different_gpus_are_separate_runs(tmp_path):
    """Not even the counters are the same: one's verdict came with the other's time."""
    for name, counter, cus in (("old", "SQ_WAVES", 104), ("new", "TCC_HIT_sum", 304)):
        g.v3_counters(tmp_path / name / "r_counter_collection.csv", g.launches(1, counters=(counter,)))
        g.v3_agents(tmp_path / name / "r_agent_info.csv", Cu_Count=cus)
    assert runs(tmp_path) == ["new", "old"]
    for number, name in enumerate(("old", "new"), 1):
        (tmp_path / name).rename(tmp_path / f"pass_{number}")
    assert runs(tmp_path) == [], "two passes of one call"


def test_times_of_a_kernel_measured_twice_are_separate_runs(tmp_path):
    """Two traces; a trace and counters of another call are one run's."""
    for name in ("before", "after"):
        g.v3_trace(tmp_path / name / "r_kernel_trace.csv", g.launches(2))
    g.v3_counters(tmp_path / "counted" / "r_counter_collection.csv", g.launches(2))
    assert runs(tmp_path / "before", tmp_path / "after") == ["before", "after"]
    assert runs(tmp_path / "before", tmp_path / "counted") == []


def test_passes_of_one_call_are_one_run(tmp_path):
    """Whatever they counted: pass_N and pmc_N are folders of one call, and so is all in a collection or a workload."""
    for tool, prefix in (("v3", "pass"), ("v2", "pmc")):
        for number in (1, 2):
            g.v3_counters(tmp_path / tool / f"{prefix}_{number}" / "r_counter_collection.csv", g.launches(1))
        assert runs(tmp_path / tool) == []
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / STATE).write_text("{}")
    for name in ("waves", "waves-again"):
        workload(tmp_path / "made" / PASSES / name)
    assert runs(tmp_path / "made") == []
    (tmp_path / "made" / PASSES).rename(tmp_path / "made" / "kept")
    assert runs(tmp_path / "made") == ["waves", "waves-again"]


def test_samples_and_counters_of_one_program_are_one_run(tmp_path):
    """Calls of their own; two calls that sampled in the same way are two runs, and thread traces are one a dispatch."""
    made = [g.Launch(1, "attn", counters={"SQ_WAVES": 1.0})]
    g.v3_counters(tmp_path / "counted" / "r_counter_collection.csv", made)
    for name, stochastic in (("exact", True), ("trapped", False), ("again", False)):
        samples.v3_json(tmp_path / name / "r_results.json", made=made, stochastic=stochastic)
    assert runs(tmp_path / "counted", tmp_path / "exact", tmp_path / "trapped") == []
    assert runs(tmp_path / "counted", tmp_path / "again", tmp_path / "trapped") == ["counted", "again", "trapped"]
    for number in (3, 4):
        samples.code_json(tmp_path / "traced", number)
    assert runs(tmp_path / "traced", tmp_path / "exact") == []
