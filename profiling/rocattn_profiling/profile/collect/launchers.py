"""Start each profiler: turn a pass into a command line with its files and variables.

`LAUNCHERS` has an object per profiler. Differences between releases are taken from the profilers' sources, named in
each class.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Protocol

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.profile.collect.find import Tool
from rocattn_profiling.profile.collect.passes import PassPlan, ProfilerPass

RUN_SCRIPT = "run.sh"
_SHELL_SAFE = re.compile(r"[\w@%+=:,./-]+")
_PMC_OPTION = _ROCPD = (7, 0)  # first ROCm release of rocprofv3 with --pmc per pass, and with rocpd databases
_OUTPUT_DIRECTORY, _OUTPUT_DIRECTORY_ROCM = (3, 7), (7, 14)  # first rocprof-compute with that option
_KERNEL_FILTER = (6, 3)  # first rocprofv3 with --kernel-include-regex and --kernel-iteration-range
_PLAIN = re.compile(r"\w+")  # text that means the same as a regular expression and as part of a name
_NOTE = "rocprof-compute plans its own passes and collects all its counters, whatever was asked for"


class PathError(RocattnError, ValueError):
    """Raised when a profiler would put a path unquoted into a shell command that the path would break."""


class PassLaunch(msgspec.Struct, frozen=True):
    """How to start one pass.

    Attributes:
        argv: The command line.
        env: Variables to set for it.
        files: Files to write first: path below the pass's folder -> text.
        folders: Folders to create first, below the pass's folder.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command line in shell syntax, with its variables."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.argv)])


def refuse(tool: Tool, kernel: str, launches: str, gpu: int | None) -> None:
    """Raise if a profiler cannot count only these kernels, launches of each kernel, or this GPU.

    rocprof 1 and rocprofv2 match parts of names, and rocprof's ``range:`` numbers the launches of all kernels
    together (test/tool/tool.cpp of ROCm/rocprofiler); rocprof-compute passes ``-d`` to rocprofv3 since 3.0
    (profiler_rocprof_v3.py), before that to rocprof.

    Raises:
        RocattnError: When it cannot; the message names an alternative.
    """
    later = "filter the report instead: rocattn report DIR"
    old = tool.name == "rocprof-compute" and re.match(r"[012]\.", tool.version) is not None
    is_v3 = tool.name == "rocprofv3"
    if is_v3 and (kernel or launches) and (0, 0) < tool.release < _KERNEL_FILTER:
        raise RocattnError(f"{tool.label} filters no kernels: ROCm 6.3 and later do; {later}")
    if kernel and tool.name in {"rocprof", "rocprofv2"} and not _PLAIN.fullmatch(kernel):
        raise RocattnError(f"{tool.name} takes a part of a kernel's name, letters, digits and _, not {kernel!r}")
    if launches and (old or tool.name in {"rocprof", "rocprofv2"}):
        raise RocattnError(f"{tool.label} cannot count certain launches of each kernel; {later} --launches {launches}")
    if gpu is not None and tool.name != "rocprof" and not (is_v3 and not (0, 0) < tool.release < _PMC_OPTION):
        raise RocattnError(f"{tool.label} counts on every GPU: hide the others with ROCR_VISIBLE_DEVICES={gpu}")


class ProfilerLauncher(Protocol):
    """A profiler."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The output formats it can write, the default first."""
        ...

    def plan(self, plan: PassPlan) -> PassPlan:
        """Adapt the plan to this profiler."""
        ...

    def launch(
        self, tool: Tool, of_pass: ProfilerPass, command: tuple[str, ...], folder: Path, output_format: str
    ) -> PassLaunch:
        """Return how to start a pass of a command that writes everything below a folder (an absolute path).

        Raises:
            PathError: When the profiler's shell command would break the folder's path.
        """
        ...


