"""Causes: what differs in what a worse benchmark loads is named with its lines, and what does not is not."""

import sys
from dataclasses import replace

import msgspec
import pytest

from rocattn_profiling.asv.launch import Launcher, Loaded, Request
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain import causes as explain_causes
from rocattn_profiling.gate.explain.causes import add_causes
from rocattn_profiling.gate.explain.files import FileChange, loaded_changes
from rocattn_profiling.gate.formats.render import MOST_CAUSES, entry_lines
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.plugin import Plugin
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.revisions import git as revisions

from .explaining import LABEL, LIBRARY, SUITE, explained, places, projects, worse

TABLED = """import json, pathlib
TIMES = json.loads((pathlib.Path(__file__).parent / "table.json").read_text())["times"]


def work(n):
    sum(range(TIMES * n))
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that makes both sides, with some files changed in head."""
    return projects(tmp_path)


WORK = LIBRARY["tinylib/work.py"]
SLOWER = WORK.replace("range(2)", "range(6)")
APART = {"tinylib/apart.py": "def apart():\n    return 4\n"}
FALLBACK = f"try:\n    from tinylib.fast import part\nexcept ImportError:\n    {WORK}"
WITH_RANDOM = f"import random\n{WORK}"


@pytest.mark.parametrize(
    ("head", "base", "entry", "texts"),
    [
        ({"tinylib/work.py": SLOWER, **APART}, {"benchmarks/bench_work.py": SUITE.replace("20000", "10000")}, worse(),
         ["tinylib/work.py:5 changed (+1 -1)"]),
        ({"tinylib/work.py": FALLBACK}, {"tinylib/work.py": FALLBACK, "tinylib/fast.py": "def part(n): ...\n"},
         worse(), ["tinylib/fast.py is gone"]),
        # ``random`` and a package's ``__init__`` are loaded by everything: neither accuses a changed file of that name.
        ({"tools/random.py": "x = 2\n", "tools/__init__.py": "x = 3\n", "tinylib/work.py": WITH_RANDOM},
         {"tinylib/work.py": WITH_RANDOM}, worse(), []),
        (APART, {"tinylib/__init__.py": f"{LIBRARY['tinylib/__init__.py']}\n\ndef old():\n    pass\n"},
         worse("bench_work.time_needs_old", "missing", reason="gone"), ["tinylib/__init__.py:1 changed (+0 -4)"]),
        # A module that cannot be imported is no benchmark: nobody knows what it would load.
        ({"tinylib/apart.py": "x = 1\n", "README.md": "words\n"}, {},
         worse("bench_gone", "failed", reason="cannot be imported"),
         ["README.md is new", "tinylib/apart.py:1 changed (+1 -2)"]),
    ],
    ids=["what it loads, and not the benchmark itself", "only base loads it", "a library's module", "base's files",
         "all, where neither side runs"],
)  # fmt: skip
def test_changed_files_that_it_loads_are_named_with_lines(project, head, base, entry, texts):
    """Neither a file that it does not load, nor a fallback or an import that has not changed."""
    context = project(head)
    for path, text in base.items():
        (context.trees["base"] / path).write_text(text)
    (found,) = explained(context, entry)
    assert [one.text for one in found.causes] == texts


def test_a_data_file_beside_a_loaded_module_is_named(project):
    """Tables decide what code does; one in a folder of which nothing is loaded does not."""
    files = {"tinylib/work.py": TABLED, "tinylib/table.json": '{"times": 9}', "other/table.json": "9"}
    context = project(files)
    for path in ("tinylib/table.json", "other/table.json", "tinylib/work.py"):
        (context.trees["base"] / path).parent.mkdir(exist_ok=True)
        (context.trees["base"] / path).write_text(files[path].replace("9", "1"))
    (entry,) = explained(context)
    assert [path for path, _ in places(entry)] == ["tinylib/table.json"]


def test_a_renamed_file_is_compared_with_what_it_was(repo, tmp_path):
    """As git pairs them."""
    base = repo.commit("base", **LIBRARY, **{"benchmarks/bench_work.py": SUITE})
    work = LIBRARY["tinylib/work.py"].replace("tinylib.parts", "tinylib.pieces")
    repo.git("mv", "tinylib/parts.py", "tinylib/pieces.py")
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
        launchers = {
            side: Launcher(
                sys.executable, head_tree / "benchmarks", tmp_path / "scratch" / side, {"PYTHONPATH": str(tree)}
            )
            for side, tree in trees.items()
        }
        (entry,) = explained(Context(
            repo=repo.root, out=tmp_path / "out", trees=trees, revisions=named, launchers=launchers,
            options=Options(quick=True),
        ))  # fmt: skip
    changed = "tinylib/pieces.py:2 (tinylib/parts.py in base) changed (+1 -1)"
    assert entry.causes[0].text == changed
    assert places(entry) == [("tinylib/pieces.py", 2), ("tinylib/work.py", 1)]


