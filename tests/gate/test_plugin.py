"""A project's own plug-in, ``.rocattn/gate.py``: the ten lines of the documentation, and files that are none."""

import re
from pathlib import Path

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict, waivers

ROOT = Path(__file__).resolve().parents[2]
FILE = ".rocattn/gate.py"
BASE = "from rocattn_profiling.gate.plugin import Plugin as Base\nclass Plugin(Base):\n"


@pytest.fixture
def gated(project, offline, monkeypatch):
    """Return a function that commits files, gates that commit, and gives the status and the verdict."""

    def commit_and_gate(*arguments, **files):
        project.commit("change", **files)
        monkeypatch.chdir(project.root)
        status = main(["gate", "run", "--quick", "--rounds", "5", *arguments])
        path = project.root / "out/gate/verdict.json"
        return status, verdict.read(path) if path.is_file() else None

    return commit_and_gate


@pytest.mark.slow
def test_the_plugin_of_the_documentation_is_run(gated, project):
    """Its number fails the gate with its cause, and a waiver names it like any other; rocattn's plug-in has no say."""
    page = (ROOT / "docs/gate-your-project.md").read_text()
    plugin = re.search(rf"as {FILE} -->\n```python\n(.*?)```", page, re.DOTALL)[1]
    assert len(plugin.splitlines()) <= 20
    grown = "UNUSED = '" + "x" * 1000 + "'\n"
    library = (project.root / "tinylib/__init__.py").read_text()
    status, result = gated(**{FILE: plugin, "tinylib/__init__.py": library + grown})
    entry = next(entry for entry in result.entries if entry.metric == "exact")
    assert (status, entry.label, entry.status) == (1, "source of tinylib", "regression")
    assert entry.decision.ratio > 2
    assert [(one.location.path, one.location.line) for one in entry.causes] == [("tinylib/__init__.py", 9)]
    assert {one.metric for one in result.entries} == {"time", "exact"}
    waiver = (
        '[[waiver]]\nbenchmark = "source of tinylib"\nmetric = "exact"\nceiling = inf\nexpires = 2999-01-01\n'
        'issue = "#1"\nreason = "known"\n'
    )
    status, result = gated(**{waivers.FILE: waiver, "tinylib/__init__.py": library + grown + grown + grown})
    assert (status, next(one.status for one in result.entries if one.metric == "exact")) == (0, "waived")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("this is no Python\n", f"{FILE} cannot be used: SyntaxError: "),
        ("x = 1\n", f"{FILE} cannot be used: AttributeError: "),
        ("class Plugin:\n    def __init__(self, context):\n        pass\n", "must be derived from"),
        (f"{BASE}    def entries(self):\n        raise KeyError('x')\n", f"{FILE} cannot be used: KeyError: 'x'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_line(gated, capsys, text, said):
    """A gate without what it was told to look at would be a green one for nothing."""
    status, result = gated(**{FILE: text})
    assert (status, result) == (4, None)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_plugin_may_be_a_package(gated):
    """Its modules import each other relatively; it is asked before the builds whether anything can be measured."""
    sizes = "from rocattn_profiling.base.reasons import Reason\nWHY = Reason('moon', 'there is none')\n"
    init = f"from .sizes import WHY\n{BASE}    unmeasurable = classmethod(lambda *_: WHY)\n"
    files = {".rocattn/gate/__init__.py": init, ".rocattn/gate/sizes.py": sizes}
    assert gated(**files) == (3, None)


@pytest.mark.slow
def test_what_a_plugin_prepares_takes_none_of_the_time(gated):
    """It may be a build: a limit that is shorter than that still leaves time to measure."""
    text = f"{BASE}    def prepare(self, cases):\n        import time\n        time.sleep(11)\n"
    status, result = gated("--max-time", "10s", **{FILE: text, "tinylib/more.py": "x = 1\n"})
    assert (status, result.verdict, result.budget.stopped) == (0, "pass", False)
    assert result.budget.measured_s < 10
