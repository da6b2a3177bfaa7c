"""Passes, processes and files of one run: what belongs together, and what must stay apart."""

import pandas as pd
import pytest

from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.metrics.launches import find_launches

from . import generators as g
from . import older_generators as older
from .test_csv import whats
from .test_formats import held, truth


def joined(profile):
    """Return one row per launch: what joins it, and each counter from whichever pass has it."""
    launches = find_launches(profile)
    return launches.table.assign(**launches.joined.counters)


def passes(profile):
    """Return the passes that have dispatches."""
    return sorted(profile.dispatches["pass"].unique())


def test_each_run_of_the_application_is_a_pass(tmp_path):
    """`-i` gives each line its folder; processes of one pass have a file each."""
    for number, names in enumerate((("SQ_WAVES",), ("TCC_HIT_sum",)), 1):
        for pid in (71, 72):
            made = g.launches(2, counters=names, process=pid)
            g.v3_counters(tmp_path / f"pass_{number}" / "node7" / f"{pid}_counter_collection.csv", made)
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["pass_1/node7", "pass_2/node7"]
    assert sorted(profile.dispatches["process"].unique()) == [71, 72]
    assert whats(profile) == []


def test_launches_on_several_gpus_are_joined_gpu_by_gpu(tmp_path):
    """Two threads launch the same kernel on two GPUs, in another order in each pass: GPU 4's counters stay GPU 4's."""
    for folder, name, order in (("p1", "X", (4, 5, 4, 5)), ("p2", "Y", (5, 4, 4, 5))):
        made = [g.Launch(i + 1, "k", agent=gpu, counters={name: float(gpu)}) for i, gpu in enumerate(order)]
        g.v3_counters(tmp_path / folder / "c.csv", made)
    table = joined(ingest.read([tmp_path]))
    assert table["X"].tolist() == table["Y"].tolist() == [4, 4, 5, 5]


def test_the_process_id_in_a_name_is_no_part_of_the_pass(tmp_path):
    """`-o run_%pid%` gives run_71 and run_72: one pass of two processes; another name is another pass."""
    for pid in (71, 72):
        made = g.launches(2, process=pid)
        g.v3_counters(tmp_path / f"run_{pid}_counter_collection.csv", made)
    g.v3_counters(tmp_path / "other_counter_collection.csv", g.launches(2, process=73))
    assert passes(ingest.read([tmp_path])) == ["other", "run"]


def test_ranks_of_one_run_count_together(tmp_path):
    """Whether folders or names have the rank: all launches of all ranks are there, also where process ids are alike."""
    for rank, size in ((0, 2), (1, 3), (2, 2)):
        made = g.launches(size, counters=("SQ_WAVES",), process=70)
        g.v3_counters(tmp_path / "folders" / f"rank{rank}" / "out_counter_collection.csv", made)
        g.v3_counters(tmp_path / "names" / f"out_rank_{rank}_counter_collection.csv", made)
    for folder in ("folders", "names"):
        profile = ingest.read([tmp_path / folder])
        assert passes(profile) == ["out"]
        assert len(find_launches(profile)) == 7
        assert profile.runs == ()


def test_a_pass_that_repeats_another_is_not_left_out_in_silence(tmp_path):
    """One call of rocprofv3 counted the same thrice: the first is reported, and a line says so."""
    for number, value in ((1, 5.0), (2, 6.0), (3, 7.0)):
        made = [g.Launch(1, "k", counters={"SQ_WAVES": value})]
        g.v3_counters(tmp_path / f"pass_{number}" / "out_counter_collection.csv", made)
    profile = ingest.read([tmp_path])
    launches = find_launches(profile)
    assert launches.problems == [
        "pass pass_2/out and 1 more repeat the measurements of pass pass_1/out, which is reported"
    ]
    assert profile.runs == ()
    assert launches.joined.counters["SQ_WAVES"].tolist() == [5.0]
    other = [g.Launch(1, "other", counters={"SQ_WAVES": 1.0}), g.Launch(2, "b", counters={"SQ_WAVES": 1.0})]
    g.v3_counters(tmp_path / "two" / "a_counter_collection.csv", other[:1])
    g.v3_counters(tmp_path / "two" / "b_counter_collection.csv", other[1:])
    assert find_launches(ingest.read([tmp_path / "two"])).problems == []


