"""The shape of the house: who imports whom, folders, names, size. Each count has its limit in `structure.toml`."""

import ast
import functools
import re
import runpy
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from .conftest import UNUSED
from .sources import nodes, parsed

ROOT = Path(__file__).resolve().parents[1]
TOOLKIT = ROOT / "profiling" / "rocattn_profiling"
PRODUCT = (ROOT / "rocattn", TOOLKIT)
STRUCTURE = tomllib.loads((ROOT / "tests/structure.toml").read_text())
LIMITS = STRUCTURE["at_most"]
FEWEST_LINES, MOST_MODULES, MOST_CHARACTERS = 60, 20, 60
SMALL = 160
SENTENCE = 5  # words


def modules(*folders):
    """Return the Python files below folders but for packages' own."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]


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


def definitions(path):
    """Return the names of a test file's functions and classes, by its lines: to parse all tests takes much longer."""
    return re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(), re.MULTILINE)


def module_name(path):
    """Return a module's dotted name; a package's is its folder's."""
    root = TOOLKIT.parent if path.is_relative_to(TOOLKIT) else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports():
    """Return for each module of the product those that it imports: at its top, in functions, and for types only."""
    paths = {module_name(path): path for top in PRODUCT for path in sorted(top.rglob("*.py"))}
    arrows = {}
    for name, path in paths.items():
        arrows[name] = targets = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
                targets |= whole
                if len(whole) < len(node.names):
                    targets.add(node.module)
        arrows[name] = (targets & paths.keys()) - {name}
    return arrows


def circles(arrows):
    """Return the sets of modules that import each other in a circle."""
    after = {name: reachable(arrows, name) for name in arrows}
    groups = {
        frozenset(other for other in after[name] if name in after[other]) for name in arrows if name in after[name]
    }
    return sorted(map(sorted, groups))


def reachable(arrows, start):
    """Return what a module imports, directly or not."""
    names, left = set(), [start]
    while left:
        left += (new := arrows[left.pop()] - names)
        names |= new
    return names


def floor_of(floors, place):
    """Return the number of the floor that a file or its folder is on; files are named before folders."""
    for names in (place, place.partition("/")[0]):
        for number, places in enumerate(floors.values()):
            if names in places:
                return number
    raise AssertionError(f"structure.toml names no floor for {place}")


def arrows_up():
    """Return the imports within a room that go up a floor."""
    packages, up = {module_name(path) for path in TOOLKIT.rglob("__init__.py")}, []
    for room, floors in STRUCTURE["floors"].items():
        prefix = f"rocattn_profiling.{room.replace('/', '.')}."
        inside = {
            name: name.removeprefix(prefix).replace(".", "/") + ".py" for name in imports() if name.startswith(prefix)
        }
        inside = {name: place.removesuffix(".py") if name in packages else place for name, place in inside.items()}
        up += [
            (room, f"{place} -> {inside[other]}")
            for name, place in inside.items()
            for other in imports()[name] & inside.keys()
            if floor_of(floors, inside[other]) > floor_of(floors, place)
        ]
    return sorted(set(up))


@functools.cache
def code_lines():
    """Return the lines of code by room, without blanks, comments, docstrings and imports; the last is the toolkit's."""
    rooms = Counter()
    for top in PRODUCT:
        for path in top.rglob("*.py"):
            inside = path.relative_to(TOOLKIT).parts if top == TOOLKIT else ()
            rooms["rocattn" if not inside else inside[0] if len(inside) > 1 else "cli"] += len(lines_of_code(path))
    return dict(sorted(rooms.items())) | {"toolkit": sum(n for room, n in rooms.items() if room != "rocattn")}


def lines_of_code(path):
    """Return the numbers of a file's lines of code."""
    lines = {number for number, line in enumerate(path.read_text().splitlines(), 1) if not re.match(r"\s*(#|$)", line)}
    for node in nodes(path):
        if is_text(node) or isinstance(node, ast.JoinedStr):
            lines |= set(range(node.lineno, node.end_lineno + 1))  # whatever a text's own lines look like
    for node in nodes(path):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and is_text(node.value)):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def is_text(node):
    """Whether a node is a string: as a statement, a docstring."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sentences(paths):
    """Return the texts of several words that stand in more than one place: a rule is said once."""
    places = {}
    for path in paths:
        documents = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in nodes(path) if isinstance(node, ast.JoinedStr) for part in node.values}
        left_out = documents | parts
        for node in nodes(path):
            if is_text(node) and id(node) not in left_out:
                places.setdefault(node.value, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return [(text, where) for text, where in places.items() if len(where) > 1 and len(text.split()) >= SENTENCE]


def class_names(paths):
    """Return the names of top-level classes that are used for more than one, each with its places."""
    places = {}
    for path in paths:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


def with_one_importer(paths):
    """Return small modules that exactly one module of the same folder imports, and no other."""
    importers = {}
    for path in paths:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocattn"):
                for name in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}:
                    importers.setdefault(name, set()).add(path)
    small = []
    for path in paths:
        root = TOOLKIT.parent if path.is_relative_to(TOOLKIT) else ROOT
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        users = importers.get(name, set()) - {path}
        if len(path.read_text().splitlines()) < SMALL and len(users) == 1 and next(iter(users)).parent == path.parent:
            small.append(name)
    return small


@functools.cache
def counted():
    """Return each count's members by its name in `structure.toml`; when a test asks, for every worker imports this."""
    product = modules(*PRODUCT)
    lines = {path: len(path.read_text().splitlines()) for path in product}
    every = modules(*PRODUCT, ROOT / "tests", ROOT / "benchmarks")
    return {
        "folders of more than 20 modules": [f for f, names in folders_of(every).items() if len(names) > MOST_MODULES],
        "three siblings of one prefix": shared_prefixes(product),
        "modules below 60 lines": [path for path, count in lines.items() if count < FEWEST_LINES],
        "small modules of one importer beside them": with_one_importer(product),
        "class names of several meanings": [*class_names(product).items()],
        "circles of imports": circles(imports()),
        "arrows up within a room": arrows_up(),
        "sentences in two places": sentences(product),
        "test names of 60 characters": [
            name
            for path in modules(ROOT / "tests")
            for name in definitions(path)
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


@pytest.mark.parametrize("room", STRUCTURE["code_lines"])
def test_the_code_of_a_room_does_not_grow(room):
    """Who needs more lines says in the commit which issue asks for them."""
    lines, most = code_lines()[room], STRUCTURE["code_lines"][room]
    print(f"{lines} lines of code in {room}, at most {most}")
    assert lines <= most


def test_every_room_has_a_limit():
    """A new room states its size."""
    assert set(STRUCTURE["code_lines"]) == set(code_lines())


def test_every_count_has_a_limit():
    """None is counted for nothing."""
    assert set(LIMITS) == set(counted())


def test_every_long_sweep_is_there(request):
    """A line of exhaustive.txt that matches no test moved nothing."""
    if request.config.args != request.config.getini("testpaths"):
        pytest.skip("not all tests were collected")
    assert request.config.stash[UNUSED] == []


def test_each_mutant_of_research_still_occurs_once():
    """A text that has moved on would never be mutated, and its tests never asked."""
    subjects = runpy.run_path(str(ROOT / "research/mutants.py"))["SUBJECTS"]
    counts = {
        (subject.file, text): (ROOT / subject.file).read_text().count(text)
        for subject in subjects
        for text, _ in subject.mutants
    }
    assert {place: count for place, count in counts.items() if count != 1} == {}
    assert [name for subject in subjects for name in subject.tests.split() if not (ROOT / name).exists()] == []
