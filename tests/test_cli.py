"""The ``rocattn`` command's frame: verbs, exit statuses, one-line errors."""

import subprocess
import sys

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling import cli
from rocattn_profiling.cli.status import CommandError


def rocattn(*arguments, **options):
    """Run the installed command in a process of its own."""
    command = [sys.executable, "-m", "rocattn_profiling.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_lists_every_verb():
    """``rocattn --help`` names each command with what it does."""
    done = rocattn("--help")
    assert done.returncode == 0
    for verb, text in cli.VERBS.items():
        assert f"{verb:8} {text}" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["bnech"], ["bench", "--no-such-option"]])
def test_a_usage_error_is_one_line_and_status_4(arguments):
    """Bad usage is answered in one line that points to --help."""
    done = rocattn(*arguments)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    ("error", "status"), [(RocattnError("a is wrong: do b"), 4), (CommandError("nothing was measured", 3), 3)]
)
def test_an_expected_error_is_one_line_with_its_status(monkeypatch, capsys, error, status):
    """Errors of ours end the command without a traceback; --debug shows one before the line."""
    import rocattn_profiling.cli.doctor as verb

    def fail(arguments):
        raise error

    monkeypatch.setattr(verb, "run", fail)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().err == f"rocattn doctor: {error}\n"
    for arguments in (["doctor", "--debug"], ["--debug", "doctor"]):
        assert cli.main(arguments) == status
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert shown.endswith(f"rocattn doctor: {error}\n")


def test_a_bug_is_shown_whole_and_does_not_read_as_a_regression(monkeypatch, capsys):
    """An error that is not ours keeps its traceback, and its status says "not measured", never 1."""
    import rocattn_profiling.cli.doctor as verb

    monkeypatch.setattr(verb, "run", lambda _: 1 // 0)
    assert cli.main(["doctor"]) == 3
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "bug in rocattn" in shown


def test_an_interrupted_command_says_that_finished_work_is_kept(monkeypatch, capsys):
    """Ctrl-C ends with one line and the status shells expect."""
    import rocattn_profiling.cli.doctor as verb

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "run", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "rocattn doctor: interrupted; what was finished is kept\n"
