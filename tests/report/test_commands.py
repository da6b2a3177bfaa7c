"""`rocattn report` and `rocattn site`: files, one line at the end, exit statuses, JSON alone on stdout."""

import json
import shutil
import signal
import subprocess

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.console import Step
from rocattn_profiling.cli import main
from rocattn_profiling.gate.verdict import write
from rocattn_profiling.measure.records import append_record
from rocattn_profiling.site import measure as history

from ..screens import line, screen


@pytest.fixture
def out(tmp_path, records, verdict):
    """A folder as ``rocattn bench`` and ``rocattn gate run`` leave it."""
    for record in records:
        append_record(tmp_path / "out/bench/records.jsonl", record)
    write(verdict, tmp_path / "out/gate/verdict.json")
    return tmp_path / "out"


def test_report_writes_what_was_asked_for(out, capsys):
    """HTML, Markdown and JSON by default; CSV on request; the last line says where."""
    assert main(["report", "--out", str(out / "report")]) == 0
    assert sorted(p.name for p in (out / "report").iterdir()) == ["index.html", "report.json", "report.md"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"The report is at {out / 'report/index.html'}"
    assert (
        main(["report", "--out", str(out / "tables"), "--records", str(out / "bench"), "--format", "csv", "samples"])
        == 0
    )
    assert (out / "tables/results.csv").read_text().count("\n") == 9


def test_json_is_alone_on_stdout(out, capsys):
    """--json prints one JSON value on stdout and nothing else there."""
    records = str(out / "bench/records.jsonl")
    assert main(["report", "--out", str(out / "r"), "--records", records, "--format", "md", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {"md": str(out / "r/report.md")}


def test_nothing_to_report_is_status_3(tmp_path, capsys):
    """No records: one line and status 3; a missing folder is noted, its step may have been skipped."""
    asked = ["--records", str(tmp_path / "bench")]
    assert main(["report", "--out", str(tmp_path / "report"), *asked]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("rocattn report: nothing to report")
    assert [line.split(":")[0] for line in lines[:-1]] == ["note"]
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "no-such.jsonl"], "cannot read records from no-such.jsonl"),
        (["--format", "pdf"], "invalid choice: 'pdf'"),
    ],
    ids=["records", "format"],
)
def test_bad_input_is_one_line_and_status_4(tmp_path, capsys, monkeypatch, arguments, message):
    """What is named must be there."""
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["report", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 4
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said


def test_a_profile_of_nothing_says_why_of_each_file(tmp_path, capsys):
    """A Perfetto trace is no table: that was said by --files only."""
    for number in range(7):
        (tmp_path / f"{number}_results.pftrace").write_bytes(b"\n\x0b\x0a\x02\x08\x01" * 50)
    assert main(["report", str(tmp_path)]) == 3
    *notes, last = capsys.readouterr().err.splitlines()
    assert len(notes) == 6
    assert screen(notes[0], FOLDER=tmp_path) == snapshot(
        "note: FOLDER/0_results.pftrace: a Perfetto trace (rocprofv3 -f pftrace, rocprof-sys): record with rocprofv3 "
        "--kernel-trace --output-format csv json rocpd, which are read"
    )
    assert notes[5] == "note: 2 more files contain nothing to read; --files names them all"
    assert "no kernel dispatch" in last


def test_a_file_without_kernels_has_its_folder_named(tmp_path, capsys):
    """rocprof-compute's roofline.csv holds bandwidths only; the counters stand beside it."""
    path = tmp_path / "my run" / "roofline.csv"
    path.parent.mkdir()
    path.write_text("device,HBMBw,HBMBwLow,HBMBwHigh,L1Bw,L1BwLow,L1BwHigh\n0,4244.3,4242.4,4246.2,32965,32929,33000\n")
    assert main(["report", str(path)]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    remedy = f"pass the folder, which may have some: rocattn report '{path.parent}'"
    assert said == f"rocattn report: no kernel dispatch in {path}: nothing to report ({remedy})"


@pytest.mark.parametrize("arguments", [["missing"], ["--records", "missing"], ["there", "--against", "missing"]])
def test_what_does_not_exist_is_said_so(tmp_path, monkeypatch, capsys, arguments):
    """In the same words, whichever option names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x_kernel_trace.csv").write_text(
        "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
        "Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z\n"
        "KERNEL_DISPATCH,1,1,1,k,1,100,900,64,1,1,64,1,1\n"
    )
    assert main(["report", *arguments]) in {3, 4}
    assert line(capsys.readouterr().err, "missing").partition(": ")[2] == "missing does not exist"


def test_a_cut_off_record_does_not_spoil_the_report(out, capsys):
    """The half line that a kill left is passed over."""
    path = out / "bench/records.jsonl"
    with path.open("a") as file:
        file.write(path.read_text()[:120])
    assert main(["report", "--out", str(out / "report"), "--format", "html"]) == 0
    assert "report/index.html" in capsys.readouterr().err


@pytest.fixture
def repository(tmp_path):
    """A git repository with one commit and nothing measured."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path / "repo"
    root.mkdir()
    for command in (
        ["init", "-q"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one", "--allow-empty"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_site_needs_something_to_publish(repository, capsys):
    """An empty store and no records: one line and status 3. No repository: one line and status 4."""
    assert main(["site", "--repo", str(repository), "--out", str(repository / "site")]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("rocattn site: nothing to publish")
    old = repository / ".asv" / "results" / "box"
    old.mkdir(parents=True)
    for name in ("machine", "a", "b"):
        (old / f"{name}.json").write_text('{"version": 1}')
    assert main(["site", "--repo", str(repository), "--out", str(repository / "site")]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    unread = f"no results that can be read (passed over {old / 'a.json'} and 1 more: Error loading results data"
    assert unread in said
    assert main(["site", "--repo", str(repository.parent), "--out", str(repository / "site")]) == 4
    (said,) = capsys.readouterr().err.splitlines()
    ours = f"rocattn site: {repository.parent} has no git history to show: git rev-parse failed"
    assert said.partition(": fatal: ")[0] == ours


def test_site_shows_records_and_verdict_before_there_is_history(repository, out, capsys):
    """A dirty tree stores no history, yet its records and verdict are on the site, and asv's absence is explained."""
    asked = ["--repo", str(repository), "--out", str(out / "site"), "--json"]
    assert main(["site", *asked]) == 0
    captured = capsys.readouterr()
    assert [p.rsplit("/", 1)[1] for p in json.loads(captured.out)["pages"]] == [
        "index.html", "bench.html", "gate.html", "style.css",
    ]  # fmt: skip
    notes, last = captured.err.splitlines()[:-1], captured.err.splitlines()[-1]
    assert notes == ["note: asv's pages were not made: the store has no results"]
    assert last == f"The site is at {out / 'site/index.html'}"


def test_site_measures_the_newest_commits_first(out, repository, capsys, monkeypatch):
    """--measure N hands over to the back-fill and publishes after it; nothing measured is exit status 3."""
    asked = []

    def measure(repo, count, *, results, launches, on_step, say):
        asked.append((repo, count, results, launches))
        on_step(Step(done=1, total=1, what="x"))
        say("building")
        return history.Backfill(passed_over={"abc": "does not build"}, launches=0)

    monkeypatch.setattr(history, "measure_history", measure)
    words = ["site", "--repo", str(repository), "--store", str(out / "none"), "--out", str(out / "site")]
    assert main([*words, "--measure", "4"]) == 3
    assert asked == [(repository, 4, out / "none", 3)]
    assert (out / "site/index.html").is_file()
    assert line(capsys.readouterr().err, "passed over") == snapshot(
        "history: 0 commits measured, 0 had results, 1 passed over, 0 launches"
    )


def test_a_back_fill_that_is_told_to_end_unwinds(tmp_path, capsys, monkeypatch):
    """Or its worker goes on alone, and its checkout stays in the cache."""

    def measure(*_, **__):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # which would end these tests as well
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(history, "measure_history", measure)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        main(["site", "--measure", "1", "--out", str(tmp_path)])
    assert capsys.readouterr().err.endswith("rocattn site: terminated\n")
