"""Other people's asv projects: laid out and built in their own ways, gated by one command, with no network."""

import json
import os
import shlex
from pathlib import Path

import pytest

from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.sides import open_sides
from rocattn_profiling.revisions import asv_config, environments
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import Recipe, SuiteError, read_config
from rocattn_profiling.revisions.build import BuildError

from .conftest import gate_run, statuses

pytestmark = pytest.mark.slow

LIBRARY = "TICKS = 0\ndef work(n):\n    global TICKS\n    TICKS += n\n"
DOUBLED = LIBRARY.replace("+= n", "+= 2 * n")
# A build backend of the project's own, as version numbers from git have it: the version is what git says.
BACKEND = """\
import base64, hashlib, pathlib, subprocess, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=True)
    version = f"0.1.dev{count.stdout.strip()}"
    name = f"gitlib-{version}-py3-none-any.whl"
    info = f"gitlib-{version}.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.write("src/gitlib.py", "gitlib.py")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: gitlib\\nVersion: {version}\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


def gate(root, *arguments):
    """Gate a project quickly; return the exit status and the verdict."""
    return gate_run(root, "--quick", *arguments)


def hatchling(name, package):
    """A pyproject.toml of hatchling's, for a package anywhere in the project."""
    return (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "1"\n[tool.hatch.build.targets.wheel]\npackages = ["{package}"]\n'
    )


def test_a_separate_suite_with_all_features_of_asv(repo, offline):
    """Src layout, configuration in a subfolder, sibling imports, setup_cache, params, and every kind of benchmark."""
    repo.put("pyproject.toml", hatchling("srclib", "src/srclib"))
    repo.put("src/srclib/__init__.py", LIBRARY)
    repo.put(
        "asv_bench/asv.conf.json",
        '{"version": 1, "project": "srclib", "repo": "..", "benchmark_dir": "suite", // as in pandas\n'
        ' "matrix": {"req": {"numpy": []}, "env_nobuild": {"SUITE_SIZE": ["7"]}},}',
    )
    repo.put("asv_bench/suite/__init__.py", "")
    repo.put("asv_bench/suite/common.py", "import srclib\ndef ticks():\n    return srclib.TICKS * 1e-6\n")
    repo.put(
        "asv_bench/suite/nested/timing.py",
        """\
import os
import re
import shlex
import srclib
from ..common import ticks

class Cached:
    params = ([10, 20], ["a"])
    param_names = ["n", "kind"]
    timer = staticmethod(ticks)
    number = 2
    def setup_cache(self):
        with open("data.txt", "w") as file:
            file.write("from the cache")
        return {"factor": 3}
    def time_cached(self, cache, n, kind):
        assert open("data.txt").read() == "from the cache"
        srclib.work(n * cache["factor"])

def track_size():
    return int(os.environ["SUITE_SIZE"])
track_size.unit = "bytes"

def mem_list():
    return [0] * 1000

def peakmem_array():
    return bytearray(10**6)

def timeraw_import():
    return "import srclib"
""",
    )
    repo.put("asv_bench/suite/nested/__init__.py", "")
    repo.put(".gitignore", "out/\n__pycache__/\n")
    repo.commit("first")
    repo.commit("slower", **{"src/srclib/__init__.py": DOUBLED})
    status, result = gate(repo.root, "--bench", "time_cached|track")
    assert status == 1
    assert result.suite == "asv_bench/suite"
    assert statuses(result) == {
        "nested.timing.Cached.time_cached(10, 'a')": "regression",
        "nested.timing.Cached.time_cached(20, 'a')": "regression",
        "nested.timing.track_size": "pass",
    }
    assert {"n": "10", "kind": "'a'"} in [entry.params for entry in result.entries]
    # The same revision on both sides; what follows the machine's clock or memory need only be measured.
    status, result = gate(repo.root, "--base", "HEAD", "--bench", "mem|timeraw", "--rounds", "2")
    assert status == 0
    assert {entry.metric for entry in result.entries} == {"mem", "peakmem", "time"}
    assert set(statuses(result).values()) <= {"pass", "inconclusive"}


def test_a_version_taken_from_git_is_no_difference(repo, offline):
    """Built by a backend of its own that asks git, without a tag: that the version differs is left out."""
    repo.put(
        "pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "own_backend"\nbackend-path = ["tools"]\n'
    )
    repo.put("tools/own_backend.py", BACKEND)
    repo.put("src/gitlib.py", LIBRARY)
    repo.put(
        "benchmarks/bench.py", "def track_ticks():\n    import gitlib\n    gitlib.work(5)\n    return gitlib.TICKS\n"
    )
    repo.put(".gitignore", "out/\n__pycache__/\n")
    repo.commit("first")
    repo.commit("larger", **{"src/gitlib.py": DOUBLED})
    status, result = gate(repo.root, "--suite", "benchmarks")
    assert status == 1
    assert [round(entry.decision.ratio, 6) for entry in result.entries] == [2.0]
    assert result.base.packages["gitlib"] != result.head.packages["gitlib"]
    assert result.environment_differences == {}


