"""Run in the environment of one side: list an asv suite, measure one benchmark once, or only call it.

A standalone script that needs only the standard library (Python 3.10 and later) and asv_runner and `origins` next to
it: the environment of an old commit, or of another project, has nothing else of ours. Called as ``python asv_worker.py
REQUEST``, where REQUEST is a JSON object; the answer goes to the file named in it, so that a benchmark's output cannot
corrupt it.
"""

# ruff: noqa: SLF001 - asv_runner has no public way to run a benchmark's setup, parameters and timer separately
import builtins
import contextlib
import ctypes
import gc
import hashlib
import itertools
import json
import math
import os
import pickle
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

Answer = dict[str, Any]
# The canary: multiply large integers and hash bytes, both in C from a few KiB in the L1 cache, 0.2 ms.
FACTOR = int.from_bytes(bytes(range(1, 251)) * 12, "little")
TEXT = bytes(range(250)) * 60
WARMUP_NS = 20_000_000
# Limit of one sample with its setups (asv repeats setup before every timed call).
SAMPLE_LIMIT_NS = 60_000_000
# Characters: an exception may contain a whole array, and every launch stores its own.
MOST_REASON, MOST_TEXT = 1000, 20_000
CALLS = 4


def main() -> None:
    """Perform the request and write the answer, or the traceback, to its file."""
    request = json.loads(sys.argv[1])
    end_with_parent(request.get("parent"))
    sys.path.append(str(Path(__file__).with_name("fallback")))
    from asv_origins import Installed  # type: ignore[import-not-found]  # the copy beside this one

    suite = Path(request["suite"])
    installed = Installed(Path(request["tree"]), [suite], suite.name)
    sys.meta_path.insert(0, installed)
    if request["do"] == "call":
        call(request)
    elif request["do"] == "serve":
        serve(request, installed)
    else:
        perform(request, installed)


def perform(request: Answer, installed: Any) -> None:
    """Perform a request, write the answer, and end the process."""
    started = time.time_ns()
    try:
        answer = {"list": list_suite, "cache": make_cache, "run": run_benchmark}[request["do"]](request)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt of a benchmark are its failure
        answer = failure(error, request["suite"] if request["do"] == "list" else "")
    answer["start_ns"] = answer.get("start_ns", started)
    if request["do"] == "run":
        answer["strays"] = installed.strays()
    write(request["answer"], answer)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a benchmark may have closed or replaced it
            stream.flush()
    os._exit(0)  # a benchmark's stray threads or atexit hooks must not delay or undo the answer


def serve(request: Answer, installed: Any) -> None:
    """Import a module of the suite once, then fork a process for each request, one per line on stdin.

    asv's fork server does the same: some suites take half a minute to import. Write "ready" to the request's
    descriptor, then the PID of each process, and its status when it has ended. With "trace", record which functions
    start from the import on, for processes that `call` benchmarks.
    """
    import importlib

    traced = FunctionTrace(request["trace"]) if "trace" in request else None

    sys.modules.setdefault("pympler", None)  # type: ignore[arg-type]  # as in `load`
    with no_search_for_plugins():
        from asv_runner import discovery  # noqa: F401 - each process needs it
        from asv_runner._aux import update_sys_path
    update_sys_path(request["suite"])
    importlib.import_module(f"{Path(request['suite']).name}.{request['module']}")
    job = forked(request, sys.stdin.buffer, traced)
    os.chdir(job["cwd"])
    if job["do"] == "call":
        with contextlib.suppress(BaseException):  # there will be no answer
            call(job, traced)
        os._exit(0)
    perform(job, installed)


