"""rocprof version 1 (bin/rpl_run.sh) and rocprofv2 (bin/rocprofv2) of ROCm/rocprofiler, as a wrapper sees them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pretend

V1_ARCHS = ("gfx80", "gfx90", "gfx94")
V1_COLUMNS = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj"
)
V1_TIMES = "DispatchNs,BeginNs,EndNs,CompleteNs"
V2_COLUMNS = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID"
)


def counters_of(path):
    """Return the counters of an input file's one pmc line."""
    lines = [line.split(":", 1)[1] for line in Path(path).read_text().splitlines() if line.strip().startswith("pmc")]
    return lines[0].replace(",", " ").split() if lines else []


def usage(program, text):
    """End as the script's fatal does."""
    print(
        f"{program}: Error: {text}\n\nROCm Profiling Library (RPL) run script, a part of ROCprofiler library package."
    )
    sys.exit(1)


def version(found):
    """Print what --version prints."""
    print(f"ROCm version: {found.release}-66\nROCProfiler version: 2.0")


def main_v1(path):
    """Do what rocprof does."""
    found, words = pretend.settings(path), sys.argv[1:]
    print(f"RPL: on '260815_220104' from '/opt/rocm' in '{Path.cwd()}'")
    options = {"-i": "", "-o": "", "-d": "", "-t": "", "--timestamp": "off", "--basenames": "off"}
    while words and words[0].startswith("-"):
        if words[0] == "--version":
            version(found)
            return
        if words[0] not in options:
            usage(sys.argv[0], f"Wrong option '{words[0]}'")
        options[words[0]], words = words[1], words[2:]
    if not options["-o"].endswith(".csv"):
        print("error: file name must have .CSV extension")
        sys.exit(1)
    output = Path(options["-o"])
    output.unlink(missing_ok=True)
    quoted = " ".join(f'"{word}"' for word in words)
    print(f"RPL: profiling '{quoted}'\nRPL: input file '{options['-i']}'")
    result = Path(options["-d"]) / "rpl_data_260815_220104_9"
    result.mkdir(parents=True)
    print(f"RPL: output dir '{result}'\nRPL: result dir '{result}/input_results_260815_220104'")
    if not found.arch.startswith(V1_ARCHS):
        print("WARNING: rocprof(v1) is not supported on this device. Recommended use: rocprofv2")
    counters = counters_of(options["-i"]) if options["-i"] else []
    print(f'ROCProfiler: input from "{result}/input0.xml"\n  {len(counters)} metrics', flush=True)
    for name in counters:
        if name in (found.unknown or []):
            print(f"ROCProfiler: input metric '{name}' is not found", flush=True)
            pretend.abort()
    if pretend.over(counters, found):
        groups = "\n".join(f" group{number}: {name}" for number, name in enumerate(counters))
        print(f"\nInput metrics out of HW limit. Proposed metrics group set:\n{groups}\n", flush=True)
        pretend.say("ERROR: rocprofiler_open(), Construct(), Metrics list exceeds HW limits\nAborted (core dumped)")
        print("Error found, profiling aborted.")
        sys.exit(1)
    # The script joins the words, splits them at blanks and evaluates the result.
    pretend.fails(found, counters) and pretend.run_application(["true"], found, counters)
    status = subprocess.run(["/bin/sh", "-c", " ".join(quoted.split())], check=False).returncode
    made = [] if pretend.fails(found, counters) == "writes nothing" else pretend.dispatches(found)
    print(f"\nROCprofiler: {len(made)} contexts collected, output directory {result}", flush=True)
    columns = [V1_COLUMNS, *counters, *([V1_TIMES] if options["--timestamp"] == "on" else [])]
    lines = [",".join(columns)]
    for number, kernel, grid, block, lds, vgprs, start, end in made:
        name = f'"{kernel.replace(chr(34), "")} [clone .kd]"'
        cells = [number - 1, name, 1, 0, number, 9, 9, grid, block, lds, 0, vgprs, 0, 112, 64, "0x0", "0x7f3f1ecf9280"]
        cells += [pretend.value(counter, number, kernel, grid, found) for counter in counters]
        cells += [start - 900, start, end, end + 400] if options["--timestamp"] == "on" else []
        lines.append(",".join(map(str, cells)))
    output.write_text("\n".join(lines) + "\n")
    print(f"RPL: '{output}' is generated")
    sys.exit(status)


def main_v2(path):
    """Do what rocprofv2 does."""
    found, words = pretend.settings(path), sys.argv[1:]
    source, folder, trace = "", "", False
    while words and words[0].startswith("-"):
        if words[0] == "--version":
            version(found)
            return
        if words[0] == "--kernel-trace":
            trace, words = True, words[1:]
            continue
        if words[0] not in {"-i", "--input", "-d", "--output-directory", "-o", "--plugin"}:
            print(f'Wrong option "{words[0]}", Please use the following options:\n')
            sys.exit(1)
        if len(shlex.split(words[1])) != 1:
            pretend.say(f"{sys.argv[0]}: line 165: [: {words[1]}: binary operator expected")
            sys.exit(1)
        if words[0] in {"-i", "--input"}:
            source = words[1]
        elif words[0] in {"-d", "--output-directory"}:
            folder = words[1]
        words = words[2:]
    counters = counters_of(source) if source else []
    out = Path(folder or ".") / ("pmc_1" if counters else "")
    if pretend.over(counters, found):
        pretend.say("ERROR: rocprofiler_open(), Construct(), Metrics list exceeds HW limits")
        pretend.abort()
    pid, status = pretend.run_application(words, found, counters)
    if pretend.fails(found, counters) == "writes nothing" or not (counters or trace):
        sys.exit(status)
    out.mkdir(parents=True, exist_ok=True)
    lines = [",".join([V2_COLUMNS, *counters]), ""]
    for number, kernel, grid, block, lds, vgprs, start, end in pretend.dispatches(found):
        name = f'"{kernel.replace(chr(34), "")} (.kd)"'
        cells = [number - 1, 1, 1, pid, pid, grid, block, lds, 0, vgprs, 0, 128, 64, name, start, end, 0]
        cells += [f"{pretend.value(counter, number, kernel, grid, found):.6f}" for counter in counters]
        lines.append(",".join(map(str, cells)))
    written = out / f"results_{pid}.csv"
    written.write_text("\n".join(lines) + "\n")
    print(f"Results File: {written}\n\nThe output path for the following counters: {out}")
    sys.exit(status)


def main_enumerator(path):
    """Print what rocm_agent_enumerator prints."""
    print(f"gfx000\n{pretend.settings(path).arch}", file=sys.stdout)
    os._exit(0)
