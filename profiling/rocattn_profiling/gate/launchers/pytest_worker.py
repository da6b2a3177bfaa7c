"""Runs inside one side's environment: lists pytest-benchmark tests, measures one, or only calls it.

For a file with several tests it can also be a server: it collects the file once, then forks a process for each test.

A standalone script that needs only the standard library (Python 3.10 or later), the environment's pytest and
pytest-benchmark, and ``asv_worker.py``, ``asv_origins.py`` and ``sampling_plugin.py`` next to it. Called like the first
of these: the request is JSON, and the answer goes to the file that it names.

Both sides run head's tests in head's folder. Their imports come from the side's environment (`asv_origins`).
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

HERE = str(Path(__file__).parent)
Answer = dict[str, Any]
NEEDED = {"pytest": "pytest", "pytest_benchmark": "pytest-benchmark"}
NOT_STARTED = {3, 4}  # exit statuses of pytest: internal error and usage error


def main() -> None:
    """Perform the request and write the answer, or the traceback, to its file."""
    import asv_worker as kit  # type: ignore[import-not-found]  # the copy next to this file
    from asv_origins import Installed  # type: ignore[import-not-found]

    request = json.loads(sys.argv[1])
    kit.end_with_parent(request.get("parent"))
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
    traced = None
    if "trace" in request:  # not traced: pytest-benchmark, which asks git for the commit's name
        traced = kit.FunctionTrace(request["trace"], "pytest_benchmark.utils")
    fork = None
    if request["do"] == "serve":
        jobs = os.fdopen(os.dup(0), "rb")  # pytest replaces stdin
        fork = lambda: kit.forked(request, jobs, traced)  # noqa: E731
    if request["do"] == "call" or (fork and request["calls"]):
        call(request, plugin, kit, installed, fork, traced)
        return
    started = time.time_ns()

    def end(answer: Answer | None) -> NoReturn:
        if answer is not None and "answer" in request:  # a server that cannot fork has none
            answer["start_ns"] = answer.get("start_ns", started)
            kit.write(request["answer"], answer)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)  # stray threads or atexit hooks of a test must not delay or undo the answer

    try:
        if request["do"] == "list":
            answer = list_tests(request, plugin, installed, end)
        else:
            answer = run_test(request, plugin, kit, installed, fork, end)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt of a test are its failure
        answer = kit.failure(error)
    end(answer)


def pytest_words(request: Answer) -> list[str]:
    """Return the options for every start of pytest: the project's own apply, but caches stay out of the checkout."""
    folder = Path(request["answer"]).parent if "answer" in request else Path(request["scratch"])
    return [f"--rootdir={request['root']}", "-o", f"cache_dir={folder / 'cache'}", f"--basetemp={folder / 'tmp'}"]


def list_tests(request: Answer, plugin: Any, installed: Any, end: Any) -> Answer | None:
    """List the tests that use the fixture, and the files that cannot be collected here."""
    import pytest

    listing = plugin.Listing(installed)

    def answer(status: int) -> Answer | None:
        if status in NOT_STARTED and not listing.broken:
            return None  # pytest prints why: a failing conftest.py, an unknown option
        return {"status": "ok", **{name: getattr(listing, name) for name in ("tests", "broken", "marked", "seconds")}}

    listing.at_end = lambda status: None if (found := answer(status)) is None else end(found)
    return answer(pytest.main(["--collect-only", "-q", *pytest_words(request), *request["paths"]], plugins=[listing]))


def run_test(request: Answer, plugin: Any, kit: Any, installed: Any, fork: Any, end: Any) -> Answer:
    """Run one test and end with pytest-benchmark's timings and what was recorded around them."""
    import pytest

    sampling = plugin.Sampling(installed, request, fork, kit)

    def answer() -> Answer:
        if sampling.ending is not None:
            return {**sampling.ending, "strays": installed.strays()}
        if not sampling.timed:
            timed_nothing = "the test passed, and pytest-benchmark timed nothing in it"
            return {"status": "failed", "reason": timed_nothing if sampling.ran else "there is no such test"}
        own = next((timed for timed in sampling.timed if timed[0] == request["node"]), sampling.timed[0])
        return {"status": "ok", **sampling.answer(*own[1:]), "strays": installed.strays()}

    sampling.at_end = lambda _: end(answer())
    pytest.main([*pytest_words(request), request["node"]], plugins=[sampling])
    return answer()  # pytest ended before the end of a session


def call(request: Answer, plugin: Any, kit: Any, installed: Any, fork: Any, traced: Any) -> None:
    """Call what a test times, without measuring it, and list the modules that it loaded and the functions that ran."""
    import pytest

    calls = plugin.Call(installed, request, fork)

    def loaded() -> None:
        ran = traced.end() if traced else None
        modules = list(sys.modules.items())
        files = {
            name: file
            for name, module in modules
            if (file := getattr(module, "__file__", None)) and installed.has(name, file)
        }
        kit.write(request["answer"], {"modules": files, "packages": kit.owners(files), "ran": ran})

    def end(_status: int) -> None:
        if calls.passed:
            loaded()
        os._exit(0)

    if fork:
        calls.at_end = end
    status = pytest.main([*pytest_words(request), request["node"]], plugins=[calls])
    if status or not calls.passed:
        sys.exit("the test does not pass")
    if "answer" in request:
        loaded()


if __name__ == "__main__":
    main()
