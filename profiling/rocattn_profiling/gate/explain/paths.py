"""What lies on a benchmark's path and differs between the sides: files, functions, native sources, packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn.errors import RocattnError
from rocattn.toolchain.inputs import inputs_of
from rocattn_profiling.gate.explain import trace as explain_trace
from rocattn_profiling.gate.explain.files import NATIVE, ROOTS, Change, changed_files, equal, imports_of, of_module
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.verdict import Cause, Location
from rocattn_profiling.revisions import git as revisions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocattn_profiling.gate.exact.sides import Plan
    from rocattn_profiling.gate.explain.trace import Trace
    from rocattn_profiling.gate.sides import Context
    from rocattn_profiling.gate.verdict import Entry

MOST_TRACED = 10
"""Benchmarks that are run once more under a profiler, the worst first; others of the same class share the result."""
CPU_KERNELS = "kernels/cpu"
CPU_FLASH = "rocattn.backends.cpu_flash"
_ROOTS = {"forward": ("forward.cpp", "decode.cpp"), "backward": ("backward.cpp",)}
_COMPILED = {".so", ".pyd"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class OnPath(NamedTuple):
    """One changed file.

    Attributes:
        rank: 0 if what ran of it changed, 1 if something else of a file that ran did, 2 if the file is merely loaded.
        change: The file.
        ran: First lines of its functions that ran.
        share: Part of the added time that is in what changed of it.
    """

    rank: int
    change: Change
    ran: tuple[int, ...] = ()
    share: float = 0.0


class Paths:
    """Finds what of a benchmark's path differs; the trees are compared once, a class of benchmarks is traced once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # Of a class of benchmarks: the one that was traced, and its traces.
        self._traces: dict[tuple[str, str], tuple[str, tuple[Trace, Trace] | None]] = {}
        self.trees = all(side in context.trees for side in SIDES)
        self.changes = self._changes() if self.trees else {}
        self._reached: dict[tuple[str, ...], list[str]] = {}

    def _changes(self) -> dict[str, Change]:
        trees, suite = self._context.trees, self._context.launchers["head"].suite
        # Both sides run head's benchmarks: a change in them explains nothing.
        inside = suite.relative_to(trees["head"].absolute()) if suite.is_relative_to(trees["head"].absolute()) else None
        without = [inside.as_posix()] if inside else []
        return changed_files(trees["base"], trees["head"], without=without, among=self._told_by_git())

    def _told_by_git(self) -> dict[str, str] | None:
        """Return the paths that differ, each with the one it had on base; None where there are no revisions to ask."""
        sides = [self._context.revisions.get(side) for side in SIDES]
        shas = [revision.sha for revision in sides if revision is not None]
        if len(shas) < len(SIDES):
            return None
        listed = revisions.git(self._context.repo, "diff", "--name-status", "--no-relative", "-M", "-z", *shas)
        words, found = iter(listed.split("\0")), {}
        for status in words:
            if status:
                was = next(words)
                found[next(words) if status.startswith("R") else was] = was
        return found

    def traces(self, entry: Entry) -> tuple[Trace, Trace] | None:
        """Return both sides of a benchmark under the profiler; None where it does not run there, or too many did."""
        key = _class_of(entry)
        if key not in self._traces:
            if len(self._traces) >= MOST_TRACED:
                return None
            base, head = (explain_trace.trace(self._context.launchers[side], entry) for side in SIDES)
            self._traces[key] = entry.label, (base, head) if base and head else None
        return self._traces[key][1]

    def traced(self, entry: Entry) -> str:
        """Return the benchmark whose traces `traces` gives for one: of a class, the first that was asked for."""
        return self._traces[_class_of(entry)][0]

    def files(
        self,
        entry: Entry,
        traces: tuple[Trace, Trace] | None,
        direction: str = "forward",
        launched: Iterable[OnPath] = (),
        *,
        refused: bool = False,
    ) -> list[OnPath]:
        """Return the changed files that a benchmark runs or loads, those that ran first.

        Args:
            entry: The benchmark.
            traces: Of it; without them, what its module imports is taken.
            direction: "forward" or "backward": which of the CPU kernels it is about, if it runs them.
            launched: What its launches on a GPU are made from.
            refused: The backend that it names declines on head, before any of its kernels runs.
        """
        if traces is None:
            found = list(self._imported(entry))
            if not refused and entry.params.get("backend", "").strip("'\"") == "cpu-flash":
                found += self.native(direction)  # one that does not compile, crashes or hangs is of them, too
        else:
            found = list(self._loaded(traces) if self.trees else _differing(*traces, self._context.differing))
            if any(one.module == CPU_FLASH for one in traces[1].functions):
                found += self.native(direction, _share(traces, CPU_FLASH))
            elif _extensions_differ(*traces) or self._lost_extensions(traces):
                found += [OnPath(1, change) for path, change in self.changes.items() if Path(path).suffix in NATIVE]
        best: dict[str, OnPath] = {}
        for one in sorted([*launched, *found], key=lambda one: (one.rank, -one.share, one.change.path)):
            best.setdefault(one.change.path, one)
        return list(best.values())

    def _loaded(self, traces: tuple[Trace, Trace]) -> Iterator[OnPath]:
        base, head = traces
        for module, file in head.modules.items():
            change = of_module(self.changes, module, file)
            if change is not None:
                yield _ranked(change, traces, module)
        for module, file in base.modules.items():
            # What only base loads made it fast, perhaps: a module that is gone, whose stand-in has not changed.
            change = of_module(self.changes, module, file, "base") if module not in head.modules else None
            renamed = change is not None and any(equal(change.before, Path(other)) for other in head.modules.values())
            if change is not None and not change.after.is_file() and not renamed:
                ran = any(one.module == module for one in base.functions)
                yield OnPath(0 if ran else 2, change)
        yield from self._opened(traces)

    def _opened(self, traces: tuple[Trace, Trace]) -> Iterator[OnPath]:
        """Give the changed files that a benchmark opens; of the CPU kernels' sources all are hashed, used or not."""
        opened = [{Path(file) for file in trace.opened} for trace in traces]
        for path, change in self.changes.items():
            for own, files in zip((change.before, change.after), opened, strict=True):
                # By content, since an installed copy may have been read; the path for files that both sides share.
                if not path.startswith(f"{CPU_KERNELS}/") and any(
                    file.name == own.name and equal(own, file) for file in files
                ):
                    yield OnPath(1, change)

    def _imported(self, entry: Entry) -> Iterator[OnPath]:
        """Give the changed files that the benchmark's module, or the backend that it names, imports."""
        if not self.trees:
            return
        tree, suite = self._context.trees["head"].absolute(), self._context.launchers["head"].suite
        starts, roots = [], []
        if suite.is_relative_to(tree):
            roots = [suite.parent.relative_to(tree).as_posix(), suite.relative_to(tree).as_posix()]
            words = entry.name.split(".")
            starts = ["/".join([roots[1], *words[:count]]) + ".py" for count in range(len(words), 0, -1)]
        backend = entry.params.get("backend", "").strip("'\"").replace("-", "_")
        near = [f"rocattn/backends/{backend}.py", "rocattn/registry.py"] if backend else []
        for path in self._imports([*near, *starts], roots):
            if path in self.changes:
                yield OnPath(0 if path in near else 1, self.changes[path])

    def native(self, direction: str, share: float = 0.0) -> Iterator[OnPath]:
        """Give the changed sources of the CPU kernels: first those that a direction is compiled from.

        Args:
            direction: "forward" or "backward".
            share: Part of the added time that is in the function that calls them.
        """
        folder = self._context.trees["head"] / CPU_KERNELS if self.trees else None
        if folder is None:
            return
        inside = set()
        for name in _ROOTS[direction]:
            try:
                inside |= {f"{CPU_KERNELS}/{path}" for path, _ in inputs_of(folder / "include", folder / name)}
            except RocattnError:
                continue  # a revision that names its sources otherwise: then none of them comes first
        for path, change in self.changes.items():
            if path.startswith(f"{CPU_KERNELS}/"):
                yield OnPath(0, change, (), share) if path in inside else OnPath(2, change)

    def of_plans(self, old: Plan, new: Plan) -> Iterator[OnPath]:
        """Give the changed files that launches on a GPU are made from: kernels, and what plans where plans differ."""
        if not self.trees:
            return
        made = {path for launch in new.launches for path in self._kernel(launch.source)}
        if old.hash != new.hash:
            made |= self._planners()
        for path, change in self.changes.items():
            if path in made:
                yield OnPath(0, change)

    def _kernel(self, source: str) -> set[str]:
        """Return the paths of head that a GPU kernel is compiled from; none where it is not as it is here."""
        folder = self._context.trees["head"] / "kernels"
        try:
            names = [name for name, _ in inputs_of(folder / "include", folder / source)]
        except RocattnError:
            return set()
        beside = source.rpartition("/")[0]
        return {f"kernels/{name if name.startswith('include/') else f'{beside}/{name}'}" for name in names}

    def _planners(self) -> set[str]:
        """Return the paths of head that choose launches and tiles."""
        return {path for path in self._imports(["rocattn/gpu/plan.py"]) if path.startswith("rocattn/gpu/")}

    def _imports(self, starts: Sequence[str], roots: Sequence[str] = ()) -> list[str]:
        """Return what files of head import, read once: hundreds of kernels may ask."""
        key = (*starts, *roots)
        if key not in self._reached:
            self._reached[key] = imports_of(self._context.trees["head"].absolute(), starts, roots)
        return self._reached[key]

    def made_from(self, entry: Entry, plan_sources: Sequence[str]) -> list[OnPath]:
        """Return the changed files that an exact number is made from: a kernel's sources, or what plans.

        Args:
            entry: With an exact metric.
            plan_sources: Files that launches, workspaces and choices are made by.
        """
        if not self.trees:
            return []
        if entry.metric == "audit":
            near, far = self._kernel(f"hip/{entry.name}.hip"), self._planners()
        else:
            # "select cpu-flash", "workspace gpu": the backend's own file comes first.
            own = f"rocattn/backends/{entry.label.rpartition(' ')[2].replace('-', '_')}.py"
            near = {*plan_sources, own}
            far = set(self._imports(plan_sources))
        found = [
            OnPath(0 if path in near else 1, change) for path, change in self.changes.items() if path in near | far
        ]
        return sorted(found, key=lambda one: (one.rank, one.change.path))

    def packages(self, traces: tuple[Trace, Trace] | None) -> list[Cause]:
        """Return the packages whose version differs, of those that the benchmark loads, if that is known."""
        loaded = {_canonical(name) for trace in traces for name in trace.packages} if traces else None
        lost = self._lost_extensions(traces) if traces else []
        found = [Cause(kind="environment", text=f"{name}, a compiled module that head does not load") for name in lost]
        for name, (old, new) in self._context.differing.items():
            if loaded is None or name == "python" or _canonical(name) in loaded:
                found.append(Cause(kind="environment", text=f"{name} {old or 'absent'} -> {new or 'absent'}"))
        return found

    def _lost_extensions(self, traces: tuple[Trace, Trace]) -> list[str]:
        """Return the project's own compiled modules that only base loads: slower Python may have taken their place."""
        tree, (base, head) = self._context.trees.get("head"), traces
        return [
            name
            for name, file in base.modules.items()
            if tree is not None
            and name not in head.modules
            and Path(file).suffix in _COMPILED
            and any((tree / root / name.partition(".")[0]).is_dir() for root in ROOTS)
        ]

    def of_traceback(self, entry: Entry) -> Cause | None:
        """Return the innermost frame of an error that is in a file of head's, as a cause."""
        for file, line in reversed(_FRAME.findall(entry.traceback)):
            stem = file.rpartition("site-packages/")[2]
            found = (
                one
                for path, one in self.changes.items()
                if f"/{path}".endswith(f"/{stem}") or file.endswith(f"/{path}")  # installed, or run where it lies
            )
            change = next(found, None)
            if change is not None:
                where = Location(path=change.path, line=int(line))
                return Cause(
                    kind="source",
                    text=f"the error is raised in {change.path}, line {line}, which changed",
                    location=where,
                )
        return None


