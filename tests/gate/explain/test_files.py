"""What explanations are made of: changed lines and functions of files, imports, and where the added time is."""

import sys

import msgspec
import pytest

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.explain.explain import explain
from rocattn_profiling.gate.explain.files import Change, changed_files, imports_of
from rocattn_profiling.gate.explain.trace import Function, Trace, moves, shares
from rocattn_profiling.gate.formats.render import entry_lines
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.sides import Context
from rocattn_profiling.gate.verdict import Entry


def function(name, self_ns, calls=1.0, module="m"):
    """A function of a trace."""
    return Function(module=module, file="m.py", line=1, name=name, calls=calls, self_ns=self_ns, total_ns=self_ns)


TABLED = """import json, pathlib
TIMES = json.loads((pathlib.Path(__file__).parent / "table.json").read_text())["times"]


def work(n):
    sum(range(TIMES * n))
"""


def test_a_data_file_that_is_opened_is_on_the_path(tmp_path):
    """Tables decide what code does; a file of the same kind that nobody reads does not."""
    for side, times in (("base", 1), ("head", 9)):
        for path, text in {
            "lib/__init__.py": "", "lib/work.py": TABLED, "lib/table.json": f'{{"times": {times}}}',
            "lib/other.json": f"{times}", "benchmarks/__init__.py": "",
            "benchmarks/bench_t.py": "from lib.work import work\n\n\ndef time_work():\n    work(1000)\n",
        }.items():  # fmt: skip
            (tmp_path / side / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / path).write_text(text)
    trees = {side: tmp_path / side for side in ("base", "head")}
    launchers = {
        side: Launcher(sys.executable, trees["head"] / "benchmarks", tmp_path / f"of-{side}", {"PYTHONPATH": str(tree)})
        for side, tree in trees.items()
    }
    context = Context(
        repo=trees["head"], out=tmp_path / "out", trees=trees, revisions={}, launchers=launchers, differing={},
        say=[].append, options=Options(quick=True),
    )  # fmt: skip
    name = "bench_t.time_work"
    slower = Decision(id=name, verdict="regression", ratio=2.0)
    (found,) = explain([Entry(label=name, name=name, status="regression", decision=slower, base=1, head=2)], context)
    assert [one.location.path for one in found.causes] == ["lib/table.json"]
    assert "files that it loads were: lib/table.json (line 1:" in found.explanation


def test_a_command_in_an_explanation_is_on_one_line():
    """A shell takes a line break in it for its end, and runs what stands before."""
    command = f"`rocattn gate run --bench '{'a-b.*' * 30}'`"
    entry = Entry(
        label="x", name="x", status="regression", explanation=f"{'word ' * 18}alone: {command}, `if n:` well-known."
    )
    lines = [line.strip() for line in entry_lines(entry)]
    assert sum(f"{command}," in line for line in lines) == 1
    assert all(len(line) <= 100 for line in lines if command not in line)


def test_added_time_is_shared_out_among_functions():
    """Those with most of it first; a function with less than a tenth is not named, nor is one that got faster."""
    base = Trace(status="ok", functions=(function("a", 100.0), function("b", 50.0), function("gone", 5.0)))
    head = Trace(status="ok", functions=(function("a", 180.0), function("b", 52.0), function("new", 30.0, calls=3.0)))
    found = moves(base, head)
    assert [(one.function.name, round(one.share, 3)) for one in found] == [("a", 0.714), ("new", 0.268)]
    assert found[0].sentence == "m.a takes 100 ns -> 180 ns in itself, native code included, 71 % of what was added"
    assert "is called 0 -> 3 times a call of the benchmark" in found[1].sentence
    assert moves(head, base) == []


def test_added_time_is_the_doing_of_who_calls_oftener():
    """Not of what is called, each call of which takes as long as before, nor of who calls the caller."""

    def made(times, each=10.0, inner=1.0):
        part = function("part", each * times, times)
        total = each * times
        work = msgspec.structs.replace(function("work", inner), total_ns=inner + total, callees={"m:part": times})
        outer = msgspec.structs.replace(function("outer", 2.0), total_ns=3.0 + total, callees={"m:work": 1.0})
        return Trace(status="ok", functions=(part, work, outer))

    assert {one.name: share for one, share in shares(made(2.0), made(6.0))} == {"part": 0.0, "work": 1.0, "outer": 0.0}
    assert {one.name: share for one, share in shares(made(2.0), made(2.0, each=20.0))} == {
        "part": 1.0, "work": 0.0, "outer": 0.0,
    }  # fmt: skip
    mixed = {one.name: round(share, 2) for one, share in shares(made(2.0), made(4.0, each=15.0))}
    assert mixed == {"part": 0.5, "work": 0.5, "outer": 0.0}  # 4 calls that take 5 more, 2 more that take 10
    assert shares(made(2.0), made(2.0)) == []


def test_functions_of_one_name_are_added_up():
    """Lambdas, and methods on a Python that does not know their class: neither is compared with another's time."""
    base = Trace(status="ok", functions=(function("f", 300.0), function("f", 20.0), function("g", 10.0)))
    head = Trace(status="ok", functions=(function("f", 300.0), function("f", 20.0), function("g", 30.0)))
    assert [(one.function.name, one.share) for one in moves(base, head)] == [("g", 1.0)]


def change(tmp_path, before, after, name="x.py"):
    """A change of one file."""
    for side, text in (("a", before), ("b", after)):
        (tmp_path / side).mkdir(exist_ok=True)
        (tmp_path / side / name).write_text(text)
    return Change(name, tmp_path / "a" / name, tmp_path / "b" / name)


