"""Control where a benchmark's process imports the project from. Runs in the environment of one side, with the workers.

Both sides run head's benchmarks, from head's checkout. A suite that puts the checkout on ``sys.path``, a test folder
with an ``__init__.py``, a ``conftest.py`` and pytest's ``pythonpath`` all put it before the environment; both sides
would then measure head's code. `Installed` imports the packages that the environment has from the environment. Modules
that were still imported from elsewhere are listed for `launch.Differing`, which has the files that differ.

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

# Names of modules and folders that contain a package's tests.
TESTS = re.compile(r"tests?|conftest|test_\w+|\w+_test|bench(es|marks?)?|bench_\w+|perf(ormance)?")


class Installed:
    """An import hook that finds an environment's installed packages first, whatever is prepended to the path later.

    Args:
        tree: The checkout with the benchmarks.
        tests: Their files and folders; modules with a test's name in or around them, within a package of the checkout,
            still come from the checkout.
        suite: Name of the folder that asv imports as a package; it comes from the checkout as well.
    """

    def __init__(self, tree: Path, tests: Iterable[Path], suite: str = "") -> None:
        self.tree, self.tests, self.suite = tree.resolve(), [path.resolve() for path in tests], suite
        self.path, self.finders = list(sys.path), list(sys.meta_path)
        self.specs: dict[str, ModuleSpec | None] = {}
        own = {Path(__file__).parent, Path(os.__file__).parent, Path(sys.prefix)}
        own |= {folder.resolve() for folder in own}
        self.own = tuple(f"{folder}{os.sep}" for folder in own if not self.tree.is_relative_to(folder))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the right spec for a module that would come from the wrong place, otherwise None (import hook)."""
        top, _, rest = name.partition(".")
        if not rest:
            return self.installed(name) if self.shadowed(name) else None
        if TESTS.fullmatch(rest.rpartition(".")[2]) and self.shadowed(top):
            return self.of_the_tests(name)
        return None

    def installed(self, name: str) -> ModuleSpec | None:
        """Return the environment's spec of a top-level module; None if it has none."""
        if name not in self.specs:
            specs = (
                finder.find_spec(name, self.path if finder is importlib.machinery.PathFinder else None)
                for finder in self.finders
            )
            self.specs[name] = next((spec for spec in specs if spec is not None), None)
        return self.specs[name]

    def shadowed(self, name: str) -> bool:
        """Return whether the current path finds the checkout's copy of a top-level module that the environment has."""
        if sys.path == self.path:
            return False
        return self.is_shadow(name, place_of(importlib.machinery.PathFinder.find_spec(name)))

    def is_shadow(self, name: str, place: Path | None) -> bool:
        """Return whether a top-level module's place is in the checkout, though the environment has it (not a test)."""
        if place is None or not place.is_relative_to(self.tree) or self.is_test(name, place):
            return False
        own = place_of(self.installed(name))
        return own is not None and own != place

    def is_test(self, name: str, place: Path) -> bool:
        """Return whether a module has a test's name and is in, at or around the given files and folders."""
        about = any(place.is_relative_to(path) or path.is_relative_to(place) for path in self.tests)
        return bool(about and (name == self.suite or TESTS.fullmatch(name)))

    def of_the_tests(self, name: str) -> ModuleSpec | None:
        """Return the checkout's spec of a test module within a package."""
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
        """Return whether a module is in the environment; head's test files, which both sides share, count as such."""
        place = Path(file).resolve()
        own = place_of(self.installed(name.partition(".")[0])) if place.is_relative_to(self.tree) else place
        return own is not None and place.is_relative_to(own)

    def strays(self) -> dict[str, dict[str, Any]]:
        """Return the modules imported from outside the environment, by top-level name.

        Each has the "files" of its modules, and in "shadows" whether the environment has it, too. Packages borrowed by
        an environment without an index are found by itself, and are left out.
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
            file = getattr(sys.modules.get(top), "__file__", None) or stray["files"][0]  # namespace packages have none
            place = Path(file).resolve()
            place, installed = place.parent if place.stem == "__init__" else place, place_of(self.installed(top))
            elsewhere = installed is not None and not place.is_relative_to(installed)
            stray["shadows"] = elsewhere and not self.is_test(top, place)
        return found


def place_of(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package; None if it has neither."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
