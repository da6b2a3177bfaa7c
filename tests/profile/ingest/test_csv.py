"""CSV as profilers, spreadsheets and crashes leave it."""

import gzip
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest import csv_text
from rocattn_profiling.profile.ingest.csv_text import split_records
from rocattn_profiling.profile.ingest.parts import Notes

from . import generators as g
from . import older_generators as older
from .test_formats import held, truth

NASTY = [
    "void f<int, float>(std::pair<int, int>, char const*)",
    'print("x", 1)',
    'a "quoted" word',
    "one\nname\nof three lines",
    'line one\n"and", two',
    "k" * 10_000,
    "Kernel_Name",
    "NA", "nan", "1e5", "Größe µ", "trailing space ", 'ends in a quote"',
]  # fmt: skip


def whats(profile):
    """Return the texts of the problems."""
    return [problem.what for problem in profile.problems]


def renamed(names):
    """Return launches with these kernel names."""
    return [g.Launch(i + 1, name, counters={"A": i + 0.5, "B": 2.0 * i}) for i, name in enumerate(names)]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize(
    "write", [lambda p, made: g.v3_counters(p, made, "6.3"), g.v3_counters, older.v1], ids=["6.3", "7.0", "rocprof 1"]
)
def test_kernel_names_of_any_kind(tmp_path, name, write):
    """rocprofv3 writes them as they are, quotes and line ends included; rocprof 1 and rocprof-compute escape them."""
    made = renamed(["plain", name, "after"])
    profile = ingest.read([write(tmp_path / "a.csv", made)])
    columns = ("dispatch", "kernel", "grid", "counter", "value")
    assert held(profile, columns) == [(a, b.strip(), *rest) for a, b, *rest in truth(made, columns)]
    assert whats(profile) == []


def edited(path, *edits):
    """Return a file in which each text is replaced by another, wherever it stands."""
    text = path.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def appended(path, *more):
    """Return a file with bytes, or another file's, at its end."""
    path.write_bytes(
        path.read_bytes() + b"".join(each if isinstance(each, bytes) else each.read_bytes() for each in more)
    )
    return path


def latin_1(path):
    """Return a file as Latin-1."""
    path.write_bytes(path.read_text().encode("latin-1"))
    return path


def values(profile):
    """Return the counters' values."""
    return profile.counters["value"].tolist()


def counted(made):
    """Return the values that launches have."""
    return [value for launch in made for value in launch.counters.values()]


def times(profile):
    """Return each launch's times, and the counters' values."""
    rows = profile.dispatches[["start_ns", "end_ns"]].astype("object")
    return rows.where(rows.notna(), None).values.tolist(), values(profile)


THREE = g.launches(3)
ENDS = [g.Launch(i + 1, "k", ns=ns, counters={"A": 1.0}) for i, ns in enumerate([5, 0, -7])]
GAP = [THREE[0], replace(THREE[1], counters={n: v for n, v in THREE[1].counters.items() if n != "SQ_WAVES"}), THREE[2]]
ROUNDED = [g.Launch(i + 1, "k", counters={"A": 2_655_020.0 + 10 * i, "B": 17.0}) for i in range(4)]
EXACT = [*ROUNDED, g.Launch(9, "k", counters={"A": 2_655_024.0, "B": 1.0})]
ALIKE = [g.Launch(i + 1, "k", counters={"SQ_WAVES": 1_228_800.0}) for i in range(4)]
LONG = [g.Launch(1, "k", start=2**62 + 12345, ns=1, counters={"A": 1.0})]
ODD = {
    "rocprof 1 leaves names unquoted: the columns on both sides tell where one ends": (
        lambda p: edited(older.v1(p, renamed(["f<a, b, c>", "g"])), ('"', "")),
        lambda read: (read.dispatches["kernel"].tolist(), values(read)),
        (["f<a, b, c>", "g"], [0.5, 0.0, 1.5, 2.0]), [],
    ),
    "cat a.csv b.csv leaves a header in the middle": (
        lambda p: appended(g.v3_counters(p, THREE[:2]), g.v3_counters(p.with_name("b"), g.later(g.launches(4))[2:])),
        held, truth(THREE[:2] + g.later(g.launches(4))[2:]), ["the header line occurs 1 more time (files were joined)"],
    ),
    "a Latin-1 name is shown with its bytes replaced": (
        lambda p: latin_1(g.v3_counters(p, [g.Launch(1, "Größe", counters={"A": 2.0})])),
        values, [2.0], ["1 kernel name contains bytes that are not UTF-8"],
    ),
    "a crash of the machine leaves NULs where the file system had not written yet": (
        lambda p: appended(g.v3_counters(p, THREE), b"\0" * 5000),
        held, truth(THREE), ["5,000 NUL bytes (the file was not fully written)"],
    ),
    "zero and negative durations go; the dispatch and its counters stay": (
        lambda p: g.v3_counters(p, ENDS),
        times, ([[ENDS[0].start, ENDS[0].end], [None] * 2, [None] * 2], [1.0] * 3),
        ["2 dispatches end before or when they start"],
    ),
    "timestamps of a machine that has been up for long need all 64 bits": (
        lambda p: g.v3_counters(p, LONG), times, ([[2**62 + 12345, 2**62 + 12346]], [1.0]), [],
    ),
    "counters may be absent for some kernels of a pass, and nothing is made up": (
        lambda p: g.v3_counters(p, GAP), held, truth(GAP), ["1 dispatch lacks counters that others of its pass have"],
    ),
    "a counter that was asked for twice must not count twice": (
        lambda p: edited(older.v1(p, g.launches(2, counters=("SQ_WAVES", "TWIN"))), ("TWIN", "SQ_WAVES")),
        values, [1000.0, 2000.0], ["1 counter column is repeated"],
    ),
    "a file made to fill the memory with names is refused": (
        lambda p: g.v3_counters(p, [g.Launch(1, "k", counters={f"C{i}": 1.0 for i in range(31_000)})]),
        values, [], ["31000 different counter names"],
    ),
    "rocprof-compute's long files round large sums: 2655020 for 2655024": (
        lambda p: older.compute_long(p, ROUNDED), values, counted(ROUNDED), ["values have 6 significant digits only"],
    ),
    "one value of seven digits is not rounded": (lambda p: older.compute_long(p, EXACT), values, counted(EXACT), []),
    "nor is what all launches have": (lambda p: g.v3_counters(p, ALIKE), values, counted(ALIKE), []),
}  # fmt: skip