def forked(request: Answer, lines: Iterable[bytes], traced: "FunctionTrace | None" = None) -> Answer:
    """Fork a process for each line of JSON, and return the request in each fork, but never in this process.

    Args:
        request: The server's own request, with the descriptor for replies.
        lines: Requests; the server ends with them.
        traced: Records functions, in the forked processes as well.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        sys.exit("the import starts threads, which a fork would lose")
    gc.collect()
    gc.freeze()  # garbage collection must not copy pages that the processes share
    server = os.getpid()
    with os.fdopen(request["reply"], "w", buffering=1) as reply:
        print("ready", file=reply)
        for line in lines:
            job: Answer = json.loads(line)
            complete = traced is not None and traced.complete
            number = os.fork()
            if traced:
                traced.complete = complete  # this fork was not made by a benchmark
            if not number:
                os.setsid()
                end_with_parent(server)
                log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                for descriptor, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
                    os.dup2(source, descriptor)
                return job
            print(number, file=reply)
            print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), file=reply)
    os._exit(0)


def end_with_parent(parent: "int | None") -> None:
    """Ask Linux to kill this process when its parent is killed: an orphan would disturb the next measurement.

    Args:
        parent: Its PID, as it may have ended before, without a signal; None to accept any parent.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def write(path: str, answer: Answer) -> None:
    """Write the answer atomically."""
    partial = Path(path + ".partial")
    partial.write_text(json.dumps(answer))
    partial.replace(path)


def failure(error: BaseException, suite: str = "") -> Answer:
    """Describe an exception as a failed measurement, with the traceback and, given a suite, the place in it."""
    text = "".join(traceback.format_exception(error))
    lines = traceback.format_exception_only(error)[-1].strip().splitlines()
    # For a process started by a benchmark, the cause is in the last line of its own traceback.
    nested = len(lines) > 1 and lines[0].endswith("Traceback (most recent call last):")
    reason = lines[-1 if nested else 0][:MOST_REASON]
    own = [at for at in traceback.extract_tb(error.__traceback__) if suite and at.filename.startswith(suite)]
    if own:  # e.g. a constructor called by asv's discovery: only the place identifies it
        reason += f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    return {"status": "failed", "reason": reason, "traceback": text[-MOST_TEXT:]}


def list_suite(request: Answer) -> Answer:
    """List every benchmark of the suite, and the modules that cannot be imported here.

    Before importing a module, append its name to the file "progress": an import may take half a minute.
    """
    with no_search_for_plugins(), no_pympler():
        from asv_runner import discovery
    from asv_runner._aux import update_sys_path

    root = request["suite"]
    update_sys_path(root)
    benchmarks: list[Answer] = []
    broken: dict[str, str] = {}
    imports = {"": 0.0}
    real_import = discovery.importlib.import_module

    class Imports:  # asv_runner only prints an import error; the gate needs the module
        @staticmethod
        def import_module(name: str) -> Any:
            own = name.partition(".")[2] or name
            if "progress" in request:
                with contextlib.suppress(OSError), Path(request["progress"]).open("a") as file:
                    file.write(f"{own}\n")
            try:
                with import_times(name.partition(".")[0]) as times:
                    return real_import(name)
            except BaseException as error:
                broken[own] = traceback.format_exception_only(error)[-1].strip()
                raise
            finally:
                imports[own], imports[""] = times[0], imports[""] + times[1]

    discovery.importlib = Imports
    for benchmark in discovery.disc_benchmarks(root, ignore_import_errors=True):
        keys = ("name", "type", "param_names", "timeout", "setup_cache_key", "setup_cache_timeout")
        facts = {key: getattr(benchmark, key) for key in keys}
        facts["params"] = names_of(benchmark)
        facts["unit"], facts["version"] = str(benchmark.unit), str(benchmark.version)
        declared = any(getattr(source, "deterministic", False) is True for source in benchmark._attr_sources)
        facts["deterministic"] = declared and benchmark.type == "track"
        benchmarks.append(facts)
    benchmarks = list({facts["name"]: facts for facts in benchmarks}.values())  # aliases of a function count once
    return {"status": "ok", "benchmarks": benchmarks, "broken": broken, "imports": imports}


