"""The shape of the house: folders, prefixes, names. Each count has its limit in `structure.toml` and may only fall."""

import ast
import functools
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from .conftest import UNUSED

ROOT = Path(__file__).resolve().parents[1]
TOOLKIT = ROOT / "profiling" / "rocattn_profiling"
PRODUCT = (ROOT / "rocattn", TOOLKIT)
LIMITS = tomllib.loads((ROOT / "tests/structure.toml").read_text())["at_most"]
VAGUE_NAMES = {"found", "one", "made", "told", "seen"}
NOT_TERMS = {"look", "found", "told", "thing", "together", "ways", "held"}
FEWEST_LINES, MOST_LINES, MOST_MODULES, MOST_CHARACTERS = 60, 700, 20, 60
SMALL = 160


def modules(*folders):
    """Return the Python files below folders but for packages' own."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]


def trees(paths):
    """Return the parsed files."""
    return {path: ast.parse(path.read_text()) for path in paths}


def folders_of(paths):
    """Return the modules' names by folder."""
    names = {}
    for path in paths:
        names.setdefault(path.parent, []).append(path.stem)
    return names


def shared_prefixes(paths):
    """Return (folder, prefix) for every three siblings whose names begin with the same word."""
    return [
        (folder.name, prefix)
        for folder, names in folders_of(paths).items()
        for prefix, count in Counter(name.split("_")[0] for name in names).items()
        if count >= 3
    ]


def bindings(tree):
    """Return every name that a tree binds: assignments, loops, parameters, handlers, patterns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def definitions(tree):
    """Return the names of a tree's functions and classes."""
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def class_names(parsed):
    """Return the names of top-level classes that are used for more than one, each with its places."""
    places = {}
    for path, tree in parsed.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


def with_one_importer(parsed):
    """Return small modules that exactly one module of the same folder imports, and no other."""
    importers = {}
    for path, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocattn"):
                for name in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}:
                    importers.setdefault(name, set()).add(path)
    small = []
    for path in parsed:
        root = TOOLKIT.parent if path.is_relative_to(TOOLKIT) else ROOT
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        users = importers.get(name, set()) - {path}
        if len(path.read_text().splitlines()) < SMALL and len(users) == 1 and next(iter(users)).parent == path.parent:
            small.append(name)
    return small


@functools.cache
def counted():
    """Return each count's members by its name in `structure.toml`; when a test asks, for every worker imports this."""
    product = trees(modules(*PRODUCT))
    lines = {path: len(path.read_text().splitlines()) for path in product}
    every = modules(*PRODUCT, ROOT / "tests", ROOT / "benchmarks")
    tests = trees(modules(ROOT / "tests"))
    return {
        "modules of the toolkit": modules(TOOLKIT),
        "folders of more than 20 modules": [f for f, names in folders_of(every).items() if len(names) > MOST_MODULES],
        "three siblings of one prefix": shared_prefixes(product),
        "modules above 700 lines": [path for path, count in lines.items() if count > MOST_LINES],
        "modules below 60 lines": [path for path, count in lines.items() if count < FEWEST_LINES],
        "small modules of one importer beside them": with_one_importer(product),
        "class names of several meanings": [*class_names(product).items()],
        "vague local names": [(p, n) for p, tree in product.items() for n in bindings(tree) if n in VAGUE_NAMES],
        "names that are no terms": [
            (path, name)
            for path, tree in product.items()
            for name in [path.stem, *definitions(tree)]
            if name.strip("_") in NOT_TERMS
        ],
        "test names of 60 characters": [
            name
            for tree in tests.values()
            for name in definitions(tree)
            if re.match("test_", name) and len(name) >= MOST_CHARACTERS
        ],
    }


@pytest.mark.parametrize("name", LIMITS)
def test_a_count_does_not_rise(name):
    """Who lowers a count lowers its limit with it."""
    members = counted()[name]
    print(f"{len(members)} {name}, at most {LIMITS[name]}")  # pytest -rP tests/test_structure.py shows all
    shown = "\n".join(map(str, members))
    assert len(members) <= LIMITS[name], f"{len(members)} {name}, at most {LIMITS[name]}:\n{shown}"


def test_every_count_has_a_limit():
    """None is counted for nothing."""
    assert set(LIMITS) == set(counted())


def test_every_long_sweep_is_there(request):
    """A line of exhaustive.txt that matches no test moved nothing."""
    if request.config.args != request.config.getini("testpaths"):
        pytest.skip("not all tests were collected")
    assert request.config.stash[UNUSED] == []
