"""The asv store: what goes in comes out, what asv cannot show is refused, what is broken is passed over."""

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import AsvStore, load_results
from rocattn_profiling.measure.records import Commit, Machine
from rocattn_profiling.site.asv_pages import stage

from ..projects import Project

COMMIT = Commit(sha="a1" * 20, date_ms=1_789_000_000_000, subject="first")
BOX = Machine(name="a/b box", cpu="c", cores=3, memory_bytes=1 << 33, os="Linux", python="3.11.7", numpy="2.4.6")
PARAMS = [["'cpu'", "'cpu-flash'"], ["128", "257"]]
NAMES = ["backend", "seq"]


@pytest.fixture
def store(tmp_path):
    """An empty store in a folder without asv.conf.json."""
    return AsvStore(tmp_path)


def add(store, values, name="suite.Class.time_it", commit=COMMIT, params=PARAMS, names=NAMES, unit="seconds", **more):
    """Store one benchmark on the test machine."""
    store.add(commit, name, params, names, unit, values, machine=BOX, **more)


def by_params(store, name="suite.Class.time_it"):
    """The one point of each series of a benchmark, by its parameter values."""
    return {tuple(s.params.values()): s.points[0] for s in store.read() if s.benchmark == name}


def samples_in(store, name):
    """The samples of a benchmark in the one result file: a site needs none, so `AsvStore.read` drops them."""
    (path,) = store.result_files()
    results = load_results(path)
    return results.get_result_samples(name, results.get_result_params(name))


def test_samples_come_back_with_their_median_and_interval(store):
    """Samples are kept, the value is their median, and the interval holds it."""
    samples = [1.0, 1.5, 1.1, 1.2, 1.4, 1.3, 1.6]
    add(store, {(0, 0): samples})
    (series,) = [s for s in store.read() if s.params == {"backend": "cpu", "seq": "128"}]
    (point,) = series.points
    assert (series.unit, series.machine, series.env_name) == ("seconds", "a_b_box", "py3.11-numpy2.4")
    assert samples in samples_in(store, "suite.Class.time_it")
    assert point.value == 1.3
    assert (point.low, point.high) == (1.0, 1.6)


def test_combinations_nobody_measured_are_not_failures(store):
    """Unmeasured combinations are n/a (NaN); None alone says failed."""
    add(store, {(0, 0): [1.0], (1, 1): None})
    points = by_params(store)
    assert points["cpu-flash", "257"].value is None
    assert math.isnan(points["cpu", "257"].value)


def test_later_results_of_the_same_commit_are_merged(store):
    """A second run of other parameters, other benchmarks or a wider grid keeps what the first stored."""
    add(store, {(0, 0): [1.0, 1.1, 1.2]})
    add(store, {(1, 0): [2.0]})
    add(store, {(0,): [3.0]}, params=[["'x'"]], names=["only"], name="suite.Other.time_it")
    add(store, {(0, 0): [4.0]}, params=[["'cpu'"], ["513"]])
    points = by_params(store)
    values = {key: p.value for key, p in points.items() if not math.isnan(p.value)}
    assert values == {("cpu", "128"): 1.1, ("cpu-flash", "128"): 2.0, ("cpu", "513"): 4.0}
    assert [1.0, 1.1, 1.2] in samples_in(store, "suite.Class.time_it")
    assert by_params(store, "suite.Other.time_it")["x",].value == 3.0


def test_a_project_without_numpy_has_an_environment_without_it(store):
    """What an earlier version called numpyunknown is the same environment: one history, one file a commit."""
    plain = msgspec.structs.replace(BOX, numpy="")
    other = Commit(sha="b2" * 20, date_ms=COMMIT.date_ms + 1000)
    for commit in (COMMIT, other):
        store.add(commit, "suite.time_it", [], [], "seconds", {(): [1.0]}, machine=plain)
    folder = store.results_dir / "a_b_box"
    written = folder / "a1a1a1a1-py3.11.json"
    assert "numpy" not in written.read_text()
    data = json.loads(written.read_text()) | {"env_name": "py3.11-numpyunknown", "requirements": {"numpy": "unknown"}}
    data["params"]["numpy"] = "unknown"
    (folder / "a1a1a1a1-py3.11-numpyunknown.json").write_text(json.dumps(data))
    written.unlink()
    (series,) = store.read()
    assert (series.env_name, [point.sha for point in series.points]) == ("py3.11", [COMMIT.sha, other.sha])
    stage(store, store.repo_root / "staged", {COMMIT.sha, other.sha})
    assert not [path for path in (store.repo_root / "staged").rglob("*.json") if "unknown" in path.read_text()]
    store.add(COMMIT, "suite.time_more", [], [], "seconds", {(): [2.0]}, machine=plain)
    assert {path.name for path in folder.glob("*py3*")} == {"a1a1a1a1-py3.11.json", "b2b2b2b2-py3.11.json"}
    assert [len(line.points) for line in store.read()] == [2, 1]


