"""The exit status of every command in every kind of situation, against the sentence in README.md."""

import json
import signal
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from rocattn.errors import ToolchainError
from rocattn_profiling import cli
from rocattn_profiling.kernels import build as kernel_build

from .test_earlier_results import CASES, SHAPE, place, records, run, verdict  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow
MODULE = """\
import numpy as np
from rocattn.backends import BACKENDS, CpuBackend
from rocattn.backend import Support

class Absent(CpuBackend):
    name, priority = "absent", -9
    def available(self):
        return Support(ok=False, reason="it was left at home")

class Refusing(CpuBackend):
    name, priority = "refusing", -9
    def supports(self, config):
        return Support(ok=False, reason="not today")

class Wrong(CpuBackend):
    name, priority = "wrong", -9
    def forward(self, config, operands, out, lse):
        out[...] = 7

BACKENDS.register(Absent())
BACKENDS.register(Refusing())
if __name__ == "faulty":
    BACKENDS.register(Wrong())
"""
MINE = "--backend-module mine"
FAULTY = "--backend-module faulty"
VERIFY = "verify --family positions --quick --out OUT"
MEMORY = "memory --lengths 64 128 --threads 1 --out OUT"
PLAN = "plan --arch gfx942 --seq-q 64 --head-dim 64"
OCCUPANCY = "kernels occupancy --arch gfx942 --vgprs 64"

# Command line -> status; grouped by what a command is about.
STATUSES = {
    # no command, an option that there is not, a value that cannot be
    "": 4,
    "nosuch": 4,
    "--version": 0,
    "--help": 0,
    **{f"{verb} --help": 0 for verb in cli.VERBS},
    **{f"{verb} --nosuch": 4 for verb in cli.VERBS},
    # verify: what is wrong is 1, also beside a backend that is not there; named and not run is 3
    f"{VERIFY} --backend cpu": 0,
    f"{VERIFY} --backend cpu --json": 0,
    f"{VERIFY} {MINE}": 0,
    f"{VERIFY} {MINE} --backend absent cpu": 3,
    f"{VERIFY} {MINE} --backend refusing cpu --json": 3,
    f"{VERIFY} {MINE} --backend absent": 3,
    f"{VERIFY} {FAULTY} --backend absent wrong": 1,
    f"{VERIFY} --backend nosuch": 4,
    "verify --list": 0,
    # bench
    f"bench {SHAPE} {MINE} --out OUT": 0,
    f"bench {SHAPE} {MINE} --backend absent cpu --out OUT": 3,
    f"bench {SHAPE} {MINE} --backend refusing cpu --json --out OUT": 3,
    f"bench {SHAPE} {MINE} --backend absent --out OUT": 3,
    f"bench {SHAPE} {FAULTY} --backend absent wrong --out OUT": 1,
    f"bench {SHAPE} --dtype nosuch --out OUT": 4,
    "bench --list --json": 0,
    "site --measure 0": 4,
    # memory
    f"{MEMORY} {MINE} --backend cpu": 0,
    f"{MEMORY} {MINE} --backend cpu absent": 3,
    f"{MEMORY} {MINE} --backend refusing cpu --json": 3,
    f"{MEMORY} {MINE} --backend absent": 3,
    # plan and kernels
    PLAN: 0,
    f"{PLAN} --json": 0,
    f"{PLAN} --num-heads 0": 4,
    "plan --arch gfx9999 --head-dim 64": 4,
    OCCUPANCY: 0,
    f"{OCCUPANCY} --json": 0,
    "kernels occupancy --cases rows.csv": 3,
    "kernels occupancy --cases nosuch.csv": 4,
    "kernels occupancy --cases empty.s": 4,
    "kernels build": 4,
    "kernels build --arch gfx9999": 4,
    "kernels build --plan empty.s": 4,
    "kernels audit k.s --out OUT": 0,
    "kernels audit k.s --json --out OUT": 0,
    "kernels audit k.s empty.s --out OUT": 3,
    "kernels audit --against nosuch --out OUT": 4,
    # profile: a profiler and a GPU are there, rocprof is not
    "profile --metrics lds --out OUT -- ./app.sh": 0,
    "profile --metrics lds --json --out OUT -- ./app.sh": 0,
    "profile --tool rocprof --out OUT -- ./app.sh": 3,
    "profile --tool rocprofv3@6.2 --out OUT -- ./app.sh": 4,
    "profile --arch gfx1100 --metrics lds matrix_busy_pct --out OUT -- ./app.sh": 3,
    "profile --list": 0,
    "profile --dry-run --tool rocprofv3@7.0 -- ./nosuch": 0,
    # report and site
    "report --records bench --out OUT": 0,
    "report --records nosuch --out OUT": 3,
    "report trace.csv --out OUT": 0,
    "report empty --out OUT": 3,
    "report --files trace.csv": 0,
    "report --files empty --json": 3,
    "report --files nosuch": 4,
    "site --records bench --out OUT": 0,
    "site --results nosuch --out OUT": 3,
    "site --repo nosuch --out OUT": 4,
    # gate: the verdict of the fixture is a regression
    "gate judge pairs.jsonl --out OUT/j": 0,
    "gate judge empty.s --out OUT/j": 3,
    "gate judge trace.csv --json --out OUT/j": 3,
    "gate judge nosuch --out OUT/j": 4,
    "gate show gate": 0,
    "gate show gate --exit-status": 1,
    "gate show gate --json --exit-status --strict": 1,
    "gate show empty": 4,
    "gate comment gate/verdict.json": 0,
    "gate comment nosuch": 3,
    "gate run --base nosuch --out OUT": 4,
    "gate run --tolerance 0 --out OUT": 4,
    "gate run --python nosuch --out OUT": 4,
    "gate selftest --draws 1 --out OUT": 4,
    "gate selftest --rev nosuch --out OUT": 4,
    # doctor and ci
    "doctor --gpu gfx9999": 4,
    "ci --skip nosuch --out OUT": 4,
    "ci --skip doctor verify bench audit gate profile report site --out OUT": 3,
    CASES["ci"].good: 0,
}