class Rocprofv3:
    """rocprofv3 of ROCm 6.2 to 10: ``--pmc`` or an input file for counters, a kernel trace for the timing pass.

    From source/bin/rocprofv3.py of rocprofiler-sdk: releases before 7.0 take counters from a file (``-i``) with a
    ``pmc:`` line per pass, and put that pass's files into ``pmc_1/``. From 7.0 on, ``--pmc`` is a pass and the default
    format is rocpd, so the format is always stated. If the name lacks ``%pid%``, the application's second process
    overwrites the first one's files. ROCPROF_TMPDIR keeps temporary files out of the working directory.

    From 7.0 on it sets up counters on every GPU of the machine, whatever ROCR_VISIBLE_DEVICES says, and up to 7.2 it
    ends the application if a GPU has no counter definitions, such as a Ryzen's integrated GPU (rocprofiler-sdk issue
    148, `construct_counter_collection_profile` in tool.cpp). ``NAME:device=N`` requests a counter on one GPU only.
    """

    formats = ("csv", "rocpd")

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan unchanged."""
        return plan

    def launch(
        self, tool: Tool, of_pass: ProfilerPass, command: tuple[str, ...], folder: Path, output_format: str
    ) -> PassLaunch:
        """Return the command line of one pass."""
        is_old = (0, 0) < tool.release < _PMC_OPTION
        written = "csv" if tool.release < _ROCPD and tool.release != (0, 0) else output_format
        output = ("-d", str(folder / "raw"), "-o", "out_%pid%", "--output-format", written)
        files = {}
        if of_pass.sampling:  # the trace names the kernels; databases before 2026 hold no samples
            unit = "cycles" if of_pass.sampling == "stochastic" else "time"
            counting: tuple[str, ...] = (
                "--kernel-trace", "--pc-sampling-beta-enabled", "--pc-sampling-method", of_pass.sampling,
                "--pc-sampling-unit", unit, "--pc-sampling-interval", str(of_pass.interval),
            )  # fmt: skip
            output = (*output[:-1], "csv")
        elif of_pass.traced:  # a thread trace has no choice of format
            where = ("--att-library-path", of_pass.decoder) if of_pass.decoder else ()
            counting, output = ("--kernel-trace", "--att", *where), (*output[:-1], "csv")
        elif not of_pass.counters:
            counting = ("--kernel-trace",)
        elif is_old:
            files["counters.txt"] = f"pmc: {' '.join(of_pass.counters)}\n"
            counting = ("-i", str(folder / "counters.txt"))
        else:
            devices = [f":device={number}" for number in of_pass.devices] or [""]
            counting = ("--pmc", *(name + device for name in of_pass.counters for device in devices))
        if of_pass.kernel:
            counting += ("--kernel-include-regex", of_pass.kernel)
        if of_pass.launches:
            counting += ("--kernel-iteration-range", f"[{of_pass.launches}]")
        return PassLaunch(
            argv=(tool.path, *counting, *output, "--", *command),
            env={"ROCPROF_TMPDIR": str(folder / "tmp")},
            files=files,
            folders=("raw", "tmp"),
        )


class Rocprof:
    """rocprof version 1, up to ROCm 6: wide CSV, one row per dispatch; the timing pass has only timestamps.

    bin/rpl_run.sh of ROCm/rocprofiler joins the command line, splits it at spaces and evaluates it again, which breaks
    arguments with spaces, quotes or ``$``, so the application is started through a script. ``-d`` and ``-t`` name
    different folders, because the data is deleted if they are the same.
    """

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan unchanged."""
        return plan

    def launch(
        self, tool: Tool, of_pass: ProfilerPass, command: tuple[str, ...], folder: Path, output_format: str
    ) -> PassLaunch:
        """Return the command line of one pass; raises `PathError`."""
        del output_format  # it has only one
        _refuse_unquotable(folder)
        files = {RUN_SCRIPT: f"#!/bin/sh\nexec {shlex.join(command)}\n"}
        counters: tuple[str, ...] = ()
        if of_pass.counters:
            files["counters.txt"] = f"pmc : {' '.join(of_pass.counters)}\n{_filters(of_pass)}"
            counters = ("-i", str(folder / "counters.txt"))
        return PassLaunch(
            argv=(
                tool.path, *counters, "-o", str(folder / "raw" / "out.csv"), "-t", str(folder / "tmp"),
                "-d", str(folder / "data"), "--timestamp", "on", str(folder / RUN_SCRIPT),
            ),
            files=files,
            folders=("raw", "tmp", "data"),
        )  # fmt: skip


