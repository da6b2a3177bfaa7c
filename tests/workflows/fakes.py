"""A pretend ROCm machine for whole jobs: smi tools that keep a level, sudo, profilers, and this interpreter."""

import json
import os
import shutil
import sys
from pathlib import Path

from ..programs import python_program

PROFILERS = Path(__file__).resolve().parents[1] / "profile" / "collect" / "fakes"
SMI = """
import json, sys
from pathlib import Path
state = Path(sys.argv[1])
words = sys.argv[2:]
found = json.loads(state.read_text())
found["calls"].append(words)
levels = found["level"].split()
tool = Path(found["tool"]).name
asked = {"amd-smi": ["set", "--perf-level"], "rocm-smi": ["--setperflevel"]}[tool]
refused = False
if words[: len(asked)] == asked:
    if tool == "amd-smi" and "-g" not in words:  # as that of ROCm up to 6.2 says
        sys.exit("amd-smi set: error: one of the arguments -g/--gpu is required")
    refused = bool(found["refuses"])
    if not refused:
        wanted = words[len(asked)]
        assert wanted == (wanted.upper() if tool == "amd-smi" else wanted.lower()), wanted
        found["level"] = " ".join([wanted.lower()] * len(levels))
elif tool == "amd-smi":
    print(json.dumps([{"gpu": n, "perf_level": "AMDSMI_DEV_PERF_LEVEL_" + x.upper()} for n, x in enumerate(levels)]))
else:
    print(json.dumps({f"card{n}": {"Performance Level": level} for n, level in enumerate(levels)}))
state.write_text(json.dumps(found))
if refused:
    sys.exit(found["refuses"])
"""


class Smi:
    """A fake amd-smi or rocm-smi in ``root/bin``, with its state in a file."""

    def __init__(self, root, tool, level, refuses):
        self.state, folder = root / f"{tool}.json", root / "bin"
        folder.mkdir(exist_ok=True)
        self.state.write_text(json.dumps({"tool": tool, "level": level, "refuses": refuses, "calls": []}))
        (root / "smi.py").write_text(SMI)
        program(folder / tool, f'exec "{sys.executable}" -IS "{root}/smi.py" "{self.state}" "$@"')
        program(folder / "sudo", '[ "$1" = -n ] && shift\nexec "$@"')
        # Nothing else is found there but what a shell script itself needs.
        self.path = str(folder)

    @property
    def level(self):
        """The level now; of several GPUs, if all have the same."""
        levels = set(json.loads(self.state.read_text())["level"].split())
        assert len(levels) == 1, levels
        return levels.pop()

    @property
    def calls(self):
        """The words of every call."""
        return json.loads(self.state.read_text())["calls"]

    def change(self, **settings):
        """Change what it does."""
        self.state.write_text(json.dumps(json.loads(self.state.read_text()) | settings))


def install_smi(root, tool, level="auto", refuses=""):
    """Put a fake tool into ``root/bin``; ``level`` has a word for each GPU, ``refuses`` is what it says instead."""
    return Smi(root, tool, level, refuses)


def program(path, script):
    """Write a shell program."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def install_rocprofv3(root, **settings):
    """Put a fake rocprofv3 into ``root/bin``; its calls are in ``root/profiler-calls.jsonl``."""
    (root / "bin").mkdir(exist_ok=True)
    found = {"release": "7.0.0", "arch": "gfx942", "log": str(root / "profiler-calls.jsonl"), **settings}
    (root / "profiler.json").write_text(json.dumps(found))
    path = root / "bin" / "rocprofv3"
    path.write_text(
        f"{python_program('-IS')}import sys\nsys.path.insert(0, {str(PROFILERS)!r})\n"
        f"from rocprofv3_fake import main\nsys.exit(main({str(root / 'profiler.json')!r}))\n"
    )
    path.chmod(0o755)


def install_python(root):
    """Put a python3 into ``root/bin``: the one that this environment was made from, as a runner's own is."""
    (root / "bin").mkdir(exist_ok=True)
    program(root / "bin" / "python3", f'exec "{os.path.realpath(sys.executable)}" "$@"')


def tools_of_the_system():
    """Return the folders of git and of the usual programs."""
    return [str(Path(path).parent) for name in ("git", "bash", "cp", "tar") if (path := shutil.which(name))]
