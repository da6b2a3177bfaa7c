"""Turn a request into a collection: choose GPU, profiler, passes and environment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.profile.collect.counters import of_arch
from rocattn_profiling.profile.collect.find import NoProfilerError, Tool, assume, bundled_rocm, choose, find_profilers
from rocattn_profiling.profile.collect.hardware import Hardware, visible
from rocattn_profiling.profile.collect.launchers import LAUNCHERS, refuse
from rocattn_profiling.profile.collect.passes import PassPlan, plan_passes, sampling_pass, trace_pass
from rocattn_profiling.profile.collect.store import Job
from rocattn_profiling.profile.ingest.choice import ranges_of

_CHOOSES_GPU = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
# Variables with which profilers control the application's process. Inherited ones would add another tool, counters or
# an output format (rocprofv3 appends to ROCPROF_OUTPUT_FORMAT). ROCPROF selects rocprof-compute's collector.
_PROFILER = re.compile(r"(?:ROCPROF|ROCP|ROCPROFILER|ROCTRACER)(?:_\w+)?|HSA_TOOLS_\w+|AQLPROFILE_\w+|OMNIPERF_\w+")
# rocprofv3 treats each character of this variable as a folder (get_att_paths in source/bin/rocprofv3.py of
# rocprofiler-sdk, check_att_capability), so its value is passed as an option instead.
DECODER = "ROCPROF_ATT_LIBRARY_PATH"
_LIBRARY = re.compile(r"rocprof|roctracer|roctx|rocprofiler|omnitrace|rocprof-sys", re.IGNORECASE)


class CollectionRequest(msgspec.Struct, frozen=True):
    """The caller's request.

    Attributes:
        command: The application with its arguments.
        wanted: Groups, metrics and counters; empty for the default groups.
        arch: The GPU's architecture, or "" for the machine's.
        tool: A profiler's name, or "" for the best; in a dry run also NAME@ROCM for one that is not installed.
        output_format: csv or rocpd, or "" for the profiler's default.
        timeout_s: Time limit per pass.
        keep_env: Variables to keep although they look like another profiler's.
        sampling: Method of an additional PC-sampling pass: stochastic, host_trap, auto, or "" for none.
        interval: Cycles or microseconds between samples; 0 for the method's default.
        traced: Whether to add a pass with a thread trace.
        kernel: Count only kernels whose name matches this regular expression; "" for all.
        launches: Count only these launches of each kernel (`ranges_of`); "" for all.
        gpu: Count only on the GPU with this index; None for all.
        dry: Run nothing, and allow a profiler that is not installed.
    """

    command: tuple[str, ...]
    wanted: tuple[str, ...] = ()
    arch: str = ""
    tool: str = ""
    output_format: str = ""
    timeout_s: float = 900.0
    keep_env: tuple[str, ...] = ()
    sampling: str = ""
    interval: int = 0
    traced: bool = False
    kernel: str = ""
    launches: str = ""
    gpu: int | None = None
    dry: bool = False


def assemble(request: CollectionRequest, hardware: Hardware) -> Job:
    """Return the job for a request on this machine.

    Raises:
        NoProfilerError: When no suitable profiler is installed.
        RocattnError: When the request cannot be met; the message names the remedy.
    """
    arch = of_arch(request.arch or _only_arch(hardware, dry=request.dry)).arch
    tool, why = _tool(request, arch)
    collector = LAUNCHERS[tool.name]
    output_format = request.output_format or collector.formats[0]
    if output_format not in collector.formats:
        raise RocattnError(f"{tool.name} does not write {output_format}: it writes {', '.join(collector.formats)}")
    if output_format == "rocpd" and (0, 0) < tool.release < (7, 0):
        raise RocattnError(f"{tool.label} does not write rocpd: ROCm 7.0 and later do")
    plan = collector.plan(plan_passes(request.wanted, arch, tool.release, tool.name))
    if request.sampling:
        sampled = sampling_pass(request.sampling, request.interval, arch, tool.release, tool.name)
        beta = "PC sampling is a beta feature of ROCm: AMD warns that it may freeze the GPU"
        plan = msgspec.structs.replace(plan, passes=(*plan.passes, sampled), notes=(*plan.notes, beta))
    if request.traced:
        traced = trace_pass(tool.release, tool.name, os.environ.get(DECODER, ""))
        plan = msgspec.structs.replace(plan, passes=(*plan.passes, traced))
    environment, removed = clean(os.environ, request.keep_env)
    notes = list(plan.notes)
    numbers = visible(hardware, arch)
    if numbers:
        devices = tuple(map(int, numbers.split(",")))
        only = tuple(msgspec.structs.replace(of_pass, devices=devices) for of_pass in plan.passes)
        plan = msgspec.structs.replace(plan, passes=only)
    plan = _filtered(plan, request, tool)
    if numbers and not any(name in environment for name in _CHOOSES_GPU):
        environment["ROCR_VISIBLE_DEVICES"] = numbers
        others = ", ".join(other for other in hardware.archs if other != arch)
        notes.append(f"the application sees only the GPUs of {arch} (ROCR_VISIBLE_DEVICES={numbers}): {others} hidden")
    if level := hardware.gated(arch):
        notes.append(
            f"the GPU's performance level is {level}: counters of Radeon GPUs then read 0 "
            "(sudo amd-smi set -g 0 -l stable_std)"
        )
    torch_rocm = "" if request.dry else bundled_rocm(request.command[0])
    if torch_rocm and tool.rocm and not tool.rocm.startswith(f"{torch_rocm}.") and tool.rocm != torch_rocm:
        notes.append(f"{tool.label} profiles a torch with ROCm {torch_rocm}: two releases in one process often fail")
    return Job(
        tool=tool,
        why=why,
        plan=msgspec.structs.replace(plan, notes=tuple(notes)),
        command=_command(request.command, dry=request.dry),
        cwd=str(Path.cwd()),
        output_format=output_format,
        timeout_s=request.timeout_s,
        environment=environment,
        removed=removed,
        torch_rocm=torch_rocm,
    )


def _filtered(plan: PassPlan, request: CollectionRequest, tool: Tool) -> PassPlan:
    """Return the plan with its counting passes limited to the requested kernels, launches and GPU."""
    if not (request.kernel or request.launches or request.gpu is not None):
        return plan
    ranges = ranges_of(request.launches) if request.launches else ()
    launches = ",".join(f"{least}-{most}" if least < most else f"{least}" for least, most in ranges)
    try:
        re.compile(request.kernel)
    except re.error as error:
        raise RocattnError(f"--kernel {request.kernel}: no regular expression ({error})") from error
    refuse(tool, request.kernel, launches, request.gpu)
    passes = tuple(
        msgspec.structs.replace(
            each, kernel=request.kernel, launches=launches,
            gpu=request.gpu, devices=each.devices if request.gpu is None else (request.gpu,),
        ) if each.counters or each.opaque or each.traced else each for each in plan.passes
    )  # fmt: skip
    note = "what --kernel, --launches and --gpu-id leave out is not counted, and `rocattn report` leaves it out"
    return msgspec.structs.replace(plan, passes=passes, notes=(*plan.notes, note))


def _only_arch(hardware: Hardware, *, dry: bool) -> str:
    if len(hardware.archs) == 1:
        return hardware.archs[0]
    if hardware.archs:
        raise RocattnError(f"this machine has {' and '.join(hardware.archs)}: choose one with --arch")
    hint = "name one, like --arch gfx942" if dry else "if there is one, name it: --arch gfx942"
    raise RocattnError(f"no AMD GPU is visible here: {hint}")


def _tool(request: CollectionRequest, arch: str) -> tuple[Tool, str]:
    """Return the profiler and the reason for choosing it; a dry run may assume one."""
    if "@" in request.tool and not request.dry:
        raise RocattnError(f"--tool {request.tool}: NAME@ROCM only stands for a profiler in a --dry-run")
    tools = [] if "@" in request.tool else find_profilers()
    try:
        return choose(tools, arch, request.tool)
    except NoProfilerError as error:
        if not request.dry:
            raise
        tool = assume(request.tool or "rocprofv3")
        return tool, f"assumed for the dry run, because {error}" if not request.tool else "assumed for the dry run"


def _command(command: Sequence[str], *, dry: bool) -> tuple[str, ...]:
    """Return the command if its program exists; profilers report a missing one obscurely."""
    if shutil.which(command[0]) is None and not dry:
        raise RocattnError(f"there is no program {command[0]!r} to profile")
    return tuple(command)


def clean(environment: Mapping[str, str], keep: Collection[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment without profilers' variables, and the names of the removed variables.

    Profilers' libraries are removed from LD_PRELOAD entry by entry.

    Args:
        environment: The caller's.
        keep: Names to keep.
    """
    result, removed = dict(environment), []
    for name in sorted(environment):
        if name in keep:
            continue
        if _PROFILER.fullmatch(name):
            del result[name]
            removed.append(name)
        elif name == "LD_PRELOAD":
            entries = re.split(r"[:\s]+", environment[name])
            kept = [entry for entry in entries if entry and not _LIBRARY.search(Path(entry).name)]
            if len(kept) < len([entry for entry in entries if entry]):
                result[name] = ":".join(kept)
                removed.append(name)
                if not kept:
                    del result[name]
    return result, tuple(removed)


def under_a_profiler(removed: Collection[str]) -> bool:
    """Return whether the removed variables show that this process itself runs under a profiler."""
    return bool({"ROCP_TOOL_LIBRARIES", "HSA_TOOLS_LIB", "LD_PRELOAD"} & set(removed))
