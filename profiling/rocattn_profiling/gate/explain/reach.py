"""Which benchmarks can run changed code: by the names in the sources, and by a traced call.

Functions are compared, not files, since one import often loads a whole package. Before anything has run, the distance
of a benchmark from a change is the number of calls between them, by name: `a()` may call any function named `a`.
Lookups by string (`getattr`) are not followed, so distances only order benchmarks and decide nothing. A traced call
shows which changed functions really start.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Loaded
    from rocattn_profiling.gate.context import Context
    from rocattn_profiling.gate.explain.files import FileChange

SETUP_CALLS = 1
"""Extra distance, in calls, of what a setup uses: the setup itself is not timed."""
_SETUPS = ("setup", "setup_cache", "setup_module", "setup_class", "setup_method", "setup_function")
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "out", "build", "dist", "tests", "test", "doc", "docs"})
_INERT = frozenset({".md", ".rst", ".txt", ".lock", ".png", ".svg", ".yml", ".yaml"})
_DOCUMENTS = frozenset({".md", ".rst"})
_NEVER_RUN = frozenset({".github", ".rocattn", "doc", "docs"})  # by a benchmark
_MOST_BYTES = 2_000_000  # a larger file is generated
_TRACEABLE = (3, 11)  # a code object's qualified name
_IMPORT = "<module>"  # the name of the code that an import runs


class SourceDefinitions(NamedTuple):
    """The definitions of a source file.

    Attributes:
        functions: "Class.method" or "function" -> its syntax tree as text, with its inner functions.
        statements: Name -> the trees of the statements outside of functions that define it; "" for statements that
            define no name.
    """

    functions: dict[str, str]
    statements: dict[str, str]


class SourceDifference(NamedTuple):
    """What differs in one Python file.

    Attributes:
        functions: Changed functions of either side, as "Class.method" or "function".
        names: Names defined by changed statements outside of functions.
        redefined: The names among them that both sides define.
        anything: Whether a statement that defines no name differs, which may affect every user of the file.
    """

    functions: frozenset[str]
    names: frozenset[str]
    redefined: frozenset[str]
    anything: bool


def difference(change: FileChange) -> SourceDifference | None:
    """Return what differs in a changed Python file besides comments, docstrings and layout.

    Returns:
        None if it is not Python, or does not parse.
    """
    if not change.path.endswith(".py"):
        return None
    before, after = (_definitions(path) for path in (change.before, change.after))
    if before is None or after is None:
        return None
    functions, statements = (
        frozenset(name for name in {*old, *new} if old.get(name) != new.get(name))
        for old, new in zip(before, after, strict=True)
    )
    names = statements - {""}
    redefined = names & before.statements.keys() & after.statements.keys()
    return SourceDifference(functions, names, redefined, "" in statements)


def _definitions(path: Path) -> SourceDefinitions | None:
    if not path.is_file():
        return SourceDefinitions({}, {})
    tree = _parsed(path)
    if tree is None:
        return None
    functions: dict[str, str] = {}
    statements: dict[str, str] = defaultdict(str)
    for prefix, node in _walked(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[prefix + node.name] = functions.get(prefix + node.name, "") + _dumped(node)
        elif not _is_docstring(node):
            for name in _defined(node) or [""]:
                statements[name] += _dumped(node)
    return SourceDefinitions(functions, dict(statements))


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _walked(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements outside of functions, each with its class as a prefix; of a class only its head."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            head = ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
            yield prefix, ast.copy_location(head, node)
            yield from _walked(node, f"{prefix}{node.name}.")
        else:
            yield prefix, node


def _dumped(node: ast.stmt) -> str:
    """Return a syntax tree as text, without docstrings and line numbers."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner.body:
            inner.body = [each for each in inner.body if not _is_docstring(each)]
    return ast.dump(node)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines; empty if it defines none."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [_imported(alias) for alias in node.names]
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in ast.walk(target)]
        return [part.id for part in parts if isinstance(part, ast.Name)]
    return []


