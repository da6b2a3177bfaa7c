"""One benchmark in one fresh process: everything an asv benchmark may do, and what it may find there."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import asv_runner
import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain import choose_host_compiler
from rocattn_profiling.asv import worker as asv_worker
from rocattn_profiling.asv.launch import Launcher, Request, quick_cases
from rocattn_profiling.revisions.asv_config import SuiteError
from rocattn_profiling.revisions.build import running_packages

SUITE = '''
import os, sys, time

class Params:
    params = [[10, 20], ["x", "y", "z"]]
    param_names = ["n", "kind"]
    def setup(self, n, kind):
        if kind == "y":
            raise NotImplementedError("no y here")
        self.seen = [n, kind]
    def time_it(self, n, kind):
        assert self.seen == [n, kind]
        sum(range(n))
    def track_pair(self, n, kind):
        return n * 100 + ord(kind)

class Counted:
    """Setup runs before every timed call, as in asv."""
    number = 4
    calls = 0
    def setup(self):
        self.fresh = True
    def time_fresh(self):
        assert self.fresh, "setup did not run again"
        self.fresh = False
    def teardown(self):
        self.torn = True

class Cached:
    def setup_cache(self):
        with open("beside.txt", "w") as file:
            file.write("found")
        with open(os.environ["ROCATTN_TEST_LOG"], "a") as log:
            log.write("cache made\\n")
        return {"value": 42}
    def track_cached(self, cache):
        assert open("beside.txt").read() == "found"
        return cache["value"]
    def time_cached(self, cache):
        cache["value"] += 1

class BadCache:
    def setup_cache(self):
        raise RuntimeError("cannot prepare")
    def time_never(self, cache):
        pass

class QuickOne:
    def time_short(self):
        pass

class Virtual:
    """A timer of its own: exact seconds."""
    now = 0.0
    def timer():
        return Virtual.now
    timer = staticmethod(timer)
    number = 5
    def time_virtual(self):
        Virtual.now += 0.25

def track_size():
    return 7
track_size.unit = "bytes"

class Exact:
    deterministic = True
    def track_number(self):
        return 7
    def time_it(self):
        pass

def track_skips():
    from asv_runner.benchmarks.mark import SkipNotImplemented
    raise SkipNotImplemented("not on this machine")

def peakmem_list():
    return len(bytearray(64 * 2**20))

def mem_list():
    return [0] * 1000

def time_environment():
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    assert os.environ["ROCATTN_NUM_THREADS"] == "1"
    assert "PYTHONPATH" not in os.environ
    assert "GIT_DIR" not in os.environ
time_environment.timeout = 70.0

def track_compiler():
    import zlib
    from rocattn.toolchain import choose_host_compiler
    compiler = choose_host_compiler()
    assert compiler.given
    return zlib.crc32(compiler.version.encode())
'''


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with one module of benchmarks and one that cannot be imported."""
    folder = tmp_path_factory.mktemp("suite") / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "bench.py").write_text(SUITE)
    (folder / "broken.py").write_text("import no_such_library\n")
    return folder


@pytest.fixture(scope="module")
def listed(suite, tmp_path_factory):
    """What discovery says of it."""
    return Launcher(sys.executable, suite, tmp_path_factory.mktemp("list")).discover()


@pytest.fixture
def run(suite, listed, tmp_path, monkeypatch):
    """Return a function that runs one case by its label."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as in a hook of git's
    monkeypatch.setenv("ROCATTN_TEST_LOG", str(tmp_path / "log.txt"))
    launcher = Launcher(sys.executable, suite, tmp_path / "scratch", {"OPENBLAS_NUM_THREADS": "3"})
    cases = {case.label: case for case in listed.cases()}

    def run_(label, request=None, **options):
        return launcher.run(
            cases[f"bench.{label}"], request or Request(sample_ns=200_000, budget_ns=2_000_000), **options
        )

    return run_


def test_discovery_lists_names_types_units_and_params(listed):
    """Every benchmark comes with asv's facts, params as reprs."""
    found = {benchmark.name: benchmark for benchmark in listed.benchmarks}
    assert found["bench.Params.time_it"].params == [["10", "20"], ["'x'", "'y'", "'z'"]]
    assert found["bench.Params.time_it"].param_names == ["n", "kind"]
    exact = {name for name, benchmark in found.items() if benchmark.deterministic}
    assert exact == {"bench.Exact.track_number"}
    assert (found["bench.track_size"].type, found["bench.track_size"].unit) == ("track", "bytes")
    assert (found["bench.time_environment"].timeout, found["bench.track_size"].timeout) == (70.0, None)
    assert found["bench.peakmem_list"].type == "peakmemory"
    assert found["bench.mem_list"].type == "memory"
    assert found["bench.Cached.time_cached"].setup_cache_key == found["bench.Cached.track_cached"].setup_cache_key


