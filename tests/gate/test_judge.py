"""``rocattn gate judge``: stored pairs in, a decision a line out."""

import gzip
import io
import json
import math

import msgspec
import numpy as np
import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate.judge import judge

KEYS = ["id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason", "undecided", "rounds_needed"]


@pytest.fixture
def line(make_pair):
    """Return a function that gives a line: ``line(id, slowdown=…)``."""

    def make(name, seed=1, rounds=5, **options):
        pair = msgspec.to_builtins(make_pair(np.random.default_rng(seed), rounds, **options))
        for side in (pair["a"], pair["b"]):
            for launch in side["launches"]:
                launch.pop("canary")
        return {**pair, "id": name}

    return make


def of(**launch):
    """A line whose one launch, of side a, has these columns."""
    return json.dumps({"id": "x", "a": {"launches": [{"round": 0, **launch}]}, "b": {"launches": []}})


NO_TIME = "x: round 0 of side a has a sample that is not a time"


def written(folder, rows):
    """Write lines to a file; strings stand as they are."""
    path = folder / "in.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_each_line_is_decided_in_order(line, tmp_path):
    """A slower, an equal and a faster head: the documented keys, ids as they came, exit 1 for the regression."""
    path = written(tmp_path, [line("slow", slowdown=0.3, cpu=True), line(7), line("fast", slowdown=-0.3)])
    out = tmp_path / "deep" / "out.jsonl"
    assert main(["gate", "judge", str(path), "--out", str(out)]) == 1
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["id"] for row in rows] == ["slow", 7, "fast"]
    assert [row["verdict"] for row in rows] == ["regression", "pass", "improvement"]
    assert rows[0]["ratio_low"] < 1.3 < rows[0]["ratio_high"]


