"""What commands print while they work."""

import io
import re
import sys

import pytest

from rocattn_profiling.base import console


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


@pytest.mark.parametrize("width", [40, 80, 120, 400])
@pytest.mark.parametrize("name", ["attention_backward_dkdv f16 D=128 PLAIN_SCORES=0", f"_ZN2ck{'abcdefghij' * 90}"])
def test_a_narrow_terminal_gets_the_columns_in_parts(monkeypatch, width, name):
    """Numbers stay whole, and all of them are there: columns squeezed to a few letters, or to nothing, say nothing."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stderr", Terminal())
    columns = ["kernel", *(f"COLUMN {letter}" for letter in "ABCDEFGHIJKLMN")]
    rows = [[first, *(str(1000000 * at + n) for n in range(14))] for at, first in enumerate(("short", name), 1)]
    console.print_table("audit of a file", columns, rows)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in sys.stderr.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(cell) == 1 for cell in (*columns[1:], *rows[0][1:], *rows[1][1:]))
    parts = text.split("short")[1:]
    assert (len(parts) == 1) == (width == 400)
    letters = [re.sub("[^a-z_]", "", part.partition("kernel")[0]) for part in parts]
    assert letters == [re.sub("[^a-z_]", "", name)] * len(parts)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("keys", [2, 3])
def test_every_part_of_a_table_has_all_keys(monkeypatch, width, keys):
    """Rows that only the second or third column tells apart can be told apart in each part, on one terminal line."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stderr", Terminal())
    columns = ["kernel", "arch", "file", *(f"COLUMN {letter}" for letter in "ABCDEFGHIJKLMN")]
    rows = [["flash_attention_causal f16 D=128", arch, "a.co", *["1"] * 14] for arch in ("gfx942", "gfx1100")]
    console.print_table("audit", columns, rows, keys=keys)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in sys.stderr.getvalue().splitlines()]
    heads = [line.split() for line in lines if line.split()[:1] == ["kernel"]]
    assert len(heads) > 1
    assert all(head[:keys] == columns[:keys] for head in heads)
    for arch in ("gfx942", "gfx1100"):
        assert sum(line.startswith(" flash_attention") and arch in line for line in lines) == len(heads)
    assert max(map(len, lines)) <= width


def test_a_table_of_one_column_is_one(monkeypatch):
    """There is nothing to put beside it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", Terminal())
    console.print_table("backends", ["name"], [["cpu"]])
    assert sys.stderr.getvalue().count("cpu") == 1


def test_brief_work_is_told_only_once_it_lasts(capsys, monkeypatch):
    """What is over at once says nothing; what had to say how far it was also says that it is done."""
    with console.progress("site", 2, brief=True) as shown:
        shown.step()
        shown.step()
    assert capsys.readouterr().err == ""
    shown = console.Progress("site", 2, brief=True)
    monkeypatch.setattr(shown, "_quiet_s", 0.0)
    shown.step()
    shown._quiet_s = 60.0
    shown.step()
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == ["site: 1/2", "site: 2/2"]