def test_a_broken_module_is_named_and_the_rest_is_listed(listed):
    """One broken file does not take the suite with it, and is not silent."""
    assert list(listed.broken) == ["broken"]
    assert "no_such_library" in listed.broken["broken"]


def test_cases_are_the_product_of_the_params_in_asv_s_order(listed):
    """Six labels, the last parameter fastest; patterns search in them."""
    labels = [case.label for case in listed.cases((r"Params\.time_it",))]
    assert labels[:4] == [f"bench.Params.time_it({n}, '{k}')" for n, k in ((10, "x"), (10, "y"), (10, "z"), (20, "x"))]
    assert [case.param for case in listed.cases((r"time_it\(20",))] == [3, 4, 5]


def test_quick_cases_are_the_quick_classes_or_all(listed):
    """A suite may name what a quick run measures."""
    assert [case.label for case in quick_cases(listed.cases())] == ["bench.QuickOne.time_short"]
    others = [case for case in listed.cases() if "QuickOne" not in case.label]
    assert quick_cases(others) == others


def test_a_timing_has_samples_cpu_times_and_switches(run):
    """Samples come with process and thread CPU time and context switches, one each, per call in ns."""
    found = run("Params.time_it(20, 'z')", pos=1)
    assert found.status == "ok"
    launch = found.launch
    assert launch.pos == 1
    assert len(launch.samples_ns) == len(launch.cpu_ns) == len(launch.nivcsw) == len(found.thread_ns) >= 4
    assert min(launch.samples_ns) > 0
    assert abs(launch.start_ns - time.time_ns()) < 60e9
    assert 1e4 < found.canary_ns < 1e8
    assert found.canary_of
    assert found.peak_rss_bytes > 2**20


def test_values_of_all_types_are_numbers(run):
    """Each combination runs with its own values; peak memory covers what was allocated, object size is as it is."""
    assert run("Params.track_pair(20, 'z')").launch.samples_ns == [2000.0 + ord("z")]
    assert run("Params.track_pair(10, 'x')").launch.samples_ns == [1000.0 + ord("x")]
    assert run("track_size").launch.samples_ns == [7.0]
    assert 64 * 2**20 < run("peakmem_list").launch.samples_ns[0] < 2**30
    assert 8000 <= run("mem_list").launch.samples_ns[0] < 9000


def test_a_given_number_and_count_are_kept(run):
    """What one side chose the other repeats."""
    launch = run("QuickOne.time_short", Request(number=17, count=9)).launch
    assert (launch.number, len(launch.samples_ns)) == (17, 9)


def test_a_sample_is_long_enough(run):
    """The number is chosen for the asked sample time (within the drift of a busy machine)."""
    launch = run("QuickOne.time_short", Request(sample_ns=2_000_000, budget_ns=10_000_000)).launch
    assert launch.number > 2_000
    assert launch.number * min(launch.samples_ns) < 40_000_000


def test_a_timer_of_the_benchmark_s_own_is_used(run):
    """An asv ``timer`` attribute decides the time: a quarter second a call, exactly, no CPU times and no fixed work."""
    found = run("Virtual.time_virtual")
    assert found.launch.samples_ns == [2.5e8] * len(found.launch.samples_ns)
    assert found.launch.cpu_ns == []
    assert found.canary_ns == 0


def test_setup_runs_before_every_timed_call(run):
    """As in asv: with number 4 each of the four calls sees fresh state."""
    found = run("Counted.time_fresh", Request(number=4, count=3))
    assert found.status == "ok", found.traceback


@pytest.mark.parametrize(
    ("label", "status", "reason"),
    [
        ("Params.time_it(10, 'y')", "skipped", "no y here"),  # NotImplementedError in setup is asv's word for it
        ("track_skips", "skipped", "not on this machine"),  # in the body it is SkipNotImplemented
        ("BadCache.time_never", "failed", "setup_cache: RuntimeError: cannot prepare"),
        # BLAS is single-threaded by default, variables of asv's matrix win; PYTHONPATH and GIT_DIR stay out.
        ("time_environment", "ok", ""),
    ],
)
def test_how_it_ends_is_told_with_its_reason(run, label, status, reason):
    """Skipped by itself, failed with where it failed, or run in the environment that it expects."""
    found = run(label)
    assert (found.status, found.reason) == (status, reason), found.traceback