def test_columns_and_history_may_be_absent_or_null(line):
    """Without cpu, nivcsw, history, benchmark, unit and number, or with null for them, the verdict is the same."""
    full = line("x", slowdown=0.3)
    bare, empty = json.loads(json.dumps(full)), json.loads(json.dumps(full))
    for side in "ab":
        bare[side] = {"launches": [{k: x[k] for k in ("round", "samples")} for x in bare[side]["launches"]]}
        empty[side]["history"] = None
        for launch in empty[side]["launches"]:
            launch["cpu"] = launch["nivcsw"] = None
    found = judge([json.dumps(row).encode() for row in (full, bare, empty)])
    assert not found.problems
    assert len({row[8:] for row in found.lines}) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "Input data was truncated"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ('{"id": "x", "a": {"launches": []}}', "Object missing required field `b`"),
        ('{"a": {"launches": []}, "b": {"launches": []}}', "Object missing required field `id`"),
        (of(samples=["1"]), "Expected `float`, got `str` - at `$.a.launches[0].samples[0]`"),
        (of(samples=[math.nan]), "it contains NaN, which is neither JSON nor a time"),
        (of(samples=[1, -math.inf]), "it contains -Infinity, which is neither JSON nor a time"),
        (of(samples=[1e300]), f"{NO_TIME}: 1e+300, beyond 1e-30 to 1e+30"),
        (of(samples=[1e-300]), f"{NO_TIME}: 1e-300, beyond 1e-30 to 1e+30"),
        (of(samples=[1], sclk_mhz=[1e99]), f"{NO_TIME}: 1e+99, beyond 1e-30 to 1e+30"),
        (of(samples=[-1]), f"{NO_TIME}: -1"),
        (of(samples=[]), "x: round 0 of side a has no samples"),
        (of(samples=[1, 2], cpu=[1]), "x: round 0 of side a has columns of unequal length"),
        (of(samples=[1], nivcsw=[-3]), "x: round 0 of side a has a count in nivcsw that is negative: -3"),
        (
            f'{{"id": "{"x" * 1000}", "a": {{"unit": "s", "launches": []}}, "b": {{"launches": []}}}}',
            f"{'x' * 59}…: the sides are in 's' and 'ns'",
        ),
        (
            '{"id": "x", "a": {"unit": "s", "launches": []}, "b": {"unit": "ns", "launches": []}}',
            "x: the sides are in 's' and 'ns'",
        ),
        (
            '{"id": "x", "a": {"launches": []}, "b": {"number": 0, "launches": []}}',
            "x: side b has number 0: a sample is of 1 call or more",
        ),
        (
            '{"id": "x", "a": {"number": -3, "launches": []}, "b": {"launches": []}}',
            "x: side a has number -3: a sample is of 1 call or more",
        ),
        ("[" * 100_000, "maximum recursion depth exceeded while deserializing an object"),
        ("\x00\x01", "JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_a_malformed_line_costs_one_message(line, tmp_path, capsys, bad, said):
    """What is no pair is told in one line with its number, the others are judged, and the exit status is 3."""
    path = written(tmp_path, [line("one"), bad, "", line("two")])
    out = tmp_path / "out.jsonl"
    assert main(["gate", "judge", str(path), "--out", str(out)]) == 3
    assert capsys.readouterr().err.splitlines()[:-1] == [f"{path}: line 2 is not a pair: {said}"]
    assert [json.loads(row)["id"] for row in out.read_text().splitlines()] == ["one", "two"]


def test_what_a_line_says_reaches_the_terminal_as_text(tmp_path, capsys):
    """An id with escapes, line breaks and marks that reorder text is one harmless line."""
    row = json.dumps({"id": "\x1b[2J\n\u202eeno", "a": {"unit": "\u202e", "launches": []}, "b": {"launches": []}})
    assert main(["gate", "judge", str(written(tmp_path, [row])), "--out", str(tmp_path / "o")]) == 3
    told = capsys.readouterr().err
    assert not {"\x1b", "\u202e"} & set(told)
    assert len(told.splitlines()) == 2


def test_a_file_of_something_else_has_few_messages(line, tmp_path, capsys):
    """A thousand messages, and a count of the rest; the pair among them is judged."""
    path = written(tmp_path, ["x"] * 1500 + [line("one")])
    assert main(["gate", "judge", str(path), "--out", str(tmp_path / "o"), "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.err.splitlines()[999:-1] == [
        f"{path}: line 1000 is not a pair: JSON is malformed: invalid character (byte 0)",
        f"{path}: 500 more lines refused",
    ]
    printed = json.loads(captured.out)
    assert (printed["refused"], printed["counts"]) == (1500, {"pass": 1})


def test_whole_numbers_may_be_written_as_floats(line):
    """Writers of tables know one kind of number; what is not whole stays refused, not rounded."""
    row = line("x", slowdown=0.3)
    for launch in (launch for side in "ab" for launch in row[side]["launches"]):
        launch["nivcsw"] = [0] * len(launch["samples"])
    whole = json.dumps(row).encode()
    for side in "ab":
        row[side]["number"] = float(row[side]["number"])
        for launch in row[side]["launches"]:
            launch["round"], launch["pos"] = float(launch["round"]), float(launch["pos"])
            launch["nivcsw"] = [float(count) for count in launch["nivcsw"]]
    found = judge([whole, json.dumps(row).encode()])
    assert (found.problems, found.lines[0]) == ([], found.lines[1])
    row["a"]["launches"][0]["nivcsw"][0] = 0.5
    assert judge([json.dumps(row).encode()]).problems == [
        "line 1 is not a pair: Expected `int`, got `float` - at `$.a.launches[0].nivcsw[0]`"
    ]


def test_a_compressed_file_is_one_line(line, tmp_path, capsys):
    """Not a complaint for each of its bytes that looks like an end of line."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(gzip.compress(b"".join(json.dumps(line(str(n))).encode() + b"\n" for n in range(20))))
    assert main(["gate", "judge", str(path), "--out", str(tmp_path / "o")]) == 4
    assert capsys.readouterr().err == (
        "rocattn gate: the file is compressed (gzip): unpack it, or hand its lines to `rocattn gate judge -`\n"
    )


def test_the_input_is_not_overwritten(line, tmp_path, capsys):
    """Decisions in place of the launches would be measurements lost; also by another name."""
    path = written(tmp_path, [line("x")])
    (tmp_path / "link").symlink_to(path)
    before = path.read_bytes()
    for out in (path, tmp_path / "link"):
        assert main(["gate", "judge", str(path), "--out", str(out)]) == 4
        assert capsys.readouterr().err == (
            f"rocattn gate: --out {out} is the input file: the decisions would overwrite the stored pairs\n"
        )
    assert path.read_bytes() == before


def test_decisions_go_to_standard_output_when_asked(line, tmp_path, capfdbinary, monkeypatch):
    """``--out -`` is no file of that name, and does not go with --json."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, [line("x"), line("y")])
    assert main(["gate", "judge", str(path), "--out", "-"]) == 0
    printed = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(row)["id"] for row in printed] == ["x", "y"]
    assert main(["gate", "judge", str(path), "--out", "-", "--json"]) == 4
    assert not (tmp_path / "-").exists()


def test_an_interrupted_file_leaves_what_was_there(tmp_path, capsys, monkeypatch):
    """Decisions are written all at once: Ctrl-C says that there are none, and an earlier file stays."""

    class Slow(io.BytesIO):
        def __next__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Slow()))
    (tmp_path / "o").write_text("earlier")
    assert main(["gate", "judge", "-", "--out", str(tmp_path / "o")]) == 130
    assert capsys.readouterr().err == "rocattn gate: interrupted\nno decision was written\n"
    assert (tmp_path / "o").read_text() == "earlier"


