"""What a project's tests need: groups, extras, files, packages."""

import pytest

from rocattn_profiling.revisions.asv_config import SuiteError
from rocattn_profiling.revisions.requirements import wanted_by_tests

PYPROJECT = """\
[project]
name = "My.Lib"
[project.optional-dependencies]
fast = ["orjson"]
tests = ["hypothesis", "my_lib[fast]", "my-lib[tests]"]
[dependency-groups]
test = ["pytest>=8", {include-group = "shared"}]
shared = ["attrs; python_version < '4'", {include-group = "test"}]
dev = ["sphinx", "pytest-benchmark"]
"""


@pytest.fixture
def tree(tmp_path):
    """A project with groups, extras, and requirements files."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/test.txt").write_text("-r base.txt  # shared\n--index-url nowhere\npsutil\\\n>=5\n\n")
    (tmp_path / "requirements/base.txt").write_text("# comment\nrich --hash=sha256:0\n")
    return tmp_path


def test_the_usual_groups_are_read_with_what_they_include(tree):
    """Groups of tests with theirs, and that of developers since only it has pytest-benchmark. No circle is endless."""
    usual = ["pytest>=8", "attrs; python_version < '4'", "hypothesis", "orjson", "sphinx", "pytest-benchmark"]
    assert wanted_by_tests(tree, tree, []) == usual
    text = PYPROJECT.replace('"pytest>=8"', '"pytest-benchmark>=4"')
    (tree / "pyproject.toml").write_text(text)
    assert "sphinx" not in wanted_by_tests(tree, tree, [])


def test_what_is_named_replaces_the_usual_groups(tree):
    """A file of pip's, an extra, a package."""
    named = ["requirements/test.txt", "fast", "numpy>=2", "x @ https://host/x.whl"]
    expected = ["rich", "psutil>=5", "orjson", "numpy>=2", "x @ https://host/x.whl"]
    assert wanted_by_tests(tree, tree, named) == expected


@pytest.mark.parametrize("name", ["requirements/none.txt", "--index-url", "./there"])
def test_what_is_nothing_is_refused(tree, name):
    """Before anything is built."""
    with pytest.raises(SuiteError):
        wanted_by_tests(tree, tree, [name])


def test_a_project_without_pyproject_needs_nothing(tmp_path):
    """As one with only a setup.py; one that cannot be read is refused."""
    assert wanted_by_tests(tmp_path, tmp_path, []) == []
    (tmp_path / "pyproject.toml").write_text("[")
    with pytest.raises(SuiteError):
        wanted_by_tests(tmp_path, tmp_path, [])


def test_the_group_that_has_the_plug_in_is_read(tmp_path):
    """Whatever its name, where the usual ones lack it; the whole of it, for a conftest.py needs the rest."""
    extras = 'testing = ["pytest"]\nspeed = ["pytest-codspeed", "psutil"]\n'
    text = f'[project]\nname = "x"\n[project.optional-dependencies]\n{extras}'
    (tmp_path / "pyproject.toml").write_text(text)
    assert wanted_by_tests(tmp_path, tmp_path, []) == ["pytest", "pytest-codspeed", "psutil"]


def test_a_requirements_file_that_has_the_plug_in_is_read(tmp_path):
    """In a usual place, with what it includes; not where a group has it, nor one that cannot be read."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/a.txt").write_text("-r none.txt\npytest-benchmark\n")
    (tmp_path / "requirements/ci.txt").write_text("-r pytest.txt\n-e .\n")
    (tmp_path / "requirements/pytest.txt").write_text("pytest-codspeed==5.0.3 # plug-in\npsutil\n")
    assert wanted_by_tests(tmp_path, tmp_path, []) == ["pytest-codspeed==5.0.3", "psutil"]
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\nbench = ["pytest-benchmark"]\n')
    assert wanted_by_tests(tmp_path, tmp_path, []) == ["pytest-benchmark"]


def test_extras_are_installed_that_the_benchmarks_import(tmp_path):
    """By the name of a package, or of the project's own module for it; no other ones."""
    extras = 'msgspec = ["msgspec>=0.19"]\nujson = ["ujson"]\norjson = ["orjson>=3"]\n'
    text = f'[project]\nname = "x"\n[project.optional-dependencies]\n{extras}\n[dependency-groups]\ntest = ["pytest"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/test_a.py").write_text("import os, msgspec\nfrom x.preconf.orjson import make\n# import ujson\n")
    wanted = wanted_by_tests(tmp_path, tmp_path, [], [tmp_path / "bench"])
    assert wanted == ["pytest", "msgspec>=0.19", "orjson>=3"]
