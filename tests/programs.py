"""Programs of Python lines that tests put on a path."""

import sys


def python_program(*options):
    """Return the first lines of an executable file that this interpreter runs.

    For the shell a command, for Python a text: a ``#!`` line cannot name an interpreter in a folder with a space.
    """
    words = " ".join([f'"{sys.executable}"', *options])
    return f"#!/bin/sh\n'''exec' {words} \"$0\" \"$@\"\n'''\n"
