"""Environments of revisions: built once, of the revision's own code, with clear lines when they cannot be."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocattn_profiling.revisions import build as building
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import Recipe
from rocattn_profiling.revisions.build import Build
from rocattn_profiling.revisions.environments import BuildError, CacheError
from rocattn_profiling.revisions.git import Revision


@pytest.fixture
def own_cache(monkeypatch, offline, tmp_path):
    """The same in a cache folder of the test's own, which it returns."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def not_root():
    """Skip for root, whom permissions do not stop."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere: permissions cannot be tested")


def environments_pyproject(name):
    """A hatchling project of one package."""
    return (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "9"\n[tool.hatch.build.targets.wheel]\npackages = ["{name}"]\n'
    )


def ask(environment, code):
    """Run code in an environment and return what it prints."""
    done = subprocess.run([environment.python, "-P", "-s", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_each_revision_imports_its_own_code(project, offline):
    """Two commits of a library are two environments, each with its own version of the code, and asv_runner.

    The recorded versions are those of the running interpreter, where an environment borrows from it.
    """
    first = environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    project.commit("second", **{"tinylib/__init__.py": "def work(n):\n    return 'second'\n"})
    second = environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    assert ask(first, "import tinylib; print(tinylib.work(3))") == "5"
    assert ask(second, "import tinylib, asv_runner; print(tinylib.work(3))") == "second"
    assert (first.offline, first.packages["tinylib"]) == (True, "0.1")
    assert first.packages["numpy"] == ask(first, "import numpy; print(numpy.__version__)")
    assert first.python_version == ".".join(map(str, sys.version_info[:3]))
    assert environments.differences(first, second) == {}


def test_the_wheel_goes_before_what_the_running_interpreter_has(repo, offline):
    """A project whose package is also installed here (rocattn itself, editable) is measured from its wheel."""
    repo.put("pyproject.toml", environments_pyproject("rocattn"))
    repo.put("rocattn/__init__.py", "WHICH = 'wheel'\n")
    repo.commit("first")
    built = environments.build(repo.root, revisions.resolve(repo.root, "HEAD"))
    assert ask(built, "import rocattn, numpy; print(rocattn.WHICH)") == "wheel"


def test_an_environment_is_built_once(project, own_cache, monkeypatch):
    """The second time it comes from the cache, also under another commit with the same files; a build makes room."""
    looked = []
    monkeypatch.setattr(environments, "_prune", looked.append)
    built = environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    assert looked == [own_cache / "gate" / "envs"]
    project.commit("no change")
    monkeypatch.setattr(environments, "_make", lambda *_, **__: pytest.fail("built again"))
    assert environments.build(project.root, revisions.resolve(project.root, "HEAD")) == built


def test_build_commands_get_an_environment_for_each_commit(project):
    """One serves two commits with the same files, unless the project has build commands: those may name the commit."""
    first = revisions.resolve(project.root, "HEAD")
    project.commit("no change")
    second = revisions.resolve(project.root, "HEAD")
    told = environments.Recipe(build=["make version={commit}"])
    assert [
        environments._key(first, recipe, offline=False) == environments._key(second, recipe, offline=False)
        for recipe in (environments.Recipe(), told)
    ] == [True, False]


def test_what_uv_made_is_not_compared_with_what_pip_made(project, monkeypatch):
    """Each leaves other tools in an environment: where one is asked for, the other's is not taken. Offline both do."""
    revision = revisions.resolve(project.root, "HEAD")
    keys = {}
    for offline in (False, True):
        found = set()
        for uv in ("", "/opt/bin/uv"):
            monkeypatch.setenv("ROCATTN_UV", uv)
            found.add(environments._key(revision, environments.Recipe(), offline=offline))
        keys[offline] = len(found)
    assert keys == {False: 2, True: 1}


def test_a_build_that_was_killed_is_done_again(project, own_cache):
    """Without its stamp an entry does not count; with a truncated stamp neither."""
    revision = revisions.resolve(project.root, "HEAD")
    built = environments.build(project.root, revision)
    stamp = own_cache / "gate" / "envs" / Path(built.folder).name / "stamp.json"
    stamp.write_text(stamp.read_text()[:20])
    Path(built.python).unlink()
    again = environments.build(project.root, revision)
    assert ask(again, "import tinylib; print(tinylib.work(2))") == "1"
    Path(again.python).unlink()
    assert environments._read_stamp(stamp) is None


