"""rocprofv3 of ROCm 6.2 to 10.

Facts from its own script, source/bin/rocprofv3.py of rocprofiler-sdk: releases before 7.0 take counters from a file
(``-i``), one ``pmc:`` line a pass, and put that pass's files into ``pmc_1/``; from 7.0 on ``--pmc`` is a pass and the
default format is rocpd, so the format is always named. A name without ``%pid%`` lets the second process of the
application overwrite the first one's files. ROCPROF_TMPDIR keeps its temporary files out of the working directory.

From 7.0 on it makes a set of counters for every GPU of the machine, whatever ROCR_VISIBLE_DEVICES says, and up to 7.2
ends the application where one has no counter definitions, as the GPU inside a Ryzen (rocprofiler-sdk issue 148,
`construct_counter_collection_profile` in tool.cpp). ``NAME:device=N`` asks for a counter on one GPU alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.profile.collect.launch import Launch

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn_profiling.profile.collect.find import Tool
    from rocattn_profiling.profile.collect.passes import Pass, PassPlan

_PMC_OPTION = (7, 0)
_ROCPD = (7, 0)


class Rocprofv3:
    """Counters with ``--pmc`` or an input file, kernel trace for the timing pass."""

    formats = ("csv", "rocpd")

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan as it is."""
        return plan

    def launch(self, tool: Tool, of_pass: Pass, command: tuple[str, ...], folder: Path, output_format: str) -> Launch:
        """Return the command line of one pass."""
        old = (0, 0) < tool.release < _PMC_OPTION
        written = "csv" if tool.release < _ROCPD and tool.release != (0, 0) else output_format
        where = ("-d", str(folder / "raw"), "-o", "out_%pid%", "--output-format", written)
        files = {}
        if not of_pass.counters:
            what: tuple[str, ...] = ("--kernel-trace",)
        elif old:
            files["counters.txt"] = f"pmc: {' '.join(of_pass.counters)}\n"
            what = ("-i", str(folder / "counters.txt"))
        else:
            where_counted = [f":device={number}" for number in of_pass.devices] or [""]
            what = ("--pmc", *(name + device for name in of_pass.counters for device in where_counted))
        return Launch(
            argv=(tool.path, *what, *where, "--", *command),
            env={"ROCPROF_TMPDIR": str(folder / "tmp")},
            files=files,
            folders=("raw", "tmp"),
        )
