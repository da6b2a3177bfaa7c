"""What commands print while they work."""

import io
import re
import sys

from rocattn_profiling.cli import console


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self):
        """It is one."""
        return True


LABEL = f"bench.C.time_x('[/red]', {'n' * 3000})"


def test_a_step_of_a_log_is_cut(capsys):
    """A label of thousands of characters, with line ends and escapes, stays one short line."""
    with console.progress("gate", 1) as shown:
        shown.step(f"round 1:\n\x1b[31m{LABEL}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gate: 1/1, 0 s left, round 1: \ufffd[31mbench.C.time_x('[/red]', nnn")
    assert line.endswith("n…")
    assert len(line) < 200


def test_short_steps_are_whole(capsys):
    """Nothing is cut that fits, and a step without words has no comma."""
    with console.progress("verify", 1) as shown:
        shown.step("cpu (1, 2)")
    with console.progress("verify", 1) as shown:
        shown.step()
    assert capsys.readouterr().err == "verify: 1/1, 0 s left, cpu (1, 2)\nverify: 1/1, 0 s left\n"


def test_a_bar_shows_labels_as_they_are(monkeypatch):
    """What looks like the bar's own markup is text, and is cut as in a log."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.progress("gate", 2) as shown:
        shown.step(LABEL)
    text = sys.stderr.getvalue()
    assert "time_x('[/red]', nnn" in text
    assert max(map(len, re.findall("n+", text))) < 160


def test_a_table_shows_labels_as_they_are(capsys):
    """Brackets and colons of a label are no markup, in a cell or in the title."""
    label = "b.time_x('[/red]', '[bold]', ':smile:')"
    console.print_table(f"of {label}", ["benchmark", "[i]n"], [[label, "[3]"]])
    title, head, row = (line.split() for line in capsys.readouterr().err.splitlines() if line.strip(" \u2500"))
    assert title == ["of", *label.split()]
    assert head == ["benchmark", "[i]n"]
    assert row == [*label.split(), "[3]"]


def test_brief_work_is_told_only_once_it_lasts(capsys):
    """What is over at once says nothing; what had to say how far it was also says that it is done."""
    with console.progress("site", 2, brief=True) as shown:
        shown.step()
        shown.step()
    assert capsys.readouterr().err == ""
    shown = console.Progress("site", 2, quiet_s=0.0, brief=True)
    shown.step()
    shown._quiet_s = 60.0
    shown.step()
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == ["site: 1/2", "site: 2/2"]
