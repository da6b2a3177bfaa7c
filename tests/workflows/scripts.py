"""Calls the workflows' scripts as a step does."""

import os
import subprocess
import sys

from .rules import ROOT

SCRIPTS = ROOT / ".github" / "scripts"


def run(name, *words, cwd=None, **environment):
    """Run a script; return the finished process."""
    command = [*(["bash"] if name.endswith(".sh") else [sys.executable, "-I"]), SCRIPTS / name, *words]
    return subprocess.run(
        command, cwd=cwd, env={"PATH": os.environ["PATH"]} | environment, capture_output=True, text=True, check=False
    )
