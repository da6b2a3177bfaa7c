"""``rocattn gate judge``: stored pairs in, a decision a line out."""

import io
import json

import msgspec
import numpy as np
import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate.judge import judge

KEYS = ["id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason"]


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
        ("{", "malformed"),
        ("[1, 2]", "Expected `object`"),
        ('{"id": "x", "a": {"launches": []}}', "`b`"),
        ('{"a": {"launches": []}, "b": {"launches": []}}', "`id`"),
        ('{"id": "x", "a": {"launches": [{"round": 0, "samples": ["1"]}]}, "b": {"launches": []}}', "float"),
        ('{"id": "x", "a": {"launches": [{"round": 0, "samples": [NaN]}]}, "b": {"launches": []}}', "malformed"),
        ('{"id": "x", "a": {"launches": [{"round": 0, "samples": [-1]}]}, "b": {"launches": []}}', "not a time"),
        ('{"id": "x", "a": {"launches": [{"round": 0, "samples": []}]}, "b": {"launches": []}}', "no samples"),
        ('{"id": "x", "a": {"unit": "s", "launches": []}, "b": {"unit": "ns", "launches": []}}', "'s' and 'ns'"),
        (
            '{"id": "x", "a": {"launches": [{"round": 0, "samples": [1, 2], "cpu": [1]}]}, "b": {"launches": []}}',
            "unequal",
        ),
        ("\x00\x01", "malformed"),
    ],
)
def test_a_malformed_line_costs_one_message(line, tmp_path, capsys, bad, said):
    """What is no pair is told in one line with its number, the others are judged, and the exit status is 3."""
    path = written(tmp_path, [line("one"), bad, "", line("two")])
    out = tmp_path / "out.jsonl"
    assert main(["gate", "judge", str(path), "--out", str(out)]) == 3
    told = [row for row in capsys.readouterr().err.splitlines() if "is no pair" in row]
    assert len(told) == 1
    assert "line 2 is no pair" in told[0]
    assert said in told[0]
    assert [json.loads(row)["id"] for row in out.read_text().splitlines()] == ["one", "two"]


def test_json_is_alone_on_stdout(line, tmp_path, capsys):
    """--json prints the counts; what is for people goes to stderr."""
    path = written(tmp_path, [line("x")])
    assert main(["gate", "judge", str(path), "--out", str(tmp_path / "o"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["counts"] == {"pass": 1}
    assert printed["problems"] == []


def test_lines_come_from_standard_input_too(line, tmp_path, monkeypatch):
    """A dash reads stdin."""
    raw = io.BytesIO(json.dumps(line("x")).encode() + b"\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw))
    assert main(["gate", "judge", "-", "--out", str(tmp_path / "o")]) == 0


def test_undecided_lines_exit_2_when_strict(line, tmp_path):
    """Noise that hides the answer is tolerated, or not with --strict."""
    path = written(tmp_path, [line("x", noise=0.3)])
    arguments = ["gate", "judge", str(path), "--out", str(tmp_path / "o")]
    assert main(arguments) == 0
    assert main([*arguments, "--strict"]) == 2


def test_nothing_judged_is_not_green(tmp_path):
    """An empty file exits 3; a file that is not there, 4."""
    assert main(["gate", "judge", str(written(tmp_path, [])), "--out", str(tmp_path / "o")]) == 3
    assert main(["gate", "judge", str(tmp_path / "none"), "--out", str(tmp_path / "o")]) == 4


def test_a_session_shares_its_error(line):
    """A p that fails one benchmark alone does not fail one of forty."""
    rows = [line("alone", seed=29, slowdown=0.04, noise=0.014), *(line(f"q{i}", seed=100 + i) for i in range(39))]
    raw = [json.dumps(row).encode() for row in rows]
    alone, together = (json.loads(judge(raw, session=session).lines[0]) for session in (False, True))
    assert (alone["verdict"], together["verdict"]) == ("regression", "inconclusive")


def test_a_stored_sequence_is_decided_at_the_first_look_that_can(line):
    """Of twenty stored rounds a clear change uses five."""
    (row,) = judge([json.dumps(line("x", rounds=20, slowdown=0.4)).encode()]).lines
    assert json.loads(row)["rounds_used"] == 5


def test_a_smaller_effect_can_be_asked_for(line, tmp_path):
    """--min-effect is the tolerance of a pass; outside of 0.5 to 100 % it is a usage error."""
    path = written(tmp_path, [line("x", noise=0.01, slowdown=0.01)])
    out = tmp_path / "o"
    assert main(["gate", "judge", str(path), "--out", str(out), "--min-effect", "10"]) == 0
    assert json.loads(out.read_text())["verdict"] == "pass"
    main(["gate", "judge", str(path), "--out", str(out), "--min-effect", "1"])
    assert json.loads(out.read_text())["verdict"] == "inconclusive"
    assert main(["gate", "judge", str(path), "--out", str(out), "--min-effect", "0"]) == 4