def test_a_closed_standard_input_is_one_line(monkeypatch, capsys):
    """A job without one: Python then has no object for it."""
    monkeypatch.setattr("sys.stdin", None)
    assert main(["gate", "judge", "-"]) == 4
    assert capsys.readouterr().err == "rocattn gate: standard input is closed: name a file of stored pairs\n"


@pytest.mark.parametrize("factor", [1e-300, 1e-6, 1e300])
def test_the_unit_of_start_us_does_not_matter(line, factor):
    """Sides in sequence, on clocks of any unit: the same verdict, with the same drift, and no overflow."""
    rows = []
    for scale in (1.0, factor):
        row = line("x", slowdown=0.3)
        for offset, side in enumerate(("a", "b")):
            for launch in row[side]["launches"]:
                launch["start_us"] = (launch["round"] + 10 * offset + 1) * scale
        rows.append(json.dumps(row).encode())
    plain, scaled = (json.loads(row) for row in judge(rows).lines)
    assert plain["reason"] == (
        "slower by 29.8 % in wall time, beyond the noise of its launches; all launches of one side ran before the "
        "other's, and the machine may have drifted by 13.6 %"
    )
    assert scaled["reason"] == plain["reason"]
    assert scaled["p"] == pytest.approx(plain["p"])


@pytest.mark.parametrize(("unit", "factor"), [("us", 1e-3), ("\u00b5s", 1e-3), ("msec", 1e-6), ("seconds", 1e-9)])
def test_the_name_of_the_unit_does_not_matter(line, unit, factor):
    """A doubled call of 100 ns is below the floor of a sample of one call, whatever the times are called."""
    row = line("x", slowdown=1.0, cpu=True)
    for side in (row["a"], row["b"]):
        side["unit"] = unit
        for launch in side["launches"]:
            for column in ("samples", "cpu"):
                launch[column] = [value * 1e-4 * factor for value in launch[column]]
    (found,) = (json.loads(text) for text in judge([json.dumps(row).encode()]).lines)
    assert found["verdict"] == "pass"
    assert found["reason"] == "+99.6 % in CPU time, but too small in absolute terms to matter"