@pytest.mark.parametrize(("write", "look", "found", "said"), ODD.values(), ids=ODD)
def test_what_is_odd_is_said_and_the_rest_is_read(tmp_path, write, look, found, said):
    """Each line of the problems is a claim; what is not odd says nothing."""
    profile = ingest.read([write(tmp_path / "a.csv")])
    assert look(profile) == found
    assert whats(profile) == said


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_blocks_of_any_size_give_the_same_table(tmp_path_factory, data):
    """Where a block ends never shows, whatever the names, the counters per dispatch and the ends of lines."""
    names = data.draw(st.lists(st.sampled_from([*NASTY[:5], *NASTY[6:]]), min_size=1, max_size=12))
    counters = data.draw(st.integers(1, 9))
    made = [
        g.Launch(i + 1, name, start=10**15 + 9 * i, ns=7, counters={f"C{k}": i + k / 8 for k in range(counters)})
        for i, name in enumerate(names)
    ]
    path = g.v3_counters(tmp_path_factory.mktemp("b") / "a.csv", made, data.draw(st.sampled_from(["6.2.4", "7.0"])))
    if data.draw(st.booleans()):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    columns = ("dispatch", "kernel", "grid", "lds_bytes", "counter", "value")
    whole = held(ingest.read([path]), columns)
    assert len(whole) == len(truth(made, columns))
    size = data.draw(st.integers(300, 3000))
    before = csv_text.blocks.__kwdefaults__["block_bytes"]
    csv_text.blocks.__kwdefaults__["block_bytes"] = size
    try:
        assert held(ingest.read([path]), columns) == whole
    finally:
        csv_text.blocks.__kwdefaults__["block_bytes"] = before


def test_reading_line_by_line_equals_reading_with_pandas(tmp_path, monkeypatch):
    """An irregular block costs time, and nothing else."""
    rng = random.Random(3)  # noqa: S311 - test data
    made = [
        g.Launch(
            i + 1, f"k{rng.randrange(3)}", (rng.randrange(1, 99), 2, 1), start=10**15 + 100 * i, ns=1 + i % 9,
            lds=rng.randrange(9), counters={f"C{k}": rng.random() * 10 ** rng.randrange(-3, 9) for k in range(12)},
        )
        for i in range(200)
    ]  # fmt: skip
    path = g.v3_counters(tmp_path / "a.csv", made)
    quick = held(ingest.read([path]))

    def refuse(*_):
        raise csv_text.IrregularError

    monkeypatch.setattr(csv_text._Parser, "_read", refuse)
    assert quick == held(ingest.read([path]))
    assert len(quick) == 200 * 12


def test_two_runs_in_one_file_are_two_passes(tmp_path):
    """Neighbouring rows of dispatch 1 with different start times are two measurements, not one."""
    made = g.launches(1, counters=[f"C{k}" for k in range(9)])
    path = g.v3_counters(tmp_path / "a.csv", made)
    again = g.v3_counters(tmp_path / "b.csv", g.later(made)).read_text().split("\n", 1)[1]
    path.write_text(path.read_text() + again)
    profile = ingest.read([path])
    assert profile.dispatches["pass"].tolist() == ["a[0]", "a[1]"]
    assert len(profile.counters) == 18


