"""Two environments that exist already, compared without git and without a build."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.sides import open_sides
from rocattn_profiling.revisions import interpreters as facts

from .conftest import gate_run

SUITE = """\
import tinylib

class Exact:
    params = [[100, 301]]
    number = 3
    def timer():
        return tinylib.TICKS * 1e-6
    timer = staticmethod(timer)
    def time_work(self, n):
        tinylib.work(n)

def mem_list():
    return [0] * tinylib.SIZE
"""
LIBRARY = "TICKS = 0\nSIZE = 1000\ndef work(n):\n    global TICKS\n    TICKS += n\n"
pytestmark = pytest.mark.slow


def environment(folder, library, version="1"):
    """Make an environment that holds nothing but the library: no pip, no asv_runner, no numpy."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "tinylib.py").write_text(library)
    info = site / f"tinylib-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinylib\nVersion: {version}\n")
    return site


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with two environments, of which b is twice as slow, and a suite; made once and copied."""
    root = tmp_path_factory.mktemp("existing")
    environment(root / "a", LIBRARY)
    environment(root / "b", LIBRARY.replace("+= n", "+= 2 * n"), "2")
    (root / "suite").mkdir()
    (root / "suite/bench.py").write_text(SUITE)
    return root


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """The current folder: outside of any git repository, git itself not to be found."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    shutil.copytree(made / "suite", tmp_path / "suite")
    for side in "ab":
        (tmp_path / side).symlink_to(made / side)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gate(base, head, *arguments):
    """Run the command; return its exit status and the verdict."""
    return gate_run(".", f"--base-python={base}", f"--head-python={head}", "--suite", "suite", "--quick", *arguments)


def test_a_slower_environment_fails_without_git_or_asv_runner(place, monkeypatch, capsys):
    """Neither side has asv_runner, git is not on PATH, nothing is built: the doubled loop is found and told by name."""
    monkeypatch.setenv("PATH", str(place / "empty"))
    status, result = gate("a/bin/python", "b", "--json")
    assert status == 1
    found = {entry.label: (entry.status, entry.metric) for entry in result.entries}
    assert found == {
        "bench.Exact.time_work(100)": ("regression", "time"),
        "bench.Exact.time_work(301)": ("regression", "time"),
        "bench.mem_list": ("pass", "mem"),
    }
    assert result.environment_differences == {"tinylib": ("1", "2")}
    assert result.base.revision is None
    assert result.base.title == str(place / "a/bin/python")
    assert result.head.packages == {"tinylib": "2"}
    assert json.loads(capsys.readouterr().out)["verdict"] == "regression"
    assert not list(Path("out/work").iterdir())


def test_the_same_environment_twice_passes(place):
    """An environment against itself differs in nothing; all that a result is written in is there."""
    status, result = gate("b", "b", "--bench", "time_work")
    assert (status, result.environment_differences) == (0, {})
    written = {path.name for path in Path("out").iterdir() if path.is_file()}
    assert {"verdict.json", "verdict.txt", "comment.md", "junit.xml", "gate.sarif", "launches.jsonl"} <= written


def test_load_and_steal_are_kept_beside_every_launch(place, unfinish):
    """The verdict and the stored launches tell what else the machine did."""
    _, result = gate("a", "a", "--bench", "100")
    for launch in (*result.entries[0].base_launches, *result.entries[0].head_launches):
        assert launch.load >= 0
        assert 0 <= launch.steal_pct <= 100
    stored = [json.loads(line) for line in Path("out/launches.jsonl").read_text().splitlines()]
    launched = [line for line in stored if line["kind"] == "launch"]
    assert all({"steal_pct", "canary_ns"} <= line["outcome"].keys() for line in launched)
    # The same launches on a machine that others took a third of.
    for line in launched:  # the last one may be a slow launch that a repeat replaced
        line["outcome"]["steal_pct"] = 33.0
    lines = [json.dumps({key: value for key, value in line.items() if key != "checksum"}) for line in stored]
    unfinish(Path("out/launches.jsonl"), lines)
    assert any("hypervisor gave up to 33 %" in note for note in gate("a", "a", "--bench", "100")[1].notes)