@pytest.fixture
def modules(place, monkeypatch):  # noqa: F811 - the fixture
    """Backends of a module of one's own: one that is not there, one that refuses, and in another one that is wrong."""
    for name in ("mine", "faulty"):
        Path(f"{name}.py").write_text(MODULE)
    Path("rows.csv").write_text("arch,vgprs\ngfx942,64\ngfx942,9x\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return place


@pytest.mark.parametrize("line", STATUSES)
def test_the_status_is_the_documented_one(modules, capsys, line):
    """With --json, stdout is one JSON value whatever the status."""
    status = run(line)
    told = capsys.readouterr()
    assert status == STATUSES[line], told.err
    if " --json" in line:
        json.loads(told.out)
    elif status:
        assert told.err or told.out


@pytest.mark.parametrize("verb", cli.VERBS)
def test_ctrl_c_is_130(monkeypatch, capsys, verb):
    """In every command, and it is told."""

    def interrupted(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module(f"rocattn_profiling.{verb}.command"), "run", interrupted)
    needed = {"plan": "plan --arch gfx942", "kernels": "kernels build", "gate": "gate run"}
    assert run(needed.get(verb, verb)) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_job_that_is_ended_is_143(monkeypatch, capsys, verb):
    """Every command unwinds, and so ends the programs that it started."""

    def ended(_arguments):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(import_module(f"rocattn_profiling.{verb}.command"), "run", ended)
    needed = {"plan": "plan --arch gfx942", "kernels": "kernels build", "gate": "gate run"}
    assert run(needed.get(verb, verb)) == 143
    assert capsys.readouterr().err == f"rocattn {verb}: terminated\n"


def test_no_compiler_is_status_4(place, monkeypatch, capsys):  # noqa: F811 - the fixture
    """An environment error, before anything is written."""

    def none():
        raise ToolchainError("no compiler for HIP kernels: none here")

    monkeypatch.setattr(kernel_build, "choose_compiler", none)
    assert run("kernels build --arch gfx942 --out OUT") == 4
    assert "none here" in capsys.readouterr().err
    assert not Path("kept").exists()


def test_what_was_named_and_not_run_is_told(modules, capsys):
    """A line and a place in the JSON of each command; in JUnit an error, which CI servers count."""
    for line, name in ((f"{VERIFY} {MINE} --junit j.xml", "unchecked"), (f"{MEMORY} {MINE}", "unmeasured"),
                       (f"bench {SHAPE} {MINE} --out OUT", "unmeasured")):  # fmt: skip
        assert run(f"{line} --backend absent cpu --json") == 3
        told = capsys.readouterr()
        assert "absent" in json.dumps(json.loads(told.out)[name])
        assert [each for each in told.err.splitlines() if "absent" in each and "status 3" in each]
    errors = ET.parse("j.xml").iter("error")  # noqa: S314 - our own file
    assert [each.get("message") for each in errors] == ["not checked: it was left at home"]