def test_swapped_sides_turn_the_verdict_around(line):
    """Regression and improvement, the ratio and its inverse; also where a sample is of more calls on one side."""
    row = line("x", slowdown=1.0, cpu=True)
    for side in (row["a"], row["b"]):
        for launch in side["launches"]:
            for column in ("samples", "cpu"):
                launch[column] = [value * 1e-3 for value in launch[column]]
    row["a"]["number"] = 100
    swapped = {"id": "y", "a": row["b"], "b": row["a"]}
    there, back = (json.loads(text) for text in judge([json.dumps(x).encode() for x in (row, swapped)]).lines)
    assert (there["verdict"], back["verdict"]) == ("regression", "improvement")
    assert there["ratio"] * back["ratio"] == pytest.approx(1.0, abs=1e-5)


def test_the_order_of_lines_and_of_launches_does_not_matter(line):
    """Alone and as a session: reversed files and reversed launches have the same decisions, by id."""
    sizes = [0.0, 0.0, 0.02, 0.05, 0.1, 0.3, -0.1]
    rows = [line(i, seed=i, rounds=12, slowdown=size, noise=0.03) for i, size in enumerate(sizes)]
    mixed = json.loads(json.dumps(rows[::-1]))
    for row in mixed:
        for side in (row["a"], row["b"]):
            side["launches"].reverse()
    for session in (False, True):
        found, other = (
            {json.loads(text)["id"]: text for text in judge([json.dumps(x).encode() for x in y], session=session).lines}
            for y in (rows, mixed)
        )
        assert found == other


def test_lines_come_from_standard_input_too(line, tmp_path, monkeypatch):
    """A dash reads stdin."""
    raw = io.BytesIO(json.dumps(line("x")).encode() + b"\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw))
    assert main(["gate", "judge", "-", "--out", str(tmp_path / "o")]) == 0


NOISY, CLOSE = {"noise": 0.3}, {"noise": 0.01, "slowdown": 0.01}


@pytest.mark.parametrize(
    ("rows", "arguments", "status", "counts"),
    [
        ([NOISY], (), 0, {"inconclusive": 1}),
        ([NOISY], ("--strict",), 2, {"inconclusive": 1}),
        ([CLOSE], ("--tolerance", "10"), 0, {"pass": 1}),
        ([CLOSE], ("--tolerance", "1"), 0, {"inconclusive": 1}),
        ([CLOSE], ("--tolerance", "0"), 4, None),  # 0.5 to 100 %
        ([], (), 3, {}),  # nothing judged is not green
        (None, (), 4, None),
    ],
)
def test_a_status_and_the_counts_alone_on_stdout(line, tmp_path, capsys, rows, arguments, status, counts):
    """--json prints the counts; what is for people goes to stderr."""
    path = tmp_path / "none" if rows is None else written(tmp_path, [line("x", **options) for options in rows])
    assert main(["gate", "judge", str(path), "--out", str(tmp_path / "o"), "--json", *arguments]) == status
    out = capsys.readouterr().out
    assert (json.loads(out)["counts"] if out else None) == counts
    assert not out or json.loads(out)["problems"] == []


def test_a_byte_order_mark_and_line_ends_of_windows_are_read(line, tmp_path):
    """A file that PowerShell or a text editor wrote."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(line(name)).encode() for name in "xy"))
    assert main(["gate", "judge", str(path), "--out", str(tmp_path / "o")]) == 0


def test_a_session_shares_its_error(line):
    """A p that fails one benchmark alone does not fail one of forty."""
    rows = [line("alone", seed=29, slowdown=0.04, noise=0.014), *(line(f"q{i}", seed=100 + i) for i in range(39))]
    raw = [json.dumps(row).encode() for row in rows]
    alone, together = (json.loads(judge(raw, session=session).lines[0]) for session in (False, True))
    assert (alone["verdict"], together["verdict"]) == ("regression", "inconclusive")


def test_stored_rounds_are_decided_at_the_first_look(line):
    """Of twenty stored rounds a clear change uses five."""
    (row,) = judge([json.dumps(line("x", rounds=20, slowdown=0.4)).encode()]).lines
    assert json.loads(row)["rounds_used"] == 5