def test_another_compiled_module_points_at_native_sources(tmp_path):
    """Where a compiled module differs, or only base loads it, changed C sources are causes; else they are not."""
    changes = {"native/fast.c": FileChange("native/fast.c", tmp_path / "a.c", tmp_path / "b.c")}
    loaded = {}
    for side in ("base", "head"):
        (tmp_path / f"{side}.so").write_bytes(side.encode())
        loaded[side] = Loaded(modules={"tinylib.fast": str(tmp_path / f"{side}.so")})
    assert loaded_changes(changes, loaded["base"], loaded["head"]) == [changes["native/fast.c"]]
    assert loaded_changes(changes, loaded["base"], Loaded()) == [changes["native/fast.c"]]
    assert loaded_changes(changes, loaded["base"], loaded["base"]) == []
    assert loaded_changes(changes, loaded["base"], None) == []


def test_packages_count_where_the_benchmark_loads_them(project):
    """With both versions; a package that it does not load is no cause."""
    differing = {"numpy": ("1.26.0", "2.1.0"), "nothing-of-it": ("1", "")}
    context = project({}, differing)
    assert explained(context)[0].causes == []
    for tree in context.trees.values():
        (tree / "tinylib/work.py").write_text(f"import numpy\n{LIBRARY['tinylib/work.py']}")
    (entry,) = explained(context)
    assert [(one.kind, one.text) for one in entry.causes] == [("environment", "numpy 1.26.0 -> 2.1.0")]


def test_the_terminal_shows_as_many_causes_as_the_comment(project):
    """All of them are in the JSON."""
    context = project({}, {f"p{number:02}": ("1", "2") for number in range(40)})
    (entry,) = explained(context, worse("nothing", status="failed", reason="no"))
    assert len(entry.causes) == 40
    listed = [line for line in entry_lines(entry) if line.startswith("    - ")]
    assert listed[-2:] == ["    - environment: p07 1 -> 2", "    - 32 more"]
    assert len(listed) == MOST_CAUSES + 1
    few = msgspec.structs.replace(entry, causes=entry.causes[:MOST_CAUSES])
    assert "more" not in list(entry_lines(few))[-1]


def test_a_failure_on_head_is_located_by_its_traceback(project):
    """The innermost frame in a changed file is the place to look, installed or run where it lies."""
    context = project({"tinylib/parts.py": "def part(n):\n    n += 1\n    raise ValueError('planted')\n"})
    for folder in ("/somewhere/src-1/tree", "/env/lib/python3.11/site-packages"):
        traceback = f'  File "{folder}/tinylib/parts.py", line 3, in part\n    raise ValueError\n'
        (entry,) = explained(context, worse(status="failed", reason="ValueError: planted", traceback=traceback))
        assert places(entry) == [("tinylib/parts.py", 3), ("tinylib/parts.py", 2)]


def test_two_environments_are_compared_by_what_is_loaded(project):
    """The changed module is named; there is no repository that its line could be a place in."""
    work = LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")
    (entry,) = explained(project({"tinylib/work.py": work}, trees=False))
    assert [(one.text, one.location) for one in entry.causes] == [("tinylib/work.py:5 changed (+1 -1)", None)]


def test_entries_that_are_not_worse_are_left_alone(project):
    """And nothing is run for them."""
    context = project({})
    better = worse(status="improvement")
    assert explained(context, better) == [better]
    assert add_causes([], context, Plugin(context)) == []


def test_benchmarks_of_one_function_are_called_once(project, monkeypatch):
    """On each side, by the worst of them, and no more functions than a few: the others have no files."""
    calls, real = [], Launcher.loaded
    monkeypatch.setattr(
        Launcher, "loaded", lambda launcher, *names, **more: calls.append(names[1]) or real(launcher, *names, **more)
    )
    monkeypatch.setattr(explain_causes, "MOST_CALLED", 1)
    context = project({"tinylib/work.py": LIBRARY["tinylib/work.py"].replace("range(2)", "range(6)")})
    labels = ["bench_work.Other.time_x(1)", "bench_work.Suite.time_work(100)", LABEL]
    entries = [
        msgspec.structs.replace(worse(label), decision=Decision(id=label, verdict="regression", ratio=ratio))
        for label, ratio in zip(labels, (1.1, 1.2, 3.0), strict=True)
    ]
    found = explained(context, *entries)
    assert calls == [LABEL] * 2
    assert [one.label for one in found] == labels
    assert [bool(places(one)) for one in found] == [False, True, True]


def test_a_benchmark_with_a_cache_is_called_in_its_folder(project):
    """The cache that the measurement made is the one that is used."""
    launcher = project({}).launchers["head"]
    case = next(case for case in launcher.discover().cases() if case.label == "bench_work.Cached.time_cached")
    assert launcher.loaded(case.benchmark.name, case.label) is None
    assert launcher.run(case, Request()).status == "ok"
    loaded = launcher.loaded(case.benchmark.name, case.label)
    assert loaded is not None
    assert "tinylib.work" in loaded.modules


def test_a_project_without_causes_keeps_its_verdict(project, monkeypatch):
    """What is looked up may fail: the entry stays as it is, and a line says why."""

    def fail(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(Launcher, "loaded", fail)
    lines = []
    assert explained(replace(project({}), say=lines.append)) == [worse()]
    assert lines[-1] == f"no causes of {LABEL}: no room"
