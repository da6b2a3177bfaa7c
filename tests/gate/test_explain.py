"""Explanations: what differs on a worse benchmark's path is named with its line, and what does not is not."""

import sys

import pytest

from rocattn_profiling.gate import explain_trace
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain import explain
from rocattn_profiling.gate.explain_files import Change, changed_files, imports_of
from rocattn_profiling.gate.explain_paths import Paths
from rocattn_profiling.gate.explain_trace import Function, Trace, moves, trace
from rocattn_profiling.gate.pairs import Decision
from rocattn_profiling.gate.verdict import Entry
from rocattn_profiling.measure.asv_launch import Launcher, Request

LIBRARY = {
    "tinylib/__init__.py": "from .work import work\n",
    "tinylib/work.py": "from tinylib.parts import part\n\n\ndef work(n):\n    for _ in range(2):\n        part(n)\n",
    "tinylib/parts.py": "def part(n):\n    return sum(range(n))\n\n\ndef unused():\n    return 1\n",
    "tinylib/apart.py": "def apart():\n    return 2\n",
}
SUITE = """\
import tinylib


class Suite:
    params = [[100, 20000]]
    param_names = ["n"]

    def setup(self, n):
        self.work = tinylib.work

    def time_work(self, n):
        self.work(n)


def time_needs_old():
    tinylib.old()


def setup_cache_made():
    return 7


class Cached:
    def setup_cache(self):
        return 20000

    def time_cached(self, n):
        tinylib.work(n)
"""
LABEL = "bench_work.Suite.time_work(20000)"


@pytest.fixture
def project(tmp_path):
    """Return a function that makes a context of two trees: the library, and it with some files changed in head."""

    def make(changed, differing=None, trees=True):
        for side, files in (("base", LIBRARY), ("head", LIBRARY | changed)):
            for path, text in files.items():
                if text is not None:
                    target = tmp_path / side / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text)
            (tmp_path / side / "benchmarks").mkdir()
            (tmp_path / side / "benchmarks/__init__.py").write_text("")
            (tmp_path / side / "benchmarks/bench_work.py").write_text(SUITE)
        sides = {side: tmp_path / side for side in ("base", "head")}
        launchers = {
            side: Launcher(
                sys.executable, sides["head"] / "benchmarks", tmp_path / "scratch" / side, {"PYTHONPATH": str(tree)}
            )
            for side, tree in sides.items()
        }
        return Context(
            repo=sides["head"], out=tmp_path / "out", trees=sides if trees else {}, revisions={}, launchers=launchers,
            differing=differing or {}, quick=True, say=[].append,
        )  # fmt: skip

    return make


def worse(label=LABEL, status="regression", metric="time", **values):
    """A worse entry."""
    decision = Decision(id=label, verdict=status, ratio=2.0) if status == "regression" else None
    return Entry(
        label=label, name=label.partition("(")[0], unit="ns", metric=metric, status=status, decision=decision,
        base=1000, head=2000, **values,
    )  # fmt: skip


def explained(context, *entries):
    """The explained entries."""
    return explain(entries or (worse(),), context)


def places(entry):
    """The (path, line) of an entry's causes in sources."""
    return [(one.location.path, one.location.line) for one in entry.causes if one.kind == "source" and one.location]


def test_a_function_that_runs_oftener_is_named_with_its_line(project):
    """By the calls, which are exact; a change in a function that does not run is no cause of its own."""
    (found,) = explained(project({
        "tinylib/work.py": LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)"),
        "tinylib/parts.py": LIBRARY["tinylib/parts.py"].replace("return 1", "return 3"),
        "tinylib/apart.py": "def apart():\n    return 4\n",
    }))  # fmt: skip
    assert places(found)[0] == ("tinylib/work.py", 5)
    assert "tinylib.parts.part is called 2 -> 6 times a call" in found.explanation
    assert "tinylib/work.py changed (+1 -1), line 5: `for _ in range(6):`" in found.explanation
    assert "tinylib/parts.py changed" not in found.explanation  # loaded, but what changed of it did not run
    assert "apart" not in str(found.causes)  # not even loaded
    assert "1 us -> 2 us (+100.0 %)" in found.explanation
    assert "rocattn gate run --bench 'bench_work.Suite.time_work.*20000.*'" in found.explanation


