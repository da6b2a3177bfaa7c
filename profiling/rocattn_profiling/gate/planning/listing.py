"""The benchmarks of both sides, and a first plan from what is known of them while a suite still imports.

A suite is listed by importing it, which for some takes half a minute. One side is listed from its first module to its
last and the other one backwards, so that soon only a module is unknown that takes long itself. Its benchmarks are those
of an earlier listing of the same file, or else counted in its source. That only plans: what is measured is what the
listings say at their end.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Benchmark, Suite
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import write_bytes
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.reach import reach_of
from rocattn_profiling.gate.model import SIDES, SideName
from rocattn_profiling.gate.planning import pace
from rocattn_profiling.gate.planning.pace import how_to_shorten
from rocattn_profiling.gate.planning.select import chosen_cases
from rocattn_profiling.gate.rule.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rocattn_profiling.asv.launch import PartialListing, Request

_FIRST_PLAN_S = 10.0  # after which a suite that is still listed is planned by what is known of it
_KNOWN_PLAN_S = 2.0  # the same where earlier listings know all of it
_PAUSE_S = 0.2
_NAMED = 3  # modules in a line
_TYPES = {"time": "time", "timeraw": "time", "mem": "memory", "peakmem": "peakmemory", "track": "track"}
_BENCHMARK = re.compile(rf"({'|'.join(_TYPES)})_\w+")
_FIXTURE = "benchmark"  # pytest-benchmark's
_MAKERS = frozenset(
    {"setattr", "globals", "locals", "vars", "exec", "eval", "type", "__dict__", "benchmark_name"}
    | {"pytest_generate_tests", "pytest_collection_modifyitems", "pytest_collect_file"}
)
_NO_SOURCES = frozenset({"site-packages", "node_modules", "__pycache__"})


class ListedSuites(NamedTuple):
    """Head's benchmark files in both environments, and base's own files; None where those are the same."""

    sides: dict[SideName, Suite]
    before: Suite | None


class ModuleListing(msgspec.Struct, frozen=True, kw_only=True):
    """The benchmarks of one file of a suite.

    Attributes:
        digest: Of the file.
        benchmarks: As its last listing had them, or as its source shows them.
        import_s: Seconds that its own import took; 0 when unknown.
    """

    digest: str
    benchmarks: list[Benchmark]
    import_s: float = 0.0


def listed_suites(context: Context, request: Request, policy: Policy, on_step: Callable[[Step], None]) -> ListedSuites:
    """List the benchmarks of both sides at the same time; nothing is timed yet.

    Says a first plan where that takes long.

    Args:
        context: Both sides, built.
        request: How a launch samples.
        policy: When to look.
        on_step: Called while it lists.

    Raises:
        SuiteError: A folder as a whole cannot be listed.
    """
    on_step(Step(done=0, total=0, what="listing the benchmarks"))
    answers: dict[str, Suite | None] = {}
    errors: list[Exception] = []

    def find(name: str, ask: Callable[[], Suite | None]) -> None:
        try:
            answers[name] = ask()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    base, head = (context.launchers[side] for side in SIDES)
    questions: dict[str, Callable[[], Suite | None]] = {
        "base": lambda: base.discover(last_first=True),
        "head": head.discover,
        "": context.list_base,
    }
    # Daemons: an interrupted run does not wait for them, and their processes end with this one.
    threads = [threading.Thread(target=find, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    first = _FirstPlan(context, request, policy)
    while any(thread.is_alive() for thread in threads):
        first.update(on_step)
        next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(_PAUSE_S)
    if errors:
        raise errors[0]
    first.record()
    sides = {side: suite for side in SIDES if (suite := answers[side]) is not None}
    return ListedSuites(sides, answers[""])


class _FirstPlan:
    """What is known of a suite while it is listed."""

    def __init__(self, context: Context, request: Request, policy: Policy) -> None:
        self._context, self._request, self._policy = context, request, policy
        self._path = pace.record_path(context.repo, f"listing of {context.suite}", quick=False)
        self._earlier = _recorded(self._path)
        self._files = {
            module: (hashlib.sha256(data := file.read_bytes()).hexdigest(), data)
            for folder in context.launchers["head"].shared
            for module, file in _files(folder)
        }
        self._sources: dict[str, ModuleListing] = {}
        self._started, self._said = time.monotonic(), False

    def update(self, on_step: Callable[[Step], None]) -> None:
        """Show how far the listing is; say the plan once, when it is time to."""
        parts = [self._context.launchers[side].listed_so_far() for side in reversed(SIDES)]
        listed = {module for part in parts for module in part.modules}
        importing = next((part.importing for part in parts if part.importing), "")
        done = len(listed & self._files.keys())
        on_step(Step(done=done, total=len(self._files), what="listing the benchmarks", of=importing))
        waited_s = time.monotonic() - self._started
        if self._said or waited_s < _KNOWN_PLAN_S:
            return
        left = [module for module, (digest, _) in self._files.items() if module not in listed]
        unlisted = [module for module in left if not self._is_known(module)]
        if waited_s >= _FIRST_PLAN_S or (left and not unlisted):
            self._said = True
            if line := self._line(parts, left, unlisted):
                self._context.say(line)

    def record(self) -> None:
        """Keep what head's listing says for the next run; without a word where the disk does not take it."""
        part = self._context.launchers["head"].listed_so_far()
        modules = {
            module: ModuleListing(
                digest=self._files[module][0], benchmarks=benchmarks, import_s=round(part.imports.get(module, 0.0), 3)
            )
            for module, benchmarks in part.modules.items()
            if module in self._files
        }
        if modules:
            with suppress(RocattnError, OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._path, msgspec.json.encode(modules))

    def _is_known(self, module: str) -> bool:
        return module in self._earlier and self._earlier[module].digest == self._files[module][0]

    def _line(self, parts: Sequence[PartialListing], left: Sequence[str], unlisted: Sequence[str]) -> str:
        """Return the plan in one line, with what it is based on; empty where no benchmark is known.

        Args:
            parts: How far the listings are, head's first.
            left: Modules that are not listed.
            unlisted: Those of them that no earlier run has listed.
        """
        context = self._context
        modules = {module: benchmarks for part in reversed(parts) for module, benchmarks in part.modules.items()}
        imports = {module: seconds for part in reversed(parts) for module, seconds in part.imports.items()}
        counted = 0
        for module in left:
            known = self._earlier[module] if module not in unlisted else from_source(module, *self._files[module])
            modules[module] = known.benchmarks
            imports[module] = max(
                known.import_s, *(part.importing_s for part in parts if part.importing == module), 0.0
            )
            counted += len(known.benchmarks) if module in unlisted else 0
        suite = Suite(benchmarks=list(itertools.chain.from_iterable(modules.values())))
        cases = chosen_cases(suite, context.options)
        times = pace.recorded(pace.record_path(context.repo, context.suite, quick=context.options.quick))
        expected = pace.Pace(times, imports, self._request.budget_ns / 1e9)
        reach = reach_of(context)  # how much of the suite runs the change is not known yet
        some = [] if reach is not None and reach.nothing_differs else cases
        traced = None if reach is None else pace.Tracing([], some, calls=bool(some))
        estimate_s = expected.estimate_s(cases, self._policy.looks, traced=traced)
        if not cases:
            return ""
        basis = "as listed by an earlier run"
        if counted:
            names = [module for module in unlisted if modules[module]]
            more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
            basis = f"an estimate: not imported yet, so counted in the source: {', '.join(names[:_NAMED])}{more}"
        shorten = how_to_shorten(context.options.max_time_s, estimate_s[1])
        return f"about {len(cases)} benchmarks, {pace.span(estimate_s)}{shorten} ({basis})"