def _differing(base: Trace, head: Trace, packages: object) -> Iterator[OnPath]:
    """Give the loaded modules whose files differ between two environments that have no trees."""
    known = {_canonical(str(name)).replace("-", "_") for name in packages} if isinstance(packages, dict) else set()
    for module, file in head.modules.items():
        before, after = Path(base.modules.get(module, "")), Path(file)
        if module.partition(".")[0].lower() in known or after.suffix != ".py" or not before.is_file():
            continue
        if before == after or not after.is_file() or before.read_bytes() == after.read_bytes():
            continue
        change = Change(
            module.replace(".", "/") + (".py" if after.stem != "__init__" else "/__init__.py"), before, after
        )
        yield _ranked(change, (base, head), module)


def _class_of(entry: Entry) -> tuple[str, str]:
    """Return what benchmarks share that go the same way: the function, and the backend."""
    return entry.name, entry.params.get("backend", "")


def _ranked(change: Change, traces: tuple[Trace, Trace], module: str) -> OnPath:
    """Return a changed module with its rank: whether it ran, and whether what changed of it did."""
    ran = tuple(one.line for one in traces[1].functions if one.module == module)
    if not change.touches(ran):
        return OnPath(1 if ran else 2, change, ran)
    return OnPath(0, change, ran, _share(traces, module, change))


def _share(traces: tuple[Trace, Trace], module: str, change: Change | None = None) -> float:
    """Return the part of the added time that is in a module's functions, or in those of them that changed."""
    added = [(one, share) for one, share in explain_trace.shares(*traces) if one.module == module]
    return sum(share for one, share in added if change is None or change.touches([one.line]))


def _extensions_differ(base: Trace, head: Trace) -> bool:
    """Whether a compiled module that both sides load is another one."""
    for module, file in head.modules.items():
        before, after = Path(base.modules.get(module, "")), Path(file)
        if after.suffix not in _COMPILED or before == after or not before.is_file() or not after.is_file():
            continue
        if before.stat().st_size != after.stat().st_size or before.read_bytes() != after.read_bytes():
            return True
    return False


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