@contextlib.contextmanager
def import_times(suite: str) -> Iterator[list[float]]:
    """Yield a list, filled at exit with the import seconds of a suite's own modules and of everything they import.

    Args:
        suite: Name of the package with the suite's modules.
    """
    times, depth, real = [0.0, 0.0], 0, builtins.__import__

    def timed(name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal depth
        level = options.get("level", arguments[3] if len(arguments) > 3 else 0)
        if depth or level or name.partition(".")[0] == suite:
            return real(name, *arguments, **options)
        depth, started = 1, time.perf_counter()
        try:
            return real(name, *arguments, **options)
        finally:
            depth, times[1] = 0, times[1] + time.perf_counter() - started

    builtins.__import__, started = timed, time.perf_counter()
    try:
        yield times
    finally:
        builtins.__import__ = real
        times[0] = time.perf_counter() - started - times[1]


@contextlib.contextmanager
def no_search_for_plugins() -> Iterator[None]:
    """Keep asv_runner from reading all packages' metadata where folder names suffice: 40 ms per launch."""
    name = "importlib.metadata"
    if name in sys.modules or has_plugins():
        yield
        return
    empty = ModuleType(name)
    empty.distributions = tuple  # type: ignore[attr-defined]
    sys.modules[name] = empty
    try:
        yield
    finally:
        del sys.modules[name]  # benchmarks get the real one


@contextlib.contextmanager
def no_pympler() -> Iterator[None]:
    """Make asv_runner list memory benchmarks without pympler, which imports numpy: 0.15 s per listing."""
    names = [name for name in ("pympler", "pympler.asizeof") if name not in sys.modules]
    for name in names:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].asizeof = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]  # suites get the real one


def has_plugins() -> bool:
    """Return whether a package that adds benchmark types, such as asv_bench_memray, is or may be installed."""
    for place in map(Path, sys.path):
        if place.is_file():  # a zip file may contain anything
            return True
        with contextlib.suppress(OSError):
            if any(re.match("asv[-_.]bench", entry.name, re.IGNORECASE) for entry in place.iterdir()):
                return True
    return False


def load(request: Answer) -> Any:
    """Return the benchmark of a request with its parameters set."""
    if request.get("type") != "memory":
        # asv_runner imports pympler, and so numpy, to measure object sizes: 0.3 s per launch, which other types avoid.
        sys.modules.setdefault("pympler", None)  # type: ignore[arg-type]  # None is how the import system says absent
    with no_search_for_plugins():
        from asv_runner.discovery import get_benchmark_from_name

    benchmark = get_benchmark_from_name(request["suite"], request["benchmark"])
    if benchmark.params and "label" in request:
        benchmark.set_param_idx(index_of(benchmark, request["label"]))
    return benchmark


def names_of(benchmark: Any) -> list[list[str]]:
    """Return asv's names for the values of each parameter, without addresses, which differ between processes."""
    plain = [[re.sub(r" at 0x[0-9a-fA-F]+", "", str(value)) for value in values] for values in benchmark.params]
    return [[f"{n} ({ns[:at].count(n)})" if ns.count(n) > 1 else n for at, n in enumerate(ns)] for ns in plain]


def index_of(benchmark: Any, label: str) -> int:
    """Return the index of a label's parameters, which may differ between revisions."""
    labels = [f"{benchmark.name}({', '.join(values)})" for values in itertools.product(*names_of(benchmark))]
    if label not in labels:
        raise LookupError("the benchmark has no such parameters here")
    return labels.index(label)


def make_cache(request: Answer) -> Answer:
    """Run setup_cache and pickle what it returns into the working directory, as asv does."""
    cache = load(request).do_setup_cache()
    with Path("cache.pickle").open("wb") as file:
        pickle.dump(cache, file)
    return {"status": "ok"}


