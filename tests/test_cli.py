"""The ``rocattn`` command's frame: verbs, exit statuses, one-line errors."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling import cli
from rocattn_profiling.base.status import CommandError


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


@pytest.mark.parametrize("arguments", [["xyz"], ["bench", "--no-such-option"], ["bench", "--head-dim", "0"]])
def test_a_usage_error_is_one_line_and_status_4(arguments):
    """Bad usage is answered in one line that points to --help."""
    done = rocattn(*arguments)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *([verb] for verb in cli.VERBS if verb not in {"kernels", "gate"}),
        *(["kernels", action] for action in ("build", "audit", "occupancy")),
        *(["gate", action] for action in ("run", "judge", "selftest", "show", "comment")),
    ],
    ids=" ".join,
)
def test_a_wrong_option_points_to_the_right_help(command, capsys):
    """A subcommand's wrong option is answered with the subcommand's --help: the command's lacks its options."""
    needed = {"plan": ["--arch", "gfx942"], "judge": ["x"], "show": ["x"], "comment": ["x"]}.get(command[-1], [])
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, *needed, "--no-such-option", "64"])
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert said.startswith(f"rocattn {' '.join(command)}: unrecognized arguments: --no-such-option"), said
    assert said.endswith(f"(see rocattn {' '.join(command)} --help)\n"), said


@pytest.mark.parametrize("words", [[], ["kernels"], ["gate"]], ids=["rocattn", "kernels", "gate"])
def test_a_command_alone_prints_its_help_as_a_usage_error(words, capsys):
    """On stderr, with status 4: as ruff and uv do; nothing was asked for that could have been done."""
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    usage = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 4
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", usage)


@pytest.mark.parametrize(
    ("words", "problem", "guess"),
    [
        (["benhc"], "argument COMMAND: invalid choice: 'benhc'", "'bench'"),
        (["docter"], "argument COMMAND: invalid choice: 'docter'", "'doctor'"),
        (["kernels", "adit"], "argument ACTION: invalid choice: 'adit'", "'audit'"),
        (
            ["gate", "jugde"],
            "argument init|run|compare|judge|selftest|show|comment: invalid choice: 'jugde'",
            "'judge'",
        ),
        (["bench", "--quikc"], "unrecognized arguments: --quikc", "--quick"),
        (["plan", "--arch", "gfx942", "--mask", "boolean"], "argument --mask: invalid choice: 'boolean'", "'bool'"),
        (["doctor", "--jsn=1"], "unrecognized arguments: --jsn=1", "--json"),
    ],
    ids=str,
)
def test_a_mistyped_word_is_answered_with_the_nearest_one(words, problem, guess, capsys):
    """Commands, subcommands, options and the values of options; a word like none gets no guess."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 4
    command = "rocattn" if len(words) == 1 else f"rocattn {words[0]}"
    assert capsys.readouterr().err == f"{command}: {problem}, did you mean {guess}? (see {command} --help)\n"


@pytest.mark.parametrize(
    ("verb", "start"), [("kernels", "Build the GPU kernels"), ("profile", "Run a command under an AMD")]
)
def test_a_description_keeps_its_capitals(verb, start):
    """GPU and AMD are written in a command's help as in the list of commands."""
    assert cli.parser_for(verb).description.startswith(start)


@pytest.mark.parametrize(
    "where", [("--debug", "kernels", "build"), ("kernels", "--debug", "build"), ("kernels", "build", "--debug")]
)
def test_debug_is_taken_at_every_level(where, capsys):
    """--debug adds the traceback to any error of any command: also behind a subcommand, where one appends it."""
    assert cli.main(list(where)) == 4
    assert "Traceback" in capsys.readouterr().err
    assert cli.main([word for word in where if word != "--debug"]) == 4
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(RocattnError("a is wrong: do b"), 4), (CommandError("nothing was measured", 3), 3)]
)
def test_an_expected_error_is_one_line_with_its_status(monkeypatch, capsys, error, status):
    """Errors of ours end the command without a traceback; --debug shows one before the line."""
    import rocattn_profiling.doctor.command as verb

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
    import rocattn_profiling.doctor.command as verb

    monkeypatch.setattr(verb, "run", lambda _: 1 // 0)
    assert cli.main(["doctor"]) == 3
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "bug in rocattn" in shown


@pytest.mark.parametrize(
    ("call", "encoding", "printed"),
    [("print(name)", "ascii", r"\u4e2d\xfc"), ("emit_json(name)", "latin-1", '"\u4e2d\u00fc"')],
)
def test_a_character_that_the_locale_lacks_ends_no_command(call, encoding, printed):
    """A name in another script is written as escapes for people; what programs read is UTF-8 everywhere."""
    script = f"""
from rocattn_profiling.cli import main
from rocattn_profiling.doctor import command as doctor
from rocattn_profiling.base.console import emit_json
name = "\\u4e2d\\u00fc"
doctor.run = lambda _: {call} or 0
raise SystemExit(main(["doctor"]))
"""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout.decode(), ended.stderr) == (0, f"{printed}\n", b"")


