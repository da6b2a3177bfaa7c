"""PC samples and thread traces: read from every format into one table, named by their run, bad files in one line."""

import pytest

from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest.table import SAMPLE_DTYPES

from . import generators as g
from . import sample_generators as samples

MADE = [g.Launch(dispatch=number, kernel="attn") for number in (1, 2, 3)]


def sums(profile, *by):
    """Return the counts of a profile's samples by these columns."""
    table = profile.samples.astype(dict.fromkeys(by, "object"))
    return table.groupby(list(by), dropna=False)["count"].sum().to_dict()


def run_of(folder, kind):
    """Write the samples of a run in one format, with what names its kernels."""
    if kind == "csv":
        samples.csv(folder / "4711_pc_sampling_stochastic.csv")
        g.v3_trace(folder / "4711_kernel_trace.csv", MADE)
    elif kind == "json":
        samples.v3_json(folder / "4711_results.json")
    elif kind == "traced json":
        samples.v3_json(folder / "4711_results.json", made=MADE, kernels=())
    else:
        samples.rocpd(folder / "4711_results.db", MADE)
    return ingest.read([folder])


@pytest.mark.parametrize("kind", ["csv", "json", "traced json", "rocpd"])
def test_every_format_gives_the_same_samples(tmp_path, kind):
    """Reasons, lines and kernels; what cannot be decoded belongs to no kernel."""
    profile = run_of(tmp_path, kind)
    assert list(profile.samples.columns) == list(SAMPLE_DTYPES)
    assert profile.problems == []
    assert sums(profile, "kernel", "state") == {
        ("attn", "WAITCNT"): 600, ("attn", "ISSUED"): 110, ("attn", "BARRIER_WAIT"): 150,
        ("attn", "ALU_DEPENDENCY"): 40, ("", "WAITCNT"): 100,
    }  # fmt: skip
    assert sums(profile, "source")["/home/me/attn.hip:118"] == 700
    assert sums(profile, "instruction")[""] == 100
    table = profile.samples
    assert int(table.loc[table["state"] == "ALU_DEPENDENCY", "lanes"].iloc[0]) == 40 * 32, "half of the lanes"
    assert table["offset"].isna().all() == (kind == "csv")


def test_host_trap_samples_have_no_reasons(tmp_path):
    """Six columns instead of ten; the JSON has no snapshot."""
    for name, path in (("csv", samples.csv(tmp_path / "csv" / "1_x.csv", stochastic=False)),
                       ("json", samples.v3_json(tmp_path / "json" / "1_results.json", stochastic=False))):  # fmt: skip
        profile = ingest.read([path])
        assert sums(profile, "method", "state") == {("host_trap", "SAMPLED"): 1000}, name


def test_samples_and_counters_of_a_folder_are_both_read(tmp_path):
    """Counters and samples are never collected in one run, so they are in files of their own."""
    samples.csv(tmp_path / "sampled" / "9_pc_sampling_stochastic.csv")
    g.v3_trace(tmp_path / "sampled" / "9_kernel_trace.csv", MADE)
    g.v3_counters(tmp_path / "counted" / "8_counter_collection.csv", g.launches(3))
    profile = ingest.read([tmp_path])
    assert len(profile.counters) == 9
    assert sums(profile, "kernel") == {"attn": 900, "": 100}


def test_a_run_that_wrote_two_formats_is_counted_once(tmp_path):
    """The JSON has offsets, which the table lacks."""
    samples.csv(tmp_path / "5_pc_sampling_stochastic.csv")
    samples.v3_json(tmp_path / "5_results.json")
    profile = ingest.read([tmp_path])
    assert int(profile.samples["count"].sum()) == 1000
    assert profile.samples["offset"].notna().any()
    assert [source.kind for source in profile.provenance if source.skipped] == ["PC samples (stochastic)"]


def test_launches_stay_where_samples_are_another_file_s(tmp_path):
    """The database lacks the instructions that the JSON has, and is the one that the launches are read from."""
    samples.rocpd(tmp_path / "r_4711_results.db", MADE, texts=False)
    samples.v3_json(tmp_path / "r_4711_results.json", made=MADE)
    profile = ingest.read([tmp_path])
    assert int(profile.samples["count"].sum()) == 1000
    assert profile.dispatches["pass"].tolist() == ["r"] * 3
    assert [source.kind for source in profile.provenance if source.skipped] == ["results JSON"]