def test_launches_are_joined_by_kernel_grid_and_ordinal(tmp_path):
    """The order of the dispatches differs between the passes, and one pass misses some: nothing is mixed up."""
    first = [
        g.Launch(1, "a", counters={"X": 1.0}), g.Launch(2, "b", counters={"X": 2.0}),
        g.Launch(3, "a", counters={"X": 3.0}), g.Launch(4, "a", (64, 1, 1), counters={"X": 4.0}),
    ]  # fmt: skip
    second = [
        g.Launch(9, "a", (64, 1, 1), counters={"Y": 40.0}), g.Launch(10, "b", counters={"Y": 20.0}),
        g.Launch(12, "a", counters={"Y": 10.0}),
    ]  # fmt: skip
    g.v3_counters(tmp_path / "p1" / "c.csv", first)
    g.v3_counters(tmp_path / "p2" / "c.csv", second)
    table = joined(ingest.read([tmp_path]))
    rows = {(r.kernel, r.grid, r.ordinal): (r.X, None if pd.isna(r.Y) else r.Y) for r in table.itertuples(index=False)}
    assert rows == {
        ("a", 3072, 0): (1.0, 10.0), ("a", 3072, 1): (3.0, None), ("a", 64, 0): (4.0, 40.0),
        ("b", 3072, 0): (2.0, 20.0),
    }  # fmt: skip


def test_a_trace_completes_the_counters_of_its_run(tmp_path):
    """6.2 counters have no times: those of the trace with the same name are theirs; other dispatches stay."""
    made = g.launches(3)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made[:2], "6.2.4")
    g.v3_trace(tmp_path / "r_kernel_trace.csv", made, "6.4")
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["r"]
    columns = ("process", "dispatch", "kernel", "grid", "block", "start_ns", "end_ns", "counter", "value")
    alone = [g.Launch(**{**vars(made[2]), "counters": {}})]
    assert held(profile, columns) == truth(made[:2] + alone, columns)


def test_a_trace_replaces_no_time_of_the_counters(tmp_path):
    """7.0 counters have times of their own, which were taken while counting."""
    made = g.launches(3)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made)
    g.v3_trace(tmp_path / "r_kernel_trace.csv", g.later(made), "6.4")
    assert held(ingest.read([tmp_path])) == truth(made)


def test_a_trace_that_names_no_process_is_given_to_none_of_two(tmp_path):
    """Counters of two processes, and times that could be either's: they stay launches of their own."""
    both = [launch for pid in (71, 72) for launch in g.launches(2, process=pid)]
    g.v3_counters(tmp_path / "r_counter_collection.csv", both, "6.2.4")
    g.v3_trace(tmp_path / "r_kernel_trace.csv", g.launches(2), "6.4")
    found = ingest.read([tmp_path]).dispatches
    counted = found[found["process"].isin([71, 72])]
    assert len(counted) == 4
    assert counted["start_ns"].isna().all()
    assert found["start_ns"].notna().sum() == 2


def test_a_trace_without_numbers_is_joined_by_launch(tmp_path):
    """The first 6.2 traces do not number dispatches, and are in the order of their ends."""
    made = g.launches(4)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made, "6.2.0")
    g.v3_trace(tmp_path / "r_kernel_trace.csv", made[::-1], "6.2.0")
    columns = ("process", "dispatch", "kernel", "grid", "start_ns", "end_ns", "counter", "value")
    assert held(ingest.read([tmp_path]), columns) == truth(made, columns)


def test_traces_name_their_process_by_their_file(tmp_path):
    """A trace has no process column: the default name of the file is the process id."""
    for pid in (71, 72):
        g.v3_trace(tmp_path / f"{pid}_kernel_trace.csv", g.launches(2, counters=()))
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["run"]
    assert profile.dispatches["process"].tolist() == [71, 71, 72, 72]


