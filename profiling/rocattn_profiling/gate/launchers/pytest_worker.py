"""Runs inside the environment of one side: lists tests of pytest-benchmark, measures one, or only calls it.

A standalone script of the standard library (Python 3.10 and later) and the environment's own pytest and
pytest-benchmark; ``asv_worker.py``, ``asv_origins.py`` and ``sampling_plugin.py`` lie beside it. Called like the first
of these: the request is JSON, and the answer goes to the file that it names.

The tests are head's on both sides, and so is the folder they run in. What they import is the side's (`asv_origins`).
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
Answer = dict[str, Any]
NEEDED = {"pytest": "pytest", "pytest_benchmark": "pytest-benchmark"}
NOT_STARTED = {3, 4}  # exit statuses of pytest: an error within it or a plug-in, and one in its use


def main() -> None:
    """Perform the request and write the answer, or the traceback, to its file."""
    import asv_worker as kit  # type: ignore[import-not-found]  # the copy beside this one
    from asv_origins import Installed  # type: ignore[import-not-found]

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
    installed = Installed(Path(request["tree"]), [Path(path.partition("::")[0]) for path in request["paths"]])
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


def pytest_words(request: Answer) -> list[str]:
    """Return the options of every start of pytest: the project's own stay, but nothing is left in the checkout."""
    folder = Path(request["answer"]).parent if "answer" in request else Path(request["scratch"])
    return [f"--rootdir={request['root']}", "-o", f"cache_dir={folder / 'cache'}", f"--basetemp={folder / 'tmp'}"]


def list_tests(request: Answer, plugin: Any, kit: Any, installed: Any) -> Answer | None:  # noqa: ARG001
    """List the tests that use the fixture, and the files that cannot be collected here."""
    import pytest

    listing = plugin.Listing(installed)
    status = pytest.main(["--collect-only", "-q", *pytest_words(request), *request["paths"]], plugins=[listing])
    if status in NOT_STARTED and not listing.broken:
        return None  # a conftest.py that fails, an unknown option: pytest has printed which
    return {"status": "ok", "tests": listing.tests, "broken": listing.broken, "marked": listing.marked}


def run_test(request: Answer, plugin: Any, kit: Any, installed: Any) -> Answer:
    """Run one test and return its timings by ``--benchmark-json``, with what was watched beside them."""
    import pytest

    sampling = plugin.Sampling(installed, kit, request)
    file = Path(request["answer"]).with_name("benchmark.json")
    words = [*pytest_words(request), f"--benchmark-json={file}", request["node"]]
    try:
        pytest.main(words, plugins=[sampling])
    except Exception:  # pytest-benchmark's warning that nothing was timed, where a project makes errors of warnings
        if sampling.ending is None:
            raise
    if sampling.ending is not None:
        return {**sampling.ending, "strays": installed.strays()}
    if not file.is_file():
        reason = (
            "the test passed, and pytest-benchmark timed nothing in it" if sampling.ran else "there is no such test"
        )
        return {"status": "failed", "reason": reason}
    listed = json.loads(file.read_text())["benchmarks"]
    stats = next((entry["stats"] for entry in listed if entry["fullname"] == request["node"]), listed[0]["stats"])
    answer = sampling.answer(stats["data"], stats["iterations"])
    return {"status": "ok", **answer, "strays": installed.strays()}


def call(request: Answer, plugin: Any, kit: Any, installed: Any) -> None:
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