def test_commands_of_asv_are_followed(repo, offline, tmp_path):
    """Both commands run as asv runs them: placeholders, prefixes, order, the environment's own python first on PATH."""
    log = tmp_path / "commands.txt"
    repo.put(
        "make.py", "import sys\nsys.path.insert(0, 'tools')\nimport own_backend\nown_backend.build_wheel(sys.argv[1])\n"
    )
    repo.put("tools/own_backend.py", BACKEND)
    repo.put("src/gitlib.py", LIBRARY)
    repo.put(
        "benchmarks/bench.py", "def track_ticks():\n    import gitlib\n    gitlib.work(5)\n    return gitlib.TICKS\n"
    )
    told = "(sys.prefix, os.getcwd(), os.environ.get('STEP'), sys.argv[1:])"
    note = f"open({str(log)!r}, 'a').write(repr({told}) + chr(10))"
    conf = {
        "version": 1,
        "project": "gitlib",
        "benchmark_dir": "benchmarks",
        "build_command": [
            f'STEP=one in-dir=tools python -c "import os, sys; {note}" {{project}} {{commit}} {{build_dir}}',
            "return-code=3 python -c 'raise SystemExit(3)'",
            "python make.py {build_cache_dir}",
        ],
        "install_command": ["in-dir={env_dir} python -m pip install --no-deps --no-index {wheel_file}"],
    }
    repo.put("asv.conf.json", json.dumps(conf))
    repo.put(".gitignore", "out/\n__pycache__/\n")
    first = repo.commit("first")
    repo.commit("larger", **{"src/gitlib.py": DOUBLED})
    status, result = gate(repo.root)
    assert status == 1
    assert [round(entry.decision.ratio, 6) for entry in result.entries] == [2.0]
    base, head = (eval(line) for line in log.read_text().splitlines())  # noqa: S307 - the repr this test wrote
    assert base[0] != head[0]
    assert base[0].endswith("/venv")
    assert (Path(base[1]).name, base[2], base[3][:2]) == ("tools", "one", ["gitlib", first])
    assert Path(base[3][2]) == Path(base[1]).parent


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (["python -c 'raise SystemExit(2)'"], "it printed nothing"),
        (["no-such-program {build_dir}"], "no-such-program does not start"),
        (["python {no_such}"], "{no_such} not available"),
        (["python 'unclosed"], "No closing quotation"),
        (["python -c ''"], "{wheel_file} not available"),
        (["python {}"], "Replacement index 0 out of range"),
    ],
)
def test_a_command_that_fails_is_one_line(repo, offline, build, why):
    """The line names the revision and what was wrong with the command."""
    repo.commit("first", **{"a.txt": "1"})
    with pytest.raises(BuildError) as caught:
        environments.build(repo.root, revisions.resolve(repo.root, "HEAD"), Recipe(build=build, project="x"))
    text = str(caught.value)
    assert why in text
    assert text.startswith("HEAD (")
    assert "\n" not in text


def test_one_command_leaves_the_other_to_its_default(repo, offline):
    """Only install_command: the wheel is pip's. An empty build_command builds nothing."""
    repo.commit("first", **{"pyproject.toml": hatchling("one", "one"), "one/__init__.py": LIBRARY})
    revision = revisions.resolve(repo.root, "HEAD")
    install = "python -m pip install --quiet --no-deps --no-index {wheel_file}"
    built = environments.build(repo.root, revision, Recipe(install=[install]))
    assert (built.project, built.packages["one"]) == ("one", "1")
    assert len(list(Path(built.folder, "wheel").glob("*.whl"))) == 1
    editable = "python -m pip install --quiet --no-deps --no-index --no-build-isolation {build_dir}"
    built = environments.build(repo.root, revision, Recipe(build=[], install=[editable], project="One"))
    assert (built.project, built.packages["one"]) == ("one", "1")
    assert not list(Path(built.folder, "wheel").glob("*.whl"))


def test_a_requirement_that_cannot_be_had_is_one_line(repo, offline):
    """Offline only what is installed beside rocattn can be lent."""
    repo.commit("first", **{"pyproject.toml": hatchling("a", "a"), "a/__init__.py": ""})
    with pytest.raises(BuildError, match="asv's matrix wants no-such-package"):
        environments.build(repo.root, revisions.resolve(repo.root, "HEAD"), Recipe(requirements=["no_such.package==1"]))