def test_a_cache_is_made_once_and_passed_to_all(run, tmp_path):
    """setup_cache runs once a side, its value arrives first, and files it wrote are beside the benchmark."""
    assert run("Cached.track_cached").launch.samples_ns == [42.0]
    assert run("Cached.track_cached").launch.samples_ns == [42.0]
    assert run("Cached.time_cached").status == "ok"
    assert (tmp_path / "log.txt").read_text() == "cache made\n"


def test_the_runner_is_ours_in_every_environment(suite, tmp_path):
    """asv_runner comes from beside the worker, before an environment's own; pympler only where there is none."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    (site,) = bare.glob("lib/python3*/site-packages")
    (site / "asv_runner").mkdir()
    (site / "asv_runner/__init__.py").write_text("raise RuntimeError('the environment has another one')\n")
    launcher = Launcher(str(bare / "bin/python"), suite, tmp_path / "scratch")
    found = launcher.discover()
    (case,) = found.cases((r"\.mem_list$",))
    assert 8000 <= launcher.run(case, Request()).launch.samples_ns[0] < 9000
    (site / "pympler").mkdir()
    (site / "pympler/__init__.py").write_text("")
    (site / "pympler/asizeof.py").write_text("def asizeof(both):\n    return 7 * len(set(map(id, both)))\n")
    assert launcher.run(case, Request()).launch.samples_ns == [7.0]


def test_package_metadata_is_read_only_for_asv_plugins(suite, tmp_path):
    """asv_runner reads that of every package, at every launch; a plugin shows in the name of its folder."""
    site = tmp_path / "site"
    other, plugin = site / "unrelated-1.0.dist-info", site / "asv_bench_colours-1.0.dist-info"
    launcher = Launcher(sys.executable, suite, tmp_path / "scratch", {"PYTHONPATH": str(site)})
    types = (Path(asv_runner.__file__).parent / "benchmarks" / "track.py").read_text()
    assert types.count("track") > 3
    (site / "asv_bench_colours/benchmarks").mkdir(parents=True)
    (site / "asv_bench_colours/__init__.py").write_text("")
    (site / "asv_bench_colours/benchmarks/__init__.py").write_text("")
    (site / "asv_bench_colours/benchmarks/colour.py").write_text(
        types.replace("track", "colour")
        .replace("Track", "Colour")
        .replace("from ._base", "from asv_runner.benchmarks._base")
    )
    (suite / "bench_colours.py").write_text("""
import importlib.metadata
def colour_of_nothing():
    return 7.0
def track_name():
    return float(importlib.metadata.version("unrelated"))
""")
    for folder in (other, plugin):
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name[:-14]}\nVersion: 1.0\n")
        found = {case.label: case for case in launcher.discover().cases((r"^bench_colours\.",))}
        assert launcher.run(found["bench_colours.track_name"], Request()).launch.samples_ns == [1.0]
        assert ("bench_colours.colour_of_nothing" in found) == (folder == plugin)
    assert launcher.run(found["bench_colours.colour_of_nothing"], Request()).launch.samples_ns == [7.0]


def test_no_metadata_is_read_where_there_is_no_plugin(monkeypatch, tmp_path):
    """A module of that name is already there, so that none is loaded, and is gone afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    with asv_worker.no_search_for_plugins():
        assert list(sys.modules["importlib.metadata"].distributions()) == []
    assert "importlib.metadata" not in sys.modules
    (tmp_path / "Asv.Bench.x-1.egg-info").write_text("")
    with asv_worker.no_search_for_plugins():
        assert "importlib.metadata" not in sys.modules


