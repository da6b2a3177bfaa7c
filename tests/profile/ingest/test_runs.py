"""Runs put together from their files: processes, traces and GPUs that are told in different words or places."""

from dataclasses import replace

import pandas as pd
import pytest

from rocattn_profiling.profile import ingest

from . import generators as g
from . import older_generators as older
from .test_formats import held, truth
from .test_passes import joined, passes


def test_launches_are_joined_per_process(tmp_path):
    """By the dispatch's number in its process, whatever else that process ran and in which order the rows stand."""
    first = [
        g.Launch(n, "k", process=pid, counters={"X": x}) for pid, n, x in ((71, 1, 1.0), (71, 2, 2.0), (72, 3, 3.0))
    ]
    second = [
        g.Launch(n, "k", process=pid, counters={"Y": y}) for pid, n, y in ((82, 1, 3.0), (81, 6, 2.0), (81, 5, 1.0))
    ]
    g.v3_counters(tmp_path / "p1" / "c.csv", first)
    g.v3_counters(tmp_path / "p2" / "c.csv", second)
    table = joined(ingest.read([tmp_path]))
    assert table["X"].tolist() == table["Y"].tolist() == [1, 2, 3]


def test_an_unnumbered_trace_is_matched_by_order(tmp_path):
    """The counters' numbers begin where the range of a filter did: 11 is the trace's first."""
    made = [replace(launch, dispatch=launch.dispatch + 10, grid=(256, 3, 1)) for launch in g.launches(4)]
    g.v3_counters(tmp_path / "r_counter_collection.csv", made[::-1], "6.2.0")  # in the order of their ends
    g.v3_trace(tmp_path / "r_kernel_trace.csv", made, "6.2.0")
    columns = ("process", "dispatch", "kernel", "grid", "start_ns", "end_ns", "counter", "value")
    assert held(ingest.read([tmp_path]), columns) == truth(made, columns)


def test_a_trace_with_repeated_numbers_is_not_used(tmp_path):
    """Two runs appended to one trace: which of the times is the counted launch's is not known."""
    made = g.launches(2)
    g.v3_counters(tmp_path / "r_counter_collection.csv", made, "6.2.4")
    path = g.v3_trace(tmp_path / "r_kernel_trace.csv", made, "6.4")
    again = g.v3_trace(tmp_path / "x" / "x.csv", g.later(made), "6.4").read_text().partition("\n")[2]
    path.write_text(path.read_text() + again)
    (tmp_path / "x" / "x.csv").unlink()
    found = ingest.read([tmp_path]).tidy(["start_ns"])
    assert found.loc[found["counter"].notna(), "start_ns"].isna().all()
    assert found["start_ns"].notna().sum() == 4


def test_digits_that_end_like_the_process_id_are_of_the_name(tmp_path):
    """size171 of process 71 is no pass "size1"."""
    g.v3_counters(tmp_path / "size171_counter_collection.csv", g.launches(2, process=71))
    assert passes(ingest.read([tmp_path])) == ["size171"]


def test_the_format_with_most_dispatches_is_kept(tmp_path):
    """A database that was cut short does not hide the trace beside it."""
    made = g.launches(3, counters=())
    g.v3_trace(tmp_path / "r_kernel_trace.csv", made)
    g.rocpd(tmp_path / "r_results.db", made[:2])
    profile = ingest.read([tmp_path])
    assert profile.dispatches["dispatch"].tolist() == [1, 2, 3]
    assert sum(source.skipped != "" for source in profile.provenance) == 1


@pytest.mark.parametrize(
    ("generation", "facts"),
    [
        # simds, max_waves_per_simd, max_waves_per_cu, xccs, clocks, channels of memory and L2, banks, engines
        ("1", [480, 10, 40, None, 1502, 1200, None, 32, 32, 8]),
        ("2", [416, 8, 32, 1, 1700, 1600, 32, 32, 32, 8]),
        ("3", [1216, 8, 32, 8, None, None, 128, 128, 32, 32]),
    ],
)
def test_a_workload_s_gpu_in_the_names_of_each_generation(tmp_path, generation, facts):
    """SIMDs are told a compute unit, wave slots too; 0 and nothing are no clock."""
    profile = ingest.read([older.sysinfo(tmp_path, generation)])
    columns = [
        "simds", "max_waves_per_simd", "max_waves_per_cu", "xccs", "max_clock_mhz", "max_memory_clock_mhz",
        "memory_channels", "l2_channels", "lds_banks", "shader_engines",
    ]  # fmt: skip
    found = profile.agents.loc[0, columns]
    assert [None if pd.isna(value) else value for value in found] == facts


def test_a_gpu_without_a_name_is_named_by_its_version(tmp_path):
    """Major, minor and step, the last two in hexadecimal: 90010 is gfx90a, 110501 gfx1151."""
    for number, version in enumerate((90010, 110501, 90402)):
        about = {"Name": "", "Gfx_Target_Version": version, "Node_Id": number, "Logical_Node_Id": number}
        g.v3_agents(tmp_path / f"{number}_agent_info.csv", **about)
    profile = ingest.read([tmp_path])
    assert profile.agents["arch"].tolist() == ["gfx90a", "gfx1151", "gfx942"]
    assert profile.agents.loc[0, ["lds_bytes", "wave_size", "shader_engines"]].tolist() == [65536, 64, 32]


def test_a_gpu_is_described_by_the_nearest_folder_above(tmp_path):
    """agent_info.csv stands once beside the folders of the passes; one within a pass is that pass's own."""
    g.v3_agents(tmp_path / "agent_info.csv", Cu_Count=304)
    g.v3_agents(tmp_path / "pass_2" / "agent_info.csv", Cu_Count=80)
    for number in (1, 2):
        g.v3_counters(tmp_path / f"pass_{number}" / "c_counter_collection.csv", g.launches(1))
    older.sysinfo(tmp_path / "pass_2", "3")  # which does not say what number its GPU has
    profile = ingest.read([tmp_path])
    assert profile.agents.loc[profile.dispatches["agent"].astype(int), "cus"].tolist() == [304, 80]


def test_a_launch_has_three_dimensions(tmp_path):
    """Traces state them apart; one number with two grids is two launches, even where a file has no times."""
    made = [g.Launch(1, "k", (64, 2, 3), (4, 2, 2)), g.Launch(2, "k", (64, 2, 5), (4, 2, 4))]
    found = ingest.read([g.v3_trace(tmp_path / "t.csv", made)]).dispatches
    assert found[["grid", "block"]].values.tolist() == [[384, 16], [640, 32]]
    twice = [g.Launch(n, "k", (64, 2, z), counters={"A": float(z)}) for n, z in ((1, 1), (2, 2), (1, 3))]
    profile = ingest.read([g.v3_counters(tmp_path / "c.csv", twice, "6.2.4")])
    assert profile.tidy(["grid"])[["grid", "value"]].values.tolist() == [[128, 1], [256, 2], [384, 3]]
