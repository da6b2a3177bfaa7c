"""Broken, empty, foreign and hostile files: one line each, and the run's other files are read."""

import gzip
import json
import os
import sqlite3
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest import load as reading
from rocattn_profiling.profile.ingest import rocpd
from rocattn_profiling.profile.metrics.launches import find_launches

from ...screens import screen
from . import generators as g
from . import older_generators as older
from . import sample_generators as samples
from .test_csv import whats
from .test_formats import held, truth

MADE = g.launches(3)


def make(folder, kind):
    """Write one broken file."""
    path = folder / f"broken.{kind}"
    if kind == "empty.csv":
        path.write_bytes(b"")
    elif kind == "json":
        path.write_bytes(g.v3_json(path, MADE).read_bytes()[:-900])
    elif kind == "types.json":
        path.write_text(g.v3_json(path, MADE).read_text().replace('"dispatch_id": 2', '"dispatch_id": "two"'))
    elif kind == "deep.json":
        path.write_text('{"rocprofiler-sdk-tool":' + "[" * 200_000)
    elif kind == "chrome.json":
        path.write_bytes(older.chrome(path, MADE).read_bytes()[:-40])
    elif kind == "db":
        path.write_bytes(g.rocpd(path, g.launches(400)).read_bytes()[:40_000])
    elif kind == "header.db":
        path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    elif kind == "views.db":
        base = sqlite3.connect(g.rocpd(path, MADE))
        base.execute("DROP VIEW kernels")
        base.close()
    elif kind == "tables.db":
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE rocpd_kernel_dispatch_x (id)")
        base.close()
    return path


@pytest.mark.parametrize(
    "kind", ["empty.csv", "json", "types.json", "deep.json", "chrome.json", "db", "header.db", "views.db", "tables.db"]
)
def test_a_broken_file_is_one_line_and_the_others_are_read(tmp_path, kind):
    """The line names the file, says what is wrong and what to do."""
    good = g.v3_counters(tmp_path / "run" / "good_counter_collection.csv", MADE)
    broken = make(good.parent, kind)
    profile = ingest.read([tmp_path])
    assert held(profile) == truth(MADE)
    (problem,) = profile.problems
    assert problem.file == str(broken)
    assert "\n" not in str(problem)
    assert "report this file" not in str(problem), "it is known what is wrong"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"type": 2', '"type": [2]'),
        ('"handle": 9280}', '"handle": [9280]}'),
        ('"cu_count": 304', f'"cu_count": {10**30}'),
        ('"pid": ', f'"pid": {10**30}'),
    ],
)
def test_odd_values_of_a_json_are_no_surprise(tmp_path, old, new):
    """A list or a number that nothing holds costs at most the file, in one line that says what it is."""
    path = g.v3_json(tmp_path / "a_results.json", MADE)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    for problem in ingest.read([path]).problems:
        assert "report this file" not in str(problem)


def test_a_long_number_in_a_header_is_a_name(tmp_path):
    """Python reads no number of so many digits."""
    path = g.v3_counters(tmp_path / "a_counter_collection.csv", MADE)
    path.write_text(path.read_text().replace("Kernel_Name", f"Kernel_Name,Kernel_Id_{'1' * 5000}", 1))
    assert "report this file" not in " ".join(map(str, ingest.read([path]).problems))


def test_statistics_beyond_all_measure_are_dropped(tmp_path):
    """A count that no integer holds, of rocprofv3 and of proton."""
    path = g.v3_stats(tmp_path / "a_kernel_stats.csv", MADE)
    head = path.read_text().splitlines()[0]
    row = ["9" * 19 if name == "Calls" else "1" for name in head.replace('"', "").split(",")]
    path.write_text(f"{head}\n{','.join(row)}\n")
    (problem,) = ingest.read([path]).problems
    assert screen(str(problem), tmp=tmp_path) == snapshot(
        "tmp/a_kernel_stats.csv:2: 1 row without calls or time; dropped"
    )
    node = {"frame": {"name": "k"}, "children": [], "metrics": {"time (ns)": 5.0, "count": 1e300}}
    (tmp_path / "k.hatchet").write_text(json.dumps([node]))
    assert "report this file" not in " ".join(map(str, ingest.read([tmp_path / "k.hatchet"]).problems))


