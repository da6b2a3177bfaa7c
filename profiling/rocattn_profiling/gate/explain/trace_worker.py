"""Runs inside the environment of one side: calls a benchmark a few times under cProfile, and says where the time went.

A standalone script of the standard library (Python 3.10 and later) that is copied beside `asv_worker`, whose way of
finding and setting up a benchmark it takes. Called as ``python trace_worker.py REQUEST``, where REQUEST is a JSON
object; the answer goes to the file that it names. A request that is "plain" only calls the benchmark and ends as
programs do: that is what a GPU's profiler is started on, which writes its files at the end.
"""

# ruff: noqa: SLF001 - asv_runner has no public way to run a benchmark's setup and parameters apart
import cProfile
import importlib.metadata
import json
import os
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import asv_worker  # type: ignore[import-not-found]  # it lies beside this file where both run

Answer = dict[str, Any]
WANTED_NS = 60_000_000
MOST_CALLS = 50
BATCHES = 4
MOST_FUNCTIONS = 400
PLAIN_CALLS = 4
MOST_OPENED = 2000


def main() -> None:
    """Leave the answer, or why there is none, in the file that the request names."""
    asv_worker.end_with_parent()
    request = json.loads(sys.argv[1])
    if request.get("plain"):
        run_plainly(request)
        return
    opened: set[str] = set()
    sys.addaudithook(lambda event, values: note_opened(opened, event, values))
    try:
        answer = {**trace(request), "opened": sorted(opened)}
    except BaseException as error:  # noqa: BLE001 - also SystemExit of a benchmark only means that there is no trace
        answer = asv_worker.failure(error)
    asv_worker.write(request["answer"], answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def note_opened(opened: set[str], event: str, values: tuple[Any, ...]) -> None:
    """Take down what is opened and is no Python module: tables and sources that are read are on the path, too."""
    if event != "open" or not isinstance(values[0], str) or len(opened) >= MOST_OPENED:
        return
    if not values[0].endswith((".py", ".pyc")):
        opened.add(str(Path(values[0]).absolute()))


def run_plainly(request: Answer) -> None:
    """Set the benchmark up and call it a few times; an error ends this program as it ends any."""
    benchmark, reason = ready(request)
    if reason is not None:
        sys.exit(f"the benchmark skips itself: {reason}")
    for _ in range(PLAIN_CALLS):
        benchmark.func(*benchmark._build_params())
    benchmark.do_teardown()


def ready(request: Answer) -> tuple[Any, str | None]:
    """Return the benchmark of a label, set up, and why it is skipped, if it is."""
    benchmark = asv_worker.load(request)
    cache = None
    if benchmark.setup_cache_key is not None:
        os.chdir(Path(request["scratch"], "cache-" + re.sub(r"\W+", "-", benchmark.setup_cache_key)))
        with Path("cache.pickle").open("rb") as file:
            cache = pickle.load(file)  # noqa: S301 - written by asv_worker in the same folder
    benchmark.set_cache(cache)
    return benchmark, asv_worker.set_up(benchmark)


def trace(request: Answer) -> Answer:
    """Set the benchmark up, call it, and describe the functions that ran and the modules that are loaded."""
    benchmark, reason = ready(request)
    if reason is not None:
        return {"status": "skipped", "reason": reason}
    if hasattr(benchmark, "_get_timer") and not hasattr(benchmark, "timer"):
        return {"status": "skipped", "reason": "its statement runs in a process of its own"}
    try:
        return {"status": "ok", **called(benchmark)}
    finally:
        benchmark.do_teardown()


def called(benchmark: Any) -> Answer:
    """Call the benchmark often enough for its times to mean something; set-ups stay out of the profile."""
    parameters = benchmark._build_params()

    def timed() -> int:
        start = time.perf_counter_ns()
        benchmark.func(*parameters)
        return time.perf_counter_ns() - start

    def renew() -> None:
        if benchmark._setups:
            benchmark.do_teardown()
            for setup in benchmark._setups:
                setup(*parameters)

    timed()  # the first call loads and compiles
    renew()
    best = max(timed(), 1)
    calls = max(1, min(MOST_CALLS, WANTED_NS // best))
    names = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    best_of: dict[tuple[str, int, str], Answer] = {}
    for _ in range(BATCHES if best < WANTED_NS else 1):
        profiler = cProfile.Profile(builtins=False)  # what is not Python counts as its caller's: that has a line
        for _ in range(calls):
            renew()
            profiler.enable()
            benchmark.func(*parameters)
            profiler.disable()
        for stat in profiler.getstats():
            if not isinstance(stat.code, str):
                one = row(stat, names, calls)
                known = best_of.setdefault((one["file"], one["line"], one["name"]), one)
                # Of each function its quietest batch: another program only ever adds time.
                known["self_ns"] = min(known["self_ns"], one["self_ns"])
                known["total_ns"] = min(known["total_ns"], one["total_ns"])
    rows = sorted(best_of.values(), key=lambda one: -one["self_ns"])
    modules = {name: file for file, name in names.items() if file}
    tops = {name.partition(".")[0] for name in modules}
    owners = importlib.metadata.packages_distributions()
    packages = sorted({owner for top in tops for owner in owners.get(top, ())})
    return {"functions": rows[:MOST_FUNCTIONS], "modules": modules, "packages": packages}


def row(stat: Any, names: dict[Any, str], calls: int) -> Answer:
    """Describe one function, for each call of the benchmark."""
    code = stat.code
    callees: dict[str, float] = {}
    for called_ in stat.calls or ():
        if not isinstance(called_.code, str):
            key = f"{names.get(called_.code.co_filename) or called_.code.co_filename}:{name_of(called_.code)}"
            callees[key] = callees.get(key, 0.0) + called_.callcount / calls
    return {
        "module": names.get(code.co_filename, ""),
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "name": name_of(code),
        "calls": stat.callcount / calls,
        "self_ns": stat.inlinetime / calls * 1e9,
        "total_ns": stat.totaltime / calls * 1e9,
        "callees": callees,
    }


def name_of(code: Any) -> str:
    """Return a function's name with its class's, where Python knows it (3.11 and later)."""
    return str(getattr(code, "co_qualname", code.co_name))


if __name__ == "__main__":
    main()