def test_counters_beside_samples_keep_their_launches(tmp_path):
    """Only times are better from a run that was not sampled."""
    made = [g.replace(each, counters={"SQ_WAVES": 1.0}) for each in MADE]
    samples.csv(tmp_path / "sampled" / "9_pc_sampling_stochastic.csv")
    g.v3_counters(tmp_path / "sampled" / "9_counter_collection.csv", made)
    g.v3_trace(tmp_path / "timed" / "8_kernel_trace.csv", MADE)
    table = ingest.read([tmp_path]).tidy(["kernel", "pass"])
    assert table.loc[table["counter"].notna(), ["kernel", "pass"]].values.tolist() == [["attn", "sampled/9"]] * 3


def test_a_sample_belongs_to_the_kernel_it_lies_in(tmp_path):
    """Without a kernel trace the code object's symbols say which it was."""
    path = samples.v3_json(tmp_path / "1_results.json", kernels=(("tail", 0x1100), ("attn", 0x1000), ("far", 0x2000)))
    assert sums(ingest.read([path]), "kernel") == {"attn": 890, "tail": 10, "": 100}


def test_dispatch_numbers_of_several_processes_name_nothing(tmp_path):
    """A table of samples has no process."""
    samples.csv(tmp_path / "run_pc_sampling_stochastic.csv")
    made = [*MADE, *(g.Launch(dispatch=number, kernel="other", process=4712) for number in (1, 2, 3))]
    g.v3_counters(
        tmp_path / "run_counter_collection.csv", [g.replace(each, counters={"SQ_WAVES": 1.0}) for each in made]
    )
    assert sums(ingest.read([tmp_path]), "kernel") == {"": 1000}


@pytest.mark.parametrize("write", [samples.stats_csv, samples.code_json])
def test_a_thread_trace_is_read_from_its_table_and_its_json(tmp_path, write):
    """Cycles by what they went to; executions once for each instruction."""
    write(tmp_path)
    profile = ingest.read([tmp_path])
    assert profile.problems == []
    assert sums(profile, "kernel", "state") == {
        ("attn(float*)", "ISSUED"): 660, ("attn(float*)", "STALLED"): 9600, ("attn(float*)", "IDLE"): 240,
        ("fill", "ISSUED"): 64, ("fill", "IDLE"): 16,
    }  # fmt: skip
    assert profile.samples.groupby("instruction", observed=True)["hits"].sum()["s_waitcnt lgkmcnt(0)"] == 48


def test_a_thread_trace_in_two_files_is_counted_once(tmp_path):
    """The profiler writes the table beside the folder with the JSON; other launches are others."""
    samples.stats_csv(tmp_path)
    samples.code_json(tmp_path)
    assert int(ingest.read([tmp_path]).samples["count"].sum()) == 10580
    assert [bool(source.skipped) for source in ingest.read([tmp_path]).provenance].count(True) == 1


def test_samples_that_are_cut_off_or_broken_are_one_line(tmp_path):
    """What is whole is read."""
    whole = samples.csv(tmp_path / "a_pc_sampling_host_trap.csv", stochastic=False)
    whole.write_bytes(whole.read_bytes()[:-40])
    profile = ingest.read([whole])
    assert len(profile.problems) == 1
    assert 990 <= int(profile.samples["count"].sum()) < 1000

    header = tmp_path / "b_pc_sampling_stochastic.csv"
    header.write_text(",".join(f'"{name}"' for name in samples.STOCHASTIC) + "\n")
    trace = samples.stats_csv(tmp_path / "c")
    trace.write_text(trace.read_text().replace(",276,96,", ",many,96,").replace(",384,96,", ",38,96,"))
    old = samples.code_json(tmp_path / "d", header="ISA, LineNumber, Hit, Cycles")
    cut = samples.code_json(tmp_path / "e")
    cut.write_bytes(cut.read_bytes()[:-200])
    problems = {path: ingest.read([path]).problems for path in (header, trace, old, cut)}
    assert [len(of_file) for of_file in problems.values()] == [0, 2, 1, 1]
    assert ingest.read([header]).provenance[0].skipped, "no samples"
    assert int(ingest.read([trace]).samples["count"].sum()) == 10580 - 324 - 576


def test_a_trace_that_met_no_wave_says_so(tmp_path):
    """Its table lists the code with zero executions."""
    path = samples.stats_csv(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], '11,5888,"s_nop 0",0,0,0,0,""']) + "\n")
    (source,) = ingest.read([path]).provenance
    assert source.kind == "thread trace"
    assert source.skipped


def test_a_database_without_instructions_has_offsets(tmp_path):
    """rocprofv3 decodes them when the database is queried, unless --complete-isa-decode was given."""
    profile = ingest.read([samples.rocpd(tmp_path / "1.db", MADE, texts=False)])
    assert set(profile.samples["instruction"]) == {""}
    assert sums(profile, "kernel") == {"attn": 900, "": 100}
    assert len(profile.dispatches) == 3