def test_a_store_that_it_makes_ignores_itself(tmp_path, git):
    """Its lock is in it, and gone afterwards; a folder of results that was there stays the user's to commit or not."""
    for kept in (False, True):
        repo = Project(tmp_path / f"repo-{kept}")
        repo.put("asv.conf.json", '{"version": 1, "repo": "."}')
        repo.commit("first")
        if kept:
            (repo.root / "results").mkdir()
        add(AsvStore(repo.root), {(0, 0): [1.0]})
        seen = repo.git("status", "--porcelain", "--untracked-files=all").splitlines()
        assert len(seen) == (4 if kept else 0)
        assert not list(repo.root.rglob("*.lock"))


def test_commits_come_in_the_order_asked_for(store):
    """Also where a benchmark's parameters changed; all its lines share the lists of commits, which fill memory."""
    commits = [Commit(sha=digit * 40, date_ms=COMMIT.date_ms + at, subject=digit) for at, digit in enumerate("abcd")]
    for at, commit in enumerate(commits):
        params = [PARAMS[0], [*PARAMS[1], "512"]] if at else PARAMS
        add(store, {(0, 0): float(at + 1), (1, 1): 7.0}, commit=commit, params=params)
    for order, told in ((None, "abcd"), (lambda dates: sorted(dates, reverse=True), "dcba")):
        lines = store.read(order=order)
        both = [line.points for line in lines if line.params["seq"] in {"128", "257"}]
        assert ["".join(sha[0] for sha in points.shas) for points in both] == [told] * 4
        assert len({id(points.shas) for points in both}) == 1
        (line,) = (line for line in lines if line.params == {"backend": "cpu", "seq": "128"})
        assert [point.value for point in line.points] == ["abcd".index(digit) + 1.0 for digit in told]
        assert line.points.dates_ms == [commits["abcd".index(digit)].date_ms for digit in told]


def test_a_new_version_replaces_the_old_history(store):
    """Results of a benchmark's older version are neither merged nor shown."""
    other = Commit(sha="b2" * 20, date_ms=COMMIT.date_ms + 1000)
    add(store, {(0, 0): [1.0]}, commit=other)
    add(store, {(0, 0): [1.0]})
    add(store, {(1, 0): [7.0]}, version="2")
    shown = [(s.params["backend"], p.sha, p.value) for s in store.read() for p in s.points if not math.isnan(p.value)]
    assert shown == [("cpu-flash", COMMIT.sha, 7.0)]