def run_benchmark(request: Answer) -> Answer:
    """Set up one benchmark, measure it, and tear it down."""
    benchmark = load(request)
    reason = set_up(benchmark)
    if reason is not None:
        return {"status": "skipped", "reason": reason}
    try:
        return {"status": "ok", **measure(benchmark, request)}
    except Exception as error:
        if type(error).__name__ == "SkipNotImplemented":
            return {"status": "skipped", "reason": str(error) or "SkipNotImplemented"}
        raise
    finally:
        benchmark.do_teardown()


def call(request: Answer, traced: "FunctionTrace | None" = None) -> None:
    """Call one benchmark a few times without measuring it, and list the modules that it loaded.

    GPU profilers run this, so the process exits normally: profilers write their files at exit. An exception, or a
    benchmark that skips itself, is a failed program without an answer.

    With "trace", names of source files, also list the functions in these files that started, beginning with the import
    of the benchmark; ``traced`` has already recorded them if it was imported before. Functions in child processes are
    not seen, nor those that filled its cache before.
    """
    if traced is None and "trace" in request:
        traced = FunctionTrace(request["trace"])
    benchmark = load(request)
    if benchmark.setup_cache_key is not None:
        os.chdir(Path(request["caches"], cache_name(benchmark.setup_cache_key)))
    reason = set_up(benchmark)
    if reason is not None:
        sys.exit(f"the benchmark skips itself: {reason}")
    for _ in range(1 if traced else CALLS):
        benchmark.func(*benchmark._build_params())
    benchmark.do_teardown()
    ran = traced.end() if traced else None
    if benchmark.setup_cache_key is not None or (benchmark.type == "time" and not hasattr(benchmark, "timer")):
        ran = None
    if "answer" in request:
        modules = list(sys.modules.items())
        files = {name: file for name, module in modules if (file := getattr(module, "__file__", None))}
        write(request["answer"], {"modules": files, "packages": owners(files), "ran": ran})


def owners(modules: Iterable[str]) -> list[str]:
    """Return the installed packages that modules belong to, by name.

    ``importlib.metadata.packages_distributions`` takes 0.3 s for 96 packages, twelve times as long, because it creates
    a path for every file.
    """
    import importlib.metadata  # not in measured launches

    tops, owning = {name.partition(".")[0] for name in modules}, set()
    for package in importlib.metadata.distributions():
        names = set((package.read_text("top_level.txt") or "").split())
        if not names and (record := package.read_text("RECORD")):
            firsts = {line.partition(",")[0].partition("/")[0] for line in record.splitlines()}
            names = {first.partition(".")[0] for first in firsts}
        if tops & names:
            owning.add(package.metadata["Name"])
    return sorted(owning)


