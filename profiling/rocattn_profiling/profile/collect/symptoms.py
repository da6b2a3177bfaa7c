"""Findings, and the profilers' messages that indicate them.

The messages are from rocprofiler-sdk (source/bin/rocprofv3.py, source/lib), rocprofiler version 1 (bin/rpl_run.sh,
src/core/context.h) and rocprofiler-compute (src/utils). Messages known only from users cite the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Level = Literal["error", "warning"]
OVER_SUBSCRIBED, ALL_ZERO, APP_FAILED, HANGS = "over_subscribed", "all_zero", "application_failed", "hangs"
PROFILER_BREAKS, NO_DATA, MISSING = "profiler_breaks_application", "no_data", "missing_counters"
UNKNOWN, MIXED = "unknown_counter", "mixed_rocm"


class PassFinding(msgspec.Struct, frozen=True):
    """A problem of a pass.

    Attributes:
        code: Identifier for programs.
        what: The problem.
        remedy: What to do.
        level: "error" means that the pass has no usable data.
        stops: Whether later passes would fail in the same way.
    """

    code: str
    what: str
    remedy: str
    level: Level = "error"
    stops: bool = False

    @property
    def line(self) -> str:
        """The problem and the remedy in one line."""
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class Symptom:
    """A message and its finding; ``{1}`` in ``what`` is the pattern's first group.

    ``of_arch``: the group is an architecture, and only messages about the profiled one count, since rocprofv3 reports
    every GPU of the machine.
    """

    code: str
    pattern: str
    what: str
    remedy: str
    level: Level = "error"
    stops: bool = True
    of_arch: bool = False


# Its groups: the architecture, the requested counters, the known ones.
_NOT_ALL = r"Unable to find all counters for agent \d+ \([^)]*?(gfx\w+)\) in \[([^\]]*)\]\. Found: \[([^\]]*)\]"
# Printed by rocprofv3 of ROCm 6.4 and later for every GPU without counter definitions, hidden ones included.
_NO_DEFINITIONS = r"for agent \d+ \((gfx\w+)\) :: Agent HW architecture is not supported"
SYMPTOMS = (
    Symptom(
        OVER_SUBSCRIBED,
        r"Request exceeds the capabilities of the hardware|Metrics list exceeds HW limits"
        r"|Input metrics out of HW limit",
        "the hardware cannot count these together in one pass",
        "the pass is repeated in two halves",
        stops=False,
    ),
    Symptom(
        UNKNOWN,
        # Fatal up to ROCm 6.3, a warning since then.
        rf"(?m)^F\d.*{_NOT_ALL}",
        "this profiler does not know all of the counters on {1}, and ends the application for it",
        "leave them out, or use rocprofv3 of ROCm 6.4 or later",
        stops=False,
    ),
    Symptom(
        UNKNOWN,
        _NOT_ALL,
        "this profiler does not know all of the counters on {1}",
        "see rocprofv3 --list-avail; the rest was measured",
        level="warning",
        stops=False,
        of_arch=True,
    ),
    Symptom(
        UNKNOWN,
        r"input metric '([^']+)' is not found",
        "this profiler does not know the counter {1}",
        "leave it out, or see rocprof --list-basic and --list-derived",
        stops=False,
    ),
    Symptom(
        "arch_without_counters",
        # ROCm 7.0 to 7.2: rocprofiler-sdk issue 148; fixed by pull request 5294 of ROCm/rocm-systems. libstdc++ uses
        # either name.
        rf"(?s){_NO_DEFINITIONS}.*(?:unordered_map|_Map_base)::at",
        "rocprofv3 has no counter definitions for {1}, a GPU of this machine, and ends the application for it",
        "use a rocprofv3 from after April 2026; a GPU that is not meant can be switched off in the firmware's settings",
    ),
    Symptom(
        "arch_without_counters",
        # ROCm 6.2 and 6.3 examine every GPU and ignore ROCR_VISIBLE_DEVICES.
        r"error code \d+: Agent HW architecture is not supported",
        "a GPU of this machine has no counter definitions, and rocprofv3 ends the application for it",
        "use rocprofv3 of ROCm 6.4 or later; a GPU that is not meant can be switched off in the firmware's settings",
    ),
    Symptom(
        "arch_without_counters",
        _NO_DEFINITIONS,
        "this profiler has no counter definitions for {1}",
        "use a newer release",
        of_arch=True,
    ),
    Symptom(
        "arch_unsupported",
        r"Cannot find a supported arch in rocminfo: *(\S*)",
        "rocprof-compute does not support this GPU",
        "use rocprofv3 (--tool rocprofv3)",
    ),
    Symptom(
        "arch_unsupported",
        # Release notes of ROCm 6.2.0: Omniperf on MI300.
        r"(gfx\w+) is not enabled rocprofv1",
        "this Omniperf takes rocprof version 1, which does not support {1}",
        "use rocprofv3 (--tool rocprofv3), or run it with ROCPROF=rocprofv2 and --keep-env ROCPROF",
    ),
    Symptom(
        "tool_not_for_arch",
        r"rocprof\(v1\) is not supported on this device",
        "rocprof version 1 does not support this GPU",
        "use rocprofv3 or rocprofv2",
        level="warning",
        stops=False,
    ),
    Symptom(
        "no_permission",
        r"lack of permissions \(capability SYS_PERFMON\)|Required permission \(CAP_PERFMON\) is not set",
        "no permission to lock the GPU's counters; values may be disturbed by other programs",
        "run with CAP_PERFMON (containers: --cap-add PERFMON), or as root",
        level="warning",
        stops=False,
    ),
    Symptom(
        "no_permission",
        r"Unable to open /dev/kfd read-write: (?:Permission denied|Operation not permitted)",
        "no permission to open /dev/kfd",
        "sudo usermod -aG render,video $USER and log in again; containers need --device /dev/kfd --device /dev/dri",
    ),
    Symptom(
        "perf_paranoid",
        r"perf_event_paranoid|perf_event_open.*(?:Permission denied|Operation not permitted)",
        "the kernel forbids performance events to this user",
        "sudo sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON",
    ),
    Symptom(
        "old_driver",
        r"Driver/Kernel version does not support locking device",
        "the driver cannot lock the GPU's counters; values may be disturbed by other programs",
        "update the amdgpu driver, or let nothing else run on the GPU",
        level="warning",
        stops=False,
    ),
    Symptom(
        "second_profiler",
        # The second text: rocprofiler-compute issue 759.
        r"has a profiler attached to it|An instance of rocprof is already running",
        "another profiler uses this GPU",
        "wait for it or end it: only one can count at a time",
    ),
    Symptom(
        "aqlprofile_missing",
        r"aqlprofile API table load failed",
        "the profiler does not find its library aqlprofile",
        "install hsa-amd-aqlprofile, or link libhsa-amd-aqlprofile64.so in ROCm's lib folder",
    ),
    Symptom(
        "aqlprofile_stops",
        # Up to ROCm 7.2.0: issue 2169 of ROCm/rocm-systems, fixed by its pull requests 2171 and, for 7.2, 3229.
        r"Error Calling hsa_iterate_agents: HSA_STATUS_ERROR:",
        "the profiler's library aqlprofile stops at a processor that it does not expect (an NPU, a gfx115x)",
        "use a rocprofv3 from after February 2026 (ROCm 7.12 has it); only counters need that library",
    ),
    Symptom(
        MIXED,
        # The first two texts: ROCm/TheRock issue 6695.
        r"ROCPROFILER_STATUS_ERROR_CONFIGURATION_LOCKED|outside of valid rocprofiler configuration period"
        r"|undefined symbol: \w*(?:rocprofiler|hsa_|hip)\w*"
        r"|version `[^']*' not found \(required by [^)]*(?:roc|hsa|hip)",
        "libraries of two ROCm releases are in one process",
        "use the profiler of the release that the application brings along (pip's ROCm: its own bin folder)",
    ),
    Symptom(
        "mapping_failed",
        r"ring_buffer\.cpp:\d+\D.*mmap failed with errno (\d+)",
        "the profiler cannot map its buffers (errno {1}), and the application hangs",
        "its host libraries are of different releases: install rocprofiler-sdk, hsa-rocr and hip of one ROCm",
    ),
    Symptom(
        "pc_sampling",
        r"PC sampling configuration is not supported on any of the agents",
        "this GPU or driver does not take this PC sampling: the method, or its interval",
        "rocprofv3 --list-avail says what it takes; counters do not need it",
    ),
    Symptom(
        "trace_decoder",
        # get_att_paths in rocprofv3.py, and att_lib_wrapper.cpp for a decoder of another release or GPU.
        r"rocprof-trace-decoder library path not found|Error loading decoder",
        "rocprofv3 finds no trace decoder that it can use",
        "install rocprof-trace-decoder (part of ROCm from 7.13 on), or name its folder in ROCPROF_ATT_LIBRARY_PATH",
        stops=False,
    ),
    Symptom(
        "thread_trace",
        # The first text: issue 6218 of ROCm/rocm-systems; the others: using-thread-trace.rst of rocprofiler-sdk.
        r"failed to create ATT packet|INVALID_SHADER_DATA|Agent not supported",
        "this GPU, or its driver, takes no thread trace",
        "it needs aqlprofile of ROCm 7.0 or later, and an MI200 or later, or a Radeon; counters do not need it",
        stops=False,
    ),
    Symptom(
        "trace_full",
        r"Thread trace buffer full!",
        "the buffer was full before the kernel ended: the end of its trace is missing",
        "trace a smaller launch, or fewer kernels (--kernel, --launches)",
        level="warning",
        stops=False,
    ),
    Symptom(
        "disk_full",
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "free some space, then continue with --resume",
    ),
    Symptom(
        "not_writable",
        r"Read-only file system",
        "the profiler writes to a read-only place",
        "name a writable folder with --out, and run from a writable one",
    ),
    Symptom(
        "tool_usage",
        # The application may also use argparse, so the message must name the profiler.
        r"(?m)(?:^(?:rocprof|omniperf)[\w .-]*: error: (?:unrecognized arguments|argument )"
        r"|Wrong option|Fatal error: Input file|conflicting value for)[^\n]*",
        "the profiler does not take our command line: its version is not what it seems",
        "name the program's ROCm folder with ROCM_PATH, and report the log of the pass",
    ),
    Symptom(
        "roctool_missing",
        r"'rocminfo' utility is not found|Missing rocm_agent_enumerator"
        r"|set ROCPROF environment variable with full path",
        "the profiler does not find a program of ROCm that it needs",
        "put ROCm's bin folder on PATH",
    ),
    Symptom(
        "post_processing",
        r"Profiling data corrupted: [^\n]*",
        "the profiler could not put its own files together",
        "see the log of the pass; rocprofv3 has no such step",
        stops=False,
    ),
    Symptom(
        "no_contexts",
        r"ROCprofiler: 0 contexts collected",
        "the profiler saw no dispatch",
        "check that the command launches a kernel on an AMD GPU",
        stops=False,
    ),
    Symptom(
        "collector_failed",
        r"Cannot write results for (\S+?)\.csv due to no counter csv files generated",
        "rocprof-compute got no counters in {1}",
        "see log.txt of the workload; rocprofv3 alone says more (--tool rocprofv3)",
        level="warning",
        stops=False,
    ),
)