def test_a_name_of_many_digits_is_no_process(tmp_path):
    """A date is longer than a process id may be."""
    g.v3_trace(tmp_path / "20261127035013_kernel_trace.csv", g.launches(2, counters=()))
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["20261127035013"]
    assert whats(profile) == []


def test_one_run_in_several_formats_counts_once(tmp_path):
    """`-f csv json rocpd` writes the same dispatches three times."""
    made = g.launches(3)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made)
    g.v3_json(tmp_path / "r_results.json", made)
    g.rocpd(tmp_path / "r_results.db", made)
    found = ingest.describe([tmp_path])
    assert [one.source.skipped != "" for one in found] == [True, False, True]
    profile = ingest.read([tmp_path])
    assert held(profile) == truth(made)


def test_a_format_with_counters_is_kept_over_one_without(tmp_path):
    """A database of traces beside a counter CSV of the same run must not hide the counters."""
    made = g.launches(3)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made)
    g.rocpd(tmp_path / "r_results.db", [g.Launch(**{**vars(launch), "counters": {}}) for launch in made])
    assert held(ingest.read([tmp_path])) == truth(made)


def test_reused_dispatch_numbers_are_told_apart(tmp_path):
    """Number 1 with another kernel is another dispatch, and no other pass."""
    path = g.v3_counters(
        tmp_path / "a.csv", [g.Launch(1, "a", counters={"X": 1.0}), g.Launch(2, "a", counters={"X": 2.0})]
    )
    more = [g.Launch(1, "b", start=5 * 10**15, counters={"X": 3.0})]
    path.write_text(path.read_text() + g.v3_counters(tmp_path / "b", more).read_text().split("\n", 1)[1])
    profile = ingest.read([path])
    assert profile.tidy(["kernel", "pass"])[["kernel", "pass", "value"]].values.tolist() == [
        ["a", "a", 1.0], ["a", "a", 2.0], ["b", "a", 3.0]
    ]  # fmt: skip
    assert whats(profile) == ["1 dispatch number is used for several dispatches"]


def test_passes_in_one_long_file(tmp_path):
    """rocprof-compute appends its passes: the same dispatch at another time is another pass, whoever ran it."""
    made = g.launches(3, counters=("A", "B"))
    other = g.later(g.launches(3, counters=("C",)))
    path = older.compute_long(tmp_path / "pmc_perf.csv", made, "guid-1")
    path.write_text(
        path.read_text() + older.compute_long(tmp_path / "x", other, "guid-2").read_text().split("\n", 1)[1]
    )
    (tmp_path / "x").unlink()
    profile = ingest.read([path])
    assert passes(profile) == ["pmc_perf[0]", "pmc_perf[1]"]
    assert joined(profile)[["A", "B", "C"]].notna().all(axis=None)


def test_rows_of_a_dispatch_that_lie_apart(tmp_path):
    """Counter by counter instead of dispatch by dispatch: the same table."""
    made = g.launches(4)
    path = g.v3_counters(tmp_path / "a.csv", made)
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(sorted(lines, key=lambda line: line.split('"')[5])))
    assert held(ingest.read([path])) == truth(made)


def test_two_values_of_a_counter_are_instances(tmp_path):
    """Rows per hardware instance, as some tools write them, are summed, and that is said."""
    made = g.launches(2, counters=("A", "B"))
    path = g.v3_counters(tmp_path / "a.csv", made)
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(line * 2 for line in lines))
    profile = ingest.read([path])
    assert profile.counters["value"].tolist() == [2000.0, 2002.0, 4000.0, 4002.0]
    assert profile.instances["instances"].tolist() == [2] * 4
    assert whats(profile) == ["counters have several values per dispatch"]


CHANNELS = ("TCC_HIT[0]", "TCC_HIT[1]", "TCC_HIT[10]")