def _imported(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def distances(
    changes: Iterable[FileChange], tree: Path, shared: Sequence[Path], cases: Sequence[Case]
) -> dict[str, int | None] | None:
    """Return how many calls lie between each benchmark and the nearest function that differs.

    Args:
        changes: The files that differ between the sides, without the suite's.
        tree: Head's checkout.
        shared: Head's benchmark folder, and the files and folders of its tests.
        cases: The benchmarks.

    Returns:
        Label -> 1 for a benchmark that calls such a function itself, 2 if there is one call in between, and so on; None
        if no path is found. Benchmarks without a known source are left out: commands, and functions created at run
        time. None instead of a dict if a file differs that names do not cover: compiled sources, data, settings.
    """
    changed: set[str] = set()
    for change in changes:
        if Path(change.path).suffix in _INERT or (_LEFT_OUT | _NEVER_RUN) & set(Path(change.path).parts[:-1]):
            continue
        differing = difference(change)
        if differing is None or differing.anything:
            return None
        # Only changed functions can use a name that one side alone defines, such as a new import.
        changed |= differing.redefined | {_callable(name) for name in differing.functions}
    graph = _Graph()
    for path in {*_sources(tree), *_shared_sources(tree, shared)}:
        graph.add(path)
    far = graph.distances(changed)
    names = {case.benchmark.name for case in cases}
    used = {name: _used_by(benchmark) for name in names if (benchmark := _located(tree, shared, name))}
    nearest = {
        name: min((far[each] + extra for each, extra in uses.items() if each in far), default=None)
        for name, uses in used.items()
        if uses is not None
    }
    return {case.label: nearest[case.benchmark.name] for case in cases if case.benchmark.name in nearest}


def reach_of(context: Context) -> Reach | None:
    """Return the `Reach` that decides which benchmarks need only one round; None if all must be measured.

    All must be measured if a commit is compared with itself, if the run learns the noise, and if traced calls do not
    show every difference: different packages, changed files other than Python sources, or Python before 3.11.
    """
    if not context.options.equal_code_passes or not context.trees or context.differing:
        return None
    if len({revision.tree for revision in context.revisions.values()}) == 1:
        return None
    reach = Reach(context.changes)
    if not reach.known:
        return None
    versions = [tuple(map(int, facts.python.split(".")[:2])) for facts in context.facts.values()]
    return reach if reach.nothing_differs or min(versions) >= _TRACEABLE else None


class Reach:
    """Decides from traced calls whether benchmarks run anything that differs.

    Attributes:
        known: Whether traced calls show every difference; False for compiled sources, data and settings.

    Args:
        changes: The files that differ, by path, without the suite's.
    """

    def __init__(self, changes: Mapping[str, FileChange]) -> None:
        self.known = True
        self._differences: dict[str, tuple[FileChange, SourceDifference]] = {}
        for path, change in changes.items():
            differing = difference(change)
            if differing is not None and any(differing):
                self._differences[path] = change, differing
            elif (
                differing is None
                and Path(path).suffix not in _DOCUMENTS
                and not _NEVER_RUN & set(Path(path).parts[:-1])
            ):
                self.known = False

    @property
    def nothing_differs(self) -> bool:
        """Whether both sides have the same code, apart from comments and documents."""
        return self.known and not self._differences

    @property
    def files(self) -> list[str]:
        """The names of the files whose functions to trace."""
        paths = [path for change, _ in self._differences.values() for path in (change.before, change.after)]
        return sorted({path.name for path in paths})

    def ran(self, base: Loaded | None, head: Loaded | None) -> bool | None:
        """Return whether a benchmark runs anything that differs, on either side; None if that is not known."""
        if not self.known or base is None or head is None or base.ran is None or head.ran is None:
            return None
        return any(self._started(path, base, head) for path in self._differences)

    def started_in(self, change: FileChange, base: Loaded | None, head: Loaded | None) -> list[range] | None:
        """Return the lines, in head, of those changed functions of a file that started.

        Returns:
            None if no changed function of the file started; empty if that is not known, or only base has it.
        """
        if change.path not in self._differences or not base or not head or base.ran is None or head.ran is None:
            return []
        started = self._started(change.path, base, head)
        return _lines(change.after, started - {_IMPORT}) if started else None

    def _started(self, path: str, base: Loaded, head: Loaded) -> set[str]:
        """Return the changed functions of a file that started; also the import, if more than functions differs.

        Files are matched by name, not path: a build may install them anywhere, and a false match does no harm.
        """
        change, differing = self._differences[path]
        matters = differing.functions | ({_IMPORT} if differing.names or differing.anything else set())
        return {
            name
            for side, loaded in ((change.before, base), (change.after, head))
            for file, function in loaded.ran or []
            if Path(file).name == side.name and (name := function.partition(".<locals>")[0]) in matters
        }


def _lines(path: Path, functions: Collection[str]) -> list[range]:
    """Return the lines of the given functions in a file, with their decorators."""
    tree = _parsed(path)
    nodes = [
        node
        for prefix, node in (_walked(tree) if tree else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and prefix + node.name in functions
    ]
    return [
        range(min([node.lineno, *(each.lineno for each in node.decorator_list)]), (node.end_lineno or node.lineno) + 1)
        for node in nodes
    ]


def _callable(function: str) -> str:
    """Return the name that a function is called by: for ``Class.__init__`` and other special methods, the class."""
    owner, _, name = function.rpartition(".")
    return owner.rpartition(".")[2] if owner and name.startswith("__") and name.endswith("__") else name


def _sources(tree: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and path.stat().st_size <= _MOST_BYTES:
                yield path


def _shared_sources(tree: Path, shared: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of suites and tests, with the modules next to them and the conftest.py files above."""
    for path in shared:
        folder = path if path.is_dir() else path.parent
        yield from folder.rglob("*.py") if path.is_dir() else folder.glob("*.py")
        above = (parent / "conftest.py" for parent in folder.parents if parent.is_relative_to(tree))
        yield from (file for file in above if file.is_file())


class _Graph:
    """Which names use which, over a project's sources."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = defaultdict(set)

    def add(self, path: Path) -> None:
        """Read a file."""
        tree = _parsed(path)
        if tree is None:
            return
        for prefix, node in _walked(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):  # one edge per imported name
                for alias in node.names:
                    self._add([_imported(alias)], _used(alias))
                continue
            names = _defined(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [_callable(prefix + node.name)]
            self._add(names, _used(node))

    def _add(self, names: Iterable[str], used: Iterable[str]) -> None:
        used = set(used)
        for name in names:
            for each in used - {name}:
                self._users[each].add(name)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return name -> calls from it to the nearest changed name; 0 for the changed names themselves."""
        far = dict.fromkeys(changed, 0)
        queue = deque(far)
        while queue:
            name = queue.popleft()
            for user in self._users.get(name, ()):
                if user not in far:
                    far[user] = far[name] + 1
                    queue.append(user)
        return far


def _used(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node mentions, and the fixtures that a test or fixture takes as parameters."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.alias):
            yield part.name.rpartition(".")[2]
        elif isinstance(part, ast.FunctionDef) and (part.name.startswith("test") or _decorated_by(part, "fixture")):
            yield from (each.arg for each in part.args.args)


def _decorated_by(node: ast.FunctionDef, word: str) -> bool:
    return any(word in ast.unparse(decorator) for decorator in node.decorator_list)


class _Benchmark(NamedTuple):
    """Where a benchmark is defined: its file, its class (or ""), and its function."""

    file: Path
    owner: str
    function: str


def _located(tree: Path, shared: Sequence[Path], name: str) -> _Benchmark | None:
    """Return where a benchmark is ("module.Class.time_x", "tests/test_a.py::Class::test_x"); None if not found."""
    path, colons, node = name.partition("::")
    if colons:
        *owners, function = node.partition("[")[0].split("::")
        above = {folder for each in shared for folder in (each, *each.parents) if folder.is_relative_to(tree)}
        files = [file for folder in {tree, *above} if (file := folder / path).is_file()]  # pytest starts in one of them
        return _Benchmark(files[0], ".".join(owners), function) if len(files) == 1 else None
    words = name.split(".")
    for suite in (each for each in shared if each.is_dir()):
        for end in range(len(words) - 1, 0, -1):
            module = suite.joinpath(*words[:end])
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if file.is_file():
                    return _Benchmark(file, ".".join(words[end:-1]), words[-1])
    return None


def _used_by(benchmark: _Benchmark) -> dict[str, int] | None:
    """Return the names that a benchmark mentions -> their distance in calls; None if its function is not found.

    Names come from the function, its class's attributes and bases, assignments to it, and setups.
    """
    tree = _parsed(benchmark.file)
    walked = list(_walked(tree)) if tree else []
    classes = {prefix + node.name: node for prefix, node in walked if isinstance(node, ast.ClassDef)}
    owners = list(_owners(benchmark.owner, classes))
    own: set[str] = set()
    setups: set[str] = set()
    is_there = False
    for prefix, node in walked:
        owner = prefix.rstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == benchmark.function and owner in (owners or [""]):
                is_there = True
                own |= set(_used(node))
            elif node.name in _SETUPS or (isinstance(node, ast.FunctionDef) and _decorated_by(node, "autouse=True")):
                setups |= set(_used(node)) if owner in {*owners, ""} else set()
        elif owner in owners or prefix + getattr(node, "name", "") in owners or benchmark.function in _defined(node):
            own |= set(_used(node))
    if not is_there:
        return None
    return dict.fromkeys(setups, 1 + SETUP_CALLS) | dict.fromkeys(own, 1)


def _owners(owner: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yield a class and its bases in the same file; nothing for a function outside of a class."""
    left, known = [owner] if owner else [], set()
    while left:
        name = left.pop()
        if name not in known:
            known.add(name)
            yield name
            bases = classes[name].bases if name in classes else []
            left += [base.id for base in bases if isinstance(base, ast.Name)]
