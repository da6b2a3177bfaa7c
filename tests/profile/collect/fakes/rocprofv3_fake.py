"""A rocprofv3 of ROCm 6.2 to 7.x: its options, its exit statuses, its texts, its files (source/bin/rocprofv3.py)."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import pretend
import rocpd_fake


def names(text):
    """Return the words of a text: the columns of a file."""
    return text.split()


COUNTERS_62 = names(
    "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Name Workgroup_Size "
    "LDS_Block_Size Scratch_Size VGPR_Count SGPR_Count Counter_Name Counter_Value"
)
RANGE = "--kernel-iteration-range"
TRACE_62 = names(
    "Kind Agent_Id Queue_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp End_Timestamp Private_Segment_Size "
    "Group_Segment_Size Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z"
)
TRACE_70 = names(
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp "
    "End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count Workgroup_Size_X "
    "Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z"
)
AGENT = names(
    "Node_Id Logical_Node_Id Agent_Type Cpu_Cores_Count Simd_Count Cpu_Core_Id_Base Simd_Id_Base Max_Waves_Per_Simd "
    "Lds_Size_In_Kb Gds_Size_In_Kb Num_Gws Wave_Front_Size Num_Xcc Cu_Count Array_Count Num_Shader_Banks "
    "Simd_Arrays_Per_Engine Cu_Per_Simd_Array Simd_Per_Cu Max_Slots_Scratch_Cu Gfx_Target_Version Vendor_Id Device_Id "
    "Location_Id Domain Drm_Render_Minor Num_Sdma_Engines Num_Sdma_Xgmi_Engines Num_Sdma_Queues_Per_Engine "
    "Num_Cp_Queues Max_Engine_Clk_Ccompute Max_Engine_Clk_Fcompute Sdma_Fw_Version Fw_Version Capability "
    "Cu_Per_Engine Max_Waves_Per_Cu Family_Id Workgroup_Max_Size Grid_Max_Size Local_Mem_Size Hive_Id Gpu_Id "
    "Workgroup_Max_Dim_X Workgroup_Max_Dim_Y Workgroup_Max_Dim_Z Grid_Max_Dim_X Grid_Max_Dim_Y Grid_Max_Dim_Z Name "
    "Vendor_Name Product_Name Model_Name"
)


def parser(version):
    """Return the argument parser of a release, with the options that a wrapper may use."""
    made = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=version < (7, 0))
    made.add_argument("-i", "--input")
    made.add_argument("-o", "--output-file", default=os.environ.get("ROCPROF_OUTPUT_FILE_NAME"))
    made.add_argument("-d", "--output-directory", default=os.environ.get("ROCPROF_OUTPUT_PATH"))
    formats = [
        "csv",
        "json",
        "pftrace",
        *(["otf2"] if version >= (6, 3) else []),
        *(["rocpd"] if version >= (7, 0) else []),
    ]
    names = ["-f", "--output-format"] if version >= (7, 0) else ["--output-format"]
    made.add_argument(*names, nargs="+", choices=formats, type=str.lower)
    made.add_argument("--kernel-trace", action="store_true")
    made.add_argument("--stats", action="store_true")
    made.add_argument("--kernel-include-regex", default="")
    made.add_argument(RANGE, nargs="+", default=[])
    if version >= (6, 4):
        made.add_argument("--memory-allocation-trace", action="store_true")
        made.add_argument("--pc-sampling-beta-enabled", nargs="?", const=True, default=False)
        made.add_argument("--pc-sampling-unit", choices=("instructions", "cycles", "time"), type=str.lower)
        made.add_argument("--pc-sampling-method", choices=("stochastic", "host_trap"), type=str.lower)
        made.add_argument("--pc-sampling-interval", type=int)
    if version >= (7, 0):
        made.add_argument("--pmc", nargs="*")
        made.add_argument("--advanced-thread-trace", "--att", dest="att", action="store_true")
        made.add_argument("--att-library-path", nargs="+")
        made.add_argument("-v", "--version", action="store_true")
    return made


def fatal(text):
    """End as the script's fatal_error does."""
    sys.stderr.write(f"Fatal error: {text}\n")
    sys.exit(1)