class Rocprofv2:
    """rocprofv2, up to ROCm 6: wide CSV through its file plug-in, named by process id if no name is given."""

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan unchanged."""
        return plan

    def launch(
        self, tool: Tool, of_pass: ProfilerPass, command: tuple[str, ...], folder: Path, output_format: str
    ) -> PassLaunch:
        """Return the command line of one pass; raises `PathError`."""
        del output_format
        _refuse_unquotable(folder)  # it tests `[ $2 ]` unquoted, but passes the application's arguments correctly
        files = {}
        counting: tuple[str, ...] = ("--kernel-trace",)
        if of_pass.counters:
            files["counters.txt"] = f"pmc: {' '.join(of_pass.counters)}\n{_filters(of_pass)}"
            counting = ("-i", str(folder / "counters.txt"))
        return PassLaunch(
            argv=(tool.path, *counting, "--plugin", "file", "-d", str(folder / "raw"), *command),
            files=files,
            folders=("raw",),
        )


class RocprofCompute:
    """rocprof-compute (Omniperf before ROCm 6.3): a single pass, in which it runs the application 12 to 20 times.

    From src/argparser.py and CHANGELOG.md of rocprofiler-compute: ``-p`` names the folder up to 3.6, and
    ``--output-directory`` since 3.7 (ROCm 7.14), which removed ``-p``. The roofline's micro-benchmarks are disabled
    (``--no-roof``): they take minutes and are missing on some distributions.
    """

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Replace the plan's passes with a single one."""
        return msgspec.structs.replace(
            plan, passes=(ProfilerPass("workload", opaque=True),), notes=(*plan.notes, _NOTE)
        )

    def launch(
        self, tool: Tool, of_pass: ProfilerPass, command: tuple[str, ...], folder: Path, output_format: str
    ) -> PassLaunch:
        """Return the command line of the single pass."""
        del output_format
        filters: tuple[str, ...] = ("-k", of_pass.kernel) if of_pass.kernel else ()
        filters += ("-d", *of_pass.launches.split(",")) if of_pass.launches else ()
        version = re.match(r"(\d+)\.(\d+)", tool.version)
        if version:
            is_new = (int(version[1]), int(version[2])) >= _OUTPUT_DIRECTORY
        else:
            is_new = tool.release >= _OUTPUT_DIRECTORY_ROCM
        option = "--output-directory" if is_new else "-p"
        return PassLaunch(
            argv=(
                tool.path,
                "profile",
                "-n",
                "rocattn",
                option,
                str(folder / "raw"),
                "--no-roof",
                *filters,
                "--",
                *command,
            ),
            env={"ROCPROF_TMPDIR": str(folder / "tmp")},
            folders=("tmp",),
        )


LAUNCHERS: dict[str, ProfilerLauncher] = {
    "rocprofv3": Rocprofv3(),
    "rocprofv2": Rocprofv2(),
    "rocprof": Rocprof(),
    "rocprof-compute": RocprofCompute(),
}


def _filters(of_pass: ProfilerPass) -> str:
    """Return the lines of a rocprof 1 or rocprofv2 input file that select kernels and a GPU."""
    kernel = f"kernel: {of_pass.kernel}\n" if of_pass.kernel else ""
    return kernel if of_pass.gpu is None else f"{kernel}gpu: {of_pass.gpu}\n"


def _refuse_unquotable(folder: Path) -> None:
    """Raise `PathError` if a path contains characters that do not survive in an unquoted shell word."""
    if _SHELL_SAFE.fullmatch(str(folder)) is None:
        raise PathError(f"this profiler cannot write to {str(folder)!r}: use --out with letters, digits and ._-/ only")