def test_steal_is_the_share_of_cpu_time_given_to_others():
    """From two readings of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    before, after = [100, 0, 50, 800, 0, 0, 0, 10], [150, 0, 60, 830, 0, 0, 0, 20]
    assert asv_worker.steal_pct(before, after) == 10.0
    assert asv_worker.steal_pct([], after) == asv_worker.steal_pct(before, before) == 0.0
    assert len(asv_worker.cpu_ticks()) in {0, 8}


def test_peak_memory_does_not_start_at_the_parent_s_size(run):
    """A large parent must not hide the benchmark's own peak, as ru_maxrss would."""
    ballast = bytearray(os.urandom(4096)) * (300 * 2**20 // 4096)
    assert run("peakmem_list").launch.samples_ns[0] < 200 * 2**20
    assert len(ballast) == 300 * 2**20


@pytest.mark.parametrize("given", [None, "g++"])
def test_every_environment_uses_this_one_s_compiler(suite, listed, tmp_path, monkeypatch, given):
    """An environment of a revision has no compiler of its own: the launch names ours, or what the user named."""
    if given:
        monkeypatch.setenv("ROCATTN_COMPILER", given)
    choose_host_compiler.cache_clear()
    try:
        wanted = choose_host_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    launcher = Launcher(sys.executable, suite, tmp_path / "scratch")
    choose_host_compiler.cache_clear()
    (case,) = (case for case in listed.cases() if case.label == "bench.track_compiler")
    outcome = launcher.run(case, Request(), seed=0)
    assert outcome.status == "ok", outcome.traceback
    assert outcome.launch.samples_ns == [zlib.crc32(wanted.version.encode())]


def test_owners_of_modules_are_those_of_importlib(monkeypatch, tmp_path):
    """By a list of top-level names, by the record of a folder and of a lone file; a package of another is none."""
    for file in ("beta/__init__.py", "delta/__init__.py", "gamma.py"):  # one that is missing owns nothing
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    for name, file, text in [
        ("A", "top_level.txt", "_a\nalpha\n"),
        ("B-b", "RECORD", "beta/__init__.py,sha256=x,1\nB_b-1.dist-info/RECORD,,\n"),
        ("C", "RECORD", "gamma.py,,\n../../bin/gamma,,\n"),
        ("D", "RECORD", "delta/__init__.py,,\n"),
    ]:
        folder = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n\nName: other\n")
        (folder / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    owners = importlib.metadata.packages_distributions()
    modules = ["alpha.sub", "beta", "gamma", "other"]
    assert asv_worker.owners(modules) == [owners[name][0] for name in ("alpha", "beta", "gamma")] == ["A", "B-b", "C"]
    assert running_packages() == {"a": "1", "b-b": "1", "c": "1", "d": "1"}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("__init__.py", "import os\nos._exit(3)\n", r"cannot list the benchmarks.*status 3"),
        # asv's discovery makes every class, and stops at the first that raises: the line says where that is.
        ("bench_odd.py", "class Odd:\n def __init__(self):\n  raise OSError('no data')\n def time_x(self): ...\n",
         r"no data \(bench_odd\.py, line 3\)$"),
    ],
)  # fmt: skip
def test_an_unreadable_suite_is_one_line(tmp_path, file, text, why):
    """A package that exits the interpreter cannot be listed, nor can a class that cannot be made."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / file).write_text(text)
    with pytest.raises(SuiteError, match=why):
        Launcher(sys.executable, folder, tmp_path / "scratch").discover()


@pytest.mark.parametrize(
    ("parent", "answered"), [({}, True), ({"parent": os.getpid()}, True), ({"parent": os.getppid()}, False)]
)
def test_the_request_is_all_the_worker_reads(suite, tmp_path, parent, answered):
    """A plain script: a JSON argument in, a JSON file out; none for a gate that was killed before it could ask."""
    command = Launcher(sys.executable, suite, tmp_path / "scratch").call_command("bench.track_size", "bench.track_size")
    answer = tmp_path / "answer.json"
    request = {"do": "run", "suite": str(suite), "tree": str(suite.parent), "benchmark": "bench.track_size"}
    request |= {"param": None, "answer": str(answer), **parent}
    ended = subprocess.run([sys.executable, "-s", command[1], json.dumps(request)], check=False, cwd=tmp_path)
    assert (ended.returncode == 0, answer.exists()) == (answered, answered)
    assert not answered or json.loads(answer.read_text())["value"] == 7.0


def test_a_second_name_of_a_function_is_no_second_benchmark(tmp_path):
    """asv names both after the function: it would be measured and counted twice."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "bench_a.py").write_text("def track_it():\n    return 1\ntrack_alias = track_it\n")
    suite = Launcher(sys.executable, folder, tmp_path / "scratch").discover()
    assert [benchmark.name for benchmark in suite.benchmarks] == ["bench_a.track_it"]