def test_a_project_of_a_monorepo_is_built_from_its_folder(repo, offline):
    """asv's repo_subdir: the wheel is made of the subfolder; one that a revision does not have is told."""
    repo.put("packages/one/pyproject.toml", hatchling("one", "one"))
    repo.put("packages/one/one/__init__.py", LIBRARY)
    repo.commit("first")
    revision = revisions.resolve(repo.root, "HEAD")
    built = environments.build(repo.root, revision, Recipe(subdir="packages/one"))
    assert (built.project, built.packages["one"]) == ("one", "1")
    with pytest.raises(BuildError, match="no folder 'packages/two'"):
        environments.build(repo.root, revision, Recipe(subdir="packages/two"))


def test_a_suite_that_only_head_has_is_measured_on_both(repo, offline):
    """The benchmarks come from head, as in asv: a first suite can be gated against the commit before it."""
    repo.put(".gitignore", "out/\n__pycache__/\n")
    repo.commit("first", **{"pyproject.toml": hatchling("lib", "lib"), "lib/__init__.py": LIBRARY})
    suite = "import lib\ndef track_ticks():\n    lib.work(5)\n    return lib.TICKS\n"
    repo.commit("suite", **{"benchmarks/asv.conf.json": '{"benchmark_dir": "."}', "benchmarks/bench.py": suite})
    status, result = gate(repo.root)
    assert (status, statuses(result), result.suite) == (0, {"bench.track_ticks": "pass"}, "benchmarks")


def test_a_suite_outside_the_repository_is_used_for_both(repo, offline, tmp_path):
    """Benchmarks kept in a repository of their own, the project named with --repo."""
    repo.commit("first", **{"pyproject.toml": hatchling("lib", "lib"), "lib/__init__.py": LIBRARY})
    repo.commit("larger", **{"lib/__init__.py": DOUBLED})
    apart = tmp_path / "apart"
    (apart / "suite").mkdir(parents=True)
    (apart / "suite/bench.py").write_text("import lib\ndef track_ticks():\n    lib.work(5)\n    return lib.TICKS\n")
    status, result = gate(apart, "--repo", str(repo.root), "--suite", "suite", "--tolerance", "3")
    assert (status, statuses(result)) == (1, {"bench.track_ticks": "regression"})
    # What it says to run next is for the same folder, and decides by the same rule.
    words, head = shlex.split(result.again), repo.git("rev-parse", "HEAD").strip()[:10]
    assert (words[words.index("--repo") + 1], words[words.index("--head") + 1]) == (str(repo.root), head)
    assert words[words.index("--tolerance") + 1] == "3"
    assert repo.git("status", "--porcelain") == ""
    # It is in no revision: an edit of it makes another session, whose launches are not mixed with the last one's.
    identities = set()
    for _ in range(2):
        with open_sides(repo.root, tmp_path / "out", Options(suite=str(apart / "suite")), lambda _: None) as sides:
            identities.add(tuple(sides.identity))
        with (apart / "suite/bench.py").open("a") as file:
            file.write("# edited\n")
    assert len(identities) == 2


def test_a_suite_of_another_repository_says_what_to_clone(repo, offline):
    """Benchmarks kept apart, with the project's address in asv.conf.json: what is here cannot be built."""
    conf = {"version": 1, "repo": "https://example.org/srclib.git", "build_command": ["python -m build {build_dir}"]}
    repo.put("asv.conf.json", json.dumps(conf))
    repo.commit("suite only", **{"benchmarks/__init__.py": ""})
    recipe = read_config(repo.root, None).recipe
    with pytest.raises(
        BuildError, match=r"benchmarks https://example\.org/srclib\.git: clone that, and name the clone with --repo"
    ):
        environments.build(repo.root, revisions.resolve(repo.root, "HEAD"), recipe)


def test_a_shallow_clone_without_tags_is_built(repo, offline, tmp_path):
    """What CI checks out: two commits deep, no tags."""
    repo.commit("old", **{"pyproject.toml": hatchling("lib", "lib"), "lib/__init__.py": LIBRARY})
    repo.commit(
        "suite", **{"bench/bench.py": "import lib\ndef track_ticks():\n    lib.work(5)\n    return lib.TICKS\n"}
    )
    repo.commit("larger", **{"lib/__init__.py": DOUBLED})
    shallow = tmp_path / "shallow"
    repo.git("clone", "--quiet", "--depth=2", repo.root.as_uri(), str(shallow))
    status, result = gate(shallow, "--suite", "bench", "--head", "HEAD")
    assert (status, statuses(result)) == (1, {"bench.track_ticks": "regression"})


