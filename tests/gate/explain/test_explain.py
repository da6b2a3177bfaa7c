"""Explanations: what differs on a worse benchmark's path is named with its line, and what does not is not."""

import sys
from dataclasses import replace

import msgspec
import pytest

from rocattn_profiling.asv.launch import Launcher, Request
from rocattn_profiling.gate.explain import trace as explain_trace
from rocattn_profiling.gate.explain.explain import explain
from rocattn_profiling.gate.explain.paths import Paths
from rocattn_profiling.gate.explain.trace import Function, Trace, trace
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.sides import Context
from rocattn_profiling.revisions import git as revisions

from .explaining import LABEL, LIBRARY, SUITE, explained, places, projects, worse


@pytest.fixture
def project(tmp_path):
    """Return a function that makes both sides, with some files changed in head."""
    return projects(tmp_path)


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
    assert "rocattn gate run --head WORKTREE --bench '^bench_work\\.Suite\\.time_work\\(20000\\)$'" in found.explanation


def test_what_is_loaded_but_did_not_run_is_said_to_be_that(project):
    """A reader knows then that the file is not a proven cause."""
    parts = LIBRARY["tinylib/parts.py"].replace("return 1", "return 3")
    (found,) = explained(project({"tinylib/parts.py": parts}))
    assert "No function that it runs was changed; files that it loads were: tinylib/parts.py." in found.explanation
    assert places(found) == [("tinylib/parts.py", 6)]


def test_a_module_that_only_base_loads_is_named(project):
    """The fallback that takes its place has not changed, and neither has the import of it."""
    work = f"try:\n    from tinylib.fast import part\nexcept ImportError:\n    {LIBRARY['tinylib/work.py']}"
    context = project({"tinylib/work.py": work})
    (context.trees["base"] / "tinylib/work.py").write_text(work)
    (context.trees["base"] / "tinylib/fast.py").write_text("def part(n):\n    return n\n")
    (found,) = explained(context)
    assert [one.text for one in found.causes] == ["tinylib/fast.py is gone"]
    assert "tinylib.parts.part (tinylib.fast.part in base) takes" in found.explanation


def test_a_file_under_a_new_name_is_compared_with_what_it_was(repo, tmp_path):
    """As git pairs them; one that only has a new name is no cause."""
    base = repo.commit(
        "base", **LIBRARY, **{"benchmarks/bench_work.py": SUITE, "tinylib/same.py": "def f():\n    pass\n"}
    )
    work = LIBRARY["tinylib/work.py"].replace("tinylib.parts", "tinylib.pieces")
    repo.git("mv", "tinylib/parts.py", "tinylib/pieces.py")
    repo.git("mv", "tinylib/same.py", "tinylib/equal.py")
    parts = LIBRARY["tinylib/parts.py"].replace("sum(range(n))", "sum(range(9 * n))")
    for path, text in {"tinylib/work.py": work, "tinylib/pieces.py": parts}.items():
        repo.put(path, text)
    head = repo.commit("head")
    named = {side: revisions.resolve(repo.root, sha) for side, sha in (("base", base), ("head", head))}
    with (
        revisions.checkout(repo.root, named["base"], tmp_path) as base_tree,
        revisions.checkout(repo.root, named["head"], tmp_path) as head_tree,
    ):
        trees = {"base": base_tree, "head": head_tree}
        for tree, name in ((base_tree, "same"), (head_tree, "equal")):
            (tree / "tinylib/__init__.py").write_text(f"from .work import work\nfrom .{name} import f\n")
        launchers = {
            side: Launcher(
                sys.executable, head_tree / "benchmarks", tmp_path / "scratch" / side, {"PYTHONPATH": str(tree)}
            )
            for side, tree in trees.items()
        }
        (found,) = explained(Context(
            repo=repo.root, out=tmp_path / "out", trees=trees, revisions=named, launchers=launchers, differing={},
            say=[].append, options=Options(quick=True),
        ))  # fmt: skip
    changed = "tinylib/pieces.py (tinylib/parts.py in base) changed (+1 -1), line 2: `return sum(range(9 * n))`"
    assert found.causes[0].text == changed
    assert places(found) == [("tinylib/pieces.py", 2), ("tinylib/work.py", 1)]
    assert "tinylib.pieces.part (tinylib.parts.part in base) takes" in found.explanation


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
    made = replace(context, again=again)
    (found,) = explained(made)
    assert f"`{again} --bench '^bench_work\\.Suite\\.time_work\\(20000\\)$' --rounds 20`" in found.explanation


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


def test_packages_are_told_beside_a_changed_function(project):
    """Either may be the cause; of many the paragraph names six."""
    changed = LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")
    context = project({"tinylib/work.py": f"import numpy\n{changed}"}, {"numpy": ("1.26.0", "2.1.0")})
    (found,) = explained(context)
    assert "line 6: `for _ in range(6):`. The environments differ in numpy 1.26.0 -> 2.1.0." in found.explanation


def test_of_many_packages_six_are_named(project):
    """A benchmark that fails may load any of them."""
    context = project({}, {f"p{number}": ("1", "2") for number in range(8)})
    (found,) = explained(context, worse(status="failed", reason="no"))
    assert len(found.causes) == 8
    assert "p4 1 -> 2, p5 1 -> 2 and 2 more packages." in found.explanation
    assert "p6" not in found.explanation