@pytest.mark.parametrize("damage", ["edited", "removed", "another", "list"])
def test_a_damaged_environment_is_built_again(project, own_cache, monkeypatch, damage):
    """Every run would fail on it, and --fresh would not help; new files do not matter."""
    revision = revisions.resolve(project.root, "HEAD")
    built = environments.build(project.root, revision)
    module = Path(ask(built, "import tinylib; print(tinylib.__file__)"))
    (module.parent / "written_at_import.txt").write_text("x")
    with monkeypatch.context() as patched:
        patched.setattr(environments, "_make", lambda *_, **__: pytest.fail("built again"))
        environments.build(project.root, revision)
    if damage == "edited":
        module.write_text(module.read_text() + "raise OSError\n")
    elif damage == "removed":
        module.unlink()
    elif damage == "another":
        next(module.parents[1].glob("*.pth")).write_text("")
    else:
        Path(built.folder, "files.json").write_text('["12')
    again = environments.build(project.root, revision)
    assert ask(again, "import tinylib, asv_runner; print(tinylib.work(2))") == "1"
    assert not (module.parent / "written_at_import.txt").exists()


def test_nothing_of_a_build_stays_in_the_scratch_folder(project, own_cache):
    """Checkouts are removed, and the user's repository has no build files."""
    environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    assert not list((own_cache / "gate" / "scratch").iterdir())
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("pyproject", "why"),
    [
        ("[project\n", "not valid TOML"),
        (environments_pyproject("tinylib").replace('version = "9"', 'dynamic = ["version"]'), "version"),
        ('[build-system]\nrequires = []\nbuild-backend = "no_such_backend"\n', "no_such_backend'; no package index"),
        (None, "no pyproject.toml"),
    ],
)
def test_an_unbuildable_commit_is_one_line_with_its_log(project, offline, pyproject, why):
    """The line names the revision, the build tool's reason and the log; the log exists and holds more."""
    if pyproject is None:
        (project.root / "pyproject.toml").unlink()
    project.commit("broken", **({"pyproject.toml": pyproject} if pyproject else {}))
    with pytest.raises(BuildError) as caught:
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    text = str(caught.value)
    assert "HEAD" in text
    assert why in text
    assert "\n" not in text
    if "log: " in text:
        log = text.split("log: ")[1].rstrip("]")
        assert len(Path(log).read_text()) > len(text)


def test_a_cache_folder_that_is_a_file_is_one_line(project, own_cache):
    """A cache that cannot be written names itself and the variable that moves it."""
    own_cache.write_text("in the way")
    with pytest.raises(CacheError, match="ROCATTN_CACHE_DIR") as caught:
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    assert str(own_cache) in str(caught.value)


def test_a_read_only_cache_folder_is_one_line(project, own_cache, not_root):
    """No permission to write: one line, no traceback."""
    own_cache.mkdir()
    own_cache.chmod(0o500)
    with pytest.raises(CacheError, match="Permission denied"):
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))


@pytest.fixture
def failing_uv(project, own_cache, monkeypatch, tmp_path):
    """Return a function that makes uv fail with a line."""

    def fail(line):
        fake = tmp_path / "uv"
        fake.write_text(f"#!/bin/sh\necho 'error: {line}' >&2\nexit 2\n")
        fake.chmod(0o755)
        monkeypatch.setenv("ROCATTN_OFFLINE", "0")
        monkeypatch.setenv("ROCATTN_UV", str(fake))

    return fail


def test_a_full_disk_while_building_is_the_cache_s_fault(project, failing_uv):
    """A build tool that reports a full disk is an environment error, not an unbuildable commit."""
    failing_uv("failed to write: No space left on device (os error 28)")
    with pytest.raises(CacheError, match="No space left"):
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))


