"""Runs inside the environment of one side: lists tests of pytest-benchmark, measures one, or only calls it.

A standalone script of the standard library (Python 3.10 and later) and the environment's own pytest and
pytest-benchmark; ``asv_worker.py`` and ``sampling_plugin.py`` lie beside it. Called like the former: the request is
JSON, and the answer goes to the file that it names.

The tests are head's on both sides, and so is the folder they run in. What they import is the side's: a test folder with
an ``__init__.py``, a ``conftest.py``, pytest's ``pythonpath`` and ``sys.path.insert`` all put the checkout before the
environment, and both sides would then be measured with head's code. `Installed` finds a package that the environment
has in the environment, and a test that got one from the checkout all the same has failed.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
Answer = dict[str, Any]
NEEDED = {"pytest": "pytest", "pytest_benchmark": "pytest-benchmark"}
# A module or folder of a package that belongs to its tests.
TESTS = re.compile(r"tests?|conftest|test_\w+|\w+_test|bench(es|marks?)?|bench_\w+|perf(ormance)?")
NOT_STARTED = {3, 4}  # exit statuses of pytest: an error within it or a plug-in, and one in its use


def main() -> None:
    """Perform the request and write the answer, or the traceback, to its file."""
    import asv_worker as kit  # type: ignore[import-not-found]  # the copy beside this one

    kit.end_with_parent()
    request = json.loads(sys.argv[1])
    if missing := [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]:
        kit.write(
            request["answer"], {"status": "failed", "reason": f"no {' and no '.join(missing)}", "missing": missing}
        )
        return
    import sampling_plugin as plugin  # type: ignore[import-not-found]

    sys.path[:] = [place for place in sys.path if place != HERE]
    os.chdir(request["root"])
    installed = Installed(Path(request["root"]), [Path(path) for path in request["paths"]])
    sys.meta_path.insert(0, installed)
    if request["do"] == "call":
        call(request, plugin, kit, installed)
        return
    started = time.time_ns()
    try:
        answer = {"list": list_tests, "run": run_test}[request["do"]](request, plugin, kit, installed)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt of a test are its failure
        answer = kit.failure(error)
    if answer is not None:
        answer["start_ns"] = answer.get("start_ns", started)
        kit.write(request["answer"], answer)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)  # stray threads or atexit hooks of a test must not delay or undo the answer


class Installed:
    """Finds the packages that an environment has installed there, whatever is put in front of the path later.

    Args:
        tree: The checkout that the tests run in.
        tests: The test files and folders that were named; what lies there, or around them, in a package of the checkout
            and has a test's name stays the checkout's.
    """

    def __init__(self, tree: Path, tests: list[Path]) -> None:
        self.tree, self.tests = tree.resolve(), [path.resolve() for path in tests]
        self.path, self.finders = list(sys.path), list(sys.meta_path)
        self.specs: dict[str, ModuleSpec | None] = {}

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
        return bool(about and TESTS.fullmatch(name))

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

    def taken_from_checkout(self) -> list[str]:
        """Return the top-level modules that were imported from the checkout though the environment has them."""
        files = {
            name: Path(file).resolve()
            for name, module in list(sys.modules.items())
            if "." not in name and isinstance(file := getattr(module, "__file__", None), str)
        }
        places = {name: file.parent if file.stem == "__init__" else file for name, file in files.items()}
        return sorted(name for name, place in places.items() if self.is_shadow(name, place))


def place_of(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package; None for what has neither."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None


def pytest_words(request: Answer) -> list[str]:
    """Return the options of every start of pytest: the project's own stay, but nothing is left in the checkout."""
    folder = Path(request["answer"]).parent if "answer" in request else Path(request["scratch"])
    return [f"--rootdir={request['root']}", "-o", f"cache_dir={folder / 'cache'}", f"--basetemp={folder / 'tmp'}"]


def list_tests(request: Answer, plugin: Any, kit: Any, installed: Installed) -> Answer | None:  # noqa: ARG001
    """List the tests that use the fixture, and the files that cannot be collected here."""
    import pytest

    listing = plugin.Listing(installed)
    status = pytest.main(["--collect-only", "-q", *pytest_words(request), *request["paths"]], plugins=[listing])
    if status in NOT_STARTED and not listing.broken:
        return None  # a conftest.py that fails, an unknown option: pytest has printed which
    return {"status": "ok", "tests": listing.tests, "broken": listing.broken}


def run_test(request: Answer, plugin: Any, kit: Any, installed: Installed) -> Answer:
    """Run one test and return its timings by ``--benchmark-json``, with what was watched beside them."""
    import pytest

    sampling = plugin.Sampling(installed, kit, request)
    file = Path(request["answer"]).with_name("benchmark.json")
    words = [*pytest_words(request), f"--benchmark-json={file}", request["node"]]
    pytest.main(words, plugins=[sampling])
    if shadows := installed.taken_from_checkout():
        reason = f"the test imports {', '.join(shadows)} from the checkout instead of the side's environment"
        return {"status": "failed", "reason": reason}
    if sampling.ending is not None:
        return dict(sampling.ending)
    if not file.is_file():
        reason = (
            "the test passed, and pytest-benchmark timed nothing in it" if sampling.ran else "there is no such test"
        )
        return {"status": "failed", "reason": reason}
    listed = json.loads(file.read_text())["benchmarks"]
    stats = next((entry["stats"] for entry in listed if entry["fullname"] == request["node"]), listed[0]["stats"])
    return {"status": "ok", **sampling.answer(stats["data"], stats["iterations"])}


def call(request: Answer, plugin: Any, kit: Any, installed: Installed) -> None:
    """Call what a test times, without measuring it, and list the modules that it loaded and the functions that ran."""
    # pytest-benchmark asks git for a name of the commit.
    traced = kit.FunctionTrace(request["trace"], "pytest_benchmark.utils") if "trace" in request else None
    import pytest

    calls = plugin.Call(installed)
    status = pytest.main([*pytest_words(request), request["node"]], plugins=[calls])
    ran = traced.end() if traced else None
    if status or not calls.passed:
        sys.exit("the test does not pass")
    if "answer" in request:
        modules = list(sys.modules.items())
        files = {
            name: file
            for name, module in modules
            if (file := getattr(module, "__file__", None)) and installed.has(name, file)
        }
        kit.write(request["answer"], {"modules": files, "packages": kit.owners(files), "ran": ran})


if __name__ == "__main__":
    main()
