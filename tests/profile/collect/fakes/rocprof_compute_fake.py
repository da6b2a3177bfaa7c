"""rocprof-compute 3.x (Omniperf 2.x): its profile command, its folder, its failures (src/argparser.py, src/utils)."""

import re
import shlex
import sys
from pathlib import Path

import pretend

SUPPORTED = re.compile(r"gfx(?:908|90a|94[0-2]|950)")
COUNTERS = ["GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_WAVE_CYCLES", "SQ_INSTS_VALU"]
COLUMNS = (
    "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,"
    "Kernel_Name"
)
SYSINFO = {
    "workload_name": "rocattn", "command": "", "timestamp": "Thu 21 Mar 2024", "version": "3", "rocm_version": "7.0.0",
    "gpu_series": "MI300", "gpu_model": "MI300X_A1", "gpu_arch": "gfx942", "cu_per_gpu": "304", "simd_per_cu": "4",
    "wave_size": "64", "max_waves_per_cu": "32", "max_sclk": "2100", "max_mclk": "1300", "num_xcd": "8",
    "lds_banks_per_cu": "32", "num_hbm_channels": "128",
}  # fmt: skip


def main(path):
    """Do what rocprof-compute does."""
    found, words = pretend.settings(path), sys.argv[1:]
    tool = tuple(int(part) for part in found.tool_version.split("."))
    if words == ["--version"]:
        print(
            "-" * 40
            + f"\nrocprofiler-compute version: {found.tool_version} (release)\nGit revision:     abc\n"
            + "-" * 40
        )
        return
    if words[:1] != ["profile"] or "--" not in words:
        pretend.say("usage: rocprof-compute profile --name <workload_name> [profile options] -- <profile_cmd>")
        sys.exit(2)
    at = words.index("--")
    options, command = words[1:at], words[at + 1 :]
    where = "--output-directory" if tool >= (3, 7) else "-p"
    known = {"-n", where, "--no-roof"}
    if bad := [word for word in options if word.startswith("-") and word not in known]:
        pretend.say(f"rocprof-compute: error: unrecognized arguments: {' '.join(bad)}")
        sys.exit(2)
    if SUPPORTED.fullmatch(found.arch) is None:
        pretend.say(f"ERROR Cannot find a supported arch in rocminfo: {found.arch}")
        sys.exit(1)
    folder = Path(options[options.index(where) + 1])
    if tool >= (3, 8) and folder.exists() and any(folder.iterdir()):
        pretend.say("ERROR workload directory is not empty: use --overwrite")
        sys.exit(1)
    if found.says:
        pretend.say(found.says)
    folder.mkdir(parents=True, exist_ok=True)
    log = [f"Rocprofiler-Compute version: {found.tool_version}", f"Command: {shlex.join(command)}"]
    for number in (1, 2):
        log.append(f"[Run {number}/2][Approximate profiling time left: pending first measurement...]")
        _, status = pretend.run_application(command, found, COUNTERS)
        if status:
            (folder / "log.txt").write_text("\n".join(log))
            pretend.say("ERROR Profiling execution failed.")
            sys.exit(1)
    if pretend.fails(found, COUNTERS) == "writes nothing":
        log.append("WARNING Cannot write results for pmc_perf_0.csv due to no counter csv files generated.")
        (folder / "log.txt").write_text("\n".join(log))
        return
    (folder / "log.txt").write_text("\n".join(log))
    about = SYSINFO | {"gpu_arch": found.arch, "command": shlex.join(command)}
    (folder / "sysinfo.csv").write_text(",".join(about) + "\n" + ",".join(about.values()) + "\n")
    lines = [",".join([COLUMNS, *COUNTERS, "Start_Timestamp", "End_Timestamp"])]
    for number, kernel, grid, block, lds, vgprs, start, end in pretend.dispatches(found):
        name = f'"{kernel.replace(chr(34), "")}"'
        cells = [number - 1, 2, grid, block, lds, 0, vgprs, 0, 112, name]
        cells += [float(pretend.value(counter, number, kernel, grid, found)) for counter in COUNTERS]
        lines.append(",".join(map(str, [*cells, start, end])))
    (folder / "pmc_perf.csv").write_text("\n".join(lines) + "\n")
