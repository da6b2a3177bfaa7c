"""Back-filling the asv store with the newest commits."""

import math

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.base.journal import kept
from rocattn_profiling.site.measure import measure_history

pytestmark = pytest.mark.slow
SUITE = """
import tinylib
class Exact:
    params = [[100, 301], ["a", "b"]]
    param_names = ["n", "kind"]
    timer = staticmethod(lambda: tinylib.TICKS * 1e-6)
    def setup(self, n, kind):
        if (n, kind) == (301, "b"):
            raise NotImplementedError("not this one")
    def time_work(self, n, kind):
        tinylib.work(n)
def track_five():
    return 5
def time_fails():
    raise ValueError
"""


def points(project):
    """Every value in the project's store."""
    return {
        (series.benchmark, *series.params.values(), point.sha): point.value
        for series in AsvStore(project.root).read()
        for point in series.points
    }


def test_newest_commits_are_measured_unbuildable_ones_named(project, offline):
    """Values are exact per commit, skipped is NaN, failed is None, a broken commit is passed over with its reason."""
    first = project.commit("suite", **{"benchmarks/bench_work.py": SUITE})
    broken = project.commit("broken", **{"pyproject.toml": "[project\n"})
    project.git("revert", "--no-edit", "HEAD")
    library = (project.root / "tinylib/__init__.py").read_text().replace("TICKS += n", "TICKS += 3 * n")
    last = project.commit("slower", **{"tinylib/__init__.py": library})
    steps = []
    done = measure_history(project.root, 4, launches=1, on_step=steps.append)
    assert {r.sha for r in done.measured} == {first, last, project.git("rev-parse", "HEAD~1")}
    assert list(done.passed_over) == [broken[:10]]
    assert "TOML" in done.passed_over[broken[:10]]
    found = points(project)
    name = "bench_work.Exact.time_work"
    assert found[name, "100", "a", first] == pytest.approx(100e-6)
    assert found[name, "301", "a", last] == pytest.approx(903e-6)
    assert math.isnan(found[name, "301", "b", last])
    assert found["bench_work.track_five", first] == 5
    assert found["bench_work.time_fails", last] is None
    assert steps[-1].done == steps[-1].total == 3 * 6


def test_known_commits_are_not_measured_again(project, offline):
    """A second back-fill measures only what is new."""
    measure_history(project.root, 2, launches=1, benchmarks=[r"\(100\)"])
    new = project.commit("next", **{"a.txt": "1"})
    done = measure_history(project.root, 2, launches=1, benchmarks=[r"\(100\)"])
    assert [r.sha for r in done.measured] == [new]
    assert [r.sha for r in done.known] == [project.git("rev-parse", "HEAD~1")]
    assert done.launches == 1


def test_nothing_to_measure_is_an_error(project, offline):
    """A pattern that matches nothing is said."""
    with pytest.raises(RocattnError, match="nothing would be measured"):
        measure_history(project.root, 1, benchmarks=["no_such"])


def test_no_commit_builds(repo, offline):
    """When none builds, all are named and nothing is stored."""
    sha = repo.commit("no project", **{"a.txt": "1"})
    done = measure_history(repo.root, 3)
    assert list(done.passed_over) == [sha[:10]]
    assert done.measured == []


def test_a_run_that_was_ended_goes_on_launch_by_launch(project, offline):
    """Nothing is measured twice, the line counts what is on disk, and the store is the one that was named."""
    new, results = project.commit("next", **{"a.txt": "1"}), project.root / "elsewhere"

    def end(step):
        if step.done == 3:
            raise KeyboardInterrupt

    options = {"launches": 2, "benchmarks": [r"\(100\)"], "results": results}
    with pytest.raises(KeyboardInterrupt):
        measure_history(project.root, 2, **options, on_step=end)
    journal = results / "history.jsonl.rocattn"
    assert kept() == f"kept 3 of at most 4 launches in {journal}; the same command continues"
    said = []
    done = measure_history(project.root, 2, **options, say=said.append)
    resumed = [each for each in said if "resuming" in each]
    assert resumed == [f"resuming an earlier run, launches done: 3 ({journal})"]
    assert {r.sha for r in done.measured} == {new, project.git("rev-parse", "HEAD~1")}
    assert not journal.exists()
    assert AsvStore(project.root, results).read()
    assert not AsvStore(project.root).read()


def test_a_benchmark_that_a_commit_lacks_is_measured(project, offline):
    """A commit is known benchmark by benchmark, failures included: they are not tried again."""
    project.commit("suite", **{"benchmarks/bench_work.py": SUITE})
    measure_history(project.root, 1, launches=1, benchmarks=["track_five", "time_fails"])
    done = measure_history(
        project.root, 1, launches=1, benchmarks=["track_five", "time_fails", r"time_work\(100, 'a'\)"]
    )
    assert (len(done.measured), done.launches) == (1, 1)
    again = measure_history(project.root, 1, launches=1, benchmarks=["track_five", "time_fails"])
    assert (again.measured, len(again.known)) == ([], 1)