def test_damaged_text_of_a_database_is_one_line(tmp_path):
    """SQLite's message quotes it."""
    path = tmp_path / "a.db"
    samples.rocpd(path, MADE)
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE rocpd_gpu_pc_sample_u SET exec_mask = CAST(? AS TEXT)", (b"a\xff\n\x1b[2J" + b"b" * 9000,))
        base.commit()
    (problem,) = ingest.read([path]).problems
    assert str(problem).partition(" (")[0] == f"{path}: the database is damaged"
    assert len(str(problem)) < 1000
    assert str(problem).isprintable()


@pytest.mark.parametrize("kind", ["cut", "damaged", "no table"])
def test_a_compressed_file_that_cannot_be_read_is_one_line(tmp_path, kind):
    """It is a problem of the profile: nobody looks for what a report leaves out."""
    table = g.v3_counters(tmp_path / "good_counter_collection.csv", MADE).read_bytes()
    packed = tmp_path / "more.csv.gz"
    packed.write_bytes({
        "cut": gzip.compress(table * 100, 0)[:-2000],
        "damaged": b"\x1f\x8b\x08" + b"\xff" * 500,
        "no table": gzip.compress(b"SQLite format 3\0" + b"x" * 100),
    }[kind])  # fmt: skip
    profile = ingest.read([tmp_path])
    assert held(profile) == truth(MADE)
    (problem,) = profile.problems
    assert problem.file == str(packed)
    assert "compressed" in problem.what


def test_text_in_a_number_of_a_database(tmp_path):
    """SQLite holds any type in any column: one bad cell is one missing value."""
    path = g.rocpd(tmp_path / "a.db", MADE)
    base = sqlite3.connect(path)
    base.execute("UPDATE rocpd_kernel_dispatch_u SET lds = 'much' WHERE dispatch_id = 2")
    base.execute("UPDATE rocpd_pmc_event_u SET value = 'x' WHERE id = 1")
    base.commit()
    base.close()
    profile = ingest.read([path])
    assert profile.dispatches["lds_bytes"].isna().tolist() == [False, True, False]
    assert len(profile.counters) == 8
    assert whats(profile)[:2] == [
        "1 value is not an integer where one is expected", "1 counter value is missing or not a number"
    ]  # fmt: skip


def test_a_view_without_end_is_stopped(tmp_path, monkeypatch):
    """A database may hold a view that counts for ever: more rows than the file can hold are refused."""
    path = g.rocpd(tmp_path / "a.db", MADE)
    base = sqlite3.connect(path)
    columns = [row[1] for row in base.execute("PRAGMA table_info(kernels)")]
    base.execute("DROP VIEW kernels")
    listed = ", ".join(f'n AS "{name}"' for name in columns)
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
    base.execute(f"CREATE VIEW kernels AS {endless} SELECT {listed} FROM c")  # noqa: S608 - own text
    base.commit()
    assert whats(ingest.read([path])) == ["its views return more than the file can hold"]
    base.execute("DROP VIEW kernels")
    base.execute(f"CREATE VIEW kernels AS {endless} SELECT {listed} FROM c WHERE n < 0")  # noqa: S608 - own text
    base.commit()
    base.close()
    monkeypatch.setattr(rocpd, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(rocpd, "_BYTES_PER_SECOND", 1e9)
    assert whats(ingest.read([path])) == ["its views do not end"]


_LONG = "replace(hex(zeroblob(500000)), '0', 'k')"
_BOMBS = {
    "rocpd_info_kernel_symbol": "x, 'g', 'k' || x, 0, 0, 0",
    "rocpd_info_pmc": "x, 'g', 'c' || x",
    "rocpd_info_process": "x AS id, 'g' || x AS guid, 1 AS pid, '' AS command",
    "rocpd_info_agent": f"'GPU' AS type, x AS id, 'g' AS guid, 0 AS logical_index, {_LONG} AS extdata",
    "rocpd_metadata": f"x AS id, x || {_LONG} AS tag, 'v' AS value",
    "memory_copies": f'1 AS pid, {_LONG} AS name, 1 AS start, 2 AS "end", 3 AS size, 0 AS src_agent_log_index, '
    "0 AS dst_agent_log_index",
}


@pytest.mark.parametrize("view", _BOMBS)
def test_a_view_of_more_than_the_file_can_hold_is_one_line(tmp_path, view):
    """A file of some kilobytes does not take all memory, whichever view is without end."""
    path = g.rocpd(tmp_path / "a.db", MADE)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(f"DROP VIEW IF EXISTS {view}")
        many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 100000)"
        real = f"SELECT * FROM {view}_u UNION ALL " if " AS " not in _BOMBS[view] else ""  # noqa: S608 - own text
        base.execute(f"CREATE VIEW {view} AS {many} {real} SELECT {_BOMBS[view]} FROM n")  # noqa: S608 - own text
    tracemalloc.start()
    try:
        (problem,) = ingest.read([path]).problems
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    what, remedy = "its views return more than the file can hold", "this is not a profiler's file"
    if view == "rocpd_metadata":  # it is read first, to tell what the file is
        what, remedy = (
            f"the database is damaged or cut off ({what}; {remedy}); profile again",
            "the other files are read",
        )
    assert (problem.what, problem.remedy) == (what, remedy)
    assert most < 100 << 20


def test_blank_lines_cost_no_more_than_others(tmp_path):
    """A log of nothing but ends of lines took minutes: a pattern ran over all of them at each."""
    for name, content in {
        "lines": b"\n" * 65_000 + b"x", "spaces": b"x\n" + b" \n" * 30_000, "name": b"Name: a" + b"\n" * 65_000,
        "table": b"|--|" + b"\n" * 65_000, "names": b"Name: a\n\n" * 7_000,
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    begun = time.process_time()
    assert not ingest.read([tmp_path]).problems
    assert time.process_time() - begun < 5


def test_a_database_whose_writer_was_killed_is_said_to_be_one(tmp_path):
    """SQLite would have to roll the file back, which a reader does not: nobody tried to write."""
    path, hot = g.rocpd(tmp_path / "a.db", MADE), tmp_path / "hot"
    hot.mkdir()
    base = sqlite3.connect(path)
    base.execute("PRAGMA cache_size = 1")
    base.execute("CREATE TABLE filler (text)")
    base.execute("INSERT INTO filler SELECT hex(zeroblob(4000)) FROM rocpd_kernel_dispatch_u")
    base.commit()
    base.execute("UPDATE filler SET text = text || 'x'")
    for name in ("a.db", "a.db-journal"):
        (hot / name).write_bytes((tmp_path / name).read_bytes())
    base.close()
    before = (hot / "a.db").read_bytes()
    (problem,) = ingest.read([hot / "a.db"]).problems
    assert problem.what == snapshot(
        "the program that wrote the database was killed midway (a.db-journal remains); profile again"
    )
    assert (hot / "a.db").read_bytes() == before


def test_compressed_columns_are_not_called_damage(tmp_path):
    """rocpd_views_lz4.sql of rocprofiler-sdk reads columns through a function that only ROCm has."""
    path = g.rocpd(tmp_path / "a.db", MADE)
    base = sqlite3.connect(path)
    (text,) = base.execute("SELECT sql FROM sqlite_master WHERE name = 'rocpd_info_agent_u'").fetchone()
    columns = text.partition("(")[2].rstrip(")").replace("extdata", "CAST(lz4_decompress(extdata) AS TEXT) AS extdata")
    base.execute("DROP VIEW rocpd_info_agent")
    base.execute(f"CREATE VIEW rocpd_info_agent AS SELECT {columns} FROM rocpd_info_agent_u")  # noqa: S608 - own names
    base.close()
    (problem,) = ingest.read([path]).problems
    assert "lz4_decompress" in problem.what
    assert "damaged" not in problem.what
    assert "rocpd convert" in problem.remedy


def test_a_trace_of_rocm_profile_data_is_not_called_damaged(tmp_path):
    """Its tables begin with rocpd_, too: a whole file was to be profiled again."""
    with closing(sqlite3.connect(tmp_path / "trace.rpd")) as base:
        for table in ("rocpd_string", "rocpd_op", "rocpd_api", "rocpd_kernelop", "rocpd_metadata"):
            base.execute(f"CREATE TABLE {table} (id, tag, value)")
        base.commit()
    (found,) = ingest.describe([tmp_path])
    assert found.source.skipped == (
        "a trace of rocmProfileData (rpd), which is not read: record with rocprofv3 --kernel-trace --output-format csv "
        "json rocpd, which are read"
    )
    assert not found.problems


def test_a_database_is_not_written_to(tmp_path):
    """Reading leaves the file and its folder as they were."""
    path = g.rocpd(tmp_path / "a.db", MADE)
    before = path.read_bytes()
    ingest.read([tmp_path])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_other_kinds_are_named_with_the_reason(tmp_path):
    """A folder holds logs, inputs and pictures beside the profiles."""
    texts = {
        "input.txt": "pmc: SQ_WAVES\n", "notes.md": "# Notes\n", "log.txt": "RPL: on '1'\n",
        "table.csv": "a,b\n1,2\n", "trace.json": '{"traceEvents": [{"ph": "X"}]}', "other.json": '{"a": 1}',
        "copies.csv": '"Kind","Direction","Start_Timestamp"\n', "api.csv": '"Domain","Function","Process_Id"\n',
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "pipe").parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "pipe")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    found = {Path(one.source.file).name: one for one in ingest.describe([tmp_path])}
    assert set(found) == {*texts, "picture.png", "pipe", "other.db"}
    assert all(one.source.skipped and not one.problems for one in found.values())
    assert found["pipe"].source.skipped == "not a regular file"
    assert "counters" in found["input.txt"].source.skipped
    assert found["log.txt"].source.tool == "rocprof"


@pytest.mark.parametrize(("kind", "what"), [("dispatch", "launches"), ("kernel_symbols", "kernels")])
def test_counters_without_the_file_that_names_their_kernels(tmp_path, kind, what):
    """Of the three files of rocprof-compute's own tool one was not copied: counters of nothing say nothing."""
    older.compute_by_number(tmp_path, MADE)
    (tmp_path / f"{kind}_pmc_perf_0_4711.csv.gz").unlink()
    profile = ingest.read([tmp_path])
    (problem,) = profile.problems
    assert problem.what == f"its {what} are not in {kind}_pmc_perf_0_4711.csv.gz next to it"
    assert problem.remedy == snapshot(
        "keep the three files of a pass together, under the names that rocprof-compute gave them"
    )
    assert not len(profile.dispatches)
    renamed = (tmp_path / "counters_pmc_perf_0_4711.csv.gz").rename(tmp_path / "a.csv.gz")
    (problem,) = ingest.read([renamed]).problems
    assert problem.what == snapshot("its kernels are not in kernel_symbols_….csv.gz next to it")


def test_launches_and_kernels_that_are_not_listed_are_counted(tmp_path):
    """A process that was ended while it wrote: the rest is read."""
    older.compute_by_number(tmp_path, MADE)
    for kind, keep in (("dispatch", 3), ("kernel_symbols", 2)):
        path = tmp_path / f"{kind}_pmc_perf_0_4711.csv.gz"
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.write_bytes(gzip.compress(b"".join(lines[:keep])))
    profile = ingest.read([tmp_path])
    assert profile.dispatches["dispatch"].tolist() == [1]
    assert whats(profile) == [
        "1 launch is of a kernel that is not listed",
        f"{len(MADE[0].counters) * (len(MADE) - 1)} values are of launches that are not listed",
    ]


def test_no_advice_to_decompress_what_is_unreadable(tmp_path):
    """Some other tool's trace.json.gz: unpacking it helps nobody."""
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(b'{"displayTimeUnit": "ms", "traceEvents": []}'))
    (found,) = ingest.describe([tmp_path])
    assert found.source.skipped.startswith("a Chrome trace of neither PyTorch's profiler nor rocprof 1")
    assert not found.problems


