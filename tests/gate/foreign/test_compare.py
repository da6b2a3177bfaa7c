"""Verdicts on files that others measured: the rule of the gate, and what a weaker design costs."""

import datetime as dt
import json

import msgspec
import numpy as np
import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.foreign.compare import compared, sides_of
from rocattn_profiling.gate.judge import judge
from rocattn_profiling.gate.rule.policy import Policy

START = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def write_google(folder, pairs, *, in_turns=True):
    """Write a file for each launch of some pairs; return both sides' files."""
    folder.mkdir(exist_ok=True)
    files = {"base": [], "head": []}
    rounds = pairs[0].rounds
    for place, side in enumerate(files):
        for number in range(rounds):
            second = 2 * number + place if in_turns else number + place * rounds
            rows = [
                {"name": pair.id, "run_type": "iteration", "iterations": 1, "real_time": wall, "time_unit": "ns"}
                for pair in pairs
                for wall in (pair.a, pair.b)[place].launches[number].samples
            ]
            when = (START + dt.timedelta(seconds=second)).isoformat()
            path = folder / f"{side}-{number}.json"
            path.write_text(json.dumps({"context": {"date": when}, "benchmarks": rows}))
            files[side].append(path)
    return files


def dated(pairs):
    """The same pairs with the times of these files, for `judge`."""
    for pair in pairs:
        sides = (
            msgspec.structs.replace(side, launches=[
                msgspec.structs.replace(launch, start_us=1e6 * (START.timestamp() + 2 * number + place))
                for number, launch in enumerate(side.launches)
            ])
            for place, side in enumerate((pair.a, pair.b))
        )  # fmt: skip
        yield msgspec.json.encode(dict(zip(("id", "a", "b"), (pair.id, *sides), strict=True)))


def test_files_have_the_verdicts_of_the_gates_rule(tmp_path, make_pair):
    """Of 60 pairs, unchanged and slower, each as `gate judge` decides the same launches."""
    rng = np.random.default_rng(1)
    pairs = [make_pair(rng, 12, (0.0, 0.05, 0.15)[n % 3], f"b{n}", noise=0.01) for n in range(60)]
    result = compared(write_google(tmp_path / "g", pairs), Policy())
    stored = [json.loads(line) for line in judge(dated(pairs), session=True).lines]
    assert {entry.label: entry.status for entry in result.entries} == {each["id"]: each["verdict"] for each in stored}
    assert {entry.status for entry in result.entries if int(entry.label[1:]) % 3 == 2} == {"regression"}
    assert not any(entry.status == "regression" for entry in result.entries if int(entry.label[1:]) % 3 == 0)
    assert (result.status, result.in_turns, result.notes, result.machine) == (1, True, [], None)


@pytest.mark.parametrize("files", [1, 2])
def test_few_files_prove_nothing(tmp_path, make_pair, files):
    """However much the values differ: many samples of one process are one launch."""
    pairs = [make_pair(np.random.default_rng(2), files, 9.0, "b", samples=50)]
    result = compared(write_google(tmp_path / "g", pairs), Policy())
    assert (result.status, result.entries[0].status) == (0, "inconclusive")
    assert any(note.startswith(f"{files} file") for note in result.notes)


def test_sides_one_after_the_other_are_said_to_be_so(tmp_path, make_pair):
    """A drift of the machine then raises the bar: what it may have made is no regression."""
    rng = np.random.default_rng(3)
    steady = [make_pair(rng, 8, 0.5, "b", noise=0.005)]
    files = write_google(tmp_path / "g", steady, in_turns=False)
    result = compared(files, Policy())
    assert (result.status, result.in_turns) == (1, False)
    assert [note.partition(":")[0] for note in result.notes] == ["one side ran before the other"]
    drifting = {
        side: [[1e6 * (1 + 0.02 * (n + 8 * place))] for n in range(8)] for place, side in enumerate(("base", "head"))
    }
    for side, paths in files.items():
        for path, (value,) in zip(paths, drifting[side], strict=True):
            path.write_text(json.dumps({"name": "b", "value": value, "unit": "ns"}))
    result = compared(files, Policy())
    assert (result.status, result.entries[0].status) == (0, "inconclusive")
    assert [note.partition(":")[0] for note in result.notes] == ["the files do not say when they were measured"]