def test_no_index_falls_back_to_the_running_packages(project, failing_uv):
    """When uv cannot reach an index the environment is made offline, and says so."""
    failing_uv("Failed to fetch: dns error: failed to lookup address")
    revision = revisions.resolve(project.root, "HEAD")
    assert environments.build(project.root, revision).offline
    with pytest.raises(BuildError, match="no package index answers"):
        environments.build(project.root, revision, offline=False)


def test_asv_s_tools_are_not_the_ones_that_python_brought(project, tmp_path, monkeypatch):
    """Python 3.11's own venv has a setuptools of 2022, which builds without isolation would be done with."""
    asked = []
    monkeypatch.setattr(building.Build, "_run", lambda _, command, **__: asked.append(command) or "{}")
    monkeypatch.setattr(building, "read_facts", lambda said: said)
    recipe = Recipe(build=["python -m pip wheel ."], install=[], requirements=["numpy"])
    revision = revisions.resolve(project.root, "HEAD")
    building.Build(project.root, tmp_path, revision, recipe, uv=None, offline=False).make()
    tools = asked[1]
    assert tools[tools.index("install") :] == ["install", "--quiet", "--upgrade", *building._ASV_TOOLS, "numpy"]


def test_another_python_is_asked_for(project, own_cache, offline, monkeypatch):
    """The line of a project that this Python is too old for names the option, and one that is on PATH."""
    monkeypatch.setattr(building, "fitting_interpreter", {" '>=3.12'": "", " '>=3.13'": "python3.13"}.get)
    said = "ERROR: Package 'x' requires a different Python: 3.11.7 not in '>=3.12'"
    monkeypatch.setattr(building, "_BUILD_WHEEL", f"raise SystemExit({said!r})")
    with pytest.raises(BuildError, match=r"not in '>=3.12'; --python names another one \[log: "):
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))
    monkeypatch.setattr(building, "_BUILD_WHEEL", f"raise SystemExit({said.replace('12', '13')!r})")
    with pytest.raises(BuildError, match=r"not in '>=3.13'; --python python3.13 is one that fits \[log: "):
        environments.build(project.root, revisions.resolve(project.root, "HEAD"))


def test_constraints_come_from_the_lock_of_the_revision(tmp_path):
    """Names, versions and hashes stay for uv, hashes go for pip, comments go for both; no lock, no constraints."""
    assert building.constraints(tmp_path, tmp_path, hashes=True) == []
    lock = "# tables: x\nnumpy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    (tmp_path / "requirements.lock").write_text(f"{lock}zipp==4 ; python_version < '3.12'\n")
    zipp = ["zipp==4", ";", "python_version", "<", "'3.12'"]
    for hashes, numpy in ((True, ["numpy==2.4.6", "--hash=sha256:aa", "--hash=sha256:bb"]), (False, ["numpy==2.4.6"])):
        assert building.constraints(tmp_path, tmp_path, hashes=hashes)[0] == "--constraint"
        lines = (tmp_path / "constraints.txt").read_text().splitlines()
        assert [line.split() for line in lines] == [numpy, zipp]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("error: Failed to build `x`\n  ├─▶ The build backend returned an error\n  ╰─▶ ValueError: no wheel\n",
         "ValueError: no wheel"),
        ("collecting\nModuleNotFoundError: No module named 'x'\nerror: subprocess-exited-with-error",
         "ModuleNotFoundError: No module named 'x'"),
        ("error: Failed to build `x`\n  cause: TOML parse error at line 1, column 6\n 1 | not toml [\n  no value",
         "TOML parse error at line 1, column 6"),
        ("ValueError: no license\nerror: metadata-generation-failed\n\u00d7 Encountered error while generating",
         "ValueError: no license"),
        ("x.c:1: fatal error: no x.h\n  ERROR: Failed building wheel for x\nerror: failed-wheel-build-for-install",
         "x.c:1: fatal error: no x.h"),
        # A compiler's first error, not the command that failed by it.
        ("gcc -c a.c\na.c:3:5: error: unknown type\na.c:9:1: error: more\nerror: command 'gcc' failed",
         "a.c:3:5: error: unknown type"),
        ("ValueError: no\nerror: subprocess-exited-with-error", "ValueError: no"),
        ("all quiet\nlast words\n", "last words"),
        ("", "it printed nothing"),
    ],
)  # fmt: skip
def test_the_line_that_names_the_cause_is_found(said, line):
    """Wrapping lines of uv and pip are passed over for the one with the cause."""
    assert building.meaningful_line(said) == line


