"""The record of noise from one run of the gate to the next: who writes it, who reads it, and what is said of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.launch import Request
from rocattn_profiling.cli import main
from rocattn_profiling.gate import noise_record, selftest, verdict
from rocattn_profiling.gate.formats import markdown, render, untrusted
from rocattn_profiling.gate.model import KnownNoise, NoiseSource
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.session.store import LaunchLine

from ..screens import line

LABEL = "bench_work.Exact.time_work(100)"
QUICK = ("--quick", "--seed", "3", "--bench", "100")


@pytest.fixture
def gate(varying, offline, capsys, monkeypatch):
    """Return a function that runs ``rocattn gate`` in the project: its status, and the verdict or None."""
    monkeypatch.chdir(varying.root)

    def call(verb, *arguments):
        status = main(["gate", verb, *arguments])
        gate.out, gate.err = capsys.readouterr()
        path = Path("out/gate/verdict.json")
        return status, verdict.read(path) if verb == "run" and path.exists() else None

    gate = call
    return call


def record():
    """The machine's own record in the current project, decoded; and its path."""
    (path,) = Path("results").glob(f"*/{noise_record.FILE}")
    return msgspec.json.decode(path.read_bytes(), type=noise_record.NoiseRecord), path.absolute()


def launches_of(record):
    """Label -> how many launches each session has."""
    return {past.key.label: [len(session.wall) for session in past.sessions] for past in record.benchmarks}


@pytest.mark.slow
def test_a_selftest_teaches_the_runs_after_it(varying, gate):
    """A session of both sides; a run reads it and adds nothing, unless it is to learn: then base's launches alone."""
    assert gate("selftest", *QUICK, "--rounds", "4", "--draws", "3")[0] == 0
    kept, path = record()
    assert line(gate.err, "earlier") == f"the noise from earlier sessions is unknown: there is no record yet: {path}"
    assert launches_of(kept) == {LABEL: [8]}
    assert line(gate.err, "learned") == f"noise: learned from 1 benchmark: {path}"
    assert varying.git("status", "--porcelain") == ""
    before = path.read_bytes()

    status, found = gate("run", "--base", "HEAD", "--head", "HEAD", *QUICK)
    assert (status, found.noise) == (0, NoiseSource(path=str(path)))
    assert [(entry.noise.sessions, entry.noise.launches) for entry in found.entries] == [(1, 8)]
    assert all(entry.noise.value < 0.03 for entry in found.entries)
    assert line(Path("out/gate/comment.md").read_text(), "earlier") == snapshot(
        "- noise of earlier sessions: known for 1 of 1 benchmarks, 1 session each (noise.json.rocattn)"
    )
    assert path.read_bytes() == before

    assert gate("run", "--base", "HEAD", "--head", "HEAD", "--learn", *QUICK)[0] == 0
    assert launches_of(record()[0]) == {LABEL: [8, 5]}

    assert gate("selftest", *QUICK, "--rounds", "4", "--draws", "3", "--json")[0] == 0
    message = msgspec.json.decode(gate.out, type=selftest.Selftest)
    assert (message.noise.path, [s.sessions for s in message.benchmarks]) == (str(path), [2])
    assert line(gate.err, "earlier") == f"noise from earlier sessions was known for 1 of 1 benchmarks: {path}"
    assert launches_of(record()[0]) == {LABEL: [8, 5, 8]}


@pytest.mark.slow
def test_a_resumed_run_knows_what_it_began_with(gate, unfinish):
    """The record is replaced while the run is stopped: the verdict is that of a run that was not."""
    run = ("run", "--base", "HEAD", "--head", "HEAD", *QUICK, "--learn")
    assert gate(*run)[0] == 0
    _, whole = gate(*run)
    stored = Path("out/gate/launches.jsonl")
    lines = stored.read_text().splitlines()
    unfinish(stored, lines[:9], lines[9][:30])  # killed while it wrote the tenth line
    noisy, path = record()
    for session in noisy.benchmarks[0].sessions:
        session.wall[:] = [value * (1 + place) for place, value in enumerate(session.wall)]
    path.write_bytes(msgspec.json.encode(noisy))
    _, resumed = gate(*run)
    assert line(gate.err, "resuming") == snapshot("resuming an interrupted run: 8 launches are there")
    assert (resumed.noise, resumed.entries[0].noise.sessions) == (whole.noise, 1)
    assert [(e.decision, e.noise) for e in resumed.entries] == [(e.decision, e.noise) for e in whole.entries]
    _, fresh = gate(*run[:-1])
    # The session that was stopped is the one that it learned before: it counts once.
    assert (fresh.entries[0].noise.sessions, fresh.entries[0].noise.launches) == (2, 10)


@pytest.mark.slow
def test_a_record_that_cannot_be_used_changes_nothing(varying, gate, monkeypatch):
    """Corrupt, of another machine, of full runs, or unwanted: one line, the same status, nothing written over."""
    kept = Path("kept.json")
    kept.write_text("{")
    run = ("run", "--base", "HEAD", "--head", "HEAD", *QUICK, "--noise", str(kept))
    status, found = gate(*run, "--learn")
    assert (status, found.noise.why_not) == (0, f"{kept} is not a noise record of rocattn gate")
    assert line(Path("out/gate/comment.md").read_text(), "earlier") == snapshot(
        "- noise of earlier sessions: kept.json is not a noise record of rocattn gate"
    )
    assert line(gate.err, "learned") == snapshot(
        "noise: nothing learned: kept.json is not a noise record of rocattn gate"
    )
    assert kept.read_text() == "{"

    kept.unlink()
    assert (
        gate("selftest", "--seed", "3", "--rounds", "3", "--draws", "3", "--bench", "100", "--noise", str(kept))[0] == 0
    )
    assert not Path("results").exists()
    _, found = gate(*run)
    # Quick launches are shorter than those that were learned from.
    assert line(Path("out/gate/comment.md").read_text(), "earlier") == snapshot(
        "- noise of earlier sessions: known for 0 of 1 benchmarks (kept.json)"
    )
    monkeypatch.setenv("ROCATTN_MACHINE", "elsewhere")
    status, found = gate(*run)
    assert (status, [entry.noise for entry in found.entries]) == (0, [None])
    assert found.noise.why_not.startswith(f"{kept} is from another machine")
    _, found = gate(*run[:-2], "--no-noise")
    assert found.noise.why_not == "left alone (--no-noise)"