def test_a_full_disk_under_stdout_is_no_bug(monkeypatch, capsys):
    """JSON into a file on a full disk: one line and an environment error; --debug shows where."""
    import rocattn_profiling.doctor.command as verb

    def fail(arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(verb, "run", fail)
    assert cli.main(["doctor"]) == 4
    assert capsys.readouterr().err == "rocattn doctor: cannot write the output to stdout: No space left on device\n"
    assert cli.main(["doctor", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--version",), "rocattn"),
        (("kernels", "--help"), "rocattn kernels"),
        (("kernels", "occupancy", "--arch", "gfx942", "--vgprs", "64", "--json"), "rocattn kernels"),
    ],
)
def test_whatever_cannot_be_printed_is_said_in_one_line(arguments, name, unbuffered):
    """Help and version onto a full disk, too; and the interpreter, which flushes at its end, has nothing to add."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rocattn_profiling.cli", *arguments]
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert done.stderr == f"{name}: cannot write the output to stdout: No space left on device\n"
    assert done.returncode == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("kernels", "occupancy"), 4), (("verify", "--quick", "--family", "edges", "--backend", "cpu", "--out", "v"), 0)],
)
def test_a_full_stderr_leaves_the_status_as_it_is(tmp_path, arguments, status, unbuffered):
    """1 is Python's own, and would read as a regression."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rocattn_profiling.cli", *arguments]
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stderr=full, cwd=tmp_path, check=False, env=environment)
    assert done.returncode == status


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    """As a container's or a clean-up's is: relative paths lead nowhere."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$PWD" && exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-c", "from rocattn_profiling.cli import main; exit(main())"]
    done = subprocess.run([*command, "ci"], cwd=gone, capture_output=True, text=True, check=False)
    assert done.stderr == "rocattn ci: the working directory no longer exists: change to one that does\n"
    assert done.returncode == 4


def test_an_interrupted_command_is_one_line(monkeypatch, capsys):
    """Ctrl-C ends with one line and the status shells expect."""
    import rocattn_profiling.doctor.command as verb

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "run", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "rocattn doctor: interrupted\n"


@pytest.mark.parametrize(
    "command",
    ["verify --quick", "bench --quick", "memory --quick", "plan --arch gfx1100 --head-dim 64", "ci --quick",
     "kernels audit", "kernels build --arch gfx1100"],
)  # fmt: skip
def test_another_checkouts_kernels_are_not_judged_by_our_own(command, tmp_path, monkeypatch, capsys):
    """Who edits a clone with rocattn installed elsewhere would read that all is well: its kernels would go unread."""
    for name in ("kernels/include/rocattn/device.h", "rocattn/sources.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    assert cli.main(command.split()) == 4
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith(f"rocattn {command.split()[0]}: {tmp_path} is a checkout of rocattn, but")
    assert f"pip install -e '{tmp_path}[toolchain]'" in said.err
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.rglob("out")) == []


@pytest.mark.parametrize(
    ("closed", "status"), [("2>&-", 0), ("<&-", 0), ("<&- 2>&-", 0), ("1>&-", 4), ("<&- 1>&- 2>&-", 4)]
)
def test_a_closed_stream_changes_no_status(closed, status):
    """But stdout's: what was asked for is lost. No file that is opened later gets a stream's number."""
    program = "import sys; from rocattn_profiling.cli import main; sys.exit(main())"
    command = f'exec "{sys.executable}" -c "{program}" plan --arch gfx1100 --head-dim 64 --json {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert (done.stdout[:1] == "{") == (status == 0)
    told = "rocattn plan: cannot write the output to stdout: Bad file descriptor\n"
    assert done.stderr == (told if status and "2>" not in closed else "")


def test_two_dashes_after_an_equals_sign_are_a_value():
    """As any other that names nothing; argparse makes an empty list of them, which would mean the default."""
    parse = cli.parser_for("gate").parse_args
    assert parse(["run", "--base=--"]).base == "--"
    assert parse(["run", "--arch=--"]).arch == ["--"]
    assert rocattn("plan", "--dtype=--").returncode == 4
