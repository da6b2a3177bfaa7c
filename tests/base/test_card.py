"""The one card: it fits the screen, breaks no word, cuts by columns, and a log loses nothing."""

import io
import sys

import pytest

from rocattn_profiling.base.card import Card, listed
from rocattn_profiling.base.console import stderr, stdout

WORDS = "a kernel of 注意力 that waits for /a/rather/long/path.hip:40 and for others " * 4


def shown(card):
    """Return the lines as plain text."""
    return str(card).splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("first", "indent", "margin"), [("  cause:  ", None, 10), ("", 4, 4), ("FAIL: ", 2, 2)])
def test_a_paragraph_fits_the_terminal(width, first, indent, margin):
    """Words stay whole and in order, and later lines are indented: by the columns that a character takes."""
    card = Card(width)
    card.add((WORDS, "bold"), first=first, indent=indent)
    start, *rest = card.lines
    assert start.plain.startswith(first)
    assert width - len("/a/rather/long/path.hip:40") <= max(line.cell_len for line in card.lines) <= width
    assert all(len(line.plain) - len(line.plain.lstrip()) == margin for line in rest)
    assert str(card).split() == f"{first}{WORDS}".split()


def test_what_is_copied_is_not_broken():
    """Neither a command nor a word that is longer than a line."""
    card = Card(60)
    card.add(WORDS, first="next: ", wrap=False)
    card.add("x" * 200, " is", " cut off", first="note: ")
    assert shown(card) == [f"next: {WORDS}".rstrip(), "note: " + "x" * 200, "      is cut off"]


def test_a_log_has_a_line_for_each_paragraph():
    """Nothing in it is wrapped or cut."""
    card = Card()
    card.add(WORDS, first="  ")
    card.add(card.cut(WORDS))
    card.gap()
    assert shown(card) == [f"  {WORDS}".rstrip(), WORDS.rstrip(), ""]


def test_cells_stand_below_each_other():
    """Whatever their characters are; a column without text takes no room, and no line ends with blanks."""
    card = Card()
    card.put(card.rows([("注意力", "", "7", "x"), ("a", "", "100", "")], right={2}, first=" "))
    assert shown(card) == [" 注意力    7  x", " a       100"]


def test_a_cut_counts_columns():
    """With an ellipsis of one column, or of three letters where the output is ASCII."""
    assert [Card(80).fit("注意力前向", most) for most in (10, 9, 8)] == ["注意力前向", "注意力前…", "注意力…"]
    assert Card(80, unicode=False).fit("abcdefghij", 8) == "abcde..."
    assert Card(60).cut("x" * 99, 20) == "x" * 39 + "…"


def test_what_is_not_shown_is_counted():
    """Below the others, unless there is nothing."""
    card = Card()
    for most in (2, 3):
        for each in card.some("abc", most, "and # more in a#b"):
            card.add(each)
    assert shown(card) == ["a", "b", "and 1 more in a#b", "a", "b", "c"]
    assert (listed("abc", 2), listed("abc", 3)) == ("a, b and 1 more", "a, b, c")


@pytest.mark.parametrize(
    ("terminal", "environ", "colored", "width", "room"),
    [
        (True, {"COLUMNS": "200"}, True, 120, 200),
        (True, {"COLUMNS": "40", "NO_COLOR": "1"}, False, 60, 40),
        (True, {"TERM": "dumb", "COLUMNS": "100"}, False, 80, 80),
        (False, {}, False, 100, 10_000),
        (False, {"COLUMNS": "90"}, False, 90, 90),
    ],
)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_colors_and_limits_are_for_terminals(monkeypatch, name, terminal, environ, colored, width, room):
    """No escape in a pipe, on a dumb terminal or under NO_COLOR; and what looks like markup is text."""
    for each in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS"):
        monkeypatch.delenv(each, raising=False)
    for each, value in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(each, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, name, stream)
    console = {"stdout": stdout, "stderr": stderr}[name]()
    card = Card.of(console)
    card.add(("[red]x[/red] :boom:", "bold red"))
    card.show(console)
    assert ("\x1b[" in stream.getvalue()) is colored
    assert "[red]x[/red] :boom:" in stream.getvalue()
    assert (card.width, card.room, card.unicode) == (width, room, True)


def test_ascii_is_spelled_out():
    """Bars, signs and ellipses."""
    card = Card(80, unicode=False)
    card.add("≥5 µs → 3 … █▍·")
    assert shown(card) == [">5 us -> 3 ... ##."]
