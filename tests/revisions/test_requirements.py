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