def test_detection_does_not_believe_names(tmp_path):
    """A counter file called notes.txt is a counter file."""
    path = g.v3_counters(tmp_path / "x.csv", MADE).rename(tmp_path / "notes.txt")
    assert held(ingest.read([path])) == truth(MADE)


def test_links_that_go_round_and_copies_by_link(tmp_path):
    """A link to a folder above does not loop; a file reached twice is read once; hidden folders are left out."""
    g.v3_counters(tmp_path / "run" / "a.csv", MADE)
    (tmp_path / "run" / "up").symlink_to(tmp_path)
    (tmp_path / "run" / "b.csv").symlink_to(tmp_path / "run" / "a.csv")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    g.v3_counters(tmp_path / ".rocprofv3" / "c.csv", MADE)
    profile = ingest.read([tmp_path, tmp_path / "run" / "a.csv"])
    assert held(profile) == truth(MADE)
    assert [problem.what for problem in profile.problems] == ["cannot be read (No such file or directory)"]


def test_a_folder_of_too_many_files_is_cut_and_said(tmp_path, monkeypatch):
    """A whole disk given by mistake ends in a line, not in hours."""
    monkeypatch.setattr(reading, "MOST_FILES", 5)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("x")
    assert whats(ingest.read([tmp_path])) == ["more than 5 files"]


def test_what_is_not_there_is_an_error(tmp_path):
    """A wrong path is the caller's mistake, not a file's."""
    with pytest.raises(RocattnError, match="nowhere does not exist"):
        ingest.read([tmp_path / "nowhere"])


def test_an_empty_folder_gives_an_empty_profile(tmp_path):
    """All frames are there, with their columns."""
    profile = ingest.read([tmp_path])
    assert list(profile.tidy().columns)[-2:] == ["counter", "value"]
    assert len(find_launches(profile)) == 0
    assert profile.problems == []


def test_a_surprise_in_a_reader_is_one_line(tmp_path, monkeypatch):
    """A defect of ours in one file must not hide the rest of the run."""
    g.v3_counters(tmp_path / "a.csv", MADE)
    older.v1(tmp_path / "b.csv", MADE)

    def fail(_part):
        raise KeyError("inside")

    monkeypatch.setattr(reading, "check", fail)
    assert whats(ingest.read([tmp_path])) == ["cannot be read (KeyError: 'inside')"] * 2
