"""What tests of measuring run in: no processes, backends that fail as told, a Slurm without a cluster."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rocattn_profiling.bench import session as harness
from rocattn_profiling.bench.fleet import cluster
from rocattn_profiling.bench.launch import BackendLaunches
from rocattn_profiling.measure.settings import import_backends

from ..made_records import make_sides
from .fleets import MODULE, Inline

HERE = Path(__file__).parent


@pytest.fixture
def fleet_environment(monkeypatch, tmp_path):
    """Make the backends of `fleet_backends` known, here and in jobs; jobs find their flag in the test's folder."""
    for folder in (HERE.parent, HERE):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{HERE.parent}")
    monkeypatch.setenv("FLEET_FLAG", str(tmp_path / "flag"))
    import_backends(MODULE)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():  # a job catches them, and some tests do a job's work themselves
        signal.signal(number, handler)


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    """Return the folder of a fake Slurm whose commands are first on the path."""
    root, commands = tmp_path / "slurm", tmp_path / "bin"
    root.mkdir()
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct", "srun"):
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{HERE / "fake_slurm.py"}" {name} "$@"\n')
        path.chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(root))
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setattr(cluster.SlurmCluster, "pause_s", 0.05)
    return root


@pytest.fixture
def inline(monkeypatch):
    """Return what to give a session for `Inline` jobs, in which "odd-crash" fails and nothing is measured."""

    def sides(config, backends, *rest, **more):
        made = make_sides(config, backends, *rest, **more)
        return (
            made | {"odd-crash": BackendLaunches(failed="it crashed", log="the last words")}
            if "odd-crash" in made
            else made
        )

    monkeypatch.setattr(harness, "measure_side_by_side", sides)
    monkeypatch.setattr(harness.limits, "measure_ceilings", lambda *_, **__: {"gemm_tflops": 1.0, "memory_gbps": 1.0})
    return {"cluster": Inline}