def test_what_is_loaded_but_did_not_run_is_said_to_be_that(project):
    """A reader knows then that the file is not a proven cause."""
    parts = LIBRARY["tinylib/parts.py"].replace("return 1", "return 3")
    (found,) = explained(project({"tinylib/parts.py": parts}))
    assert "No function that it runs was changed; files that it loads were: tinylib/parts.py." in found.explanation
    assert places(found) == [("tinylib/parts.py", 6)]


def test_a_librarys_module_of_the_same_name_is_not_the_projects(project):
    """``random`` and a package's ``__init__`` are loaded by everything: neither accuses a changed file of that name."""
    changed = {
        "tools/random.py": "x = 2\n",
        "tools/__init__.py": "x = 3\n",
        "tinylib/work.py": LIBRARY["tinylib/work.py"],
    }
    context = project(changed)
    for tree in context.trees.values():
        (tree / "tinylib/work.py").write_text(f"import random\n{LIBRARY['tinylib/work.py']}")
    (found,) = explained(context)
    assert found.causes == []


def test_one_file_is_one_cause(project):
    """However many modules of a package are loaded from it or below it."""
    context = project({"tinylib/__init__.py": "from .work import work\nfor _ in range(0): pass\n"})
    (found,) = explained(context)
    assert [path for path, _ in places(found)] == ["tinylib/__init__.py"]


def test_the_command_to_repeat_it_is_the_runs_own(project):
    """With the arguments that name its sides."""
    context = project({})
    again = "rocattn gate run --base main --suite perf"
    made = Context(**{name: getattr(context, name) for name in context.__slots__} | {"again": again})
    (found,) = explained(made)
    assert f"`{again} --bench 'bench_work.Suite.time_work.*20000.*' --rounds 20`" in found.explanation


def test_that_nothing_differs_is_said_too(project):
    """Then it is the machine or where things lie in memory, and more rounds are the thing to try."""
    (found,) = explained(project({"tinylib/apart.py": "x = 1\n", "README.md": "words\n"}))
    assert found.causes == []
    assert "Nothing that it loads differs" in found.explanation
    assert "--rounds 20`" in found.explanation


def test_a_change_of_the_benchmark_itself_explains_nothing(project):
    """Both sides run head's benchmarks."""
    context = project({})
    path = context.trees["base"] / "benchmarks/bench_work.py"
    path.write_text(SUITE.replace("20000", "10000"))
    (found,) = explained(context)
    assert found.causes == []


def test_packages_count_where_the_benchmark_loads_them(project):
    """A package of another version that it does not load is no cause."""
    differing = {"numpy": ("1.26.0", "2.1.0"), "nothing-of-it": ("1", "")}
    (found,) = explained(project({"tinylib/apart.py": "import numpy\n"}, differing))
    assert found.causes == []
    assert "numpy" not in found.explanation


def test_a_package_that_it_loads_is_named(project):
    """With both versions."""
    context = project({}, {"numpy": ("1.26.0", "2.1.0"), "nothing-of-it": ("1", "")})
    for tree in context.trees.values():
        (tree / "tinylib/work.py").write_text(f"import numpy\n{LIBRARY['tinylib/work.py']}")
    (found,) = explained(context)
    assert [(one.kind, one.text) for one in found.causes] == [("environment", "numpy 1.26.0 -> 2.1.0")]
    assert "The environments differ in numpy 1.26.0 -> 2.1.0." in found.explanation


def test_a_benchmark_that_fails_on_head_is_told_by_its_traceback(project):
    """The innermost frame in a changed file is the place to look."""
    changed = {"tinylib/parts.py": "def part(n):\n    n += 1\n    raise ValueError('planted')\n"}
    context = project(changed)
    trace_back = '  File "/env/lib/python3.11/site-packages/tinylib/parts.py", line 3, in part\n    raise ValueError\n'
    entry = worse(status="failed", reason="ValueError: planted", traceback=trace_back)
    (found,) = explained(context, entry)
    assert places(found)[0] == ("tinylib/parts.py", 3)
    assert "ran on base and fails on head: ValueError: planted." in found.explanation
    assert "counts as not measured" in found.explanation


def test_a_benchmark_that_is_missing_is_traced_by_its_imports(project):
    """Files that its module imports, directly or not, and no others."""
    context = project({
        "tinylib/parts.py": LIBRARY["tinylib/parts.py"] + "x = 1\n", "tinylib/apart.py": "def apart():\n    return 4\n",
    })  # fmt: skip
    (found,) = explained(context, worse("bench_work.time_needs_old", "missing", reason="old is gone"))
    assert [path for path, _ in places(found)] == ["tinylib/parts.py"]
    assert "Of what it imports, these files changed: tinylib/parts.py." in found.explanation


