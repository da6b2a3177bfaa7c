"""Programs of Python lines that tests put on a path."""

import sys


def python_program(*options):
    """Return the first lines of an executable file that this interpreter runs.

    For the shell a command, for Python a text: a ``#!`` line cannot name an interpreter in a folder with a space.
    """
    words = " ".join([f'"{sys.executable}"', *options])
    return f"#!/bin/sh\n'''exec' {words} \"$0\" \"$@\"\n'''\n"


def hearing(*numbers):
    """Return the beginning of a command that starts the rest with these signals at their default, whatever we ignore.

    Python does so for SIGPIPE alone.
    """
    resets = "".join(f"signal.signal({int(number)}, signal.SIG_DFL); " for number in numbers)
    return [sys.executable, "-I", "-S", "-c", f"import os, signal, sys; {resets}os.execvp(sys.argv[1], sys.argv[1:])"]
