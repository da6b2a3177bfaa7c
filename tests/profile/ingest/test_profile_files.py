"""The listing of profiler files."""

import json

from inline_snapshot import snapshot

from rocattn_profiling import cli

from ...screens import line, screen
from . import generators as g


def run(*argv):
    """Run the listing as a user does."""
    return cli.main(["report", *(str(argument) for argument in argv), "--files"])


def test_the_listing_names_every_file(tmp_path, capsys):
    """What is read is in the table; what holds nothing is named with the reason; problems are lines."""
    g.v3_counters(tmp_path / "run" / "a.csv", g.launches(3))
    (tmp_path / "run" / "b.csv").write_text("")
    (tmp_path / "run" / "c.txt").write_text("pmc: SQ_WAVES\n")
    assert run(tmp_path) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "rocprofv3 7.0 or later" in err
    assert line(screen(err, tmp=tmp_path), "empty") == snapshot(
        "tmp/run/b.csv: the file is empty: the profiler wrote nothing, or was aborted; the other files are read"
    )
    assert line(err, "input") == snapshot(
        "c.txt: a profiler's input file (lists of counters): it contains no measurements"
    )


def test_json_stands_alone_on_stdout(tmp_path, capsys):
    """Every field of every file."""
    g.v3_counters(tmp_path / "a.csv", g.launches(3))
    assert run(tmp_path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert found["tool"] == "rocprofv3"
    assert (found["kernels"], found["dispatches"]) == (2, 3)
    assert found["counters"] == ["GRBM_GUI_ACTIVE", "SQ_WAVES", "TCC_HIT_sum"]


def test_nothing_to_read_has_its_own_status(tmp_path, capsys):
    """A folder of other things measured nothing."""
    (tmp_path / "c.txt").write_text("pmc: SQ_WAVES\n")
    assert run(tmp_path) == 3
    assert screen(capsys.readouterr().err, tmp=tmp_path) == snapshot("""\
1 file contains nothing to read:
  tmp/c.txt: a profiler's input file (lists of counters): it contains no measurements\
""")