def test_python_chooses_the_interpreter_of_revisions(repo, offline, capsys):
    """Without an index another interpreter has no packages: said in one line; existing environments have their own."""
    repo.commit("first", **{"pyproject.toml": hatchling("lib", "lib"), "lib/__init__.py": "", "b/b.py": ""})
    python = repo.root / "python"
    python.symlink_to(os.path.realpath("/usr/bin/env"))
    assert gate(repo.root, "--base", "HEAD", "--head", "HEAD", "--python", "no-such", "--suite", "b")[0] == 4
    assert "--python no-such: is not a program" in capsys.readouterr().err.strip().splitlines()[-1]
    other = Recipe(python=("/other/python", "3.12.1"))
    with pytest.raises(BuildError, match="not those of --python"):
        environments.build(repo.root, revisions.resolve(repo.root, "HEAD"), other)
    assert gate(repo.root, "--base-python", "a", "--head-python", "b", "--python", "c")[0] == 4


@pytest.mark.parametrize(
    ("matrix", "requirements", "left_out"),
    [
        ({"numpy": ["2.0"], "scipy": []}, ["numpy==2.0", "scipy"], 0),
        ({"req": {"numpy": ["2.0", "1.26"], "pip+six": ["", None], "gone": [None]}}, ["numpy==2.0", "six"], 2),
        ({"req": {"pip+asv_runner": ["0.3.2"], "numpy": [">=1.26"]}}, ["numpy>=1.26"], 0),
        ({"env": {"A": ["1", "2"]}}, [], 1),
        (None, [], 0),
    ],
)
def test_the_matrix_is_read_old_and_new(tmp_path, matrix, requirements, left_out):
    """Requirements at its top or under req, of several versions the first; what cannot be followed is told."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").write_text(json.dumps({"matrix": matrix}))
    config = read_config(tmp_path, None)
    assert config.recipe.requirements == requirements
    assert len(config.left_out) == left_out


@pytest.mark.parametrize(
    "settings",
    [
        {"build_command": 3},
        {"build_command": ["a", 1]},
        {"project": ["x"]},
        {"benchmark_dir": 1},
        {"default_benchmark_timeout": "2 min"},
        {"default_benchmark_timeout": None},
        {"matrix": ["numpy"]},
        {"matrix": {"req": ["numpy"]}},
    ],
)
def test_settings_of_the_wrong_kind_are_one_line(tmp_path, settings):
    """The line names the file and the key."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").write_text(json.dumps(settings))
    with pytest.raises(SuiteError, match=f"asv.conf.json: '{next(iter(settings))}' is not a"):
        read_config(tmp_path, None)


def test_the_usual_places_of_a_configuration_are_looked_into(tmp_path):
    """At the top, else in the one folder that has one; two of them have to be told apart by the caller."""
    for folder in ("benchmarks", "asv_bench"):
        (tmp_path / folder / "benchmarks").mkdir(parents=True)
    (tmp_path / "asv_bench/asv.conf.json").write_text("{}")
    assert read_config(tmp_path, None).benchmark_dir == "asv_bench/benchmarks"
    (tmp_path / "benchmarks/asv.conf.json").write_text("{}")
    with pytest.raises(SuiteError, match=r"benchmarks/asv.conf.json and asv_bench/asv.conf.json: choose one"):
        read_config(tmp_path, None)
    (tmp_path / "asv.conf.json").write_text('{"benchmark_dir": "benchmarks"}')
    assert read_config(tmp_path, None).benchmark_dir == "benchmarks"
    (tmp_path / "asv.conf.jsonc").write_text('{"version": 1, "repo": "."}')
    with pytest.raises(SuiteError, match=r"asv\.conf\.json and asv\.conf\.jsonc in one folder"):
        read_config(tmp_path, None)
    (tmp_path / "asv.conf.json").unlink()
    assert read_config(tmp_path, None).benchmark_dir == "benchmarks"
    assert AsvStore(tmp_path).config_path == tmp_path / "asv.conf.jsonc"
    assert asv_config.FILE == "asv.conf.json"


@pytest.mark.parametrize(
    ("place", "conf", "results"),
    [
        ("", '"results_dir": ".asv/results"', ".asv/results"),
        ("", '"project": "x"', "results"),  # as asv has it
        ("asv_bench/", '"results_dir": "../kept"', "kept"),
        ("asv_bench/", '"results_dir": "/somewhere/else"', "/somewhere/else"),
        ("", None, ".asv/results"),
    ],
)
def test_results_are_where_asv_has_them(tmp_path, place, conf, results):
    """Relative to the configuration; without one, where rocattn keeps its own."""
    (tmp_path / place / "benchmarks").mkdir(parents=True)
    if conf is not None:
        (tmp_path / place / "asv.conf.json").write_text(f"{{{conf}}}")
    assert read_config(tmp_path, None if conf else "benchmarks").results_dir == results