def test_old_environments_are_pruned(own_cache, monkeypatch):
    """Beyond the limit the longest unused go, never one used within hours."""
    monkeypatch.setattr(environments, "KEEP", 2)
    envs = own_cache / "gate" / "envs"
    for age_hours, name in ((1, "new"), (3, "recent"), (5, "still"), (30, "old"), (50, "older")):
        (envs / name).mkdir(parents=True)
        stamp = envs / name / "stamp.json"
        stamp.write_text("{}")
        used = time.time() - age_hours * 3600
        os.utime(stamp, (used, used))
    environments._prune(envs)
    assert sorted(p.name for p in envs.iterdir() if p.is_dir()) == ["new", "recent", "still"]


def test_environments_beyond_the_size_limit_are_pruned(own_cache, monkeypatch):
    """Few that are large count too; files in folders are counted, one that is shared by hard links by its share."""
    envs = own_cache / "gate" / "envs"
    shared = own_cache / "elsewhere"
    own_cache.mkdir()
    shared.write_bytes(bytes(2**20))
    for age_hours, name in ((1, "new"), (30, "old"), (50, "older"), (70, "linked")):
        (envs / name / "lib").mkdir(parents=True)
        if name == "linked":
            os.link(shared, envs / name / "lib" / "code.so")
        else:
            (envs / name / "lib" / "code.so").write_bytes(bytes(2**20))
        stamp = envs / name / "stamp.json"
        stamp.write_text("{}")
        os.utime(stamp, (time.time() - age_hours * 3600,) * 2)
    sizes = {entry.folder.name: entry.size_bytes for entry in environments.cached_entries(envs)}
    assert 2**19 <= sizes["linked"] < 2**20 <= sizes["old"] < 2**20 + 2**16
    monkeypatch.setenv("ROCATTN_CACHE_GIB", str(2.4 / 1024))
    environments._prune(envs)
    assert {p.name for p in envs.iterdir() if p.is_dir()} == {"new", "old"}
    monkeypatch.setenv("ROCATTN_CACHE_GIB", "1e-9")
    environments._prune(envs)
    assert {p.name for p in envs.iterdir() if p.is_dir()} == {"new"}


def test_differences_name_both_versions():
    """A dependency that differs, or is on one side only, is told with both versions."""

    def made(packages, python="3.11.7", project=""):
        return environments.Environment(
            python="p", folder="f", offline=False, packages=packages, python_version=python, project=project
        )

    found = environments.differences(made({"numpy": "2.1", "a": "1"}), made({"numpy": "2.2", "b": "3"}, "3.12.0"))
    assert found == {"a": ("1", ""), "b": ("", "3"), "numpy": ("2.1", "2.2"), "python": ("3.11.7", "3.12.0")}
    renamed = environments.differences(made({"old": "1"}, project="old"), made({"new": "1"}, project="new"))
    assert renamed == {"new": ("", "1"), "old": ("1", "")}
    assert environments.differences(made({"x": "1"}, project="x"), made({"x": "2"}, project="x")) == {}


def test_what_only_conda_has_is_explained(tmp_path):
    """Where the requirement comes from, and two ways out."""
    recipe = Recipe(requirements=["odd-package"], conda=True)
    revision = Revision(name="HEAD", sha="ab" * 20, tree="cd" * 20, date_ms=0, subject="")
    build = Build(tmp_path, tmp_path, revision, recipe, uv=None, offline=False)
    last = "ERROR: No matching distribution found for odd-package"
    assert str(build._failure(last)) == (
        f"HEAD (ababababab) does not build: {last}; asv's matrix asks for odd-package with conda, and here packages "
        'come from an index: name it as pip does ("pip+NAME"), or compare environments that have it with '
        f"--base-python and --head-python [log: {build.log}]"
    )