class FunctionTrace:
    """Records which functions start in this process from now on, each once.

    Args:
        names: Names of the source files to record, without folders.
        harmless: Module whose child processes run no code of the project; "" for none.
    """

    def __init__(self, names: list[str], harmless: str = "") -> None:
        self.names, self.harmless = set(names), harmless
        self.codes: dict[int, Any] = {}  # by id: hashing a code object takes as long as a short call
        self.complete = hasattr(type(self).end.__code__, "co_qualname")  # Python 3.11 and later
        self.tool = -1
        sys.addaudithook(self.audit)
        monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and later
        free = [tool for tool in range(6) if monitoring.get_tool(tool) is None] if monitoring else []
        if free:
            self.tool, start = free[-1], monitoring.events.PY_START
            monitoring.use_tool_id(self.tool, "rocattn")
            monitoring.register_callback(self.tool, start, self.started)
            monitoring.set_events(self.tool, start)
        else:
            threading.setprofile(self.profiled)
            sys.setprofile(self.profiled)

    def started(self, code: Any, _offset: int) -> Any:
        """Record a function; `sys.monitoring` need not report it again."""
        self.codes[id(code)] = code
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def profiled(self, frame: Any, event: str, _argument: Any) -> None:
        """Record a function reported by `sys.setprofile`."""
        if event == "call":
            self.codes[id(frame.f_code)] = frame.f_code

    def audit(self, event: str, _arguments: Any) -> None:
        """Record that a child process may run code as well."""
        starts = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
        if event in starts and not self.is_harmless():
            self.complete = False

    def is_harmless(self) -> bool:
        """Return whether the harmless module is among the callers."""
        frame: Any = sys._getframe()
        while frame and self.harmless:
            if frame.f_globals.get("__name__") == self.harmless:
                return True
            frame = frame.f_back
        return False

    def end(self) -> list[list[str]] | None:
        """Stop, and return the file and qualified name of each function; None if some may be missing."""
        if self.tool >= 0:
            sys.monitoring.free_tool_id(self.tool)  # type: ignore[attr-defined]
        else:
            sys.setprofile(None)
            threading.setprofile(None)
        # multiprocessing imports one of these modules when it starts its first process.
        if not self.complete or any(name.startswith("multiprocessing.popen_") for name in sys.modules):
            return None
        codes = [code for code in self.codes.values() if Path(code.co_filename).name in self.names]
        return [[code.co_filename, code.co_qualname] for code in codes]


def cache_name(key: str) -> str:
    """Return the name of a setup_cache's folder, unique among the benchmarks."""
    return "cache-" + re.sub(r"\W+", "-", key)


def set_up(benchmark: Any) -> str | None:
    """Load the setup_cache and run the setups; return why the benchmark must be skipped, or None."""
    cache = None
    if benchmark.setup_cache_key is not None:
        with Path("cache.pickle").open("rb") as file:
            cache = pickle.load(file)  # noqa: S301 - written by make_cache in the same folder
    benchmark.set_cache(cache)
    if tuple(benchmark._current_params) in [tuple(skip) for skip in benchmark._skip_tuples]:
        return "these parameters are in skip_params"
    try:
        for setup in benchmark._setups:
            setup(*benchmark._build_params())
    except NotImplementedError as error:
        return str(error) or "NotImplementedError in setup"
    if hasattr(benchmark, "_load_vars"):
        benchmark._load_vars()  # setup may set number and timer on the instance
    return None


def measure(benchmark: Any, request: Answer) -> Answer:
    """Take the samples of a timing benchmark, or the value of any other."""
    canaries = [canary_ns() for _ in range(4)]
    load_1min, ticks = os.getloadavg()[0], cpu_ticks()
    started = time.time_ns()
    if benchmark.type != "time":
        value = benchmark.do_run()
        value = peak_rss_bytes() if benchmark.type == "peakmemory" else value
        if isinstance(value, float) and math.isnan(value):  # numpy's floats included
            return {"status": "skipped", "reason": "it returned NaN, which means no result"}
        answer: Answer = {"value": number_of(value), "canary_ns": low_end(canaries)}
    else:
        # timeraw has no timer: its statement runs in a separate process for every sample.
        timed = hasattr(benchmark, "timer")
        answer = samples(benchmark, request, canaries) if timed else raw_samples(benchmark, request)
        canaries += [canary_ns() for _ in range(4)]
        # A custom timer counts something independent of the CPU's speed: GPU events, cycles, calls.
        own_timer = timed and benchmark.timer is not time.perf_counter
        answer.update(canary_ns=0 if own_timer else low_end(canaries), canary_of=sys.version)
    steal = steal_pct(ticks, cpu_ticks())
    facts = {"start_ns": started, "load": load_1min, "steal_pct": steal, "peak_rss_bytes": peak_rss_bytes()}
    return {**answer, **facts}