def test_a_run_starts_over_if_the_environment_changed(place, capsys, unfinish):
    """Launches are kept for the same files only: an edit of an editable install in between is not mixed in."""
    shutil.copytree("a", "edited", symlinks=True)
    (site,) = Path("edited").glob("lib/python3*/site-packages")
    source = place / "source"
    source.mkdir()
    shutil.move(site / "tinylib.py", source)
    (site / "editable.pth").write_text(f"{source}\n")
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (site / "tinylib-1.dist-info/direct_url.json").write_text(json.dumps(origin))
    lines = Path("out/launches.jsonl")

    def unfinished():
        status, result = gate("edited", "a", "--bench", "100")
        unfinish(lines, lines.read_text().splitlines()[:-2])
        return status, result, capsys.readouterr().err

    assert unfinished()[0] == 0
    status, _, said = unfinished()
    assert status == 0
    assert "resuming an interrupted run: 8 launches" in said
    (source / "tinylib.py").write_text(LIBRARY.replace("+= n", "+= 3 * n"))
    os.utime(source / "tinylib.py", (time.time() + 5, time.time() + 5))
    status, result, said = unfinished()
    assert "going on" not in said
    assert result.entries[0].status == "improvement"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--base-python", "a"), 4, "--head-python is missing"),
        (("--head-python", "a"), 4, "--base-python is missing"),
        (("--base-python", "a", "--head", "HEAD"), 4, "not both"),
        (("--base-python", "a", "--head-python", "b", "--base", "HEAD"), 4, "not both"),
        (("--base-python", "a", "--head-python", "b", "--repo", "."), 4, "--repo"),
        (
            ("--base-python", "nowhere/python", "--head-python", "b"),
            4,
            "--base-python nowhere/python: is not a program",
        ),
        (("--base-python", "a", "--head-python", "suite"), 4, "is a folder without bin/python"),
        (("--base-python", "a", "--head-python", "/bin/true"), 4, "does not answer like a Python interpreter"),
        (
            ("--base-python", "a", "--head-python", "./fails"),
            4,
            "does not answer like a Python interpreter: no such luck",
        ),
        (("--base-python", "a", "--head-python", "./old"), 4, "is Python 3.6.15; benchmarks run on 3.10 and later"),
        (("--base-python", "a", "--head-python", "b", "--suite", "nowhere"), 4, "there is no nowhere"),
        (("--base-python", "a", "--head-python", "b", "--suite", "empty"), 3, "the suite has no benchmarks"),
        (("--base-python", "a", "--head-python", "b", "--bench", "no_such"), 4, "--bench no_such matches none of "),
    ],
)
def test_bad_requests_are_one_line_with_their_status(place, capsys, arguments, status, said):
    """What is wrong is said in the last line on stderr; stdout stays empty."""
    Path("empty").mkdir()
    Path("fails").write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    Path("old").write_text("#!/bin/sh\necho '[\"3.6.15\", {}, [], []]'\n")
    for name in ("fails", "old"):
        Path(name).chmod(0o755)
    suite = [] if "--suite" in arguments else ["--suite", "suite"]
    assert main(["gate", "run", *arguments, *suite]) == status
    captured = capsys.readouterr()
    assert said in captured.err.strip().splitlines()[-1]
    assert captured.out == ""


def test_a_python_without_the_project_is_not_measured(place, capsys):
    """The line that says so names the import that failed; without the project on both sides nothing is compared."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    for base, head, count in (("a", "bare", 1), ("bare", "bare", 1)):
        status, result = gate(base, head)
        assert status == 3
        assert "No module named 'tinylib'" in capsys.readouterr().out
        assert len(result.entries) == count


def test_a_configuration_beside_the_suite_is_followed(place):
    """An asv.conf.json on disk gives folder, variables and time limit, and its folder is where it is."""
    Path("perf").mkdir()
    shutil.move("suite", "perf/mine")
    Path("perf/asv.conf.json").write_text(
        '{"benchmark_dir": "mine", "matrix": {"env_nobuild": {"WANTED": ["1"]}}, "default_benchmark_timeout": 50}'
    )
    Path("perf/mine/bench.py").write_text("import os\ndef track_wanted():\n    return int(os.environ['WANTED'])\n")
    status, result = gate_run(".", "--base-python=a", "--head-python=a", "--suite", "perf", "--quick")
    assert (status, [entry.label for entry in result.entries]) == (0, ["bench.track_wanted"])


def test_settings_above_the_suite_are_used(place):
    """The nearest ``.rocattn`` above the suite is the repository's own; an edited suite is another session's."""
    options = Options(base_python="a", head_python="b", suite="suite")

    def opened():
        with open_sides(place, place / "out", options, lambda _: None) as sides:
            return sides

    before = opened()
    assert (before.waivers.rows, before.thresholds.rows, opened().identity) == ([], [], before.identity)
    (place / ".rocattn").mkdir()
    (place / ".rocattn/waivers.toml").write_text(
        '[[waiver]]\nbenchmark = "b"\nmetric = "time"\nceiling = 2.0\nexpires = 2999-01-01\n'
        'issue = "#1"\nreason = "r"\n'
    )
    (place / ".rocattn/thresholds.toml").write_text('[[threshold]]\nbenchmark = "*"\ngate = false\n')
    with (place / "suite/bench.py").open("a") as file:
        file.write("# edited\n")
    after = opened()
    assert (len(after.waivers.rows), len(after.thresholds.rows)) == (1, 1)
    assert after.identity != before.identity


def works(python):
    """Return an interpreter that starts: pyenv leaves commands on PATH that only say that they are switched off."""
    found = shutil.which(python)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        return None
    return found


def test_an_environment_of_another_python_is_measured(place):
    """The worker runs on every Python from the oldest it supports; versions that differ are told."""
    minors = {10, 11, 12, 13} - {sys.version_info.minor}
    other = next((python for minor in sorted(minors) if (python := works(f"python3.{minor}"))), None)
    if other is None:
        pytest.skip("there is no other Python on PATH")
    subprocess.run([other, "-m", "venv", "--without-pip", "other"], check=True)
    (site,) = Path("other").glob("lib/python3*/site-packages")
    (site / "tinylib.py").write_text(LIBRARY)
    status, result = gate("a", "other", "--bench", "100")
    assert status == 0
    assert "python" in result.environment_differences


def test_facts_change_with_an_installation(place):
    """The same packages at the same time have the same digest; a new one, or a file of an editable one, another."""
    python, first = facts.find_interpreter("a", "--base-python")
    assert python == str(place / "a/bin/python")
    assert first.digest() == facts.find_interpreter("a", "--base-python")[1].digest()
    assert first.digest() != facts.find_interpreter("b", "--base-python")[1].digest()