def test_the_line_to_look_at_is_code_in_a_function_that_ran(tmp_path):
    """Not a comment above it, and not the first change in the file."""
    before = "import a\n\n\ndef first():\n    return 1\n\n\n@cache\ndef second():\n    return 2\n"
    after = f"# words\n{before}".replace("return 1", "return 10").replace(
        "    return 2\n", "    # more words\n    return 20\n"
    )
    made = change(tmp_path, before, after)
    assert made.cause().location.line == 6
    assert made.cause(ran=[9]).location.line == 12  # a function's first line is its decorator's, for Python too
    assert made.touches([9])
    assert not made.touches([1])
    assert made.counts == "+4 -2"


KEPT = """\
SEEN = {}


def work(n):
    if n in SEEN:
        return
    SEEN[n] = 1


def other(a):
    return a
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("    SEEN[n] = 1\n", "", 7),  # nothing of the function follows what is gone
        ("    SEEN[n] = 1\n", "    # SEEN[n] = 1\n", 7),  # what became a comment ran before
        ("    if n in SEEN:\n        return\n", "", 5),
        ("        return\n    SEEN[n] = 1\n\n\ndef other(a):\n    return a\n",
         "        return None\n\n\ndef other(b):\n    return b\n", 6),  # one hunk over both functions
    ],
)  # fmt: skip
def test_a_function_is_changed_by_lines_that_are_gone(tmp_path, old, new, line):
    """By its last line, by one that became a comment, and by a hunk that begins before it."""
    assert old in KEPT
    made = change(tmp_path, KEPT, KEPT.replace(old, new))
    assert made.touches([4])
    assert made.cause([4]).location.line == line
    other = next(at for at, text in enumerate(KEPT.replace(old, new).splitlines(), 1) if text.startswith("def other"))
    assert made.touches([other]) == ("other" in new)
    assert made.cause([other]).location.line == (other if "other" in new else line)
    assert not made.outside


def test_a_function_that_only_reads_otherwise_is_not_changed(tmp_path):
    """Its place in the file, its layout, its comments and its docstring; a constant is code outside of functions."""
    moved = KEPT.replace("SEEN = {}", "SEEN = dict()").replace("def other(a):\n    return a\n", "")
    moved = moved.replace(
        "def work(n):\n", 'def other(a):\n    return (\n        a)\n\n\ndef work(n):\n    """Do."""\n'
    )
    made = change(tmp_path, KEPT, moved)
    assert not made.touches(range(1, 20))
    assert made.outside
    assert made.cause(range(1, 20)).location.line == 1
    words = change(tmp_path, KEPT, KEPT.replace("def work(n):\n", 'def work(n):\n    """Do."""\n'))
    assert [hunk.is_code for hunk in words.hunks] == [False]


def test_comments_and_brackets_are_no_code(tmp_path):
    """Of C++, preprocessor lines are code and what follows // is not; of Python, lines that begin with #."""
    before = "int a;\n}\nint b;\n#define N 1\nint c;\n"
    after = "int a;\n}  // namespace x\nint b;\n#define N 2\nint c;\n"
    made = change(tmp_path, before, after, "x.hip")
    assert [hunk.is_code for hunk in made.hunks] == [False, True]
    assert made.cause().text == "x.hip changed (+2 -2), line 4: `#define N 2`"
    python = change(tmp_path, "a = 1\nb = 2\n", "# a\na = 1\n)\nb = 3\n")
    assert [hunk.is_code for hunk in python.hunks] == [False, True]
    assert python.cause().location.line == 4


def test_changes_without_text_and_files_that_came_or_went_are_told(tmp_path):
    """Bytes are said to differ; a deleted line is placed where it was."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/x.bin").write_bytes(b"\xff\xfe1")
    (tmp_path / "b/x.bin").write_bytes(b"\xff\xfe2")
    (tmp_path / "a/gone.py").write_text("x = 1\n")
    (tmp_path / "b/new.py").write_text("x = 1\n")
    (tmp_path / "a/less.py").write_text("x = 1\ny = 2\nz = 3\n")
    (tmp_path / "b/less.py").write_text("x = 1\nz = 3\n")
    found = {path: one.cause() for path, one in changed_files(tmp_path / "a", tmp_path / "b").items()}
    assert found["x.bin"].text == "x.bin differs"
    assert found["gone.py"].text == "gone.py is gone"
    assert found["gone.py"].location is None
    assert found["new.py"].text == "new.py is new"
    assert (found["less.py"].location.line, found["less.py"].text) == (2, "less.py changed (+0 -1), line 2: `y = 2`")


def test_imports_are_followed_through_packages_and_relative_names(tmp_path):
    """Absolute, relative, of a package's own module, inside of functions; what is not in the tree is left out."""
    files = {
        "src/lib/__init__.py": "", "src/lib/a.py": "from . import b\nfrom .sub.c import x\nimport numpy\n",
        "src/lib/b.py": "def f():\n    import lib.d as d\n", "src/lib/sub/__init__.py": "from ..e import y\n",
        "src/lib/sub/c.py": "x = 1\n", "src/lib/d.py": "", "src/lib/e.py": "y = 1\n", "src/lib/never.py": "",
        "benchmarks/bench.py": "from lib import a\n", "broken.py": "def\n",
    }  # fmt: skip
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = imports_of(tmp_path, ["benchmarks/bench.py", "broken.py", "missing.py"])
    assert set(found) == set(files) - {"src/lib/never.py"}
    assert found[0] == "benchmarks/bench.py"