def cpu_ticks() -> list[int]:
    """Return the machine's CPU times so far by kind, with steal last of eight; empty without /proc."""
    try:
        with Path("/proc/stat").open() as file:
            return [int(part) for part in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return []


def steal_pct(before: list[int], after: list[int]) -> float:
    """Return the percentage of CPU time that the hypervisor gave to others between two readings."""
    passed = [new - old for old, new in zip(before, after, strict=False)]
    total = sum(passed)
    return round(100 * passed[7] / total, 3) if len(passed) == 8 and total > 0 else 0.0


def number_of(value: Any) -> float:
    """Return a benchmark's value as a float; raise for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"the benchmark returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the benchmark returned {number}")
    return number


def canary_ns() -> int:
    """Return the CPU time of a fixed piece of work, in ns: it shows the machine's speed, never the code's.

    It runs in C, because an interpreted loop varies by 20 % between launches with its placement, and it keeps many
    units of a core busy, because a process on the sibling hyperthread competes for them. A SHA-256 in hardware detects
    less of that, copies in cache no more (docs/gate-measured.md).
    """
    start = time.thread_time_ns()
    for _ in range(4):
        hashlib.blake2b(TEXT).digest()
    FACTOR * FACTOR
    return time.thread_time_ns() - start


def low_end(canaries: list[int]) -> int:
    """Return the low end of the canary's times: as with samples, other work can only add time.

    `measure.stats.low_quantile` is not available in the environments of this script, and interpolates.
    """
    return sorted(canaries)[len(canaries) // 10]


def peak_rss_bytes() -> int:
    """Return the largest resident set of this program.

    Linux's ru_maxrss, which asv reads, starts at the size of the forking parent; VmHWM does not.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


class Sampler:
    """Times calls of one benchmark: wall, CPU of thread and process, involuntary context switches."""

    def __init__(self, benchmark: Any) -> None:
        parameters = benchmark._build_params()
        function = benchmark.func
        self.call = (lambda: function(*parameters)) if parameters else function
        # As in asv: with setup hooks, every timed call gets fresh state; without, calls are timed in one batch.
        self.fresh = bool(benchmark._setups)
        self.benchmark = benchmark
        self.taken = 0
        # asv's default timer is the wall clock; any other one (GPU events, for example) has its own seconds.
        self.timer = None if benchmark.timer is time.perf_counter else benchmark.timer

    def gpu_state(self) -> list[dict[str, float]]:
        """Return a GPU timer's readings since the last call, as a list of one; empty for other timers."""
        take = getattr(self.timer, "take_state", None)
        return [] if take is None else [take()]

    def redo_setup(self) -> None:
        """Tear down and set up again, as asv does between calls."""
        self.benchmark.do_teardown()
        for setup in self.benchmark._setups:
            setup(*self.benchmark._build_params())

    def sample(self, number: int) -> tuple[int, int, int, int]:
        """Return (wall, process CPU, thread CPU) in ns of ``number`` calls, and the context switches."""
        self.taken += 1
        wall = process = thread = switches = 0
        calls, batches = (1, number) if self.fresh and number > 1 else (number, 1)
        for index in range(batches):
            if index or self.fresh:
                self.redo_setup()
            part = self.batch(calls)
            wall, process, thread, switches = wall + part[0], process + part[1], thread + part[2], switches + part[3]
        return wall, process, thread, switches

    def batch(self, calls: int) -> tuple[int, int, int, int]:
        """Time consecutive calls; the wall clock is read innermost, so that it excludes the other clocks' overhead."""
        call, timer, loop = self.call, self.timer, range(calls)
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        process, thread = time.process_time_ns(), time.thread_time_ns()
        if timer is not None:
            start = timer()
            for _ in loop:
                call()
            wall = round((timer() - start) * 1e9)
        else:
            start = time.perf_counter_ns()
            for _ in loop:
                call()
            wall = time.perf_counter_ns() - start
        thread, process = time.thread_time_ns() - thread, time.process_time_ns() - process
        return wall, process, thread, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches


def samples(benchmark: Any, request: Answer, canaries: list[int]) -> Answer:
    """Warm up, then take the samples; without a ``number`` in the request, first choose it for its sample time.

    Choosing takes ``primed`` samples, which are discarded. A request with that number discards as many, so that all
    launches do the same work before their first sample, whether they chose or not.

    The canary is timed between samples and added to ``canaries``, because a clock can change within a launch. It is not
    timed with a custom timer (GPU events), because the gap would let the GPU's clock drop.
    """
    sampler = Sampler(benchmark)
    enabled = gc.isenabled()
    gc.disable()
    try:
        number = request.get("number") or 0
        call_ns, whole = warm_up(sampler)
        warmed = sampler.taken
        if not number:
            number = choose_number(sampler, benchmark, call_ns, whole, request["sample_ns"])
        for _ in range(request.get("primed", 0)):
            sampler.sample(number)
        count = request.get("count") or choose_count(sampler, whole * number, number, request)
        primed = sampler.taken - warmed
        rows, states = [], []
        for _ in range(count):
            rows.append(sampler.sample(number))
            states += sampler.gpu_state()
            if sampler.timer is None:
                canaries.append(canary_ns())
    finally:
        if enabled:
            gc.enable()
    wall, process, thread, switches = zip(*rows, strict=True)
    return {
        "number": number,
        "primed": primed,
        "samples_ns": [value / number for value in wall],
        "cpu_ns": [value / number for value in process] if sampler.timer is None else [],
        "thread_ns": [value / number for value in thread] if sampler.timer is None else [],
        "nivcsw": list(switches),
        "gpu": states,
    }


def warm_up(sampler: Sampler) -> tuple[int, int]:
    """Call for a while (at least once); return the shortest wall time in ns of a call, and of one with its setup."""
    best = whole = 0
    started = before = time.perf_counter_ns()
    while True:
        wall, now = max(sampler.sample(1)[0], 1), time.perf_counter_ns()
        best = min(best, wall) if best else wall
        whole = min(whole, now - before) if whole else now - before
        if now - started >= WARMUP_NS:
            return best, (max(whole, best) if sampler.fresh else best)
        before = now


def choose_number(sampler: Sampler, benchmark: Any, call_ns: int, whole: int, sample_ns: int) -> int:
    """Return the calls per sample: enough for ``sample_ns``, and at least the benchmark's own number."""
    number = max(1, math.ceil(sample_ns / call_ns))
    if sampler.fresh:
        number = min(number, SAMPLE_LIMIT_NS // whole)
    elif number > 1:
        # The first guess includes the overhead of the loop and the clock: one measured batch corrects it.
        per_call = min(sampler.sample(number)[0] for _ in range(2)) / number
        number = math.ceil(sample_ns / max(per_call, 1.0))
    return max(int(benchmark.number), 1, number)


def choose_count(sampler: Sampler, cost: int, number: int, request: Answer) -> int:
    """Return how many samples fit in a launch's budget: 4 to 12, or fewer within half of the time limit."""
    if 4 * cost < request["budget_ns"]:  # an extra sample fits, and improves the estimate
        start = time.perf_counter_ns()
        sampler.sample(number)
        cost = max(time.perf_counter_ns() - start, cost, 1)
    # The other half is for warm-up, a slower side and a busy machine.
    most = request.get("limit_ns", math.inf) // 2 // cost - 1
    return int(max(1, min(most, max(4, min(12, request["budget_ns"] // cost)))))


def raw_samples(benchmark: Any, request: Answer) -> Answer:
    """Sample a ``timeraw_`` benchmark through asv_runner's own subprocess timer."""
    timer = benchmark._get_timer(*benchmark._build_params())
    number = request.get("number") or max(1, benchmark.number)
    count = request.get("count") or 4
    return {"number": number, "samples_ns": [timer.timeit(number) / number * 1e9 for _ in range(count)]}


if __name__ == "__main__":
    main()
