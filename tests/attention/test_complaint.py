"""Which line of a failed program's output is its message."""

import sys

import pytest

from rocattn.errors import complaint
from rocattn_profiling.revisions.interpreters import InterpreterError, find_interpreter, fitting_interpreter

PYENV = """\
pyenv: python3.12: command not found

The `python3.12' command exists in these Python versions:
  3.12.4

Note: See 'pyenv help global' for tips on allowing both
      Python versions to be found at the same time.
"""
CHAINED = """\
warning: the index is old
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    error: not this one
tinylib.WorkError: no room for 3 rows
  row 1 is too long
sys:1: ResourceWarning: unclosed file
"""
CLANG = """\
In file included from a.hip:1:
b.h:3:1: warning: unused variable 'error'
a.hip:9:5: error: use of undeclared identifier 'x'
a.hip:11:5: error: expected ';'
2 errors generated when compiling for gfx942.
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (PYENV, "pyenv: python3.12: command not found"),
        (CHAINED, "tinylib.WorkError: no room for 3 rows"),
        (CLANG, "a.hip:9:5: error: use of undeclared identifier 'x'"),
        ('  File "<string>", line 1\n    x x\n      ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        ('Traceback (most recent call last):\n  File "a", line 1\nKeyboardInterrupt\n\n', "KeyboardInterrupt"),
        ("usage: tool [-h]\ntool: error: unrecognized arguments: -c\n", "tool: error: unrecognized arguments: -c"),
        ("fatal: bad revision 'x'\nhint: look at git log\n", "fatal: bad revision 'x'"),
        ("./app: cannot open libamdhip64.so.7\nsee the manual\n", "./app: cannot open libamdhip64.so.7"),
        ("note: a.csv: cannot be read\nstep: 3\nterminate called\nCore dumped\n", "Core dumped"),
        ("  \n", "it printed nothing"),
    ],
)
def test_the_message_is_told_by_its_shape(output, line):
    """Tracebacks end with theirs; other programs begin with it, and go on with advice."""
    assert complaint(output) == line


def test_a_missing_python_is_told_in_pyenv_s_first_line(tmp_path, monkeypatch):
    """Its shim is on PATH for every version it has, and its last line is advice."""
    shim = tmp_path / "python3.12"
    shim.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{PYENV}END\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(
        InterpreterError, match=r"does not answer like a Python interpreter: pyenv: python3\.12: command not"
    ):
        find_interpreter("python3.12", "--python")


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("'>=3.12'", "python3.13"), (">=3.11,<3.13", "python3.11"), (">3.13", ""), ("<3.11", ""), (">=4", "")],
)
def test_a_python_on_path_that_fits_is_named(tmp_path, monkeypatch, wanted, name):
    """The newest that answers: pyenv has shims for versions that are not active."""
    for minor in (11, 12, 13):
        program = tmp_path / f"python3.{minor}"
        program.write_text("#!/bin/sh\nexit 127\n" if minor == 12 else f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fitting_interpreter(wanted) == name