def test_two_environments_without_trees_are_compared_by_what_is_loaded(project):
    """The changed module is named; there is no repository that its line could be a place in."""
    work = LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")
    (found,) = explained(project({"tinylib/work.py": work}, trees=False))
    assert "tinylib/work.py changed (+1 -1), line 5" in found.explanation
    assert [one.location for one in found.causes] == [None] * len(found.causes)
    assert found.causes


def test_entries_that_are_not_worse_are_left_alone(project):
    """And nothing is run for them."""
    context = project({})
    better = worse(status="improvement")
    assert explain([better], context) == [better]
    assert explain([], context) == []


def test_benchmarks_of_one_class_are_traced_once(project, monkeypatch):
    """And no more than the worst few of all."""
    ran = []
    real = explain_trace.trace
    monkeypatch.setattr(
        explain_trace, "trace", lambda launcher, entry: ran.append(entry.label) or real(launcher, entry)
    )
    monkeypatch.setattr("rocattn_profiling.gate.explain_paths.MOST_TRACED", 1)
    context = project({"tinylib/work.py": LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")})
    other = worse("bench_work.Other.time_x(1)")
    found = explained(context, worse(), worse("bench_work.Suite.time_work(100)"), other)
    assert ran == [LABEL] * 2
    assert [bool(places(one)) for one in found] == [True, True, True]  # the last by its imports


def test_a_benchmark_with_a_cache_is_traced_in_its_folder(project):
    """The cache that the measurement made is the one that is used."""
    context = project({})
    launcher = context.launchers["head"]
    case = next(case for case in launcher.discover().cases() if case.label == "bench_work.Cached.time_cached")
    assert launcher.run(case, Request()).status == "ok"
    found = trace(launcher, worse(case.label))
    assert found is not None
    assert any(one.label == "tinylib.work.work" and one.calls == 1 for one in found.functions)


def test_a_benchmark_that_cannot_be_traced_is_still_explained(project):
    """A crash under the profiler is no answer; imports are then."""
    context = project({"tinylib/parts.py": LIBRARY["tinylib/parts.py"].replace("sum(range(n))", "sum(range(2 * n))")})
    assert trace(context.launchers["head"], worse("bench_work.time_needs_old")) is None
    (found,) = explained(context, worse("bench_work.time_needs_old"))
    assert places(found) == [("tinylib/parts.py", 2)]


def function(name, self_ns, calls=1.0, module="m"):
    """A function of a trace."""
    return Function(module=module, file="m.py", line=1, name=name, calls=calls, self_ns=self_ns, total_ns=self_ns)


def test_added_time_is_shared_out_among_functions():
    """Those with most of it first; a function with less than a tenth is not named, nor is one that got faster."""
    base = Trace(status="ok", functions=(function("a", 100.0), function("b", 50.0), function("gone", 5.0)))
    head = Trace(status="ok", functions=(function("a", 180.0), function("b", 52.0), function("new", 30.0, calls=3.0)))
    found = moves(base, head)
    assert [(one.function.name, round(one.share, 3)) for one in found] == [("a", 0.714), ("new", 0.268)]
    assert found[0].sentence == "m.a takes 100 ns -> 180 ns in itself, native code included, 71 % of what was added"
    assert "is called 0 -> 3 times a call of the benchmark" in found[1].sentence
    assert moves(head, base) == []


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


def test_another_extension_module_points_at_native_sources(project, tmp_path):
    """Where a compiled module that both sides load differs, changed C sources are causes; else they are not."""
    context = project({"native/fast.c": "int f(void) { return 2; }\n"})
    built = {}
    for side in ("base", "head"):
        built[side] = tmp_path / f"{side}.so"
        built[side].write_bytes(side.encode())
    functions = (function("work", 10.0, module="tinylib.work"),)
    base, head = (Trace(status="ok", functions=functions, modules={"tinylib.fast": str(built[one])}) for one in built)
    paths = Paths(context)
    assert [one.change.path for one in paths.files(worse(), (base, head))] == ["native/fast.c"]
    built["head"].write_bytes(b"base")
    assert paths.files(worse(), (base, head)) == []