@pytest.mark.parametrize("generation", ["1", "2", "3"])
def test_a_merged_table_shows_what_was_measured_together(tmp_path, generation):
    """rocprof-compute's pmc_perf.csv: each group of columns is a pass; channels are summed; accumulators get names."""
    groups = [["SQ_WAVES", "GRBM_GUI_ACTIVE"], CHANNELS, ["SQ_LEVEL_WAVES", "SQ_ACCUM_PREV_HIRES"]]
    made = g.launches(2, counters=[name for names in groups for name in names])
    older.sysinfo(tmp_path, generation)
    older.merged(tmp_path / "pmc_perf.csv", made, groups, generation=generation)
    profile = ingest.read([tmp_path])
    table = profile.tidy(["pass", "dispatch"])
    values = {(p, d, c): v for p, d, c, v in table.itertuples(index=False, name=None)}
    assert {(p, c) for p, _, c in values} == {
        ("pmc_perf[0]", "SQ_WAVES"), ("pmc_perf[0]", "GRBM_GUI_ACTIVE"), ("pmc_perf[1]", "TCC_HIT"),
        ("pmc_perf[2]", "SQ_LEVEL_WAVES"), ("pmc_perf[2]", "SQ_LEVEL_WAVES_ACCUM"),
    }  # fmt: skip
    assert values["pmc_perf[1]", 2, "TCC_HIT"] == sum(made[1].counters[name] for name in CHANNELS)
    assert profile.instances[["instances", "max"]].values.tolist() == [[3, 1004.0], [3, 2004.0]]
    assert profile.provenance[0].tool == "rocprof-compute"
    assert profile.dispatches["agent"].tolist() == [0] * 6
    assert profile.agents.loc[0, "cus"] == {"1": 120, "2": 104, "3": 304}[generation]


def test_a_counter_that_lacks_an_instance_was_not_measured(tmp_path):
    """An empty cell of one channel: the sum of the others was shown as the counter, 1001 for 2001; the rest stays."""
    made = g.launches(2, counters=(*CHANNELS[:2], "SQ_WAVES"))
    path = older.v1(tmp_path / "a.csv", made)
    assert path.read_text().count(",1000.0,") == 1
    path.write_text(path.read_text().replace(",1000.0,", ",,"))
    profile = ingest.read([path])
    assert profile.tidy(["dispatch"]).values.tolist() == [
        [1, "SQ_WAVES", 1002],
        [2, "TCC_HIT", 4001],
        [2, "SQ_WAVES", 2002],
    ]
    assert profile.instances[["row", "instances", "max"]].values.tolist() == [[1, 2, 2001]]
    assert whats(profile) == ["1 dispatch lacks counters that others of its pass have"]


def test_merged_accumulators_are_numbered_by_their_pass(tmp_path):
    """3.3 merges all accumulators into one table: SQ_ACCUM_PREV_HIRES, _1, _2, each beside its level counter."""
    groups = [
        ["SQ_IFETCH_LEVEL", "SQ_ACCUM_PREV_HIRES"], ["SQ_LEVEL_WAVES", "SQ_ACCUM_PREV_HIRES_1"],
        ["SQC_DCACHE_REQ_READ_2", "SQ_INST_LEVEL_LDS", "SQ_ACCUM_PREV_HIRES_2"],
    ]  # fmt: skip
    made = g.launches(1, counters=[name for names in groups for name in names])
    path = older.merged(tmp_path / "pmc_perf.csv", made, groups, generation="3")
    counters = ingest.read([path]).counters
    assert dict(zip(counters["counter"], counters["value"], strict=True)) == {
        "SQ_IFETCH_LEVEL": 1000.0, "SQ_IFETCH_LEVEL_ACCUM": 1001.0, "SQ_LEVEL_WAVES": 1002.0,
        "SQ_LEVEL_WAVES_ACCUM": 1003.0, "SQC_DCACHE_REQ_READ_2": 1004.0, "SQ_INST_LEVEL_LDS": 1005.0,
        "SQ_INST_LEVEL_LDS_ACCUM": 1006.0,
    }  # fmt: skip