def test_a_constant_is_told_with_its_line(project):
    """No function changed, but what one of them uses did."""
    context = project(
        {"tinylib/parts.py": "TIMES = 4\n" + LIBRARY["tinylib/parts.py"].replace("range(n)", "range(TIMES * n)")}
    )
    parts = (context.trees["head"] / "tinylib/parts.py").read_text()
    (context.trees["base"] / "tinylib/parts.py").write_text(parts.replace("TIMES = 4", "TIMES = 1"))
    (found,) = explained(context)
    assert "files that it loads were: tinylib/parts.py (line 1: `TIMES = 4`)." in found.explanation


def test_a_value_without_a_ratio_has_no_percentage(project):
    """From 0 to 5 is no change of 0 %."""
    decision = Decision(id=LABEL, verdict="regression", ratio=1.0, ratio_low=0.0, ratio_high=None)
    entry = msgspec.structs.replace(worse(metric="track"), base=0.0, head=5.0, unit="x", decision=decision)
    (found,) = explained(project({}), entry)
    assert f"{LABEL} is 0 x -> 5 x. Nothing that it loads" in found.explanation


def test_imports_that_were_read_are_said_to_be_that(project):
    """What a benchmark that was not run loads is not known for sure."""
    (found,) = explained(project({"other/data.py": "x = 1\n"}), worse("bench_work.time_needs_old"))
    assert "Nothing that it was seen to import differs" in found.explanation


def test_environments_that_were_not_compared_are_not_called_alike(project):
    """Without revisions files are compared by what both sides load: of a benchmark that fails, nothing is known."""
    context = project({"tinylib/work.py": LIBRARY["tinylib/work.py"] + "x = 1\n"})
    made = replace(context, trees={}, revisions={})
    (found,) = explained(made, worse("bench_work.time_needs_old", status="failed"))
    assert "which files do is only seen where both sides run it" in found.explanation
    assert "Nothing" not in found.explanation


def test_a_benchmark_that_fails_on_head_is_told_by_its_traceback(project):
    """The innermost frame in a changed file is the place to look."""
    changed = {"tinylib/parts.py": "def part(n):\n    n += 1\n    raise ValueError('planted')\n"}
    context = project(changed)
    place = '  File "/somewhere/src-1/tree/tinylib/parts.py", line 3, in part\n    raise ValueError\n'
    (beside,) = explained(context, worse(status="failed", reason="x", traceback=place))
    assert places(beside)[0] == ("tinylib/parts.py", 3)
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


@pytest.fixture
def traced(monkeypatch):
    """The labels of what is traced, of which at most one benchmark may be."""
    ran = []
    real = explain_trace.trace
    monkeypatch.setattr(
        explain_trace, "trace", lambda launcher, entry: ran.append(entry.label) or real(launcher, entry)
    )
    monkeypatch.setattr("rocattn_profiling.gate.explain.paths.MOST_TRACED", 1)
    return ran


def test_benchmarks_of_one_class_are_traced_once(project, traced):
    """And no more than the worst few of all."""
    context = project({"tinylib/work.py": LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")})
    other = worse("bench_work.Other.time_x(1)")
    found = explained(context, worse(), worse("bench_work.Suite.time_work(100)"), other)
    assert traced == [LABEL] * 2
    assert [bool(places(one)) for one in found] == [True, True, True]  # the last by its imports


def test_the_worst_is_the_one_that_is_traced(project, traced):
    """Whatever their order; of another one of its class the paragraph says whose times it gives."""
    context = project({"tinylib/work.py": LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")})
    labels = ["bench_work.Other.time_x(1)", "bench_work.Suite.time_work(100)", LABEL]
    entries = [
        msgspec.structs.replace(worse(label), decision=Decision(id=label, verdict="regression", ratio=ratio))
        for label, ratio in zip(labels, (1.1, 1.2, 3.0), strict=True)
    ]
    found = explained(context, *entries)
    assert traced == [LABEL] * 2
    assert [one.label for one in found] == labels
    assert f"Under a profiler, where {LABEL} was run, tinylib.parts.part" in found[1].explanation
    assert "Under a profiler, tinylib.parts.part" in found[2].explanation


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


def test_another_extension_module_points_at_native_sources(project, tmp_path):
    """Where a compiled module that both sides load differs, changed C sources are causes; else they are not."""
    context = project({"native/fast.c": "int f(void) { return 2; }\n"})
    built = {}
    for side in ("base", "head"):
        built[side] = tmp_path / f"{side}.so"
        built[side].write_bytes(side.encode())
    functions = (Function("tinylib.work", "work.py", 1, "work", 1.0, 10.0, 10.0),)
    base, head = (Trace(status="ok", functions=functions, modules={"tinylib.fast": str(built[one])}) for one in built)
    paths = Paths(context)
    assert [one.change.path for one in paths.files(worse(), (base, head))] == ["native/fast.c"]
    built["head"].write_bytes(b"base")
    assert paths.files(worse(), (base, head)) == []
    gone = msgspec.structs.replace(head, modules={})
    assert [one.change.path for one in paths.files(worse(), (base, gone))] == ["native/fast.c"]
    assert [one.text for one in paths.packages((base, gone))] == [
        "tinylib.fast, a compiled module that head does not load"
    ]
    others = msgspec.structs.replace(base, modules={"numpy.fast": str(built["base"])})
    assert paths.packages((others, gone)) == []