def _recorded(path: Path) -> Mapping[str, ModuleListing]:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ModuleListing])
    return {}


def names_in_source(folders: Sequence[Path]) -> list[str] | None:
    """Return the names of all benchmarks as the sources show them, unsorted; None where only a listing would.

    Args:
        folders: Of a suite, and folders and files of tests.
    """
    names: list[str] = []
    for module, file in (each for folder in folders for each in _files(folder)):
        content = file.read_bytes()
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError):
            return None
        if not _shows_all(tree):
            return None
        names += (f"{file.name}::{test}" for test in _tests(tree.body))
        listed = from_source(module, "", content).benchmarks
        names += (each.name for each in listed if _BENCHMARK.fullmatch(each.name.rpartition(".")[2]))
    return names


def _tests(body: Sequence[ast.stmt], owner: str = "") -> Iterator[str]:
    """Yield the tests that take any fixture: one of them may hand pytest-benchmark's on."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{owner}{node.name}::")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test") and node.args.args[bool(owner) :]:
            yield owner + node.name


def names_a_function(pattern: str) -> bool:
    """Whether a pattern is the name of a benchmark's function, perhaps with its class and module."""
    function = pattern.rpartition(".")[2]
    is_plain = re.fullmatch(r"[\w.]+", pattern) is not None
    return is_plain and (function.startswith("test_") or _BENCHMARK.fullmatch(function) is not None)


