"""``.rocattn/gate.toml``: what a repository says about its own gate, and whose word counts."""

import pytest

from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning import settings
from rocattn_profiling.gate.planning.settings import GateSettings, GateSettingsError

from ..conftest import statuses
from ..launchers.test_report_launch import PROGRAM, gate

SETTINGS = """\
build = "cp cost.txt built.txt"
[[command]]
run = "python3 bench.py"
results = "jsonl"
[limits]
rounds = 10
"""


@pytest.fixture
def program(repo):
    """A repository without a Python project that says what its gate measures."""
    repo.put(".gitignore", "out/\n")
    repo.commit("first", **{"bench.py": PROGRAM, "cost.txt": "1.0", settings.FILE: SETTINGS})
    return repo


@pytest.mark.slow
def test_the_file_says_what_is_measured(program, offline):
    """Builds, command, format and rounds; the command to repeat needs none of them, and the caller's rounds win."""
    program.commit("slower", **{"cost.txt": "1.25"})
    status, result = gate(program)
    assert (status, statuses(result)) == (1, {"sort": "regression", "rate": "regression", "copy": "pass"})
    assert result.policy.looks[-1] == 10
    assert not {"--build", "--command", "--results", "--rounds"} & set(result.again.split())
    assert settings.EDITED not in result.notes
    status, result = gate(program, "--rounds", "2", "--command", "true", "--fresh")
    assert (status, [*statuses(result)], result.policy.looks) == (0, ["true"], (2,))


@pytest.mark.slow
def test_a_flag_of_the_build_is_a_part_of_the_change(program, offline):
    """Each side is built as its own file says, and an edit of the file is noted."""
    program.commit("flags", **{settings.FILE: SETTINGS.replace("cp cost.txt", "echo 1.25 >")})
    status, result = gate(program)
    assert (status, statuses(result)["sort"], settings.EDITED in result.notes) == (1, "regression", True)


@pytest.mark.slow
def test_a_command_that_head_takes_out_is_lost(program, offline):
    """Base's own file is listed, too; a command that is timed stands beside one that reports."""
    more = SETTINGS.replace("[limits]", "[[command]]\nrun = 'true'\n[limits]")
    program.commit("more", **{settings.FILE: more.replace("10", "1")})
    program.commit("less", **{settings.FILE: more.replace("10", "1").replace("run = 'true'", "run = 'false || :'")})
    status, result = gate(program)
    assert (status, statuses(result)["true"], statuses(result)["false || :"]) == (3, "removed", "inconclusive")
    assert [entry.label for entry in result.entries if entry.lost] == ["true"]


def test_the_caller_is_obeyed_before_the_file():
    """What to measure is one choice, limits are one each; environments are not built."""
    own = GateSettings(
        commands=("a",), results=("go",), builds=("make",), requirements=("b",), rounds=7, tolerance=0.03
    )
    assert settings.chosen(Options(rounds=3), own) == Options(
        commands=("a",), results=("go",), builds=("make",), requirements=("b",), rounds=3, tolerance=0.03
    )
    assert settings.chosen(Options(commands=("c",)), own).builds == ("make",)
    chosen = settings.chosen(Options(pytest=("tests",)), own)
    assert (chosen.commands, chosen.builds, chosen.requirements) == ((), (), ())
    existing = settings.chosen(Options(base_python="p", head_python="q"), own)
    assert (existing.commands, existing.builds, existing.requirements) == (("a",), (), ())
    existing.check()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sute = 'x'", ".rocattn/gate.toml:1: 'sute' is unknown; known are suite,"),
        ("\n[[command]]\nrun = 'x'\nresult = 'go'\n", ".rocattn/gate.toml:4: 'result' is unknown"),
        ("[[command]]\nresults = 'go'", ".rocattn/gate.toml: run is missing"),
        ("[[command]]\nrun = 'x'\nresults = 'gogle'", ".rocattn/gate.toml:3: --results gogle: the formats are"),
        ("[command]\nrun = 'x'", ".rocattn/gate.toml:1: begin every command with [[command]]"),
        ("pytest = ['a', '']", ".rocattn/gate.toml:1: pytest must be a string or a list of strings"),
        ("suite = 3", ".rocattn/gate.toml:1: suite must be non-empty text"),
        ("[limits]\nmax-time = '10'\nrounds = true", ".rocattn/gate.toml:1: rounds must be"),
        ("[limits]\nmax-time = 'long'", ".rocattn/gate.toml:2: max-time must be a duration"),
        ("[limits]\ntolerance = 5", ".rocattn/gate.toml:1: tolerance must be"),
        ("limits = 3", ".rocattn/gate.toml:1: limits is a table"),
        ("[", ".rocattn/gate.toml: "),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path, text, line):
    """What is wrong, and what would be right."""
    (tmp_path / ".rocattn").mkdir()
    (tmp_path / settings.FILE).write_text(text)
    with pytest.raises(GateSettingsError) as error:
        settings.load(tmp_path)
    assert str(error.value).startswith(line)
    assert len(str(error.value).splitlines()) == 1