@pytest.mark.parametrize("keep", [0.3, 0.55, 0.81, 0.97])
def test_a_cut_file_gives_its_complete_rows(tmp_path, keep):
    """A profiler that was killed leaves half a line; the rest counts, and the cut is said."""
    made = g.launches(40)
    path = g.v3_counters(tmp_path / "a.csv", made)
    data = path.read_bytes()
    cut = data[: int(len(data) * keep)]
    path.write_bytes(cut)
    profile = ingest.read([path])
    assert len(profile.counters) == cut.count(b"\n") - 1
    assert set(held(profile)) <= set(truth(made))
    assert whats(profile)[0] == "the last line is cut off"


@pytest.mark.parametrize("generation", ["6.2.0", "7.0"])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_last_line_without_its_end(tmp_path, generation, lost):
    """It is kept if its last number has all its digits, a timestamp or a value."""
    made = g.launches(2)
    path = g.v3_counters(tmp_path / "a.csv", made, generation)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 1 - lost])
    profile = ingest.read([path])
    assert len(profile.counters) == (5 if lost else 6)
    said = "the last line is cut off" if lost else "the last line does not end in a newline: the file may be cut off"
    assert whats(profile)[0] == said


@pytest.mark.parametrize("text", ["", "\n", "\n\n\n"])
def test_a_header_alone_says_that_nothing_ran(tmp_path, text):
    """It is no error of the file."""
    path = g.v3_counters(tmp_path / "a.csv", [])
    path.write_text(path.read_text() + text)
    (found,) = ingest.describe([path])
    assert found.source.skipped.startswith("it contains no rows")
    assert found.problems == ()


def test_spreadsheets_round_timestamps(tmp_path):
    """8.1097E+14 is not a time, even where start and end differ; counters are kept."""
    path = older.v2(tmp_path / "a.csv", g.launches(3))
    text = path.read_text()
    for launch in g.launches(3):
        text = text.replace(str(launch.start), "1.55E+15").replace(str(launch.end), "1.56E+15")
    path.write_text(text)
    profile = ingest.read([path])
    assert profile.dispatches[["start_ns", "end_ns"]].isna().all(axis=None)
    assert profile.counters["value"].tolist() == [v for launch in g.launches(3) for v in launch.counters.values()]
    assert whats(profile) == ["6 timestamps in scientific notation: a spreadsheet rounded them"]
    assert profile.problems[0].line == 3, "an empty line is below the header"


def test_semicolons_and_byte_order_marks(tmp_path):
    """A spreadsheet in another language saves with semicolons, one on Windows in UTF-16."""
    made = g.launches(3)
    names = [g.Launch(**{**vars(launch), "kernel": f"k{i}"}) for i, launch in enumerate(made)]
    path = older.v2(tmp_path / "a.csv", names)
    text = path.read_text().replace(",", ";")
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be"):
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        path.write_bytes((mark + text).encode(encoding))
        profile = ingest.read([path])
        assert held(profile) == truth(names), encoding
        assert whats(profile) == []


def test_tables_that_are_compressed(tmp_path):
    """rocprof-compute compresses its tables from 10.2 on: they were left out without a word in the report."""
    made = g.launches(40)
    plain = older.compute_long(tmp_path / "results_pmc_perf_0.csv", made)
    expected = held(ingest.read([plain]))
    packed = tmp_path / "packed" / "results_pmc_perf_0.csv.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    profile = ingest.read([packed])
    assert held(profile) == expected
    assert not profile.problems


def test_columns_that_rocprofv2_names_and_does_not_fill(tmp_path):
    """`--plugin-version 1` of ROCm 6.1, which Triton's tuner takes (ROCm/rocprofiler#144): all rows were dropped."""
    path = older.v1(tmp_path / "results_0.csv", g.launches(2))
    whole = held(ingest.read([path]))
    header, *rows = path.read_text().splitlines()
    assert "sig,obj" in header
    path.write_text("\n".join([header, *(row.replace(",0x0,0x7f,", ",") for row in rows), ""]))
    profile = ingest.read([path])
    assert held(profile) == whole
    assert whats(profile) == []
    path.write_text(f"{header}\n1,{'n' * 140_000},1\n")
    assert whats(ingest.read([path])) == ["1 line is not a record of this table"]


def test_bytes_that_are_not_utf8_in_json(tmp_path):
    """A table of the same names was read, the JSON was refused as cut off."""
    path = g.v3_json(tmp_path / "a.json", g.launches(3))
    path.write_bytes(path.read_bytes().replace(b"copyBuffer", b"copy\x8dBuffer"))
    profile = ingest.read([path])
    assert "__amd_rocclr_copy\ufffdBuffer" in profile.dispatches["kernel"].cat.categories
    assert whats(profile) == ["1 kernel name contains bytes that are not UTF-8"]