def test_an_accumulator_of_two_levels_keeps_its_name(tmp_path):
    """It cannot be told which of them was accumulated."""
    made = g.launches(1, counters=("SQ_LEVEL_WAVES", "SQ_IFETCH_LEVEL", "SQ_ACCUM_PREV_HIRES"))
    profile = ingest.read([g.v3_counters(tmp_path / "a.csv", made)])
    assert profile.counters["counter"].tolist()[-1] == "SQ_ACCUM_PREV_HIRES"


def test_a_merged_table_gives_way_to_the_files_of_its_passes(tmp_path):
    """Where each pass's file is there, its times are exact and the merged table's are means."""
    groups = [["A"], ["B"]]
    made = g.launches(2, counters=("A", "B"))
    older.sysinfo(tmp_path, "3")
    older.merged(tmp_path / "pmc_perf.csv", made, groups, generation="3")
    for number, names in enumerate(groups):
        one = [g.Launch(**{**vars(m), "counters": {n: m.counters[n] for n in names}}) for m in made]
        older.v2(tmp_path / f"pmc_perf_{number}.csv", one, suffix="", blank=False)
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["pmc_perf_0", "pmc_perf_1"]
    (merged,) = (s for s in profile.provenance if s.file.endswith("pmc_perf.csv"))
    assert merged.skipped == "all its counters are in the files of the passes next to it, which are read"
    (tmp_path / "pmc_perf_1.csv").unlink()
    assert passes(ingest.read([tmp_path])) == ["pmc_perf[0]", "pmc_perf[1]", "pmc_perf_0"]


def test_what_analyze_joins_gives_way_to_what_it_joined(tmp_path):
    """From 3.6 on it leaves pmc_perf.csv beside the passes' files: the report took it for another rank's."""
    older.sysinfo(tmp_path, "3")
    made = [g.launches(3, counters=("A", "B")), g.later(g.launches(3, counters=("C",)))]
    joined = older.compute_long(tmp_path / "pmc_perf.csv", made[0])
    second = older.compute_long(tmp_path / "results_pmc_perf_1.csv", made[1], guid="2")
    joined.write_text(joined.read_text() + second.read_text().partition("\n")[2])
    assert passes(ingest.read([tmp_path])) == ["pmc_perf[0]", "pmc_perf[1]", "results_pmc_perf_1"]
    older.compute_long(tmp_path / "results_pmc_perf_0.csv", made[0])
    assert passes(ingest.read([tmp_path])) == ["results_pmc_perf_0", "results_pmc_perf_1"]


def test_each_counter_set_of_the_own_tool_is_a_pass(tmp_path):
    """Processes of one pass count together, and what analyze joined of them gives way."""
    older.sysinfo(tmp_path, "3")
    for process in (71, 72):
        made = g.launches(2, counters=("A",), process=process)
        older.compute_by_number(tmp_path, made, name=f"pmc_perf_0_{process}")
    older.compute_by_number(tmp_path, g.launches(2, counters=("B",), process=73), name="pmc_perf_1_73")
    older.compute_long(tmp_path / "pmc_perf.csv", g.launches(2, counters=("A", "B")))
    profile = ingest.read([tmp_path])
    assert passes(profile) == ["pmc_perf_0", "pmc_perf_1"]
    assert sorted(profile.dispatches["process"].unique()) == [71, 72, 73]
    assert not [problem for problem in profile.problems if "max_" not in problem.what]
    assert {source.tool for source in profile.provenance} == {"rocprof-compute"}


def test_a_workload_says_what_is_missing_for_its_peaks(tmp_path):
    """Official samples lack the clocks."""
    path = older.sysinfo(tmp_path, "3")
    profile = ingest.read([path])
    assert whats(profile) == ["max_sclk is empty or 0", "max_mclk is empty or 0"]
    assert pd.isna(profile.agents.loc[0, "max_clock_mhz"])
    assert profile.system[str(path)]["rocm_version"] == "7.1.0"