def _shows_all(tree: ast.Module) -> bool:
    """Whether a file's source surely shows its benchmarks: none inherited, imported, renamed or made while running."""
    nodes = list(ast.walk(tree))
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    words |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    return not (
        words & _MAKERS
        or any(node.bases or node.keywords or node.decorator_list for node in classes)
        or any(node.level for node in imports)
        or any(name == "*" or name[:1].isupper() or _BENCHMARK.fullmatch(name) for name in names)
    )


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each Python file of a suite or of tests, with the name that its benchmarks begin with."""
    if folder.is_file():
        yield folder.name, folder
        return
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder).with_suffix("")
        if any(part.startswith(".") or part in _NO_SOURCES for part in place.parts):
            continue
        parts = place.parent.parts if place.name == "__init__" else place.parts
        yield ".".join(parts) or folder.name, file


def from_source(module: str, digest: str, source: bytes) -> ModuleListing:
    """Return the benchmarks that a file's source shows: functions by their names, parameters where they are lists.

    A function whose parameters are computed counts once.

    Args:
        module: Name of the module.
        digest: Of the file.
        source: Its contents.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ModuleListing(digest=digest, benchmarks=[])
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    benchmarks = [
        _benchmark(f"{module}.{name}", node, _assigned(tree.body, f"{node.name}.params"))
        for name, node in _functions(tree.body)
    ]
    for title, node in classes.items():
        bodies = list(_bodies(node, classes))
        methods = {name: method for body in reversed(bodies) for name, method in _functions(body)}
        params = next((value for body in bodies if (value := _assigned(body, "params")) is not None), None)
        if not title.startswith("_"):
            benchmarks += [_benchmark(f"{module}.{title}.{name}", method, params) for name, method in methods.items()]
    return ModuleListing(digest=digest, benchmarks=benchmarks)


def _functions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions that are benchmarks of asv, or tests of pytest-benchmark."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            fixture = node.name.startswith("test") and any(each.arg == _FIXTURE for each in node.args.args)
            if fixture or _BENCHMARK.fullmatch(node.name):
                yield node.name, node


def _bodies(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], depth: int = 0) -> Iterator[list[ast.stmt]]:
    """Yield the body of a class, then those of its bases in the same file."""
    yield node.body
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and depth < len(classes):
            yield from _bodies(classes[base.id], classes, depth + 1)


def _assigned(body: Sequence[ast.stmt], target: str) -> ast.expr | None:
    """Return what is assigned to a name or an attribute last; None if nothing is."""
    values = [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and any(ast.unparse(each) == target for each in node.targets)
    ]
    return values[-1] if values else None


def _benchmark(name: str, function: ast.FunctionDef, params: ast.expr | None) -> Benchmark:
    """Return a benchmark with the parameters that its source lists: asv's, or those of pytest's decorators."""
    lists = [*_lists(params), *(each for mark in function.decorator_list for each in _parametrized(mark))]
    match = _BENCHMARK.fullmatch(function.name)
    return Benchmark(
        name=name, type=_TYPES[match[1]] if match else "time", unit="", version="", params=lists, param_names=[]
    )


def _lists(params: ast.expr | None) -> list[list[str]]:
    """Return the texts of asv's parameters: a list of values, or a list of such lists."""
    if not isinstance(params, ast.List | ast.Tuple) or not params.elts:
        return []
    rows = [row for row in params.elts if isinstance(row, ast.List | ast.Tuple)]
    if len(rows) == len(params.elts):
        return [[ast.unparse(value) for value in row.elts] for row in rows if row.elts]
    return [[ast.unparse(value) for value in params.elts]]


def _parametrized(mark: ast.expr) -> list[list[str]]:
    """Return the texts of the values of a ``pytest.mark.parametrize``."""
    if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize") and len(mark.args) > 1):
        return []
    values = mark.args[1]
    return [[ast.unparse(value) for value in values.elts]] if isinstance(values, ast.List | ast.Tuple) else []