def test_benchmarks_that_asv_forgets_are_remembered(store):
    """asv rewrites benchmarks.json with its own suites; ours still read with their unit and names."""
    add(store, {(0,): 4096.0}, params=[["'x'"]], names=["what"], unit="bytes", type="track")
    (store.results_dir / "benchmarks.json").write_text(json.dumps({"version": 2}))
    (series,) = store.read()
    assert (series.unit, series.params) == ("bytes", {"what": "x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Inf hangs `asv publish`, containers crash it.
        *(({"values": {(0, 0): [1.0], (0, 1): value}}, "time_it")
          for value in (math.inf, -math.inf, {"a": 1}, [[1.0]], "3", True, [], [1.0, math.nan], [1.0, math.inf])),
        ({"name": "<script>alert(1)</script>"}, "not a benchmark name"),
        ({"name": "../../etc/passwd"}, "not a benchmark name"),
        ({"names": ["one"]}, "2 parameters but 1 names"),
        ({"values": {(0, 2): 1.0}}, r"\(0, 2\) is not the index"),
        ({"values": {(0,): 1.0}}, r"\(0,\) is not the index"),
        ({"commit": Commit(sha="c3" * 20, date_ms=0, dirty=True)}, "uncommitted changes"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(store, change, message):
    """Names, indices, values and dirty trees are checked before anything is written."""
    with pytest.raises(RocattnError, match=message) as caught:
        add(store, **{"values": {(0, 0): 1.0}, **change})
    assert "\n" not in str(caught.value)
    assert not store.results_dir.exists()


def test_machine_file_has_all_of_asvs_keys(store):
    """machine.json holds asv's six keys as text, the GPU's when there is one, and stays as asv wrote it."""
    add(store, {(0, 0): [1.0]})
    path = store.results_dir / "a_b_box" / "machine.json"
    facts = json.loads(path.read_text())
    assert facts.keys() == {"arch", "cpu", "machine", "num_cpu", "os", "ram", "version"}
    assert all(isinstance(v, str) for k, v in facts.items() if k != "version")
    path.write_text(json.dumps({**facts, "cpu": "as asv says"}))
    gpu = Machine(**{f: getattr(BOX, f) for f in BOX.__struct_fields__} | {"gpu": "G", "gfx": "gfx1100", "driver": "6"})
    store.add(COMMIT, "s.time_x", [], [], "seconds", {(): 1.0}, machine=gpu)
    assert store.machines()["a_b_box"] | {"arch": ""} == {
        "arch": "", "cpu": "as asv says", "machine": "a_b_box", "num_cpu": "3", "os": "Linux", "ram": str(1 << 33),
        "gpu": "G", "gfx": "gfx1100", "driver": "6",
    }  # fmt: skip


def test_broken_files_are_named_and_the_rest_is_read(store):
    """A cut-off result file, a foreign one and a folder without machine.json cost one line each."""
    add(store, {(0, 0): [1.0]})
    folder = store.results_dir / "a_b_box"
    (good,) = store.result_files()
    (folder / "cut-off.json").write_text(good.read_text()[:200])
    (folder / "list.json").write_text("[1, 2]")
    odd = json.loads(good.read_text())
    odd["results"]["suite.Class.time_it"][0] = {"not": "a list"}
    (folder / "odd.json").write_text(json.dumps(odd))
    (store.results_dir / "nobody").mkdir()
    (store.results_dir / "nobody" / "x.json").write_text("{}")
    problems = []
    series = store.read(problems.append)
    assert [p.value for s in series for p in s.points if not math.isnan(p.value)] == [1.0]
    assert len(problems) == 4
    assert all("\n" not in line and "passed over" in line for line in problems)
    assert sum(any(name in line for line in problems) for name in ("cut-off", "list", "odd", "nobody")) == 4


def test_files_of_an_old_asv_are_read_as_they_are(store):
    """As `asv update` would make them, without changing them; what lacks a commit is passed over in one line."""
    folder = store.results_dir / "old_box"
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text('{"version": 1, "machine": "old_box"}')
    par = {"params": [["1", "2"]], "result": [1.0, None]}
    old = {"version": 1, "commit_hash": "a" * 40, "date": 1000, "params": {"machine": "old_box"}, "python": "2.7",
           "requirements": {"numpy": "1.8"}, "results": {"t.time_it": 0.5, "t.time_par": par}}  # fmt: skip
    (folder / "a.json").write_text(json.dumps(old))
    (folder / "b.json").write_text('{"version": 1}')
    problems = []
    series = store.read(problems.append)
    values = {(line.benchmark, line.arguments): [point.value for point in line.points] for line in series}
    assert values == {("t.time_it", ()): [0.5], ("t.time_par", ("1",)): [1.0], ("t.time_par", ("2",)): [None]}
    assert json.loads((folder / "a.json").read_text()) == old
    (line,) = problems
    assert line.startswith(f"passed over {folder / 'b.json'}: ")
    assert "commit_hash" in line


@pytest.mark.parametrize(("given", "read"), [("Sort \n fast", "Sort fast"), (None, ""), (["x"], "['x']"), (0, "")])
def test_a_suites_own_title_is_read(store, given, read):
    """asv's ``pretty_name``, on one line, whatever JSON holds there."""
    add(store, {(0, 0): [1.0]})
    path = store.results_dir / "benchmarks.json"
    listed = json.loads(path.read_text())
    (name,) = (key for key in listed if key != "version")
    listed[name]["pretty_name"] = given
    path.write_text(json.dumps(listed))
    assert {line.pretty_name for line in store.read()} == {read}


@pytest.mark.parametrize("value", [True, "hello"])
def test_a_result_that_is_no_number_costs_its_benchmark_alone(store, value):
    """asv stores what a track_ benchmark returned: odd in every commit, it is one line, and the rest is read."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    data = json.loads(path.read_text())
    data["results"]["suite.Class.track_it"] = [[value], [], "1", 0, 1.0]
    path.write_text(json.dumps(data))
    path.with_name("again.json").write_text(json.dumps(data))
    problems = []
    series = store.read(problems.append)
    assert {s.benchmark for s in series} == {"suite.Class.time_it"}
    assert len([p for s in series for p in s.points if p.value == 1.0]) == 2
    (problem,) = problems
    assert problem.startswith(f"passed over suite.Class.track_it ({type(value).__name__} instead of a number), ")


@pytest.mark.parametrize("date", [math.inf, math.nan, 1e300, 10**300, -1, "x" * 9000, None])
def test_a_file_whose_date_is_none_is_passed_over(store, date):
    """In one short line; the other commits are read."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    path.with_name("other.json").write_text(json.dumps(json.loads(path.read_text()) | {"date": date}))
    problems = []
    series = store.read(problems.append)
    assert [len(line.points) for line in series] == [1] * 4
    (problem,) = problems
    assert problem.startswith(f"passed over {path.with_name('other.json')}: ")
    assert "date" in problem
    assert len(problem) < 1000


def test_names_and_reasons_of_files_are_cut(store):
    """A benchmark may be called anything, and asv quotes what it does not take."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    data = json.loads(path.read_text())
    data["results"]["y\n" + "x" * 60_000] = [["text"], [], "1", 0, 1.0]
    path.write_text(json.dumps(data))
    path.with_name("other.json").write_text(json.dumps(data | {"result_columns": ["z\x1b" * 9000]}))
    problems = []
    store.read(problems.append)
    assert [problem.startswith("passed over") for problem in problems] == [True] * 2
    assert max(map(len, problems)) < 1000
    assert all(map(str.isprintable, problems))
    assert problems[1] == f"passed over y {'x' * 197}… (str instead of a number), first in {path}"


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, math.inf])
def test_a_number_beyond_all_measure_is_not_available(store, tmp_path, value):
    """What a float or a chart's arithmetic does not hold ends no reading and no copy; the rest is there."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    data = json.loads(path.read_text())
    (name,) = data["results"]
    data["results"]["suite.Class.track_it"] = [[value], [], "1", 0, 1.0]
    path.write_text(json.dumps(data))
    listed = json.loads((store.results_dir / "benchmarks.json").read_text())
    listed["suite.Class.track_it"] = {**listed[name], "name": "suite.Class.track_it", "params": [], "param_names": []}
    (store.results_dir / "benchmarks.json").write_text(json.dumps(listed))
    (tracked,) = [s for s in store.read() if s.benchmark == "suite.Class.track_it"]
    assert math.isnan(tracked.points[0].value)
    staged = stage(store, tmp_path / "copy", {data["commit_hash"]})
    assert staged.results == 1
    assert staged.notes == snapshot(["a1a1a1a1-py3.11-numpy2.4.json: 1 value that asv cannot show left out"])


def test_a_broken_file_of_the_same_commit_is_never_overwritten(store):
    """Storing beside a result file that cannot be read says so and leaves it."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    path.write_text("{ broken")
    with pytest.raises(RocattnError, match="move it away"):
        add(store, {(0, 0): [2.0]})
    assert path.read_text() == "{ broken"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    """A results folder that is not a folder is an error that names it."""
    (tmp_path / ".asv").write_text("in the way")
    with pytest.raises(RocattnError, match="cannot write to the asv store") as caught:
        add(AsvStore(tmp_path), {(0, 0): [1.0]})
    assert "\n" not in str(caught.value)


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    """Eight writers of one commit, each with a store object of its own: every result is there afterwards."""
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda n: add(AsvStore(tmp_path), {(n % 2, n // 2 % 2): [n + 1.0]}, name=f"s.time_{n}"), range(8))
        )
    found = {s.benchmark: p.value for s in AsvStore(tmp_path).read() for p in s.points if p.value == p.value}
    assert found == {f"s.time_{n}": n + 1.0 for n in range(8)}


def test_a_full_disk_is_one_line_and_keeps_what_was_there(store, monkeypatch):
    """When the disk takes no more, the error says so and earlier results still read."""
    from asv.results import Results

    add(store, {(0, 0): [1.0]})

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Results, "save", full)
    with pytest.raises(RocattnError, match="No space left on device") as caught:
        add(store, {(0, 1): [2.0]})
    assert "\n" not in str(caught.value)
    assert by_params(store)["cpu", "128"].value == 1.0
    assert not list(store.results_dir.parent.glob(".rocattn-*"))


def test_records_become_one_benchmark_a_grid_and_backend(store, record_of):
    """Records keep samples; a skipped one is n/a, a wrong one failed; a second export adds to the first."""
    small = AttentionConfig(batch=1, num_heads=2, seq_q=33, seq_k=65, head_dim=24)
    large = small.replace(seq_q=129)
    good = record_of(COMMIT, small, "cpu-flash")
    import msgspec

    wrong = msgspec.structs.replace(
        record_of(COMMIT, large, "cpu-flash"), check=msgspec.structs.replace(good.check, ok=False)
    )
    skipped = record_of(COMMIT, small, "cpu", launches=[], check=None, status="skipped", skipped="needs 90 GiB")
    assert store.add_records([good]) == 1
    assert store.add_records([wrong, skipped]) == 2
    found = {(s.benchmark, s.params["config"]): s.points[0] for s in store.read()}
    assert found.keys() == {
        ("bench.inference.cpu_flash", small.label), ("bench.inference.cpu_flash", large.label),
        ("bench.inference.cpu", small.label),
    }  # fmt: skip
    samples = [ns / 1e9 for launch in good.launches for ns in launch.samples_ns]
    assert samples in samples_in(store, "bench.inference.cpu_flash")
    assert found["bench.inference.cpu_flash", large.label].value is None
    assert math.isnan(found["bench.inference.cpu", small.label].value)


def test_records_without_a_clean_commit_are_refused(store, record_of):
    """A dirty tree or no repository: one line, and nothing of the batch is stored."""
    config = AttentionConfig(batch=1, num_heads=2, seq_q=33, seq_k=65, head_dim=24)
    for commit, message in ((None, "needs a commit"), (Commit(sha="d" * 40, date_ms=0, dirty=True), "uncommitted")):
        with pytest.raises(RocattnError, match=message):
            store.add_records([record_of(COMMIT, config), record_of(commit, config)])
    assert not store.results_dir.exists()


def test_asv_reads_what_we_write(store):
    """asv's own loaders take the files, and its result keys include ours."""
    from asv.benchmarks import Benchmarks
    from asv.config import Config
    from asv.machine import Machine as AsvMachine
    from asv.results import iter_results

    add(store, {(0, 0): [1.0, 1.1], (1, 1): [2.0]})
    conf = Config.from_json({"repo": ".", "results_dir": str(store.results_dir), "benchmark_dir": "."})
    benchmarks = Benchmarks.load(conf)
    (results,) = iter_results(str(store.results_dir))
    assert results.get_result_keys(benchmarks) == {"suite.Class.time_it"}
    assert results.get_result_value("suite.Class.time_it", benchmarks["suite.Class.time_it"]["params"])[0] == 1.05
    assert {name for name, _ in AsvMachine.fields} <= results.params.keys()


def test_results_kept_apart_have_the_configuration_beside_them(tmp_path):
    """Projects keep results in a repository of their own, with ``asv.conf.json``; the clone's own goes first."""
    clone, apart = tmp_path / "clone", tmp_path / "bench"
    (apart / "results").mkdir(parents=True)
    clone.mkdir()
    (apart / "asv.conf.json").write_text('{"version": 1, "project": "apart", "repo": "https://example.org/it"}')
    assert AsvStore(clone, apart / "results").project == "apart"
    assert AsvStore(clone).project == ""
    (clone / "asv.conf.json").write_text('{"version": 1, "project": "own", "repo": "."}')
    assert AsvStore(clone, apart / "results").project == "own"


def test_a_parameter_without_values_is_no_series_and_no_fault(store):
    """asv keeps such a benchmark with an empty list of results."""
    add(store, {(0, 0): [1.0]})
    (path,) = store.result_files()
    data = json.loads(path.read_text())
    data["results"]["suite.Class.time_none"] = [[], [[]], "1", 0, 1.0]
    path.write_text(json.dumps(data))
    problems = []
    assert {series.benchmark for series in store.read(problems.append)} == {"suite.Class.time_it"}
    assert problems == []