def write_lines(folder, side, rows):
    """Write a file of JSON lines for each launch."""
    folder.mkdir(exist_ok=True)
    for number, row in enumerate(rows):
        (folder / f"{side}-{number}.jsonl").write_text("\n".join(json.dumps(each) for each in row))
    return sorted(folder.glob(f"{side}-*"))


def test_a_rate_that_rises_is_an_improvement(tmp_path):
    """And one that falls a regression; of a unit that says nothing no change is called."""
    rng = np.random.default_rng(4)

    def rows(up, down, other):
        for _ in range(12):
            factors = np.exp(rng.normal(0, 0.004, 3))
            values = np.array([up, down, other]) * factors
            yield [
                {"name": name, "value": float(value), "unit": unit}
                for name, value, unit in zip(("up", "down", "other"), values, ("ops/ms", "GB/s", "points"), strict=True)
            ]

    sides = {
        "base": write_lines(tmp_path / "a", "base", rows(100, 100, 100)),
        "head": write_lines(tmp_path / "b", "head", rows(150, 80, 200)),
    }
    result = compared(sides, Policy())
    entries = {entry.label: entry for entry in result.entries}
    assert {name: entry.status for name, entry in entries.items()} == {
        "up": "improvement", "down": "regression", "other": "ungated",
    }  # fmt: skip
    assert (entries["down"].base, entries["down"].head) == (pytest.approx(100, rel=0.02), pytest.approx(80, rel=0.02))
    assert entries["down"].decision.ratio == pytest.approx(1.25, rel=0.02)


def test_what_is_on_one_side_is_no_pass(tmp_path):
    """Missing on head or failed there is status 3; new on head is said."""

    def row(*names):
        return [{"name": name, "value": 5.0, "unit": "ms"} for name in names]

    odd = {"name": "odd", "value": 5, "unit": "MiB"}
    sides = {
        "base": write_lines(tmp_path / "a", "base", [row("x", "gone", "odd")] * 6),
        "head": write_lines(tmp_path / "b", "head", [[*row("x", "new"), odd]] * 6),
    }  # fmt: skip
    result = compared(sides, Policy())
    assert {entry.label: entry.status for entry in result.entries} == {
        "x": "pass", "gone": "missing", "new": "new", "odd": "void",
    }  # fmt: skip
    assert (result.status, result.sentence[:43]) == (3, "2 of 3 existing benchmarks were not compare")


def test_sides_are_told_apart_or_refused(tmp_path, monkeypatch, capsys):
    """By folder, else by name; a folder stands for its files; who cannot tell asks."""
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        write_lines(tmp_path / folder, "r", [[{"name": "x", "value": 1.0, "unit": "s"}]] * 3)
    one, two = (sorted(str(path) for path in tmp_path.glob(f"{folder}/*")) for folder in ("one", "two"))
    for files, head in (([*one, *two[:2]], []), (one, two[:2])):
        assert [len(paths) for paths in sides_of(files, head).values()] == [3, 2]
    assert [len(paths) for paths in sides_of(["one", "two"], []).values()] == [3, 3]
    names = [f"{side}-{n}.txt" for side in ("base", "head") for n in range(3)]
    assert [paths[0].name for paths in sides_of(names, []).values()] == ["base-0.txt", "head-0.txt"]
    for words in (one, [one[0], one[0]], ["one", str(tmp_path / "none")], ["one", "two", "--format", "xyz"]):
        assert main(["gate", "compare", *words, "--out", "out"]) == 4
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_writes_every_form(tmp_path, make_pair, capsys):
    """As `gate run`, and `gate show` reads it; the page names no machine that it does not know."""
    files = write_google(tmp_path / "g", [make_pair(np.random.default_rng(5), 12, 0.3, "b", noise=0.005)])
    words = [str(path) for paths in files.values() for path in paths]
    assert main(["gate", "compare", *words, "--out", str(tmp_path / "out")]) == 1
    assert "slower: b" in capsys.readouterr().out
    assert verdict.read(tmp_path / "out/verdict.json").launches == 24
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "index.html",
        "comment.md",
        "junit.xml",
        "gate.sarif",
    }
    assert "<dt>machine</dt>" not in (tmp_path / "out/index.html").read_text()
    assert main(["gate", "compare", *words, "--out", str(tmp_path / "out"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "regression"
