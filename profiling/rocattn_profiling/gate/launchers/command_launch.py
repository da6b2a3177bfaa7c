"""Any command as a benchmark: timed as a whole, in a side's checkout, with that side's environment on PATH."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.asv.launch import (
    Benchmark,
    Loaded,
    Suite,
    ask_worker,
    launch_environment,
    measured,
    round_variables,
    run_logged,
)
from rocattn_profiling.base.files import decoded
from rocattn_profiling.base.process import StartError

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Outcome, Request

TIMEOUT_S = 600.0
_WORKER = "rocattn_profiling.gate.launchers.command_worker"
_MODULES = "ROCATTN_MODULES"
# Every Python process of a command imports this from PYTHONPATH, and writes at exit which modules it has loaded.
_SITECUSTOMIZE = f"""\
import atexit, json, os, sys
def _write():
    files = {{name: file for name, module in list(sys.modules.items()) if (file := getattr(module, "__file__", None))}}
    try:
        with open(os.path.join(os.environ["{_MODULES}"], str(os.getpid())), "w") as out:
            json.dump({{"modules": files}}, out)
    except (OSError, KeyError):
        pass
atexit.register(_write)
"""


class CommandLauncher:
    """Times commands on one side.

    Args:
        python: The interpreter of the side's environment; its folder comes first on PATH.
        tree: The folder that the commands run in: the side's checkout.
        commands: Shell commands.
        scratch: A folder for answers and logs; one per side.
        environment: See `rocattn_profiling.asv.launch.Launcher`.
    """

    shared: tuple[Path, ...] = ()

    def __init__(
        self,
        python: str,
        tree: Path,
        commands: Sequence[str],
        scratch: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.tree, self.commands, self.scratch = tree.absolute(), commands, scratch.absolute()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.environment, self._own = launch_environment(environment), environment
        folder = os.path.dirname(os.path.abspath(python))  # noqa: PTH100, PTH120 - keep the symlink of a venv
        self.environment["PATH"] = os.pathsep.join([folder, self.environment.get("PATH", os.defpath)])

    def discover(self) -> Suite:
        """Return a benchmark for each command."""
        return Suite(
            benchmarks=[
                Benchmark(name=command, type="time", unit="seconds", version="", params=[], param_names=[])
                for command in dict.fromkeys(self.commands)
            ]
        )

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Time a command; see `rocattn_profiling.asv.launch.Launcher.run`."""
        message = {"command": case.label, "cwd": str(self.tree), "log": str(self.scratch / "command.log")}
        worker = (sys.executable, "-P", "-m", _WORKER)
        environment = self.environment | round_variables(seed, layout, self._own)
        answer, outcome = ask_worker(
            worker,
            message | msgspec.to_builtins(request),
            environment,
            self.scratch,
            TIMEOUT_S,
            end=time.monotonic() + within_s,
        )
        return measured(answer, outcome, pos)

    def end_server(self) -> None:
        """Do nothing: every launch is a separate process, without a server."""

    def call_command(self, name: str, label: str, answer: Path | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return the command itself; it can be started from any folder."""
        return "/bin/sh", "-c", f'cd "$1" && {label}', "sh", str(self.tree)

    def loaded(
        self,
        name: str,
        label: str,
        trace: Sequence[str] = (),  # noqa: ARG002 - see `CaseLauncher.loaded`
        *,
        module: str = "",  # noqa: ARG002
        within_s: float = math.inf,
    ) -> Loaded | None:
        """Run a command, unmeasured, and return the modules of all its Python processes; None if there are none.

        Functions are not traced, since not every process of a command runs Python.
        """
        with tempfile.TemporaryDirectory(prefix="call-", dir=self.scratch, ignore_cleanup_errors=True) as folder:
            hook, modules = Path(folder, "hook"), Path(folder, "modules")
            hook.mkdir()
            modules.mkdir()
            (hook / "sitecustomize.py").write_text(_SITECUSTOMIZE)
            own = self.environment.get("PYTHONPATH")
            variables = {_MODULES: str(modules), "PYTHONPATH": os.pathsep.join([str(hook), *([own] if own else [])])}
            log, environment = Path(folder, "log"), self.environment | variables
            with contextlib.suppress(StartError):
                run_logged(self.call_command(name, label), environment, Path(folder), log, min(within_s, TIMEOUT_S))
            files: dict[str, str] = {}
            for path in sorted(modules.iterdir()):
                files |= decoded(path.read_bytes(), Loaded).modules
        return Loaded(modules=files) if files else None
