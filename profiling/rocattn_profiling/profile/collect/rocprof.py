"""rocprof (version 1) and rocprofv2, both of ROCm up to 6.

Version 1 (bin/rpl_run.sh of ROCm/rocprofiler) joins the command line, splits it at blanks and evaluates it again:
arguments with blanks, quotes or ``$`` do not arrive. The application is therefore started through a script. ``-d`` and
``-t`` name different folders, because the data is deleted when they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.profile.collect.launch import Launch, shell_safe, through_a_script

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn_profiling.profile.collect.find import Tool
    from rocattn_profiling.profile.collect.passes import Pass, PassPlan


class Rocprof:
    """Version 1: wide CSV, one row a dispatch; the timing pass asks for time stamps and no counter."""

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan as it is."""
        return plan

    def launch(self, tool: Tool, of_pass: Pass, command: tuple[str, ...], folder: Path, output_format: str) -> Launch:
        """Return the command line of one pass.

        Raises:
            PathError: When the folder's path would not survive rocprof's shell.
        """
        del output_format  # it has one
        script, files = through_a_script(command, folder)
        counters: tuple[str, ...] = ()
        if of_pass.counters:
            files["counters.txt"] = f"pmc : {' '.join(of_pass.counters)}\n"
            counters = ("-i", str(folder / "counters.txt"))
        return Launch(
            argv=(
                tool.path, *counters, "-o", str(folder / "raw" / "out.csv"), "-t", str(folder / "tmp"),
                "-d", str(folder / "data"), "--timestamp", "on", script,
            ),
            files=files,
            folders=("raw", "tmp", "data"),
        )  # fmt: skip


class Rocprofv2:
    """rocprofv2: wide CSV through its file plug-in; names carry the process id when no name is given."""

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan as it is."""
        return plan

    def launch(self, tool: Tool, of_pass: Pass, command: tuple[str, ...], folder: Path, output_format: str) -> Launch:
        """Return the command line of one pass.

        Raises:
            PathError: When the folder's path would not survive rocprofv2's shell.
        """
        del output_format
        shell_safe(folder)  # it tests `[ $2 ]` without quotes; the application's arguments it passes on well
        files = {}
        what: tuple[str, ...] = ("--kernel-trace",)
        if of_pass.counters:
            files["counters.txt"] = f"pmc: {' '.join(of_pass.counters)}\n"
            what = ("-i", str(folder / "counters.txt"))
        return Launch(
            argv=(tool.path, *what, "--plugin", "file", "-d", str(folder / "raw"), *command),
            files=files,
            folders=("raw",),
        )
