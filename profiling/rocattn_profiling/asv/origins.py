"""Where a benchmark's process imports the project from: runs inside the environment of one side, beside the workers.

The benchmarks are head's on both sides, and lie in head's checkout. A suite that puts the checkout on ``sys.path``, a
test folder with an ``__init__.py``, a ``conftest.py`` and pytest's ``pythonpath`` all put it before the environment;
both sides would then be measured with head's code. `Installed` finds a package that the environment has in the
environment. What was imported from elsewhere all the same is listed for `launch.Differing`, which knows what differs.

Standard library only, Python 3.10 and later.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# A module or folder of a package that belongs to its tests.
TESTS = re.compile(r"tests?|conftest|test_\w+|\w+_test|bench(es|marks?)?|bench_\w+|perf(ormance)?")


class Installed:
    """Finds the packages that an environment has installed there, whatever is put in front of the path later.

    Args:
        tree: The checkout that the benchmarks are of.
        tests: Their files and folders; what lies there, or around them, in a package of the checkout and has a test's
            name stays the checkout's.
        suite: Name of the folder that asv imports as a package: it is the checkout's as well.
    """

    def __init__(self, tree: Path, tests: Iterable[Path], suite: str = "") -> None:
        self.tree, self.tests, self.suite = tree.resolve(), [path.resolve() for path in tests], suite
        self.path, self.finders = list(sys.path), list(sys.meta_path)
        self.specs: dict[str, ModuleSpec | None] = {}
        own = {Path(__file__).parent, Path(os.__file__).parent, Path(sys.prefix)}
        own |= {folder.resolve() for folder in own}
        self.own = tuple(f"{folder}{os.sep}" for folder in own if not self.tree.is_relative_to(folder))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return where to import a module from instead, as the import system asks; None where it is right as it is."""
        top, _, rest = name.partition(".")
        if not rest:
            return self.installed(name) if self.shadowed(name) else None
        if TESTS.fullmatch(rest.rpartition(".")[2]) and self.shadowed(top):
            return self.of_the_tests(name)
        return None

    def installed(self, name: str) -> ModuleSpec | None:
        """Return a top-level module as the environment has it; None if it has none."""
        if name not in self.specs:
            specs = (
                finder.find_spec(name, self.path if finder is importlib.machinery.PathFinder else None)
                for finder in self.finders
            )
            self.specs[name] = next((spec for spec in specs if spec is not None), None)
        return self.specs[name]

    def shadowed(self, name: str) -> bool:
        """Whether the path, as it is now, leads to the checkout for a top-level module that the environment has."""
        if sys.path == self.path:
            return False
        return self.is_shadow(name, place_of(importlib.machinery.PathFinder.find_spec(name)))

    def is_shadow(self, name: str, place: Path | None) -> bool:
        """Whether a place of a top-level module is the checkout's, though the environment has it, and no test."""
        if place is None or not place.is_relative_to(self.tree) or self.is_test(name, place):
            return False
        own = place_of(self.installed(name))
        return own is not None and own != place

    def is_test(self, name: str, place: Path) -> bool:
        """Whether a module has a test's name and lies around, at or below what was named."""
        about = any(place.is_relative_to(path) or path.is_relative_to(place) for path in self.tests)
        return bool(about and (name == self.suite or TESTS.fullmatch(name)))

    def of_the_tests(self, name: str) -> ModuleSpec | None:
        """Return a module of tests that lie within a package, from the checkout."""
        top = place_of(importlib.machinery.PathFinder.find_spec(name.partition(".")[0]))
        if top is None:
            return None
        place = top.parent.joinpath(*name.split("."))
        last = name.rpartition(".")[2]
        if last != "conftest" and not self.is_test(last, place if place.is_dir() else place.with_suffix(".py")):
            return None
        if (place / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.is_file() else None

    def has(self, name: str, file: str) -> bool:
        """Whether a module is the environment's: head's test files serve both sides, and are no difference."""
        place = Path(file).resolve()
        own = place_of(self.installed(name.partition(".")[0])) if place.is_relative_to(self.tree) else place
        return own is not None and place.is_relative_to(own)

    def strays(self) -> dict[str, dict[str, Any]]:
        """Return what was imported from outside of the environment, by its top-level name.

        For each the "files" of its modules, and in "shadows" whether the environment has it, too. Packages that an
        environment without an index borrows are where it finds them itself, and are left out.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or file.startswith(self.own):
                continue
            place, top = Path(file).resolve(), name.partition(".")[0]
            installed = place_of(self.installed(top))
            if installed is None or not place.is_relative_to(installed) or place.is_relative_to(self.tree):
                stray = found.setdefault(top, {"files": [], "shadows": False})
                stray["files"].append(str(place))
        for top, stray in found.items():
            file = getattr(sys.modules.get(top), "__file__", None) or stray["files"][0]  # a namespace has none
            place = Path(file).resolve()
            place, installed = place.parent if place.stem == "__init__" else place, place_of(self.installed(top))
            elsewhere = installed is not None and not place.is_relative_to(installed)
            stray["shadows"] = elsewhere and not self.is_test(top, place)
        return found


def place_of(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package; None for what has neither."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