def main(path):
    """Do what rocprofv3 does."""
    found = pretend.settings(path)
    version = pretend.release(found)
    words, command = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    arguments = parser(version).parse_args(words)
    if version >= (7, 0) and arguments.version:
        for key, text in (("version", "1.0.0"), ("git_revision", "abcdef"), ("rocm_version", found.release)):
            print(f"    {key:>16}: {text}")
        return
    if not command:
        fatal("No application provided")
    passes, folder = [[]], ""
    if arguments.input:
        if Path(arguments.input).suffix != ".txt":
            fatal(f"Input file '{arguments.input}' does not have a recognized extension (.txt, .json, .yaml, .yml)\n")
        lines = Path(arguments.input).read_text().splitlines()
        passes = [line.replace("pmc:", "").split() for line in lines if "pmc:" in line]
        folder = "pmc_"
    elif version >= (7, 0) and arguments.pmc:
        passes = [arguments.pmc]
    elif not arguments.kernel_trace:
        sys.stderr.write("Warning: No tracing options were enabled.\n")
    check_sampling(arguments)
    check_decoder(arguments)
    default = "rocpd" if version >= (7, 0) else "csv"
    inherited = os.environ.get("ROCPROF_OUTPUT_FORMAT", "")  # appended to, as the script does
    formats = {*filter(None, inherited.split(",")), *(arguments.output_format or [default])}
    for index, counters in enumerate(passes, 1):
        out = Path(arguments.output_directory or ".") / (f"{folder}{index}" if folder else "")
        # Before 7.0 an input file's passes are children of the script; else the script becomes the application.
        status = one(found, version, counters, command, out, arguments, formats)
        if folder and status:
            fatal(f"Command '{command}' returned non-zero exit status {status}.\n")
        if status:
            sys.exit(status)


def check_sampling(arguments):
    """End where the script does, because of its options for PC sampling."""
    sampling = [getattr(arguments, f"pc_sampling_{name}", None) for name in ("method", "unit", "interval")]
    if any(sampling) and not arguments.pc_sampling_beta_enabled:
        fatal(
            "PC sampling unavailable. The feature is implicitly disabled. To enable it, use "
            "--pc-sampling-beta-enable option or set ROCPROFILER_PC_SAMPLING_BETA_ENABLED=ON in the environment"
        )
    if any(sampling) and not all(sampling):
        fatal("All three PC sampling configurations need to be set")


def check_decoder(arguments):
    """End where the script does, for a thread trace without the library that decodes it."""
    if not getattr(arguments, "att", False):
        return
    own = Path(sys.argv[0]).resolve().parent.parent / "lib"
    paths = arguments.att_library_path or os.environ.get("ROCPROF_ATT_LIBRARY_PATH")
    paths = paths or [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), str(own)]
    if not any(any(Path(path).rglob("librocprof-trace-decoder.so*")) for path in filter(None, paths)):
        fatal(f"rocprof-trace-decoder library path not found in {paths}")


def refuses_sampling(found, version, method, unit):
    """Say whether no GPU takes this method with this unit, as the tool says it."""
    units = {"stochastic": "cycles"} if version >= (7, 0) and found.arch in {"gfx942", "gfx950"} else {}
    units |= {"host_trap": "time"} if found.arch in {"gfx90a", "gfx942", "gfx950"} else {}
    if units.get(method) == unit:
        return False
    pretend.say(
        "E20260815 22:01:04.2 9 tool.cpp:2191] Given PC sampling configuration is not supported on any of the agents"
    )
    return True


def one(found, version, counters, command, out, arguments, formats):
    """Run one pass and return the application's exit status."""
    pretend.say("W20260815 22:01:04.144790 9 simple_timer.cpp:55] [rocprofv3] tool initialization :: 0.0906 sec")
    if found.says:
        pretend.say(found.says)
    asked_where = [name.partition(":device=")[::2] for name in counters]
    counters = list(dict.fromkeys(name for name, _ in asked_where))
    for number, arch in (found.undefined or {}).items() if counters else ():
        pretend.say(
            f"W20260815 22:01:04.2 9 metadata.cpp:330] rocprofiler_iterate_agent_supported_counters failed for agent "
            f"{int(number) + 1} ({arch}) :: Agent HW architecture is not supported, no counter metrics found."
        )
        if (7, 0) <= version < (7, 13) and any(device in {"", number} for _, device in asked_where):
            pretend.say("terminate called after throwing an instance of 'std::out_of_range'")
            pretend.say("  what():  unordered_map::at")
            pretend.abort()
    method = getattr(arguments, "pc_sampling_method", None)
    if method and refuses_sampling(found, version, method, arguments.pc_sampling_unit):
        return 1
    known = [name for name in counters if name not in (found.unknown or [])]
    if known != counters:
        asked, have = ", ".join(counters), ", ".join(known)
        pretend.say(
            f"{'W' if version >= (6, 4) else 'F'}20260815 22:01:04.2 9 tool.cpp:1176] Unable to find all counters for "
            f"agent 1 (gpu-0, {found.arch}) in [{asked}]. Found: [{have}]"
        )
        if version < (6, 4):
            pretend.abort()
    if pretend.over(known, found):
        pretend.say(
            "F20260815 22:01:04.3 9 tool.cpp:1186]  :: [/src/tool.cpp:1186]\n\trocprofiler_create_counter_config("
            "agent_id, counters_v.data(), counters_v.size(), &profile_v)\n\nCould not construct profile cfg failed "
            "with error code 38: Request exceeds the capabilities of the hardware to collect"
        )
        pretend.abort()
    temporary = Path(os.environ.get("ROCPROF_TMPDIR", ".")) / ".rocprofv3"
    temporary.mkdir(parents=True, exist_ok=True)
    (temporary / f"{os.getppid()}-{os.getpid()}-kernel_dispatch.dat").write_bytes(b"left behind")
    preload = {"LD_PRELOAD": "", "ROCP_TOOL_LIBRARIES": "/opt/rocm/lib/librocprofiler-sdk-tool.so"}
    pid, status = pretend.run_application(command, found, counters, {**os.environ, **preload})
    if pretend.fails(found, counters) == "writes nothing" or (counters and not known):
        return status
    name = (arguments.output_file or f"{os.uname().nodename}/%pid%").replace("%pid%", str(pid))
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    if "rocpd" in formats:
        rocpd_fake.write(out / f"{name}_results.db", found, known, command, pid)
    if "csv" in formats:
        write_csv(out, name, found, version, known, pid)
        write_samples(out, name, found, method)
        status = write_trace(out, found, arguments) or status
    if "json" in formats:
        write_json(out / f"{name}_results.json", found, command, pid)
    return status


