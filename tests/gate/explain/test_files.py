"""Changed files as causes: the lines that are shown, and what is no code."""

import sys

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.files import FileChange
from rocattn_profiling.gate.model import Cause, Location
from rocattn_profiling.revisions.hunks import hunks_between


def change(tmp_path, before, after, name="x.py"):
    """A change of one file."""
    for side, text in (("a", before), ("b", after)):
        (tmp_path / side).mkdir(exist_ok=True)
        (tmp_path / side / name).write_text(text)
    return FileChange(name, tmp_path / "a" / name, tmp_path / "b" / name)


def test_the_first_line_of_code_is_shown_and_the_others_listed(tmp_path):
    """Not the comment above it."""
    before = "import a\n\n\ndef first():\n    return 1\n\n\n@cache\ndef second():\n    return 2\n"
    after = f"# words\n{before}".replace("return 1", "return 10").replace(
        "    return 2\n", "    # more\n    return 20\n"
    )
    assert change(tmp_path, before, after).cause() == Cause(
        kind="source", text="x.py:6 changed (+4 -2); also line 12",
        location=Location(path="x.py", line=6), diff=("- return 1", "+ return 10"),
    )  # fmt: skip
    many = "".join(f"a{n} = 1\n\n" for n in range(12))
    cause = change(tmp_path, many, many.replace("= 1", "= 2")).cause()
    assert cause.text.endswith("; also lines 3, 5, 7, 9, 11, 13, 15, …")
    assert cause.diff == ("- a0 = 1", "+ a0 = 2")
    code = change(tmp_path, "if a:\n    b()\n", "if a:\n    for c in d:\n        # e\n        f()\n" + "    g()\n" * 9)
    assert code.cause().diff == ("- b()", "+ for c in d:", "+     f()", "+ g()", "… 8 more lines")


def test_comments_and_brackets_are_no_code(tmp_path):
    """Of C++, preprocessor lines are code and what follows // is not; of Python, lines that begin with #."""
    before = "int a;\n}\nint b;\n#define N 1\nint c;\n"
    after = "int a;\n}  // namespace x\nint b;\n#define N 2\nint c;\n"
    changed = change(tmp_path, before, after, "x.hip")
    assert [hunk.is_code for hunk in changed.hunks] == [False, True]
    assert changed.cause().text == "x.hip:4 changed (+2 -2)"
    python = change(tmp_path, "a = 1\nb = 2\n", "# a\na = 1\n)\nb = 3\n")
    assert [hunk.is_code for hunk in python.hunks] == [False, True]
    assert python.cause().location.line == 4


def test_binary_new_and_deleted_files_are_causes(tmp_path):
    """Bytes are said to differ; a deleted line is placed where it was."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/x.bin").write_bytes(b"\xff\xfe1")
    (tmp_path / "b/x.bin").write_bytes(b"\xff\xfe2")
    (tmp_path / "a/gone.py").write_text("x = 1\n")
    (tmp_path / "b/new.py").write_text("x = 1\n")
    (tmp_path / "a/less.py").write_text("x = 1\ny = 2\nz = 3\n")
    (tmp_path / "b/less.py").write_text("x = 1\nz = 3\n")
    trees = {"base": tmp_path / "a", "head": tmp_path / "b"}
    launchers = {"head": Launcher(sys.executable, tmp_path / "suite", tmp_path / "scratch")}
    context = Context(repo=tmp_path, out=tmp_path / "out", trees=trees, launchers=launchers)
    found = {path: one.cause() for path, one in context.changes.items()}
    assert found["x.bin"].text == "x.bin differs"
    assert found["gone.py"].text == "gone.py is gone"
    assert found["gone.py"].location is None
    assert found["new.py"].text == "new.py is new"
    assert (found["less.py"].location.line, found["less.py"].text) == (2, "less.py:2 changed (+0 -1)")


def test_a_change_at_the_end_of_a_long_line_is_seen(tmp_path):
    """What both lines begin with is left out, but for its end."""
    line = f"def work(n, {', '.join(f'option_{n}=None' for n in range(9))}, factor=1):\n"
    (tmp_path / "a.py").write_text(line)
    (tmp_path / "b.py").write_text(line.replace("factor=1", "factor=2"))
    (hunk,) = hunks_between(tmp_path / "a.py", tmp_path / "b.py")
    assert hunk.diff == ("- …, option_8=None, factor=1):", "+ …, option_8=None, factor=2):")
