"""Launches of whole suites: files, parameters and time limits, each as under asv."""

import sys

from rocattn_profiling.asv.launch import Launcher, Request


def suite_of(text, tmp_path, **more):
    """Return a launcher of a suite with one module, and its cases by their labels."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "bench.py").write_text(text)
    launcher = Launcher(sys.executable, folder, tmp_path / "scratch", **more)
    return launcher, {case.label: case for case in launcher.discover().cases()}


def test_no_launch_finds_files_of_another(tmp_path):
    """As under asv: a file that one combination leaves must not become the next one's data."""
    text = """\
import os
class Data:
    params = [3, 70]
    def setup(self, n):
        if not os.path.exists("data"):
            with open("data", "w") as file:
                file.write("x" * n)
    def track_size(self, n):
        return os.path.getsize("data")
"""
    launcher, cases = suite_of(text, tmp_path)
    sizes = [launcher.run(cases[f"bench.Data.track_size({n})"], Request()).launch.samples_ns for n in (3, 70)]
    assert sizes == [[3.0], [70.0]]


def test_the_environment_s_size_changes_from_round_to_round(tmp_path):
    """Where heap and stack begin follows from it: with one size for all a chance of the layout would be the build's."""
    text = """\
import os
def track_size():
    return sum(len(name) + len(value) for name, value in os.environ.items())
"""
    launcher, cases = suite_of(text, tmp_path)

    def size(layout):
        return launcher.run(cases["bench.track_size"], Request(), layout=layout).launch.samples_ns[0]

    sizes = [size(layout) for layout in (7, 8, 9, 10)]
    assert size(7) == sizes[0]
    assert {(each - sizes[0]) % 64 for each in sizes} == {0, 16, 32, 48}  # every place in a cache line
    assert max(sizes) - min(sizes) < 4096


def test_parameters_are_found_by_name_on_each_side(tmp_path):
    """A side that lists them in another order, or not at all, is never measured with others; sets have no order."""
    text = """\
import functools, os
LISTED = os.environ["LISTED"].split()
class Listed:
    params = [LISTED]
    def track_length(self, word):
        return len(word)
class Unordered:
    params = [list({"a", "bb", "ccc", "dddd", "eeeee"}), [functools.partial(len), functools.partial(len)]]
    def track_length(self, word, call):
        return call(word)
"""
    launcher, cases = suite_of(text, tmp_path, environment={"LISTED": "a bb ccc"})
    before = Launcher(sys.executable, launcher.suite, tmp_path / "base", {"LISTED": "ccc a"})
    label = "bench.Listed.track_length('{}')"
    assert before.run(cases[label.format("ccc")], Request()).launch.samples_ns == [3.0]
    assert (
        before.run(cases[label.format("bb")], Request()).reason
        == "LookupError: the benchmark has no such parameters here"
    )
    unordered = [case for case in cases.values() if case.benchmark.name == "bench.Unordered.track_length"]
    assert len(unordered) == 10
    case = next(case for case in unordered if "'dddd'" in case.label)
    assert " (0))" in case.label  # two that asv cannot tell apart are numbered
    assert {launcher.run(case, Request(), seed=seed).launch.samples_ns[0] for seed in range(6)} == {4.0}


def test_a_long_call_is_sampled_within_its_time_limit(tmp_path):
    """asv samples it once or twice; four and a warm-up would end at the limit, and nothing would be measured."""
    text = """\
import time
class Long:
    timeout = 3
    number = 0
    def time_call(self):
        time.sleep(0.6)
class Prepared(Long):
    def setup(self):
        time.sleep(0.6)
    def time_call(self):
        pass
"""
    launcher, cases = suite_of(text, tmp_path)
    for name in ("Long", "Prepared"):
        outcome = launcher.run(cases[f"bench.{name}.time_call"], Request())
        assert outcome.status == "ok", (name, outcome.reason)
        assert (outcome.launch.number, len(outcome.launch.samples_ns)) == (1, 1)