def table(path, columns, rows):
    """Write a CSV as rocprofv3 does: texts quoted, quotes inside them not escaped."""
    lines = [",".join(f'"{column}"' for column in columns)]
    lines += [",".join(f'"{cell}"' if isinstance(cell, str) else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    pretend.say(f"E20260815 22:01:04.144790 9 output_stream.cpp:111] Opened result file: {path}")


def write_csv(out, name, found, version, counters, pid):
    """Write the CSV files of a release."""
    new = version >= (7, 0)
    agent = "Agent 1" if new else 1
    made = pretend.dispatches(found)
    gpu = dict.fromkeys(AGENT, 0) | {
        "Node_Id": 1, "Logical_Node_Id": 1, "Agent_Type": "GPU", "Simd_Count": 1216, "Max_Waves_Per_Simd": 8,
        "Lds_Size_In_Kb": 64, "Wave_Front_Size": 64, "Num_Xcc": 8, "Cu_Count": 304, "Simd_Per_Cu": 4,
        "Max_Engine_Clk_Fcompute": 2100, "Max_Waves_Per_Cu": 32, "Name": found.arch, "Vendor_Name": "AMD",
        "Product_Name": "AMD Instinct MI300X", "Model_Name": "ip discovery",
    }  # fmt: skip
    cpu = dict.fromkeys(AGENT, 0) | {"Agent_Type": "CPU", "Cu_Count": 8, "Name": "A CPU", "Vendor_Name": "CPU"}
    table(out / f"{name}_agent_info.csv", AGENT, [[row[column] for column in AGENT] for row in (cpu, gpu)])
    if not counters:
        rows = []
        for number, kernel, grid, block, lds, vgprs, start, end in made:
            row = {
                "Kind": "KERNEL_DISPATCH", "Agent_Id": agent, "Queue_Id": 1, "Stream_Id": 1, "Thread_Id": pid,
                "Dispatch_Id": number, "Kernel_Id": 7, "Kernel_Name": kernel, "Correlation_Id": number,
                "Start_Timestamp": start, "End_Timestamp": end, "LDS_Block_Size": lds, "Scratch_Size": 0,
                "Private_Segment_Size": 0, "Group_Segment_Size": lds, "VGPR_Count": vgprs, "Accum_VGPR_Count": 0,
                "SGPR_Count": 112, "Workgroup_Size_X": block, "Workgroup_Size_Y": 1, "Workgroup_Size_Z": 1,
                "Grid_Size_X": grid, "Grid_Size_Y": 1, "Grid_Size_Z": 1,
            }  # fmt: skip
            rows.append(row)
        columns = TRACE_70 if new else TRACE_62[:3] + (["Thread_Id", "Dispatch_Id"] if version >= (6, 2, 4) else [])
        columns += [] if new else TRACE_62[3:]
        table(out / f"{name}_kernel_trace.csv", columns, [[row[column] for column in columns] for row in rows])
        return
    columns = list(COUNTERS_62)
    if version >= (6, 2, 4):
        columns.insert(columns.index("Grid_Size") + 1, "Kernel_Id")
    if version >= (6, 4):
        columns.insert(columns.index("VGPR_Count") + 1, "Accum_VGPR_Count")
    if version >= (6, 3):
        columns += ["Start_Timestamp", "End_Timestamp"]
    rows = []
    only = [int(word) for word in re.findall(r"\d+", sys.argv[sys.argv.index(RANGE) + 1])] if RANGE in sys.argv else []
    for number, kernel, grid, block, lds, vgprs, start, end in made:
        if only and (number - 1) // len(pretend.KERNELS) + 1 not in only:
            continue
        for counter in sorted(counters):
            amount = pretend.value(counter, number, kernel, grid, found)
            row = {
                "Correlation_Id": number, "Dispatch_Id": number, "Agent_Id": agent, "Queue_Id": 1, "Process_Id": pid,
                "Thread_Id": pid, "Grid_Size": grid, "Kernel_Id": 7, "Kernel_Name": kernel, "Workgroup_Size": block,
                "LDS_Block_Size": lds, "Scratch_Size": 0, "VGPR_Count": vgprs, "Accum_VGPR_Count": 0,
                "SGPR_Count": 112, "Counter_Name": counter, "Start_Timestamp": start, "End_Timestamp": end,
            }  # fmt: skip
            rows.append(
                [row[column] if column != "Counter_Value" else _Bare(pretend.number(amount)) for column in columns]
            )
    table(out / f"{name}_counter_collection.csv", columns, rows)


def write_samples(out, name, found, method):
    """Write the samples: 300 of each kernel's second dispatch, waiting at one line (generateCSV.cpp, ROCm 7.0)."""
    if not method or pretend.fails(found, []) == "samples nothing":
        return
    reason = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_WAITCNT"
    columns = names("Sample_Timestamp Exec_Mask Dispatch_Id Instruction Instruction_Comment Correlation_Id")
    more = names("Wave_Issued_Instruction Instruction_Type Stall_Reason Wave_Count")
    rows = []
    for number, *_ in pretend.dispatches(found)[3:]:
        row = [390705261841337, (1 << 64) - 1, number, "s_waitcnt vmcnt(0)", "/src/app.hip:12", number]
        issued = [0, "ROCPROFILER_PC_SAMPLING_INSTRUCTION_TYPE_NO_INST", reason, 4]
        rows += [[*row, *(issued if method == "stochastic" else [])]] * 300
    table(out / f"{name}_pc_sampling_{method}.csv", columns + (more if method == "stochastic" else []), rows)


def write_trace(out, found, arguments):
    """Write the decoded trace of one launch of each kernel, as ROCm 7.0's att-tool names its files; return a status."""
    if not getattr(arguments, "att", False):
        return 0
    if pretend.fails(found, []) == "refuses the trace":
        pretend.say("E20260815 22:01:05.1 9 aql_packet.cpp:203] failed to create ATT packet")
        return 1
    hits = 0 if pretend.fails(found, []) == "traces nothing" else 8
    header = names("CodeObj Vaddr Instruction Hitcount Latency Stall Idle Source")
    for number, kernel, *_ in pretend.dispatches(found)[: len(pretend.KERNELS)]:
        if not re.search(arguments.kernel_include_regex, kernel):
            continue
        stem = f"ui_output_agent_45661_dispatch_{number}"
        plain = re.split(r"[<(]", kernel)[0].split()[-1]
        rows = [
            [3, 4096, f"; {plain}", 0, 0, 0, 0, kernel],
            [3, 4096, "s_load_dwordx4 s[0:3], s[4:5], 0x0", hits, 34 * hits, 30 * hits, 0, "/src/app.hip:11"],
            [3, 4104, "s_waitcnt vmcnt(0)", hits, 1200 * hits, 1196 * hits, 8 * hits, "/src/app.hip:12"],
        ]
        table(out / f"stats_{stem}.csv", header, rows)
        (out / stem).mkdir()
        code = [[row[2], 0, line, row[7], *row[:2], *row[3:7]] for line, row in enumerate(rows)]
        columns = "ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle"
        (out / stem / "code.json").write_text(json.dumps({"code": code, "header": columns, "version": "3.0.0"}))
        (out / stem / "se0_sm1_sl0_wv0.json").write_text(json.dumps({"wave": {"cu": 1, "instructions": [[0, 1, 4]]}}))
        (out / stem / "filenames.json").write_text(json.dumps({"wave_filenames": {"0": "se0_sm1_sl0_wv0.json"}}))
        (out / f"45661_{number}_shader_engine_0_{number}.att").write_bytes(b"\1\2\0\3")
        (out / f"{found.arch}_code_object_id_{number}.out").write_bytes(b"\x7fELF")
    return 0


class _Bare:
    """Text that is written without quotes."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


def write_json(path, found, command, pid):
    """Write the head of a JSON result: what it says of the process."""
    metadata = {"pid": pid, "command": command, "environment": dict(os.environ), "config": {"arch": found.arch}}
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [{"metadata": metadata}]}))