@pytest.mark.parametrize("extra", [("--noise", "x"), ("--learn",)])
def test_what_contradicts_no_noise_is_refused(gate, extra):
    """A usage error before anything is built."""
    assert gate("run", "--no-noise", *extra)[0] == 4
    assert gate.err == snapshot(
        "rocattn gate: --no-noise leaves the record of noise alone: it goes with neither --noise nor --learn\n"
    )


def compared(tmp_path, base="3.13.1", head="3.13.9", name=""):
    """A comparison of two sides as far as a record looks at it."""
    facts = {side: SimpleNamespace(python=python) for side, python in (("base", base), ("head", head))}
    context = SimpleNamespace(facts=facts, results=tmp_path, options=Options(noise_file=name))
    return noise_record.NoiseHistory(context, Request())


def test_two_versions_of_python_have_no_common_past(tmp_path):
    """Noise of one says nothing of the other; patch releases are alike."""
    apart, alike = compared(tmp_path, head="3.11.2"), compared(tmp_path)
    assert apart.known([]).source.why_not == snapshot("unknown: the sides run different versions of Python")
    assert alike.known([]).source.why_not == f"there is no record yet: {alike.path}"


def test_the_record_is_with_the_results_or_where_named(tmp_path, monkeypatch):
    """In the folder that asv has for the machine; ``~`` is the home folder."""
    monkeypatch.setenv("ROCATTN_MACHINE", "a machine")
    monkeypatch.setenv("HOME", "/home/x")
    assert compared(tmp_path).path == tmp_path / "a-machine" / noise_record.FILE
    assert compared(tmp_path, name="~/noise").path == Path("/home/x/noise")


def test_a_session_that_does_not_count_teaches_nothing(tmp_path):
    """Where the machine changed speed, its launches are no noise of the benchmarks."""
    measured = SimpleNamespace(decision=SimpleNamespace(invalid="the machine changed speed"), pairs=[])
    message = compared(tmp_path).learn([], measured)
    assert message == "noise: nothing learned from a session that does not count: the machine changed speed"
    assert list(tmp_path.iterdir()) == []


def test_a_session_without_noise_teaches_nothing(tmp_path):
    """Nothing was measured, or only what is always the same: no file is made, and none is named."""
    measured = SimpleNamespace(decision=SimpleNamespace(invalid=""), pairs=[])
    assert compared(tmp_path).learn([], measured) == "noise: nothing learned: no benchmark has launches that differ"
    assert list(tmp_path.iterdir()) == []


def test_how_much_was_known_is_one_line(entry):
    """Exact metrics and what was not decided are not counted; sessions as a range, no folder of the machine."""
    known = [KnownNoise(sessions=n, launches=5 * n, value=0.01) for n in (3, 8)]
    entries = [entry(f"b{n}", "pass", noise=noise) for n, noise in enumerate((*known, None))]
    entries += [entry("kernel", "pass", metric="audit", arch="gfx942"), entry("lost", "failed")]
    assert render.known_beforehand(entries, NoiseSource(path="a/file")) == snapshot(
        "noise of earlier sessions: known for 2 of 3 benchmarks, 3 to 8 sessions each (file)"
    )
    assert render.known_beforehand([], NoiseSource(path="f")) == snapshot(
        "noise of earlier sessions: known for 0 of 0 benchmarks (f)"
    )


def test_a_comment_takes_no_word_of_the_noise_source(result_of, entry, tmp_path):
    """Numbers only, unless reasons are wanted; a number that is none makes the verdict unreadable."""
    known = KnownNoise(sessions=3, launches=30, value=0.01)
    path = tmp_path / "verdict.json"
    for source, shown in (
        (
            NoiseSource(path="@everyone <b>"),
            snapshot("- noise of earlier sessions: known for 1 of 1 benchmarks, 3 sessions each"),
        ),
        (NoiseSource(path="x", why_not="@everyone <b>"), snapshot("- noise of earlier sessions: not known")),
    ):
        verdict.write(result_of([entry("b", "pass", noise=known)], noise=source), path)
        text = markdown.comment(untrusted.read(path))
        assert line(text, "earlier") == shown
        assert "everyone" not in text
        assert "everyone" in markdown.comment(untrusted.read(path, explain=True))
    stored = json.loads(path.read_text())
    stored["entries"][0]["noise"]["value"] = -1
    path.write_text(json.dumps(stored))
    with pytest.raises(untrusted.UntrustedError, match="is not a verdict"):
        untrusted.read(path)


def test_a_session_line_without_a_record_is_read():
    """An interrupted run of an older version goes on, knowing nothing."""
    assert msgspec.json.decode(b'{"kind":"session","key":"k"}', type=LaunchLine).began_with is None
