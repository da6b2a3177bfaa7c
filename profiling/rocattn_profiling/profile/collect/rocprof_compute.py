"""rocprof-compute, called Omniperf before ROCm 6.3: it plans its passes itself and runs the application 12 to 20 times.

Facts from src/argparser.py and CHANGELOG.md of rocprofiler-compute: ``-p`` names the folder up to 3.6, and
``--output-directory`` from 3.7 (ROCm 7.14), which removed ``-p``. The roofline's micro-benchmarks are left out
(``--no-roof``): they take minutes and are missing for some distributions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.profile.collect.launch import Launch
from rocattn_profiling.profile.collect.passes import Pass

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn_profiling.profile.collect.find import Tool
    from rocattn_profiling.profile.collect.passes import PassPlan

_OUTPUT_DIRECTORY, _OUTPUT_DIRECTORY_ROCM = (3, 7), (7, 14)
_NOTE = "rocprof-compute plans its own passes and collects all its counters, whatever was asked for"


class RocprofCompute:
    """One pass of ours, many of its own."""

    formats = ("csv",)

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return a plan of the one pass that this profiler is for us."""
        return msgspec.structs.replace(plan, passes=(Pass("workload", opaque=True),), notes=(*plan.notes, _NOTE))

    def launch(self, tool: Tool, of_pass: Pass, command: tuple[str, ...], folder: Path, output_format: str) -> Launch:
        """Return the command line of the one pass."""
        del of_pass, output_format
        found = re.match(r"(\d+)\.(\d+)", tool.version)
        if found:
            is_new = (int(found[1]), int(found[2])) >= _OUTPUT_DIRECTORY
        else:
            is_new = tool.release >= _OUTPUT_DIRECTORY_ROCM
        option = "--output-directory" if is_new else "-p"
        return Launch(
            argv=(tool.path, "profile", "-n", "rocattn", option, str(folder / "raw"), "--no-roof", "--", *command),
            env={"ROCPROF_TMPDIR": str(folder / "tmp")},
            folders=("tmp",),
        )