def test_the_tools_version_is_in_its_log(tmp_path):
    """rocprof-compute's tables do not state it."""
    older.sysinfo(tmp_path, "2")
    older.v2(tmp_path / "SQ_LEVEL_WAVES.csv", g.launches(2), blank=False)
    (tmp_path / "log.txt").write_text("Omniperf version: 2.0.0-RC1\nProfiler choice: rocprofv2\n")
    source = ingest.read([tmp_path / "SQ_LEVEL_WAVES.csv", tmp_path]).provenance[0]
    assert (source.tool, source.generation, source.version) == ("rocprofv2", "", "")
    source = ingest.read([tmp_path]).provenance[0]
    assert (source.tool, source.generation, source.version) == ("rocprof-compute", "Omniperf 2.x", "2.0.0-RC1")
    assert source.rocm == "6.2.0"


def test_roofs_are_read_with_their_units(tmp_path):
    """GB/s, GFLOP/s and GOP/s; the tool's own spellings differ from column to column."""
    path = tmp_path / "roofline.csv"
    path.write_text(
        "device,HBMBw,HBMBwLow,hbmBwHigh,MFMABF16Flops,MFMAI8Ops,MFMAFI8OpsLow\n0,1388.5,1387.9,1389,5,6,4\n"
    )
    profile = ingest.read([path])
    assert profile.roofs[["roof", "unit", "mean"]].values.tolist() == [
        ["HBM", "GB/s", 1388.5], ["MFMA BF16", "GFLOP/s", 5.0], ["MFMA I8", "GOP/s", 6.0],
    ]  # fmt: skip
    assert profile.roofs.loc[0, ["low", "high"]].tolist() == [1387.9, 1389.0]
    assert profile.roofs.loc[2, "low"] == 4.0


def test_machines_keep_their_gpus(tmp_path):
    """GPU 2 of one folder is not GPU 2 of another."""
    for name, cus in (("one", 304), ("two", 80)):
        g.v3_agents(tmp_path / name / "r_agent_info.csv", Cu_Count=cus)
        g.v3_counters(tmp_path / name / "r_counter_collection.csv", g.launches(1))
    profile = ingest.read([tmp_path / "one", tmp_path / "two"])
    assert passes(profile) == ["one/r", "two/r"]
    assert profile.agents.loc[profile.dispatches["agent"].astype(int), "cus"].tolist() == [304, 80]


def test_a_gpu_that_every_pass_describes_is_one(tmp_path):
    """Each pass has a file of its own about the same GPU: all launches are of one row."""
    for name in ("p1", "p2"):
        g.v3_agents(tmp_path / name / "r_agent_info.csv")
        g.v3_counters(tmp_path / name / "r_counter_collection.csv", g.launches(1))
    profile = ingest.read([tmp_path])
    assert len(profile.agents) == 1
    assert profile.dispatches["agent"].tolist() == [0, 0]


def test_the_same_process_twice_in_a_pass(tmp_path):
    """Hosts may use one process id: the dispatches of each stay its own."""
    made = g.launches(2)
    for name in ("r", "r-4711", "r_4711"):  # all are the pass "r" once the process id is taken out
        g.v3_counters(tmp_path / f"{name}_counter_collection.csv", made)
    profile = ingest.read([tmp_path])
    assert profile.dispatches["process"].tolist() == [4711, 4711, -2, -2, -3, -3]
    assert whats(profile) == ["dispatches of process 4711 also occur in another file of this pass"] * 2


def test_replayed_passes_are_numbered_by_the_file(tmp_path):
    """`rocpd convert` of a kernel replay states the pass."""
    made = g.launches(2, counters=("A",))
    path = g.v3_counters(tmp_path / "a.csv", made, "convert")
    header, *lines = path.read_text().splitlines()
    text = [header + ',"Replay_Pass"', *(f"{line},{i}" for i in (0, 1) for line in lines)]
    path.write_text("\n".join(text) + "\n")
    assert passes(ingest.read([path])) == ["a[0]", "a[1]"]