def test_missing_values_are_not_measured(tmp_path):
    """An empty or wrong cell is no zero."""
    path = older.v1(tmp_path / "a.csv", g.launches(3))
    path.write_text(path.read_text().replace(",1000.0,", ",,").replace(",2001.0,", ",1e400,"))
    path.write_text(path.read_text().replace(",112,64,", ",nan,64,", 1))
    profile = ingest.read([path])
    values = profile.tidy(["dispatch"])
    assert len(values) == 7
    assert profile.dispatches["sgprs"].isna().tolist() == [True, False, False]
    assert (1, "SQ_WAVES") not in set(zip(values["dispatch"], values["counter"], strict=True))
    assert whats(profile)[-1] == "2 dispatches lack counters that others of their pass have"


def test_hostile_lines_take_linear_time(tmp_path):
    """Quotes that never end, and no line ends at all: bounded work, one line said, other files read."""
    good = g.v3_counters(tmp_path / "good.csv", g.launches(2))
    header = good.read_text().split("\n", 1)[0]
    (tmp_path / "open.csv").write_text(header + "\n" + '1,1,"Agent 1",1,"\n' * 30_000)
    (tmp_path / "flat.csv").write_text(header + "\n" + "1," * 12_000_000)
    profile = ingest.read([tmp_path])
    assert held(profile) == truth(g.launches(2))
    assert whats(profile) == snapshot(["a line longer than 4 MiB", "30,000 lines are not records of this table"])


def test_the_line_of_a_problem_is_the_files(tmp_path):
    """Lines count from 1, the header included."""
    notes = Notes("f")
    rows, at, rest = split_records(b'1,"a,2\n2,"b",3\nx\n3,"c"\n', 3, ",", 1, 2, notes)
    assert (rows, at) == ([["2", "b", "3"]], [3])
    assert rest == b'3,"c"\n'
    assert [(p.line, p.what) for p in notes.problems()] == [(2, "2 lines are not records of this table")]


def test_a_problem_names_the_line_of_the_first_case(tmp_path):
    """Of a wrong time, a repeated header and a row without a number, wherever in a block they are."""
    made = g.launches(8)
    lines = g.v3_trace(tmp_path / "a.csv", made).read_text().splitlines()
    lines[4] = lines[4].replace(str(made[3].end), "18446744073709551615")
    lines.insert(6, lines[0])
    lines[8] = lines[8].replace('"KERNEL_DISPATCH"', '"KERNEL_DISPATCH"').replace(f",{made[6].dispatch},", ",,", 1)
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    found = {problem.what: problem.line for problem in ingest.read([tmp_path / "a.csv"]).problems}
    assert found["1 timestamp is not a number"] == 5
    assert found["the header line occurs 1 more time (files were joined)"] == 7
    assert found["1 row without a dispatch number"] == 9


def test_times_of_a_trace_are_not_to_be_taken_from_a_trace(tmp_path):
    """Of counters they are: these have no times that can be."""
    made = [replace(launch, ns=-launch.ns) for launch in g.launches(2)]
    remedies = {}
    for name, write in (("trace", g.v3_trace), ("counters", g.v3_counters)):
        profile = ingest.read([write(tmp_path / name / "a.csv", made)])
        assert whats(profile) == snapshot(["2 dispatches end before or when they start"])
        remedies[name] = profile.problems[0].remedy
    assert remedies == {
        "trace": "their times are not used", "counters": "their times are not used; take times from a kernel trace",
    }  # fmt: skip


def test_counting_bytes():
    """The count is exact for any length."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 4096):
        data = rng.integers(0, 4, size, np.uint8).tobytes()
        assert csv_text.count_byte(data, b"\2") == data.count(b"\2")


def test_numbers_of_a_type_that_was_not_asked_for_are_read_anew(tmp_path, monkeypatch):
    """pandas 3.0 makes a column with a number beyond int64 one of uint64, where 3.1 refuses it."""
    path = g.v3_trace(tmp_path / "a.csv", renamed(["f", "g"]))
    header, *rows = (line.split(",") for line in path.read_text().splitlines())
    rows[0][header.index('"Grid_Size_X"')] = str(2**63 + 5)
    path.write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    right, real = held(ingest.read([path])), pd.read_csv

    def unsigned(*given, dtype, **options):
        return real(
            *given, dtype={name: "uint64" if kind == "int64" else kind for name, kind in dtype.items()}, **options
        )

    monkeypatch.setattr(pd, "read_csv", unsigned)
    profile = ingest.read([path])
    assert held(profile) == right
    assert not any("cannot be read" in str(problem) for problem in profile.problems)
